"""What all wire formats share: the ask, the stream's parts, the content text and the token counts. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import orjson

from synthetic_provider.behaviour import Behaviour

FILLER = "All work and no play makes a synthetic provider a dull one. "
DEFAULT_CHUNK_BYTES = 12
DEFAULT_TOOL = "synthetic_tool"

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """One whole request, its receipt and its behaviour, as a format sees them."""

    method: str
    path: str  # as received, with the query
    body: JsonObject  # empty unless the request's body is a JSON object
    body_bytes: int
    receipt: int
    at: datetime
    behaviour: Behaviour

    @property
    def model(self) -> str:
        model = self.body.get("model")
        return model if isinstance(model, str) else "synthetic"

    @property
    def wants_stream(self) -> bool:
        return self.body.get("stream") is True

    @property
    def request_id(self) -> str:
        return provider_id("req_", self)


@dataclass(frozen=True, slots=True)
class Stream:
    """The parts of a server-sent event stream, each made of whole events."""

    opening: bytes  # before the first content chunk
    chunks: tuple[bytes, ...]  # one content chunk each
    ending: bytes  # tool call, finish, usage, the dialect's terminal event
    error: bytes  # the in-band error event, which takes the place of the rest


@dataclass(frozen=True, slots=True)
class Format:
    """How one endpoint of one provider answers. Without `stream` a request for a stream gets the whole answer."""

    name: str
    request_id_header: str
    whole: Callable[[Ask], JsonObject]
    error: Callable[[Ask, int, str], JsonObject]
    stream: Callable[[Ask], Stream] | None = None


def provider_id(prefix: str, ask: Ask) -> str:
    """An id as providers make them, but unique by the receipt's number, so that a test can tell which receipt it is."""
    return f"{prefix}{ask.receipt:024d}"


def content_chunks(ask: Ask) -> tuple[str, ...]:
    """The content text in as many pieces as the behaviour asks for; the first names the receipt and unknown options."""
    behaviour = ask.behaviour
    first = f"receipt {ask.receipt}: " + "".join(f"unknown option {option}. " for option in behaviour.unknown)
    rest = behaviour.chunks - 1
    size = behaviour.size_bytes
    length = rest * DEFAULT_CHUNK_BYTES if size is None else max(0, size - len(first.encode()))
    filler = (FILLER * (length // len(FILLER) + 1))[:length]
    if rest == 0:
        return (first + filler,)
    cuts = [length * i // rest for i in range(rest + 1)]
    return (first, *(filler[start:end] for start, end in pairwise(cuts)))


def words(value: object) -> int:
    """Words in a text, or in a message's or block's `content` and `text` at any depth; a number is one word.

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
            return words(value.get("content")) + words(value.get("text"))
        case _:
            return 0


def tool_name(ask: Ask) -> str:
    """The name of the first tool the request offers (OpenAI puts it under `function`), so that an agent can run it."""
    tools = ask.body.get("tools")
    first = tools[0] if isinstance(tools, list) and tools else None
    if not isinstance(first, dict):
        return DEFAULT_TOOL
    described = first.get("function", first)
    name = described.get("name") if isinstance(described, dict) else None
    return name if isinstance(name, str) else DEFAULT_TOOL


def event(data: JsonObject, name: str | None = None) -> bytes:
    """One server-sent event."""
    line = f"event: {name}\n".encode() if name else b""
    return line + b"data: " + orjson.dumps(data) + b"\n\n"
