"""A request's body while it arrives: hashed and counted as bytes, kept only as far as its fields are read. No IO.

Kept are a JSON object up to JSON_LIMIT_BYTES and the fields of a multipart form (RFC 7578), but no file of it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from typing import Any

import orjson
from blake3 import blake3

JSON_LIMIT_BYTES = 64 * 1024 * 1024  # above what any provider reads as JSON; a larger body is hashed, not read
FIELD_LIMIT_BYTES = 1024 * 1024  # of one form field; no model name, prompt or purpose is longer

_BOUNDARY = re.compile(r'multipart/form-data\s*;.*?\bboundary=(?:"([^"]+)"|([^\s;"]+))', re.IGNORECASE)
_FORM_VALUES: Mapping[str, bool] = {"true": True, "false": False}  # what SDKs write for JSON's booleans


@dataclass(slots=True)
class File:
    """A form's file: all that is kept of it."""

    field: str
    filename: str
    size_bytes: int = 0


class JsonReader:
    """Keeps what may become a JSON object."""

    def __init__(self) -> None:
        self._kept: bytearray | None = bytearray()
        self.files: list[File] = []

    def take(self, piece: bytes) -> None:
        if self._kept is None:
            return
        self._kept += piece
        if len(self._kept) > JSON_LIMIT_BYTES or not b"{".startswith(bytes(self._kept[:64]).lstrip()[:1]):
            self._kept = None

    def fields(self) -> dict[str, Any]:
        try:
            value = orjson.loads(self._kept or b"")
        except orjson.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}


class FormReader:
    """Reads a form part by part, in pieces cut anywhere; what breaks the grammar ends the reading, not the request."""

    def __init__(self, boundary: str) -> None:
        self._delimiter = b"\r\n--" + boundary.encode("latin-1")
        self._pending = bytearray(b"\r\n")  # the first delimiter has no line before it
        self._values: dict[str, bytearray] = {}
        self.files: list[File] = []
        self._part: bytearray | File | None = None  # where content goes; None: preamble, or a part without a name
        self._in_head = False
        self._ended = False

    def take(self, piece: bytes) -> None:
        self._pending += piece
        while self._went_on():
            pass

    def fields(self) -> dict[str, Any]:
        texts = {name: value.decode(errors="replace") for name, value in self._values.items()}
        return {name: _FORM_VALUES.get(text, text) for name, text in texts.items()}

    def _went_on(self) -> bool:
        """False when more has to come first."""
        if self._ended:
            self._pending.clear()
            return False
        return self._read_head() if self._in_head else self._read_content()

    def _read_content(self) -> bool:
        """True when a delimiter has come, and with it the next part's head; content up to it is taken."""
        found = self._pending.find(self._delimiter)
        after = found + len(self._delimiter)
        if found < 0 or len(self._pending) < after + 2:
            surely = len(self._pending) - len(self._delimiter) + 1 if found < 0 else found
            self._put(max(0, surely))
            return False
        self._put(found)
        mark = bytes(self._pending[len(self._delimiter) : len(self._delimiter) + 2])
        del self._pending[: len(self._delimiter)]  # the line's end stays: an empty head is only that and another one
        self._in_head, self._ended = mark == b"\r\n", mark != b"\r\n"
        return True

    def _read_head(self) -> bool:
        end = self._pending.find(b"\r\n\r\n")
        if end < 0:
            self._ended = len(self._pending) > FIELD_LIMIT_BYTES
            return False
        head = HeaderParser().parsestr(self._pending[:end].decode(errors="replace").lstrip())
        del self._pending[: end + 4]
        self._in_head = False
        self._part = self._opened(head)
        return True

    def _opened(self, head: Message) -> bytearray | File | None:
        name = head.get_param("name", header="content-disposition")
        if not isinstance(name, str):
            return None
        filename = head.get_filename()
        if filename is None:
            self._values[name] = bytearray()
            return self._values[name]
        self.files.append(File(name, filename))
        return self.files[-1]

    def _put(self, count: int) -> None:
        match self._part:
            case File():
                self._part.size_bytes += count
            case bytearray():
                self._part += self._pending[: min(count, FIELD_LIMIT_BYTES - len(self._part))]
            case None:
                pass
        del self._pending[:count]


class Intake:
    def __init__(self, content_type: str) -> None:
        boundary = _BOUNDARY.match(content_type)
        self._reader = JsonReader() if boundary is None else FormReader(boundary[1] or boundary[2])
        self._digest = blake3()
        self.size_bytes = 0

    def take(self, piece: bytes) -> None:
        self._digest.update(piece)
        self.size_bytes += len(piece)
        self._reader.take(piece)

    def digest(self) -> str:
        return self._digest.hexdigest()

    def fields(self) -> dict[str, Any]:
        return self._reader.fields()

    def files(self) -> tuple[File, ...]:
        return tuple(self._reader.files)
