"""Events -> state. Pure: no clock, network or memory; the same events give the same state.

`fold` takes one event onto a call's state and raises where the ladder forbids it; `project` folds a sequence and,
unlike the writer, never raises: what cannot be explained projects as `corruption`, which a person inspects.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ledger import ladder
from ledger.errors import IllegalTransitionError
from ledger.events import (
    PROTOCOL,
    AttemptAcknowledged,
    AttemptInterpreted,
    AttemptObserved,
    AttemptStarted,
    AttemptWitnessed,
    CallDelivered,
    CallManifest,
    CallPreparationFailed,
    CallRequested,
    EpochOpened,
    Event,
    ReconcileDecided,
    Recorded,
)
from ledger.ids import CallId, Digest, Key, Scope
from ledger.ladder import Evidence
from ledger.stages import Effect, NextOperation, Stage

PROJECTION_VERSION: Final = 1
DELIVERED: Final = frozenset({"next_request", "fin", "acked"})


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
    first_seq: int
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
    deliveries: tuple[str, ...] = ()
    delivered_at_ms: int | None = None
    superseded_by: CallId | None = None
    fault: str | None = None

    @property
    def attempt(self) -> AttemptState | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def occurrence_id(self) -> tuple[Scope, Key, int]:
        return self.scope, self.key, self.occurrence

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
    def finished(self) -> bool:
        """Nothing the call may still need: indexes leave it out, so that hot keys stay cheap."""
        if self.superseded_by is not None:
            return True
        return self.evidence is Evidence.COMPLETED and self.effect is Effect.HAPPENED and self.delivered


Epochs = Mapping[int, str]  # epoch -> its protocol marker


def fold(state: CallState | None, recorded: Recorded, epochs: Epochs) -> CallState:
    """The state after one more event. Raises IllegalTransitionError."""
    event = recorded.event
    evidence = ladder.step(state.evidence if state else Evidence.NOTHING, event)
    if state is None:
        state = _opened(recorded, epochs)
    _check_attempt(state, recorded)
    _check_decision(state, event)
    state = replace(
        state, evidence=evidence, last_seq=recorded.seq, head_chain=recorded.chain, attempts=_attempts(state, recorded)
    )
    match event:
        case CallRequested():
            return replace(state, requested=event)
        case CallManifest():
            return replace(state, manifest=event)
        case CallPreparationFailed():
            return replace(state, preparation=event)
        case CallDelivered():
            at = recorded.at_ms if event.how in DELIVERED else state.delivered_at_ms
            return replace(state, deliveries=(*state.deliveries, event.how), delivered_at_ms=at)
        case ReconcileDecided():
            return replace(state, decision=event, decision_seq=recorded.seq)
        case AttemptStarted() if not state.marked:
            raise IllegalTransitionError(f"epoch {event.epoch} does not follow {PROTOCOL}")
        case _:
            return state


def project(events: Iterable[Recorded], epochs: Epochs) -> dict[CallId, CallState]:
    """All calls of `events`, which come in ledger order and hold every generation of an occurrence they touch."""
    known = dict(epochs)
    calls: dict[CallId, CallState] = {}
    newest: dict[tuple[Scope, Key, int], CallState] = {}
    for recorded in events:
        if isinstance(recorded.event, EpochOpened):
            known[recorded.event.epoch] = recorded.event.protocol
        if recorded.call is None:
            continue
        state = calls.get(recorded.call)
        try:
            calls[recorded.call] = folded = fold(state, recorded, known)
        except IllegalTransitionError as fault:
            calls[recorded.call] = replace(state or _opened(recorded, known), fault=str(fault), last_seq=recorded.seq)
            continue
        if state is None:
            earlier = newest.get(folded.occurrence_id)
            if earlier is not None and earlier.generation < folded.generation:
                calls[earlier.call] = replace(calls[earlier.call], superseded_by=folded.call)
            newest[folded.occurrence_id] = folded
    return calls


def _opened(recorded: Recorded, epochs: Epochs) -> CallState:
    event = recorded.event
    if recorded.call is None or not isinstance(event, CallRequested | AttemptWitnessed):
        # An orphan: enough of a state to show it to a person.
        return CallState(
            recorded.call or CallId(""), Scope(""), Key(""), "unknown", 0, 0, "", "", recorded.at_ms, recorded.seq,
            recorded.seq, recorded.chain, fault="the first event of a call must be call.requested",
        )  # fmt: skip
    return CallState(
        call=recorded.call,
        scope=event.scope,
        key=event.key,
        key_source=event.key_source,
        occurrence=event.occurrence,
        generation=event.generation,
        upstream=event.upstream,
        caller_exact=event.caller_exact,
        created_at_ms=recorded.at_ms,
        first_seq=recorded.seq,
        last_seq=recorded.seq,
        head_chain=recorded.chain,
        marked=not isinstance(event, CallRequested) or epochs.get(event.epoch) == PROTOCOL,
    )


def _check_attempt(state: CallState, recorded: Recorded) -> None:
    """Attempts are numbered from 1 without gaps, and only the newest one is written about."""
    if recorded.event.kind not in ladder.ATTEMPT_KINDS:
        return
    newest = state.attempts[-1].number if state.attempts else 0
    match recorded.event:
        case AttemptWitnessed():  # what lies between is lost with the tail
            legal = recorded.attempt is not None and recorded.attempt > newest
        case AttemptStarted():
            legal = recorded.attempt == newest + 1
        case _:
            legal = recorded.attempt == newest > 0
    if not legal:
        raise IllegalTransitionError(f"{recorded.event.kind} names attempt {recorded.attempt}; the newest is {newest}")


def _check_decision(state: CallState, event: Event) -> None:
    """A decision needs something open to decide, and names the decision it succeeds: a stale one is refused."""
    if not isinstance(event, ReconcileDecided):
        return
    if state.evidence is Evidence.COMPLETED and state.effect in (Effect.ABSENT, Effect.HAPPENED):
        raise IllegalTransitionError(f"the call is completed with effect {state.effect}; there is nothing to decide")
    if event.succeeds != state.decision_seq:
        raise IllegalTransitionError(
            f"the decision names {event.succeeds} as the one it succeeds, but {state.decision_seq} stands"
        )


def _attempts(state: CallState, recorded: Recorded) -> tuple[AttemptState, ...]:
    event = recorded.event
    match event:
        case AttemptStarted():
            return (*state.attempts, AttemptState(recorded.attempt or 0, event.epoch, recorded.at_ms))
        case AttemptWitnessed():
            return (*state.attempts, AttemptState(recorded.attempt or 0, None, None, witnessed=True))
        case _:
            pass
    if not state.attempts:
        return ()
    *earlier, newest = state.attempts
    match event:
        case AttemptAcknowledged():
            newest = replace(newest, acknowledged=event)
        case AttemptObserved(source="live" | "salvage" | "recovered"):
            newest = replace(newest, observed=event)
        case AttemptInterpreted():
            newest = replace(newest, interpreted=event)
        case _:
            return state.attempts
    return (*earlier, newest)


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
