"""The ladder: which event may follow which evidence. One table; whatever it does not list is illegal.

A call climbs by recorded evidence only:

    requested -> manifest -> started -> acknowledged -> response -> interpreted -> decided -> attempt completed -> completed

`started` is the rung that matters. It is durable before a byte leaves, so below it the effect is proven absent, and
above it, until an observation stands, the honest answer is "unknown". Leaving it sideways (`partial`, `lost`) keeps the
call unresolved until a reconcile decision settles it; nothing here ever falls back to "not sent" without proof.
Deliveries, passes served, reconcile evidence and erasures move nothing, but that a completed call is `erased` then. Observing the same attempt twice, starting a second attempt beside an
unresolved one, or completing what was never interpreted are not in the table, so they raise before anything is written.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from ledger.errors import IllegalTransitionError
from ledger.events import AttemptObserved, Event, ReconcileDecided


class Evidence(StrEnum):
    """The last evidence recorded for a call; finer than a stage, which is what people see of it."""

    NOTHING = "nothing"
    REQUESTED = "requested"
    PREPARATION_FAILED = "preparation_failed"
    MANIFEST = "manifest"
    ABANDONED = "abandoned"
    STARTED = "started"
    ACKNOWLEDGED = "acknowledged"
    NOT_SENT = "not_sent"
    LOST = "lost"
    PARTIAL = "partial"
    WITNESSED = "witnessed"
    RESPONSE = "response"
    INTERPRETED = "interpreted"
    RETRY_DECIDED = "retry_decided"
    ATTEMPT_COMPLETED = "attempt_completed"
    COMPLETED = "completed"
    SERVED = "decided_served"
    NOT_SERVED = "decided_not_served"
    ACCEPTED = "decided_accept_duplicate"
    PARKED = "decided_parked"
    ERASED = "erased"


E = Evidence

# An attempt runs, or its process died within it.
IN_FLIGHT: Final = frozenset({E.STARTED, E.ACKNOWLEDGED})
# Left open: only a decision leads out.
UNRESOLVED: Final = IN_FLIGHT | {E.LOST, E.PARTIAL, E.WITNESSED}
DECIDED: Final = frozenset({E.SERVED, E.NOT_SERVED, E.ACCEPTED, E.PARKED})
# The proxy finishes these by itself, from preserved bytes, without the provider.
UNFINISHED: Final = frozenset({E.RESPONSE, E.INTERPRETED, E.RETRY_DECIDED, E.ATTEMPT_COMPLETED})
# Events that an attempt number belongs to.
ATTEMPT_KINDS: Final = frozenset(
    {
        "attempt.started",
        "attempt.acknowledged",
        "attempt.observed",
        "attempt.interpreted",
        "attempt.retry_decided",
        "attempt.completed",
        "attempt.witnessed",
    }
)

_ANSWERED: Final = {"attempt.observed:response": E.RESPONSE, "attempt.observed:partial": E.PARTIAL}
_OBSERVED: Final = _ANSWERED | {"attempt.observed:lost": E.LOST}
_DECISION: Final = {
    "reconcile.observed": None,
    "reconcile.decided:served": E.SERVED,
    "reconcile.decided:not_served": E.NOT_SERVED,
    "reconcile.decided:accept_duplicate": E.ACCEPTED,
    "reconcile.decided:parked": E.PARKED,
}
_SERVED: Final = {"pass.served": None}
_DELIVERY: Final = {"call.delivered": None}
_RELEASE: Final = {**_SERVED, **_DELIVERY}
_LATE: Final = {"attempt.observed:late": None}
_WITNESSED: Final = {"attempt.witnessed": E.WITNESSED}
_ERASURE: Final = {"body.erased": None}  # only where another call continues it (ledger/projection.py)

# evidence -> {event: evidence it leads to}; None: the event is kept and moves nothing.
NEXT: Final[Mapping[Evidence, Mapping[str, Evidence | None]]] = {
    E.NOTHING: {"call.requested": E.REQUESTED, **_WITNESSED},
    E.REQUESTED: {
        "call.manifest": E.MANIFEST,
        "call.preparation_failed": E.PREPARATION_FAILED,
        "call.abandoned": E.ABANDONED,
        **_WITNESSED,
    },
    E.PREPARATION_FAILED: _DELIVERY,
    E.MANIFEST: {
        "call.resumed": None,
        "attempt.started": E.STARTED,
        "call.abandoned": E.ABANDONED,
        **_WITNESSED,
        **_SERVED,
        **_ERASURE,
    },
    E.ABANDONED: {**_RELEASE, **_ERASURE},
    E.STARTED: {
        "attempt.acknowledged": E.ACKNOWLEDGED,
        "attempt.observed:not_sent": E.NOT_SENT,
        **_OBSERVED,
        **_WITNESSED,  # a restored backup knows attempt 1, the receipts know attempt 2
        **_DECISION,
        **_RELEASE,
        **_ERASURE,
    },
    E.ACKNOWLEDGED: {**_ANSWERED, **_DECISION, **_RELEASE, **_ERASURE},
    E.NOT_SENT: {"attempt.started": E.STARTED, **_WITNESSED, **_RELEASE, **_ERASURE},
    E.LOST: {**_DECISION, **_RELEASE, **_LATE, **_ERASURE},
    E.PARTIAL: {**_DECISION, **_RELEASE, **_LATE, **_ERASURE},
    E.WITNESSED: {**_WITNESSED, **_DECISION, **_LATE, **_ERASURE},
    E.RESPONSE: {"attempt.interpreted": E.INTERPRETED, **_RELEASE, **_ERASURE},
    E.INTERPRETED: {
        "attempt.interpreted": E.INTERPRETED,
        "attempt.retry_decided": E.RETRY_DECIDED,
        **_RELEASE,
        **_ERASURE,
    },
    E.RETRY_DECIDED: {"attempt.completed": E.ATTEMPT_COMPLETED, **_RELEASE, **_ERASURE},
    E.ATTEMPT_COMPLETED: {"call.completed": E.COMPLETED, **_RELEASE, **_ERASURE},
    E.COMPLETED: {"attempt.interpreted": None, "body.erased": E.ERASED, **_DECISION, **_RELEASE, **_LATE},
    E.SERVED: {"attempt.observed:recovered": E.RESPONSE, **_DECISION, **_DELIVERY, **_LATE, **_ERASURE},
    E.NOT_SERVED: {**_DECISION, **_DELIVERY, **_LATE, **_ERASURE},
    E.ACCEPTED: {**_DECISION, **_DELIVERY, **_LATE, **_ERASURE},
    E.PARKED: {**_DECISION, **_DELIVERY, **_LATE, **_ERASURE},
    E.ERASED: {"attempt.interpreted": None, **_DELIVERY, **_LATE, **_ERASURE},
}


def name_of(event: Event) -> str:
    """The event as the table spells it: its kind, and for the two that branch, the branch."""
    match event:
        case AttemptObserved(source="late" | "recovered" as source):
            return f"{event.kind}:{source}"
        case AttemptObserved(observation=branch) | ReconcileDecided(decision=branch):
            return f"{event.kind}:{branch}"
        case _:
            return event.kind


def step(evidence: Evidence, event: Event) -> Evidence:
    """What stands after `event`. Raises IllegalTransitionError, which the writer lets nothing through on."""
    name = name_of(event)
    row = NEXT[evidence]
    if name not in row:
        legal = ", ".join(sorted(row)) or "nothing"
        raise IllegalTransitionError(f"{name} may not follow {evidence}; legal there: {legal}.")
    return row[name] or evidence
