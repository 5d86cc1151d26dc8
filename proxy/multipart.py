"""Multipart forms, read in pieces: what each part is and the digest of its content, without holding uploads in memory. Pure.

Only the plain form that client libraries write is read: no preamble, no padding, nothing after the end. Anything else is
NotMultipartError, and its raw bytes stand for it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

PARTS_LIMIT: Final = 1024  # an upload has a handful
HEAD_LIMIT_BYTES: Final = 16 * 1024  # a part's header lines: name, file name, type
FIELD_LIMIT_BYTES: Final = 1024  # a form field such as `model`; contents are not held

_BOUNDARY: Final = re.compile(rb';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAME: Final = re.compile(r'^content-disposition: *form-data; *name="([^"]*)"\s*$', re.IGNORECASE | re.MULTILINE)


class _NotMultipartError(Exception):
    """The body is no multipart form as client libraries write it."""


@dataclass(frozen=True, slots=True)
class Part:
    """`head`: its header lines, latin-1. `text`: the content of a short field that is no file."""

    head: str
    digest: str
    text: bytes | None

    @property
    def field(self) -> str | None:
        """The name of a plain field; None of a file."""
        found = _NAME.search(self.head)
        return found[1] if found else None


def form_of(pieces: Iterable[bytes], content_type: bytes) -> list[Part] | None:
    """The parts in order; None where the body is no such form."""
    found = _BOUNDARY.search(content_type)
    if found is None or not content_type.lstrip().lower().startswith(b"multipart/"):
        return None
    try:
        return _parts(pieces, b"--" + (found[1] or found[2]))
    except _NotMultipartError:
        return None


def _parts(pieces: Iterable[bytes], delimiter: bytes) -> list[Part]:
    reader = _Reader(pieces)
    if reader.exactly(len(delimiter)) != delimiter:
        raise _NotMultipartError("no first part")
    parts: list[Part] = []
    while (mark := reader.exactly(2)) == b"\r\n":
        if len(parts) == PARTS_LIMIT:
            raise _NotMultipartError("too many parts")
        parts.append(_part(reader, delimiter))
    if not parts or mark != b"--" or reader.exactly(3) not in (b"", b"\r\n"):
        raise _NotMultipartError("no closing delimiter")
    return parts


def _part(reader: "_Reader", delimiter: bytes) -> Part:
    head = bytearray()
    for piece in reader.until(b"\r\n\r\n"):
        head += piece
        if len(head) > HEAD_LIMIT_BYTES:
            raise _NotMultipartError("a part's head is too long")
    if delimiter in head:
        raise _NotMultipartError("a part without a head")
    digest, text, size = blake3(), bytearray(), 0
    for piece in reader.until(b"\r\n" + delimiter):
        digest.update(piece)
        size += len(piece)
        if size <= FIELD_LIMIT_BYTES:
            text += piece
    return Part(head.decode("latin-1"), digest.hexdigest(), bytes(text) if size <= FIELD_LIMIT_BYTES else None)


class _Reader:
    """Looks for marks across the borders of pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._buffer = iter(pieces), bytearray()

    def exactly(self, size: int) -> bytes:
        """Fewer bytes only at the end."""
        while len(self._buffer) < size and (piece := next(self._pieces, b"")):
            self._buffer += piece
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def until(self, mark: bytes) -> Iterator[bytes]:
        """What stands before the mark, which is passed over. Raises _NotMultipartError where there is none."""
        while (at := self._buffer.find(mark)) < 0:
            sure = max(0, len(self._buffer) - len(mark) + 1)  # the mark may begin in what is kept
            yield bytes(self._buffer[:sure])
            del self._buffer[:sure]
            if not (piece := next(self._pieces, b"")):
                raise _NotMultipartError("it ends within a part")
            self._buffer += piece
        yield bytes(self._buffer[:at])
        del self._buffer[: at + len(mark)]
