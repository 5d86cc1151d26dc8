"""A request's exact bytes: in memory while they are few, beyond that in a file without a name. Memory does not grow with uploads.

The file is unlinked from the start, so a killed process leaves nothing behind: what is kept of a request is in the ledger.
"""

import errno
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from blake3 import blake3

from ledger.ids import Digest
from ledger.reserve import Reserve
from ledger.spool import write_at

MEMORY_A_BODY_BYTES: Final = 1024 * 1024  # an ordinary conversation; uploads and images go to the file
MEMORY_OF_ALL_BYTES: Final = 32 * 1024 * 1024  # a thousand requests at once must not take a gigabyte
PIECE_BYTES: Final = 64 * 1024


class Memory:
    """What all bodies of this process together may hold in memory."""

    def __init__(self, limit_bytes: int = MEMORY_OF_ALL_BYTES, reserve: Reserve | None = None) -> None:
        """`reserve`: what says whether a file may grow; the last room on the disk is for what was sent."""
        self.left_bytes, self.reserve = limit_bytes, reserve


class _Held:
    """What one body holds, given back when the last reference to it is gone: a handler's, or its flight's."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.taken, self.fd = memory, 0, -1

    def take(self, size: int) -> bool:
        if self.taken + size > MEMORY_A_BODY_BYTES or self.memory.left_bytes < size:
            return False
        self.memory.left_bytes -= size
        self.taken += size
        return True

    def check_room(self, size: int) -> None:
        if self.memory.reserve is not None and not self.memory.reserve.has_room_for(size):
            raise OSError(errno.ENOSPC, "the disk has no room for the request's body")

    def give_back(self) -> None:
        self.memory.left_bytes += self.taken
        self.taken = 0

    def close(self) -> None:
        self.give_back()
        if self.fd >= 0:
            os.close(self.fd)


class RequestBody:
    """Appended to while it comes in, then only read."""

    def __init__(self, directory: Path, memory: Memory) -> None:
        """`directory`: where the file is made, if one is needed."""
        self._directory, self._held = directory, _Held(memory)
        self._bytes = bytearray()
        self._whole = blake3()
        self.size = 0
        weakref.finalize(self, self._held.close)

    @property
    def digest(self) -> Digest:
        return Digest(self._whole.hexdigest())

    def append(self, data: bytes) -> None:
        """Raises the file's OSError."""
        if self._held.fd < 0 and not self._held.take(len(data)):
            self._move_to_file()
        if self._held.fd < 0:
            self._bytes += data
        else:
            self._held.check_room(len(data))
            write_at(self._held.fd, data, self.size)
        self._whole.update(data)
        self.size += len(data)

    def read_at(self, offset: int, size: int) -> bytes:
        if self._held.fd < 0:
            return bytes(self._bytes[offset : offset + size])
        pieces = []
        while size and (piece := os.pread(self._held.fd, size, offset)):
            pieces.append(piece)
            offset, size = offset + len(piece), size - len(piece)
        return b"".join(pieces)

    def pieces(self) -> Iterator[bytes]:
        return (self.read_at(offset, PIECE_BYTES) for offset in range(0, self.size, PIECE_BYTES))

    def whole(self) -> bytes:
        """For what must be parsed; its callers bound the size first."""
        return self.read_at(0, self.size)

    def _move_to_file(self) -> None:
        with tempfile.TemporaryFile(
            dir=self._directory, buffering=0
        ) as file:  # 0600, and gone with its last descriptor
            self._held.fd = os.dup(file.fileno())
        write_at(self._held.fd, bytes(self._bytes), 0)
        self._bytes = bytearray()
        self._held.give_back()
