"""An operator's decision as one atomic bundle: what was observed and how, the decision, authority, reason, head. Pure."""

from dataclasses import dataclass

from ledger.calls import CallState
from ledger.claims import KeyHistory
from ledger.events import Authority, Decision, ReconcileDecided, ReconcileObserved
from ledger.ids import Head
from ledger.ladder import DECIDED, UNRESOLVED, Evidence
from ledger.operations import Append, Entry, Expect
from ledger.stages import Effect, NextOperation


class DecisionRefusedError(Exception):
    """The decision does not apply; nothing was written. The message says why and what to do. Exit code 6."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the operator says. `succeeds`: the seq of the decision it is meant to replace."""

    decision: Decision
    reason: str
    by: str
    succeeds: int | None = None


# Where a decision leads, for whoever took it.
OUTCOMES = {
    "served": "The call is closed and its answer is not kept: a retry of it is refused, a new sample is a call of its own.",
    "not_served": "The same request is forwarded when it comes again, as the next generation.",
    "accept_duplicate": "The same request is forwarded when it comes again; a second effect is accepted on record.",
    "parked": "The call is closed: the same request is refused until another decision succeeds this one.",
}


def bundle(call: CallState, history: KeyHistory, ruling: Ruling, *, alive: bool) -> Append | None:
    """The append that records it; None when exactly this decision stands already. Raises DecisionRefusedError."""
    if alive:
        raise DecisionRefusedError(f"{call.call} is in flight. Wait for its answer; there is nothing to decide yet.")
    standing = call.decision
    if standing and (standing.decision, standing.reason, standing.authority.name) == (
        ruling.decision,
        ruling.reason,
        ruling.by,
    ):
        return None
    _check_open(call)
    if call.decision_seq != ruling.succeeds:
        raise DecisionRefusedError(_stale(call, ruling))
    head = history.head or Head(call.last_seq, call.head_chain)
    number = call.attempt.number if call.attempt else None
    entries = (
        Entry(call.call, number, ReconcileObserved("operator_statement", "stated", {"by": ruling.by})),
        Entry(
            call.call,
            number,
            ReconcileDecided(
                ruling.decision,
                Authority("operator", ruling.by),
                ruling.reason,
                head.seq,
                head.chain,
                call.decision_seq,
            ),
        ),
    )
    return Append(entries, Expect(call.scope, call.key, history.head))


def _check_open(call: CallState) -> None:
    if call.superseded_by is not None:
        raise DecisionRefusedError(
            f"{call.call} was continued by {call.superseded_by}. Decide about that one, if it is open."
        )
    undecided = call.evidence is Evidence.COMPLETED and call.effect in (Effect.UNKNOWN, Effect.ANSWERED)
    if call.evidence in UNRESOLVED | DECIDED or undecided:
        return
    if call.next_operation is NextOperation.NONE:
        raise DecisionRefusedError(
            f"{call.call} is {call.stage} and its effect is {call.effect}: there is nothing to decide."
        )
    raise DecisionRefusedError(
        f"{call.call} is {call.stage} and its effect is {call.effect}; its next operation is {call.next_operation}, "
        "which needs no decision."
    )


def _stale(call: CallState, ruling: Ruling) -> str:
    if call.decision is None:
        return f"{call.call} has no decision {ruling.succeeds} to succeed. Leave --succeeds out."
    standing = call.decision
    return (
        f"{call.call} was decided {standing.decision} by {standing.authority.name} ({standing.reason}). "
        f"To replace that decision on record, add --succeeds {call.decision_seq}."
    )
