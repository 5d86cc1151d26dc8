"""Events -> state. Pure: no clock, network or memory; the same events give the same state.

`fold` takes one event onto a call's state and raises where the ladder forbids it; `project` folds a sequence and,
unlike the writer, never raises: what cannot be explained projects as `corruption`, which a person inspects.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from ledger import ladder
from ledger.calls import DELIVERED, AttemptState, CallState
from ledger.errors import IllegalTransitionError
from ledger.events import (
    PROTOCOL,
    AttemptAcknowledged,
    AttemptInterpreted,
    AttemptObserved,
    AttemptStarted,
    AttemptWitnessed,
    BodyErased,
    CallDelivered,
    CallManifest,
    CallPreparationFailed,
    CallRequested,
    EpochOpened,
    Event,
    PassServed,
    ReconcileDecided,
    Recorded,
)
from ledger.ids import CallId, Key, Scope
from ledger.ladder import Evidence
from ledger.stages import Effect

PROJECTION_VERSION: Final = 1
Epochs = Mapping[int, str]  # epoch -> its protocol marker


def fold(state: CallState | None, recorded: Recorded, epochs: Epochs) -> CallState:
    """The state after one more event. Raises IllegalTransitionError."""
    event = recorded.event
    evidence = ladder.step(state.evidence if state else Evidence.NOTHING, event)
    if state is None:
        state = _opened(recorded, epochs)
    _check_attempt(state, recorded)
    _check_settlement(state, event)
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
        case PassServed() | CallDelivered():
            return _handed_over(state, event, recorded.at_ms)
        case ReconcileDecided():
            return replace(state, decision=event, decision_seq=recorded.seq)
        case BodyErased():
            return replace(state, erased=True)
        case AttemptStarted() if not state.marked:
            raise IllegalTransitionError(f"epoch {event.epoch} does not follow {PROTOCOL}")
        case _:
            return state


def _handed_over(state: CallState, event: PassServed | CallDelivered, at_ms: int) -> CallState:
    """Within a run an answer is delivered to each pass anew; what a client of an earlier one still takes is no delivery to this one."""
    if isinstance(event, PassServed):
        if event.number == state.served_pass:
            return state
        return replace(state, served_pass=event.number, deliveries=(), delivered_at_ms=None)
    if event.pass_number != state.served_pass:
        return state
    at = at_ms if event.how in DELIVERED else state.delivered_at_ms
    return replace(state, deliveries=(*state.deliveries, event.how), delivered_at_ms=at)


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
            recorded.chain, fault="the first event of a call must be call.requested",
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


def _check_settlement(state: CallState, event: Event) -> None:
    """A decision needs something open, and names the decision it succeeds; an erasure needs nothing open."""
    completed = state.evidence is Evidence.COMPLETED
    match event:
        case ReconcileDecided() if completed and state.effect in (Effect.ABSENT, Effect.HAPPENED):
            raise IllegalTransitionError(
                f"the call is completed with effect {state.effect}; there is nothing to decide"
            )
        case ReconcileDecided() if event.succeeds != state.decision_seq:
            raise IllegalTransitionError(
                f"the decision names {event.succeeds} as the one it succeeds, but {state.decision_seq} stands"
            )
        case BodyErased() if not state.is_erasable:
            raise IllegalTransitionError(
                f"the call is {state.evidence} with effect {state.effect} and nothing continues it; its bodies are its evidence"
            )
        case _:
            return


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
            at_ms = newest.observed_at_ms if event.source == "recovered" else recorded.at_ms
            newest = replace(newest, observed=event, observed_at_ms=at_ms)
        case AttemptInterpreted():
            newest = replace(newest, interpreted=event)
        case _:
            return state.attempts
    return (*earlier, newest)
