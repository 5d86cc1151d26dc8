"""One call as its events tell it, and where it stands: stage, effect and next operation are functions of the evidence."""

from dataclasses import dataclass, replace
from typing import Final

from ledger.events import (
    AttemptAcknowledged,
    AttemptInterpreted,
    AttemptObserved,
    CallManifest,
    CallPreparationFailed,
    CallRequested,
    ReconcileDecided,
)
from ledger.ids import CallId, Digest, Key, Scope
from ledger.ladder import Evidence
from ledger.stages import Effect, NextOperation, Stage

DELIVERED: Final = frozenset({"next_request", "fin", "acked"})
CLOSED_BY_ANSWER: Final = frozenset({Evidence.COMPLETED, Evidence.ERASED})


@dataclass(frozen=True, slots=True)
class AttemptState:
    """What is recorded of one attempt. `events` of other attempts of the call stay with those."""

    number: int
    epoch: int | None
    started_at_ms: int | None
    acknowledged: AttemptAcknowledged | None = None
    observed: AttemptObserved | None = None
    interpreted: AttemptInterpreted | None = None
    witnessed: bool = False
    observed_at_ms: int | None = None

    @property
    def proven_absent(self) -> bool:
        return self.interpreted is not None and self.interpreted.effect is Effect.ABSENT


@dataclass(frozen=True, slots=True)
class CallState:
    """One call, as its events tell it. Stage and effect are functions of it (ledger/stages in `view`)."""

    call: CallId
    scope: Scope
    key: Key
    key_source: str
    occurrence: int
    generation: int
    upstream: str
    caller_exact: str
    created_at_ms: int
    last_seq: int
    head_chain: Digest
    evidence: Evidence = Evidence.NOTHING
    marked: bool = True
    requested: CallRequested | None = None
    manifest: CallManifest | None = None
    preparation: CallPreparationFailed | None = None
    attempts: tuple[AttemptState, ...] = ()
    decision: ReconcileDecided | None = None
    decision_seq: int | None = None
    served_pass: int | None = None  # the newest pass of its run that was given this call
    deliveries: tuple[str, ...] = ()  # in a run: to that pass
    delivered_at_ms: int | None = None
    superseded_by: CallId | None = None
    erased: bool = False
    fault: str | None = None

    @property
    def attempt(self) -> AttemptState | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def occurrence_id(self) -> tuple[Scope, Key, int]:
        return self.scope, self.key, self.occurrence

    @property
    def run(self) -> str | None:
        """A scope is `upstream/caller` or, within a run, `upstream/caller/run`."""
        return self.scope.split("/", 2)[2] if self.scope.count("/") > 1 else None

    @property
    def delivered(self) -> bool:
        return not DELIVERED.isdisjoint(self.deliveries)

    @property
    def stage(self) -> Stage:
        return _stage(self)

    @property
    def effect(self) -> Effect:
        """The highest over the unsettled attempts (semantics section 1)."""
        return _effect(self)

    @property
    def next_operation(self) -> NextOperation:
        return _next_operation(self)

    @property
    def duplicate_effect_risk(self) -> bool:
        """Would sending it again risk a second effect?"""
        return self.next_operation is NextOperation.RECONCILE_EFFECT or self.stage is Stage.CORRUPTION

    @property
    def unresolved(self) -> bool:
        """Nobody knows whether there was an effect, and nobody said what to do about it; setting it aside says neither."""
        return self.superseded_by is None and (self.duplicate_effect_risk or self.evidence is Evidence.PARKED)

    @property
    def finished(self) -> bool:
        """Nothing the call may still need: indexes leave it out, so that hot keys stay cheap."""
        if self.superseded_by is not None:
            return True
        return self.evidence in CLOSED_BY_ANSWER and self.effect is Effect.HAPPENED and self.delivered

    @property
    def is_erasable(self) -> bool:
        """Its bodies are no evidence that anybody still needs: what became of it is proven, or another call carries it on."""
        proven = self.evidence in CLOSED_BY_ANSWER and self.effect in (Effect.HAPPENED, Effect.ABSENT)
        return self.fault is None and (proven or self.superseded_by is not None)


_PLAIN_STAGE: Final = {
    Evidence.NOTHING: Stage.CORRUPTION,
    Evidence.REQUESTED: Stage.REQUESTED,
    Evidence.PREPARATION_FAILED: Stage.PREPARATION_FAILED,
    Evidence.MANIFEST: Stage.MANIFEST_RECORDED,
    Evidence.ABANDONED: Stage.MANIFEST_RECORDED,
    Evidence.STARTED: Stage.EFFECT_UNKNOWN,
    Evidence.ACKNOWLEDGED: Stage.EFFECT_UNKNOWN,
    Evidence.NOT_SENT: Stage.NOT_SENT,
    Evidence.LOST: Stage.EFFECT_UNKNOWN,
    Evidence.PARTIAL: Stage.EFFECT_UNKNOWN,
    Evidence.WITNESSED: Stage.EFFECT_UNKNOWN,
    Evidence.RESPONSE: Stage.OBSERVED,
    Evidence.INTERPRETED: Stage.INTERPRETED,
    Evidence.RETRY_DECIDED: Stage.INTERPRETED,
    Evidence.ATTEMPT_COMPLETED: Stage.ATTEMPT_COMPLETED,
    Evidence.COMPLETED: Stage.COMPLETED,
    Evidence.SERVED: Stage.CLOSED,
    Evidence.NOT_SERVED: Stage.SETTLED,
    Evidence.ACCEPTED: Stage.SETTLED,
    Evidence.PARKED: Stage.CLOSED,
    Evidence.ERASED: Stage.CLOSED,
}


def _stage(state: CallState) -> Stage:
    if state.fault is not None:
        return Stage.CORRUPTION
    if state.superseded_by is not None:
        return Stage.SUPERSEDED
    if state.evidence in (Evidence.ACKNOWLEDGED, Evidence.PARTIAL) and _happened(state.attempt):
        return Stage.EFFECT_HAPPENED
    if not state.marked and state.evidence in (Evidence.REQUESTED, Evidence.MANIFEST, Evidence.ABANDONED):
        return Stage.EFFECT_UNKNOWN  # without the protocol marker a missing attempt proves nothing
    if state.evidence is Evidence.ERASED and state.attempt and state.attempt.proven_absent:
        return Stage.COMPLETED  # the next try is sent, and compared by digests alone
    return _PLAIN_STAGE[state.evidence]


def _happened(attempt: AttemptState | None) -> bool:
    """A 2xx head was seen: the provider took the request, whatever became of the answer."""
    if attempt is None:
        return False
    seen = (
        attempt.observed.status if attempt.observed else attempt.acknowledged.status if attempt.acknowledged else None
    )
    return seen is not None and 200 <= seen < 300


def _effect(state: CallState) -> Effect:
    attempt = state.attempt
    match _stage(replace(state, superseded_by=None)):
        case Stage.REQUESTED | Stage.PREPARATION_FAILED | Stage.MANIFEST_RECORDED | Stage.NOT_SENT:
            return Effect.ABSENT
        case Stage.EFFECT_UNKNOWN | Stage.CORRUPTION:
            return Effect.UNKNOWN
        case Stage.EFFECT_HAPPENED:
            return Effect.HAPPENED
        case Stage.OBSERVED:
            return Effect.HAPPENED if _happened(attempt) else Effect.UNKNOWN
        case Stage.SETTLED if state.evidence is Evidence.NOT_SERVED:
            return Effect.ABSENT
        case _:
            if state.evidence is Evidence.SERVED:
                return Effect.HAPPENED
            if attempt is not None and attempt.interpreted is not None:
                return attempt.interpreted.effect
            return Effect.HAPPENED if _happened(attempt) else Effect.UNKNOWN


_PLAIN_NEXT: Final = {
    Stage.REQUESTED: NextOperation.START_CALL,
    Stage.PREPARATION_FAILED: NextOperation.FIX_INPUTS,
    Stage.MANIFEST_RECORDED: NextOperation.START_CALL,
    Stage.EFFECT_UNKNOWN: NextOperation.RECONCILE_EFFECT,
    Stage.EFFECT_HAPPENED: NextOperation.RECONCILE_EFFECT,
    Stage.NOT_SENT: NextOperation.START_NEXT_ATTEMPT,
    Stage.OBSERVED: NextOperation.REINTERPRET,
    Stage.INTERPRETED: NextOperation.REDECIDE,
    Stage.ATTEMPT_COMPLETED: NextOperation.FINALIZE,
    Stage.SETTLED: NextOperation.START_CALL,
    Stage.SUPERSEDED: NextOperation.NONE,
    Stage.CLOSED: NextOperation.NONE,
    Stage.CORRUPTION: NextOperation.INSPECT,
}


def _next_operation(state: CallState) -> NextOperation:
    stage = _stage(state)
    if stage is Stage.INTERPRETED and state.evidence is Evidence.RETRY_DECIDED:
        return NextOperation.FINALIZE
    if stage is not Stage.COMPLETED:
        return _PLAIN_NEXT[stage]
    match _effect(state):
        case Effect.HAPPENED:
            return NextOperation.NONE
        case Effect.UNKNOWN:
            return NextOperation.RECONCILE_EFFECT
        case Effect.ABSENT | Effect.ANSWERED:
            return NextOperation.START_CALL
