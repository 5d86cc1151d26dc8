"""Who may start: what one key's admission reads, and I3 as one pure rule, asked by the store at every write."""

from dataclasses import dataclass

from ledger.calls import CallState
from ledger.events import CallRequested
from ledger.ids import Head, attempt_id
from ledger.stages import Effect, Stage


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """What one key's admission needs: the open and the newest calls, the head they were read at, the last occurrence."""

    calls: tuple[CallState, ...]
    head: Head | None
    last_occurrence: int
    position: int = 0  # within a pass of a run: how many occurrences of the key it was given


def claim_fault(requested: CallRequested, earlier: CallState | None, last_occurrence: int) -> str | None:
    """Why the claim would break I3, or None. `earlier` is the call it says it continues, `last_occurrence` the key's."""
    if requested.continues is None:
        if requested.generation != 1:
            return f"generation {requested.generation} must name the call it continues"
        if requested.occurrence != last_occurrence + 1:
            return f"occurrence {requested.occurrence} is not new: the key's last one is {last_occurrence}"
        if requested.occurrence > 1 and not requested.evidence:
            return f"occurrence {requested.occurrence} must carry the evidence that it is a new sample"
        return None
    if earlier is None or earlier.superseded_by is not None:
        return f"{requested.continues} is not the newest call of its occurrence"
    identity = (earlier.scope, earlier.key, earlier.occurrence, earlier.generation + 1)
    if identity != (requested.scope, requested.key, requested.occurrence, requested.generation):
        return f"{requested.continues} is a call of another key, occurrence or generation"
    if earlier.effect is Effect.ABSENT:
        return None
    if earlier.attempt is None or earlier.stage is Stage.CORRUPTION:
        return f"{requested.continues} is {earlier.stage}; only a person can continue it"
    accepted = requested.accepts_attempt == attempt_id(earlier.call, earlier.attempt.number)
    if not accepted or requested.authority is None:
        return f"the effect of {requested.continues} is {earlier.effect} and nobody accepted a second one on record"
    return None
