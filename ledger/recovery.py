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
from ledger.ids import CallId
from ledger.operations import Append, Entry, Stage
from ledger.receipts import Position, ReceiptLog, segments
from ledger.sqlite import Store
from ledger.witnesses import NO_LOG, RECOVER, Attempt, compare, disagreement

NOTHING_TO_ACCEPT: Final = "The witnesses of {} agree; there is nothing to accept. Start it: sendonce serve"

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
        raise WitnessesDisagreeError(disagreement(state_dir.root, NO_LOG))
    receipts = opened.enter_context(closing(ReceiptLog(state_dir.receipts, store.meta("ledger_id"), fresh.lineage)))
    compared = compare(store, state_dir.receipts, last, receipts.position, left)
    if acceptance is None and not compared.agrees:
        raise WitnessesDisagreeError(disagreement(state_dir.root, compared))
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


def _was_sent(state: CallState, sent: set[Attempt]) -> bool:
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
