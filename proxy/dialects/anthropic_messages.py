"""Anthropic messages. Facts: research/providers.md section 5; anthropic 2.14 lib/streaming/_beta_messages.py, whose
accumulation of events into a message is the reference for `sse_to_json`.
"""

import json
from contextlib import suppress
from typing import Any, Final

from ledger.events import ToolCall
from proxy.dialects import base
from proxy.dialects.base import Findings, Outcome, Reading, RequestFacts, TerminalEvidence
from proxy.dialects.tool_calls import tool_calls
from proxy.effects import PLAIN, UpstreamTraits
from proxy.endpoints import Family
from proxy.headers import RawHeaders
from proxy.sse import Item

VERSION = 3  # 3: rounds outside of the top-level usage

_TERMINAL_TYPES = frozenset({"message_stop", "error"})


class AnthropicMessages:
    name = "anthropic_messages"
    version = VERSION
    ends_by_type = True
    family = Family.ANTHROPIC

    def read_request(self, target: str, body: bytes) -> RequestFacts:
        request = base.parsed_object(body)
        model, streams = base.path_facts(target)  # Vertex: anthropic 2.14 lib/vertex takes the model out of the body
        return RequestFacts(
            model=base.text(request.get("model")) or model,
            stream=request.get("stream") is True or streams,
            max_output_tokens=base.positive(request.get("max_tokens")),
        )

    def is_terminal(self, event: bytes) -> bool:
        # Asked of every event of every stream: look before parsing.
        return _may_end(event) and _has_end(event)

    def item_done(self, event: bytes) -> Item | None:  # noqa: ARG002 - the protocol's name
        return None

    def evidence(
        self, status: int, headers: RawHeaders, body: bytes, traits: UpstreamTraits = PLAIN
    ) -> TerminalEvidence:
        return base.evidence(status, headers, body, traits, _has_end)

    def interpret(self, status: int, headers: RawHeaders, body: bytes, traits: UpstreamTraits = PLAIN) -> Reading:
        return base.read_whole(VERSION, _findings, status, headers, body, traits)

    def tool_results(self, body: bytes) -> frozenset[str]:
        messages = base.objects(base.parsed_object(body).get("messages"))
        blocks = (block for message in messages for block in base.objects(message.get("content")))
        return base.ids(block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result")

    def error_event(self, code: str, sentence: str) -> bytes:
        error = {"type": "invalid_request_error", "message": sentence, "code": code}
        return b"event: error\ndata: " + json.dumps({"type": "error", "error": error}).encode("ascii") + b"\n\n"

    def sse_to_json(self, body: bytes) -> bytes | None:
        return base.rendered(_message, body)


def _may_end(event: bytes) -> bool:
    return b"message_stop" in event or b"error" in event


def _has_end(stream: bytes) -> bool:
    candidates = (event.data for event in base.stream_events(stream) if _may_end(event.data))
    return any(base.text(base.parsed_object(data).get("type")) in _TERMINAL_TYPES for data in candidates)


# --- reading ---


def _findings(data: bytes, is_stream: bool) -> Findings:
    return _stream_findings(data) if is_stream else _message_findings(data)


def _message_findings(data: bytes) -> Findings:
    message = base.parsed_object(data)
    error = base.envelope_error(message)
    if error is not None:
        return Findings(outcome=Outcome.IN_BAND_ERROR, error=error)
    if message.get("type") != "message":
        return Findings(outcome=Outcome.UNINTERPRETABLE if data else Outcome.EMPTY)
    return Findings(
        outcome=Outcome.SUCCEEDED if message.get("content") else Outcome.EMPTY,
        finish_reason=base.text(message.get("stop_reason")),
        usage=_usage(message.get("usage"), {}) or None,
        provider_ids=base.body_ids(id=message.get("id")),
        model=base.text(message.get("model")),
        service_tier=_tier(message),
        tool_calls=_tool_calls(message.get("content")),
    )


def _stream_findings(data: bytes) -> Findings:
    start: dict[str, Any] = {}
    usage: dict[str, int] = {}
    types: set[object] = set()
    finish_reason = error = None
    for document in base.data_objects(data):
        kind = base.text(document.get("type"))
        types.add(kind)
        if kind == "message_start":
            start = document.get("message") or {}
            usage = _usage(start.get("usage"), usage)
        elif kind == "message_delta":
            # Cumulative: it replaces the placeholder of message_start.
            usage = _usage(document.get("usage"), usage)
            finish_reason = base.text((document.get("delta") or {}).get("stop_reason")) or finish_reason
        elif kind == "error":
            error = base.envelope_error(document) or "error"
    if error is not None:
        outcome = Outcome.IN_BAND_ERROR
    elif "message_stop" in types:
        outcome = Outcome.SUCCEEDED if "content_block_start" in types else Outcome.EMPTY
    else:
        outcome = Outcome.INCOMPLETE if types else Outcome.EMPTY
    return Findings(
        outcome=outcome,
        finish_reason=finish_reason,
        usage=usage or None,
        provider_ids=base.body_ids(id=start.get("id")),
        model=base.text(start.get("model")),
        error=error,
        service_tier=_tier(start),
        tool_calls=_tool_calls(blocks_of(data)),
    )


# What one entry of `usage.iterations` states: anthropic 2.14 types/beta/beta_compaction_iteration_usage.py.
_ROUND_NAMES: Final = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_ROUND_PARTS: Final = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")


def _usage(usage: object, before: dict[str, int]) -> dict[str, int]:
    """`before` is replaced by name; `iterations`, a list of rounds, is replaced as a whole."""
    if not isinstance(usage, dict):
        return before
    rounds = usage.get("iterations")
    kept = {name: count for name, count in before.items() if rounds is None or not name.startswith("iterations.")}
    stated = {name: value for name, value in usage.items() if name != "iterations"}
    return kept | base.flat_usage(stated) | _outside(rounds)


def _outside(rounds: object) -> dict[str, int]:
    """Sums of the rounds that the top level does not hold (anthropic 2.14 types/beta/beta_usage.py).

    `message` is in it; `compaction` is not. An advisor and a fallback are other models, and of them, as of kinds of tomorrow, nothing
    is said: they are counted under `iterations.other`, so that nobody takes the rest for the whole.
    """
    sums: dict[str, int] = {}
    for each in rounds if isinstance(rounds, list) else [] if rounds is None else [rounds]:
        stated: dict[str, Any] = each if isinstance(each, dict) else {}
        if stated.get("type") == "message":
            continue
        counts = _compaction(stated) if stated.get("type") == "compaction" else None
        for name, count in (counts or {"other": 1}).items():
            sums[f"iterations.{name}"] = min(sums.get(f"iterations.{name}", 0) + count, base.COUNT_LIMIT)
    return sums


def _compaction(stated: dict[str, Any]) -> dict[str, int] | None:
    """None where it lacks one of its numbers."""
    found = {f"compaction.{name}": base.positive(stated.get(name)) for name in _ROUND_NAMES}
    parts = stated.get("cache_creation")
    if isinstance(parts, dict):
        found |= {f"compaction.cache_creation.{name}": base.positive(parts.get(name, 0)) for name in _ROUND_PARTS}
    counts = {name: count for name, count in found.items() if count is not None}
    return counts if len(counts) == len(found) else None


def _tier(message: dict[str, Any]) -> str | None:
    """Fast mode has its own price, and `speed` beside the tier says so (anthropic 2.14 types/beta/beta_usage.py)."""
    usage = message.get("usage")
    if not isinstance(usage, dict):
        return None
    return "fast" if usage.get("speed") == "fast" else base.text(usage.get("service_tier"))


def _tool_calls(content: object) -> tuple[ToolCall, ...]:
    """`tool_use` is the client's to run; what the provider runs itself is `server_tool_use`."""
    blocks = (block for block in base.objects(content) if block.get("type") == "tool_use")
    return tool_calls((block.get("id"), block.get("name"), block.get("input")) for block in blocks)


# --- stream to JSON ---

# delta type -> (field of the delta, field of the block, whether it is joined to what is there)
_BLOCK_DELTAS = {
    "text_delta": ("text", "text", True),
    "thinking_delta": ("thinking", "thinking", True),
    "signature_delta": ("signature", "signature", False),
}
_MESSAGE_DELTAS = ("context_management", "input_transformations")  # beside `delta` and `usage`; kept when not null


def _message(body: bytes) -> dict[str, Any]:
    message: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    for event in base.stream_events(body):
        document = json.loads(event.data)
        if document["type"] == "message_stop":
            return _finished(message, inputs)
        _add_event(message, inputs, document)
    raise base.InexactError("no terminal event")


def _add_event(message: dict[str, Any], inputs: dict[int, str], document: dict[str, Any]) -> None:
    kind = document["type"]
    if kind == "message_start":
        message |= document["message"]
    elif kind == "content_block_start":
        if document["index"] != len(message["content"]):
            raise base.InexactError("a block out of order")
        if document["content_block"]["type"] == "fallback":
            raise base.InexactError("a fallback relabels the message; its non-stream form was not seen")
        message["content"].append(document["content_block"])
    elif kind == "content_block_delta":
        _add_block_delta(message["content"][document["index"]], document["delta"], inputs, document["index"])
    elif kind == "message_delta":
        _add_message_delta(message, document)
    elif kind not in ("content_block_stop", "ping"):
        raise base.InexactError(f"unknown event {kind}")


def _add_block_delta(block: dict[str, Any], delta: dict[str, Any], inputs: dict[int, str], index: int) -> None:
    kind = delta["type"]
    if kind == "input_json_delta":
        inputs[index] = inputs.get(index, "") + delta["partial_json"]
    elif kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
    elif kind in _BLOCK_DELTAS:
        source, target, is_joined = _BLOCK_DELTAS[kind]
        block[target] = (block.get(target) or "") + delta[source] if is_joined else delta[source]
    else:
        raise base.InexactError(f"unknown delta {kind}")


def _add_message_delta(message: dict[str, Any], document: dict[str, Any]) -> None:
    if unknown := document.keys() - {"type", "delta", "usage", *_MESSAGE_DELTAS}:
        raise base.InexactError(f"unknown fields {unknown}")
    message |= {name: value for name, value in document["delta"].items() if value is not None}
    message |= {name: document[name] for name in _MESSAGE_DELTAS if document.get(name) is not None}
    message["usage"] |= {name: value for name, value in (document.get("usage") or {}).items() if value is not None}


def _finished(message: dict[str, Any], inputs: dict[int, str]) -> dict[str, Any]:
    if message.get("stop_reason") is None:
        raise base.InexactError("the message did not finish")
    _add_inputs(message, inputs)
    return message


def _add_inputs(message: dict[str, Any], inputs: dict[int, str]) -> None:
    """A tool's input arrives as JSON text in pieces; no text at all leaves the block's own empty input."""
    for index, partial in inputs.items():
        if partial:
            message["content"][index]["input"] = json.loads(partial)


# --- a stream that broke off ---


def blocks_of(stream: bytes) -> list[Any]:
    """The content blocks that a client has whole when it has got so much of a decoded stream. Never raises."""
    message: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    whole = 0
    with suppress(*base.NOT_RENDERED):  # at the latest the terminal event: what was gathered until then came whole
        for document in base.data_objects(stream):
            _add_event(message, inputs, document)
            whole += document["type"] == "content_block_stop"
    with suppress(*base.NOT_RENDERED):
        _add_inputs(message, inputs)
    content = message.get("content")
    return content[:whole] if isinstance(content, list) else []
