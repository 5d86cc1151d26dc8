"""OpenAI chat completions, embeddings and models, as the API reference and the types of openai 3.57 have them. Pure."""

import base64
import struct
from typing import Any

import orjson

from synthetic_provider.outcomes import Tokens
from synthetic_provider.wire import (
    Ask,
    Format,
    JsonObject,
    Stream,
    content_chunks,
    content_text,
    counted,
    event,
    provider_id,
    tool_name,
    words,
)

DEFAULT_DIMENSIONS = 8

# status -> (type, code); platform.openai.com/docs/guides/error-codes. Others: by class of status.
_ERRORS: dict[int, tuple[str, str | None]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
    503: ("service_unavailable_error", None),
}


def error(_ask: Ask, status: int, message: str) -> JsonObject:
    by_class = ("server_error" if status >= 500 else "invalid_request_error", None)
    kind, code = _ERRORS.get(status, by_class)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def chat_tokens(ask: Ask) -> Tokens:
    limit = ask.body.get("max_completion_tokens")
    return counted(ask, words(ask.body.get("messages")), ask.body.get("max_tokens") if limit is None else limit)


def _usage(ask: Ask) -> JsonObject:
    """The details only where they are not zero."""
    count = chat_tokens(ask)
    usage: dict[str, Any] = {
        "prompt_tokens": count.taken,
        "completion_tokens": count.made,
        "total_tokens": count.taken + count.made,
    }
    if count.cached:
        usage["prompt_tokens_details"] = {"cached_tokens": count.cached, "audio_tokens": 0}
    if count.reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": count.reasoning, "audio_tokens": 0}
    return usage


def _tool_call(ask: Ask) -> dict[str, Any]:
    arguments = orjson.dumps({"receipt": ask.receipt}).decode()
    return {
        "id": provider_id("call_", ask),
        "type": "function",
        "function": {"name": tool_name(ask), "arguments": arguments},
    }


def _finish_reason(ask: Ask) -> str:
    return "tool_calls" if ask.behaviour.tool_call else "stop"


def _common(ask: Ask, kind: str) -> dict[str, Any]:
    return {
        "id": generation_id(ask) if of_openrouter(ask) else provider_id("chatcmpl-", ask),
        "object": kind,
        "created": int(ask.at.timestamp()),
        "model": ask.answered_model,
        **({"service_tier": ask.behaviour.tier} if ask.behaviour.tier else {}),
    }


def of_openrouter(ask: Ask) -> bool:
    """OpenRouter's paths begin with /api (openrouter.ai/docs/api-reference/overview)."""
    return ask.path.startswith("/api/")


def generation_id(ask: Ask) -> str:
    return provider_id("gen-", ask)


def _generation_header(ask: Ask) -> JsonObject:
    return {"x-generation-id": generation_id(ask)}


def openrouter_error(_ask: Ask, status: int, message: str) -> JsonObject:
    return openrouter_envelope(status, message)


def openrouter_envelope(status: int, message: str) -> JsonObject:
    return {"error": {"code": status, "message": message}}


def chat(ask: Ask) -> JsonObject:
    message: dict[str, Any] = {"role": "assistant", "content": content_text(ask), "refusal": None}
    if ask.behaviour.tool_call:
        message["tool_calls"] = [_tool_call(ask)]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(ask)}
    answer = _common(ask, "chat.completion") | {"choices": [choice]}
    return answer | {"usage": _usage(ask)} if ask.behaviour.usage else answer


def chat_stream(ask: Ask) -> Stream:
    """With `stream_options.include_usage` every chunk carries `usage`, null but in the last, which has no choices."""
    options = ask.body.get("stream_options")
    asked = isinstance(options, dict) and options.get("include_usage") is True
    with_usage = asked and ask.behaviour.usage
    common = _common(ask, "chat.completion.chunk") | ({"usage": None} if with_usage else {})

    def chunk(delta: JsonObject, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return event(common | {"choices": [choice]})

    ending = []
    if ask.behaviour.tool_call:
        call = _tool_call(ask)
        named = call | {"index": 0, "function": call["function"] | {"arguments": ""}}
        ending.append(chunk({"tool_calls": [named]}))
        arguments = {"index": 0, "function": {"arguments": call["function"]["arguments"]}}
        ending.append(chunk({"tool_calls": [arguments]}))
    ending.append(chunk({}, _finish_reason(ask)))
    if with_usage:
        ending.append(event(common | {"choices": [], "usage": _usage(ask)}))
    ending.append(b"data: [DONE]\n\n")
    return Stream(
        opening=chunk({"role": "assistant", "content": "", "refusal": None}),
        chunks=(chunk({"content": piece}) for piece in content_chunks(ask)),
        ending=b"".join(ending),
        error=event(error(ask, 500, f"receipt {ask.receipt}: the in-band error that error_after asked for")),
    )


def embeddings(ask: Ask) -> JsonObject:
    """One vector for each input; its first number is the receipt's. base64 is what the SDK asks for by default."""
    asked = ask.body.get("input")
    several = isinstance(asked, list) and bool(asked) and not isinstance(asked[0], int)
    dimensions = ask.body.get("dimensions")
    length = dimensions if isinstance(dimensions, int) and dimensions > 0 else DEFAULT_DIMENSIONS
    data = []
    for index in range(len(asked) if several and isinstance(asked, list) else 1):
        vector = [float(ask.receipt), float(index), *([0.5] * length)][:length]
        as_base64 = ask.body.get("encoding_format") == "base64"
        embedding = base64.b64encode(struct.pack(f"<{length}f", *vector)).decode() if as_base64 else vector
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    tokens = embedding_tokens(ask).taken
    answer = {"object": "list", "data": data, "model": ask.answered_model}
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return answer | {"usage": usage} if ask.behaviour.usage else answer


def embedding_tokens(ask: Ask) -> Tokens:
    return counted(ask, words(ask.body.get("input")), 0)


def models(_ask: Ask) -> JsonObject:
    model = {"id": "synthetic", "object": "model", "created": 1_700_000_000, "owned_by": "synthetic"}
    return {"object": "list", "data": [model]}


CHAT = Format("openai_chat", "x-request-id", chat, error, chat_stream, tokens=chat_tokens)
OPENROUTER_CHAT = Format(
    "openrouter_chat", None, chat, openrouter_error, chat_stream, tokens=chat_tokens, headers=_generation_header
)
EMBEDDINGS = Format("openai_embeddings", "x-request-id", embeddings, error, tokens=embedding_tokens)
MODELS = Format("openai_models", "x-request-id", models, error)
