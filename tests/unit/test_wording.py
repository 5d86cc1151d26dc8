"""What is said of a report: the headline holds, the remarks name what is missing, no cell is a formula."""

import csv
import io
from dataclasses import replace

import orjson
import pytest

from proxy.audit import wording
from proxy.audit.money import Between
from proxy.audit.report import Ask, By, LogLine, Reach, Report, report
from proxy.audit.spend import Item
from tests.harness.bills import MODEL, answered, asked, at, call_of, item
from tests.harness.histories import observed
from tests.harness.ledgers import NOW_MS

LOST = at(item(*asked("nobody-knows"), "attempt.observed:lost"), 1)


def reported(*items: Item, reach: Reach | None = None, by: By = By.MODEL) -> Report:
    return report(Ask(by), [call_of(each) for each in items], items, [], reach or Reach())


def test_headline_says_what_is_known_and_what_is_not() -> None:
    """One sentence a fact; nothing without an upper bound looks like a small amount."""
    assert wording.headline(reported()) == "Known: $0.00. Nothing is unknown. Not paid because of sendonce: $0.00."
    assert "nothing bounds what that may have cost" in wording.headline(reported(LOST))
    cut = at(item(*asked(MODEL, 100), observed("partial")), 2)
    assert "and 1 of them have no upper bound" in wording.headline(reported(LOST, _bounded(cut)))
    assert "1 answered attempts have no price" in wording.headline(reported(item(*answered(model="nobody-knows"))))


def test_headline_tells_what_was_decided_served_from_what_nobody_knows_of() -> None:
    """Of the one a person said what became of it; only how much of it was served is unknown."""
    served = at(item(*asked(MODEL, 100), observed("partial"), "reconcile.decided:served"), 2)
    cut = at(item(*asked(MODEL, 100), observed("partial")), 3)
    only, both = (
        wording.headline(reported(_bounded(served))),
        wording.headline(reported(_bounded(served), _bounded(cut))),
    )
    assert "How much was served of 1 attempt decided as served is unknown, and may have cost between" in only
    assert (
        "What became of 1 attempt, and how much was served of 1 attempt decided as served, is unknown, and may have cost"
        in both
    )
    assert "What became of 1 attempt is unknown, and may have cost" in wording.headline(reported(_bounded(cut)))


def _bounded(made: Item) -> Item:
    return replace(made, cost=Between(upper=made.cost.upper + 1))


@pytest.mark.parametrize(
    ("reach", "said"),
    [
        (Reach(), None),
        (Reach(NOW_MS + 5), None),
        (Reach(NOW_MS + 5, is_cut=True), "was rotated and reaches back to"),
        (Reach(is_missing=True), "There is no activity log"),
        (Reach(unreadable=2), "2 lines of the activity log cannot be read"),
    ],
)
def test_remarks_say_since_when_the_log_reaches(reach: Reach, said: str | None) -> None:
    """A log that was rotated away makes its numbers too small; one that never had a line does not."""
    remarks = " ".join(wording.remarks(reported(at(item(*answered()), 1), reach=reach)))
    assert (said in remarks) if said else (remarks == "")


def test_empty_record_and_empty_range_are_told_apart() -> None:
    """Both are zero; only one of them is a surprise."""
    assert wording.remarks(reported()) == ["There is nothing on record yet."]
    paid = at(item(*answered()), 1)
    nothing = report(Ask(since_ms=NOW_MS + 1), [call_of(paid)], [paid], [], Reach())
    assert wording.remarks(nothing) == ["There is nothing on record in this range."]


def test_command_that_settles_an_unknown_names_the_decision_that_it_succeeds() -> None:
    """Copied, it works: with the state dir, and after an earlier decision with its seq."""
    lost = item(*asked(), "attempt.observed:lost")
    parked = item(*asked(), "attempt.observed:lost", "reconcile.decided:parked")
    first = wording.settling(lost, " --state-dir /x")
    assert first is not None
    assert first.startswith(f"sendonce reconcile {lost.attempt.call} --state-dir /x --reason")
    assert f" --succeeds {parked.attempt.decision_seq} " in (wording.settling(parked, "") or "")
    assert wording.settling(item(*answered()), "") is None


def test_document_is_json_with_exact_strings() -> None:
    """No float anywhere between the price list and whoever adds up."""
    document = wording.document(reported(at(item(*answered()), 2), LOST), "/x", " --state-dir /x")
    text = orjson.dumps(document)
    assert orjson.loads(text)["totals"]["known"] == "0.008"
    assert document["totals"]["possible_extra"]["upper"] is None
    assert document["unknown"][0]["cost"]["unbounded"] == 1
    assert document["unknown"][0]["presumption"]["mark"] == "undetermined"
    assert not _floats(orjson.loads(text))


def _floats(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_floats, value.values()))
    if isinstance(value, list):
        return any(map(_floats, value))
    return isinstance(value, float)


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", 'a,b"c\r\n=d'])
def test_name_is_no_formula_in_a_spreadsheet(name: str) -> None:
    """A model's name is whatever a client sent; a quote in front makes it a text."""
    made = reported(item(*answered(model=name)))
    header, row = csv.reader(io.StringIO(wording.csv_text(made), newline=""))
    assert len(header) == len(row)
    assert row[0][0] not in "=+-@\t\r"
    assert "\n" not in row[0]


def test_columns_and_cells_belong_together() -> None:
    """One cell for each heading."""
    made = report(Ask(), [], [], [LogLine(NOW_MS, "refused", "-", "bad_target", None, None)], Reach())
    assert len(wording.cells(made.totals)) == len(wording.COLUMNS)
    assert made.totals.refused == 1
