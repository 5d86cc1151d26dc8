"""What any store of the ledger owes: append-only, all or nothing, foreign files refused, indexes computed from events."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from ledger import queries
from ledger.bodies import pack
from ledger.codec import chained, encode
from ledger.errors import ConflictError, IllegalTransitionError, StateDirError, UnreadableRecordError
from ledger.events import AttemptStarted, CallDelivered, PassServed
from ledger.ids import CallId, Key
from ledger.ladder import NEXT, Evidence
from ledger.operations import Append, Entry, Expect
from ledger.queries import rebuild_index
from ledger.sqlite import PRAGMAS, Store
from tests.harness.ledgers import (
    FIRST,
    KEY,
    MANIFEST,
    NOW_MS,
    PATHS,
    REQUESTED,
    RUN,
    RUN_SCOPE,
    SCOPE,
    Ledger,
    call_id,
    claim_op,
    continuing,
    ledger_in,
    witnessed,
)

FULL = 2  # sqlite.org/pragma.html#pragma_synchronous
FORBIDDEN = [
    "UPDATE event SET record = '{}'",
    "UPDATE event SET seq = seq + 1",
    "UPDATE event SET call_id = NULL WHERE seq = 2",
    "DELETE FROM event",
    "DELETE FROM event WHERE seq = 1",
    "UPDATE chunk SET frame = x'00'",
    "UPDATE body SET size = 0",
    "UPDATE body SET chunks = x''",
]


def filled(ledger: Ledger) -> None:
    ledger.claim()
    ledger.append(Entry(FIRST, None, MANIFEST), bodies=(pack(b"a body"),))


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_changing_what_is_recorded_is_aborted(statement: str, tmp_path: Path) -> None:
    """Also for somebody with a connection of his own."""
    with ledger_in(tmp_path) as ledger:
        filled(ledger)
        before = ledger.snapshot()
        other = sqlite3.connect(ledger.path)
        with pytest.raises(sqlite3.IntegrityError, match="only added"):
            other.execute(statement)
        other.close()
        assert ledger.snapshot() == before


def test_every_append_is_committed_with_full_durability(tmp_path: Path) -> None:
    """The pragmas hold on the very connection that writes; the file is WAL for everybody."""
    with ledger_in(tmp_path) as ledger:
        held = {name: ledger.store._db.execute(f"PRAGMA {name}").fetchone()[0] for name, _ in PRAGMAS}
        assert (held["journal_mode"], held["synchronous"], held["wal_autocheckpoint"]) == ("wal", FULL, 0)
        assert held == dict(PRAGMAS)
        assert ledger.path.stat().st_mode & 0o777 == 0o600


def test_two_appends_on_one_head_give_one_winner(tmp_path: Path) -> None:
    """The second one read a head that is no longer the newest of its key."""
    with ledger_in(tmp_path) as ledger:
        ledger.apply(claim_op())
        before = ledger.snapshot()
        with pytest.raises(ConflictError):
            ledger.apply(claim_op(call_id(2)))
        assert ledger.snapshot() == before
        ledger.apply(claim_op(call_id(3), replace(REQUESTED, key=Key("another"))))


def test_illegal_entry_takes_the_whole_operation_with_it(tmp_path: Path) -> None:
    """Legal entries and bodies of the same operation are not written either."""
    with ledger_in(tmp_path) as ledger:
        ledger.claim()
        before = ledger.snapshot()
        entries = (Entry(FIRST, None, MANIFEST), Entry(FIRST, 2, AttemptStarted(1)))
        with pytest.raises((ConflictError, IllegalTransitionError)):
            ledger.append(*entries, bodies=(pack(b"of the illegal one"),))
        assert ledger.snapshot() == before


def test_failing_operation_leaves_its_batch_alone(tmp_path: Path) -> None:
    """One transaction, three operations, the middle one illegal: the others are recorded without a gap."""
    with ledger_in(tmp_path) as ledger:
        store, head = ledger.store, ledger.store.head.seq
        store.begin()
        first = store.append(claim_op(), NOW_MS)
        with pytest.raises(IllegalTransitionError):
            store.append(Append((Entry(FIRST, None, MANIFEST), Entry(FIRST, None, MANIFEST))), NOW_MS)
        second = store.append(Append((Entry(FIRST, 1, AttemptStarted(1)),)), NOW_MS)
        store.commit()
        written = [recorded.seq for done in (first, second) for recorded in done.recorded]
        assert written == [head + 1, head + 2, head + 3]
        ledger.reopen()
        assert [recorded.seq for recorded in ledger.events()] == list(range(1, head + 4))
        state = ledger.store.state(FIRST)
        assert state == second.state
        assert state is not None
        assert state.evidence is Evidence.STARTED


def test_rebuilt_index_is_the_same(tmp_path: Path) -> None:
    """With superseded calls, several keys, every evidence, and a run whose second start was given some of it."""
    with ledger_in(tmp_path, RUN_SCOPE) as ledger:
        ledger.open_pass()
        for number, evidence in enumerate(Evidence):
            if evidence is Evidence.NOTHING:
                continue
            call, key = call_id(number + 1), Key(f"key {number}")
            for name in PATHS[evidence]:
                if name in {"call.requested", "attempt.witnessed"}:
                    _open(ledger, name, call, key)
                else:
                    ledger.step(name, call)
            state = ledger.store.state(call)
            assert state is not None
            if evidence in {Evidence.MANIFEST, Evidence.NOT_SENT}:
                ledger.claim(call_id(number + 101), replace(continuing(call), key=key, scope=RUN_SCOPE))
            if "pass.served" in NEXT[evidence] and number % 2:
                ledger.open_pass()
                ledger.append(Entry(call, None, PassServed(RUN, ledger.newest_pass(), "replayed")))
        before = ledger.snapshot()
        given = {(row[11], row[12] is not None, row[13]) for row in ledger.index()}  # run, served or not, unresolved
        assert given == {(RUN, served, unresolved) for served in (False, True) for unresolved in (0, 1)}
        assert [row[1] for row in ledger.passes()] == list(range(1, ledger.newest_pass() + 1))
        flags = [(row[7:10], row[0]) for row in ledger.index()]
        assert {flag for flag, _ in flags} >= {(1, 0, 0), (0, 0, 0), (1, 1, 0), (1, 0, 1)}
        rebuild_index(ledger.store._db)
        assert ledger.snapshot() == before


def _open(ledger: Ledger, name: str, call: CallId, key: Key) -> None:
    if name == "call.requested":
        ledger.claim(call, replace(REQUESTED, key=key, scope=ledger.scope))
    else:
        ledger.append(Entry(call, 1, witnessed(key=key, scope=ledger.scope)))


def test_in_flight_call_is_found_by_the_epoch_of_its_attempt(tmp_path: Path) -> None:
    """A start looks at what the last epoch started, whenever the call was requested."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest")
        ledger.append(Entry(FIRST, 1, AttemptStarted(2)))
        assert [state.call for state in ledger.store.in_flight(2)] == [FIRST]
        assert ledger.store.in_flight(1) == ()


def test_unfinished_calls_are_those_the_proxy_can_finish(tmp_path: Path) -> None:
    """Observed, interpreted, decided, attempt completed: no provider is needed."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest", "attempt.started")
        found = [bool(ledger.store.unfinished())]
        for name in ("attempt.observed:response", "attempt.interpreted", "attempt.retry_decided", "attempt.completed"):
            ledger.step(name)
            found.append(bool(ledger.store.unfinished()))
        ledger.step("call.completed")
        assert [*found, bool(ledger.store.unfinished())] == [False, True, True, True, True, False]


def test_more_calls_than_the_cache_holds_stay_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that was dropped from the cache is read again, with what superseded it."""
    monkeypatch.setattr("ledger.sqlite.STATES_CACHED", 2)
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest")
        ledger.claim(call_id(2), continuing(FIRST))
        for number in range(3, 9):
            ledger.claim(call_id(number), replace(REQUESTED, key=Key(f"key {number}")))
        with pytest.raises(ConflictError, match="continued by"):
            ledger.append(Entry(FIRST, 1, AttemptStarted(1)))


def test_unfinished_creation_is_completed(tmp_path: Path) -> None:
    """A crash between the file and its schema leaves an empty file: it becomes the ledger."""
    (tmp_path / "ledger.db").touch()
    with ledger_in(tmp_path) as ledger:
        assert ledger.store.meta("ledger_id") == "ledger"
        assert ledger.store.key_head(SCOPE, KEY) is None


@pytest.mark.parametrize("pragma", ["application_id = 7", "user_version = 2", "user_version = 0"])
def test_other_format_is_refused(pragma: str, tmp_path: Path) -> None:
    """Another program's database and another version's ledger are refused with the remedy."""
    with ledger_in(tmp_path) as ledger:
        ledger.store._db.execute(f"PRAGMA {pragma}")
    with pytest.raises(StateDirError, match=r"state-dir|version"):
        Store.open(tmp_path / "ledger.db", "ledger")


def test_foreign_database_is_refused_untouched(tmp_path: Path) -> None:
    """Not even its journal mode changes."""
    path = tmp_path / "ledger.db"
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE cookies(name TEXT)")
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(StateDirError, match="another program"):
        Store.open(path, "ledger")
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be read" * 50, b"\0" * 4096])
def test_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    """A file that SQLite cannot read is an operator's to restore, not a stack trace."""
    (tmp_path / "ledger.db").write_bytes(content)
    with pytest.raises(StateDirError):
        Store.open(tmp_path / "ledger.db", "ledger")


def test_expected_head_of_another_key_does_not_move(tmp_path: Path) -> None:
    """Heads are per scope and key: other keys' events are no conflict."""
    with ledger_in(tmp_path) as ledger:
        ledger.claim()
        head = ledger.store.key_head(SCOPE, KEY)
        ledger.claim(call_id(2), replace(REQUESTED, key=Key("another")))
        assert ledger.store.key_head(SCOPE, KEY) == head
        ledger.append(Entry(FIRST, None, MANIFEST), expects=(Expect(SCOPE, KEY, head),))


@pytest.mark.parametrize("change", ["UPDATE call_index SET last_seq = last_seq + 1", "DELETE FROM event"])
def test_call_whose_events_are_hidden_is_unreadable_not_absent(change: str, tmp_path: Path) -> None:
    """As a flipped bit in SQLite's index of events hides them: what lacks its attempt must not read as never sent."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest", "attempt.started")
        ledger.store._db.execute("DROP TRIGGER event_is_never_deleted")
        ledger.store._db.execute(change)
        ledger.store._states.clear()
        with pytest.raises(UnreadableRecordError):
            ledger.store.state(FIRST)


# What takes today's indexes back to those of an earlier version.
BEFORE_RUNS = (
    *(f"DROP INDEX {name}" for name in ("call_of_run", "call_of_pass", "call_open_in_pass", "call_unresolved")),
    *(f"ALTER TABLE call_index DROP COLUMN {name}" for name in ("is_unresolved", "served_pass", "run")),
    "DROP TABLE pass_index",
)
BEFORE_LINEAGES = (*BEFORE_RUNS, "DROP INDEX call_by_lineage", "ALTER TABLE call_index DROP COLUMN lineage")


@pytest.mark.parametrize("changes", [BEFORE_LINEAGES, BEFORE_RUNS, ("DROP TABLE pass_index",)])
def test_index_of_an_earlier_version_is_computed_anew(changes: tuple[str, ...], tmp_path: Path) -> None:
    """It is derived: a ledger that was written before a column or a table of it existed opens, with the same rows as if it had always been there."""
    with ledger_in(tmp_path) as ledger:
        ledger.open_pass()
        ledger.claim(FIRST, replace(REQUESTED, lineage="a turn", scope=RUN_SCOPE))
        ledger.append(Entry(FIRST, None, MANIFEST), Entry(FIRST, None, PassServed(RUN, 1, "forwarded")))
        ledger.claim(call_id(2))
        before = ledger.index(), ledger.passes()
        for change in changes:
            ledger.store._db.execute(change)
    with ledger_in(tmp_path) as ledger:
        assert (ledger.index(), ledger.passes()) == before
        assert ledger.store._db.execute(queries.SCHEMA).fetchall() == queries.schema()


def test_delivery_from_before_runs_is_read(tmp_path: Path) -> None:
    """It lacks its pass, for there was none: the call is delivered as it always was, and stays readable byte for byte."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk(*PATHS[Evidence.COMPLETED])
        head, db = ledger.store.head, ledger.store._db
        record = encode(head.seq + 1, NOW_MS, FIRST, None, CallDelivered("fin", "forwarded"))
        earlier = record.replace(b',"pass_number":null', b"")
        assert earlier != record
        row = (head.seq + 1, earlier.decode(), chained(head.chain, earlier), FIRST)
        db.execute("INSERT INTO event(seq, record, chain, call_id) VALUES(?, ?, ?, ?)", row)
        for change in BEFORE_RUNS:
            db.execute(change)
    with ledger_in(tmp_path) as ledger:
        state = ledger.store.state(FIRST)
        assert state is not None
        assert (state.deliveries, state.served_pass, state.fault) == (("fin",), None, None)
        assert ledger.events()[-1].event == CallDelivered("fin", "forwarded", None)


def test_ledger_without_a_trigger_is_refused(tmp_path: Path) -> None:
    """Nothing else keeps its events from being changed."""
    with ledger_in(tmp_path) as ledger:
        ledger.store._db.execute("DROP TRIGGER event_is_never_updated")
    with pytest.raises(StateDirError, match="other tables, indexes or triggers"):
        Store.open(tmp_path / "ledger.db", "ledger")
