"""One recording, many readers: order, holding, ends, and when the files go."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.spool import Spool, names
from proxy.inflight import READ_BYTES, Head, Recording, State
from proxy.refusals import OwnAnswer

CHUNKED = Head(200, "OK", (), None, bodyless=False)
SIZED = Head(200, "OK", (), 6, bodyless=False)
OWN = OwnAnswer(503, (), b"{}")


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    it = Spool(tmp_path, "a1")
    it.head(b"{}")
    yield it
    it.close()


@pytest.fixture
def recording(spool: Spool) -> Recording:
    return Recording(spool)


async def read_all(recording: Recording) -> bytes:
    with recording.reading():
        return b"".join([data async for data in recording.read()])


async def test_readers_early_and_late_get_all_from_byte_0(recording: Recording) -> None:
    """Whenever a reader comes, it gets the same bytes."""
    early = asyncio.create_task(read_all(recording))
    recording.begin(CHUNKED)
    recording.append(b"one ", 4)
    middle = asyncio.create_task(read_all(recording))
    await asyncio.sleep(0)
    recording.append(b"two", 7)
    recording.end(State.COMMITTED)
    assert set(await asyncio.gather(early, middle, read_all(recording))) == {b"one two"}


async def test_end_waits_for_the_commit(recording: Recording) -> None:
    """I2: what the hold keeps back comes with COMMITTED and not before."""
    recording.begin(CHUNKED)
    recording.append(b"hello", 4)
    with recording.reading():
        reader = recording.read()
        assert await anext(reader) == b"hell"
        rest = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        assert not rest.done()
        recording.end(State.COMMITTED)
        assert await rest == b"o"


@pytest.mark.parametrize("release_to", [6, 99])
async def test_last_byte_of_a_declared_length_is_never_released_early(recording: Recording, release_to: int) -> None:
    """Whatever a hold says: the last byte of a declared length is the end."""
    recording.begin(SIZED)
    recording.append(b"abcdef", release_to)
    assert recording.released == 5


async def test_release_never_runs_ahead_or_back(recording: Recording) -> None:
    """An offset beyond what came, or behind what left, is clamped."""
    recording.begin(CHUNKED)
    recording.append(b"abc", 99)
    assert recording.released == 3
    recording.append(b"d", -1)
    assert recording.released == 3


async def test_cut_gives_released_bytes_then_the_tail(recording: Recording) -> None:
    """Every reader sees the error event; what was held never comes."""
    recording.begin(CHUNKED)
    recording.append(b"data: a\n\ndata: [DO", 9)
    recording.end(State.CUT, tail=b"event: error\n\n")
    assert await read_all(recording) == await read_all(recording) == b"data: a\n\nevent: error\n\n"
    assert not await recording.committed()


async def test_cut_of_a_declared_length_drops_the_tail(recording: Recording) -> None:
    """I13: a tail could fill the body up to its length and make it look whole."""
    recording.begin(SIZED)
    recording.append(b"abc", 2)
    recording.end(State.CUT, tail=b"event: error\n\n")
    assert await read_all(recording) == b"ab"


async def test_no_head_answers_every_reader_instead(recording: Recording) -> None:
    """Lost before the head: readers that wait and readers that come later find the same answer."""
    waiting = asyncio.create_task(recording.head_or_end())
    await asyncio.sleep(0)
    recording.answer_instead(OWN)
    recording.end(State.CUT)
    assert await waiting is None
    assert (recording.own_answer, recording.state) == (OWN, State.CUT)


async def test_illegal_ends_raise_and_change_nothing(recording: Recording) -> None:
    """A cut is never committed afterwards, nothing is reopened, and a head cannot be taken back."""
    recording.begin(CHUNKED)
    recording.append(b"abc", 1)
    with pytest.raises(ValueError, match="already on its way"):
        recording.answer_instead(OWN)
    with pytest.raises(ValueError, match="cannot become"):
        recording.end(State.OPEN)
    recording.end(State.CUT)
    with pytest.raises(ValueError, match="cannot become"):
        recording.end(State.COMMITTED)
    assert (recording.state, recording.released, recording.own_answer) == (State.CUT, 1, None)


@pytest.mark.parametrize("discard_first", [True, False])
async def test_files_go_when_discarded_and_the_last_reader_is_gone(
    recording: Recording, tmp_path: Path, discard_first: bool
) -> None:
    """In either order: durable, done, read."""
    recording.begin(CHUNKED)
    recording.append(b"abc", 3)
    recording.end(State.COMMITTED)
    with recording.reading():
        if discard_first:
            recording.discard_spool()
            recording.close()
        else:
            recording.close()
            recording.discard_spool()
        assert names(tmp_path) == ["a1"]
        assert [data async for data in recording.read()] == [b"abc"]
    assert names(tmp_path) == []


async def test_files_stay_without_discard(recording: Recording, spool: Spool, tmp_path: Path) -> None:
    """A poisoned process leaves the spool for salvage, and a late reader is told so."""
    recording.end(State.CUT)
    recording.close()
    assert spool.closed
    assert names(tmp_path) == ["a1"]
    with pytest.raises(ValueError, match="replay it from the ledger"), recording.reading():
        pass


async def test_reader_that_does_not_read_holds_up_nobody(recording: Recording) -> None:
    """The writer never waits, and the other reader gets everything while the first has taken one piece."""
    recording.begin(CHUNKED)
    with recording.reading():
        slow = recording.read()
        for at in range(50):
            recording.append(b"x" * 100_000, (at + 1) * 100_000)
        assert len(await anext(slow)) == READ_BYTES
        recording.end(State.COMMITTED)
        assert len(await read_all(recording)) == 5_000_000
        assert sum([len(data) async for data in slow]) == 5_000_000 - READ_BYTES


async def test_full_disk_reaches_the_writer_and_releases_nothing(recording: Recording, spool: Spool) -> None:
    """A write error is the forwarder's to judge: nothing of the piece is seen by a reader."""
    recording.begin(CHUNKED)
    recording.append(b"abc", 3)
    spool.close()  # a closed descriptor fails like a dying disk: OSError from the write
    with pytest.raises(OSError, match="Bad file descriptor"):
        recording.append(b"def", 6)
    assert (recording.released, recording.size) == (3, 3)


@pytest.mark.parametrize(
    ("head", "is_end"),
    [
        (CHUNKED, False),
        (SIZED, False),
        (Head(200, "", (), 0, bodyless=False), True),
        (Head(204, "", (), None, bodyless=True), True),
    ],
)
def test_head_without_a_body_is_the_end(head: Head, is_end: bool) -> None:
    """HEAD, 204, 304 and length 0 have nothing after the head to hold."""
    assert head.is_end is is_end
