"""Reading beside the writer and after its death: it appends nothing, and it leaves the files as they are."""

import signal
import sqlite3
from pathlib import Path

import orjson
import pytest

from ledger.codec import chained, digest_of
from ledger.errors import StateDirError
from ledger.events import EpochOpened
from ledger.ids import NO_CHAIN, Key
from ledger.ladder import Evidence
from ledger.reader import Reader, open_reader
from tests.harness.ledgers import SCOPE, call_id, child, run_child, started, state_dir_in

COMMANDS = ("start", "claim:1", "started:1", "observed:1", "claim:2", "started:2")
EVENTS = 1 + 2 * 2 + 3


async def read_everything(reader: Reader) -> None:
    """Every query, with the answers that COMMANDS gave."""
    assert await reader.counts() == (2, EVENTS)
    assert await reader.counts(Key("key-1")) == (1, EVENTS)
    history = await reader.history(SCOPE, Key("key-1"))
    assert [(state.call, state.evidence) for state in history.calls] == [(call_id(1), Evidence.RESPONSE)]
    assert history.head is not None
    assert (history.head.seq, history.last_occurrence) == (5, 1)
    assert (await reader.history(SCOPE, Key("none"))).calls == ()
    assert [state.call for state in await reader.newest(10)] == [call_id(2), call_id(1)]
    assert [state.call for state in await reader.newest(1)] == [call_id(2)]
    assert [state.call for state in await reader.newest(9, Key("key-1"))] == [call_id(1)]
    assert [recorded.seq for recorded in await reader.events(call_id(2))] == [6, 7, 8]
    assert await reader.call(call_id(9)) is None
    head = await reader.head()
    assert head is not None
    assert head.seq == EVENTS
    assert isinstance((await reader.ledger_events())[0].event, EpochOpened)
    assert await reader.integrity() == "ok"
    chain = NO_CHAIN
    async for record, link, call in reader.all_events():
        chain = chained(chain, record.encode())
        assert (chain, orjson.loads(record)["call"]) == (link, call)
    assert chain == head.chain


def bytes_of(root: Path) -> dict[str, str]:
    """Digest of each file that holds events; the shm is SQLite's scratch."""
    return {name: digest_of((root / name).read_bytes()) for name in ("ledger.db", "ledger.db-wal")}


async def test_reader_beside_a_living_writer_sees_what_is_committed(tmp_path: Path) -> None:
    """Another process writes and still holds its connection; nothing of its files changes by reading."""
    state_dir_in(tmp_path)
    with child(tmp_path, *COMMANDS, "wait") as owner:
        assert owner.stdout is not None
        for _ in COMMANDS:
            owner.stdout.readline()
        before = bytes_of(tmp_path)
        async with open_reader(tmp_path / "ledger.db") as reader:
            await read_everything(reader)
        assert bytes_of(tmp_path) == before
        assert owner.poll() is None
        owner.kill()


async def test_reader_after_a_killed_writer_leaves_the_wal(tmp_path: Path) -> None:
    """A plain connection would fold the WAL into the file and delete it; the reader changes no byte, again and again."""
    state_dir_in(tmp_path)
    assert run_child(tmp_path, *COMMANDS, "die").code == -signal.SIGKILL
    before = bytes_of(tmp_path)
    for _ in range(2):
        async with open_reader(tmp_path / "ledger.db") as reader:
            await read_everything(reader)
        assert bytes_of(tmp_path) == before
    with started(state_dir_in(tmp_path)) as recovered:
        assert recovered.epoch == 2


async def test_reader_after_a_clean_end_reads_without_a_wal(tmp_path: Path) -> None:
    """The writer folded and removed the WAL; the file alone tells everything."""
    state_dir_in(tmp_path)
    assert run_child(tmp_path, *COMMANDS, "close").code == 0
    before = (tmp_path / "ledger.db").read_bytes()
    async with open_reader(tmp_path / "ledger.db") as reader:
        await read_everything(reader)
    assert (tmp_path / "ledger.db").read_bytes() == before


async def test_reader_cannot_write(tmp_path: Path) -> None:
    """SQLite itself refuses."""
    with started(state_dir_in(tmp_path)):
        async with open_reader(tmp_path / "ledger.db") as reader:
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                await reader._db.execute("INSERT INTO meta VALUES('a', 'b')")


@pytest.mark.parametrize("name", ["a b", "hash#mark", "question?", "per%41cent"])
async def test_reader_opens_any_path(name: str, tmp_path: Path) -> None:
    """The path becomes a URI; characters with a meaning there must not change the file."""
    with started(state_dir_in(tmp_path / name)):
        async with open_reader(tmp_path / name / "ledger.db") as reader:
            assert await reader.counts() == (0, 1)


async def test_missing_ledger_is_named_and_not_created(tmp_path: Path) -> None:
    """A mistyped --state-dir must not become an empty ledger."""
    with pytest.raises(StateDirError, match="There is no ledger"):
        async with open_reader(tmp_path / "ledger.db"):
            pass
    assert list(tmp_path.iterdir()) == []
