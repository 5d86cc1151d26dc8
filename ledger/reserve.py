"""Room on the disk for what is in flight: a preallocated file, given up when the disk runs full.

While it stands, requests are admitted. When free space falls below the low mark the file goes, its room is the calls' in flight,
and nothing new is admitted until there is enough to allocate it again. So a full disk refuses requests that were not
sent instead of failing the commit of one that was.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

DISK_SHARE: Final = 0.05  # of the whole disk, where that is less than the limit
BLOCK_BYTES: Final = 512  # the unit of st_blocks, stat(2)
ZEROS: Final = bytes(64 * 1024)
LOW_SHARE: Final = 0.5  # of the reserve: so much must stay free beside it, for what is written between two looks


class Reserve:
    """Thread-safe: the loop looks before it admits and at each piece of an answer, the writer before each transaction."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        """Changes nothing on disk; `look` does."""
        disk = os.statvfs(path.parent)
        self._path, self._size = path, min(limit_bytes, int(disk.f_blocks * disk.f_frsize * DISK_SHARE))
        self._low = int(self._size * LOW_SHARE)
        self._lock = threading.Lock()
        self._promised = 0
        self._held = _is_allocated(path, self._size)  # by the process before

    def look(self) -> bool:
        """Is there room to admit? Gives the reserve up, or takes it again, as free space says."""
        with self._lock:
            free = self._free()
            if free < self._low:
                self._give_up()
            elif not self._held and free >= self._size + self._low:
                self._take()
            return self._held

    def has_room_for(self, size_bytes: int) -> bool:
        """Beside the low mark, which is what commits and small answers need, and beside what was promised."""
        return self._free() >= self._low + self._promised + size_bytes

    @contextmanager
    def promised(self, size_bytes: int) -> Iterator[bool]:
        """Sets room aside until the block ends, where there is any: several large bodies at once must not all count on it."""
        with self._lock:
            given = size_bytes if self.has_room_for(size_bytes) else 0
            self._promised += given
        try:
            yield given == size_bytes
        finally:
            with self._lock:
                self._promised -= given

    def _free(self) -> int:
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize

    def _give_up(self) -> None:
        self._held = False
        with suppress(OSError):  # gone, or a disk that is read-only: there is no room either way
            self._path.unlink()

    def _take(self) -> None:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                _allocate(fd, self._size)
            finally:
                os.close(fd)
        except OSError:  # somebody else was faster, a quota, a read-only disk; the next look tries again
            self._give_up()
        else:
            self._held = True


def _is_allocated(path: Path, size: int) -> bool:
    try:
        return path.stat().st_blocks * BLOCK_BYTES >= size
    except FileNotFoundError:
        return False


def _allocate(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    for offset in range(0, size, len(ZEROS)):  # where there is no such call, only writing takes the room
        os.pwrite(fd, ZEROS[: size - offset], offset)
