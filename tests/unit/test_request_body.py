"""Request bodies: the same bytes wherever they lie, and memory that is bounded and given back."""

import gc
import os
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from ledger.bodies import stream_of
from proxy.request_body import MEMORY_A_BODY_BYTES, PIECE_BYTES, Memory, RequestBody
from tests.harness.request_bodies import body_of


@given(st.lists(st.binary(max_size=300)), st.booleans())
def test_body_is_what_was_appended(pieces: list[bytes], in_file: bool) -> None:
    """Whole, in pieces, at any offset and as a stream; in memory and, where there is none left, in a file."""
    body = body_of(b"", Memory(0 if in_file else 10**6))
    for piece in pieces:
        body.append(piece)
    whole = b"".join(pieces)
    assert (body.whole(), body.size, body.digest) == (whole, len(whole), blake3(whole).hexdigest())
    assert b"".join(body.pieces()) == stream_of(body).read() == whole
    assert body.read_at(len(whole) // 2, 10) == whole[len(whole) // 2 :][:10]


@pytest.mark.parametrize("size", [MEMORY_A_BODY_BYTES, MEMORY_A_BODY_BYTES + 1, 3 * MEMORY_A_BODY_BYTES])
def test_large_body_moves_to_a_file_without_a_name(size: int, tmp_path: Path) -> None:
    """What was in memory goes along, and is given back; the directory shows nothing."""
    memory, data = Memory(), os.urandom(size)
    body = RequestBody(tmp_path, memory)
    before = memory.left_bytes
    for at in range(0, size, PIECE_BYTES):
        body.append(data[at : at + PIECE_BYTES])
    assert body.whole() == data
    assert list(tmp_path.iterdir()) == []
    assert memory.left_bytes == (before if size > MEMORY_A_BODY_BYTES else before - size)


def test_memory_and_descriptor_are_given_back_with_the_last_reference() -> None:
    """A handler and its flight may hold the body; whoever is last lets it go."""
    memory = Memory(1000)
    held = [body_of(b"x" * 600, memory), body_of(b"y" * 600, memory)]
    assert memory.left_bytes == 400
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    held.clear()
    gc.collect()
    assert memory.left_bytes == 1000
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors - 1


def test_directory_that_is_gone_is_an_error_of_the_disk(tmp_path: Path) -> None:
    """It leaves as OSError: the request is refused, and was not sent."""
    body = RequestBody(tmp_path / "gone", Memory(0))
    with pytest.raises(OSError, match="gone"):
        body.append(b"x")
