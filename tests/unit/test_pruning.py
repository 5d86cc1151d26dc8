"""Which age `sendonce prune` takes from its options. (What it does with it: tests/contract and tests/flow/test_prune.py.)"""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.moments import BadMomentError
from proxy.pruning import DAYS_LIMIT, BadAgeError, through_ms

NOW_MS = int(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 24 * 60 * 60 * 1000


@given(days=st.integers(0, DAYS_LIMIT))
def test_days_are_counted_back_from_now(days: int) -> None:
    """Given, or from the settings; 0 is everything up to now."""
    assert through_ms(days, None, 30, NOW_MS) == through_ms(None, None, days, NOW_MS) == NOW_MS - days * DAY_MS


@pytest.mark.parametrize(
    ("before", "moment"),
    [
        ("2026-10-31", datetime(2026, 10, 31, tzinfo=UTC)),
        ("2026-10-31T12:00", datetime(2026, 10, 31, 12, tzinfo=UTC)),
        ("2026-10-31T12:00+02:00", datetime(2026, 10, 31, 10, tzinfo=UTC)),
        ("2026-11-30T12:00Z", datetime(2026, 11, 30, 12, tzinfo=UTC)),
    ],
)
def test_date_excludes_its_own_moment(before: str, moment: datetime) -> None:
    """Before midnight is the last millisecond of the day before; without a zone it is UTC."""
    assert through_ms(None, before, 30, NOW_MS) == int(moment.timestamp() * 1000) - 1


@pytest.mark.parametrize("days", [-1, DAYS_LIMIT + 1, 10**30])
def test_days_that_cannot_be_are_refused(days: int) -> None:
    """The option and its range are named."""
    with pytest.raises(BadAgeError, match=rf"--older-than is {days}. Give days from 0.* to {DAYS_LIMIT}\."):
        through_ms(days, None, 30, NOW_MS)


@pytest.mark.parametrize("before", ["", "yesterday", "2026-13-01", "31.10.2026", "9999-12-31T23:59:59-23:59", "0"])
def test_text_that_is_no_date_is_refused(before: str) -> None:
    """With an example of one; the last day of all lies in the future, whatever its zone."""
    with pytest.raises(
        (BadAgeError, BadMomentError), match=r"--before .* (is no date\. Give one like 2026-10-31|is in the future)"
    ):
        through_ms(None, before, 30, NOW_MS)


@pytest.mark.parametrize("before", ["2026-12-01", "2026-11-30T12:00:00.001+00:00"])
def test_future_date_is_refused(before: str) -> None:
    """Nothing can be completed by then; who means everything says so."""
    with pytest.raises(BadAgeError, match=r"in the future\. To erase all that is complete, give --older-than 0\."):
        through_ms(None, before, 30, NOW_MS)


def test_two_ages_at_once_are_refused() -> None:
    """Even where both say the same."""
    with pytest.raises(BadAgeError, match="Give one of them"):
        through_ms(0, "2026-11-30", 30, NOW_MS)
