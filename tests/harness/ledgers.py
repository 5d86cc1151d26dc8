"""Builders: events with plain values, a real ledger in a directory, and walks over the ladder's own table."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ledger import bodies, queries
from ledger.codec import digest_of
from ledger.epochs import Lock, StateDir
from ledger.errors import UnreadableRecordError
from ledger.events import (
    PROTOCOL,
    AttemptAcknowledged,
    AttemptCompleted,
    AttemptInterpreted,
    AttemptObserved,
    AttemptRetryDecided,
    AttemptStarted,
    AttemptWitnessed,
    Authority,
    Body,
    BodyErased,
    CallAbandoned,
    CallCompleted,
    CallDelivered,
    CallManifest,
    CallPreparationFailed,
    CallRequested,
    CallResumed,
    EpochOpened,
    Event,
    PassOpened,
    PassServed,
    ReconcileDecided,
    ReconcileObserved,
    Recorded,
)
from ledger.ids import NO_CHAIN, CallId, Digest, Key, Scope, attempt_id, new_call_id
from ledger.ladder import ATTEMPT_KINDS, NEXT, Evidence
from ledger.operations import Append, Appended, Entry, Expect, Receipt
from ledger.projection import CallState
from ledger.queries import ALL_EVENTS, read_events
from ledger.recovery import Acceptance, Fresh, Judge, Recovered, open_epoch
from ledger.spool import Judged
from ledger.sqlite import Store
from ledger.stages import Effect

ROOT: Final = Path(__file__).parents[2]
SCOPE, KEY = Scope("scope"), Key("key")
RUN: Final = "nightly"
RUN_SCOPE: Final = Scope(f"openai/caller/{RUN}")
NOW_MS: Final = 1_800_000_000_000
OPERATOR: Final = Authority("operator", "ada")
DIGEST: Final = digest_of(b"a body")


def call_id(number: int) -> CallId:
    return new_call_id(NOW_MS, number.to_bytes(8, "big"))


FIRST: Final = call_id(1)
REQUESTED: Final = CallRequested(
    SCOPE, KEY, "derived", 1, 1, 1, "openai", "generate", "openai_chat", "caller", "exact", "first"
)  # fmt: skip
MANIFEST: Final = CallManifest(
    "POST", "http://up/v1/x", (("Accept", "*/*"),), Body(DIGEST, 6), DIGEST, "m", stream=False, max_output_tokens=9
)  # fmt: skip
OPENED: Final = EpochOpened(1, PROTOCOL, "ledger", 1, None, "config", "check", "lineage", 1, NO_CHAIN)


def observed(observation: Any, source: Any = "live", status: int | None = 200) -> AttemptObserved:
    return AttemptObserved(observation, "end", source, status=status, body=Body(DIGEST, 6))


def decided(decision: Any, succeeds: int | None = None) -> ReconcileDecided:
    return ReconcileDecided(decision, OPERATOR, "looked", 1, NO_CHAIN, succeeds)


def witnessed(**changes: Any) -> AttemptWitnessed:
    return replace(AttemptWitnessed(SCOPE, KEY, "derived", 1, 1, "openai", "exact", DIGEST, 2), **changes)


def continuing(earlier: CallId, generation: int = 2, **changes: Any) -> CallRequested:
    return replace(REQUESTED, **{"generation": generation, "why_new": "resumed", "continues": earlier, **changes})


# Every name that the ladder's table uses -> an event of that name. Statuses are 500, so that nothing is proven by a head.
NAMED: Final[dict[str, Event]] = {
    "call.requested": REQUESTED,
    "call.preparation_failed": CallPreparationFailed("body_too_large", "The body is too large."),
    "call.manifest": MANIFEST,
    "call.resumed": CallResumed(FIRST, ("body",), (), 1, NO_CHAIN),
    "call.abandoned": CallAbandoned("client gone"),
    "call.delivered": CallDelivered("fin", "forwarded"),
    "pass.served": PassServed(RUN, 1, "replayed"),
    "call.completed": CallCompleted("error"),
    "attempt.started": AttemptStarted(1),
    "attempt.acknowledged": AttemptAcknowledged(500, (), {}),
    "attempt.observed:response": observed("response", status=500),
    "attempt.observed:partial": observed("partial", status=500),
    "attempt.observed:lost": observed("lost", status=None),
    "attempt.observed:not_sent": observed("not_sent", status=None),
    "attempt.observed:late": observed("response", "late", 500),
    "attempt.observed:recovered": observed("response", "recovered", 500),
    "attempt.interpreted": AttemptInterpreted(1, "error", Effect.UNKNOWN),
    "attempt.retry_decided": AttemptRetryDecided("stop", "rule"),
    "attempt.completed": AttemptCompleted(),
    "attempt.witnessed": witnessed(),
    "reconcile.observed": ReconcileObserved("log", "absent_inconclusive"),
    "reconcile.decided:served": decided("served"),
    "reconcile.decided:not_served": decided("not_served"),
    "reconcile.decided:accept_duplicate": decided("accept_duplicate"),
    "reconcile.decided:parked": decided("parked"),
    "body.erased": BodyErased(DIGEST, "response", "asked", "ada"),
}


def entry_for(name: str, call: CallId, state: CallState | None) -> Entry:
    """The named event as it would be written next: the right attempt number, the right decision to succeed."""
    event = NAMED[name]
    number = len(state.attempts) if state else 0
    if event.kind in {"attempt.started", "attempt.witnessed"}:
        number += 1
    if isinstance(event, ReconcileDecided):
        event = replace(event, succeeds=state.decision_seq if state else None)
    return Entry(call, number if event.kind in ATTEMPT_KINDS else None, event)


def paths() -> dict[Evidence, tuple[str, ...]]:
    """For each evidence a shortest walk from nothing, found in the table itself."""
    found: dict[Evidence, tuple[str, ...]] = {Evidence.NOTHING: ()}
    queue = [Evidence.NOTHING]
    while queue:
        evidence = queue.pop(0)
        for name, after in NEXT[evidence].items():
            if after is not None and after not in found:
                found[after] = (*found[evidence], name)
                queue.append(after)
    return found


PATHS: Final = paths()


@dataclass
class Ledger:
    """A store without an epoch's ceremony: epoch 1 is open, appends are committed one by one."""

    path: Path
    scope: Scope = SCOPE  # of the calls that `step` begins
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        self.store = Store.open(self.path, "ledger")
        if self.store.head.seq == 0:
            self.append(Entry(None, None, OPENED))

    def append(self, *entries: Entry, **options: Any) -> Appended:
        """One transaction. Like the writer, an operation that raises is committed as the nothing it wrote."""
        return self.apply(Append(entries, **options))

    def apply(self, op: Append) -> Appended:
        self.store.begin()
        try:
            return self.store.append(op, NOW_MS)
        finally:
            self.store.commit()

    def claim(self, call: CallId = FIRST, event: CallRequested = REQUESTED, *more: Entry) -> Appended:
        expect = Expect(event.scope, event.key, self.store.key_head(event.scope, event.key))
        return self.append(Entry(call, None, event), *more, expects=(expect,))

    def walk(self, *names: str, call: CallId = FIRST) -> CallState:
        for name in names:
            self.step(name, call)
        state = self.store.state(call)
        assert state is not None
        return state

    def step(self, name: str, call: CallId = FIRST) -> Appended:
        """An erasure that the table lists is made legal first, and so is a pass."""
        state = self.store.state(call)
        if name == "pass.served" and self.newest_pass() == 0:
            self.open_pass()
        if name == "body.erased" and state is not None and name in NEXT[state.evidence] and not state.is_erasable:
            self._make_erasable(state)
        entry = entry_for(name, call, self.store.state(call))
        if isinstance(entry.event, CallRequested):
            return self.claim(call, replace(entry.event, scope=self.scope))
        if isinstance(entry.event, AttemptWitnessed):
            entry = replace(entry, event=replace(entry.event, scope=self.scope))
        return self.append(entry)

    def _make_erasable(self, state: CallState) -> None:
        """By a later reading where the call is completed, else by a call that continues it."""
        if state.evidence is Evidence.COMPLETED:
            proven = replace(NAMED["attempt.interpreted"], effect=Effect.HAPPENED)
            self.append(Entry(state.call, len(state.attempts), proven))
        else:
            self.supersede(state)

    def newest_pass(self) -> int:
        return int(self.store._db.execute(queries.NEWEST_PASS_NUMBER, (RUN,)).fetchone()[0])

    def open_pass(self) -> Appended:
        head, number = self.store.head, self.newest_pass() + 1
        return self.append(Entry(None, None, PassOpened(RUN, number, DIGEST, "refuse", head.seq, head.chain, {})))

    def supersede(self, state: CallState) -> CallId:
        """A call that continues it, accepted where that is needed."""
        successor = new_call_id(NOW_MS + 1, state.generation.to_bytes(8, "big"))
        accepts = attempt_id(state.call, state.attempt.number) if state.attempt else None
        event = continuing(state.call, state.generation + 1, accepts_attempt=accepts, authority=OPERATOR)
        self.claim(successor, replace(event, occurrence=state.occurrence, scope=state.scope, key=state.key))
        return successor

    def events(self) -> list[Recorded]:
        return read_events(self.store._db.execute(ALL_EVENTS))

    def index(self) -> list[tuple[Any, ...]]:
        return self.store._db.execute("SELECT * FROM call_index ORDER BY call_id").fetchall()

    def passes(self) -> list[tuple[Any, ...]]:
        return self.store._db.execute("SELECT * FROM pass_index ORDER BY run, number").fetchall()

    def snapshot(self) -> tuple[Any, ...]:
        """All that an operation could change."""
        rows = self.store._db.execute("SELECT * FROM event ORDER BY seq").fetchall()
        kept = [self.store._db.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("chunk", "body")]
        return rows, self.index(), self.passes(), kept, self.store.head

    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.path, "ledger")


@contextmanager
def ledger_in(directory: Path, scope: Scope = SCOPE) -> Iterator[Ledger]:
    ledger = Ledger(directory / "ledger.db", scope)
    try:
        yield ledger
    finally:
        ledger.store.close()


# --- a whole state directory, as the proxy opens it ------------------------------------------------------------------


def state_dir_in(root: Path) -> StateDir:
    state_dir = StateDir(root, root / "receipts")
    state_dir.prepare()
    return state_dir


def undecided(_state: CallState, _head: dict[str, Any], _body: Path) -> Judged:
    """A judge for whom no salvaged response is whole."""
    return Judged(is_whole=False, is_kept=True)


def start(state_dir: StateDir, judge: Judge = undecided, acceptance: Acceptance | None = None) -> Recovered:
    """As the proxy starts; each start brings its own randomness."""
    fresh = Fresh(secrets.token_hex(8), secrets.token_hex(8), lambda: NOW_MS)
    return open_epoch(state_dir, fresh, "config", judge, acceptance)


def stop(recovered: Recovered) -> None:
    recovered.store.close()
    recovered.receipts.close()


@contextmanager
def started(state_dir: StateDir, *arguments: Any, **options: Any) -> Iterator[Recovered]:
    recovered = start(state_dir, *arguments, **options)
    try:
        yield recovered
    finally:
        stop(recovered)


@contextmanager
def locked(state_dir: StateDir) -> Iterator[Lock]:
    lock = state_dir.lock()
    try:
        yield lock
    finally:
        lock.release()


def claim_op(call: CallId = FIRST, event: CallRequested = REQUESTED, expect: Expect | None = None) -> Append:
    entries = (Entry(call, None, event), Entry(call, None, MANIFEST))
    return Append(entries, (expect or Expect(event.scope, event.key, None),))


def started_op(call: CallId = FIRST, epoch: int = 1, attempt: int = 1) -> Append:
    return Append((Entry(call, attempt, AttemptStarted(epoch)),), receipt=Receipt("sent", call, attempt, DIGEST))


def observed_op(call: CallId = FIRST, observation: str = "response") -> Append:
    return Append((Entry(call, 1, observed(observation)),), receipt=Receipt("received", call, 1, DIGEST))


# --- child processes that really die ---------------------------------------------------------------------------------


def child(state: Path, *commands: str, failpoints: str = "") -> "subprocess.Popen[str]":
    """tests/harness/ledger_child.py with failpoints set; it answers each command with one JSON line on stdout."""
    environment = {**os.environ, "SENDONCE_FAILPOINTS": failpoints}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.harness.ledger_child", str(state), *commands],
        cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: exit code (negative: the signal), its answers, and what it said on stderr."""

    code: int
    answers: list[Any]
    stderr: str


def run_child(state: Path, *commands: str, failpoints: str = "") -> Ended:
    with child(state, *commands, failpoints=failpoints) as process:
        out, err = process.communicate(timeout=30)
    return Ended(process.returncode, [json.loads(line) for line in out.splitlines()], err)


def stored_body(store: Store, digest: Digest) -> bytes | None:
    """The whole body, checked against its digest; None where it is not kept (any more)."""
    row = store._db.execute(queries.FIND_BODY, (digest,)).fetchone()
    if row is None:
        return None
    pieces = []
    for chunk in bodies.chunk_digests(row[0]):
        found = store._db.execute(queries.FIND_CHUNK, (chunk,)).fetchone()
        if found is None:
            raise UnreadableRecordError(f"the body {digest} lacks its chunk {chunk.hex()}")
        pieces.append(bodies.plain(chunk, found[0]))
    body = b"".join(pieces)
    if digest_of(body) != digest:
        raise UnreadableRecordError(f"the body {digest} does not hold the bytes its digest names")
    return body
