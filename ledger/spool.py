"""One attempt's response on disk while it arrives, so that a killed process leaves what it had received.

`<name>.body` holds the raw bytes. `<name>.index` holds one head line (its CRC-32, then what the caller gave), and then one line
an append: the end offset and the running CRC-32 of the whole body up to there. The body is written before its index line, so the index never
promises a byte that is not there. Nothing is synced: a spool outlives SIGKILL, and after a power loss the checksums tell
how much of it is left. The ledger is what is durable.
"""

import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

BODY_SUFFIX: Final = ".body"
INDEX_SUFFIX: Final = ".index"
READ_BYTES: Final = 1024 * 1024
HEAD_LIMIT_BYTES: Final = 4 * 1024 * 1024  # far above any response head; keeps a broken index out of memory

_HEAD_LINE: Final = re.compile(rb"([0-9a-f]{8}) ([^\n]+)\n")
_INDEX_LINE: Final = re.compile(rb"(\d{1,19}) ([0-9a-f]{8})\n")
_INDEX_LINE_LIMIT_BYTES: Final = 32


class Spool:
    """Written by one forwarder. An OSError of the disk (ENOSPC, EIO) leaves every method as it is; nothing is swallowed."""

    def __init__(self, directory: Path, name: str) -> None:
        """Nothing is on disk before `head`: a call without an answer leaves no spool."""
        self._directory, self._name = directory, name
        self._body = self._index = -1
        self._index_size, self._crc = 0, 0
        self.size = 0
        self.closed = False

    def head(self, data: bytes) -> None:
        """Creates both files, 0600, and writes the first line of the index: what recovery must know to use the body.

        Once, and before any byte of the body. FileExistsError when this name has been used: a spool is never continued.
        """
        if self._index_size or b"\n" in data or not 0 < len(data) < HEAD_LIMIT_BYTES:
            raise ValueError(f"The head of spool {self._name} must be one line, written once, before the body.")
        self._body = _create(self._directory / f"{self._name}{BODY_SUFFIX}")
        self._index = _create(self._directory / f"{self._name}{INDEX_SUFFIX}")
        self._write_index(b"%08x %b\n" % (zlib.crc32(data), data))

    def append(self, data: bytes) -> None:
        if not self._index_size:
            raise ValueError(f"Spool {self._name} has no head yet: write it before the body.")
        if not data:
            return
        write_at(self._body, data, self.size)
        crc = zlib.crc32(data, self._crc)
        self._write_index(b"%d %08x\n" % (self.size + len(data), crc))
        self.size, self._crc = self.size + len(data), crc

    def read_at(self, offset: int, size: int) -> bytes:
        return os.pread(self._body, size, offset) if self._index_size else b""

    def sync(self) -> None:
        """What was appended is durable when it returns. Never again after it raised."""
        os.fdatasync(self._body)
        os.fdatasync(self._index)

    def close(self) -> None:
        """The files stay. A second call does nothing."""
        if not self.closed:
            self.closed = True
            for descriptor in (self._body, self._index):
                if descriptor >= 0:
                    os.close(descriptor)

    def remove(self) -> None:
        """Unlinks the files; an open spool stays readable until `close`."""
        remove(self._directory, self._name)

    def _write_index(self, line: bytes) -> None:
        write_at(self._index, line, self._index_size)
        self._index_size += len(line)


@dataclass(frozen=True, slots=True)
class Salvaged:
    """The valid prefix of a spool: the first `size` bytes of `body_path`."""

    head: bytes
    body_path: Path
    size: int


@dataclass(frozen=True, slots=True)
class Judged:
    """What whoever reads heads says of a salvaged response: is it whole, and may its body be kept?"""

    is_whole: bool
    is_kept: bool


def salvage(directory: Path, name: str) -> Salvaged | None:
    """What a spool of a dead process holds for certain, or None when not even its head is whole.

    Only reads, so it may be repeated. It stops at the first index line that is torn, does not advance, or does not fit the body.
    """
    body_path = directory / f"{name}{BODY_SUFFIX}"
    try:
        with (directory / f"{name}{INDEX_SUFFIX}").open("rb") as index, body_path.open("rb") as body:
            line = _HEAD_LINE.fullmatch(index.readline(HEAD_LIMIT_BYTES))
            if line is None or zlib.crc32(line[2]) != int(line[1], 16):
                return None
            return Salvaged(line[2], body_path, _valid_size(index, body))
    except FileNotFoundError:
        return None


def names(directory: Path) -> list[str]:
    """The spools that lie in a directory, also those of which a crash left only one file."""
    suffixes = (BODY_SUFFIX, INDEX_SUFFIX)
    return sorted({path.name.removesuffix(path.suffix) for path in directory.iterdir() if path.suffix in suffixes})


def remove(directory: Path, name: str) -> None:
    """Call it only when the observation is durable. Index first: a body alone salvages to nothing."""
    for suffix in (INDEX_SUFFIX, BODY_SUFFIX):
        with suppress(FileNotFoundError):
            (directory / f"{name}{suffix}").unlink()


def _valid_size(index: BinaryIO, body: BinaryIO) -> int:
    size, crc = 0, 0
    while (line := _INDEX_LINE.fullmatch(index.readline(_INDEX_LINE_LIMIT_BYTES))) is not None:
        end = int(line[1])
        if end <= size:
            break
        came = 0
        for piece in _pieces(body, end - size):
            crc = zlib.crc32(piece, crc)
            came += len(piece)
        if came < end - size or crc != int(line[2], 16):
            break
        size = end
    return size


def _pieces(body: BinaryIO, size: int) -> Iterator[bytes]:
    while size and (piece := body.read(min(READ_BYTES, size))):
        size -= len(piece)
        yield piece


def _create(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """At a given offset, so that bytes of a failed write are overwritten and never counted."""
    view = memoryview(data)
    while view:  # the kernel may take less than it is given
        taken = os.pwrite(fd, view, offset)
        offset += taken
        view = view[taken:]
