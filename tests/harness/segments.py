"""Receipt segments as files: their lines without the padding, and lines put back with it (FORMAT.md section 6)."""

from pathlib import Path

from ledger.receipts import BLOCK_BYTES


def content(path: Path) -> bytes:
    """The lines without the padding."""
    return path.read_bytes().rstrip(b"\0")


def put(path: Path, lines: bytes) -> None:
    """In place of what is there, padded to whole blocks with at least one zero byte."""
    path.write_bytes(lines.ljust((len(lines) // BLOCK_BYTES + 1) * BLOCK_BYTES, b"\0"))
