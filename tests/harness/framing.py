"""HTTP/1.1 answers as raw bytes, read strictly: what a client may count as whole, and what not. Shares no code with the proxy."""

import json
import re
from dataclasses import dataclass
from typing import Any

_HEAD = re.compile(rb"HTTP/1\.[01] (\d{3}) [^\r\n]*\r\n((?:[^\r\n:]+:[^\r\n]*\r\n)*)\r\n")
_CHUNK = re.compile(rb"([0-9a-f]+)\r\n")
BODILESS = {204, 304}


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """One answer. `clean`: its framing says that it is whole; a body delimited by the close never says so."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes
    framing: str  # length, chunked, close or none
    clean: bool

    @property
    def code(self) -> str | None:
        """Of an answer of ours."""
        document: Any = json.loads(self.body)
        code: str | None = document["code"]
        return code


def answers(raw: bytes) -> list[RawAnswer]:
    """All answers of a connection that has ended, to requests other than HEAD. Raises ValueError for bytes that are none."""
    found = []
    while raw:
        answer, raw = _first(raw)
        found.append(answer)
    return found


def _first(raw: bytes) -> tuple[RawAnswer, bytes]:
    head = _HEAD.match(raw)
    if head is None:
        raise ValueError(f"no head of an answer: {raw[:200]!r}")
    status = int(head[1])
    pairs = [line.partition(b":") for line in head[2].splitlines()]
    headers = {name.decode().lower(): value.strip().decode("latin-1") for name, _, value in pairs}
    rest = raw[head.end() :]
    codings, length = headers.get("transfer-encoding"), headers.get("content-length")
    if status in BODILESS or status < 200:
        return RawAnswer(status, headers, b"", "none", clean=True), rest
    if codings is not None:
        if (codings, length) != ("chunked", None):
            raise ValueError(f"ambiguous framing: {codings!r}, {length!r}")
        body, clean, rest = _chunks(rest)
        return RawAnswer(status, headers, body, "chunked", clean), rest
    if length is not None:
        size = int(length)
        return RawAnswer(status, headers, rest[:size], "length", len(rest) >= size), rest[size:]
    return RawAnswer(status, headers, rest, "close", clean=False), b""


def _chunks(raw: bytes) -> tuple[bytes, bool, bytes]:
    """The body, whether its end came, and what follows."""
    body = b""
    while found := _CHUNK.match(raw):
        size, at = int(found[1], 16), found.end()
        piece, end = raw[at : at + size], raw[at + size : at + size + 2]
        raw = raw[at + size + 2 :]
        if size == 0 and end == b"\r\n":
            return body, True, raw
        body += piece
        if end != b"\r\n":
            break
    return body, False, b""
