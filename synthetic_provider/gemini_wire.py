"""Gemini: generation, token counts and embeddings, as ai.google.dev/api and google-genai 3.6 (`types.py`) have them. Pure.

Events have no names and the stream no terminal event: its last chunk has the `finishReason`. `usageMetadata` comes with
each chunk and counts up. Without `alt=sse` the stream is one JSON array, which grows element by element.
"""

from collections.abc import Callable
from typing import Any

import orjson

from synthetic_provider.outcomes import Tokens
from synthetic_provider.wire import (
    Ask,
    Format,
    JsonObject,
    Stream,
    always,
    content_chunks,
    content_text,
    counted,
    event,
    provider_id,
    tool_name,
    words,
)

DEFAULT_DIMENSIONS = 8

# google.rpc.Code by its HTTP mapping (googleapis, google/rpc/code.proto). Others: by class of status.
_STATUSES: dict[int, str] = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def error(_ask: Ask, status: int, message: str) -> JsonObject:
    by_class = "INTERNAL" if status >= 500 else "INVALID_ARGUMENT"
    return {"error": {"code": status, "message": message, "status": _STATUSES.get(status, by_class)}}


def error_in_array(ask: Ask, status: int, message: str) -> list[JsonObject]:
    return [error(ask, status, message)]


def _prompt_tokens(asked: JsonObject) -> int:
    return words(asked.get("systemInstruction")) + words(asked.get("contents"))


def generate_tokens(ask: Ask) -> Tokens:
    config = ask.body.get("generationConfig")
    return counted(ask, _prompt_tokens(ask.body), config.get("maxOutputTokens") if isinstance(config, dict) else None)


def embed_tokens(ask: Ask) -> Tokens:
    listed = ask.body.get("requests")
    return counted(ask, sum(words(one) for one in listed) if isinstance(listed, list) else words(ask.body), 0)


def _usage(ask: Ask, chunks: int) -> JsonObject:
    """Thoughts are counted beside the candidates, the cache within the prompt; both only where they are not zero."""
    count = generate_tokens(ask).after(chunks, ask.behaviour.chunks)
    usage = {
        "promptTokenCount": count.taken,
        "candidatesTokenCount": count.made - count.reasoning,
        "totalTokenCount": count.taken + count.made,
    }
    named = {"cachedContentTokenCount": count.cached, "thoughtsTokenCount": count.reasoning}
    return usage | {name: number for name, number in named.items() if number}


def _answer(ask: Ask, parts: list[JsonObject], chunks: int, finish_reason: str | None = None) -> JsonObject:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish_reason is not None:
        candidate["finishReason"] = finish_reason
    answer: dict[str, Any] = {"candidates": [candidate]}
    if ask.behaviour.usage:
        answer["usageMetadata"] = _usage(ask, chunks)
    return answer | {"modelVersion": ask.answered_model, "responseId": provider_id("", ask)}


def _call(ask: Ask) -> list[JsonObject]:
    """`STOP` is also the finish reason of an answer that calls."""
    if not ask.behaviour.tool_call:
        return []
    call = {"id": provider_id("call_", ask), "name": tool_name(ask), "args": {"receipt": ask.receipt}}
    return [{"functionCall": call}]


def generate(ask: Ask) -> JsonObject:
    return _answer(ask, [{"text": content_text(ask)}, *_call(ask)], ask.behaviour.chunks, "STOP")


def _parts_of_stream(ask: Ask, write: Callable[[JsonObject], bytes]) -> Stream:
    failure = error(ask, 503, f"receipt {ask.receipt}: the in-band error that error_after asked for")
    return Stream(
        opening=b"",
        chunks=(
            write(_answer(ask, [{"text": piece}], index)) for index, piece in enumerate(content_chunks(ask), start=1)
        ),
        ending=write(_answer(ask, _call(ask) or [{"text": ""}], ask.behaviour.chunks, "STOP")),
        error=write(failure),
    )


def generate_stream(ask: Ask) -> Stream:
    return _parts_of_stream(ask, event)


def generate_array(ask: Ask) -> Stream:
    stream = _parts_of_stream(ask, orjson.dumps)
    return Stream(b"[", stream.chunks, stream.ending + b"]\n", stream.error + b"]\n", separator=b",\r\n")


def count_tokens(ask: Ask) -> JsonObject:
    asked = ask.body.get("generateContentRequest")
    return {"totalTokens": _prompt_tokens(asked if isinstance(asked, dict) else ask.body)}


def _vector(ask: Ask, asked: object, index: int) -> JsonObject:
    """Its first number is the receipt's."""
    dimensions = asked.get("outputDimensionality") if isinstance(asked, dict) else None
    length = dimensions if isinstance(dimensions, int) and dimensions > 0 else DEFAULT_DIMENSIONS
    return {"values": [float(ask.receipt), float(index), *([0.5] * length)][:length]}


def embed(ask: Ask) -> JsonObject:
    return {"embedding": _vector(ask, ask.body, 0)}


def batch_embed(ask: Ask) -> JsonObject:
    asked = ask.body.get("requests")
    listed = asked if isinstance(asked, list) else []
    return {"embeddings": [_vector(ask, one, index) for index, one in enumerate(listed)]}


GENERATE = Format("gemini_generate", None, generate, error, tokens=generate_tokens)
STREAM = Format(
    "gemini_stream", None, generate, error, generate_stream, always, "text/event-stream", tokens=generate_tokens
)
ARRAY = Format(
    "gemini_array", None, generate, error_in_array, generate_array, always, "application/json", tokens=generate_tokens
)
COUNT_TOKENS = Format("gemini_count_tokens", None, count_tokens, error)
EMBED = Format("gemini_embed", None, embed, error, tokens=embed_tokens)
BATCH_EMBED = Format("gemini_batch_embed", None, batch_embed, error, tokens=embed_tokens)
