"""Sums: every attempt in one row, every range cut at its ends, and from the log only what it says."""

from decimal import Decimal

import pytest

from ledger.ids import CallId
from ledger.stages import Effect
from proxy.audit.money import Between, exactly
from proxy.audit.report import NOBODY, Ask, Bucket, By, LogLine, Reach, Report, report
from proxy.audit.spend import Category, Item
from tests.harness.bills import USAGE, answered, asked, at, call_of, item
from tests.harness.ledgers import NOW_MS, RUN, RUN_SCOPE

DAY_MS = 24 * 3600 * 1000
PAID = Decimal("0.008")  # what `answered()` costs
LOST = item(*asked(limit=10), "attempt.observed:lost")


def line(
    what: str, made: Item | None = None, code: str | None = None, at_ms: int = NOW_MS, run: str | None = None
) -> LogLine:
    return LogLine(at_ms, what, "openai", code, made.attempt.call if made else None, run)


def reported(items: list[Item], log: list[LogLine] | None = None, ask: Ask | None = None) -> Report:
    return report(ask or Ask(), [call_of(each) for each in items], items, log or [], Reach())


def test_nothing_on_record_is_nothing_spent() -> None:
    """And no row that looks like a day."""
    empty = reported([])
    assert (empty.groups, empty.totals.known, empty.totals.attempts, empty.first_call_ms) == ({}, 0, 0, None)


@pytest.mark.parametrize("by", list(By))
def test_rows_add_up_to_the_totals(by: By) -> None:
    """Whatever they are grouped by; nothing twice and nothing lost."""
    items = [
        at(item(*answered()), 1),
        at(item(*answered(model="gpt-4o"), scope=RUN_SCOPE), 2, NOW_MS + DAY_MS),
        at(item(*answered(usage=None)), 3),
        at(item(*answered(None, Effect.ANSWERED, 500)), 4),
        at(LOST, 5, NOW_MS + DAY_MS),
        at(item(*answered(model="nobody-knows")), 6),
        at(item(*answered(), upstream="local", caller="other"), 7),
    ]
    made = reported(items, [line("replayed", items[0]), line("refused"), line("attached", items[1])], Ask(by))
    rows, totals = list(made.groups.values()), made.totals
    for name in ("calls", "attempts", "refused", "replayed", "attached", "avoided", "known"):
        assert sum(getattr(row, name) for row in rows) == getattr(totals, name), name
    for category in Category:
        assert sum(row.counts[category] for row in rows) == totals.counts[category]
        assert sum((row.cost(category) for row in rows), Between()) == totals.cost(category)
    assert (totals.attempts, len(rows) > 1) == (7, True)
    assert [len(made.listed[category]) for category in made.listed] == [1, 1, 1, 1]


def test_groups_are_named_by_what_is_known() -> None:
    """A call without a run, or without a model, stands under a name of its own."""
    items = [at(item(*answered()), 1), at(item(*answered(), scope=RUN_SCOPE), 2)]
    assert set(reported(items, ask=Ask(By.RUN)).groups) == {NOBODY, RUN}
    assert set(reported(items, ask=Ask(By.TIME, Bucket.MINUTE)).groups) == {"2027-01-15 08:00"}
    assert set(reported(items, ask=Ask(By.TIME, Bucket.HOUR)).groups) == {"2027-01-15 08:00"}
    assert set(reported(items, ask=Ask(By.CALLER)).groups) == {"caller"}


def test_range_holds_its_beginning_and_not_its_end() -> None:
    """So that two ranges side by side count everything once."""
    items = [at(item(*answered()), number, NOW_MS + number * 1000) for number in range(3)]
    first = reported(items, ask=Ask(until_ms=NOW_MS + 1000))
    second = reported(items, ask=Ask(since_ms=NOW_MS + 1000))
    assert (first.totals.attempts, second.totals.attempts) == (1, 2)
    nothing = reported(items, ask=Ask(since_ms=NOW_MS + DAY_MS))
    assert (nothing.totals.calls, nothing.totals.known, nothing.first_call_ms) == (0, 0, NOW_MS)


def test_upstream_and_run_leave_out_the_others() -> None:
    """From the record and from the log."""
    items = [
        at(item(*answered()), 1),
        at(item(*answered(), scope=RUN_SCOPE), 2),
        at(item(*answered(), upstream="local"), 3),
    ]
    log = [line("replayed", each) for each in items] + [line("refused", run=RUN, code="run_diverged"), line("refused")]
    of_run = reported(items, log, Ask(run=RUN)).totals
    assert (of_run.attempts, of_run.replayed, of_run.refused) == (1, 1, 1)
    of_upstream = reported(items, log, Ask(upstream="local")).totals
    assert (of_upstream.attempts, of_upstream.replayed) == (1, 0)  # the line says openai


def test_each_answer_from_the_record_saves_what_its_call_cost() -> None:
    """Twice replayed and once attached is three times not paid."""
    paid = at(item(*answered()), 1)
    made = reported([paid], [line("replayed", paid), line("replayed", paid), line("attached", paid)])
    assert (made.totals.avoided, made.totals.not_spent) == (3, exactly(3 * PAID))


def test_replay_of_a_call_from_before_the_range_still_knows_its_cost() -> None:
    """The answer was given now, whenever it was paid."""
    paid = at(item(*answered()), 1)
    log = [line("replayed", paid, at_ms=NOW_MS + DAY_MS)]
    made = reported([paid], log, Ask(since_ms=NOW_MS + DAY_MS))
    assert (made.totals.attempts, made.totals.not_spent) == (0, exactly(PAID))


def test_refused_unknown_saves_between_nothing_and_its_bound_and_only_once() -> None:
    """A client repeats a refused request; only the first repeat would have been paid."""
    log = [line("refused", LOST, "effect_unknown") for _ in range(3)]
    made = reported([LOST], log)
    assert (made.totals.refused, made.totals.avoided) == (3, 1)
    assert made.totals.not_spent == Between(Decimal(0), LOST.cost.upper, LOST.cost.unbounded)
    assert reported([LOST], [line("refused", LOST, "key_reused")]).totals.avoided == 0


def test_line_about_a_call_that_is_not_on_record_is_counted_and_saves_nothing() -> None:
    """The log may be of another state dir, or older than a restored backup."""
    stranger = LogLine(NOW_MS, "replayed", "openai", None, CallId("call_of_nobody"), None)
    made = reported([at(item(*answered()), 1)], [stranger])
    assert (made.totals.replayed, made.totals.avoided) == (1, 0)


def test_replay_of_what_has_no_price_saves_nobody_knows_how_much() -> None:
    """Not nothing."""
    made = item(*answered(USAGE, model="nobody-knows"))
    assert reported([made], [line("replayed", made)]).totals.not_spent == Between(unbounded=1)


def test_report_does_not_depend_on_the_order_of_its_items() -> None:
    """The same record gives the same sums."""
    items = [at(item(*answered({"prompt_tokens": number, "completion_tokens": 1})), number) for number in range(50)]
    assert reported(items).totals == reported(items[::-1]).totals
