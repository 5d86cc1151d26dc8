"""A console's CSV is read by the columns that its owner names, and never guessed at."""

import pytest

from proxy.reconcile.usage_exports import Cell, UnusableExportError
from proxy.reconcile.usage_pages import read_exports

COLUMNS = {
    "start": "Day",
    "model": "Model name",
    "requests": "Requests",
    "input_tokens": "Input",
    "output_tokens": "Output",
}
HEADER = "Day,Model name,Requests,Input,Output\n"


def read(text: str, columns: dict[str, str] = COLUMNS) -> tuple[Cell, ...]:
    return read_exports([("console.csv", text.encode())], columns).cells


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_rows_are_read_whatever_divides_them(delimiter: str) -> None:
    """Behind a byte order mark, too; a day without an hour is a day in UTC."""
    text = "\ufeff" + (HEADER + "2026-11-29,gpt-4o,3,1200,50\n2026-11-30,gpt-4o,1,10,5\n").replace(",", delimiter)
    first, second = read(text)
    assert (first.model, first.requests, first.input_tokens, first.output_tokens) == ("gpt-4o", 3, 1200, 50)
    assert first.end_ms - first.start_ms == 86_400_000
    assert second.start_ms == first.end_ms


def test_newest_row_first_is_turned_round() -> None:
    """As consoles show it."""
    first, second = read(HEADER + "2026-11-30,gpt-4o,3,1200,50\n2026-11-29,gpt-4o,1,10,5\n")
    assert first.start_ms < second.start_ms


def test_thousands_are_read_only_where_nothing_else_can_be_meant() -> None:
    """1,234 may be one and a bit; 1,234,567 and 1 234 may not."""
    (cell,) = read(HEADER + '2026-11-29,gpt-4o,1 234,"1,234,567",5\n')
    assert (cell.requests, cell.input_tokens) == (1234, 1_234_567)
    with pytest.raises(UnusableExportError, match="plain digits"):
        read(HEADER + '2026-11-29,gpt-4o,1,"1,234",5\n')


def test_seconds_since_1970_need_a_width() -> None:
    """A number says when it begins, not when it ends."""
    text = HEADER + "1796000400,gpt-4o,1,10,5\n"
    with pytest.raises(UnusableExportError, match="--map bucket=1m, 1h or 1d"):
        read(text)
    (cell,) = read(text, COLUMNS | {"bucket": "1h"})
    assert (cell.start_ms, cell.end_ms) == (1_796_000_400_000, 1_796_004_000_000)


BAD = {
    "wrong column": ("Day,Model,Requests,Input,Output\n2026-11-29,gpt-4o,1,2,3\n", "Its columns are 'Day', 'Model'"),
    "half a line": (HEADER + "2026-11-29,gpt-4o,1\n", "half a line proves nothing"),
    "below zero": (HEADER + "2026-11-29,gpt-4o,-1,2,3\n", "not negative"),
    "no time": (HEADER + "yesterday,gpt-4o,1,2,3\n", "which is no time"),
    "no model": (HEADER + "2026-11-29,,1,2,3\n", "--map model=COLUMN"),
    "row twice": (HEADER + "2026-11-29,gpt-4o,1,2,3\n2026-11-29,gpt-4o,1,2,3\n", "doubled"),
    "shuffled": (HEADER + "2026-11-28,a,1,2,3\n2026-11-30,a,1,2,3\n2026-11-29,a,1,2,3\n", "begins before"),
    "header only": (HEADER, "no bucket at all"),
    "column twice": ("Day,Day,Model name,Requests,Input,Output\n", "stands there twice"),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_csv_is_refused_with_its_place_and_remedy(case: str) -> None:
    """Nothing is filled in."""
    text, words = BAD[case]
    with pytest.raises(UnusableExportError) as refused:
        read(text)
    assert words in str(refused.value)


def test_rows_apart_in_an_unmapped_column_are_two_rows_of_a_bucket() -> None:
    """Which is no doubling, and no proof either."""
    text = "Day,Model name,Requests,Input,Output,User\n2026-11-29,gpt-4o,1,2,3,ada\n2026-11-29,gpt-4o,1,2,3,bob\n"
    assert [cell.labels for cell in read(text)] == [(("User", "ada"),), (("User", "bob"),)]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('2026-11-29,"' + "a" * 140_000, "line 2: it cannot be read"),
        ("2026-11-29,gpt-4o," + "9" * 5_000 + ",1,1", "no whole number"),
    ],
)
def test_field_that_has_no_end_is_refused_by_line(row: str, says: str) -> None:
    """A quote that nobody closes takes all that follows."""
    with pytest.raises(UnusableExportError, match=says):
        read(HEADER + row)
