"""What the dialects read, on realistic bytes: research/providers.md section 5."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.stages import Effect
from proxy.dialects.anthropic_messages import AnthropicMessages
from proxy.dialects.base import Dialect, Outcome, Reading, RequestFacts, TerminalEvidence
from proxy.dialects.gemini import Gemini
from proxy.dialects.generic import Generic
from proxy.dialects.openai_chat import OpenAIChat
from proxy.dialects.openai_responses import OpenAIResponses
from proxy.effects import UpstreamTraits
from proxy.headers import RawHeaders
from proxy.sse import Item
from tests.harness.streams import (
    BLOCKS,
    CHAT_STREAM,
    DONE,
    MESSAGE_STREAM,
    OVERLOADED,
    START,
    STOP,
    STOPPED,
    chunk,
    delta,
    event,
)

CHAT, MESSAGES, GENERIC = OpenAIChat(), AnthropicMessages(), Generic()
RESPONSES, GEMINI = OpenAIResponses(), Gemini()
DIALECTS: list[Dialect] = [CHAT, MESSAGES, GENERIC, RESPONSES, GEMINI]
JSON: RawHeaders = ((b"Content-Type", b"application/json"), (b"x-request-id", b"req_1"))
SSE: RawHeaders = ((b"Content-Type", b"text/event-stream; charset=utf-8"), (b"request-id", b"req_2"))
HTML: RawHeaders = ((b"Content-Type", b"text/html"),)


def read(dialect: Dialect, body: bytes, headers: RawHeaders = SSE, status: int = 200) -> Reading:
    return dialect.interpret(status, headers, body)


# --- requests ---


VERTEX_CLAUDE = "/v1/projects/p/locations/l/publishers/anthropic/models/claude-x%404:streamRawPredict"


@pytest.mark.parametrize(
    ("dialect", "target", "body", "expected"),
    [
        (CHAT, "/", b'{"model":"m","stream":true,"max_tokens":5}', RequestFacts("m", True, 5)),
        (CHAT, "/", b'{"model":"m","max_completion_tokens":0,"max_tokens":5}', RequestFacts("m", False, 0)),
        (MESSAGES, "/", b'{"model":"c","stream":false,"max_tokens":64000}', RequestFacts("c", False, 64000)),
        (MESSAGES, VERTEX_CLAUDE, b'{"max_tokens":1}', RequestFacts("claude-x@4", True, 1)),
        (GENERIC, "/", b'{"model":"r","stream":true,"max_output_tokens":7}', RequestFacts("r", True, 7)),
        (GENERIC, "/v1beta/interactions", b'{"background":true}', RequestFacts(background=True)),
        (RESPONSES, "/", b'{"model":"r","stream":true,"max_output_tokens":7}', RequestFacts("r", True, 7)),
        (RESPONSES, "/", b'{"model":"r","background":true}', RequestFacts("r", background=True)),
        (RESPONSES, "/", b'{"background":"transparent"}', RequestFacts()),
        (
            GEMINI,
            "/v1beta/models/g-3:streamGenerateContent?alt=sse",
            b'{"generationConfig":{"maxOutputTokens":9}}',
            RequestFacts("g-3", True, 9),
        ),
        (
            GEMINI,
            "/v1/projects/p/locations/l/publishers/google/models/g-3:generateContent",
            b'{"generation_config":{"max_output_tokens":9},"model":"x","stream":true}',
            RequestFacts("g-3", False, 9),
        ),
        (GEMINI, "/v1beta/models/" + "m" * 300 + ":generateContent", b'{"generationConfig":[]}', RequestFacts()),
        (CHAT, "/", b'{"model":1,"stream":"yes","max_tokens":true}', RequestFacts()),
        (MESSAGES, "/", b"[]", RequestFacts()),
        (GENERIC, "/", b"[" * 100_000, RequestFacts()),
        (CHAT, "/", b'{"max_tokens":' + b"9" * 5000 + b"}", RequestFacts()),
    ],
)
def test_request_gives_its_facts(dialect: Dialect, target: str, body: bytes, expected: RequestFacts) -> None:
    """What stands in path and body, and nothing where it cannot be read."""
    assert dialect.read_request(target, body) == expected


# --- terminal evidence ---


@pytest.mark.parametrize(
    ("dialect", "text", "expected"),
    [
        (CHAT, DONE, True),
        (CHAT, b"data: [DONE]", True),
        (CHAT, b"data:[DONE]\r\n\r\n", True),
        (CHAT, chunk(delta(content="data: [DONE]")), False),
        (CHAT, chunk(delta(finish_reason="stop")), False),
        (CHAT, b'data: {"error": {"message": "x"}}\n\n', True),
        (CHAT, b'data: {"error": null, "choices": []}\n\n', False),
        (CHAT, b": [DONE]\n\n", False),
        (MESSAGES, STOP, True),
        (MESSAGES, STOPPED, False),
        (MESSAGES, OVERLOADED, True),
        (
            MESSAGES,
            event("content_block_delta", index=0, delta={"type": "text_delta", "text": '"type":"message_stop"'}),
            False,
        ),
        (GENERIC, DONE, False),
    ],
)
def test_terminal_event_is_told_from_content(dialect: Dialect, text: bytes, expected: bool) -> None:
    """The word inside of a text is not the event."""
    assert dialect.is_terminal(text) is expected


@pytest.mark.parametrize(("dialect", "stream", "end"), [(CHAT, CHAT_STREAM, DONE), (MESSAGES, MESSAGE_STREAM, STOP)])
def test_stream_is_whole_only_with_its_terminal_event(dialect: Dialect, stream: bytes, end: bytes) -> None:
    """Cut anywhere before the terminal event's data is complete, it is not whole."""
    assert dialect.evidence(200, SSE, stream) is not TerminalEvidence.LACKING
    assert dialect.evidence(200, SSE, stream.rstrip(b"\n")) is not TerminalEvidence.LACKING
    assert not any(
        dialect.evidence(200, SSE, stream[:cut]) is not TerminalEvidence.LACKING
        for cut in range(len(stream) - len(end))
    )
    assert dialect.evidence(200, SSE, b"") is TerminalEvidence.LACKING


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        (200, JSON, b'{"a":1}', True),
        (200, JSON, b"null", True),
        (200, JSON, b'{"a":', False),
        (200, JSON, b"", False),
        (204, JSON, b"", True),
        (404, JSON, b"", True),
        (502, HTML, b"<html>", True),
        (200, (*JSON, (b"content-encoding", b"gzip")), gzip.compress(b'{"a":1}', mtime=0), True),
        (200, (*JSON, (b"content-encoding", b"gzip")), gzip.compress(b'{"a":1}' * 1, mtime=0)[:-14], False),
        (200, (*JSON, (b"content-encoding", b"snappy")), b"\x00", True),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_json_is_whole_if_it_parses(
    dialect: Dialect, status: int, headers: RawHeaders, body: bytes, expected: bool
) -> None:
    """A body that nobody can look into is left to the framing."""
    assert (dialect.evidence(status, headers, body) is not TerminalEvidence.LACKING) is expected


# --- readings ---


def test_chat_stream_gives_its_facts() -> None:
    """Usage comes with the last chunk, ids and model with every one."""
    reading = read(CHAT, CHAT_STREAM)
    assert (reading.outcome, reading.effect, reading.version) == (Outcome.SUCCEEDED, Effect.HAPPENED, 2)
    assert reading.usage == {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "total_tokens": 12,
        "prompt_tokens_details.cached_tokens": 4,
    }
    assert reading.provider_ids == {"request-id": "req_2", "id": "chatcmpl-1"}
    assert (reading.model, reading.finish_reason, reading.error) == ("gpt-5.5", "length", None)


def test_chat_completion_gives_its_facts() -> None:
    """The JSON form has the same facts; usage that is absent is not zero."""
    body = json.dumps({"id": "chatcmpl-2", "model": "m", "choices": [{"finish_reason": "stop"}]}).encode()
    reading = read(CHAT, body, JSON)
    assert (reading.outcome, reading.finish_reason, reading.usage) == (Outcome.SUCCEEDED, "stop", None)
    assert reading.provider_ids == {"x-request-id": "req_1", "id": "chatcmpl-2"}


def test_message_stream_gives_its_facts() -> None:
    """The cumulative usage of message_delta replaces the placeholder; null replaces nothing."""
    reading = read(MESSAGES, MESSAGE_STREAM)
    assert (reading.outcome, reading.effect) == (Outcome.SUCCEEDED, Effect.HAPPENED)
    assert reading.usage == {
        "input_tokens": 10,
        "output_tokens": 42,
        "cache_read_input_tokens": 7,
        "cache_creation.ephemeral_1h_input_tokens": 2,
        "cache_creation.ephemeral_5m_input_tokens": 0,
    }
    assert reading.provider_ids == {"request-id": "req_2", "id": "msg_1"}
    assert (reading.model, reading.finish_reason) == ("claude-x", "tool_use")


def test_generic_answers_give_their_usage() -> None:
    """Responses nest the answer in an event, Gemini has names of its own and may stream one array."""
    responses = event("response.completed", response={"id": "resp_1", "model": "g", "usage": {"input_tokens": 2}})
    reading = read(GENERIC, event("response.created", response={"id": "resp_1"}) + responses)
    assert (reading.usage, reading.model, reading.provider_ids["id"]) == ({"input_tokens": 2}, "g", "resp_1")
    gemini = b'[{"usageMetadata":{"totalTokenCount":1}},{"responseId":"r","usageMetadata":{"totalTokenCount":5}}]'
    reading = read(GENERIC, gemini, JSON)
    assert (reading.usage, reading.provider_ids["responseId"]) == ({"totalTokenCount": 5}, "r")


ENVELOPE = b'{"type":"error","error":{"type":"api_error","message":"sorry"}}'


@pytest.mark.parametrize(
    ("dialect", "status", "headers", "body", "outcome", "effect"),
    [
        (CHAT, 200, SSE, CHAT_STREAM.removesuffix(DONE), Outcome.INCOMPLETE, Effect.HAPPENED),
        (CHAT, 200, SSE, DONE, Outcome.EMPTY, Effect.HAPPENED),
        (CHAT, 200, SSE, b"", Outcome.EMPTY, Effect.HAPPENED),
        (
            CHAT,
            200,
            SSE,
            chunk(delta(content="x")) + b'data: {"error":{"message":"m"}}\n\n',
            Outcome.IN_BAND_ERROR,
            Effect.ANSWERED,
        ),
        (CHAT, 200, JSON, b'{"error":{"message":"m"}}', Outcome.IN_BAND_ERROR, Effect.ANSWERED),
        (CHAT, 200, JSON, b'{"choices":[]}', Outcome.EMPTY, Effect.HAPPENED),
        (CHAT, 200, JSON, b'{"choices":[1]}', Outcome.UNINTERPRETABLE, Effect.HAPPENED),
        (CHAT, 200, JSON, b"<html>", Outcome.UNINTERPRETABLE, Effect.HAPPENED),
        (MESSAGES, 200, SSE, START + BLOCKS + STOPPED, Outcome.INCOMPLETE, Effect.HAPPENED),
        (MESSAGES, 200, SSE, START + OVERLOADED, Outcome.IN_BAND_ERROR, Effect.ANSWERED),
        (MESSAGES, 200, SSE, b"", Outcome.EMPTY, Effect.HAPPENED),
        (MESSAGES, 200, SSE, START + STOPPED + STOP, Outcome.EMPTY, Effect.HAPPENED),
        (MESSAGES, 200, JSON, b'{"type":"message","content":[{}]}', Outcome.SUCCEEDED, Effect.HAPPENED),
        (MESSAGES, 200, JSON, b'{"ok":true}', Outcome.UNINTERPRETABLE, Effect.HAPPENED),
        (MESSAGES, 200, JSON, ENVELOPE, Outcome.IN_BAND_ERROR, Effect.ANSWERED),
        (GENERIC, 200, HTML, b"anything", Outcome.SUCCEEDED, Effect.HAPPENED),
        (GENERIC, 204, (), b"", Outcome.EMPTY, Effect.HAPPENED),
        (
            GENERIC,
            200,
            SSE,
            event("response.failed", response={"error": {"message": "m"}}),
            Outcome.IN_BAND_ERROR,
            Effect.ANSWERED,
        ),
        (GENERIC, 200, JSON, b'{"id":"resp_1","error":null}', Outcome.SUCCEEDED, Effect.HAPPENED),
    ],
)
def test_answer_gives_outcome_and_effect(
    dialect: Dialect, status: int, headers: RawHeaders, body: bytes, outcome: Outcome, effect: Effect
) -> None:
    """Each outcome in each dialect."""
    reading = read(dialect, body, headers, status)
    assert (reading.outcome, reading.effect) == (outcome, effect)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_error_status_is_read_by_its_envelope(dialect: Dialect) -> None:
    """The provider's own error is told from a gateway's page, and traits of the upstream count."""
    own = read(dialect, ENVELOPE, JSON, 500)
    assert (own.outcome, own.effect, own.error) == (Outcome.FAILED, Effect.ANSWERED, "api_error")
    page = read(dialect, b"<html>Bad gateway</html>", HTML, 502)
    assert (page.outcome, page.effect, page.error) == (Outcome.UNINTERPRETABLE, Effect.UNKNOWN, None)
    assert read(dialect, ENVELOPE, JSON, 400).effect is Effect.ABSENT
    assert dialect.interpret(400, JSON, ENVELOPE, UpstreamTraits(gateway=True)).effect is Effect.ANSWERED
    azure = UpstreamTraits(answered_statuses=frozenset({400}))
    assert dialect.interpret(400, JSON, ENVELOPE, azure).effect is Effect.ANSWERED


FIELDS = (
    *("error", "message", "choices", "usage", "type", "id", "delta", "response", "status", "output", "item"),
    *("incomplete_details", "candidates", "content", "finishReason", "promptFeedback", "index", "output_index"),
)


@given(
    dialect=st.sampled_from(DIALECTS),
    status=st.integers(0, 999),
    content_type=st.sampled_from([b"application/json", b"text/event-stream", b"", b"\xff"]),
    coding=st.sampled_from([b"", b"gzip", b"deflate", b"zstd", b"br", b"gzip, zstd", b"\xff"]),
    body=st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(FIELDS), inner),
    ).map(lambda value: b"data: " + json.dumps(value).encode() + b"\n\n"),
)
def test_any_answer_has_a_reading(
    dialect: Dialect, status: int, content_type: bytes, coding: bytes, body: bytes
) -> None:
    """Interpreting is total, and so is every other look at recorded bytes."""
    headers = ((b"content-type", content_type), (b"content-encoding", coding), (b"request-id", b"\xff"))
    for data in (body, body.removeprefix(b"data: ")):
        assert isinstance(dialect.interpret(status, headers, data), Reading)
        assert isinstance(dialect.evidence(status, headers, data), TerminalEvidence)
        assert isinstance(dialect.is_terminal(data), bool)
        assert isinstance(dialect.sse_to_json(data), bytes | None)
        assert isinstance(dialect.read_request("/models/m:generateContent", data), RequestFacts)
        assert isinstance(dialect.item_done(data), Item | None)


# --- own error events ---


def test_error_event_is_terminal_in_its_own_dialect() -> None:
    """What the proxy writes after a 200 is read as an error by the dialect itself, and says our sentence."""
    for dialect in (CHAT, MESSAGES, RESPONSES, GEMINI):
        written = dialect.error_event("effect_happened", 'it "broke" off')
        assert dialect.is_terminal(written)
        reading = read(dialect, written)
        assert reading.outcome is Outcome.IN_BAND_ERROR
        assert b'it \\"broke\\" off' in written
    assert CHAT.error_event("c", "s").startswith(b"data: ")
    assert MESSAGES.error_event("c", "s").startswith(b"event: error\ndata: ")
    assert RESPONSES.error_event("c", "s").startswith(b"event: response.failed\ndata: ")
    assert GEMINI.error_event("c", "s").startswith(b'data: {"error": ')
    assert GENERIC.error_event("c", "s") == b""


def test_upstream_without_terminal_events_owes_none_in_its_streams() -> None:
    """The trait leaves a stream to its framing; a JSON answer still has to parse, and what is there still proves."""
    traits = UpstreamTraits(terminal_evidence_required=False)
    for dialect in (CHAT, MESSAGES, RESPONSES, GEMINI):
        assert dialect.evidence(200, SSE, b"data: {}\n\n", traits) is TerminalEvidence.NONE_KNOWN
        assert dialect.evidence(200, JSON, b"{", traits) is TerminalEvidence.LACKING
    assert CHAT.evidence(200, SSE, CHAT_STREAM, traits) is TerminalEvidence.PROVEN
