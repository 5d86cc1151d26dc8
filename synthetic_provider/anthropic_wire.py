"""Anthropic messages, token counts and models, as docs.anthropic.com and anthropic 2.14 have them. Pure."""

from collections.abc import Iterator
from typing import Any

import orjson

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

# docs.anthropic.com/en/api/errors and anthropic.types.shared.ErrorType. Others: by class of status.
_ERRORS: dict[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error(ask: Ask, status: int, message: str) -> JsonObject:
    return envelope(ask.request_id, status, message)


def envelope(request_id: str, status: int, message: str) -> JsonObject:
    kind = _ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def _input_tokens(ask: Ask) -> int:
    return words(ask.body.get("system")) + words(ask.body.get("messages"))


def message_tokens(ask: Ask) -> Tokens:
    return counted(ask, _input_tokens(ask), ask.body.get("max_tokens"))


def _usage(ask: Ask, output_tokens: int) -> JsonObject:
    """`input_tokens` is without what was read from the cache; other fields only where they say something."""
    count = message_tokens(ask)
    usage: dict[str, Any] = {"input_tokens": count.taken - count.cached, "output_tokens": output_tokens}
    if count.cached:
        usage |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": count.cached}
    if count.reasoning:
        usage["output_tokens_details"] = {"thinking_tokens": min(count.reasoning, output_tokens)}
    if ask.behaviour.tier:
        usage["service_tier"] = ask.behaviour.tier
    return usage


def _message(ask: Ask, content: list[JsonObject], stop_reason: str | None, output_tokens: int) -> JsonObject:
    message: dict[str, Any] = {
        "id": provider_id("msg_", ask),
        "type": "message",
        "role": "assistant",
        "model": ask.answered_model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
    }
    if ask.behaviour.usage:
        message["usage"] = _usage(ask, output_tokens)
    return message


def _tool_use(ask: Ask) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": provider_id("toolu_", ask),
        "name": tool_name(ask),
        "input": {"receipt": ask.receipt},
    }


def _stop_reason(ask: Ask) -> str:
    return "tool_use" if ask.behaviour.tool_call else "end_turn"


def messages(ask: Ask) -> JsonObject:
    content: list[JsonObject] = [{"type": "text", "text": text} for text in part_texts(ask)]
    if ask.behaviour.tool_call:
        content.append(_tool_use(ask))
    return _message(ask, content, _stop_reason(ask), message_tokens(ask).made)


def _named(kind: str, **data: object) -> bytes:
    """An event whose name repeats its data's `type`, as all of Anthropic's do."""
    return event({"type": kind, **data}, kind)


def _block_start(index: int) -> bytes:
    return _named("content_block_start", index=index, content_block={"type": "text", "text": ""})


def _text_deltas(ask: Ask) -> Iterator[bytes]:
    starts, part = part_starts(ask), 0
    for index, piece in enumerate(content_chunks(ask)):
        change = b""
        if index and index in starts:
            change = _named("content_block_stop", index=part) + _block_start(part + 1)
            part += 1
        yield change + _named("content_block_delta", index=part, delta={"type": "text_delta", "text": piece})


def messages_stream(ask: Ask) -> Stream:
    """`message_start` already counts one output token, as the provider's does; `message_delta` counts all of them."""
    parts = len(part_starts(ask))
    ending = [_named("content_block_stop", index=parts - 1)]
    if ask.behaviour.tool_call:
        call = _tool_use(ask)
        arguments = orjson.dumps(call["input"]).decode()
        ending += [
            _named("content_block_start", index=parts, content_block=call | {"input": {}}),
            _named("content_block_delta", index=parts, delta={"type": "input_json_delta", "partial_json": arguments}),
            _named("content_block_stop", index=parts),
        ]
    usage = {"usage": {"output_tokens": message_tokens(ask).made}} if ask.behaviour.usage else {}
    ending.append(_named("message_delta", delta={"stop_reason": _stop_reason(ask), "stop_sequence": None}, **usage))
    ending.append(_named("message_stop"))
    failure = {"type": "overloaded_error", "message": f"receipt {ask.receipt}: the in-band error of error_after"}
    return Stream(
        opening=_named("message_start", message=_message(ask, [], None, min(1, message_tokens(ask).made)))
        + _block_start(0)
        + _named("ping"),
        chunks=_text_deltas(ask),
        ending=b"".join(ending),
        error=_named("error", error=failure),
    )


def count_tokens(ask: Ask) -> JsonObject:
    return {"input_tokens": _input_tokens(ask)}


def models(_ask: Ask) -> JsonObject:
    model = {
        "type": "model",
        "id": "synthetic",
        "display_name": "Synthetic",
        "created_at": "2023-11-14T22:13:20Z",
        "lifecycle": "active",
    }
    return {"data": [model], "has_more": False, "first_id": "synthetic", "last_id": "synthetic"}


MESSAGES = Format("anthropic_messages", "request-id", messages, error, messages_stream, tokens=message_tokens)
COUNT_TOKENS = Format("anthropic_count_tokens", "request-id", count_tokens, error)
MODELS = Format("anthropic_models", "request-id", models, error)
