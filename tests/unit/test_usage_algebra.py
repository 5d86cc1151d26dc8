"""What an export proves, case by case: the plain ones, and those in which it proves nothing."""

from dataclasses import replace

import pytest

from proxy.reconcile.usage_algebra import Verdict
from tests.harness.usage_worlds import (
    DAY,
    HOUR,
    SCOPE,
    Deed,
    World,
    decided,
    judged,
    lies,
    own,
    result,
    verdicts,
)


def deed(number: int, kind: str, truth: str, hour: int, tokens_in: int = 107, tokens_out: int = 50) -> Deed:
    """In the middle of an hour, at gpt-4o."""
    start = DAY + hour * HOUR + 1_800_000
    tokens = (tokens_in, 0, tokens_out)
    return Deed(own(number, "gpt-4o", kind, start, start + 5_000, tokens), truth, start + 2_000, tokens)


def answers(*hours: int, first: int = 0) -> list[Deed]:
    return [deed(first + at, "answer", "served", hour, 100 + 17 * (first + at)) for at, hour in enumerate(hours)]


def test_one_more_request_with_tokens_than_answers_is_served() -> None:
    """The plain case: 3 requests, 2 answers, and tokens that only the unknown one can have used."""
    world = World([*answers(1, 2, 2), deed(9, "unknown", "served", 2)], counts_refused=False, counts_failed=0)
    report = judged(world, world.pages())
    assert (report.final, verdicts(report)) == (True, {"call_0009.1": Verdict.SERVED})
    assert "3 requests, 2 own answers, 1 unknown, input tokens 107 left for it (at most 428)" in report.findings[0].why


def test_no_more_than_the_answers_is_not_billed() -> None:
    """Every bucket where it may stand has its row, and every row is ours to the last token."""
    world = World([*answers(1, 2, 2), deed(9, "unknown", "absent", 2)], counts_refused=False, counts_failed=0)
    report = judged(world, world.pages())
    assert verdicts(report) == {"call_0009.1": Verdict.NOT_BILLED}
    assert report.findings[0].settles


def test_cell_without_any_row_proves_nothing() -> None:
    """Its row may have been dropped, or not written yet."""
    world = World([*answers(1, 2), deed(9, "unknown", "absent", 4)], counts_refused=False, counts_failed=0)
    assert verdicts(judged(world, world.pages())) == {"call_0009.1": Verdict.UNDECIDED}


def test_unknown_may_stand_in_bucket_without_row_is_undecided() -> None:
    """Started 12:50, it may have been counted at 13:05, where there is no row that could say that it was not."""
    late = deed(9, "unknown", "absent", 2)
    moved = replace(late.attempt, started_at_ms=DAY + 2 * HOUR + 3_000_000)
    world = World([*answers(1, 2, 2), replace(late, attempt=moved)], counts_refused=False, counts_failed=0)
    assert verdicts(judged(world, world.pages())) == {"call_0009.1": Verdict.UNDECIDED}


def test_row_without_an_answer_of_ours_may_be_anybodys() -> None:
    """It has just what the unknown request would have, in a bucket where that may stand and nothing else of ours does."""
    late = deed(9, "unknown", "absent", 2)
    moved = replace(late.attempt, started_at_ms=DAY + 2 * HOUR + 3_000_000)
    world = World([*answers(1, 2, 2), replace(late, attempt=moved)], counts_refused=False, counts_failed=0)
    pages = world.pages()
    pages["data"][3]["results"].append(result("gpt-4o", 1, *late.tokens))
    report = judged(world, pages)
    assert (report.alarms, verdicts(report)) == ((), {"call_0009.1": Verdict.UNDECIDED})
    assert "may be somebody else's" in report.findings[0].why


def test_exchanged_twins_are_undecided() -> None:
    """Two cells with the same answers, an unknown request in each, and one of them served: their rows may have changed places."""
    twins = [deed(at, "answer", "served", hour) for at, hour in ((1, 3), (2, 4))]
    unknown = [deed(8, "unknown", "served", 3, 50), deed(9, "unknown", "absent", 4, 50)]
    world = World([*answers(1), *twins, *unknown], counts_refused=False, counts_failed=0)
    report = judged(world, world.pages())
    assert set(verdicts(report).values()) == {Verdict.UNDECIDED}
    assert "rows of another cell would fit here too" in report.findings[0].why


def test_answers_across_the_edges_do_not_hide_an_unknown() -> None:
    """A busy key has one across each hour, and across both ends of the export; which side each stands on is found from its tokens."""
    hours = [deed(at, "answer", "served", at, 1000 + 37 * at) for at in range(8)]
    across = []
    for at in range(9):
        start, tokens = DAY + at * HOUR - 2_000, (50_000 + 1_111 * at, 0, 70 + at)
        across.append(
            Deed(own(30 + at, "gpt-4o", "answer", start, start + 4_000, tokens), "served", start + at * 500, tokens)
        )
    for truth, verdict in (("served", Verdict.SERVED), ("absent", Verdict.NOT_BILLED)):
        world = World([*hours, *across, deed(20, "unknown", truth, 3)], counts_refused=False, counts_failed=0)
        report = judged(world, world.pages())
        assert (report.alarms, report.final, verdicts(report)) == ((), True, {"call_0020.1": verdict})


def test_cell_that_lacks_a_row_calibrates_nothing() -> None:
    """The row of counted refusals was dropped: that refusals are not counted is then no evidence."""
    counted = []
    for at in range(7):  # more than are tried on both sides, so the two hours are one window
        start, tokens = DAY + HOUR + 1_000, (300 + at, 0, 0)
        about = own(40 + at, "gpt-4o", "refused", start, start + 1_000, tokens)
        counted.append(Deed(about, "refused", DAY + HOUR - 1_000, tokens))
    unknown = [deed(8, "unknown", "served", 3), deed(9, "unknown", "refused", 3)]
    known = [*answers(1, 3, 3), deed(6, "failed", "failed", 1), *counted]
    world = World([*known, *unknown], counts_refused=True, counts_failed=0)
    pages = world.pages()
    assert pages["data"][0]["results"].pop()["num_model_requests"] == 7
    report = judged(world, pages)
    assert set(verdicts(report).values()) == {Verdict.UNDECIDED}
    assert lies(world, report) == []


def test_nothing_billed_of_what_may_act_at_the_provider_is_undecided() -> None:
    """A tool that the provider runs may have run without a bill."""
    world = World([*answers(1, 2, 2), deed(9, "unknown", "absent", 2)], counts_refused=False, counts_failed=0)
    scope = replace(SCOPE, several=lambda one: "a tool runs there" if one.attempt == "call_0009.1" else None)
    report = judged(world, world.pages(), scope)
    assert verdicts(report) == {"call_0009.1": Verdict.UNDECIDED}
    assert "a tool runs there, so the bill is not all that it can have done" in report.findings[0].why


def test_nothing_billed_of_what_names_something_elsewhere_is_undecided() -> None:
    """It may have been read, or added to; that it was served, its tokens still prove."""
    scope = replace(SCOPE, acts=lambda _: "the request has the field conversation")
    for truth, verdict in (("absent", Verdict.UNDECIDED), ("served", Verdict.SERVED)):
        world = World([*answers(1, 2, 2), deed(9, "unknown", truth, 2)], counts_refused=False, counts_failed=0)
        assert verdicts(judged(world, world.pages(), scope)) == {"call_0009.1": verdict}


def test_model_that_no_answer_ever_named_is_undecided() -> None:
    """The only cell there is need not be its own."""
    stray = deed(9, "unknown", "absent", 2)
    mini = replace(stray.attempt, model="gpt-4o-mini", asked_model="gpt-4o-mini")
    world = World([*answers(1, 2, 2), replace(stray, attempt=mini)], counts_refused=False, counts_failed=0)
    report = judged(world, world.pages())
    assert verdicts(report) == {"call_0009.1": Verdict.UNDECIDED}
    assert "no answer on record says what gpt-4o-mini is called" in report.findings[0].why


def test_one_of_two_served_is_decided_by_bytes_alone() -> None:
    """Only the long one can have used that many tokens."""
    long, short = deed(8, "unknown", "served", 2, 9_000), deed(9, "unknown", "absent", 2, 10)
    world = World([*answers(1, 2, 2), long, short], counts_refused=False, counts_failed=0)
    assert verdicts(judged(world, world.pages())) == {"call_0008.1": Verdict.SERVED, "call_0009.1": Verdict.NOT_BILLED}


def test_one_of_two_alike_is_undecided() -> None:
    """How many, but not which."""
    world = World(
        [*answers(1, 2, 2), deed(8, "unknown", "served", 2), deed(9, "unknown", "absent", 2)],
        counts_refused=False,
        counts_failed=0,
    )
    assert set(verdicts(judged(world, world.pages())).values()) == {Verdict.UNDECIDED}


def test_two_of_two_are_served_only_once_failures_are_shown_not_to_count() -> None:
    """Else one of them may have been an error answer that is counted, and the other has all the tokens."""
    unknown = [deed(8, "unknown", "served", 2), deed(9, "unknown", "served", 2)]
    world = World([*answers(1, 2, 2), *unknown], counts_refused=False, counts_failed=0)
    assert set(verdicts(judged(world, world.pages())).values()) == {Verdict.UNDECIDED}
    errors = [deed(6, "refused", "refused", 1), deed(7, "failed", "failed", 1)]
    world = World([*answers(1, 2, 2), *errors, *unknown], counts_refused=False, counts_failed=0)
    assert set(verdicts(judged(world, world.pages())).values()) == {Verdict.SERVED}


def test_seventeen_unknowns_all_served_are_decided_without_trying_every_subset() -> None:
    """As many requests left as unknowns: nothing is left to choose."""
    errors = [deed(6, "refused", "refused", 1), deed(7, "failed", "failed", 1)]
    unknown = [deed(20 + at, "unknown", "served", 2, 500 + at) for at in range(17)]
    world = World([*answers(1, 2, 2), *errors, *unknown], counts_refused=False, counts_failed=0)
    assert set(verdicts(judged(world, world.pages())).values()) == {Verdict.SERVED}


def test_tokens_alone_prove_what_was_billed() -> None:
    """Anthropic counts no requests: tokens left are the unknown one's, none left is nothing billed."""
    for truth, verdict in (("served", Verdict.SERVED), ("absent", Verdict.NOT_BILLED)):
        world = World([*answers(1, 2, 2), deed(9, "unknown", truth, 2)], False, 0, tokens_only=True)
        report = judged(world, world.pages())
        assert verdicts(report) == {"call_0009.1": verdict}
        assert "requests" not in report.findings[0].why


def test_thirty_unknowns_half_served_end_undecided_in_bounded_time() -> None:
    """The search has a limit, and beyond it there is no verdict."""
    unknown = [deed(20 + at, "unknown", "served" if at % 2 else "absent", 2, 500 + at) for at in range(30)]
    world = World([*answers(1, 2, 2), *unknown], counts_refused=False, counts_failed=0)
    assert set(verdicts(judged(world, world.pages())).values()) == {Verdict.UNDECIDED}


def test_more_requests_than_the_record_has_is_an_alarm() -> None:
    """Somebody else's request: then no cell of the export proves anything."""
    world = World([*answers(1, 2, 2), deed(9, "unknown", "served", 2)], counts_refused=False, counts_failed=0)
    pages = world.pages()
    pages["data"][1]["results"][0]["num_model_requests"] += 1
    report = judged(world, pages)
    assert "more than the record can account for" in report.alarms[0]
    assert set(verdicts(report).values()) == {Verdict.UNDECIDED}


def test_decided_attempts_are_none_of_the_unknown_ones() -> None:
    """A second run after the decisions agrees with them and finds nothing more to decide."""
    unknown = [deed(8, "unknown", "served", 2), deed(9, "unknown", "absent", 3)]
    world = World([*answers(1, 2, 2, 3), *unknown], counts_refused=False, counts_failed=0)
    pages = world.pages()
    assert set(verdicts(judged(world, pages)).values()) == {Verdict.SERVED, Verdict.NOT_BILLED}
    after = replace(world, deeds=[decided(one) if not one.known else one for one in world.deeds])
    report = judged(after, pages)
    assert (report.alarms, report.findings) == ((), ())


@pytest.mark.parametrize(("truth", "decision"), [("absent", "served"), ("served", "not_served")])
def test_decision_that_the_export_contradicts_is_said_and_not_replaced(truth: str, decision: str) -> None:
    """A person decided it, and a person has to see that it was wrong."""
    wrong = decided(deed(9, "unknown", truth, 2), decision)
    world = World([*answers(1, 2, 2), wrong], counts_refused=False, counts_failed=0)
    report = judged(world, world.pages())
    (found,) = report.findings
    assert (report.alarms, found.settles) == ((), False)
    assert found.verdict is (Verdict.SERVED if truth == "served" else Verdict.NOT_BILLED)
    assert f"it was decided {decision} on record, which only a person replaces" in found.why


@pytest.mark.parametrize("decision", ["served", "not_served", "accept_duplicate", "parked"])
@pytest.mark.parametrize(("first", "second"), [("absent", "served"), ("served", "absent")])
def test_what_a_person_said_of_one_call_proves_nothing_of_another(decision: str, first: str, second: str) -> None:
    """Two in one cell, one of them served: which one it was is in no export, whatever was decided about the other."""
    said = decided(deed(8, "unknown", first, 2), decision)
    world = World([*answers(1, 2, 2), said, deed(9, "unknown", second, 2)], counts_refused=False, counts_failed=0)
    report = judged(world, world.pages())
    assert (report.alarms, verdicts(report)["call_0009.1"]) == ((), Verdict.UNDECIDED)
    assert "2 unknown, 1 of them decided, which proves nothing" in report.findings[-1].why


def test_attempt_without_time_leaves_its_models_cells_undecided() -> None:
    """It may be the request that is left over."""
    ghost = replace(
        deed(7, "unknown", "absent", 2),
        attempt=replace(own(7, "gpt-4o", "unknown", 0, 0, (1, 0, 0)), started_at_ms=None),
    )
    world = World([*answers(1, 2, 2), ghost, deed(9, "unknown", "served", 2)], counts_refused=False, counts_failed=0)
    assert set(verdicts(judged(world, world.pages())).values()) == {Verdict.UNDECIDED}


def test_call_in_flight_is_undecided_in_every_window() -> None:
    """It may be counted an hour from now."""
    world = World([*answers(1, 2, 2), deed(9, "unknown", "absent", 2)], counts_refused=False, counts_failed=0)
    report = judged(world, world.pages(), replace(SCOPE, alive=frozenset({"call_0009"})))
    assert [(one.verdict, one.why) for one in report.findings] == [(Verdict.UNDECIDED, "it is in flight")]


def test_call_that_may_be_several_requests_gives_bounds_only() -> None:
    """A second request in the cell may be its own."""
    world = World([*answers(1, 2, 2), deed(9, "unknown", "served", 2)], counts_refused=False, counts_failed=0)
    scope = replace(SCOPE, several=lambda one: "n is 2" if one.attempt == "call_0001.1" else None)
    pages = world.pages()
    pages["data"][2]["results"][0]["num_model_requests"] += 1
    report = judged(world, pages, scope)
    assert (report.alarms, verdicts(report)) == ((), {"call_0009.1": Verdict.SERVED})
    assert next(one for one in report.preconditions if one.name == "one").holds == "no"
