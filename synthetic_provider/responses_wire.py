"""OpenAI Responses and its token count, as the API reference and openai 3.57's `types/responses` have them. Pure.

Every event of a stream is named as its data's `type` and carries its place in the stream, `sequence_number`.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from synthetic_provider import openai_wire
from synthetic_provider.outcomes import Tokens
from synthetic_provider.wire import (
    Ask,
    Format,
    JsonObject,
    Stream,
    content_chunks,
    counted,
    event,
    part_starts,
    part_texts,
    provider_id,
    tool_name,
    words,
)

_OPENING_EVENTS = 4  # before the first delta
_CHANGE_EVENTS = 5  # from one message to the next
_ECHOED = (
    *("background", "instructions", "max_output_tokens", "metadata"),
    *("previous_response_id", "store", "temperature", "tools"),
)
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


def response_tokens(ask: Ask) -> Tokens:
    return counted(ask, _input_tokens(ask), ask.body.get("max_output_tokens"))


def _usage(ask: Ask) -> JsonObject | None:
    if not ask.behaviour.usage:
        return None
    count = response_tokens(ask)
    return {
        "input_tokens": count.taken,
        "input_tokens_details": {"cached_tokens": count.cached, "cache_write_tokens": 0},
        "output_tokens": count.made,
        "output_tokens_details": {"reasoning_tokens": count.reasoning},
        "total_tokens": count.taken + count.made,
    }


def response_id(ask: Ask) -> str:
    return provider_id("resp_", ask)


def _response(ask: Ask, status: str, output: list[JsonObject], failure: JsonObject | None = None) -> JsonObject:
    at, completed = int(ask.at.timestamp()), status == "completed"
    return {
        **_FIXED,
        **{name: ask.body[name] for name in _ECHOED if ask.body.get(name) is not None},
        **({"service_tier": ask.behaviour.tier} if ask.behaviour.tier else {}),
        "id": response_id(ask),
        "object": "response",
        "created_at": at,
        "completed_at": at if completed else None,
        "status": status,
        "error": failure,
        "model": ask.answered_model,
        "output": output,
        "usage": _usage(ask) if completed else None,
    }


def _part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message_id(ask: Ask, part: int) -> str:
    return provider_id(f"msg{part or ''}_", ask)


def _message(ask: Ask, part: int, status: str, content: list[JsonObject]) -> JsonObject:
    return {
        "id": _message_id(ask, part),
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
    """A background response is answered at once and goes on (generation.py)."""
    return snapshot(ask, "queued") if ask.background else completed(ask)


def snapshot(ask: Ask, status: str) -> JsonObject:
    """The response as it stands in this status; output and usage come with its end."""
    if status == "completed":
        return completed(ask)
    return _response(ask, status, [], _failure(ask) if status == "failed" else None)


def completed(ask: Ask) -> JsonObject:
    output = [_message(ask, part, "completed", [_part(text)]) for part, text in enumerate(part_texts(ask))]
    if ask.behaviour.tool_call:
        output.append(_call(ask, "completed", _arguments(ask)))
    return _response(ask, "completed", output)


def _events(first_number: int, described: Iterator[tuple[str, JsonObject]]) -> Iterator[bytes]:
    for number, (kind, data) in enumerate(described, first_number):
        name = f"response.{kind}"
        yield event({"type": name, "sequence_number": number, **data}, name)


def _place(ask: Ask, part: int) -> JsonObject:
    return {"item_id": _message_id(ask, part), "output_index": part, "content_index": 0}


def _opening(ask: Ask) -> Iterator[tuple[str, JsonObject]]:
    begun = _response(ask, "in_progress", [])
    yield "created", {"response": begun}
    yield "in_progress", {"response": begun}
    yield from _message_begins(ask, 0)


def _message_begins(ask: Ask, part: int) -> Iterator[tuple[str, JsonObject]]:
    yield "output_item.added", {"output_index": part, "item": _message(ask, part, "in_progress", [])}
    yield "content_part.added", {**_place(ask, part), "part": _part("")}


def _message_ends(ask: Ask, part: int, text: str) -> Iterator[tuple[str, JsonObject]]:
    place = _place(ask, part)
    yield "output_text.done", {**place, "text": text, "logprobs": []}
    yield "content_part.done", {**place, "part": _part(text)}
    yield "output_item.done", {"output_index": part, "item": _message(ask, part, "completed", [_part(text)])}


def _deltas(ask: Ask, texts: list[str]) -> Iterator[list[tuple[str, JsonObject]]]:
    """The events of each content chunk: one delta, behind the change from one item to the next."""
    starts, part = part_starts(ask), 0
    for index, piece in enumerate(content_chunks(ask)):
        described: list[tuple[str, JsonObject]] = []
        if index and index in starts:
            described += [*_message_ends(ask, part, texts[part]), *_message_begins(ask, part + 1)]
            part += 1
        yield [*described, ("output_text.delta", {**_place(ask, part), "delta": piece, "logprobs": []})]


def _numbered(first_number: int, chunks: Iterator[list[tuple[str, JsonObject]]]) -> Iterator[bytes]:
    for described in chunks:
        yield b"".join(_events(first_number, iter(described)))
        first_number += len(described)


def _ending(ask: Ask, texts: list[str]) -> Iterator[tuple[str, JsonObject]]:
    whole, last = completed(ask), len(texts) - 1
    yield from _message_ends(ask, last, texts[last])
    for index, call in enumerate(whole["output"][len(texts) :], len(texts)):
        at: dict[str, Any] = {"output_index": index, "item_id": call["id"]}
        yield "output_item.added", {"output_index": index, "item": _call(ask, "in_progress", "")}
        yield "function_call_arguments.delta", {**at, "delta": call["arguments"]}
        yield "function_call_arguments.done", {**at, "arguments": call["arguments"]}
        yield "output_item.done", {"output_index": index, "item": call}
    yield "completed", {"response": whole}


def _failure(ask: Ask) -> JsonObject:
    return {"code": "server_error", "message": f"receipt {ask.receipt}: the in-band error of error_after"}


def responses_stream(ask: Ask) -> Stream:
    """The whole text comes four times after its deltas, as the provider's does; an in-band error is `response.failed`."""
    texts, chunks = part_texts(ask), ask.behaviour.chunks
    before_ending = _OPENING_EVENTS + chunks + _CHANGE_EVENTS * (len(texts) - 1)
    failed = ("failed", {"response": snapshot(ask, "failed")})
    sent = min(ask.behaviour.error_after or 0, chunks)
    before_error = _OPENING_EVENTS + sent + _CHANGE_EVENTS * sum(0 < start < sent for start in part_starts(ask))
    return Stream(
        opening=b"".join(_events(0, _opening(ask))),
        chunks=_numbered(_OPENING_EVENTS, _deltas(ask, texts)),
        ending=b"".join(_events(before_ending, _ending(ask, texts))),
        error=b"".join(_events(before_error, iter([failed]))),
    )


def input_tokens(ask: Ask) -> JsonObject:
    return {"object": "response.input_tokens", "input_tokens": _input_tokens(ask)}


RESPONSES = Format(
    "openai_responses", "x-request-id", responses, openai_wire.error, responses_stream, tokens=response_tokens
)
INPUT_TOKENS = Format("openai_input_tokens", "x-request-id", input_tokens, openai_wire.error)
