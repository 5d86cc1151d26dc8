"""Rows for people and programs: every state has its sentence, the fields are stable, nothing in flight looks open."""

import orjson
import pytest

from ledger.events import AttemptInterpreted, CallDelivered, PassServed
from ledger.ids import Scope
from ledger.ladder import Evidence
from ledger.stages import Effect
from proxy.views import call_detail, call_row, instant, reason, since_of
from tests.harness.histories import STARTED, Past, Step, completed, observed, one, steps_to
from tests.harness.ledgers import NOW_MS, PATHS, RUN, RUN_SCOPE

EVIDENCE = [evidence for evidence in PATHS if evidence is not Evidence.NOTHING]
RISKY = {
    Evidence.STARTED, Evidence.ACKNOWLEDGED, Evidence.LOST, Evidence.PARTIAL, Evidence.WITNESSED, Evidence.COMPLETED,
}  # fmt: skip


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_every_evidence_has_a_sentence_of_its_own(evidence: Evidence) -> None:
    """One sentence, no placeholder left, with the attempt's time where it matters."""
    state = one(*steps_to(evidence))
    sentence = reason(state)
    assert state.evidence is evidence
    assert sentence.endswith(".")
    assert "{" not in sentence
    others = {reason(one(*steps_to(other))) for other in EVIDENCE if other is not evidence}
    assert sentence not in others


@pytest.mark.parametrize("alive", [True, False, None])
@pytest.mark.parametrize("evidence", EVIDENCE)
def test_row_of_any_state_is_json_and_never_calls_the_living_open(evidence: Evidence, alive: bool | None) -> None:
    """In flight: nothing to do, no risk. Else the projection's word; unresolved ones carry the risk."""
    state = one(*steps_to(evidence))
    row = orjson.loads(orjson.dumps(call_row(state, alive)))
    assert row["alive"] is alive
    if alive:
        assert (row["next_operation"], row["duplicate_effect_risk"], row["reason"]) == (
            "none",
            False,
            "It is in flight.",
        )
    else:
        assert row["next_operation"] == state.next_operation
        assert row["duplicate_effect_risk"] is (evidence in RISKY)
    assert orjson.dumps(call_detail(state, alive, []))


def test_row_prefers_what_the_provider_said_of_itself() -> None:
    """Model and usage by the newest interpretation; the request's model where there is none."""
    reading = AttemptInterpreted(1, "succeeded", Effect.HAPPENED, "stop", {"total_tokens": 3}, {"id": "x"}, "m-2026")
    row = call_row(one(*STARTED, observed("response"), reading), alive=False)
    assert (row["model"], row["usage"], row["finish_reason"]) == ("m-2026", {"total_tokens": 3}, "stop")
    row = call_row(one(*STARTED), alive=False)
    assert (row["model"], row["usage"], row["outcome"]) == ("m", None, None)


def test_superseded_and_corrupt_calls_say_why() -> None:
    """By which call; and what contradicts what."""
    past = Past()
    first = past.call("call.manifest")
    second = past.call("call.manifest", generation=2, continues=first, why_new="resumed")
    assert reason(past.calls[first]) == f"It was continued by {second}."
    corrupt = one("call.completed")
    assert reason(corrupt).startswith("The record contradicts itself: call.completed may not follow requested")
    assert call_detail(corrupt, None, [])["unresolved"] is True


def test_detail_answers_what_was_decided_in_order() -> None:
    """Each decision with its seq, which a succeeding one has to name."""
    past = Past()
    call = past.call(*STARTED, "reconcile.decided:parked", "reconcile.decided:served")
    document = call_detail(past.calls[call], None, past.records)
    assert [decision["decision"] for decision in document["decisions"]] == ["parked", "served"]
    assert [decision["seq"] for decision in document["decisions"]] == [4, 5]
    assert len(document["events"]) == len(past.records)
    assert document["unresolved"] is False


def test_since_is_when_the_newest_attempt_started() -> None:
    """Else when the call was requested; a witnessed attempt has no time of its own."""
    assert since_of(one(*STARTED)) == instant(NOW_MS + 3)
    assert since_of(one()) == instant(NOW_MS + 1)
    assert since_of(one("attempt.witnessed")) == instant(NOW_MS + 1)


@pytest.mark.parametrize(
    ("scope", "steps", "run", "number"),
    [
        (Scope("openai/caller"), (), None, None),
        (RUN_SCOPE, (), RUN, None),
        (RUN_SCOPE, ("pass.served",), RUN, 1),
        (RUN_SCOPE, ("pass.served", PassServed(RUN, 7, "replayed")), RUN, 7),
    ],
)
def test_row_names_the_run_and_its_newest_pass(
    scope: Scope, steps: tuple[Step, ...], run: str | None, number: int | None
) -> None:
    """Stable fields; the pass is the newest one that was given this call, and what is delivered to it is said of it."""
    past = Past()
    call = past.call(*completed(Effect.HAPPENED), *steps, CallDelivered("fin", "replayed", number), scope=scope)
    row = call_row(past.calls[call], alive=False)
    assert (row["run"], row["pass"], row["delivered"]) == (run, number, ["fin"])


def test_completed_answer_is_at_no_risk() -> None:
    """Proven and kept: the same request is replayed."""
    row = call_row(one(*completed(Effect.HAPPENED)), alive=None)
    assert (row["next_operation"], row["duplicate_effect_risk"]) == ("none", False)
