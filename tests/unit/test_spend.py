"""Every attempt counts once, as what the record proves of it and as nothing more."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from ledger.stages import Effect
from proxy.audit.attempts import own_attempts
from proxy.audit.money import Between, exactly
from proxy.audit.spend import Category, Item, item_of
from tests.harness.bills import LIMITS, PRICES, USAGE, answered, asked, item, own, state
from tests.harness.histories import Past, Step, observed
from tests.harness.ledgers import NAMED

C = Category
LOST = (*asked(limit=10), "attempt.observed:lost")


@pytest.mark.parametrize(
    ("steps", "requested", "category"),
    [
        (answered(), {}, C.KNOWN),
        (answered(usage=None), {}, C.UNSTATED),
        (answered(model="nobody-knows"), {}, C.UNKNOWN_MODEL),
        (answered(), {"upstream": "nobodys"}, C.UNKNOWN_MODEL),
        (answered(), {"upstream": "local"}, C.FREE),
        (answered(None, Effect.ABSENT, 400), {}, C.ABSENT),
        (answered(None, Effect.ANSWERED, 500), {}, C.POSSIBLY_BILLED_FAILURE),
        (answered(USAGE, Effect.ANSWERED, 200), {}, C.POSSIBLY_BILLED_FAILURE),
        (answered(None, Effect.UNKNOWN, 408), {}, C.POSSIBLY_BILLED_FAILURE),
        (answered(None, Effect.UNKNOWN, 502), {}, C.POSSIBLY_BILLED_FAILURE),
        (answered(None), {"endpoint_class": "state"}, C.NOT_BY_TOKENS),
        ((*asked(), "attempt.observed:not_sent"), {}, C.ABSENT),
        ((*asked(), "attempt.observed:lost"), {}, C.UNKNOWN),
        ((*asked(), observed("partial", 200)), {}, C.UNKNOWN),
        ((*asked(), observed("partial", 500)), {}, C.POSSIBLY_BILLED_FAILURE),
        (asked(), {}, C.UNKNOWN),
        ((*asked(), "attempt.observed:lost", "reconcile.decided:not_served"), {}, C.DECIDED_ABSENT),
        ((*asked(), "attempt.observed:lost", "reconcile.decided:served"), {}, C.UNKNOWN),
        ((*asked(), "attempt.observed:lost", "reconcile.decided:parked"), {}, C.UNKNOWN),
        ((*asked(), "attempt.observed:lost", "reconcile.decided:accept_duplicate"), {}, C.UNKNOWN),
        (("attempt.witnessed",), {}, C.UNKNOWN),
    ],
)
def test_attempt_counts_as_what_is_proven_of_it(
    steps: tuple[Step, ...], requested: dict[str, Any], category: Category
) -> None:
    """Zero only where it is proven, or somebody said so; a failure is no proof of an empty bill."""
    made = item(*steps, **requested)
    assert made.category is category
    if category not in (C.KNOWN, C.UNSTATED, C.POSSIBLY_BILLED_FAILURE, C.UNKNOWN):
        assert made.cost == Between()


def test_stated_tokens_cost_their_price_exactly() -> None:
    """A thousand in and a hundred out; a hundred thousandth of a cent is kept."""
    assert item(*answered()).cost == exactly(Decimal("0.008"))
    assert item(*answered({"prompt_tokens": 1, "completion_tokens": 0})).cost == exactly(Decimal("0.000005"))
    assert item(*answered(tier="flex")).cost == exactly(Decimal("0.004"))


def test_attempt_that_runs_now_is_no_unknown() -> None:
    """Its answer is on its way: the crash that would make it one has not happened."""
    assert item(*asked(), alive=True).category is C.IN_FLIGHT
    assert item(*asked(), alive=False).category is C.UNKNOWN
    assert item(*LOST, alive=True).category is C.UNKNOWN


def test_decision_is_no_proof_of_a_bill() -> None:
    """Served by decision stays between its bounds, and says whose word it is."""
    made = item(*LOST, "reconcile.decided:served")
    assert made.presumption is not None
    assert (made.presumption.mark, "operator" in made.presumption.source) == ("undetermined", True)
    assert made.cost.unbounded == 0 or made.reason


def test_recovered_answer_is_known_after_all() -> None:
    """It was looked up at the provider, with its usage."""
    recovered = NAMED["attempt.observed:recovered"]
    reading = answered()[3]
    made = item(
        *LOST,
        "reconcile.decided:served",
        recovered,
        reading,
        "attempt.retry_decided",
        "attempt.completed",
        "call.completed",
    )
    assert (made.category, made.cost) == (C.KNOWN, exactly(Decimal("0.008")))


@pytest.mark.parametrize(("ended_by", "is_unknown"), [("retrieved", False), ("operator_statement", True)])
def test_answer_that_a_person_brought_is_that_persons_word(ended_by: str, is_unknown: bool) -> None:
    """What the provider gave of itself is on record; a file may be of anything, and proves nothing of another call."""
    recovered = replace(NAMED["attempt.observed:recovered"], ended_by=ended_by)
    closing = (answered()[3], "attempt.retry_decided", "attempt.completed", "call.completed")
    assert own(*LOST, "reconcile.decided:served", recovered, *closing).is_unknown is is_unknown


@pytest.mark.parametrize("decision", ["served", "not_served", "accept_duplicate", "parked"])
def test_decided_attempt_stays_unknown_to_a_bill(decision: str) -> None:
    """A decision is no record of what the provider did."""
    assert own(*LOST, f"reconcile.decided:{decision}").is_unknown
    assert own(*asked(), "attempt.observed:not_sent").is_unknown is False
    assert own(*answered()).is_unknown is False


def test_attempt_knows_the_newest_event_of_its_call() -> None:
    """What is decided by what was read then is void once something more is recorded."""
    calls = [state(*LOST), state(*LOST, "reconcile.decided:parked")]
    seen = [one.last_seq for call in calls for one in own_attempts([call])]
    assert seen == [call.last_seq for call in calls]


def test_attempt_that_another_followed_is_an_accepted_duplicate() -> None:
    """Only where the first may have been served; its own cost does not change."""

    def items(*steps: Step) -> list[Item]:
        past = Past()
        first = past.call(*steps)
        past.call(*answered(), generation=2, continues=first, why_new="decision", accepts_attempt=f"{first}.1")
        return [item_of(each, PRICES, LIMITS) for each in own_attempts(past.calls.values())]

    assert [each.is_duplicate for each in items(*LOST, "reconcile.decided:accept_duplicate")] == [True, False]
    assert [each.is_duplicate for each in items(*answered(None, Effect.ANSWERED, 500))] == [True, False]
    assert [each.is_duplicate for each in items(*LOST, "reconcile.decided:not_served")] == [False, False]
    assert [each.is_duplicate for each in items(*asked(), "attempt.observed:not_sent")] == [False, False]


def test_audio_among_the_cached_tokens_is_stated_as_two_ends() -> None:
    """The usage says not how many were both, so it is no known cost."""
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 10,
        "prompt_tokens_details.cached_tokens": 500,
        "prompt_tokens_details.audio_tokens": 400,
    }
    made = item(*answered(usage, model="gemini-2.5-flash"), upstream="gemini")
    assert made.category is C.UNSTATED
    assert made.cost.lower < made.cost.upper


def test_attempt_knows_its_request_and_when_it_was_sent() -> None:
    """By which a bound is found."""
    attempt = own(*LOST)
    assert (attempt.max_output_tokens, attempt.request_bytes, attempt.superseded) == (10, 60, False)
    assert attempt.started_at_ms is not None
    assert attempt.created_at_ms < attempt.started_at_ms
