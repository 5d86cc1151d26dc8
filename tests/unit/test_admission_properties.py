"""What `decide` never does, on pasts drawn from the ladder's own table: several occurrences, generations, any liveness."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.calls import CallState
from ledger.claims import claim_fault
from ledger.events import PROTOCOL, AttemptAcknowledged, AttemptInterpreted, CallDelivered
from ledger.ids import Digest
from ledger.ladder import NEXT, Evidence
from ledger.stages import Effect, Stage
from proxy.admission import Ask, Forward, Live, Now, Policy, Verdict, Wait, decide
from tests.harness.histories import Past, Step, observed, requested_by, steps_to
from tests.harness.ledgers import DIGEST, MANIFEST, NOW_MS, OPERATOR, PATHS, call_id

OTHER = Digest("0" * 64)
STATUSES = (200, 429, 500, 502)
UNRESOLVED_STAGES = (Stage.EFFECT_UNKNOWN, Stage.EFFECT_HAPPENED)
SETTINGS = ("on_unknown", "after_server_error", "after_gateway_error", "after_cut_stream")
VARIANTS: dict[str, tuple[Step, ...]] = {
    "call.manifest": (MANIFEST, replace(MANIFEST, context={"sendonce-task": "t"})),
    "attempt.acknowledged": tuple(AttemptAcknowledged(status, (), {}) for status in STATUSES),
    "attempt.observed:response": tuple(observed("response", s, kept=kept) for s in STATUSES for kept in (True, False)),
    "attempt.observed:partial": tuple(observed("partial", s, ended_by=e) for s in STATUSES for e in ("x", "client_abort")),
    "attempt.interpreted": tuple(AttemptInterpreted(1, "read", effect) for effect in Effect),
    "call.delivered": tuple(CallDelivered(how, "forwarded") for how in ("fin", "acked", "next_request", "no")),
}  # fmt: skip


@st.composite
def pasts(draw: st.DrawFn, source: Any) -> Past:
    """Only what the ladder and I3 let be written; decisions that the projection refuses make a corruption, rarely."""
    past = Past(source, draw(st.sampled_from([PROTOCOL] * 4 + ["other/1"])))
    for occurrence in range(1, draw(st.integers(0, 1 if source == "explicit" else 3)) + 1):
        call = past.call(*(() if draw(st.integers(0, 9)) else ("attempt.witnessed",)), occurrence=occurrence)
        walk(draw, past, call)
        state = past.calls[call]
        accepts = f"{call}.{state.attempt.number}" if state.attempt else None
        from_here: dict[str, Any] = {"continues": call, "why_new": "decision", "accepts_attempt": accepts}
        more = requested_by(past, occurrence, 2, **from_here, authority=OPERATOR)
        if draw(st.booleans()) and claim_fault(more, state, occurrence) is None and not state.fault:
            walk(draw, past, past.call(occurrence=occurrence, generation=2, **from_here))
    return past


def walk(draw: st.DrawFn, past: Past, call: Any) -> None:
    for _ in range(draw(st.integers(0, 10))):
        state = past.calls[call]
        if state.fault:
            return
        step = draw(st.sampled_from(sorted(NEXT[state.evidence]) or [""]))
        if step:
            past.step(call, draw(st.sampled_from(VARIANTS.get(step, (step,)))))


asks = st.builds(
    Ask,
    key_source=st.just("derived"),
    intent_digest=st.just(DIGEST),
    body_digest=st.just(DIGEST),
    url=st.just("http://up/v1/x"),
    caller_exact=st.sampled_from(["exact", "other"]),
    certain_retry=st.booleans(),
    accepts_attempt=st.sampled_from([None, f"{call_id(1)}.1", f"{call_id(2)}.1"]),
    context=st.sampled_from([{}, {"sendonce-task": "t"}]),
)
policies = st.builds(Policy, **{name: st.booleans() for name in SETTINGS})
nows = st.builds(
    Now,
    at_ms=st.sampled_from([NOW_MS, NOW_MS + 10**6]),
    late_retry_ms=st.just(1000),
    settled=st.booleans(),
    waited_for_close=st.booleans(),
    owed_first_try=st.booleans(),
)
lives = st.builds(Live, alive=st.booleans(), claimed=st.booleans(), delivered=st.booleans())


@st.composite
def situations(draw: st.DrawFn) -> tuple[Ask, Past, dict[Any, Live], Policy, Now]:
    source: Any = draw(st.sampled_from(["explicit", "derived", "derived"]))
    past = draw(pasts(source))
    ask = replace(draw(asks), key_source=source, intent_digest=draw(st.sampled_from([DIGEST] * 5 + [OTHER])))
    if source == "derived":
        ask = replace(ask, intent_digest=DIGEST)  # the key is made of it
    live = {call: draw(lives) for call in past.calls}
    return ask, past, live, draw(policies), draw(nows)


def judged(situation: tuple[Ask, Past, dict[Any, Live], Policy, Now]) -> Verdict:
    ask, past, live, policy, now = situation
    return decide(ask, past.history, live, policy, now)


def newest(past: Past) -> list[CallState]:
    return [state for state in past.calls.values() if state.superseded_by is None]


def is_unresolved(state: CallState) -> bool:
    """Only a decision or an acceptance leads out of it."""
    undecided = state.stage is Stage.COMPLETED and state.effect in (Effect.UNKNOWN, Effect.ANSWERED)
    return state.stage in UNRESOLVED_STAGES or undecided


@settings(max_examples=600, deadline=None)
@given(situations())
def test_any_past_gives_a_verdict(situation: Any) -> None:
    """Total: nothing raises on what the ledger can hold; and a Wait is for a call there is."""
    verdict = judged(situation)
    if isinstance(verdict, Wait):
        assert set(verdict.calls) <= set(situation[1].calls)


@settings(max_examples=600, deadline=None)
@given(situations())
def test_forward_can_always_be_claimed(situation: Any) -> None:
    """The store's own rule (I3) accepts every plan: a Forward never ends in an error at the write."""
    ask, past, _, _, _ = situation
    plan = judged(situation)
    if not isinstance(plan, Forward):
        return
    requested = requested_by(
        past,
        plan.occurrence,
        plan.generation,
        why_new=plan.why_new,
        continues=plan.continues.call if plan.continues else None,
        accepts_attempt=plan.accepts_attempt,
        authority=plan.authority,
        evidence=plan.evidence,
    )
    assert claim_fault(requested, plan.continues, past.history.last_occurrence) is None
    assert ask.key_source == "derived" or plan.occurrence == 1


@settings(max_examples=800, deadline=None)
@given(situations())
def test_forward_over_an_unresolved_effect_has_its_acceptance(situation: Any) -> None:
    """A continuation of it names attempt and authority; a new occurrence beside it needs a setting that accepts it."""
    _, past, live, policy, _ = situation
    plan = judged(situation)
    if not isinstance(plan, Forward):
        return
    if plan.continues is not None and plan.continues.effect is not Effect.ABSENT:
        assert plan.accepts_attempt is not None
        assert plan.authority is not None
    if plan.continues is None:
        refused = [
            state for state in newest(past) if is_unresolved(state) and not live[state.call].alive
            and not any(getattr(policy, name) for name in SETTINGS)
        ]  # fmt: skip
        assert refused == []
        assert all(state.stage is not Stage.CORRUPTION for state in newest(past))


@settings(max_examples=800, deadline=None)
@given(situations())
def test_certain_retry_makes_no_new_occurrence_beside_an_open_one(situation: Any) -> None:
    """Unless a first try is owed to the key: then this is a retry of that one."""
    ask, past, live, policy, now = situation
    plan = decide(replace(ask, certain_retry=True), past.history, live, policy, replace(now, owed_first_try=False))
    if not isinstance(plan, Forward) or plan.why_new != "second_sample":
        return
    for state in newest(past):
        assert not live[state.call].alive
        over = state.stage is Stage.COMPLETED and state.effect is Effect.HAPPENED and state.delivered
        assert over or not live[state.call].claimed


@settings(max_examples=300, deadline=None)
@given(situations())
def test_same_facts_give_the_same_verdict(situation: Any) -> None:
    """Pure: nothing but the arguments counts."""
    assert judged(situation) == judged(situation)


@pytest.mark.parametrize("source", ["explicit", "derived"])
@pytest.mark.parametrize("evidence", [evidence for evidence in PATHS if evidence is not Evidence.NOTHING])
def test_every_rung_has_a_verdict_whatever_is_live(evidence: Evidence, source: Any) -> None:
    """The drawn walks may miss a rung; this one misses none."""
    past = Past(source)
    call = past.call(*steps_to(evidence))
    assert past.calls[call].evidence is evidence
    ask = Ask(source, DIGEST, DIGEST, "http://up/v1/x", "exact")
    for flags in product([True, False], repeat=5):
        live, certain_retry, owed = Live(*flags[:3]), flags[3], flags[4]
        now = Now(NOW_MS, 1000, owed_first_try=owed)
        verdict = decide(replace(ask, certain_retry=certain_retry), past.history, {call: live}, Policy(), now)
        assert isinstance(verdict, Verdict)
