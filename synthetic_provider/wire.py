"""What all wire formats share: the ask, the stream's parts, the content text and the token counts. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from synthetic_provider.behaviour import Behaviour
from synthetic_provider.filler import filler
from synthetic_provider.intake import File
from synthetic_provider.outcomes import Tokens

DEFAULT_CHUNK_BYTES = 12
DEFAULT_TOOL = "synthetic_tool"

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """One whole request, its receipt and its behaviour, as a format sees them."""

    method: str
    path: str  # as received, with the query
    body: JsonObject  # the request's JSON object or form fields; empty where it is neither
    body_bytes: int
    files: tuple[File, ...]
    model: str
    receipt: int
    at: datetime
    behaviour: Behaviour

    @property
    def answered_model(self) -> str:
        return self.behaviour.answered_as or self.model

    @property
    def background(self) -> bool:
        return self.body.get("background") is True

    @property
    def request_id(self) -> str:
        return provider_id("req_", self)


@dataclass(frozen=True, slots=True)
class Stream:
    """The parts of a stream, each made of whole events; filler is marked (filler.py)."""

    opening: bytes  # before the first content chunk
    chunks: Iterable[bytes]  # one content chunk each, made when they are sent
    ending: bytes  # tool call, finish, usage, the dialect's terminal event
    error: bytes  # the in-band error event, which takes the place of the rest
    separator: bytes = b""  # between a content chunk and what follows it


@dataclass(frozen=True, slots=True)
class Plain:
    """A whole answer that is not JSON."""

    media_type: str
    data: bytes


def _asked_in_the_body(ask: Ask) -> bool:
    return ask.body.get("stream") is True


def always(_ask: Ask) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Format:
    """How one endpoint of one provider answers. Without `stream` a request for a stream gets the whole answer.

    An endpoint generates where it counts `tokens`, or makes a `job` that will.
    """

    name: str
    request_id_header: str | None
    whole: Callable[[Ask], JsonObject | Plain]
    error: Callable[[Ask, int, str], object]
    stream: Callable[[Ask], Stream] | None = None
    stream_when: Callable[[Ask], bool] = _asked_in_the_body
    stream_type: str = "text/event-stream; charset=utf-8"
    tokens: Callable[[Ask], Tokens] | None = None
    job: bool = False
    headers: Callable[[Ask], Mapping[str, str]] | None = None  # of an answer that is no error
    items: Callable[[Ask], list[Ask]] | None = None  # a job's generations, which run at once

    @property
    def generates(self) -> bool:
        return self.tokens is not None or self.job

    def streams(self, ask: Ask) -> bool:
        return self.stream is not None and self.stream_when(ask)


def provider_id(prefix: str, ask: Ask) -> str:
    """An id as providers make them, but unique by the receipt's number, so that a test can tell which receipt it is."""
    return f"{prefix}{ask.receipt:024d}"


def _content(ask: Ask, reserved_bytes: int = 0) -> tuple[str, int]:
    """The first words, which name the receipt and unknown options, and how many bytes of filler follow them."""
    behaviour = ask.behaviour
    first = f"receipt {ask.receipt}: " + "".join(f"unknown option {option}. " for option in behaviour.unknown)
    if behaviour.size_bytes is None:
        return first, (behaviour.chunks - 1) * DEFAULT_CHUNK_BYTES
    return first, max(0, behaviour.size_bytes - reserved_bytes - len(first.encode()))


def content_text(ask: Ask, reserved_bytes: int = 0) -> str:
    """The content text with its filler marked; `reserved_bytes` of the size asked for are the caller's."""
    first, length = _content(ask, reserved_bytes)
    return first + filler(0, length)


def content_chunks(ask: Ask) -> Iterator[str]:
    """The content text in as many pieces as the behaviour asks for, its first words alone where there are several."""
    first, length = _content(ask)
    rest = ask.behaviour.chunks - 1
    yield first if rest else first + filler(0, length)
    for i in range(rest):
        yield filler(length * i // rest, length * (i + 1) // rest)


def part_starts(ask: Ask) -> dict[int, int]:
    """Chunk that begins a part -> the part, from 0; no part is without a chunk."""
    chunks = ask.behaviour.chunks
    parts = min(ask.behaviour.parts, chunks)
    return {-(-chunks * part // parts): part for part in range(parts)}


def part_texts(ask: Ask) -> list[str]:
    """The content text, part by part."""
    starts = part_starts(ask)
    if len(starts) == 1:
        return [content_text(ask)]
    texts: list[str] = []
    for index, chunk in enumerate(content_chunks(ask)):
        texts += [""] if index in starts else []
        texts[-1] += chunk
    return texts


def words(value: object) -> int:
    """Words in a text, or in a message's or block's `content`, `parts` and `text` at any depth; a number is one word.

    It stands for the input tokens: tests can count it by hand.
    """
    match value:
        case str():
            return len(value.split())
        case int():
            return 1
        case list():
            return sum(words(item) for item in value)
        case dict():
            return sum(words(value.get(name)) for name in ("content", "parts", "text"))
        case _:
            return 0


def counted(ask: Ask, taken: int, limit: object = None) -> Tokens:
    """What the answer counts: `taken` words of input unless the model name claims a number, at most `limit` of output."""
    behaviour = ask.behaviour
    read = taken if behaviour.input_tokens is None else behaviour.input_tokens
    made = behaviour.chunks if behaviour.output_tokens is None else behaviour.output_tokens
    if isinstance(limit, int) and not isinstance(limit, bool):
        made = min(made, max(0, limit))
    return Tokens(read, min(behaviour.cached_tokens, read), made, min(behaviour.reasoning_tokens, made))


def tool_name(ask: Ask) -> str:
    """The name of the first tool the request offers, so that an agent can run it.

    OpenAI chat puts it under `function`, Gemini into the list `functionDeclarations`.
    """
    described = _first(ask.body.get("tools"))
    if isinstance(described, dict):
        described = described.get("function") or _first(described.get("functionDeclarations")) or described
    name = described.get("name") if isinstance(described, dict) else None
    return name if isinstance(name, str) else DEFAULT_TOOL


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) and value else None


def event(data: JsonObject, name: str | None = None) -> bytes:
    """One server-sent event."""
    line = f"event: {name}\n".encode() if name else b""
    return line + b"data: " + orjson.dumps(data) + b"\n\n"
