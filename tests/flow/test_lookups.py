"""What became of it, asked of the provider: each way proves what it proves and no more, and generates nothing."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from tests.harness.crashes import CUT, begin, call_of, completed, records_of
from tests.harness.looked_up import KEY, configured, generating, lookup, operator
from tests.harness.processes import Rig, chat, until

RESPONSES: Final = "/openai/v1/responses"
CHAT: Final = "/openai/v1/chat/completions"
RETRY: Final = {
    "x-stainless-lang": "python",
    "x-stainless-retry-count": "1",
}  # unmarked it would be another sample: the first one is over
SLOW: Final = "synthetic/chunks=6,interval=0.4"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with configured(tmp_path, injection=1) as made:
        made.start()
        yield made


def sdk(rig: Rig) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{rig.url}/openai/v1", api_key=KEY, max_retries=0)


def response(model: str, **more: Any) -> bytes:
    return json.dumps({"model": model, "input": "hello", "stream": True, **more}).encode()


def killed_mid_stream(rig: Rig, path: str, body: bytes, word: bytes = b"delta") -> None:
    """SIGKILL to the proxy after its client has seen the beginning of the stream."""
    with closing(begin(rig, path, body)) as connection, closing(connection.getresponse()) as answer:
        came = b""
        while word not in came:
            came += answer.read1()
        rig.restart()


def test_foreground_stream_cut_by_our_crash_is_unknown_after_404(rig: Rig) -> None:
    """The provider ended and forgot it; the look-up says that this proves nothing, and the request stays refused."""
    killed_mid_stream(rig, RESPONSES, response(SLOW))
    before = call_of(rig)
    (row,) = lookup(rig, before["call_id"])
    assert (row["mechanism"], row["result"], row["settles"]) == ("openai_response", "absent_inconclusive", False)
    assert "proves nothing" in row["says"]
    assert row["decided"] is None
    assert call_of(rig) == before
    refused = rig.post(RESPONSES, response(SLOW))
    assert (refused.status, refused.code) == (400, "effect_happened")
    assert len(generating(rig)) == 1


def test_background_stream_cut_by_our_crash_is_fetched_and_replayed(rig: Rig) -> None:
    """The SDK's next identical request gets the whole stream; the provider generated once."""
    asked = {"model": SLOW, "input": "hello", "background": True, "stream": True}
    with sdk(rig).responses.create(**asked) as stream:  # type: ignore[call-overload]
        kinds = [next(stream).type for _ in range(6)]
        rig.restart()
    (row,) = lookup(rig, "--all", "--wait", "30")
    assert (row["mechanism"], row["result"], row["settles"]) == ("openai_response", "matches", True)
    assert completed(rig)["outcome"] == "succeeded"
    with sdk(rig).responses.with_raw_response.create(**asked).parse() as again:  # type: ignore[call-overload]
        replayed = list(again)
    assert replayed[-1].type == "response.completed"
    assert [event.type for event in replayed[:6]] == kinds
    assert [event.sequence_number for event in replayed] == list(range(len(replayed)))
    assert len(generating(rig)) == 1
    (observed,) = [one for one in records_of(rig, row["call"], "attempt.observed") if one["source"] == "recovered"]
    assert observed["body"]["kept"]
    assert rig.command("verify").returncode == 0


def test_running_background_response_is_ended_by_cancel_only_where_asked(rig: Rig) -> None:
    """Without --cancel nothing at the provider changes; with it the call is closed, and its client refused."""
    body = response("synthetic/hold=0,chunks=400,interval=0.5", background=True)
    killed_mid_stream(rig, RESPONSES, body)
    (row,) = lookup(rig, "--all")
    assert (row["result"], row["settles"], row["decided"]) == ("matches", False, None)
    (row,) = lookup(rig, "--all", "--cancel")
    assert (row["result"], row["settles"]) == ("matches", True)
    assert (call_of(rig)["stage"], call_of(rig)["decision"]) == ("closed", "served")
    assert rig.post(RESPONSES, body, RETRY).code == "response_lost"
    assert len(generating(rig)) == 1


def test_chat_completion_without_a_byte_of_answer_is_found_by_its_tag(rig: Rig) -> None:
    """`store: true` is the client's; the tag is ours, on record, and no part of its intention."""
    body = json.dumps(
        {"model": "synthetic/delay=1", "store": True, "messages": [{"role": "user", "content": "hello"}]}
    ).encode()
    with closing(begin(rig, CHAT, body)):
        until(rig.provider_receipts)
        rig.restart()
    call = call_of(rig)
    (row,) = lookup_until_found(rig, call["call_id"])
    assert (row["mechanism"], row["result"], row["settles"]) == ("openai_stored_chat", "matches", True)
    injected = dict(rig.show(call["call_id"])["manifest"]["injected"])
    assert injected["body.metadata.sendonce_call"] == call["call_id"]
    answer = rig.chat(body)
    assert (answer.status, answer.disposition) == (200, "replayed")
    assert answer.json["choices"][0]["message"]["content"].startswith("receipt 1: ")
    assert len(generating(rig)) == 1


def lookup_until_found(rig: Rig, call: str) -> list[dict[str, Any]]:
    """A whole answer goes on at the provider when its connection is gone, and is stored when it is whole."""
    found: list[list[dict[str, Any]]] = [[]]

    def asked() -> bool:
        found[0] = lookup(rig, call, "--dry-run")
        return bool(found[0][0]["settles"])

    until(asked)
    return lookup(rig, call)


def test_openrouter_generation_gives_its_cost_and_closes_the_call(rig: Rig) -> None:
    """Served, with the exact cost in the evidence; its text is not to be had, so a retry is refused."""
    body = chat("synthetic/chunks=6,interval=0.4", stream=True)
    path = "/openrouter/v1/chat/completions"
    killed_mid_stream(rig, path, body, b"content")
    call = call_of(rig)
    (row,) = lookup_until_found(rig, call["call_id"])
    assert (row["mechanism"], row["result"]) == ("openrouter_generation", "matches")
    assert "total_cost" in row["evidence"]
    assert rig.post(path, body, RETRY).code == "response_lost"
    assert len(generating(rig)) == 1


BATCHES: Final[dict[str, dict[str, Any]]] = {
    "/openai/v1/batches": {"input_file_id": "file-1", "endpoint": "/v1/responses", "completion_window": "24h"},
    "/anthropic/v1/messages/batches": {
        "requests": [
            {"custom_id": name, "params": {"model": "synthetic", "max_tokens": 9, "messages": []}}
            for name in ("a", "b")
        ]
    },
}


@pytest.mark.parametrize("path", BATCHES)
def test_batch_is_found_and_is_the_answer(tmp_path: Path, path: str) -> None:
    """A durable object, made by this very request: whoever asks again gets it."""
    body = json.dumps(BATCHES[path]).encode()
    headers = {"Authorization": "", "x-api-key": KEY} if "anthropic" in path else {}
    with configured(tmp_path, injection=1) as rig:
        rig.start("after-head=kill")
        with pytest.raises(CUT):
            rig.post(path, body, headers)
        rig.restart()
        (row,) = lookup(rig, "--all")
        assert (row["result"], row["settles"]) == ("matches", True)
        answer = rig.post(path, body, headers)
        assert (answer.status, answer.disposition) == (200, "replayed")
        assert len(generating(rig)) == 1


@pytest.mark.slow
def test_batch_that_never_arrived_is_sent_after_two_lists(tmp_path: Path) -> None:
    """A minute lies between them; then the same request is sent, once."""
    path, body = next((path, json.dumps(document).encode()) for path, document in BATCHES.items())
    with configured(tmp_path) as rig:
        rig.start("after-sent-receipt=kill")
        with pytest.raises(CUT):
            rig.post(path, body)
        rig.restart()
        assert generating(rig) == []
        (row,) = lookup(rig, "--all")
        assert (row["result"], row["settles"]) == ("absent_conclusive", True)
        assert rig.post(path, body).disposition == "forwarded"
        assert len(generating(rig)) == 1


def test_batch_that_was_cancelled_meanwhile_is_still_the_one(rig: Rig) -> None:
    """The answer to its cancelling names it, and made nothing."""
    path, document = next(iter(BATCHES.items()))
    body = json.dumps(document).encode()
    rig.restart("after-head=kill")
    with pytest.raises(CUT):
        rig.post(path, body)
    rig.restart()
    call = call_of(rig)["call_id"]
    assert rig.post(f"{path}/{batch_of(rig)}/cancel", b"").status == 200
    rig.settled()
    (row,) = lookup(rig, call)
    assert (row["result"], row["settles"]) == ("matches", True)


def batch_of(rig: Rig) -> str:
    """The id of the newest batch, asked past the proxy."""
    return str(rig.post("/v1/batches", b"", method="GET", port=rig.provider_process.port).json["data"][0]["id"])


def test_key_without_permission_is_a_sentence_and_records_nothing(rig: Rig) -> None:
    """It names the variable and what is wanted; no key, too, is a sentence."""
    killed_mid_stream(rig, RESPONSES, response(SLOW))
    before = call_of(rig)
    done = operator(rig, "lookup", before["call_id"], key="sk-no-permission")
    assert done.returncode == 6
    assert "does not let the key in OPENAI_API_KEY look this up (403" in done.stderr
    done = operator(rig, "lookup", before["call_id"], key="")
    assert done.returncode == 6
    assert "OPENAI_API_KEY holds no key for openai" in done.stderr
    assert call_of(rig) == before


def test_call_that_needs_no_lookup_is_refused(rig: Rig) -> None:
    """A completed one, and one that there is not."""
    call = rig.chat(chat()).headers["sendonce-call"]
    rig.settled()
    for named, words in ((call, "which needs no look-up"), ("call_nothing", "There is no call")):
        done = operator(rig, "lookup", named)
        assert done.returncode == 6
        assert words in done.stderr
