"""A small disk of our own: a tmpfs, mounted for one test, and something that fills it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, size_mib: int) -> Iterator[Path]:
    """Skips, loudly, where this machine lets nobody mount."""
    directory.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"NOT RUN: a full disk needs a mount, and this machine says: {made.stderr.decode().strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(directory: Path, leave_bytes: int = 2 * 1024 * 1024) -> Path:
    """One file that takes all but a little. What is left must outlast what is written between two looks at the disk."""
    filler = directory / "filler"
    with filler.open("ab", buffering=0) as file:
        while (disk := os.statvfs(directory)).f_bavail * disk.f_frsize > leave_bytes:
            file.write(bytes(64 * 1024))
    return filler
