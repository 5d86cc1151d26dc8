"""The second witness: segments, their chain and padding, and what each receipt says of the ledger (FORMAT.md, 6 and 7)."""

import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from blake3 import blake3

from ledger.verifier.bundle import INTEGER_LIMIT, RECORD_LIMIT_BYTES, Bundle, Unreadable, opened, parsed
from ledger.verifier.calls import Attempt
from ledger.verifier.fold import IDENTITY, Epoch, Ledger
from ledger.verifier.records import SEGMENT, WITNESS, shaped
from ledger.verifier.report import Check, Claim, Notebook, Sweep

BLOCK_BYTES = 64 << 10  # a segment grows by whole blocks
SECTOR_BYTES = 512  # what a disk writes whole
SEGMENT_LIMIT_BYTES = 128 << 20  # a segment ends beyond 64 MiB, so nothing honest comes near
NO_LINE = "0" * 64
ZEROS = re.compile(rb"\0+")
# Observations that only an attempt with a sent receipt can have: (source, observation).
RECEIPT_PROVEN = {
    ("live", "response"),
    ("live", "partial"),
    ("live", "lost"),
    ("salvage", "response"),
    ("salvage", "partial"),
}

CHAINED = Claim("receipts_are_chained", "every receipt continues the chain and the count", "lines")
PLACED = Claim(
    "receipts_stand_in_order", "receipts stand in their events' order, parted by the epochs as those are", "receipts"
)
WHOLE = Claim("segments_are_whole", "every segment is whole blocks: lines, then zero bytes", "segments")


@dataclass(frozen=True, slots=True)
class Parting:
    """Where epochs part the log: behind how many lines each opened, and between which events a line's event stands."""

    positions: list[int]  # rising
    least: list[int]  # at i: the line's event stands behind this seq if it stands behind i of the positions
    most: list[int]  # and not behind this one

    @classmethod
    def of(cls, epochs: Iterable[Epoch]) -> "Parting":
        marks = sorted((epoch.receipts, epoch.seq) for epoch in epochs)
        seqs = [seq for _, seq in marks]
        most = list(accumulate(reversed(seqs), min, initial=INTEGER_LIMIT))
        return cls([position for position, _ in marks], list(accumulate(seqs, max, initial=0)), most[::-1])

    def allows(self, n: int, seq: int) -> bool:
        behind = bisect_left(self.positions, n)
        return self.least[behind] < seq < self.most[behind]


@dataclass(slots=True)
class Log:
    wanted: frozenset[int]  # numbers of lines whose digest an epoch names
    parting: Parting  # by the epochs since the newest acceptance: an older one's position may be gone
    accepted_through: list[int]  # of each acceptance: how many lines stand before it or an earlier one
    n: int = 0
    chain: str = NO_LINE  # digest of the last line
    lineage: str | None = None
    newest_seq: int = 0  # the newest event that any receipt names
    risen_seq: int = 0  # of the last line behind the newest acceptance
    not_due: int = 0  # answered attempts beyond receipts_through
    forgiven_lines: Counter[int] = field(default_factory=Counter)  # by the accepting epoch: their events are gone
    forgiven_attempts: Counter[int] = field(default_factory=Counter)  # and those whose due sent line is gone
    positions: dict[int, str] = field(default_factory=lambda: {0: NO_LINE})


def read_receipts(bundle: Bundle, ledger: Ledger, notebook: Notebook) -> Log:
    epochs, accepted = ledger.epochs.values(), ledger.last_accepted
    parting = Parting.of(epoch for epoch in epochs if accepted is None or epoch.seq >= accepted.seq)
    accepted_through = list(accumulate((epoch.receipts for epoch in ledger.acceptances), max))
    log = Log(frozenset(epoch.receipts for epoch in epochs), parting, accepted_through)
    for path in bundle.segments:
        for first, line in enumerate(segment_lines(bundle, path, log, notebook)):
            place = f"receipt {log.n + 1}"
            receipt = parsed(line, f"{path} {place}")
            shaped(receipt, SEGMENT if receipt.get("kind") == "segment" else WITNESS, f"{path} {place}")
            names = [] if receipt["prev"] == log.chain else ["receipt_chain_broken"]
            if receipt["n"] != log.n + 1 or (receipt["kind"] == "segment") != (first == 0):
                names.append("receipt_gap")
            notebook.look(CHAINED.name, place, names)
            if "seq" in receipt and is_forgiven(ledger, receipt):
                if ledger.link(receipt["seq"]) != receipt["chain"]:
                    accepting = ledger.acceptances[bisect_left(log.accepted_through, receipt["n"])]
                    log.forgiven_lines[accepting.number] += 1
            elif "seq" in receipt:
                risen = receipt["seq"] > log.risen_seq
                placed = risen and log.parting.allows(receipt["n"], receipt["seq"])
                notebook.look(PLACED.name, place, [] if placed else ["receipt_out_of_place"])
                log.risen_seq = receipt["seq"]
            for check in RECEIPT_CHECKS:
                if check.kinds is not None and receipt["kind"] in check.kinds:
                    notebook.examine(check, place, ledger, log, receipt)
            log.n, log.chain = log.n + 1, blake3(line).hexdigest()
            log.newest_seq = max(log.newest_seq, receipt.get("seq", 0))
            if log.n in log.wanted:
                log.positions[log.n] = log.chain
    return log


def segment_lines(bundle: Bundle, path: str, log: Log, notebook: Notebook) -> Iterator[bytes]:
    """The whole lines, without their newlines; then what stands behind them is judged."""
    with opened(bundle.directory, path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > SEGMENT_LIMIT_BYTES:
            raise Unreadable(f"{path} is longer than {SEGMENT_LIMIT_BYTES} bytes.")
        end = 0
        while (line := file.readline(RECORD_LIMIT_BYTES)).endswith(b"\n") and b"\0" not in line:
            yield line[:-1]
            end += len(line)
        file.seek(end)
        tail = file.read()
    if size % BLOCK_BYTES:
        notebook.look(WHOLE.name, path, ["segment_cut"])
        return
    is_last = path == bundle.segments[-1]
    written = tail.rstrip(b"\0")
    if is_last and written and len(written) < len(tail) and continues(written, log):
        notebook.notes.append(f"{path}: the last line lacks only its newline, which a start adds.")
        notebook.look(WHOLE.name, path)
        yield written
    elif is_last and written and is_torn(tail, end):
        notebook.notes.append(f"{path}: the last write is torn, as a crash leaves it; a start zeroes it.")
        notebook.look(WHOLE.name, path)
    else:
        notebook.look(WHOLE.name, path, [] if end and tail and not written else ["padding_damaged"])


def continues(line: bytes, log: Log) -> bool:
    if b"\0" in line or b"\n" in line:
        return False
    try:
        receipt = parsed(line, "the last line")
    except Unreadable:
        return False
    return receipt.get("prev") == log.chain and receipt.get("n") == log.n + 1


def is_torn(tail: bytes, offset: int) -> bool:
    """Does a crash during the last write explain these bytes behind the last whole line, which end at `offset`?"""
    if not tail.endswith(b"\0"):
        return False
    return all(
        run.end() == len(tail)
        or (
            (offset + run.end()) % SECTOR_BYTES == 0
            and ((offset + run.start()) % SECTOR_BYTES == 0 or run.start() == 0 or tail[run.start() - 1] == ord("\n"))
        )
        for run in ZEROS.finditer(tail)
    )


def same_identity(identity: Mapping[str, Any] | None, receipt: Mapping[str, Any]) -> bool:
    return identity is not None and all(identity[name] == receipt[name] for name in IDENTITY)


def is_forgiven(ledger: Ledger, receipt: Mapping[str, Any]) -> bool:
    """Does the line stand before the newest acceptance? What it names may have been lost with the ledger's tail."""
    return ledger.last_accepted is not None and receipt["n"] <= ledger.last_accepted.receipts


def segment(ledger: Ledger, log: Log, receipt: Mapping[str, Any]) -> list[str]:
    log.lineage = log.lineage or receipt["lineage"]
    ours = (receipt["ledger"], receipt["lineage"]) == (ledger.ledger_id, log.lineage)
    return [] if ours else ["receipt_foreign"]


def sent(ledger: Ledger, _: Log, receipt: Mapping[str, Any]) -> list[str]:
    call = ledger.calls.get(receipt["call"])
    attempt = call.attempts.get(receipt["attempt"]) if call else None
    beyond = ["events_truncated"] if receipt["seq"] > ledger.length else []
    if call is None or attempt is None:
        return [*beyond, "attempt_lost", *(["receipt_foreign"] if call is None else [])]
    attempt.sent_receipts += 1
    if attempt.sent_receipts > 1:
        return ["receipt_repeated"]
    if not attempt.started_seq:
        return witnessed(attempt, receipt, own=same_identity(call.identity, receipt))
    event = (receipt["seq"], receipt["chain"]) == (attempt.started_seq, ledger.link(attempt.started_seq))
    names = [] if event and same_identity(call.identity, receipt) else ["receipt_foreign"]
    return [*beyond, *names, *([] if receipt["digest"] == call.request else ["receipt_digest_differs"])]


def witnessed(attempt: Attempt, receipt: Mapping[str, Any], *, own: bool) -> list[str]:
    """The event it names was lost with the ledger's tail, so only what attempt.witnessed copied can be compared."""
    witness = attempt.witness or {}
    attempt.witness_found = own and (witness.get("receipt"), witness.get("request_digest")) == (
        receipt["n"],
        receipt["digest"],
    )
    return [] if attempt.witness_found else ["receipt_foreign"]


def unsent(ledger: Ledger, _: Log, receipt: Mapping[str, Any]) -> list[str]:
    """That proof permits a second send, so no acceptance forgives a line against it."""
    call = ledger.calls.get(receipt["call"])
    attempt = call.attempts.get(receipt["attempt"]) if call else None
    return ["not_sent_but_receipted"] if attempt is not None and attempt.proven_unsent else []


def received(ledger: Ledger, _: Log, receipt: Mapping[str, Any]) -> list[str]:
    call = ledger.calls.get(receipt["call"])
    if is_forgiven(ledger, receipt) and ledger.link(receipt["seq"]) != receipt["chain"]:
        return []  # its observation was lost, and an operator accepted that
    if receipt["seq"] > ledger.length:
        return ["events_truncated"]
    observation = ledger.observations.get(receipt["seq"])
    if call is None or observation is None:
        return ["receipt_foreign"]
    if observation[:2] != (receipt["call"], receipt["attempt"]):
        return ["observation_moved"]
    if ledger.link(receipt["seq"]) != receipt["chain"] or not same_identity(call.identity, receipt):
        return ["receipt_foreign"]
    return [] if observation[2] == receipt["digest"] else ["receipt_digest_differs"]


RECEIPT_CHECKS = (
    Check(
        "segments_are_of_this_ledger",
        "every segment names this ledger and one lineage",
        "segments",
        frozenset({"segment"}),
        segment,
    ),
    Check(
        "attempts_are_witnessed", "every sent receipt has its attempt.started", "receipts", frozenset({"sent"}), sent
    ),
    Check(
        "no_receipt_is_of_an_unsent_attempt",
        "no sent receipt is of an attempt that a start proved not sent",
        "receipts",
        frozenset({"sent"}),
        unsent,
    ),
    Check(
        "observations_are_witnessed",
        "every received receipt has its attempt.observed",
        "receipts",
        frozenset({"received"}),
        received,
    ),
)


def due_receipts(bundle: Bundle, ledger: Ledger, log: Log) -> Iterator[tuple[str, list[str]]]:
    """Due is an answered attempt's line, and that of any whose epoch is over: a start proves the others not sent."""
    newest = ledger.newest_epoch
    for call in ledger.calls.values():
        for number, attempt in call.attempts.items():
            proven_seq = attempt.acknowledged_seq
            if not proven_seq and (attempt.source, attempt.observation) in RECEIPT_PROVEN:
                proven_seq = attempt.observed_seq
            over = newest is not None and attempt.started_seq < newest.seq and attempt.observation != "not_sent"
            if not attempt.started_seq or not (proven_seq or over):
                continue
            accepting = bisect_left(ledger.acceptances, attempt.started_seq, key=lambda epoch: epoch.seq)
            if accepting < len(ledger.acceptances):
                log.forgiven_attempts[ledger.acceptances[accepting].number] += not attempt.sent_receipts
                continue
            if not over and proven_seq > bundle.receipts_through:
                log.not_due += 1
                continue
            reaches = newest is not None and over and newest.receipts <= log.n  # so the log is not cut before it
            cut = log.newest_seq < attempt.started_seq and not reaches
            missing = "receipts_truncated" if cut else "receipt_missing"
            yield f"{call.call_id}.{number} seq {attempt.started_seq}", [] if attempt.sent_receipts else [missing]


def forgiven(ledger: Ledger, log: Log) -> Iterator[str]:
    """A note for each acceptance: what it forgives is no finding, so it is said."""
    for epoch in ledger.acceptances:
        yield (
            f"epoch {epoch.number} accepted {epoch.accepted}: forgiven are {log.forgiven_attempts[epoch.number]} attempts "
            f"without a sent receipt, {log.forgiven_lines[epoch.number]} receipts whose events are gone."
        )


def epoch_positions(_: Bundle, ledger: Ledger, log: Log) -> Iterator[tuple[str, list[str]]]:
    """A position from before an accepted loss need not be in the log any more."""
    accepted = ledger.last_accepted
    for epoch in ledger.epochs.values():
        if accepted is not None and epoch.seq < accepted.seq:
            continue
        if epoch.receipts > log.n:
            names = ["receipts_truncated"]
        elif log.positions.get(epoch.receipts) != epoch.receipts_chain or log.lineage not in (None, epoch.lineage):
            names = ["receipt_position_differs"]
        else:
            names = []
        yield f"epoch {epoch.number} seq {epoch.seq}", names


def witnesses(_: Bundle, ledger: Ledger, log: Log) -> Iterator[tuple[str, list[str]]]:
    newest = ledger.last_accepted
    for call in ledger.calls.values():
        for number, attempt in call.attempts.items():
            if attempt.witness is None:
                continue
            names, receipt = [], attempt.witness["receipt"]
            if not attempt.witness_found and (newest is None or attempt.witness_seq > newest.seq):
                names.append("receipts_truncated" if receipt > log.n else "witness_without_receipt")
            if not attempt.witness_accepted:
                names.append("witness_unaccepted")
            yield f"{call.call_id}.{number} seq {attempt.witness_seq}", names


RECEIPT_SWEEPS = (
    Sweep(
        "answered_attempts_have_receipts",
        "every attempt that was answered, or whose epoch is over, has its sent receipt or was proven not sent",
        "attempts",
        due_receipts,
    ),
    Sweep("epochs_stand_in_the_log", "the receipt log holds the line that each epoch names", "epochs", epoch_positions),
    Sweep("witnessed_attempts_have_receipts", "every attempt.witnessed has its sent receipt", "attempts", witnesses),
)
