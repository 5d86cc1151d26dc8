"""One state that a crash may leave: put on disk, opened by the real recovery, and held against what the outside has seen."""

import asyncio
import os
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import orjson
from blake3 import blake3

from ledger import bodies, queries
from ledger.calls import CallState
from ledger.epochs import StateDir
from ledger.errors import UnreadableRecordError
from ledger.events import AttemptObserved, AttemptStarted, CallManifest, CallRequested, EpochOpened
from ledger.events import Recorded as Event
from ledger.ids import NO_CHAIN, CallId, Digest
from ledger.projection import project
from ledger.recovery import Fresh, open_epoch
from ledger.stages import Effect
from proxy import evidence
from proxy.interpreter import judge_salvaged
from proxy.settings import Settings
from tests.harness.disk import Files
from tests.harness.wire_marks import Begun, Ended, Mark

# Marks what recovery itself recorded, and makes equal states recover equally.
RECOVERED_AT_MS: Final = 4_000_000_000_000
NOT_DEFINITE: Final = frozenset({408, 409, 425, 499})  # 4xx that prove nothing (semantics section 5)


class Broken(StrEnum):
    """What a state may violate."""

    START = "start"  # recovery needed an operator, or failed
    INTEGRITY = "integrity"  # SQLite finds the ledger damaged
    I1_RECORD = "I1-record"  # sent without manifest or attempt.started
    I1_RECEIPT = "I1-receipt"  # sent without its `sent` receipt
    I1_RESEND = "I1-resend"  # sent, and after recovery it would be sent again
    I2_OBSERVED = "I2-observed"  # a client saw the end; the observation is not there
    I2_BYTES = "I2-bytes"  # it is there with other bytes
    I3_ATTEMPTS = "I3-attempts"  # two possible effects of one occurrence, and nobody accepted
    I3_RESUMABLE = "I3-resumable"  # never sent, and after recovery it cannot be sent
    I5_RECEIPT = "I5-receipt"  # a receipt whose attempt the ledger does not know
    I5_BODY = "I5-body"  # an event names a kept body that is missing or another one
    AUDIT = "audit"  # the independent verifier finds fault with what is exported after recovery


@dataclass(frozen=True, slots=True)
class Violation:
    broken: Broken
    detail: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the ledger holds of one call: the facts from before recovery, and what is true of it after."""

    kinds: frozenset[str] = frozenset()
    started: frozenset[int] = frozenset()  # attempts
    observed: AttemptObserved | None = None
    accepts: bool = False  # its claim accepts an earlier attempt
    occurrence: tuple[Any, ...] = ()
    stage: str = "unknown to the ledger"
    effect: Effect = Effect.ABSENT  # what is not recorded would be sent
    is_denied: bool = False  # a whole answer proves that nothing was done


@dataclass(frozen=True, slots=True)
class History:
    """What the reopened ledger holds. Many states hold the same, so everything that is asked often is computed once."""

    epochs: int  # before recovery
    calls: dict[CallId, Recorded]
    bodies: dict[Digest, bytes]
    faults: tuple[Violation, ...]

    def of(self, call: CallId) -> Recorded:
        return self.calls.get(call, Recorded())


@dataclass(frozen=True, slots=True)
class Reopened:
    """What one state holds."""

    history: History
    receipts: tuple[dict[str, Any], ...]
    sent: frozenset[CallId]  # those with a `sent` receipt
    spooled: frozenset[CallId]  # those with some of the body in the spool
    faults: tuple[Violation, ...] = ()  # what an audit found


@dataclass(slots=True)
class Outside:
    """What the provider and the clients have seen so far."""

    begun: dict[CallId, int] = field(default_factory=dict)
    ended: dict[CallId, Ended] = field(default_factory=dict)
    marks: int = 0

    def see(self, mark: Mark) -> None:
        self.marks += 1
        call = CallId(mark.call)
        if isinstance(mark, Begun):
            self.begun[call] = self.begun.get(call, 0) + 1
        elif mark.is_whole or call not in self.ended:
            self.ended[call] = mark


class Step(StrEnum):
    """What becomes durable or leaves, in the order of FORMAT.md section 1."""

    EPOCH = "epoch"
    CLAIMED = "claimed"
    STARTED = "started"
    RECEIPT = "sent receipt"
    BEGUN = "first byte"
    SPOOLED = "spooled"
    OBSERVED = "observed"
    ENDED = "end released"
    COMPLETED = "completed"


# --- reopening ---------------------------------------------------------------------------------------------------------


class Bench:
    """The state dir of a finished run, filled again and again. Its ledger.db stays the same inode: recovery checks that."""

    def __init__(self, root: Path, settings: Settings) -> None:
        self._state_dir, self._settings = StateDir(root, root / "receipts"), settings
        self._aside = root.parent / "ledger.aside"  # while a state has no ledger.db
        self._histories: dict[str, History] = {}
        umask = os.umask(0o077)
        self._state_dir.prepare()
        os.umask(umask)

    def reopen(self, files: Files, *, audited: bool) -> Reopened | Violation:
        self._fill(files)
        try:
            reopened = self._recover(files)
            return replace(reopened, faults=self._audit()) if audited and isinstance(reopened, Reopened) else reopened
        finally:
            if self._aside.exists():
                self._aside.replace(self._state_dir.ledger)

    def _fill(self, files: Files) -> None:
        """In place, whatever a file held before: memory that is there already is the cheapest to write."""
        for directory in (self._state_dir.root, self._state_dir.receipts, self._state_dir.spool):
            for left in directory.iterdir():
                if left.is_file() and str(left) not in files and left != self._state_dir.ledger:
                    left.unlink()
        if str(self._state_dir.ledger) not in files:
            self._state_dir.ledger.replace(self._aside)
        for path, content in files.items():
            fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.write(fd, content)
                os.ftruncate(fd, len(content))
            finally:
                os.close(fd)

    def _recover(self, files: Files) -> Reopened | Violation:
        fresh = Fresh("0" * 16, "1" * 16, lambda: RECOVERED_AT_MS)
        spooled = frozenset(
            CallId(Path(path).stem) for path, content in files.items() if path.endswith(".body") and content
        )
        try:
            recovered = open_epoch(self._state_dir, fresh, self._settings.digest, self._judge)
        except Exception as error:  # noqa: BLE001 - whatever stops a start is what this looks for
            return Violation(Broken.START, f"{type(error).__name__}: {error}")
        address = f"file:{self._state_dir.ledger}?mode=ro"
        # The last connection to close, and one that cannot write: so nothing is checkpointed for nothing.
        with closing(sqlite3.connect(address, uri=True)) as db:
            recovered.store.close()
            recovered.receipts.close()
            history = self._history(db)
        receipts = receipt_lines(self._state_dir.receipts)
        sent = frozenset(CallId(row["call"]) for row in receipts if row["kind"] == "sent")
        return Reopened(history, receipts, sent, spooled)

    def _audit(self) -> tuple[Violation, ...]:
        """The bundle that the owner could give away now, read by the verifier, which shares no code with what wrote it."""
        try:
            report = asyncio.run(evidence.verify(self._state_dir, self._aside.parent, lambda _done, _of: None))
        except Exception as error:  # noqa: BLE001 - what cannot be exported cannot be audited
            return (Violation(Broken.AUDIT, f"{type(error).__name__}: {error}"),)
        return tuple(Violation(Broken.AUDIT, f"{found.name}: {found.sentence}") for found in report.findings)

    def _judge(self, state: CallState, head: dict[str, Any], body: Path) -> bool:
        return judge_salvaged(self._settings, state, head, body)

    def _history(self, db: sqlite3.Connection) -> History:
        """Many states hold the same rows; those are read once."""
        (integrity,) = db.execute("PRAGMA quick_check(1)").fetchone()
        events = db.execute("SELECT record, chain FROM event ORDER BY seq").fetchall()
        stored = db.execute("SELECT digest, chunks FROM body ORDER BY digest").fetchall()
        frames = db.execute("SELECT digest, frame FROM chunk ORDER BY digest").fetchall()
        key = blake3(repr((integrity, events, stored, frames)).encode()).hexdigest()
        if key not in self._histories:
            self._histories[key] = _history(integrity, queries.read_events(events), stored, dict(frames))
        return self._histories[key]


def _history(
    integrity: str, events: list[Event], stored: list[tuple[str, bytes]], frames: dict[bytes, bytes]
) -> History:
    faults = [] if integrity == "ok" else [Violation(Broken.INTEGRITY, integrity)]
    whole = _bodies(stored, frames)
    before: dict[CallId, list[Event]] = {}
    epochs = 0
    for each in events:
        named = each.event.body if isinstance(each.event, AttemptObserved | CallManifest) else None
        if named is not None and named.kept and named.digest not in whole:
            faults.append(Violation(Broken.I5_BODY, f"{each.call}: {each.event.kind} names {named.digest}"))
        if each.at_ms != RECOVERED_AT_MS:
            epochs += isinstance(each.event, EpochOpened)
            if each.call is not None:
                before.setdefault(each.call, []).append(each)
    calls = {call: _recorded(state, before.get(call, [])) for call, state in project(events, {}).items()}
    return History(epochs, calls, whole, tuple(faults))


def _bodies(stored: list[tuple[str, bytes]], frames: dict[bytes, bytes]) -> dict[Digest, bytes]:
    """Those that are whole."""
    whole: dict[Digest, bytes] = {}
    for digest, chunks in stored:
        with suppress(KeyError, UnreadableRecordError):
            body = b"".join(bodies.plain(chunk, frames[chunk]) for chunk in bodies.chunk_digests(chunks))
            if blake3(body).hexdigest() == digest:
                whole[Digest(digest)] = body
    return whole


def _recorded(state: CallState, before: list[Event]) -> Recorded:
    seen = state.attempt.observed if state.attempt else None
    is_4xx = seen is not None and seen.status in range(400, 500) and seen.status not in NOT_DEFINITE
    return Recorded(
        kinds=frozenset(each.event.kind for each in before),
        started=frozenset(each.attempt or 0 for each in before if isinstance(each.event, AttemptStarted)),
        observed=next((each.event for each in before if isinstance(each.event, AttemptObserved)), None),
        accepts=any(
            isinstance(each.event, CallRequested) and each.event.accepts_attempt is not None for each in before
        ),
        occurrence=state.occurrence_id,
        stage=state.stage,
        effect=state.effect,
        is_denied=is_4xx and seen is not None and seen.observation == "response",
    )


def receipt_lines(directory: Path) -> tuple[dict[str, Any], ...]:
    """The valid prefix of the receipt log, read as FORMAT.md section 6 describes it and not by the product's reader."""
    rows: list[dict[str, Any]] = []
    previous = NO_CHAIN
    for path in sorted(directory.glob("[0-9]*.jsonl")):
        for raw in path.read_bytes().rstrip(b"\0").split(b"\n")[:-1]:
            row = orjson.loads(raw)
            if (row["n"], row["prev"]) != (len(rows) + 1, previous):
                return tuple(rows)
            previous = Digest(blake3(raw).hexdigest())
            rows.append(row)
    return tuple(rows)


# --- the promises ------------------------------------------------------------------------------------------------------


def violations(reopened: Reopened, outside: Outside) -> list[Violation]:
    """What of semantics section 2 does not hold in this state."""
    history = reopened.history
    found = [*history.faults, *reopened.faults]
    for call in outside.begun:
        found += _unrecorded(history.of(call), call, has_receipt=call in reopened.sent)
    for call, end in outside.ended.items():
        found += _unpreserved(history, call, end)
    for call, recorded in history.calls.items():
        if call not in outside.begun and call not in reopened.sent and recorded.effect is not Effect.ABSENT:
            found.append(Violation(Broken.I3_RESUMABLE, f"{call}: {recorded.stage}, effect {recorded.effect}"))
    found += _too_many(history, outside)
    for row in reopened.receipts:
        if row["kind"] != "segment" and row["attempt"] not in history.of(row["call"]).started:
            found.append(Violation(Broken.I5_RECEIPT, f"{row['call']}.{row['attempt']} ({row['kind']})"))
    return found


def _unrecorded(recorded: Recorded, call: CallId, *, has_receipt: bool) -> list[Violation]:
    """I1 for a call whose first byte has left."""
    found = []
    if not recorded.kinds >= {"call.manifest", "attempt.started"}:
        found.append(Violation(Broken.I1_RECORD, f"{call}: only {sorted(recorded.kinds)}"))
    if not has_receipt:
        found.append(Violation(Broken.I1_RECEIPT, call))
    if recorded.effect is Effect.ABSENT and not recorded.is_denied:
        found.append(Violation(Broken.I1_RESEND, f"{call}: {recorded.stage}"))
    return found


def _unpreserved(history: History, call: CallId, end: Ended) -> list[Violation]:
    """I2 for a call whose end a client has seen."""
    seen = history.of(call).observed
    if seen is None or seen.observation != "response" or seen.body is None:
        return [Violation(Broken.I2_OBSERVED, call)]
    kept = history.bodies.get(seen.body.digest, b"")
    is_same = kept == end.body if end.is_whole else kept.startswith(end.body)
    if not is_same or seen.status != end.status:
        return [Violation(Broken.I2_BYTES, f"{call}: {len(kept)} bytes recorded, {len(end.body)} released")]
    return []


def _too_many(history: History, outside: Outside) -> list[Violation]:
    """I3: possible effects of one occurrence, over all its generations, against what was accepted."""
    possible: Counter[tuple[Any, ...]] = Counter()
    for call, count in outside.begun.items():
        if not history.of(call).is_denied:
            possible[history.of(call).occurrence] += count
    for recorded in history.calls.values():
        possible[recorded.occurrence] -= recorded.accepts
    return [Violation(Broken.I3_ATTEMPTS, f"{key}: {count}") for key, count in possible.items() if key and count > 1]


def progress(reopened: Reopened, outside: Outside, call: CallId) -> int:
    """How many leading steps this state holds of the call: so it is seen which moments a run has covered."""
    kinds = reopened.history.of(call).kinds
    is_observed = "attempt.observed" in kinds
    done = (
        reopened.history.epochs > 0,
        "call.manifest" in kinds,
        "attempt.started" in kinds,
        call in reopened.sent,
        call in outside.begun,
        call in reopened.spooled or is_observed,  # removed once it is observed
        is_observed,
        call in outside.ended,
        "call.completed" in kinds,
    )
    return next((count for count, is_done in enumerate(done) if not is_done), len(Step))
