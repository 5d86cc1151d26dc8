"""Amounts in US dollars, exact; and how they, and names that anybody chose, are written out. Pure."""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import Any, Final

ZERO: Final = Decimal(0)
SMALL_DIGITS: Final = 3  # significant ones of what is less than a cent
NAME_LIMIT_CHARS: Final = 120  # of a model, a caller or a run where people read it
_INVISIBLE: Final = frozenset(
    {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
)  # control, bidi and line marks, what has no glyph


@dataclass(frozen=True, slots=True)
class Between:
    """A sum of costs, each known to lie somewhere: from `lower` to `upper`, and `unbounded` more of which no upper end is known."""

    lower: Decimal = ZERO
    upper: Decimal = ZERO
    unbounded: int = 0

    def __add__(self, other: "Between") -> "Between":
        return Between(self.lower + other.lower, self.upper + other.upper, self.unbounded + other.unbounded)

    @property
    def width(self) -> Decimal | None:
        return None if self.unbounded else self.upper - self.lower

    def row(self) -> dict[str, Any]:
        """`upper` and `width` are null where a part has no upper end; `upper_of_bounded` leaves those parts out."""
        return {
            "lower": plain(self.lower),
            "upper": None if self.unbounded else plain(self.upper),
            "width": None if self.width is None else plain(self.width),
            "upper_of_bounded": plain(self.upper),
            "unbounded": self.unbounded,
        }


def exactly(amount: Decimal) -> Between:
    return Between(amount, amount)


def up_to(amount: Decimal | None) -> Between:
    """From nothing to this; None: nobody knows how much."""
    return Between(unbounded=1) if amount is None else Between(ZERO, amount)


def total(parts: Iterable[Between]) -> Between:
    return sum(parts, Between())


def plain(amount: Decimal) -> str:
    """Every digit and no exponent, for programs."""
    return format(amount.normalize(), "f")


def dollars(amount: Decimal, rounding: str = ROUND_HALF_EVEN) -> str:
    """For people: cents, and more digits where an amount is smaller."""
    if amount == 0:
        return "$0.00"
    digits = 2 if abs(amount) >= 1 else 4 if abs(amount) >= Decimal("0.01") else SMALL_DIGITS - 1 - amount.adjusted()
    rounded = amount.quantize(Decimal(1).scaleb(-digits), rounding=rounding)
    whole, _, behind = f"{rounded:,f}".partition(".")
    return f"${whole}.{behind.rstrip('0').ljust(2, '0')}"


def spread(between: Between) -> str:
    """A lower end is rounded down and an upper one up, so that what is written holds, too."""
    low, high = dollars(between.lower, ROUND_FLOOR), dollars(between.upper, ROUND_CEILING)
    exact = dollars(between.lower)
    said = exact if between.lower == between.upper else f"{low} to {high}"
    if not between.unbounded:
        return said
    bounded = "" if between.lower == between.upper == 0 else f"{said} + "
    return f"{bounded}{between.unbounded} unbounded"


def shown(name: object) -> str:
    """A name as people may see it: one line, nothing invisible, not endless. Markup is the business of who prints it."""
    text = "".join("\ufffd" if unicodedata.category(char) in _INVISIBLE else char for char in str(name))
    return text if len(text) <= NAME_LIMIT_CHARS else text[: NAME_LIMIT_CHARS - 1] + "…"
