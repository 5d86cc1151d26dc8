"""The Anthropic SDK (2.14) through the proxy, before and after a SIGKILL, with nothing changed but base_url."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.harness.crashes import completed, until
from tests.harness.processes import Rig
from tests.harness.sdks import anthropic_client, restart_on_the_same_port, sdk

RETRIES: Final = 6  # the proxy is away for as long as a start takes, longer on a busy machine
REFUSED_STATUS: Final = 424  # 400, 404 and 422 would make Claude Code try another way (research/clients.md section 2)


def asked(model: str = "synthetic") -> dict[str, Any]:
    return {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}


def assert_recorded(rig: Rig, usage: Any) -> None:
    """One call, completed; its usage is what the SDK read, its body what the provider says it got."""
    row = completed(rig)
    (receipt,) = rig.provider_receipts()
    assert (row["effect"], row["body_blake3"]) == ("happened", receipt["body_blake3"])
    assert row["usage"]["input_tokens"] == usage.input_tokens > 0
    assert row["usage"]["output_tokens"] == usage.output_tokens > 0
    assert len(rig.calls()) == 1


def test_plain_message_is_recorded_as_the_sdk_saw_it(running: Rig) -> None:
    """Usage and digests agree on all three sides."""
    answer = anthropic_client(running).messages.create(**asked())
    assert answer.content[0].text
    assert_recorded(running, answer.usage)


def test_streamed_message_is_recorded_as_the_sdk_saw_it(running: Rig) -> None:
    """The accumulated message's usage is the recorded one."""
    with anthropic_client(running).messages.stream(**asked()) as stream:
        assert "".join(stream.text_stream)
        answer = stream.get_final_message()
    assert_recorded(running, answer.usage)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_async_client_is_recorded_as_it_saw_it(running: Rig, stream: bool) -> None:
    """The asynchronous client, both forms."""

    async def ask() -> Any:
        async with anthropic_client(running, "AsyncAnthropic") as client:
            if not stream:
                return (await client.messages.create(**asked())).usage
            async with client.messages.stream(**asked()) as events:
                return (await events.get_final_message()).usage

    assert_recorded(running, asyncio.run(ask()))


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_killed_while_provider_holds_the_sdks_own_retry_raises_our_sentence(running: Rig, stream: bool) -> None:
    """The SDK retries by itself, is told the truth once, and stops. So does the program's own next try."""
    anthropic, port = sdk("anthropic"), running.port
    client = anthropic_client(running, max_retries=RETRIES)

    def ask() -> Any:
        return client.messages.create(**asked("synthetic/hold=forever"), stream=stream)

    with ThreadPoolExecutor() as pool:
        asking = pool.submit(ask)
        until(running.provider_receipts)
        restart_on_the_same_port(running, port)
        for attempt in (asking.result, ask):
            with pytest.raises(anthropic.APIStatusError, match="sendonce does not send it again") as refused:
                attempt()
            assert refused.value.status_code == REFUSED_STATUS
    assert len(running.provider_receipts()) == 1
    assert [row["stage"] for row in running.calls()] == ["effect_unknown"]


@pytest.mark.parametrize("status", [429, 529])
def test_proven_absent_error_then_200_is_two_linked_generations(running: Rig, status: int) -> None:
    """A whole 429 or 529 proves the effect absent, so the SDK's retry continues the call."""
    answer = anthropic_client(running).messages.create(**asked(f"synthetic/status={status},times=1"))
    assert answer.content[0].text
    newest = completed(running)
    older = running.calls()[1]
    assert (older["generation"], older["superseded_by"]) == (1, newest["call_id"])
    assert (newest["generation"], newest["occurrence"], newest["effect"]) == (2, 1, "happened")
    assert len(running.provider_receipts()) == 2


def test_timed_out_client_attaches_to_its_own_first_try(running: Rig) -> None:
    """The SDK gave up after 2 s; its retry (x-stainless-retry-count 1) gets the answer of the one attempt in flight."""
    client = anthropic_client(running, timeout=2.0)
    raw = client.messages.with_raw_response.create(**asked("synthetic/hold=3"))
    assert raw.retries_taken >= 1
    assert raw.headers["sendonce-disposition"] in ("attached", "replayed")
    assert raw.parse().content[0].text
    assert len(running.provider_receipts()) == 1
    assert len(running.calls()) == 1


@pytest.mark.parametrize("fault", ["cut=2", "clean_cut=2", "reset=mid", "error_after=2"])
def test_cut_stream_raises_in_the_sdk(running: Rig, fault: str) -> None:
    """Never a stream that just ends: also where the provider ended its framing without message_stop."""
    anthropic = sdk("anthropic")
    stream = anthropic_client(running).messages.create(**asked(f"synthetic/{fault}"), stream=True)
    with pytest.raises(anthropic.APIError):
        list(stream)
    assert len(running.provider_receipts()) == 1
