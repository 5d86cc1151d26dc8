"""What an export proves is true in every world; what is dropped, doubled, exchanged or foreign never settles anything false."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from proxy.reconcile.usage_algebra import Verdict
from proxy.reconcile.usage_exports import UnusableExportError
from tests.harness.usage_worlds import DAY, HOUR, Deed, World, judged, lies, own, result, verdicts, worlds

MANY = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
NUMBERS = ("num_model_requests", "input_tokens", "input_cached_tokens", "output_tokens")


def rows_of(pages: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for bucket in pages["data"] for row in bucket["results"]]


def report_or_refusal(world: World, pages: dict[str, Any]) -> Any:
    try:
        return judged(world, pages)
    except UnusableExportError:
        return None


def assert_truthful(world: World, pages: dict[str, Any]) -> Any:
    """The report, or None where the export was refused."""
    report = report_or_refusal(world, pages)
    if report is not None:
        assert lies(world, report) == []
        assert not (report.alarms and any(verdict is not Verdict.UNDECIDED for verdict in verdicts(report).values()))
    return report


@MANY
@given(worlds())
def test_verdict_about_a_true_export_is_true(world: World) -> None:
    """Whatever happened, whatever counts, wherever in its time it was counted."""
    assume(any(rows_of(world.pages())))
    report = assert_truthful(world, world.pages())
    assert report is None or report.alarms == ()
    if report is not None:
        event(f"verdicts: {sorted({verdict.value for verdict in verdicts(report).values()})}")


@MANY
@given(worlds(), st.data())
def test_dropped_row_settles_nothing_false(world: World, data: st.DataObject) -> None:
    """And where it held an answer of ours, nothing that it could have held at all."""
    pages = world.pages()
    places = [(at, row) for at, bucket in enumerate(pages["data"]) for row in range(len(bucket["results"]))]
    assume(len(places) > 1)
    at, row = data.draw(st.sampled_from(places))
    dropped = pages["data"][at]["results"].pop(row)
    report = assert_truthful(world, pages)
    start = DAY + at * HOUR
    held = [
        one for one in world.deeds if start <= one.counted_ms < start + HOUR and one.attempt.model == dropped["model"]
    ]
    if report is not None and any(one.truth == "served" and one.known for one in held):
        touched = [
            finding
            for finding in report.findings
            if finding.window
            and finding.window.start_ms <= start < finding.window.end_ms
            and finding.window.key.model == dropped["model"]
        ]
        assert all(finding.verdict is Verdict.UNDECIDED for finding in touched)


@MANY
@given(worlds(), st.data())
def test_dropped_bucket_settles_nothing_false(world: World, data: st.DataObject) -> None:
    """In the middle it is a gap, which is refused; at an end the export is of another time."""
    pages = world.pages()
    at = data.draw(st.integers(0, world.hours - 1))
    del pages["data"][at]
    assume(any(rows_of(pages)))
    report = assert_truthful(world, pages)
    assert report is None or at in (0, world.hours - 1)


@MANY
@given(worlds(), st.data())
def test_doubled_row_or_bucket_is_refused(world: World, data: st.DataObject) -> None:
    """No provider says the same twice."""
    pages = world.pages()
    at = data.draw(st.integers(0, world.hours - 1))
    bucket = pages["data"][at]
    if bucket["results"] and data.draw(st.booleans()):
        bucket["results"].append(copy.deepcopy(data.draw(st.sampled_from(bucket["results"]))))
    else:
        pages["data"].insert(data.draw(st.integers(0, world.hours)), copy.deepcopy(bucket))
    with pytest.raises(UnusableExportError):
        judged(world, pages)


@MANY
@given(worlds(), st.data())
def test_exchanged_rows_settle_nothing_false(world: World, data: st.DataObject) -> None:
    """Whole rows change their places; where own answers pin a cell down, it is noticed."""
    pages = world.pages()
    rows = rows_of(pages)
    assume(len(rows) > 1)
    before = [{name: row[name] for name in NUMBERS} for row in rows]
    for row, numbers in zip(rows, data.draw(st.permutations(before)), strict=True):
        row.update(numbers)
    report = assert_truthful(world, pages)
    if report is not None:
        assert_noticed(world, pages, report)


@MANY
@given(worlds(), st.data())
def test_exchanged_numbers_of_one_column_settle_nothing_false(world: World, data: st.DataObject) -> None:
    """Only the requests, or only the tokens of one kind, change their places."""
    pages = world.pages()
    rows = rows_of(pages)
    assume(len(rows) > 1)
    name = data.draw(st.sampled_from(NUMBERS))
    for row, number in zip(rows, data.draw(st.permutations([row[name] for row in rows])), strict=True):
        row[name] = number
    report = assert_truthful(world, pages)
    if report is not None:
        assert_noticed(world, pages, report)


def assert_noticed(world: World, pages: dict[str, Any], report: Any) -> None:
    """A clean cell of one row that says another number than it truly had is an alarm."""
    truth = {(bucket["start_time"], row["model"]): row for bucket in world.pages()["data"] for row in bucket["results"]}
    said = {(bucket["start_time"], row["model"]): row for bucket in pages["data"] for row in bucket["results"]}
    for window in report.placement.windows:
        exact = all(one.role.value == "answer" for one in window.placed)
        if window.closed and exact and len(window.rows) == 1:
            about = (window.rows[0].start_ms // 1000, window.key.model)
            if any(truth[about][name] != said[about][name] for name in NUMBERS[world.tokens_only :]):
                assert report.alarms


@MANY
@given(worlds(), st.data())
def test_foreign_row_settles_nothing_false(world: World, data: st.DataObject) -> None:
    """Somebody else's requests, at a model of ours in a bucket where we had no row, with the numbers of an unknown of ours."""
    pages = world.pages()
    at, model = data.draw(st.integers(0, world.hours - 1)), data.draw(st.sampled_from(["gpt-4o", "gpt-4o-mini", "o9"]))
    results = pages["data"][at]["results"]
    assume(all(row["model"] != model for row in results))
    tokens = data.draw(st.sampled_from([one.tokens for one in world.deeds]))
    results.append(result(model, data.draw(st.integers(1, 2)), *tokens))
    report = assert_truthful(world, pages)
    if report is not None and model == "o9":  # a model that nobody asked for
        assert all(verdict is Verdict.UNDECIDED for verdict in verdicts(report).values())


TIERS = ("default", "flex")
ASKED = ("gpt-4o", "alias")  # of which answers have always had one tier each
STATUSES = {"refused": (400, 429), "failed": (500, 503)}


@st.composite
def wandering(draw: st.DrawFn) -> tuple[World, dict[str, Any]]:
    """Two names for one model, whose answers have a tier each. Unknown ones and errors have any; each status is counted or is not."""
    counted = draw(st.fixed_dictionaries({status: st.booleans() for each in STATUSES.values() for status in each}))
    world = World([], counts_refused=True, counts_failed=draw(st.integers(1, 2)))
    rows: dict[tuple[int, str], list[int]] = {}
    for number in range(draw(st.integers(4, 12))):
        kind = "answer" if number < 4 else draw(st.sampled_from(("answer", "refused", "failed", "unknown", "unknown")))
        name, hour = number % 2 if number < 4 else draw(st.integers(0, 1)), draw(st.integers(0, 1))
        tokens = (draw(st.integers(1, 400)), 0, draw(st.integers(0, 400)))
        start = DAY + hour * HOUR + HOUR // 2
        known = kind != "unknown"
        truth = "served" if kind == "answer" else kind if known else draw(st.sampled_from(("served", "absent")))
        status = draw(st.sampled_from(STATUSES[kind])) if kind in STATUSES else None
        tier = TIERS[name] if kind == "answer" else draw(st.sampled_from(TIERS))
        made = own(number, "gpt-4o", kind, start, start + 1000, tokens)
        answered = kind == "answer"
        made = replace(
            made,
            asked_model=ASKED[name],
            model="gpt-4o" if answered else ASKED[name],
            service_tier=tier if answered else None,
            status=status or made.status,
        )
        deed = Deed(made, truth, start, tokens)
        world.deeds.append(deed)
        adds = world.contribution(deed) if status is None or counted[status] else (0, 0, 0, 0)
        if adds[0]:
            row = rows.setdefault((hour, tier), [0, 0, 0, 0])
            rows[hour, tier] = [have + more for have, more in zip(row, adds, strict=True)]
    buckets = [
        {
            "start_time": (DAY + hour * HOUR) // 1000,
            "end_time": (DAY + (hour + 1) * HOUR) // 1000,
            "results": [result("gpt-4o", *rows[at]) | {"service_tier": at[1]} for at in sorted(rows) if at[0] == hour],
        }
        for hour in range(2)
    ]
    return world, {"data": buckets, "has_more": False}


@MANY
@given(wandering())
def test_verdict_holds_whatever_tier_and_whatever_status_is_counted(made: tuple[World, dict[str, Any]]) -> None:
    """What answers taught of tiers, and errors of one status of those of another, may be wrong of the next request."""
    world, pages = made
    report = assert_truthful(world, pages)
    if report is not None:
        event(f"verdicts: {sorted({verdict.value for verdict in verdicts(report).values()})}")
