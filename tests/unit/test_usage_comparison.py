"""Line by line: what matches, what the unknown explain, what nothing explains."""

from decimal import Decimal

from proxy.reconcile.usage_comparison import compare, compare_costs, cost_range
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


def test_cost_of_some_of_the_unknown_is_between_the_cheapest_and_the_dearest() -> None:
    """As many as were served."""
    made = small_world()
    report = judged(made, made.pages())
    (one,) = [solved for solved in report.algebra.solved if solved.window.unknowns]
    assert cost_range(one, {"call_0002.1": (Decimal(1), Decimal(3))}) == (Decimal(1), Decimal(3))
    assert cost_range(one, {"call_0002.1": (Decimal(1), None)}) == (Decimal(1), None)
    assert cost_range(one, {}) is None


def test_cost_pages_are_compared_by_bucket() -> None:
    """They name no request; more than own answers cost may be the unknown one's."""
    made = small_world()
    attempts = [one.attempt for one in made.deeds]
    pages = made.pages()
    for bucket in pages["data"]:
        cost = {"object": "organization.costs.result", "amount": {"value": 1.5, "currency": "usd"}}
        bucket["results"] = [cost] if bucket["results"] else []
    costs = {"call_0000.1": Decimal("1.5"), "call_0001.1": Decimal(1)}
    lines = compare_costs(attempts, export_of(pages), costs)
    assert [line.state for line in lines[:4]] == ["matched", "matched", "unknown", "matched"]
    assert "0.5 more than own answers" in lines[2].says
    assert {line.state for line in compare_costs(attempts, export_of(pages), None)} == {"unknown"}
