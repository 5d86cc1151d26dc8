"""Reading one HTTP/1.1 request, byte for byte: nothing is decoded, unpacked or normalised."""

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from synthetic_provider.intake import File, Intake

HEAD_LIMIT_BYTES = 1024 * 1024  # also the stream buffer: far above any client's head, and bodies pass it in pieces
READ_BYTES = 256 * 1024

_REQUEST_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/1\.1")
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}")


class BadRequestError(Exception):
    """The bytes are no request that can be framed, so where the next one starts is unknown: answer 400 and close."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str  # as received, with the query
    headers: tuple[tuple[str, str], ...]  # names in lower case, in the order received, repeats included
    body_blake3: str  # of the body without chunked framing, else as received; content-encoding kept
    body_bytes: int
    fields: dict[str, Any]  # the body's JSON object or form fields; empty where it is neither or broke off
    files: tuple[File, ...]
    complete: bool  # False: the connection ended within the body; digest and count are those of what came

    @property
    def header_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.headers)

    def header(self, name: str) -> str | None:
        return next((value for found, value in self.headers if found == name), None)

    @property
    def closes(self) -> bool:
        """The client wants the connection closed after the answer."""
        return (self.header("connection") or "").lower() == "close"


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The next request; None when the connection ended before a whole head. Answers `Expect: 100-continue`."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequestError(f"The head exceeds {HEAD_LIMIT_BYTES} bytes: send fewer or shorter headers.") from error
    method, target, headers = _parse_head(head.decode("latin-1"))
    framing = _framing(headers)
    if any(name == "expect" and value.lower() == "100-continue" for name, value in headers):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
    body = Intake(next((value for name, value in headers if name == "content-type"), ""))
    complete = True
    try:
        if framing is None:
            await _read_chunked(reader, body)
        else:
            await _read_exactly(reader, framing, body)
    except (EOFError, ConnectionError):  # IncompleteReadError is an EOFError
        complete = False
    except asyncio.LimitOverrunError as error:
        raise BadRequestError(f"A chunk's size line or a trailer exceeds {HEAD_LIMIT_BYTES} bytes.") from error
    fields = body.fields() if complete else {}
    return Request(method, target, headers, body.digest(), body.size_bytes, fields, body.files(), complete=complete)


def _parse_head(head: str) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    matched = _REQUEST_LINE.fullmatch(first)
    if matched is None:
        raise BadRequestError(f"The request line {first!r} is not 'METHOD TARGET HTTP/1.1'.")
    headers = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadRequestError(f"The header line {line!r} is not 'name: value'.")
        headers.append((name.lower(), value.strip(" \t")))
    return matched[1], matched[2], tuple(headers)


def _framing(headers: tuple[tuple[str, str], ...]) -> int | None:
    """The body's length in bytes, None where it is chunked. Two framings at once are refused (RFC 9112, 6.3)."""
    codings = [value.lower() for name, value in headers if name == "transfer-encoding"]
    lengths = [value for name, value in headers if name == "content-length"]
    if codings == ["chunked"] and not lengths:
        return None
    if codings or len(lengths) > 1 or not all(length.isascii() and length.isdigit() for length in lengths):
        raise BadRequestError(f"Content-Length {lengths} and Transfer-Encoding {codings}: send one valid framing.")
    return int(lengths[0]) if lengths else 0


async def _read_exactly(reader: asyncio.StreamReader, count: int, into: Intake) -> None:
    """In pieces, so that a body of any size fits, and what came before a break is counted."""
    while count:
        piece = await reader.read(min(count, READ_BYTES))
        if not piece:
            raise EOFError
        into.take(piece)
        count -= len(piece)


async def _read_chunked(reader: asyncio.StreamReader, into: Intake) -> None:
    while True:
        line = await reader.readuntil(b"\r\n")
        size_text = line.partition(b";")[0].strip()
        if not _CHUNK_SIZE.fullmatch(size_text):
            raise BadRequestError(f"The chunk size {size_text!r} is no hexadecimal number.")
        size = int(size_text, 16)
        if size == 0:
            break
        await _read_exactly(reader, size, into)
        if await reader.readexactly(2) != b"\r\n":
            raise BadRequestError("A chunk is longer than its size says.")
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers
