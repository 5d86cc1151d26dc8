"""Bodies: what comes out is what went in, similar bodies share chunks, and damage is never served."""

import io
import random
from pathlib import Path

import pytest
import zstandard

from ledger import bodies
from ledger.bodies import INLINE_LIMIT_BYTES, MAX_CHUNK_BYTES, Packed, pack, pack_stream
from ledger.codec import digest_of
from ledger.errors import UnreadableRecordError
from ledger.operations import Entry
from ledger.reader import open_reader
from tests.harness.ledgers import FIRST, MANIFEST, NAMED, Ledger, ledger_in, stored_body

MIB = 1024 * 1024


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


BODIES = {
    "empty": b"",
    "one byte": b"x",
    "inline limit": noise(INLINE_LIMIT_BYTES),
    "over the inline limit": noise(INLINE_LIMIT_BYTES + 1),
    "one repeated byte": b"a" * MIB,
    "a repeated line": b'{"role":"user","content":"again"},' * 40_000,
    "noise": noise(3 * MIB),
    "noise, twice": noise(MIB) * 2,
}


def keep(ledger: Ledger, packed: Packed) -> None:
    """In the transaction of an event, as the writer does."""
    if ledger.store.state(FIRST) is None:
        ledger.claim()
        ledger.append(Entry(FIRST, None, MANIFEST))
    ledger.append(Entry(FIRST, None, NAMED["call.resumed"]), bodies=(packed,))


def chunk_count(ledger: Ledger) -> int:
    return int(ledger.store._db.execute("SELECT count(*) FROM chunk").fetchone()[0])


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_body_round_trips(body: bytes, tmp_path: Path) -> None:
    """0 B to 3 MiB, from memory and from a file, through the store and through a reader."""
    with ledger_in(tmp_path) as ledger:
        keep(ledger, packed := pack(body))
        assert (packed.digest, packed.size) == (digest_of(body), len(body))
        assert stored_body(ledger.store, packed.digest) == body
        async with open_reader(ledger.path) as reader:
            assert b"".join([piece async for piece in reader.body(packed.digest)]) == body
        streamed = pack_stream(io.BytesIO(body))
        assert (streamed.digest, streamed.size) == (packed.digest, packed.size)
        keep(ledger, streamed)  # the same digest again: the first row stands, whatever its cuts
        assert stored_body(ledger.store, packed.digest) == body


@pytest.mark.parametrize("body", [noise(MIB, 2), b"", noise(100)], ids=["1 MiB", "empty", "100 B"])
def test_body_packed_from_a_file_round_trips(body: bytes, tmp_path: Path) -> None:
    """Salvage packs from the spool's file, without the body in memory."""
    with ledger_in(tmp_path) as ledger:
        (tmp_path / "body").write_bytes(body)
        with (tmp_path / "body").open("rb") as stream:
            keep(ledger, packed := pack_stream(stream))
        assert stored_body(ledger.store, packed.digest) == body


def test_grown_body_adds_few_chunks(tmp_path: Path) -> None:
    """An agent sends its whole conversation again each turn: only the new end is stored, also after an insertion."""
    conversation = noise(MIB)
    with ledger_in(tmp_path) as ledger:
        keep(ledger, pack(conversation))
        before = chunk_count(ledger)
        assert before > MIB // MAX_CHUNK_BYTES
        keep(ledger, pack(conversation + b"one more turn"))
        keep(ledger, pack(b"{a changed head}" + conversation))
        assert chunk_count(ledger) - before <= 8
        keep(ledger, pack(conversation))
        assert chunk_count(ledger) - before <= 8


def test_any_flipped_byte_of_a_frame_is_unreadable() -> None:
    """Damage anywhere in a frame never gives other bytes, nor a huge allocation."""
    for plain in (b"", b"hello " * 300, noise(300)):
        packed = pack(plain)
        ((digest, frame),) = packed.chunks
        for at in range(len(frame)):
            for mask in (0x01, 0x80, 0xFF):
                damaged = frame[:at] + bytes([frame[at] ^ mask]) + frame[at + 1 :]
                try:
                    assert bodies.plain(digest, damaged) == plain
                except UnreadableRecordError:
                    continue


def test_frame_that_claims_too_much_is_unreadable() -> None:
    """A frame beyond the largest chunk was not written here."""
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * MIB))
    with pytest.raises(UnreadableRecordError):
        bodies.plain(bytes.fromhex(digest_of(bytes(64 * MIB))), bomb)


async def test_erased_chunk_is_unreadable_and_unkept_body_is_none(tmp_path: Path) -> None:
    """Erasure removes bytes: a body that lost a chunk says so, one without a row is not kept."""
    with ledger_in(tmp_path) as ledger:
        keep(ledger, packed := pack(noise(100_000)))
        gone = packed.order[len(packed.order) // 2]
        ledger.store._db.execute("DELETE FROM chunk WHERE digest = ?", (gone,))
        with pytest.raises(UnreadableRecordError, match=gone.hex()):
            stored_body(ledger.store, packed.digest)
        async with open_reader(ledger.path) as reader:
            with pytest.raises(UnreadableRecordError, match=gone.hex()):
                [piece async for piece in reader.body(packed.digest)]
            ledger.store._db.execute("DELETE FROM body WHERE digest = ?", (packed.digest,))
            assert stored_body(ledger.store, packed.digest) is None
            with pytest.raises(UnreadableRecordError, match="not kept"):
                [piece async for piece in reader.body(packed.digest)]


def test_body_of_other_chunks_is_unreadable(tmp_path: Path) -> None:
    """Whole chunks in a wrong order are not the body."""
    with ledger_in(tmp_path) as ledger:
        packed = pack(noise(100_000))
        swapped = Packed(packed.digest, packed.size, packed.order[::-1], packed.chunks)
        keep(ledger, swapped)
        with pytest.raises(UnreadableRecordError, match="does not hold"):
            stored_body(ledger.store, packed.digest)
