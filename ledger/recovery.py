"""Start-up: compare the witnesses, salvage what the last epoch left, open the next epoch. Nothing is ever sent here.

The order is crash-safe without a plan: each step only adds facts that the next start would add again, and the epoch
opens last, so a start that dies midway is simply repeated. Work is bounded by the calls the last epoch left open.
"""

import os
import shlex
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import orjson

from ledger import bodies, spool
from ledger.bodies import Packed
from ledger.calls import CallState
from ledger.epochs import FileIdentity, StateDir, file_identity, secret_check, sync_directory
from ledger.errors import NothingToAcceptError, StateDirError, WitnessesDisagreeError
from ledger.events import (
    PROTOCOL,
    AttemptObserved,
    AttemptWitnessed,
    Body,
    EpochClosed,
    EpochOpened,
    ObservationKind,
)
from ledger.failpoints import passed
from ledger.ids import CallId, attempt_id
from ledger.operations import Append, Entry, Stage
from ledger.receipts import Line, Position, ReceiptLog, read_since, segments
from ledger.sqlite import Store

NOTHING_TO_ACCEPT: Final = "The witnesses of {} agree; there is nothing to accept. Start it: sendonce serve"
NAMED_AT_MOST: Final = 10  # missing attempts in a message; the rest are counted
RECOVER: Final = 'Look at them, then put it on record: sendonce recover --state-dir {} --accept-{} --reason "…"'

# Given the call, the salvaged head and the body's file: is the response whole by its dialect's terminal evidence?
Judge = Callable[[CallState, dict[str, Any], Path], spool.Judged]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What an operator put on record so that the start may go on."""

    kind: Literal["lost_tail", "copy"]
    reason: str


@dataclass(frozen=True, slots=True)
class Fresh:
    """Randomness and time, handed in: ids for what this start may create."""

    ledger_id: str
    lineage: str
    now_ms: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Recovered:
    """An open epoch, and what was done on the way."""

    epoch: int
    store: Store
    receipts: ReceiptLog
    witnessed: tuple[CallId, ...]
    salvaged: tuple[CallId, ...]
    not_sent: tuple[CallId, ...]
    unfinished: tuple[CallState, ...]


def open_epoch(
    state_dir: StateDir, fresh: Fresh, config_digest: str, judge: Judge, acceptance: Acceptance | None = None
) -> Recovered:
    """Under the lock. Raises StartRefusedError, having at most mended the torn end of the receipt log."""
    secret = secret_check(state_dir.secret())  # created before the ledger is, never beside one
    with ExitStack() as opened:
        store = opened.enter_context(closing(Store.open(state_dir.ledger, fresh.ledger_id)))
        recovered = _recover(store, opened, state_dir, secret, fresh, config_digest, judge, acceptance)
        opened.pop_all()  # from here on they are the new epoch's
        return recovered


def _recover(
    store: Store,
    opened: ExitStack,
    state_dir: StateDir,
    secret: str,
    fresh: Fresh,
    config_digest: str,
    judge: Judge,
    acceptance: Acceptance | None,
) -> Recovered:
    last, identity = store.last_epoch(), file_identity(state_dir.ledger)
    if last is not None and last.secret_check != secret:
        raise StateDirError(
            f"{state_dir.root / 'secret'} is not the secret of this ledger. Restore the one it was made with."
        )
    _check_identity(state_dir.root, last, identity, acceptance)
    left = store.in_flight(last.epoch) if last else ()
    if last is not None and acceptance is None and not segments(state_dir.receipts):
        raise WitnessesDisagreeError(_disagreement(state_dir.root, NO_LOG))
    receipts = opened.enter_context(closing(ReceiptLog(state_dir.receipts, store.meta("ledger_id"), fresh.lineage)))
    compared = _compare(store, state_dir.receipts, last, receipts.position, left)
    if acceptance is None and not compared.agrees:
        raise WitnessesDisagreeError(_disagreement(state_dir.root, compared))
    if acceptance is not None and last is not None and _agree(last, identity) and compared.agrees:
        raise NothingToAcceptError(NOTHING_TO_ACCEPT.format(state_dir.root))
    died = last if last is not None and not store.is_closed(last.epoch) else None
    if died is not None:
        # After a failed sync the WAL's pages may be in the page cache only, and no later sync writes them: write them elsewhere.
        store.checkpoint("TRUNCATE")
    salvaged = [state.call for state in left if _salvage(store, state_dir, state, judge, fresh.now_ms)]
    # In a copy or beside a broken log a missing receipt proves nothing: those calls stay unknown.
    proven = (
        []
        if acceptance
        else [state for state in left if state.call not in salvaged and not _was_sent(state, compared.sent)]
    )
    for state in proven:
        _record_not_sent(store, state, fresh.now_ms)
    passed("recovery-before-epoch")
    opening = _opened(store, last, secret, config_digest, receipts.position, acceptance, identity)
    closed = [Entry(None, None, EpochClosed(died.epoch, "successor"))] if died else []
    witnessed = [_witness(line.row) for line in compared.missing]
    _commit(store, Append((*closed, Entry(None, None, opening), *witnessed)), fresh.now_ms)
    sync_directory(state_dir.root)  # SQLite syncs its WAL's name itself, and goes on when that fails
    passed("recovery-after-epoch")
    # Observed now, or of no use: nothing more stands in them than in the ledger.
    for name in spool.names(state_dir.spool):
        spool.remove(state_dir.spool, name)
    calls = tuple(entry.call for entry in witnessed if entry.call)
    return Recovered(
        opening.epoch,
        store,
        receipts,
        calls,
        tuple(salvaged),
        tuple(state.call for state in proven),
        store.unfinished(),
    )


def _opened(
    store: Store,
    last: EpochOpened | None,
    secret: str,
    config_digest: str,
    position: Position,
    acceptance: Acceptance | None,
    identity: FileIdentity,
) -> EpochOpened:
    return EpochOpened(
        epoch=last.epoch + 1 if last else 1,
        protocol=PROTOCOL,
        ledger_id=store.meta("ledger_id"),
        file_inode=identity.inode,
        file_birth_ns=identity.birth_ns,
        config_digest=config_digest,
        secret_check=secret,
        receipts_lineage=position.lineage,
        receipts_count=position.count,
        receipts_chain=position.chain,
        accepted=acceptance.kind if acceptance else None,
        accepted_reason=acceptance.reason if acceptance else None,
    )


def _check_identity(
    root: Path, last: EpochOpened | None, identity: FileIdentity, acceptance: Acceptance | None
) -> None:
    if last is None or (acceptance and acceptance.kind == "copy"):
        return
    if not _agree(last, identity):
        raise WitnessesDisagreeError(
            "The ledger file is a copy or a restored backup: calls may have been sent that it does not know. "
            + RECOVER.format(shlex.quote(str(root)), "copy")
        )


def _agree(last: EpochOpened, identity: FileIdentity) -> bool:
    return FileIdentity(last.file_inode, last.file_birth_ns) == identity


@dataclass(frozen=True, slots=True)
class _Compared:
    """`sent`: of the calls asked for, which attempts have their receipt. `missing`: lines whose attempt the ledger lacks.
    `is_held`: the ledger holds what the newest line witnesses, so it holds what every line does.
    """

    unbroken: bool
    is_held: bool
    sent: set[tuple[str, int]]
    missing: list[Line]

    @property
    def agrees(self) -> bool:
        return self.unbroken and self.is_held and not self.missing


NO_LOG: Final = _Compared(unbroken=False, is_held=True, sent=set(), missing=[])


def _compare(
    store: Store, directory: Path, last: EpochOpened | None, position: Position, left: tuple[CallState, ...]
) -> _Compared:
    """The receipt lines since the position that the last epoch recorded, against the ledger; one line in memory at a time.

    Both are chains: where the newest line names an event that the ledger holds with that link, all earlier ones do; and a
    log that has the `sent` line of the last answered attempt has not lost its end before it.
    """
    answered = _newest_answered(store, last)
    asked = {state.call for state in left} | ({answered[0]} if answered else set())
    lines = read_since(directory, last.receipts_count if last else 1)
    first = next(lines, None)
    unbroken = last is None or (
        position.lineage == last.receipts_lineage
        and first is not None
        and (first.row["n"], first.digest) == (last.receipts_count, last.receipts_chain)
    )
    if not unbroken:
        lines = read_since(directory, 1)
    sent, newest = set(), None
    for line in lines:
        if line.row["kind"] != "segment":
            newest = line
        if line.row["kind"] == "sent" and line.row["call"] in asked:
            sent.add((line.row["call"], line.row["attempt"]))
    unbroken = unbroken and (answered is None or answered in sent)
    is_held = newest is None or _is_recorded(store, newest.row)
    if is_held and unbroken:
        return _Compared(unbroken, is_held, sent, [])
    again = read_since(directory, last.receipts_count + 1 if last and unbroken else 1)
    missing = [line for line in again if line.row["kind"] == "sent" and not _is_recorded(store, line.row)]
    return _Compared(unbroken, is_held, sent, missing)


def _disagreement(root: Path, compared: _Compared) -> str:
    if not compared.missing:
        return (
            "The receipt log is not the one this ledger was written beside: the position the last epoch recorded is gone, an "
            "attempt that was answered has no receipt, or an answer has a receipt and is not in the ledger. "
            "Restore it, or accept that unknown calls stay unknown. "
            + RECOVER.format(shlex.quote(str(root)), "lost-tail")
        )
    names = [attempt_id(CallId(line.row["call"]), line.row["attempt"]) for line in compared.missing]
    named = ", ".join(names[:NAMED_AT_MOST]) + (
        f" and {len(names) - NAMED_AT_MOST} more" if len(names) > NAMED_AT_MOST else ""
    )
    log = "" if compared.unbroken else " The receipt log itself is not the one this ledger was written beside."
    return (
        f"The receipt log proves {len(names)} attempts that the ledger does not know: {named}. The ledger is older than "
        f"its witness: a restored backup or a lost tail.{log} " + RECOVER.format(shlex.quote(str(root)), "lost-tail")
    )


def _salvage(store: Store, state_dir: StateDir, state: CallState, judge: Judge, now_ms: Callable[[], int]) -> bool:
    """Records what the spool of a dead attempt vouches for. Idempotent: an observed attempt is no longer in flight."""
    assert state.attempt is not None
    found = spool.salvage(state_dir.spool, state.call)
    if found is None:
        return False
    head = orjson.loads(found.head)
    os.truncate(found.body_path, found.size)  # only the prefix that its checksums vouch for
    with found.body_path.open("rb") as stream:
        judged = judge(state, head, found.body_path)
        packed = _packed(store, stream) if judged.is_kept else None
        digest, size = (packed.digest, packed.size) if packed else bodies.digest_of(stream)
    observation: ObservationKind = "response" if judged.is_whole else "partial"
    event = AttemptObserved(
        observation=observation,
        ended_by="crash",
        source="salvage",
        status=head["status"],
        reason_phrase=head["reason_phrase"],
        headers=tuple((name, value) for name, value in head["headers"]),
        framing=head["framing"],
        body=Body(digest, size, judged.is_kept),
    )
    kept = (packed,) if packed else ()
    _commit(store, Append((Entry(state.call, state.attempt.number, event),), bodies=kept), now_ms)
    return True


def _packed(store: Store, stream: BinaryIO) -> Packed:
    """In bounded memory: its chunks are stored ahead of the event that will name them."""
    packer = bodies.packer_of(stream)
    while chunks := packer.batch():
        store.begin()
        store.stage(Stage(chunks))
        store.commit()
    return packer.packed()


def _is_recorded(store: Store, row: dict[str, Any]) -> bool:
    """Does the ledger hold the attempt that a `sent` line witnesses, by its event or by an earlier acceptance?"""
    event = store.event_at(row["seq"])
    if event is not None and (event.chain, event.call, event.attempt) == (row["chain"], row["call"], row["attempt"]):
        return True
    state = store.state(CallId(row["call"]))
    return state is not None and any(each.witnessed and each.number == row["attempt"] for each in state.attempts)


def _newest_answered(store: Store, last: EpochOpened | None) -> tuple[CallId, int] | None:
    """The last one to start of the attempts that the last epoch saw answered, so it was sent; a log without its `sent` receipt
    has lost its end. Newer starts are in flight, so few are looked at.
    """
    for call, number in store.newest_starts(last.epoch) if last else ():
        state = store.state(call)
        attempts = state.attempts if state else ()
        heads = [each.acknowledged or each.observed for each in attempts if each.number == number]
        if any(head is not None and head.status is not None for head in heads):
            return call, number
    return None


def _was_sent(state: CallState, sent: set[tuple[str, int]]) -> bool:
    return state.attempt is None or (state.call, state.attempt.number) in sent


def _record_not_sent(store: Store, state: CallState, now_ms: Callable[[], int]) -> None:
    assert state.attempt is not None
    proof = "the unbroken receipt log holds no sent receipt for it"
    event = AttemptObserved(observation="not_sent", ended_by="crash", source="salvage", proof=proof)
    _commit(store, Append((Entry(state.call, state.attempt.number, event),)), now_ms)


def _witness(row: dict[str, Any]) -> Entry:
    fields = ("scope", "key", "key_source", "occurrence", "generation", "upstream", "caller_exact")
    event = AttemptWitnessed(**{name: row[name] for name in fields}, request_digest=row["digest"], receipt=row["n"])
    return Entry(CallId(row["call"]), row["attempt"], event)


def _commit(store: Store, op: Append, now_ms: Callable[[], int]) -> None:
    store.begin()
    store.append(op, now_ms())
    store.commit()
