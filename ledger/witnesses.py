"""The witnesses held against each other at a start: the receipt log and the ledger (FORMAT.md section 7)."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ledger.calls import CallState
from ledger.events import AttemptStarted, EpochOpened
from ledger.ids import CallId, attempt_id
from ledger.receipts import Line, Position, read_back, read_since
from ledger.sqlite import Store

NAMED_AT_MOST: Final = 10  # missing attempts in a message; the rest are counted
RECOVER: Final = 'Look at them, then put it on record: sendonce recover --state-dir {} --accept-{} --reason "…"'

Attempt = tuple[CallId, int]  # and its number


@dataclass(frozen=True, slots=True)
class Compared:
    """`sent`: of the calls asked for, which attempts have their receipt. `missing`: lines whose attempt the ledger lacks.
    `is_held`: the ledger holds what the newest line witnesses, so it holds what every line does.
    """

    unbroken: bool
    is_held: bool
    sent: set[Attempt]
    missing: list[Line]

    @property
    def agrees(self) -> bool:
        return self.unbroken and self.is_held and not self.missing


NO_LOG: Final = Compared(unbroken=False, is_held=True, sent=set(), missing=[])


def compare(
    store: Store, directory: Path, last: EpochOpened | None, position: Position, left: tuple[CallState, ...]
) -> Compared:
    """The receipt lines since the position that the last epoch recorded, against the ledger; one line in memory at a time.

    Both are chains: where the newest line names an event that the ledger holds with that link, all earlier ones do; and a
    log that has the `sent` line of the last attempt known to be sent has not lost its end before it. So where nothing is
    amiss the newest lines tell. Only a disagreement is read in full, for it names every attempt that the ledger lacks.
    """
    known = _newest_known_sent(store, last)
    found = _sent_at_the_end(store, directory, last, position, left, known) if last is not None else None
    if found is not None:
        return Compared(unbroken=True, is_held=True, sent=found, missing=[])
    return _compare_all(store, directory, last, position, left, known)


def _sent_at_the_end(
    store: Store,
    directory: Path,
    last: EpochOpened,
    position: Position,
    left: tuple[CallState, ...],
    known: Attempt | None,
) -> set[Attempt] | None:
    """Which of the attempts left in flight have their `sent` line, read from the end back. None: read all of it.

    `seq` rises along the log, so in front of an attempt's start there is nothing to find. The newest line's link is one that
    only the last epoch could know, and it was chained onto the whole log as it then was.
    """
    if position.lineage != last.receipts_lineage or position.count < last.receipts_count:
        return None
    sent, is_held = {_newest(state) for state in left if _is_known_sent(state, _newest(state))}, False
    starts: dict[Attempt, int] = {}
    waiting = {_newest(state): state for state in left if _newest(state) not in sent}
    for line in read_back(directory):
        row = line.row
        is_attempts = row["kind"] != "segment"
        if is_attempts and not is_held:
            if not _is_recorded(store, row):
                return None
            is_held = True
        if row["n"] <= last.receipts_count:
            return sent if known is None and line.digest == last.receipts_chain else None
        if row["kind"] == "sent":
            attempt = (row["call"], row["attempt"])
            known = None if attempt == known else known
            if waiting.pop(attempt, None) is not None:
                sent.add(attempt)
        if not is_held or known is not None:
            continue
        if not waiting or (is_attempts and _is_before(store, row["seq"], waiting, starts)):
            return sent
    return None


def _is_before(store: Store, seq: int, waiting: dict[Attempt, CallState], starts: dict[Attempt, int]) -> bool:
    """Lies this event in front of all these starts? What lies in front of some is waited for no more."""
    for attempt, state in list(waiting.items()):
        if seq < state.last_seq and seq < _start_of(store, state, attempt, starts):
            del waiting[attempt]
    return not waiting


def _start_of(store: Store, state: CallState, attempt: Attempt, starts: dict[Attempt, int]) -> int:
    if attempt not in starts:
        starts[attempt] = _started_seq(store, state, attempt)
    return starts[attempt]


def _started_seq(store: Store, state: CallState, attempt: Attempt) -> int:
    """Where the start stands; 0 where it is not there. Without a `sent` line a start was the last commit: it is the call's
    newest event, or that of its delivery lies a little behind it.
    """
    for seq in range(state.last_seq, 0, -1):
        found = store.event_at(seq)
        if found is None:
            return 0
        if isinstance(found.event, AttemptStarted) and (found.call, found.attempt) == attempt:
            return seq
    return 0


def _compare_all(
    store: Store,
    directory: Path,
    last: EpochOpened | None,
    position: Position,
    left: tuple[CallState, ...],
    known: Attempt | None,
) -> Compared:
    asked = {_newest(state) for state in left} | ({known} if known else set())
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
        if line.row["kind"] == "sent" and (line.row["call"], line.row["attempt"]) in asked:
            sent.add((line.row["call"], line.row["attempt"]))
    unbroken = unbroken and (known is None or known in sent)
    is_held = newest is None or _is_recorded(store, newest.row)
    if is_held and unbroken:
        return Compared(unbroken, is_held, sent, [])
    again = read_since(directory, last.receipts_count + 1 if last and unbroken else 1)
    missing = [line for line in again if line.row["kind"] == "sent" and not _is_recorded(store, line.row)]
    return Compared(unbroken, is_held, sent, missing)


def disagreement(root: Path, compared: Compared) -> str:
    if not compared.missing:
        return (
            "The receipt log is not the one this ledger was written beside: the position the last epoch recorded is gone, an "
            "attempt that was sent has no receipt, or an answer has a receipt and is not in the ledger. "
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


def _is_recorded(store: Store, row: dict[str, Any]) -> bool:
    """Does the ledger hold the attempt that a `sent` line witnesses, by its event or by an earlier acceptance?"""
    event = store.event_at(row["seq"])
    if event is not None and (event.chain, event.call, event.attempt) == (row["chain"], row["call"], row["attempt"]):
        return True
    state = store.state(CallId(row["call"]))
    return state is not None and any(each.witnessed and each.number == row["attempt"] for each in state.attempts)


def _newest_known_sent(store: Store, last: EpochOpened | None) -> Attempt | None:
    """The last one to start of the attempts of the last epoch that the ledger knows to be sent: a log without its `sent` receipt
    has lost its end. Newer starts are in flight or were not sent, so few are looked at.
    """
    for attempt in store.newest_starts(last.epoch) if last else ():
        state = store.state(attempt[0])
        if state is not None and _is_known_sent(state, attempt):
            return attempt
    return None


def _is_known_sent(state: CallState, attempt: Attempt) -> bool:
    """Something came back, or the living process saw it leave."""
    for known in state.attempts:  # none, where the records contradict each other
        if (state.call, known.number) == attempt:
            observed = known.observed
            return known.acknowledged is not None or (observed is not None and observed.observation != "not_sent")
    return False


def _newest(state: CallState) -> Attempt:
    assert state.attempt is not None
    return state.call, state.attempt.number
