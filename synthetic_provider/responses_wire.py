"""OpenAI Responses and its token count, as the API reference and openai 3.57's `types/responses` have them. Pure.

Every event of a stream is named as its data's `type` and carries its place in the stream, `sequence_number`.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from synthetic_provider import openai_wire
from synthetic_provider.wire import (
    Ask,
    Format,
    JsonObject,
    Stream,
    content_chunks,
    content_text,
    event,
    provider_id,
    tool_name,
    words,
)

_OPENING_EVENTS = 4  # before the first delta
_ECHOED = ("instructions", "max_output_tokens", "metadata", "previous_response_id", "store", "temperature", "tools")
_FIXED: JsonObject = {
    "background": False,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}


def _input_tokens(ask: Ask) -> int:
    return words(ask.body.get("instructions")) + words(ask.body.get("input"))


def _usage(ask: Ask) -> JsonObject | None:
    if not ask.behaviour.usage:
        return None
    taken, made = _input_tokens(ask), ask.behaviour.chunks
    return {
        "input_tokens": taken,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": taken + made,
    }


def _response(ask: Ask, status: str, output: list[JsonObject], failure: JsonObject | None = None) -> JsonObject:
    at, completed = int(ask.at.timestamp()), status == "completed"
    return {
        **_FIXED,
        **{name: ask.body[name] for name in _ECHOED if ask.body.get(name) is not None},
        "id": provider_id("resp_", ask),
        "object": "response",
        "created_at": at,
        "completed_at": at if completed else None,
        "status": status,
        "error": failure,
        "model": ask.model,
        "output": output,
        "usage": _usage(ask) if completed else None,
    }


def _part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(ask: Ask, status: str, content: list[JsonObject]) -> JsonObject:
    return {
        "id": provider_id("msg_", ask),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def _call(ask: Ask, status: str, arguments: str) -> JsonObject:
    return {
        "id": provider_id("fc_", ask),
        "type": "function_call",
        "status": status,
        "call_id": provider_id("call_", ask),
        "name": tool_name(ask),
        "arguments": arguments,
    }


def _arguments(ask: Ask) -> str:
    return orjson.dumps({"receipt": ask.receipt}).decode()


def responses(ask: Ask) -> JsonObject:
    output = [_message(ask, "completed", [_part(content_text(ask))])]
    if ask.behaviour.tool_call:
        output.append(_call(ask, "completed", _arguments(ask)))
    return _response(ask, "completed", output)


def _events(first_number: int, described: Iterator[tuple[str, JsonObject]]) -> Iterator[bytes]:
    for number, (kind, data) in enumerate(described, first_number):
        name = f"response.{kind}"
        yield event({"type": name, "sequence_number": number, **data}, name)


def _opening(ask: Ask, place: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    begun = _response(ask, "in_progress", [])
    yield "created", {"response": begun}
    yield "in_progress", {"response": begun}
    yield "output_item.added", {"output_index": 0, "item": _message(ask, "in_progress", [])}
    yield "content_part.added", {**place, "part": _part("")}


def _ending(ask: Ask, place: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    text, whole = content_text(ask), responses(ask)
    message, *calls = whole["output"]
    yield "output_text.done", {**place, "text": text, "logprobs": []}
    yield "content_part.done", {**place, "part": _part(text)}
    yield "output_item.done", {"output_index": 0, "item": message}
    for call in calls:
        at: dict[str, Any] = {"output_index": 1, "item_id": call["id"]}
        yield "output_item.added", {"output_index": 1, "item": _call(ask, "in_progress", "")}
        yield "function_call_arguments.delta", {**at, "delta": call["arguments"]}
        yield "function_call_arguments.done", {**at, "arguments": call["arguments"]}
        yield "output_item.done", {"output_index": 1, "item": call}
    yield "completed", {"response": whole}


def responses_stream(ask: Ask) -> Stream:
    """The whole text comes four times after its deltas, as the provider's does; an in-band error is `response.failed`."""
    place: JsonObject = {"item_id": provider_id("msg_", ask), "output_index": 0, "content_index": 0}
    chunks = ask.behaviour.chunks
    deltas = (("output_text.delta", {**place, "delta": piece, "logprobs": []}) for piece in content_chunks(ask))
    failure = {"code": "server_error", "message": f"receipt {ask.receipt}: the in-band error of error_after"}
    failed = ("failed", {"response": _response(ask, "failed", [], failure)})
    before_error = _OPENING_EVENTS + min(ask.behaviour.error_after or 0, chunks)
    return Stream(
        opening=b"".join(_events(0, _opening(ask, place))),
        chunks=_events(_OPENING_EVENTS, deltas),
        ending=b"".join(_events(_OPENING_EVENTS + chunks, _ending(ask, place))),
        error=b"".join(_events(before_error, iter([failed]))),
    )


def input_tokens(ask: Ask) -> JsonObject:
    return {"object": "response.input_tokens", "input_tokens": _input_tokens(ask)}


RESPONSES = Format("openai_responses", "x-request-id", responses, openai_wire.error, responses_stream)
INPUT_TOKENS = Format("openai_input_tokens", "x-request-id", input_tokens, openai_wire.error)
