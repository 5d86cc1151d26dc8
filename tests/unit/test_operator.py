"""An operator's decision: an atomic bundle the ladder accepts, idempotent, never stale, never about a call in flight."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from ledger.events import Decision, ReconcileDecided, ReconcileObserved
from ledger.ladder import UNRESOLVED, Evidence
from ledger.stages import Effect, Stage
from proxy.reconcile.operator import OUTCOMES, DecisionRefusedError, Ruling, bundle
from tests.harness.histories import STARTED, Past, Step, completed, steps_to
from tests.harness.ledgers import NAMED

DECISIONS: tuple[Any, ...] = get_args(Decision)
LOST: tuple[Step, ...] = (*STARTED, "attempt.observed:lost")
UNDECIDED = (completed(Effect.UNKNOWN, 502), completed(Effect.ANSWERED, 500))


def ruling(decision: Any, succeeds: int | None = None, reason: str = "the provider's log") -> Ruling:
    return Ruling(decision, reason, "ada", succeeds)


def decide(past: Past, call: Any, given: Ruling) -> None:
    """As the store does it: each entry of the bundle, in order."""
    op = bundle(past.calls[call], past.history, given, alive=False)
    assert op is not None
    for entry in op.entries:
        past.step(call, entry.event)


def settled(past: Past) -> Past:
    assert all(state.fault is None for state in past.calls.values())
    return past


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize(
    "steps",
    [*(steps_to(evidence) for evidence in sorted(UNRESOLVED)), *UNDECIDED],
)
def test_unresolved_call_takes_any_decision(steps: tuple[Step, ...], decision: Any) -> None:
    """What was observed and what was decided, by whom, why, on which head; the ladder accepts both."""
    past = Past()
    call = past.call(*steps)
    op = bundle(past.calls[call], past.history, ruling(decision), alive=False)
    assert op is not None
    observed, decided = (entry.event for entry in op.entries)
    assert isinstance(observed, ReconcileObserved)
    assert isinstance(decided, ReconcileDecided)
    assert (observed.result, observed.evidence["by"]) == ("stated", "ada")
    assert (decided.authority.kind, decided.authority.name, decided.reason) == ("operator", "ada", "the provider's log")
    head = past.history.head
    assert head is not None
    assert (decided.head_seq, decided.head_chain) == (head.seq, head.chain)
    assert [expect.head for expect in op.expects] == [head]
    decide(past, call, ruling(decision))
    stage = settled(past).calls[call].stage
    assert stage is (Stage.CLOSED if decision in {"served", "parked"} else Stage.SETTLED)
    assert decision in OUTCOMES


def test_exact_same_decision_again_writes_nothing() -> None:
    """Idempotent: a repeated command is no second decision."""
    past = Past()
    call = past.call(*LOST)
    decide(past, call, ruling("parked"))
    assert bundle(past.calls[call], past.history, ruling("parked"), alive=False) is None


def test_another_decision_must_name_the_one_it_succeeds() -> None:
    """A stale one is refused and told which stands; naming it replaces it on record."""
    past = Past()
    call = past.call(*LOST)
    decide(past, call, ruling("parked"))
    seq = past.calls[call].decision_seq
    for stale in (None, 1):
        with pytest.raises(DecisionRefusedError, match=f"was decided parked by ada .* add --succeeds {seq}"):
            bundle(past.calls[call], past.history, ruling("not_served", stale), alive=False)
    decide(past, call, ruling("not_served", seq))
    assert settled(past).calls[call].effect is Effect.ABSENT


def test_decision_that_succeeds_nothing_is_refused() -> None:
    """There is no decision to replace."""
    past = Past()
    call = past.call(*LOST)
    with pytest.raises(DecisionRefusedError, match=r"has no decision 7 to succeed\. Leave --succeeds out"):
        bundle(past.calls[call], past.history, ruling("served", 7), alive=False)


def test_call_in_flight_is_not_decided() -> None:
    """Its own answer may still come."""
    past = Past()
    call = past.call(*STARTED)
    with pytest.raises(DecisionRefusedError, match=r"is in flight\. Wait for its answer"):
        bundle(past.calls[call], past.history, ruling("served"), alive=True)


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ((), "its next operation is start_call"),
        (("call.manifest",), "its next operation is start_call"),
        (("call.preparation_failed",), "its next operation is fix_inputs"),
        ((*STARTED, "attempt.observed:not_sent"), "its next operation is start_next_attempt"),
        ((*STARTED, "attempt.observed:response"), "its next operation is reinterpret"),
        (completed(Effect.ABSENT, 429), "its next operation is start_call"),
        (completed(Effect.HAPPENED), "there is nothing to decide"),
        ((*completed(Effect.HAPPENED), "body.erased"), "there is nothing to decide"),
    ],
)
def test_settled_fact_takes_no_decision(steps: tuple[Step, ...], sentence: str) -> None:
    """What is proven is not decided; the refusal says what comes next instead."""
    past = Past()
    call = past.call(*steps)
    with pytest.raises(DecisionRefusedError, match=sentence):
        bundle(past.calls[call], past.history, ruling("served"), alive=False)


def test_continued_call_takes_no_decision() -> None:
    """The newest generation is the one to decide about."""
    past = Past()
    first = past.call(*LOST)
    second = past.call(*LOST, generation=2, continues=first, why_new="decision")
    with pytest.raises(DecisionRefusedError, match=f"was continued by {second}"):
        bundle(past.calls[first], past.history, ruling("served"), alive=False)
    assert past.calls[second].evidence is Evidence.LOST


def test_ruling_on_what_was_looked_at_before_something_was_recorded_is_refused() -> None:
    """A look-up takes a minute, and meanwhile the call may have been decided, continued or delivered."""
    past = Past()
    call = past.call(*LOST)
    looked = replace(ruling("served"), looked_at=past.calls[call].last_seq)
    assert bundle(past.calls[call], past.history, looked, alive=False) is not None
    past.step(call, NAMED["call.delivered"])
    with pytest.raises(DecisionRefusedError, match=r"Something was recorded of .* since it was looked at"):
        bundle(past.calls[call], past.history, looked, alive=False)
