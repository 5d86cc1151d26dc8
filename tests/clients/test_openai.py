"""The OpenAI SDK (3.57) through the proxy, before and after a SIGKILL, with nothing changed but base_url."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.harness.crashes import completed, until
from tests.harness.processes import Rig
from tests.harness.sdks import openai_client, restart_on_the_same_port, sdk

ASKED: Final = [{"role": "user", "content": "hello"}]
# More than the SDK's own two: the proxy is away for as long as a start takes, longer on a busy machine.
RETRIES: Final = 6
AT_ONCE_S: Final = 4.0  # below timeouts.retry_wait_s = 5, and long for what is sent at once


def assert_recorded(rig: Rig, usage: Any) -> None:
    """One call, completed; its usage is what the SDK read, its body what the provider says it got."""
    row = completed(rig)
    (receipt,) = rig.provider_receipts()
    assert (row["effect"], row["body_blake3"]) == ("happened", receipt["body_blake3"])
    assert row["usage"]["total_tokens"] == usage.total_tokens > 0
    assert len(rig.calls()) == 1


def test_plain_chat_is_recorded_as_the_sdk_saw_it(running: Rig) -> None:
    """Usage and digests agree on all three sides."""
    answer = openai_client(running).chat.completions.create(model="synthetic", messages=ASKED)
    assert answer.choices[0].message.content
    assert_recorded(running, answer.usage)


def test_streamed_chat_is_recorded_as_the_sdk_saw_it(running: Rig) -> None:
    """The last chunk's usage is the recorded one."""
    options = {"include_usage": True}
    stream = openai_client(running).chat.completions.create(
        model="synthetic", messages=ASKED, stream=True, stream_options=options
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert_recorded(running, chunks[-1].usage)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_async_client_is_recorded_as_it_saw_it(running: Rig, stream: bool) -> None:
    """The asynchronous client, both forms."""

    async def ask() -> Any:
        async with openai_client(running, "AsyncOpenAI") as client:
            if not stream:
                return (await client.chat.completions.create(model="synthetic", messages=ASKED)).usage
            options = {"include_usage": True}
            chunks = await client.chat.completions.create(
                model="synthetic", messages=ASKED, stream=True, stream_options=options
            )
            return [chunk async for chunk in chunks][-1].usage

    assert_recorded(running, asyncio.run(ask()))


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_killed_while_provider_holds_the_sdks_own_retry_raises_our_sentence(running: Rig, stream: bool) -> None:
    """The SDK retries by itself, is told the truth once, and stops. So does the program's own next try."""
    openai, port = sdk("openai"), running.port
    client = openai_client(running, max_retries=RETRIES)

    def ask() -> Any:
        return client.chat.completions.create(model="synthetic/hold=forever", messages=ASKED, stream=stream)

    with ThreadPoolExecutor() as pool:
        asking = pool.submit(ask)
        until(running.provider_receipts)
        restart_on_the_same_port(running, port)
        for attempt in (asking.result, ask):
            with pytest.raises(openai.BadRequestError, match="sendonce does not send it again") as refused:
                attempt()
            assert refused.value.code == "effect_unknown"
    assert len(running.provider_receipts()) == 1
    assert [row["stage"] for row in running.calls()] == ["effect_unknown"]


def test_429_then_200_is_two_linked_generations(running: Rig) -> None:
    """A whole 429 proves the effect absent, so the SDK's retry continues the call."""
    answer = openai_client(running).chat.completions.create(model="synthetic/status=429,times=1", messages=ASKED)
    assert answer.choices[0].message.content
    newest = completed(running)
    older = running.calls()[1]
    assert (older["generation"], older["superseded_by"]) == (1, newest["call_id"])
    assert (newest["generation"], newest["occurrence"], newest["effect"]) == (2, 1, "happened")
    assert len(running.provider_receipts()) == 2


def test_429s_over_shared_connections_are_each_retried_at_once(running: Rig) -> None:
    """An asynchronous client's retries use whichever connection is idle, so first tries' connections stay open beside
    them: no retry waits for one to close, or is told `in_progress`.
    """

    async def ask() -> list[Any]:
        async with openai_client(running, "AsyncOpenAI") as client:
            create = client.chat.completions.with_raw_response.create
            prompts = [[{"role": "user", "content": f"number {number}"}] for number in range(6)]
            return await asyncio.gather(*(create(model="synthetic/status=429,times=1", messages=p) for p in prompts))

    answers = asyncio.run(ask())
    assert [answer.retries_taken for answer in answers] == [1] * 6
    assert {answer.headers["sendonce-disposition"] for answer in answers} == {"resumed"}
    assert len(running.provider_receipts()) == 12


def test_certain_retry_beside_the_open_connection_of_a_429_is_sent_at_once(running: Rig) -> None:
    """The first client keeps its connection; the retry (the SDK's own sign) comes over another one."""
    openai = sdk("openai")
    asked = {"model": "synthetic/status=429,times=1", "messages": ASKED}
    first, second = openai_client(running, max_retries=0), openai_client(running, max_retries=0, timeout=AT_ONCE_S)
    with pytest.raises(openai.RateLimitError):
        first.chat.completions.create(**asked)
    running.settled()
    raw = second.chat.completions.with_raw_response.create(**asked, extra_headers={"x-stainless-retry-count": "1"})
    assert raw.headers["sendonce-disposition"] == "resumed"
    assert len(running.provider_receipts()) == 2
    first.close()


@pytest.mark.parametrize("failpoint", ["after-sent-receipt=kill@2", "after-first-byte=kill@2"])
def test_killed_during_the_retry_of_a_429_is_refused(running: Rig, failpoint: str) -> None:
    """The second generation may have been served: the SDK's third try is refused, and nothing is sent again."""
    openai = sdk("openai")
    assert running.proxy_process is not None
    running.proxy_process.close()
    process = running.start(failpoint)
    port, client = running.port, openai_client(running, max_retries=RETRIES)
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(client.chat.completions.create, model="synthetic/status=429,times=1", messages=ASKED)
        process.wait()
        restart_on_the_same_port(running, port)
        with pytest.raises(openai.BadRequestError, match="sendonce does not send it again"):
            asking.result()
    newest, older = running.calls()
    assert (newest["stage"], newest["generation"]) == ("effect_unknown", 2)
    assert older["superseded_by"] == newest["call_id"]
    assert len(running.provider_receipts()) == (1 if failpoint.startswith("after-sent") else 2)


def test_timed_out_client_attaches_to_its_own_first_try(running: Rig) -> None:
    """The SDK gave up after 2 s; its retry (x-stainless-retry-count 1) gets the answer of the one attempt in flight."""
    client = openai_client(running, timeout=2.0)
    raw = client.chat.completions.with_raw_response.create(model="synthetic/hold=3", messages=ASKED)
    assert raw.retries_taken >= 1
    assert raw.headers["sendonce-disposition"] in ("attached", "replayed")
    assert raw.parse().choices[0].message.content
    assert len(running.provider_receipts()) == 1
    assert len(running.calls()) == 1


@pytest.mark.parametrize("fault", ["cut=2", "clean_cut=2", "reset=mid", "error_after=2"])
def test_cut_stream_raises_in_the_sdk(running: Rig, fault: str) -> None:
    """Never an iterator that just ends: also where the provider ended its framing without [DONE]."""
    openai = sdk("openai")
    stream = openai_client(running).chat.completions.create(model=f"synthetic/{fault}", messages=ASKED, stream=True)
    with pytest.raises(openai.APIError):
        list(stream)
    assert len(running.provider_receipts()) == 1


def test_eight_identical_requests_at_once_are_eight_samples(running: Rig) -> None:
    """Deliberate samples are never collapsed: eight receipts, eight different answers, eight occurrences."""

    async def ask() -> list[str]:
        async with openai_client(running, "AsyncOpenAI") as client:
            asking = (client.chat.completions.create(model="synthetic/hold=0.3", messages=ASKED) for _ in range(8))
            return [answer.id for answer in await asyncio.gather(*asking)]

    assert len(set(asyncio.run(ask()))) == 8
    assert len(running.provider_receipts()) == 8
    assert sorted(row["occurrence"] for row in running.calls()) == list(range(1, 9))
