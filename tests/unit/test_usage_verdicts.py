"""What may be recorded: only final numbers, only about open calls, with everything that it rests on."""

from dataclasses import replace

import pytest

from ledger.ids import CallId
from ledger.stages import Effect
from proxy.endpoints import Family
from proxy.reconcile.usage_algebra import Verdict
from proxy.reconcile.usage_cells import place
from proxy.reconcile.usage_verdicts import SETTLE_S, Again, Fetched, Report, judge, rulings
from tests.harness.usage_worlds import (
    DAY,
    FETCHED,
    HOUR,
    LONGEST,
    SCOPE,
    SKEW,
    World,
    decided,
    export_of,
    judged,
    small_world,
)

OVER = (
    DAY + 2 * HOUR + HOUR // 2 + LONGEST + SKEW
)  # when the unknown request of the small world can have been counted at the latest


def fetched(made: World, at_ms: int, *, again_s: float | None = 3600, settled: str | None = None) -> Report:
    """Judged by files of then; the second fetch is so much younger."""
    export = export_of(made.pages())
    placement = place([one.attempt for one in made.deeds], export, SCOPE, Family.OPENAI)
    return judge(placement, Fetched(at_ms, None if again_s is None else Again(export, again_s), settled))


def held(report: Report) -> dict[str, str]:
    return {one.name: one.holds for one in report.preconditions}


def test_ruling_carries_all_it_rests_on() -> None:
    """Whoever reads the record can fetch the same and compute it again."""
    made = small_world()
    report = judged(made, made.pages())
    ((call, ruling),) = rulings(report, "the bill", "ada").items()
    assert (call, ruling.decision, ruling.how, ruling.result) == (
        CallId("call_0002"),
        "served",
        "usage_export",
        "matches",
    )
    assert (ruling.reason, ruling.by, ruling.succeeds) == ("the bill", "ada", None)
    assert ruling.looked_at == made.deeds[-1].attempt.last_seq  # what is recorded of it since makes the ruling void
    evidence = ruling.evidence
    assert evidence["exports"] == dict(report.placement.export.files)
    assert evidence["cell"] == "gpt-4o key_1"
    assert evidence["equation"] == report.findings[0].why
    assert set(evidence["preconditions"]) == {
        "exclusive",
        "over",
        "settled",
        "calibrated",
        "mapped",
        "named",
        "key",
        "one",
    }
    assert (evidence["fetched_ms"], "relies_on" in evidence) == (FETCHED, False)
    assert evidence["hypotheses"]


def test_not_billed_is_ruled_not_served_only_where_the_bill_is_the_whole_effect() -> None:
    """Not of an answer that had begun, and not where something is made that stays."""
    made = small_world("absent")
    ((_, ruling),) = rulings(judged(made, made.pages()), "the bill", "ada").items()
    assert (ruling.decision, ruling.result) == ("not_served", "absent_conclusive")
    begun = small_world("absent", effect=Effect.HAPPENED, ended="partial", status=200)
    report = judged(begun, begun.pages())
    assert (report.findings[0].verdict, rulings(report, "the bill", "ada")) == (Verdict.NOT_BILLED, {})


@pytest.mark.parametrize(
    ("endpoint_class", "dialect", "is_ruled"),
    [
        *(("generate", name, True) for name in ("openai_chat", "openai_responses", "anthropic_messages", "gemini")),
        ("generate", "generic", False),
        ("state", "openai_chat", False),
        ("job", "openai_responses", False),
    ],
)
def test_not_billed_is_ruled_only_of_requests_that_are_read(endpoint_class: str, dialect: str, is_ruled: bool) -> None:
    """A thread's run is a generation too: it has a state, and tools that its body does not name."""
    made = small_world("absent", endpoint_class=endpoint_class, dialect=dialect)
    assert bool(rulings(judged(made, made.pages()), "the bill", "ada")) is is_ruled


def test_embedding_not_billed_is_ruled() -> None:
    """It has no dialect of its own, and no effect but its bill."""
    made = small_world("absent")
    made.deeds[:] = [
        replace(one, attempt=replace(one.attempt, endpoint_class="stateless_billed", dialect="generic"))
        for one in made.deeds
    ]
    pages = made.pages()
    for bucket in pages["data"]:
        for row in bucket["results"]:
            row["object"] = "organization.usage.embeddings.result"
    ((_, ruling),) = rulings(judged(made, pages), "the bill", "ada").items()
    assert ruling.decision == "not_served"


def test_superseded_or_parked_call_is_not_ruled() -> None:
    """Somebody decided, or another call carries on."""
    for changes in ({"superseded": True}, {"decision": "parked"}):
        made = small_world(**changes)
        report = judged(made, made.pages())
        assert (report.findings[0].verdict, rulings(report, "the bill", "ada")) == (Verdict.SERVED, {})


def test_without_second_fetch_nothing_is_ruled() -> None:
    """The verdict is what it would be."""
    made = small_world()
    report = judged(made, made.pages(), again=False)
    assert (report.final, held(report)["settled"], report.findings[0].verdict) == (False, "not shown", Verdict.SERVED)
    assert rulings(report, "the bill", "ada") == {}


def test_stated_reason_stands_in_for_the_second_fetch() -> None:
    """And goes on record."""
    report = fetched(small_world(), FETCHED, again_s=None, settled="a month old")
    (ruling,) = rulings(report, "the bill", "ada").values()
    assert ruling.evidence["preconditions"]["settled"] == "stated: a month old"


def test_second_fetch_that_differs_or_comes_too_soon_is_not_settled() -> None:
    """Differs: no verdict at all. Too soon: not yet."""
    made = small_world()
    first = export_of(made.pages())
    placement = place([one.attempt for one in made.deeds], first, SCOPE, Family.OPENAI)
    soon = judge(placement, Fetched(FETCHED, Again(first, 10)))
    assert (held(soon)["settled"], soon.final) == ("not shown", False)
    pages = made.pages()
    pages["data"][2]["results"][0]["output_tokens"] += 1
    grown = judge(placement, Fetched(FETCHED, Again(export_of(pages), 3600)))
    assert (held(grown)["settled"], grown.final, grown.findings[0].verdict) == ("no", False, Verdict.UNDECIDED)
    pages = made.pages()  # in the window that shows what is counted
    pages["data"][1]["results"][0]["num_model_requests"] += 1
    learnt = judge(placement, Fetched(FETCHED, Again(export_of(pages), 3600)))
    assert (held(learnt)["settled"], learnt.final) == ("no", False)


@pytest.mark.parametrize("settled", [None, "a month old"])
def test_file_from_before_the_end_of_what_it_counts_is_never_final(settled: str | None) -> None:
    """The provider may have worked on, and counted it behind the fetch; nobody's word changes that."""
    report = fetched(small_world("absent"), OVER, settled=settled)
    assert (held(report)["over"], report.final) == ("no", False)
    assert (report.findings[0].verdict, rulings(report, "the bill", "ada")) == (Verdict.UNDECIDED, {})
    assert "may go on until" in report.findings[0].why


def test_first_fetch_soon_after_the_end_is_not_settled() -> None:
    """Two fetches that agree within the provider's delay say only that it has one; the margin alone may be stated."""
    early, late = OVER + int(SETTLE_S * 1000) - 1, OVER + int(SETTLE_S * 1000)
    made = small_world("absent")
    reports = [fetched(made, early), fetched(made, early, settled="it counts at once"), fetched(made, late)]
    assert [(held(one)["over"], held(one)["settled"], one.final) for one in reports] == [
        ("yes", "not shown", False),
        ("yes", "stated", True),
        ("yes", "yes", True),
    ]


def test_window_that_shows_what_is_counted_has_to_be_over_too() -> None:
    """Errors that are counted late would teach that errors are not counted."""
    made = small_world("absent")
    end = DAY + 6 * HOUR + HOUR // 2
    late = replace(made.deeds[0].attempt, started_at_ms=end - HOUR // 4, ended_at_ms=end)
    made.deeds[0] = replace(made.deeds[0], attempt=late, counted_ms=end)
    assert held(fetched(made, end + SKEW))["over"] == "no"
    assert held(fetched(made, end + SKEW + 1))["over"] == "yes"


def test_decision_makes_a_second_run_say_and_rule_nothing() -> None:
    """It converges: what was decided by it is not ruled about again."""
    made = small_world()
    made.deeds[-1] = decided(made.deeds[-1])
    report = judged(made, made.pages())
    assert (report.alarms, report.findings, rulings(report, "the bill", "ada")) == ((), (), {})


def test_no_cell_without_unknowns_calibrates_nothing() -> None:
    """What the provider counts is then a guess."""
    made = small_world()
    alone = replace(made, deeds=made.deeds[1:])
    report = judged(alone, alone.pages())
    assert (held(report)["calibrated"], report.findings[0].verdict) == ("not shown", Verdict.UNDECIDED)


def test_two_keys_without_a_word_whose_they_are_prove_nothing() -> None:
    """Requests of another key are not exclusive."""
    made = small_world()
    pages = made.pages()
    pages["data"][1]["results"][0]["api_key_id"] = "key_2"
    report = judged(made, pages)
    assert (held(report)["key"], report.final) == ("no", False)
    assert report.findings[0].verdict is Verdict.UNDECIDED
