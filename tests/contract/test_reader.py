"""Reading beside the writer and after its death: it appends nothing, and it leaves the files as they are."""

import signal
import sqlite3
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from ledger import queries
from ledger.calls import CallState
from ledger.codec import chained, digest_of
from ledger.errors import StateDirError
from ledger.events import AttemptInterpreted, CallDelivered, EpochOpened, PassOpened, PassServed
from ledger.ids import NO_CHAIN, CallId, Key
from ledger.ladder import Evidence
from ledger.operations import Entry
from ledger.reader import Reader, open_reader
from ledger.stages import Effect
from tests.harness.ledgers import (
    DIGEST,
    KEY,
    MANIFEST,
    NOW_MS,
    REQUESTED,
    RUN,
    RUN_SCOPE,
    SCOPE,
    Ledger,
    call_id,
    child,
    ledger_in,
    run_child,
    started,
    state_dir_in,
)

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


# --- runs ------------------------------------------------------------------------------------------------------------


ANSWERED = ("attempt.started", "attempt.observed:response")
HAPPENED = AttemptInterpreted(1, "read", Effect.HAPPENED)
COMPLETED = ("attempt.retry_decided", "attempt.completed", "call.completed")


def ran(ledger: Ledger, number: int, *steps: str, occurrence: int = 1, key: Key = KEY, **changes: object) -> CallId:
    """A call of the run, claimed for its newest pass."""
    call, evidence = call_id(number), {"socket": "open"}
    event = replace(REQUESTED, scope=RUN_SCOPE, key=key, occurrence=occurrence, evidence=evidence, **changes)  # type: ignore[arg-type]
    given = PassServed(RUN, ledger.newest_pass(), "forwarded")
    ledger.claim(call, event, Entry(call, None, MANIFEST), Entry(call, None, given))
    for step in steps:
        ledger.step(step, call)
    return call


def delivered(ledger: Ledger, call: CallId, number: int) -> CallId:
    """Served well, to the client of this pass."""
    ledger.append(Entry(call, 1, HAPPENED))
    ledger.walk(*COMPLETED, call=call)
    ledger.append(Entry(call, None, CallDelivered("fin", "forwarded", number)))
    return call


async def position(ledger: Ledger, number: int, key: Key = KEY) -> tuple[list[int], int, int]:
    """The occurrences that a request of this pass sees, the key's last one, and how many the pass was given."""
    async with open_reader(ledger.path) as reader:
        history = await reader.history_in_pass(RUN_SCOPE, key, number)
        assert (history.head is None) is (history.calls == ())
        assert history.head == ledger.store.key_head(RUN_SCOPE, key)
    return sorted({state.occurrence for state in history.calls}), history.last_occurrence, history.position


async def test_history_in_pass_has_what_it_was_given_and_what_comes_next(tmp_path: Path) -> None:
    """Twelve answers of an earlier pass are not twelve: each request of the new one meets the next of them."""
    with ledger_in(tmp_path) as ledger:
        ledger.open_pass()
        assert await position(ledger, 1) == ([], 0, 0)
        for number in range(1, 13):
            delivered(ledger, ran(ledger, number, *ANSWERED, occurrence=number), 1)
        assert await position(ledger, 1) == (list(range(5, 13)), 12, 12)
        ledger.open_pass()
        assert await position(ledger, 2) == ([1, 12], 12, 0)  # the newest stands there for the head
        for given in (1, 2):
            ledger.append(Entry(call_id(given), None, PassServed(RUN, 2, "replayed")))
        assert await position(ledger, 2) == ([1, 2, 3], 12, 2)
        ledger.append(Entry(call_id(1), None, CallDelivered("fin", "replayed", 2)))
        assert await position(ledger, 2) == ([1, 2, 3], 12, 2)
        assert await position(ledger, 2, Key("another")) == ([], 0, 0)


async def test_history_in_pass_keeps_what_is_open_however_old(tmp_path: Path) -> None:
    """Among the newest finished ones stands the one whose answer this pass has not got."""
    with ledger_in(tmp_path) as ledger:
        ledger.open_pass()
        ran(ledger, 1, "attempt.started")
        for number in range(2, 13):
            delivered(ledger, ran(ledger, number, *ANSWERED, occurrence=number), 1)
        assert await position(ledger, 1) == ([1, *range(5, 13)], 12, 12)


async def test_unresolved_of_run_are_those_nobody_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this run, the newest generation only, oldest first; corrupt records would stand there too."""
    with ledger_in(tmp_path) as ledger:
        ledger.open_pass()
        lost = ran(ledger, 1, "attempt.started", "attempt.observed:lost", key=Key("lost"))
        delivered(ledger, ran(ledger, 2, *ANSWERED, key=Key("good")), 1)
        parked = ran(ledger, 3, "attempt.started", key=Key("parked"))
        continued = ran(ledger, 4, "attempt.started", key=Key("continued"))
        started_twice = ledger.supersede(one_of(ledger, continued))
        ledger.walk("call.manifest", "attempt.started", call=started_twice)
        ledger.walk("call.requested", "call.manifest", "attempt.started", call=call_id(6))  # of no run
        async with open_reader(ledger.path) as reader:
            assert await unresolved(reader, RUN) == sorted([lost, parked, started_twice])
            assert await unresolved(reader, "weekly") == []
            assert await unresolved(reader, RUN, before_pass=1) == [started_twice]  # it was given to none
            monkeypatch.setattr(queries, "UNRESOLVED_RUN_CALLS", 1)
            assert await unresolved(reader, RUN) == sorted([lost, parked, started_twice])
        ledger.step("reconcile.decided:parked", parked)
        ledger.step("reconcile.decided:not_served", lost)
        async with open_reader(ledger.path) as reader:
            assert await unresolved(reader, RUN) == sorted([parked, started_twice])  # set aside is not decided


async def unresolved(reader: Reader, run: str, before_pass: int = 2) -> list[CallId]:
    return [state.call async for state in reader.unresolved_of_run(run, before_pass)]


def one_of(ledger: Ledger, call: CallId) -> CallState:
    state = ledger.store.state(call)
    assert state is not None
    return state


async def test_runs_are_listed_newest_first_with_their_counts(tmp_path: Path) -> None:
    """Passes, calls, unresolved ones, and when the newest pass was opened; a run without calls is one too."""
    with ledger_in(tmp_path) as ledger:
        ledger.append(Entry(None, None, PassOpened("weekly", 1, DIGEST, "continue", 0, NO_CHAIN, {"unresolved": 2})))
        ledger.open_pass()
        ledger.open_pass()
        ran(ledger, 1, "attempt.started", key=Key("lost"))
        delivered(ledger, ran(ledger, 2, *ANSWERED, key=Key("good")), 2)
        ledger.walk("call.requested", "call.manifest", call=call_id(3))  # of no run
        async with open_reader(ledger.path) as reader:
            assert await reader.runs(10) == [(RUN, 2, 2, 1, NOW_MS), ("weekly", 1, 0, 0, NOW_MS)]
            assert await reader.runs(1) == [(RUN, 2, 2, 1, NOW_MS)]
            assert [(at_ms, opened.number) for at_ms, opened in await reader.passes(RUN)] == [(NOW_MS, 1), (NOW_MS, 2)]
            newest, weekly = await reader.newest_pass(RUN), await reader.newest_pass("weekly")
            assert newest is not None
            assert weekly is not None
            assert (newest.number, weekly.on_divergence, dict(weekly.gates)) == (2, "continue", {"unresolved": 2})
            assert await reader.newest_pass("none") is None
            calls = await reader.calls_of_run(RUN)
            assert [(state.call, len(events)) for state, events in calls] == [(call_id(1), 4), (call_id(2), 10)]
            rows = [row async for row in reader.pass_rows()]
        assert [tuple(row.values()) for row in rows] == ledger.passes()


async def test_jobs_of_run_are_those_that_go_on_at_the_provider(tmp_path: Path) -> None:
    """By the class of their endpoint, not by a word in a prompt."""
    with ledger_in(tmp_path) as ledger:
        ledger.open_pass()
        job = ran(ledger, 1, *ANSWERED, key=Key("job"), endpoint_class="job")
        ran(ledger, 2, *ANSWERED, key=Key('"endpoint_class":"job"'))
        async with open_reader(ledger.path) as reader:
            assert [state.call for state in await reader.jobs_of_run(RUN)] == [job]
            assert await reader.jobs_of_run("weekly") == []


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


@pytest.mark.parametrize("page_calls", [1, 2, 3, 50])
async def test_every_call_comes_once_and_oldest_first_whatever_the_page(tmp_path: Path, page_calls: int) -> None:
    """With what its occurrence's other generations say of it, on whichever page those stand."""
    with ledger_in(tmp_path) as ledger:
        for number in range(1, 8):
            occurrence = replace(REQUESTED, occurrence=number, evidence={"socket": "open"})
            ledger.claim(call_id(number), occurrence)
        state = ledger.store.state(call_id(2))
        assert state is not None
        successor = ledger.supersede(state)
        async with open_reader(ledger.path) as reader:
            pages = [page async for page in reader.oldest_first(page_calls)]
    calls = [state for page in pages for state in page]
    assert [state.call for state in calls] == [*(call_id(number) for number in range(1, 8)), successor]
    assert {len(page) for page in pages[:-1]} <= {page_calls}
    assert [state.superseded_by for state in calls if state.superseded_by] == [successor]
