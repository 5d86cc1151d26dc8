"""The Responses dialect, on realistic bytes: research/providers.md section 5."""

import json
from typing import Any

import httpx2
import pytest
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
)

from ledger.stages import Effect
from proxy.dialects.base import Outcome, Reading, TerminalEvidence
from proxy.dialects.openai_responses import OpenAIResponses
from proxy.headers import RawHeaders
from proxy.sse import UNDECIDED_LIMIT_BYTES, EventHold, Item
from tests.harness.sdks import sdk
from tests.harness.streams import event

RESPONSES = OpenAIResponses()
JSON: RawHeaders = ((b"content-type", b"application/json"), (b"x-request-id", b"req_1"))
SSE: RawHeaders = ((b"content-type", b"text/event-stream"), (b"x-request-id", b"req_1"))

MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": 'say "type":"response.completed"', "annotations": [], "logprobs": []}],
}
CALL = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "f",
    "arguments": "{}",
}
USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 12,
}


def response(status: str = "completed", **fields: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "gpt-5.5",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    } | fields


def done(index: int, item: dict[str, Any]) -> bytes:
    return event("response.output_item.done", sequence_number=index + 5, output_index=index, item=item)


CREATED = event("response.created", sequence_number=0, response=response("in_progress"))
DELTA = event(
    "response.output_text.delta", sequence_number=3, item_id="msg_1", output_index=0, content_index=0, delta="an error"
)
COMPLETED = event("response.completed", sequence_number=9, response=response(output=[MESSAGE, CALL], usage=USAGE))
INCOMPLETE = event(
    "response.incomplete",
    sequence_number=9,
    response=response("incomplete", incomplete_details={"reason": "max_output_tokens"}, usage=USAGE),
)
FAILED = event(
    "response.failed",
    sequence_number=9,
    response=response("failed", error={"code": "server_error", "message": "sorry"}),
)
ERROR = event("error", sequence_number=9, code="rate_limit_exceeded", message="sorry", param=None)
AZURE_ERROR = b'event: error\ndata: {"error":{"type":"too_many_requests","code":"429","message":"sorry"}}\n\n'
STREAM = CREATED + DELTA + done(0, MESSAGE) + done(1, CALL) + COMPLETED


def read(body: bytes, headers: RawHeaders = SSE, status: int = 200) -> Reading:
    return RESPONSES.interpret(status, headers, body)


def as_json(document: object) -> bytes:
    return json.dumps(document).encode()


# --- ends ---


@pytest.mark.parametrize("end", [COMPLETED, INCOMPLETE, FAILED, ERROR, AZURE_ERROR])
def test_stream_is_whole_only_with_its_terminal_event(end: bytes) -> None:
    """Cut at any byte before the terminal event's document is complete, nothing is proven."""
    assert RESPONSES.is_terminal(end)
    stream = CREATED + DELTA + end
    assert RESPONSES.evidence(200, SSE, stream) is TerminalEvidence.PROVEN
    for cut in range(len(stream.rstrip())):
        assert RESPONSES.evidence(200, SSE, stream[:cut]) is TerminalEvidence.LACKING


@pytest.mark.parametrize("text", [CREATED, DELTA, done(0, MESSAGE), b"data: [DONE]\n\n", b": response.completed\n\n"])
def test_event_that_only_speaks_of_an_end_is_none(text: bytes) -> None:
    """The words inside of a text, an item or a comment are not the event."""
    assert not RESPONSES.is_terminal(text)
    assert RESPONSES.evidence(200, SSE, text) is TerminalEvidence.LACKING


@pytest.mark.parametrize("end", [COMPLETED, INCOMPLETE, FAILED, ERROR])
def test_stream_split_at_every_byte_keeps_its_terminal_event(end: bytes) -> None:
    """All before it leaves, in order; nothing of it does."""
    before = CREATED + DELTA + done(0, MESSAGE)
    for size in (1, 7, len(before + end)):
        hold, stream = EventHold(RESPONSES.is_terminal), before + end
        released = [hold.feed(stream[at : at + size]) for at in range(0, len(stream), size)]
        assert released == sorted(released)
        assert released[-1] == len(before)
        assert hold.terminal_seen


def test_long_terminal_event_is_held_by_its_beginning_and_not_taken_for_whole() -> None:
    """`response.completed` repeats the answer: the hold sees only its beginning, so its end still has to be proven."""
    long = event("response.completed", response=response(output=[MESSAGE | {"id": "x" * 2 * UNDECIDED_LIMIT_BYTES}]))
    nameless = long.partition(b"\n")[2]
    for body in (long, nameless):
        hold = EventHold(RESPONSES.is_terminal)
        assert hold.feed(CREATED + body[: UNDECIDED_LIMIT_BYTES + 1]) == len(CREATED)
        assert (hold.held, hold.terminal_seen) == (True, False)
        assert RESPONSES.evidence(200, SSE, CREATED + body[:-4]) is TerminalEvidence.LACKING


# --- items ---


@pytest.mark.parametrize("kind", ["message", "reasoning", "web_search_call", "mcp_call"])
def test_item_that_runs_nothing_is_told_from_a_tool_call(kind: str) -> None:
    """Words, and what the provider ran itself."""
    assert RESPONSES.item_done(done(0, {"id": "i", "type": kind})) is Item.OTHER


@pytest.mark.parametrize(
    "kind",
    [
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "computer_call",
        "mcp_approval_request",
        "novel_call",
    ],
)
def test_item_that_a_client_runs_is_a_tool_call(kind: str) -> None:
    """A type that nobody knows yet is one too."""
    assert RESPONSES.item_done(done(0, {"id": "i", "type": kind})) is Item.TOOL


def test_other_events_complete_no_item() -> None:
    """Neither the item's beginning nor a text that speaks of its end."""
    added = event("response.output_item.added", output_index=0, item=CALL)
    says = event("response.output_text.delta", delta='{"type":"response.output_item.done"}')
    assert [RESPONSES.item_done(text) for text in (CREATED, added, says, COMPLETED, b"data: [DONE]\n\n")] == [None] * 5


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"id": "rs_1", "type": "reasoning", "encrypted_content": "x" * 100_000}, Item.OTHER),
        ({"id": "fc_1", "type": "function_call", "arguments": "x" * 100_000}, Item.TOOL),
        ({"id": "fc_1", "arguments": "x" * 100_000, "type": "message"}, Item.TOOL),
        ({"id": "m", "content": [{"type": "output_text", "text": "x" * 100_000}], "type": "message"}, Item.TOOL),
    ],
)
def test_long_item_is_judged_by_its_beginning_and_in_doubt_a_tool(item: dict[str, Any], expected: Item) -> None:
    """With and without an `event:` line. An event whose own type comes too late is held as well."""
    beginning = done(0, item)[:UNDECIDED_LIMIT_BYTES]
    assert RESPONSES.item_done(beginning) is expected
    assert RESPONSES.item_done(beginning.partition(b"\n")[2]) is expected
    assert RESPONSES.item_done(b'data: {"item": ' + as_json(item)[:60_000]) in {expected, Item.TOOL}


def test_codex_stream_holds_from_its_tool_call_on() -> None:
    """What Codex would run stays back until the commit, what it would repeat until the spool is durable."""
    hold = EventHold(RESPONSES.is_terminal, RESPONSES.item_done)
    before, message = len(CREATED + DELTA), len(done(0, MESSAGE))
    for at, byte in enumerate(STREAM, 1):
        released = hold.feed(bytes([byte]))
        assert released <= before + message
        if before < at <= before + message:
            assert released == before
            assert hold.sync_to in {0, before + message}
    assert hold.held
    assert hold.feed(b"") == before + message


# --- readings ---


@pytest.mark.parametrize(
    ("body", "headers"), [(STREAM, SSE), (as_json(response(output=[MESSAGE, CALL], usage=USAGE)), JSON)]
)
def test_answer_gives_the_same_facts_in_both_forms(body: bytes, headers: RawHeaders) -> None:
    """Ids, model, usage with its details; zero is a count, null is not."""
    reading = read(body, headers)
    assert (reading.outcome, reading.effect, reading.finish_reason) == (Outcome.SUCCEEDED, Effect.HAPPENED, "completed")
    assert (reading.model, reading.error, reading.version) == ("gpt-5.5", None, 2)
    assert reading.provider_ids == {"x-request-id": "req_1", "id": "resp_1"}
    assert reading.usage == {
        "input_tokens": 9,
        "input_tokens_details.cached_tokens": 4,
        "input_tokens_details.cache_write_tokens": 0,
        "output_tokens": 3,
        "output_tokens_details.reasoning_tokens": 2,
        "total_tokens": 12,
    }


@pytest.mark.parametrize(
    ("body", "headers", "outcome", "effect", "finish_reason", "error"),
    [
        (CREATED + INCOMPLETE, SSE, Outcome.SUCCEEDED, Effect.HAPPENED, "max_output_tokens", None),
        (CREATED + DELTA + FAILED, SSE, Outcome.IN_BAND_ERROR, Effect.ANSWERED, "failed", "server_error"),
        (CREATED + ERROR, SSE, Outcome.IN_BAND_ERROR, Effect.ANSWERED, "in_progress", "error/rate_limit_exceeded"),
        (CREATED + AZURE_ERROR, SSE, Outcome.IN_BAND_ERROR, Effect.ANSWERED, "in_progress", "too_many_requests/429"),
        (CREATED + DELTA, SSE, Outcome.INCOMPLETE, Effect.HAPPENED, None, None),
        (b"", SSE, Outcome.EMPTY, Effect.HAPPENED, None, None),
        (event("response.completed", response=response()), SSE, Outcome.EMPTY, Effect.HAPPENED, "completed", None),
        (
            done(0, MESSAGE) + event("response.completed", response=response()),
            SSE,
            Outcome.SUCCEEDED,
            Effect.HAPPENED,
            "completed",
            None,
        ),
        (as_json(response("queued", background=True)), JSON, Outcome.SUCCEEDED, Effect.HAPPENED, "queued", None),
        (
            as_json(response("failed", error={"code": "server_error", "message": "m"})),
            JSON,
            Outcome.IN_BAND_ERROR,
            Effect.ANSWERED,
            "failed",
            "server_error",
        ),
        (as_json(response("failed")), JSON, Outcome.IN_BAND_ERROR, Effect.ANSWERED, "failed", "failed"),
        (b'{"ok":true}', JSON, Outcome.UNINTERPRETABLE, Effect.HAPPENED, None, None),
        (b"[1]", JSON, Outcome.UNINTERPRETABLE, Effect.HAPPENED, None, None),
    ],
)
def test_answer_gives_outcome_and_effect(
    body: bytes, headers: RawHeaders, outcome: Outcome, effect: Effect, finish_reason: str | None, error: str | None
) -> None:
    """An incomplete response is an answer with its reason; a failed one is the provider's own error."""
    reading = read(body, headers)
    assert (reading.outcome, reading.effect) == (outcome, effect)
    assert (reading.finish_reason, reading.error) == (finish_reason, error)


# --- stream to JSON ---


def test_terminal_event_holds_the_non_stream_answer() -> None:
    """In openai's own types the event's `response` is what a request without `stream` returns, and the bytes say the same."""
    for kind in (ResponseCompletedEvent, ResponseIncompleteEvent):
        assert kind.model_fields["response"].annotation is Response
    for stream in (STREAM, CREATED + DELTA + INCOMPLETE):
        rendered = RESPONSES.sse_to_json(stream)
        assert rendered is not None
        assert Response.model_validate_json(rendered).id == "resp_1"
        assert read(rendered, JSON) == read(stream)
    assert json.loads(RESPONSES.sse_to_json(STREAM) or b"null") == response(output=[MESSAGE, CALL], usage=USAGE)


@pytest.mark.parametrize(
    "stream",
    [
        STREAM.removesuffix(COMPLETED),
        CREATED + FAILED,
        CREATED + ERROR + COMPLETED,
        CREATED + done(0, MESSAGE) + event("response.completed", response=response()),
        CREATED + COMPLETED,
        event("response.completed", response=response("in_progress")),
        event("response.completed", response=response() | {"object": "list"}),
        CREATED + b"data: not json\n\n" + COMPLETED,
        STREAM[:-5],
    ],
)
def test_inexact_stream_is_not_rendered(stream: bytes) -> None:
    """Rather a refusal than an answer that the provider would not have given."""
    assert RESPONSES.sse_to_json(stream) is None


# --- own error events ---


def test_error_event_is_read_by_the_stock_sdk() -> None:
    """The stock client yields it as its failed event, with every required field, our sentence and Codex's code."""
    openai = sdk("openai")
    written = RESPONSES.error_event("effect_happened", 'it "broke" off')
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=CREATED + written)
    )
    with openai.OpenAI(api_key="k", base_url="http://h/v1", http_client=httpx2.Client(transport=transport)) as client:
        *_, last = client.responses.create(model="m", input="x", stream=True)
    assert isinstance(last, ResponseFailedEvent)
    assert last.response.error is not None
    assert (last.response.error.code, last.response.error.message) == ("invalid_prompt", 'it "broke" off')
    document = json.loads(written.partition(b"data: ")[2])
    assert ResponseFailedEvent.model_validate(document, strict=True).sequence_number > 1_000_000
    assert (document["response"]["status"], document["response"]["error"]["type"]) == ("failed", "effect_happened")
