"""The store: one SQLite connection that writes, owned by whoever holds the state dir's lock.

An operation is data (`Append`). `Store.append` first decides, against the state it may change, whether the operation is
legal and not outrun; only then does it insert. So an operation that raises has changed nothing, and operations of one
group commit cannot spoil each other: what remains to fail is the disk, and that poisons the process.
"""

import os
import sqlite3
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from ledger import queries, retention
from ledger.calls import CallState
from ledger.claims import claim_fault
from ledger.codec import chained, decode, encode
from ledger.errors import (
    ClaimLostError,
    ConflictError,
    IllegalTransitionError,
    PassClosedError,
    StateDirError,
    UnrecordableEventError,
)
from ledger.events import AttemptStarted, CallRequested, EpochClosed, EpochOpened, PassOpened, PassServed, Recorded
from ledger.ids import NO_CHAIN, CallId, Digest, Head, Key, Scope
from ledger.operations import Append, Appended, Entry, Stage
from ledger.projection import fold
from ledger.stages import Effect

RECORD_LIMIT_BYTES: Final = 1024 * 1024  # an event names bodies and holds none; heads are bounded at the sockets
STATES_CACHED: Final = 4096  # calls; a state is a few hundred bytes, and only calls in flight are written often
# Set and read back: a pragma that SQLite ignores must not pass for one that holds (research/reliability.md section 1).
PRAGMAS: Final = (
    ("journal_mode", "wal"),
    ("synchronous", 2),  # FULL: a commit is durable when COMMIT returns
    ("wal_autocheckpoint", 0),  # the writer checkpoints by itself, between batches
    ("mmap_size", 0),  # written bytes stay visible to the syscall trace that proves the order
    ("foreign_keys", 1),
    ("trusted_schema", 0),
    ("cell_size_check", 1),
    ("temp_store", 2),
    ("secure_delete", 1),  # what is erased is overwritten, not only unlinked
)


def _prepare(db: sqlite3.Connection, new_ledger_id: str, path: Path) -> None:
    try:  # before the pragmas: journal_mode would change another program's file
        queries.create_or_check(db, new_ledger_id, str(path))
    except (
        sqlite3.DatabaseError,
        UnicodeDecodeError,
    ) as error:  # the latter: of a message that quotes a damaged schema
        raise StateDirError(
            f"{path} cannot be read as a ledger ({error}). Stop what holds it, or restore it."
        ) from error
    for name, wanted in PRAGMAS:
        got = db.execute(f"PRAGMA {name}={wanted}").fetchone() or db.execute(f"PRAGMA {name}").fetchone()
        if got[0] != wanted:
            raise StateDirError(
                f"SQLite answers {got[0]!r} to PRAGMA {name}={wanted!r}: {path} cannot be written durably."
            )


class Store:
    """Not thread-safe: opened by one thread, then handed to the writer's."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._states: OrderedDict[CallId, CallState] = OrderedDict()
        self.epochs = queries.epochs_of(queries.ledger_events(db))
        row = db.execute(queries.NEWEST_EVENT).fetchone()
        self.head = Head(row[0], Digest(row[1])) if row else Head(0, NO_CHAIN)

    @classmethod
    def open(cls, path: Path, new_ledger_id: str) -> "Store":
        """Creates the ledger if there is none. Raises StateDirError for a foreign or newer file."""
        if not path.exists():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        db.text_factory = queries.text_of
        try:
            _prepare(db, new_ledger_id, path)
            return cls(db)
        except BaseException:
            db.close()
            raise

    # --- transactions: the writer's --------------------------------------------------------------------------------

    def begin(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Durable when it returns. If it raises, the outcome is unknown: never go on with this store."""
        self._db.execute("COMMIT")

    def checkpoint(self, mode: Literal["PASSIVE", "TRUNCATE"]) -> None:
        self._db.execute(f"PRAGMA wal_checkpoint({mode})")

    def close(self) -> None:
        self._db.close()

    # --- appending -------------------------------------------------------------------------------------------------

    def append(self, op: Append, at_ms: int) -> Appended:
        """Inside a transaction. Raises ConflictError, ClaimLostError or IllegalTransitionError before anything is written."""
        if any(self.key_head(expect.scope, expect.key) != expect.head for expect in op.expects):
            raise ConflictError("another append to this key was first")
        recorded, states = self._decide(op, at_ms)
        named = retention.named_since(self._db, op.erasure.counted_through) if op.erasure else frozenset()
        for packed in op.bodies:
            queries.keep_body(self._db, packed)
        for item in recorded:
            self._insert(item)
        for state in states.values():
            self._index(state)
        erased = retention.erase(self._db, op.erasure, named) if op.erasure else None
        last = op.entries[-1].call if op.entries else None
        return Appended(tuple(item for item, _ in recorded), states.get(last) if last else None, op.receipt, erased)

    def stage(self, op: Stage) -> None:
        """Inside a transaction."""
        queries.keep_chunks(self._db, op.chunks)

    def _decide(self, op: Append, at_ms: int) -> tuple[list[tuple[Recorded, bytes]], dict[CallId, CallState]]:
        head = self.head
        recorded: list[tuple[Recorded, bytes]] = []
        states: dict[CallId, CallState] = {}
        for entry in op.entries:
            seq = head.seq + 1
            record = encode(seq, at_ms, entry.call, entry.attempt, entry.event)
            if len(record) > RECORD_LIMIT_BYTES:
                raise UnrecordableEventError(
                    f"{entry.event.kind} would take {len(record)} bytes; the limit is {RECORD_LIMIT_BYTES}"
                )
            head = Head(seq, chained(head.chain, record))
            item = Recorded(seq, head.chain, at_ms, entry.call, entry.attempt, entry.event)
            recorded.append((item, record))
            state = (states.get(entry.call) or self.state(entry.call)) if entry.call is not None else None
            self._check_pass(entry, state)
            if entry.call is not None:
                states[entry.call] = folded = self._fold(state, item, op, states)
                if state is None and (earlier := self._generation_before(folded, states)) is not None:
                    states[earlier.call] = replace(earlier, superseded_by=folded.call)
        return recorded, states

    def _fold(self, state: CallState | None, item: Recorded, op: Append, states: dict[CallId, CallState]) -> CallState:
        event = item.event
        if isinstance(event, CallRequested):
            self._check_claim(event, op, states)
        if isinstance(event, AttemptStarted) and state is not None:
            if state.superseded_by is not None:
                raise ClaimLostError(f"{item.call} was continued by {state.superseded_by}")
            if state.effect is not Effect.ABSENT:
                raise ClaimLostError(f"{item.call} is {state.stage}: its effect is {state.effect}")
            if state.run and state.served_pass and state.served_pass != self._newest_pass(state.run):
                raise PassClosedError(f"pass {state.served_pass} of the run {state.run} is closed")
        try:
            return fold(state, item, self.epochs)
        except IllegalTransitionError as fault:
            if isinstance(event, AttemptStarted):
                raise ClaimLostError(str(fault)) from fault
            raise

    def _check_claim(self, event: CallRequested, op: Append, states: dict[CallId, CallState]) -> None:
        if not any((expect.scope, expect.key) == (event.scope, event.key) for expect in op.expects):
            raise IllegalTransitionError(
                "call.requested is a claim: it must name the head of its key that it relies on"
            )
        earlier = (states.get(event.continues) or self.state(event.continues)) if event.continues else None
        (last,) = self._db.execute(queries.LAST_OCCURRENCE, (event.scope, event.key)).fetchone()
        beside = (state.occurrence for state in states.values() if (state.scope, state.key) == (event.scope, event.key))
        if (fault := claim_fault(event, earlier, max(last, *beside, 0))) is not None:
            raise IllegalTransitionError(fault)

    def _check_pass(self, entry: Entry, state: CallState | None) -> None:
        """A pass follows the one before, and gives nothing once another was opened: ConflictError. It gives its run's own calls."""
        match entry.event:
            case PassOpened(run=run, number=number) if number != self._newest_pass(run) + 1:
                raise ConflictError(f"another start of the run {run} was first")
            case PassServed(run=run, number=number) if number != self._newest_pass(run):
                raise ConflictError(f"pass {number} of the run {run} is not its newest")
            case PassServed(run=run) if state is not None and state.run != run:
                raise IllegalTransitionError(f"{entry.call} is no call of the run {run}")
            case _:
                return

    def _newest_pass(self, run: str) -> int:
        (number,) = self._db.execute(queries.NEWEST_PASS_NUMBER, (run,)).fetchone()
        return int(number)

    def _generation_before(self, opened: CallState, states: dict[CallId, CallState]) -> CallState | None:
        """What a new call supersedes: the newest earlier generation of its occurrence, in this operation or recorded."""
        if opened.generation == 1:
            return None
        row = self._db.execute(queries.GENERATION_BEFORE, (*opened.occurrence_id, opened.generation)).fetchone()
        found = [states.get(row[0]) or self.state(row[0])] if row else []
        earlier = [
            state
            for state in (*found, *states.values())
            if state is not None
            and state.occurrence_id == opened.occurrence_id
            and state.generation < opened.generation
        ]
        return max(earlier, key=lambda state: state.generation, default=None)

    def _insert(self, item: tuple[Recorded, bytes]) -> None:
        recorded, record = item
        self._db.execute(
            "INSERT INTO event(seq, record, chain, call_id) VALUES(?, ?, ?, ?)",
            (recorded.seq, record.decode(), recorded.chain, recorded.call),
        )
        self.head = Head(recorded.seq, recorded.chain)
        event = recorded.event
        if isinstance(event, EpochOpened):
            self.epochs[event.epoch] = event.protocol
        if isinstance(event, PassOpened):
            self._db.execute(queries.WRITE_PASS, (event.run, event.number, recorded.seq))

    # --- states and the index over them ----------------------------------------------------------------------------

    def state(self, call: CallId) -> CallState | None:
        """The call's state from its events, and those of its occurrence's other generations."""
        if call in self._states:
            self._states.move_to_end(call)
            return self._states[call]
        return queries.state_of(self._db, call, self.epochs)

    def key_head(self, scope: Scope, key: Key) -> Head | None:
        row = self._db.execute(queries.KEY_HEAD, (scope, key)).fetchone()
        return Head(row[0], Digest(row[1])) if row else None

    def in_flight(self, epoch: int) -> tuple[CallState, ...]:
        """The calls whose attempt this epoch left without an observation."""
        return self._states_of(self._db.execute(queries.IN_FLIGHT_OF_EPOCH, (epoch,)).fetchall())

    def unfinished(self) -> tuple[CallState, ...]:
        """The calls that were observed and are not completed: no provider is needed for them."""
        return self._states_of(self._db.execute(queries.UNFINISHED_CALLS).fetchall())

    def _states_of(self, rows: list[tuple[str]]) -> tuple[CallState, ...]:
        return tuple(state for (call,) in rows if (state := self.state(CallId(call))) is not None)

    def last_epoch(self) -> EpochOpened | None:
        opened = [event for event in queries.ledger_events(self._db) if isinstance(event, EpochOpened)]
        return opened[-1] if opened else None

    def is_closed(self, epoch: int) -> bool:
        closed = (event for event in queries.ledger_events(self._db) if isinstance(event, EpochClosed))
        return any(event.epoch == epoch for event in closed)

    def event_at(self, seq: int) -> Recorded | None:
        events = queries.read_events(self._db.execute(queries.EVENT_AT, (seq,)))
        return events[0] if events else None

    def newest_starts(self, epoch: int) -> Iterator[tuple[CallId, int]]:
        """The attempts that this epoch started, newest first, read as they are asked for."""
        for record, chain in self._db.execute(queries.NEWEST_STARTS):
            started = decode(record, Digest(chain))
            if not isinstance(started.event, AttemptStarted):
                continue
            if started.event.epoch != epoch or started.call is None or started.attempt is None:
                return
            yield started.call, started.attempt

    def meta(self, name: str) -> str:
        return queries.meta_of(self._db.execute(queries.META, (name,)).fetchall(), name)

    def _index(self, state: CallState) -> None:
        self._states[state.call] = state
        self._states.move_to_end(state.call)
        while len(self._states) > STATES_CACHED:
            self._states.popitem(last=False)
        queries.write_index(self._db, state)
