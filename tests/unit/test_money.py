"""Amounts are exact inside and never better than the truth outside; names cannot forge a line."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

import pytest

from proxy.audit.money import Between, dollars, exactly, plain, shown, spread, total, up_to


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        ("0", "$0.00"),
        ("1234567.891", "$1,234,567.89"),
        ("1.005", "$1.00"),
        ("0.5", "$0.50"),
        ("0.012345", "$0.0123"),
        ("0.000155", "$0.000155"),
        ("0.00000012345", "$0.000000123"),
        ("12", "$12.00"),
    ],
)
def test_amount_shows_cents_and_more_digits_where_it_is_small(amount: str, said: str) -> None:
    """A tenth of a cent is money, too, at a million calls."""
    assert dollars(Decimal(amount)) == said


def test_ends_are_rounded_away_from_each_other() -> None:
    """What is written has to hold."""
    assert dollars(Decimal("1.009"), ROUND_FLOOR) == "$1.00"
    assert dollars(Decimal("1.001"), ROUND_CEILING) == "$1.01"
    assert spread(Between(Decimal("1.009"), Decimal("2.001"))) == "$1.00 to $2.01"


def test_part_without_an_upper_bound_stays_one_through_sums() -> None:
    """A sum must not look bounded because most of its parts are."""
    both = total([exactly(Decimal(1)), up_to(Decimal(2)), up_to(None), up_to(None)])
    assert both == Between(Decimal(1), Decimal(3), 2)
    assert (both.width, both.row()["upper"], both.row()["upper_of_bounded"]) == (None, None, "3")
    assert (spread(both), spread(up_to(None)), spread(Between())) == (
        "$1.00 to $3.00 + 2 unbounded",
        "1 unbounded",
        "$0.00",
    )


def test_exact_amount_is_written_without_an_exponent() -> None:
    """Programs read decimals, and 1E-7 is none everywhere."""
    assert (plain(Decimal("1E-7")), plain(Decimal("10.50")), plain(Decimal(100))) == ("0.0000001", "10.5", "100")


def test_name_cannot_leave_its_line_or_turn_the_text_around() -> None:
    """Control characters, bidi marks and lone surrogates are shown as what they are: nothing to see."""
    assert shown("a\x1b[31m\nb\u202ec\u2028d\ud800") == "a\ufffd[31m\ufffdb\ufffdc\ufffdd\ufffd"
    assert len(shown("x" * 1000)) == 120
