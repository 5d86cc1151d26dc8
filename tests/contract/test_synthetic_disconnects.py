"""The synthetic provider when a connection ends first: what goes on, what is billed, what its usage file says of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from synthetic_provider.behaviour import Behaviour, OnDisconnect, parse
from tests.harness.connections import connected, read_until, request_bytes
from tests.harness.processes import until
from tests.harness.provider_records import Direct, direct, usage_lines

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SLOW = "interval=60"  # far above every limit of a test: what ends earlier was not waited for


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Direct]:
    with direct(tmp_path) as made:
        yield made


def chat(options: str, *, stream: bool = False, **more: Any) -> bytes:
    """Three words of input."""
    messages = [{"role": "user", "content": "one two three"}]
    return json.dumps({"model": f"synthetic/{options}", "messages": messages, "stream": stream, **more}).encode()


def responses(options: str, **more: Any) -> bytes:
    return json.dumps({"model": f"synthetic/{options}", "input": "one two three", **more}).encode()


def left(provider: Direct, path: str, body: bytes, seen: bytes = b"", behind: bytes = b"") -> dict[str, Any]:
    """The usage record of a request whose client goes: after its receipt, or once `seen` has come."""
    count = len(provider.receipts())
    with connected(provider.port) as sock:
        sock.sendall(request_bytes(path, body) + behind)
        if seen:
            read_until(sock, seen)
        until(lambda: len(provider.receipts()) > count)
    return provider.ended(count + 1)


def told(record: dict[str, Any]) -> tuple[str, bool, int, int]:
    return record["how"], record["billed"], record["input_tokens"], record["output_tokens"]


def test_option_names_what_becomes_of_a_lost_connection() -> None:
    """Both values and what is claimed; anything else is an error that names the option."""
    read = parse("synthetic/on_disconnect=abort,as=gpt-4o,in=7,out=0,cached=2,reasoning=1,tier=flex")
    claimed = {"input_tokens": 7, "output_tokens": 0, "cached_tokens": 2, "reasoning_tokens": 1, "tier": "flex"}
    assert read == Behaviour(on_disconnect=OnDisconnect.ABORT, answered_as="gpt-4o", **claimed)
    for option in ("on_disconnect=stop", "as=", "in=-1", "out=x", "tier="):
        with pytest.raises(ValueError, match=f"option '{option.partition('=')[0]}'"):
            parse(f"synthetic/{option}")


@pytest.mark.parametrize("behind", [b"", b"GET /pipelined HTTP/1.1\r\n"])
def test_held_stream_whose_client_goes_is_aborted_and_unbilled(provider: Direct, behind: bytes) -> None:
    """Noticed at once, in a hold without end and behind bytes that nobody has read yet; nothing was generated."""
    record = left(provider, CHAT, chat("hold=forever", stream=True), behind=behind)
    assert told(record) == ("aborted", False, 0, 0)
    assert record["status"] is None


def test_begun_stream_whose_client_goes_is_billed_for_what_was_written(provider: Direct) -> None:
    """All of the input and the first of five chunks, a fifth of the output that is claimed; nothing is stored."""
    body = responses(f"{SLOW},out=50", stream=True, store=True)
    assert told(left(provider, RESPONSES, body, b"output_text.delta")) == ("aborted", True, 3, 10)
    gone = provider.get(f"{RESPONSES}/resp_{1:024d}")
    assert (gone.status, gone.json["error"]["message"]) == (404, f"Response with id 'resp_{1:024d}' not found.")


@pytest.mark.parametrize("options", ["hold=forever", "delay=60"])
def test_whole_answer_whose_client_goes_continues(provider: Direct, options: str) -> None:
    """The default; the rest of the pauses is skipped, the answer stored and billed whole. `abort` is the other way."""
    seen = b"" if "hold" in options else b"\r\n\r\n"
    assert told(left(provider, RESPONSES, responses(options), seen)) == ("continued", True, 3, 5)
    assert provider.get(f"{RESPONSES}/resp_{1:024d}").json["status"] == "completed"
    aborted = left(provider, RESPONSES, responses(f"{options},on_disconnect=abort"), seen)
    assert told(aborted) == ("aborted", bool(seen), 3 if seen else 0, 0)
    assert provider.get(f"{RESPONSES}/resp_{2:024d}").status == 404


def test_stream_that_continues_is_stored_and_billed_whole(provider: Direct) -> None:
    """Where the model name asks for it, at once and in each dialect."""
    options = f"{SLOW},on_disconnect=continue"
    body = chat(options, stream=True, store=True)
    assert told(left(provider, CHAT, body, b'"content":"receipt')) == ("continued", True, 3, 5)
    assert provider.get(f"{CHAT}/chatcmpl-{1:024d}").json["usage"]["completion_tokens"] == 5
    assert told(left(provider, MESSAGES, chat(options, stream=True), b"text_delta")) == ("continued", True, 3, 5)
    assert told(left(provider, "/v1/models/synthetic/hold=forever:generateContent", b"{}")) == ("continued", True, 0, 5)


@pytest.mark.parametrize(
    ("options", "stream", "expected"),
    [
        ("", True, ("whole", True, 3, 5)),
        ("", False, ("whole", True, 3, 5)),
        ("cut=2", True, ("cut", True, 3, 2)),
        ("clean_cut=2", True, ("clean_cut", True, 3, 2)),
        ("reset=mid", True, ("reset", True, 3, 2)),
        ("reset=head", True, ("reset", True, 3, 0)),
        ("cut=2,on_disconnect=continue", True, ("continued", True, 3, 5)),
        ("cut=2", False, ("continued", True, 3, 5)),
        ("cut=2,on_disconnect=abort", False, ("cut", True, 3, 2)),
        ("reset=before", False, ("reset", False, 0, 0)),
        ("reset=before", True, ("reset", False, 0, 0)),
        ("reset=before,on_disconnect=continue", False, ("continued", True, 3, 5)),
        ("error_after=2", True, ("error_after", True, 3, 2)),
        ("status=500", False, ("error_status", False, 0, 0)),
        ("page=502", True, ("error_status", False, 0, 0)),
        ("status=x", False, ("error_status", False, 0, 0)),
        ("bodyless=204", False, ("bodyless", False, 0, 0)),
        ("redirect=307", False, ("redirect", False, 0, 0)),
    ],
)
def test_usage_record_says_how_the_generation_ended(
    provider: Direct, options: str, stream: bool, expected: tuple[str, bool, int, int]
) -> None:
    """A connection that a fault of ours breaks is to the generation what a client that goes is."""
    with connected(provider.port) as sock:
        sock.sendall(request_bytes(CHAT, chat(options, stream=stream, store=True)))
        record = provider.ended(1)
    assert told(record) == expected
    stored = provider.get(f"{CHAT}/chatcmpl-{1:024d}").status
    assert stored == (200 if record["how"] in ("whole", "continued") else 404)


def test_usage_record_has_what_the_answer_claims_and_no_credential(provider: Direct) -> None:
    """The exact line; `in` is all input, the cached included."""
    options = "as=gpt-4o,in=100,cached=40,out=30,reasoning=10,tier=flex"
    answer = provider.ask("POST", CHAT, json.loads(chat(options))).json
    assert (answer["model"], answer["service_tier"]) == ("gpt-4o", "flex")
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 40
    (record,), (receipt,) = provider.usage(), provider.receipts()
    assert record.pop("started_at") == receipt["at"] <= record.pop("at")
    assert record.pop("api_key").startswith("key_")
    assert record == {
        "n": 1,
        "dialect": "openai_chat",
        "model": "gpt-4o",
        "requested_model": f"synthetic/{options}",
        "input_tokens": 100,
        "cached_tokens": 40,
        "cache_write_tokens": 0,
        "output_tokens": 30,
        "reasoning_tokens": 10,
        "billed": True,
        "how": "whole",
        "status": 200,
        "service_tier": "flex",
        "batch": False,
    }
    assert "sk-test" not in provider.receipts_file.with_name("provider.jsonl.usage").read_text()


@pytest.mark.parametrize(
    ("path", "more", "read"),
    [
        (CHAT, {"max_tokens": 3}, lambda usage: usage["completion_tokens"]),
        (CHAT, {"max_completion_tokens": 3, "max_tokens": 9}, lambda usage: usage["completion_tokens"]),
        (RESPONSES, {"max_output_tokens": 3}, lambda usage: usage["output_tokens"]),
        (MESSAGES, {"max_tokens": 3}, lambda usage: usage["output_tokens"]),
    ],
)
def test_output_never_exceeds_the_limit_of_the_request(provider: Direct, path: str, more: Any, read: Any) -> None:
    """Neither in the answer nor in the record; nor does a part exceed its whole."""
    body = {**json.loads(chat("out=50,reasoning=40,in=2,cached=9")), "input": "x", **more}
    assert read(provider.ask("POST", path, body).json["usage"]) == 3
    (record,) = provider.usage()
    names = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    assert [record[name] for name in names] == [2, 2, 3, 3]


def test_only_what_generates_has_usage_records(provider: Direct) -> None:
    """The receipt says which requests those are; the others have a receipt alone."""
    provider.ask("POST", "/v1/embeddings", {"model": "synthetic", "input": "one two"})
    provider.ask("POST", "/v1/messages/count_tokens", json.loads(chat("")))
    provider.ask("POST", "/v1/batches", {"input_file_id": "file-1"})
    provider.get("/v1/batches")
    assert [line["generates"] for line in provider.receipts()] == [True, False, True, False]
    assert [(line["n"], line["dialect"], line["input_tokens"]) for line in provider.usage()] == [
        (1, "openai_embeddings", 2)
    ]


def test_killed_provider_leaves_a_receipt_without_usage_record(tmp_path: Path) -> None:
    """A torn line is cut off, whole ones stay; stored objects are gone."""
    with direct(tmp_path) as first:
        first.ask("POST", RESPONSES, json.loads(responses("")))
        with connected(first.port) as sock:
            sock.sendall(request_bytes(CHAT, chat("hold=forever")))
            until(lambda: len(first.receipts()) == 2)
            first.process.kill()
    usage = first.receipts_file.with_name("provider.jsonl.usage")
    usage.write_text(usage.read_text() + '{"n":2,"torn')
    with direct(tmp_path) as second:
        assert second.get(f"{RESPONSES}/resp_{1:024d}").status == 404
        second.ask("POST", CHAT, json.loads(chat("")))
        assert [(line["n"], line["dialect"]) for line in usage_lines(second.receipts_file)] == [
            (1, "openai_responses"),
            (4, "openai_chat"),
        ]
