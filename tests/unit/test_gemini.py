"""The Gemini dialect, on realistic bytes: research/providers.md section 5."""

import json
from typing import Any

import httpx2
import pytest

from ledger.stages import Effect
from proxy.dialects.base import Outcome, Reading, TerminalEvidence
from proxy.dialects.gemini import Gemini
from proxy.headers import RawHeaders
from proxy.sse import UNDECIDED_LIMIT_BYTES, EventHold
from tests.harness.sdks import sdk

GEMINI = Gemini()
JSON: RawHeaders = ((b"content-type", b"application/json; charset=UTF-8"),)
SSE: RawHeaders = ((b"content-type", b"text/event-stream"),)
PROVEN, LACKING = TerminalEvidence.PROVEN, TerminalEvidence.LACKING


def candidate(text: str | None = None, reason: str | None = None, index: int = 0) -> dict[str, Any]:
    """As protobuf's JSON writes it: without null and without an index of 0."""
    content = {"content": {"role": "model", **({"parts": [{"text": text}]} if text is not None else {})}}
    return content | ({"finishReason": reason} if reason else {}) | ({"index": index} if index else {})


def chunk(*candidates: dict[str, Any], total: int = 5, **more: Any) -> dict[str, Any]:
    usage = {"promptTokenCount": 2, "totalTokenCount": total, "promptTokensDetails": [{"modality": "TEXT"}]}
    answer = {"usageMetadata": usage, "modelVersion": "gemini-3", "responseId": "r-1"}
    return ({"candidates": list(candidates)} if candidates else {}) | answer | more


def sse(*documents: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(document).encode() + b"\r\n\r\n" for document in documents)


ERROR = {"error": {"code": 503, "message": "sorry", "status": "UNAVAILABLE"}}
BLOCKED = chunk(promptFeedback={"blockReason": "SAFETY"})
TEXT, LAST = chunk(candidate("finishReason: ")), chunk(candidate("STOP", "STOP"), total=9)
STREAM = sse(TEXT, LAST)


def read(body: bytes, headers: RawHeaders = SSE, status: int = 200) -> Reading:
    return GEMINI.interpret(status, headers, body)


# --- ends ---


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([TEXT, LAST], PROVEN),
        ([BLOCKED], PROVEN),
        ([TEXT, ERROR], PROVEN),
        ([TEXT], LACKING),
        ([chunk()], LACKING),
        ([TEXT, chunk(candidate(reason="FINISH_REASON_UNSPECIFIED"))], LACKING),
        # A usage-only chunk after the end takes nothing back.
        ([TEXT, LAST, chunk()], PROVEN),
        # Some say STOP before the text; only the newest word counts.
        ([LAST, TEXT], LACKING),
        ([LAST, TEXT, LAST], PROVEN),
        # Each candidate ends for itself.
        ([chunk(candidate("a", "STOP"), candidate("b", index=1))], LACKING),
        ([chunk(candidate("a", "STOP"), candidate("b", index=1)), chunk(candidate(reason="STOP", index=1))], PROVEN),
    ],
)
def test_stream_is_whole_when_every_candidate_has_ended(
    documents: list[dict[str, Any]], expected: TerminalEvidence
) -> None:
    """There is no terminal event: the newest word about each candidate is judged."""
    assert GEMINI.evidence(200, SSE, sse(*documents)) is expected


@pytest.mark.parametrize("end", [LAST, BLOCKED, ERROR])
def test_stream_cut_at_any_byte_is_not_whole(end: dict[str, Any]) -> None:
    """As an event stream and as one array."""
    stream, array = sse(TEXT, end), json.dumps([TEXT, end], indent=1).encode()
    for cut in range(len(stream.rstrip())):
        assert GEMINI.evidence(200, SSE, stream[:cut]) is LACKING
    for cut in range(len(array)):
        assert GEMINI.evidence(200, JSON, array[:cut]) is LACKING
    assert GEMINI.evidence(200, SSE, stream) is GEMINI.evidence(200, JSON, array) is PROVEN


@pytest.mark.parametrize("end", [LAST, BLOCKED, ERROR])
def test_stream_is_held_from_the_first_chunk_that_may_be_the_last(end: dict[str, Any]) -> None:
    """Split anywhere: all before it leaves, neither it nor what follows does."""
    before, stream = sse(TEXT, TEXT), sse(TEXT, TEXT, end, TEXT, LAST)
    for size in (1, 7, len(stream)):
        hold = EventHold(GEMINI.is_terminal)
        released = [hold.feed(stream[at : at + size]) for at in range(0, len(stream), size)]
        assert released == sorted(released)
        assert len(before) - 1 <= released[-1] <= len(before)  # the newline of a split line end may wait


def test_text_that_speaks_of_an_end_is_not_held() -> None:
    """The words inside of a text are content."""
    says = chunk(candidate('"finishReason": "STOP", "blockReason", {"error": 1}'))
    assert not GEMINI.is_terminal(sse(says))
    assert not GEMINI.is_terminal(sse({"promptFeedback": {"safetyRatings": []}, "error": None}))


def test_long_last_chunk_keeps_its_line_end() -> None:
    """An image says at its end that it is the last chunk: it flows, and is no line before the commit."""
    stream = sse(TEXT, chunk(candidate("x" * 2 * UNDECIDED_LIMIT_BYTES, "STOP")))
    hold = EventHold(GEMINI.is_terminal)
    assert max(hold.feed(stream[at : at + 1000]) for at in range(0, len(stream), 1000)) == len(stream) - 4
    assert GEMINI.evidence(200, SSE, stream) is PROVEN


# --- readings ---


@pytest.mark.parametrize(
    ("body", "headers"),
    [(STREAM, SSE), (json.dumps([TEXT, LAST]).encode(), JSON), (json.dumps(LAST).encode(), JSON)],
)
def test_answer_gives_the_same_facts_in_every_form(body: bytes, headers: RawHeaders) -> None:
    """The last usage wins; event stream, array and single answer are read alike."""
    reading = read(body, headers)
    assert (reading.outcome, reading.effect, reading.finish_reason) == (Outcome.SUCCEEDED, Effect.HAPPENED, "STOP")
    assert (reading.model, reading.provider_ids) == ("gemini-3", {"responseId": "r-1"})
    assert reading.usage == {"promptTokenCount": 2, "totalTokenCount": 9}


@pytest.mark.parametrize(
    ("body", "headers", "outcome", "effect", "finish_reason"),
    [
        (sse(TEXT), SSE, Outcome.INCOMPLETE, Effect.HAPPENED, None),
        (json.dumps([TEXT]).encode(), JSON, Outcome.INCOMPLETE, Effect.HAPPENED, None),
        (sse(chunk(candidate(reason="MAX_TOKENS"))), SSE, Outcome.EMPTY, Effect.HAPPENED, "MAX_TOKENS"),
        (sse(BLOCKED), SSE, Outcome.EMPTY, Effect.HAPPENED, "SAFETY"),
        (json.dumps(BLOCKED).encode(), JSON, Outcome.EMPTY, Effect.HAPPENED, "SAFETY"),
        (sse(TEXT, ERROR), SSE, Outcome.IN_BAND_ERROR, Effect.ANSWERED, None),
        (json.dumps([TEXT, ERROR]).encode(), JSON, Outcome.IN_BAND_ERROR, Effect.ANSWERED, None),
        (b"", SSE, Outcome.EMPTY, Effect.HAPPENED, None),
        (b'{"name":"operations/1"}', JSON, Outcome.UNINTERPRETABLE, Effect.HAPPENED, None),
        (b'{"candidates":[{"content":1}]}', JSON, Outcome.UNINTERPRETABLE, Effect.HAPPENED, None),
    ],
)
def test_answer_gives_outcome_and_effect(
    body: bytes, headers: RawHeaders, outcome: Outcome, effect: Effect, finish_reason: str | None
) -> None:
    """A blocked prompt is a served request without output; an error in a stream is the provider's own."""
    reading = read(body, headers)
    assert (reading.outcome, reading.effect, reading.finish_reason) == (outcome, effect, finish_reason)


@pytest.mark.parametrize("body", [ERROR, [ERROR]])
def test_error_status_is_read_by_its_envelope(body: object) -> None:
    """A failing stream's envelope may stand in an array."""
    reading = read(json.dumps(body).encode(), JSON, 503)
    assert (reading.outcome, reading.effect, reading.error) == (Outcome.FAILED, Effect.ANSWERED, "UNAVAILABLE")


# --- stream to JSON ---


def test_single_chunk_is_the_non_stream_answer() -> None:
    """Byte for byte; of several chunks it is not known how the parts would have been cut."""
    assert GEMINI.sse_to_json(sse(LAST)) == json.dumps(LAST).encode()
    for stream in (STREAM, sse(TEXT), sse(ERROR), b"data: x\n\n", b""):
        assert GEMINI.sse_to_json(stream) is None


# --- own error events ---


def test_error_event_is_raised_by_the_stock_sdk() -> None:
    """google-genai reads the chunks before it, then raises with our sentence."""
    genai = sdk("google.genai")
    written = GEMINI.error_event("effect_happened", 'it "broke" off')
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=sse(TEXT) + written)
    )
    options = genai.types.HttpOptions(httpx_client=httpx2.Client(transport=transport))
    chunks = genai.Client(api_key="k", http_options=options).models.generate_content_stream(model="m", contents="x")
    assert next(chunks).text == "finishReason: "
    with pytest.raises(genai.errors.ClientError) as raised:
        next(chunks)
    assert (raised.value.code, raised.value.message) == (424, 'it "broke" off')
