"""A decision as one atomic bundle: what was observed and how, an answer that came back by another way, the decision. Pure.

Several bundles are one append: all of them, or none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ledger.bodies import Packed
from ledger.calls import CallState
from ledger.claims import KeyHistory
from ledger.events import AttemptObserved, Authority, Body, Decision, Found, Pairs, ReconcileDecided, ReconcileObserved
from ledger.ids import Head, Key, Scope
from ledger.ladder import DECIDED, UNRESOLVED, Evidence
from ledger.operations import Append, Entry, Expect
from ledger.stages import Effect, NextOperation


class DecisionRefusedError(Exception):
    """The decision does not apply; nothing was written. The message says why and what to do. Exit code 6."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The provider's answer, come back by another way than the attempt: later tries get it. `headers` by the allow-list."""

    status: int
    headers: Pairs
    data: bytes


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is decided and on which evidence. `succeeds`: the seq of the decision it is meant to replace."""

    decision: Decision
    reason: str
    by: str
    succeeds: int | None = None
    how: str = "operator_statement"
    result: Found = "stated"
    evidence: Mapping[str, Any] = field(default_factory=dict)
    recovered: Recovered | None = None
    looked_at: int | None = None  # the call's newest event when the evidence was looked for; a newer one refuses


# Where a decision leads, for whoever took it.
OUTCOMES: Final = {
    "served": "The call is closed and its answer is not kept: a retry of it is refused, a new sample is a call of its own.",
    "not_served": "The same request is forwarded when it comes again, as the next generation.",
    "accept_duplicate": "The same request is forwarded when it comes again; a second effect is accepted on record.",
    "parked": "The call is closed: the same request is refused until another decision succeeds this one.",
}


def bundle(
    call: CallState, history: KeyHistory, ruling: Ruling, *, alive: bool, body: Body | None = None
) -> Append | None:
    """The append that records it; None when exactly this decision stands already. Raises DecisionRefusedError.

    `body` names what `ruling.recovered` holds; whoever appends adds its bytes.
    """
    if alive:
        raise DecisionRefusedError(f"{call.call} is in flight. Wait for its answer; there is nothing to decide yet.")
    standing = call.decision
    same = standing and (standing.decision, standing.reason, standing.authority.name) == (
        ruling.decision,
        ruling.reason,
        ruling.by,
    )
    if same and (ruling.recovered is None or _has_recovered(call)):
        return None
    _check_open(call)
    if ruling.looked_at is not None and ruling.looked_at != call.last_seq:
        raise DecisionRefusedError(
            f"Something was recorded of {call.call} since it was looked at ({ruling.looked_at}, now {call.last_seq}). Look again."
        )
    if call.decision_seq != ruling.succeeds:
        raise DecisionRefusedError(_stale(call, ruling))
    head = history.head or Head(call.last_seq, call.head_chain)
    number = call.attempt.number if call.attempt else None
    entries = [
        Entry(call.call, number, ReconcileObserved(ruling.how, ruling.result, {"by": ruling.by, **ruling.evidence})),
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
    ]
    if ruling.recovered is not None:
        entries.append(Entry(call.call, number, _observed(call, ruling, ruling.recovered, body)))
    return Append(tuple(entries), (Expect(call.scope, call.key, history.head),))


def together(bundles: Iterable[Append]) -> Append:
    """One append of all: a bundle that another append outran takes none of them along."""
    entries: list[Entry] = []
    expects: dict[tuple[Scope, Key], Expect] = {}
    bodies: list[Packed] = []
    for each in bundles:
        entries += each.entries
        bodies += each.bodies
        expects |= {(expect.scope, expect.key): expect for expect in each.expects}
    return Append(tuple(entries), tuple(expects.values()), tuple(bodies))


def _observed(call: CallState, ruling: Ruling, recovered: Recovered, body: Body | None) -> AttemptObserved:
    if ruling.decision != "served":
        raise DecisionRefusedError(f"An answer says that {call.call} was served; decide that, or leave it out.")
    if call.attempt is None:
        raise DecisionRefusedError(f"{call.call} has no attempt that an answer could belong to.")
    return AttemptObserved(
        "response",
        ended_by=ruling.how,
        source="recovered",
        status=recovered.status,
        headers=recovered.headers,
        framing="length",
        body=body,
    )


def _has_recovered(call: CallState) -> bool:
    observed = call.attempt.observed if call.attempt else None
    return observed is not None and observed.source == "recovered"


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
