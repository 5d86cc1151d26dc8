"""The filler of the content text, named by a mark until it is sent, so that an answer of any size needs little memory. Pure.

A mark is ordinary text and passes through JSON unescaped: U+E000, start, `-`, end, U+E001; it stands for those bytes of
the endless repetition of FILLER. Formats write marks, `pieces` sends what they stand for. The two code points are for
private use, so no other text has them.
"""

import re
from collections.abc import Iterable, Iterator

FILLER = b"All work and no play makes a synthetic provider a dull one. "  # as JSON has it: nothing to escape
BLOCK_BYTES = 64 * 1024  # one write to a socket

_MARK = re.compile("\ue000([0-9]+)-([0-9]+)\ue001".encode())
_TILE = FILLER * (BLOCK_BYTES // len(FILLER) + 2)


def filler(start: int, end: int) -> str:
    """The mark of `FILLER * infinity` from `start` to `end`, in bytes."""
    return f"\ue000{start}-{end}\ue001" if end > start else ""


def size_bytes(marked: bytes) -> int:
    """What is sent for `marked`."""
    return len(marked) + sum(int(mark[2]) - int(mark[1]) - len(mark[0]) for mark in _MARK.finditer(marked))


def pieces(marked: bytes) -> Iterator[bytes]:
    """What is sent for `marked`, in pieces that are small where `marked` is."""
    position = 0
    for mark in _MARK.finditer(marked):
        yield marked[position : mark.start()]
        yield from _filler(int(mark[1]), int(mark[2]))
        position = mark.end()
    yield marked[position:]


def _filler(start: int, end: int) -> Iterator[bytes]:
    while start < end:
        shift = start % len(FILLER)
        piece = _TILE[shift : shift + min(BLOCK_BYTES, end - start)]
        yield piece
        start += len(piece)


def blocks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer writes: none empty, a small answer whole."""
    block = bytearray()
    for part in parts:
        block += part
        if len(block) >= BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


def first(count: int, parts: Iterable[bytes]) -> Iterator[bytes]:
    """The first `count` bytes."""
    for part in parts:
        yield part[:count]
        count -= len(part)
        if count <= 0:
            return
