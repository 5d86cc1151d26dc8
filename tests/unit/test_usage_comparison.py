"""Line by line: what matches, what the unknown explain, what nothing explains."""

from decimal import Decimal

from ledger.stages import Effect
from proxy.reconcile.usage_comparison import Line, compare, compare_costs
from tests.harness.usage_worlds import World, export_of, judged, small_world


def states(made: World, **changes: int) -> list[tuple[str, str]]:
    pages = made.pages()
    for bucket in pages["data"][2:3]:
        bucket["results"][0] |= changes
    report = judged(made, pages)
    return [(line.state, line.says) for line in compare(report.placement, report.algebra)]


def test_each_cell_says_whether_it_matches() -> None:
    """The first hour is ours to the token; in the second an unknown one is within what it can have used."""
    assert [state for state, _ in states(small_world())] == ["matched", "unknown"]


def test_number_that_nothing_explains_is_unmatched() -> None:
    """More than the unknown one can have used."""
    (_, first), (state, says) = states(small_world(), num_model_requests=9)
    assert (first, state, says) == ("", "unmatched", "no account of the attempts on record gives these numbers")


def test_numbers_of_both_sides_stand_beside_each_other() -> None:
    """With the costs that were given."""
    made = small_world()
    report = judged(made, made.pages())
    lines = compare(report.placement, report.algebra, {"call_0000.1": Decimal("0.5"), "call_0001.1": Decimal(1)})
    assert [(line.own.requests, line.export.requests, line.own.cost) for line in lines] == [
        (1, 1, Decimal("0.5")),
        (1, 2, Decimal(1)),
    ]
    assert [(line.own.input_tokens, line.export.input_tokens, line.unknowns) for line in lines] == [
        (100, 100, 0),
        (101, 203, 1),
    ]


def cost_lines(made: World, costs: dict[str, str] | None, billed: str = "1.5") -> tuple[Line, ...]:
    """Beside a cost page that says so much of each hour with own attempts."""
    pages = made.pages()
    for bucket in pages["data"]:
        cost = {"object": "organization.costs.result", "amount": {"value": float(billed), "currency": "usd"}}
        bucket["results"] = [cost] if bucket["results"] else []
    known = None if costs is None else {name: Decimal(cost) for name, cost in costs.items()}
    return compare_costs([one.attempt for one in made.deeds], export_of(pages), known)


def test_cost_pages_are_compared_by_bucket() -> None:
    """They name no request; more than the known costs may be the unknown one's."""
    lines = cost_lines(small_world(), {"call_0000.1": "1.5", "call_0001.1": "1"})
    assert [line.state for line in lines[:4]] == ["matched", "matched", "unknown", "matched"]
    assert "0.5 more than the known costs; 1 own attempts whose cost is not known may have cost it" in lines[2].says
    assert {line.state for line in cost_lines(small_world(), None)} == {"unknown"}


def test_answer_without_a_known_cost_is_never_zero() -> None:
    """Its usage or its price is missing: the bucket is unknown, and has no sum; equal sums are then no match."""
    line = cost_lines(small_world(), {"call_0001.1": "1.5"})[1]
    assert (line.state, line.own.cost) == ("unknown", None)
    line = cost_lines(small_world(), {"call_0001.1": "1.5"})[2]
    assert (line.state, line.own.cost) == ("unknown", None)


def test_known_costs_above_the_bill_are_unmatched_whatever_is_unknown() -> None:
    """No unknown one lowers a bill."""
    assert cost_lines(small_world(), {"call_0001.1": "1.52"})[2].state == "unmatched"


def test_refused_and_unsent_requests_cost_nothing() -> None:
    """They leave no gap in a sum; what a person decided does."""
    costs = {"call_0000.1": "1.5", "call_0001.1": "1.5"}
    for changes in ({"ended": "not_sent"}, {"ended": "whole", "status": 400}):
        made = small_world("absent", effect=Effect.ABSENT, **changes)
        assert cost_lines(made, costs)[2].state == "matched"
    made = small_world("absent", effect=Effect.ABSENT, decision="not_served")
    assert cost_lines(made, costs)[2].state == "unknown"


def test_costs_are_compared_to_the_cent() -> None:
    """A provider rounds its rows."""
    assert cost_lines(small_world(), {"call_0000.1": "1.4951"})[1].state == "matched"
    assert cost_lines(small_world(), {"call_0000.1": "1.4899"})[1].state == "unmatched"
