"""What may be recorded: only final numbers, only about open calls, with everything that it rests on."""

from dataclasses import replace

from ledger.ids import CallId
from ledger.stages import Effect
from proxy.endpoints import Family
from proxy.reconcile.usage_algebra import Verdict
from proxy.reconcile.usage_cells import place
from proxy.reconcile.usage_verdicts import Again, Report, judge, rulings
from tests.harness.usage_worlds import SCOPE, export_of, judged, small_world


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
    evidence = ruling.evidence
    assert evidence["exports"] == dict(report.placement.export.files)
    assert evidence["cell"] == "gpt-4o key_1"
    assert evidence["equation"] == report.findings[0].why
    assert set(evidence["preconditions"]) == {"exclusive", "settled", "calibrated", "mapped", "key", "one"}
    assert evidence["hypotheses"]


def test_not_billed_is_ruled_not_served_only_where_the_bill_is_the_whole_effect() -> None:
    """Not of an answer that had begun, and not where something is made that stays."""
    made = small_world("absent")
    ((_, ruling),) = rulings(judged(made, made.pages()), "the bill", "ada").items()
    assert (ruling.decision, ruling.result) == ("not_served", "absent_conclusive")
    begun = small_world("absent", effect=Effect.HAPPENED, ended="partial", status=200)
    report = judged(begun, begun.pages())
    assert (report.findings[0].verdict, rulings(report, "the bill", "ada")) == (Verdict.NOT_BILLED, {})


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
    made = small_world()
    placement = place([one.attempt for one in made.deeds], export_of(made.pages()), SCOPE, Family.OPENAI)
    report = judge(placement, None, "a month old")
    (ruling,) = rulings(report, "the bill", "ada").values()
    assert ruling.evidence["preconditions"]["settled"] == "stated: a month old"


def test_second_fetch_that_differs_or_comes_too_soon_is_not_settled() -> None:
    """Differs: no verdict at all. Too soon: not yet."""
    made = small_world()
    first = export_of(made.pages())
    placement = place([one.attempt for one in made.deeds], first, SCOPE, Family.OPENAI)
    soon = judge(placement, Again(first, 10), None)
    assert (held(soon)["settled"], soon.final) == ("not shown", False)
    pages = made.pages()
    pages["data"][2]["results"][0]["output_tokens"] += 1
    grown = judge(placement, Again(export_of(pages), 3600), None)
    assert (held(grown)["settled"], grown.final, grown.findings[0].verdict) == ("no", False, Verdict.UNDECIDED)


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
