"""Rows that change their places: would anybody notice, and what would a cell prove then? Pure.

Only rows whose numbers own answers do not pin down can be exchanged without notice, so the true row of a cell is among those. Not seen
is an exchange through a window of several rows that keeps each of its sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from math import comb
from typing import Final

from proxy.reconcile.usage_equations import (
    COLUMNS,
    FAMILY,
    NOTHING,
    Accepts,
    Bounds,
    Fate,
    Hypothesis,
    Label,
    Vector,
    between,
    exactly,
    fates_of,
    hull,
    one_of,
    plus,
    solutions,
)
from proxy.reconcile.usage_exports import Cell
from proxy.reconcile.usage_windows import Placed, Role, Window

_ELSEWHERE: Final = Fate(Label.ELSEWHERE, NOTHING)
SUMS_LIMIT: Final = 20_000  # ways to fill a window with rows of others; beyond it only the least and the most are known


class Names(StrEnum):
    """How far what answers taught of names is believed."""

    TAUGHT = "taught"  # each attempt stands where its names say
    MORE = "more"  # strays may have been counted here too
    OTHERS = "others"  # and own errors elsewhere


def parts(
    window: Window,
    hypothesis: Hypothesis,
    bounds: Bounds,
    stated: frozenset[int],
    names: Names = Names.TAUGHT,
    stray: str | None = None,
) -> tuple[Vector, tuple[Placed, ...], tuple[tuple[Fate, ...], ...]]:
    """What is fixed, and what varies, in the order of most input first. Strays are no variables: together they add from nothing to
    all that each can, but for the one attempt `stray`.
    """
    fixed, varying = NOTHING, []
    for one in window.placed:
        fates = fates_of(one, hypothesis, bounds, stated)
        if one.role in (
            Role.REFUSED,
            Role.FAILED,
        ):  # nobody asks where each stood, and to try both takes twice as long for each
            fixed = plus(fixed, hull((_ELSEWHERE, *fates) if names is Names.OTHERS and one.strays else fates))
        elif len(fates) == 1:
            fixed = plus(fixed, fates[0].adds)
        else:
            varying.append((one, fates))
    for one in window.strays if names is not Names.TAUGHT else ():
        fates = (_ELSEWHERE, *fates_of(one, hypothesis, bounds, stated))
        if one.attempt.attempt == stray:
            varying.append((one, fates))
        else:
            fixed = plus(fixed, hull(fates))
    varying.sort(key=lambda pair: (bounds.input_hi(pair[0]) or 0, pair[0].attempt.attempt), reverse=True)
    return fixed, tuple(one for one, _ in varying), tuple(fates for _, fates in varying)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What could be exchanged without notice: rows whose numbers own answers do not pin down, and the rules left standing then."""

    slack: tuple[Cell, ...]
    hypotheses: tuple[Hypothesis, ...]

    def accepts(self, rows: int, stated: frozenset[int]) -> list[Accepts]:
        return [
            _any_sum([getattr(row, name) for row in self.slack], rows) if at in stated else exactly(None)
            for at, name in enumerate(COLUMNS)
        ]

    def labels(self, window: Window, placed: Placed, stated: frozenset[int], bounds: Bounds) -> frozenset[Label]:
        return labels_of(window, placed, self.hypotheses, self.accepts(len(window.rows), stated), stated, bounds)


def labels_of(
    window: Window,
    placed: Placed,
    hypotheses: Sequence[Hypothesis],
    accepts: Sequence[Accepts],
    stated: frozenset[int],
    bounds: Bounds,
) -> frozenset[Label]:
    """What this attempt can have been here, wherever others were counted; every label where nobody can look at all of it."""
    about, labels = placed.attempt.attempt, frozenset[Label]()
    for hypothesis in hypotheses:
        fixed, variables, fates = parts(window, hypothesis, bounds, stated, Names.OTHERS, about)
        found = solutions(fates, fixed, accepts)
        if found is None:
            return frozenset(Label)
        if all(found):
            labels |= next(seen for one, seen in zip(variables, found, strict=True) if one.attempt.attempt == about)
    return labels


def exchange_of(
    windows: Sequence[Window], witnesses: Sequence[Window], stated: frozenset[int], bounds: Bounds
) -> Exchange:
    anywhere = Exchange(tuple(row for window in windows for row in window.rows), FAMILY)
    accepts = {rows: anywhere.accepts(rows, stated) for rows in {len(window.rows) for window in windows}}
    loose = [window for window in windows if not _is_pinned(window, accepts[len(window.rows)], stated, bounds)]
    slack = Exchange(tuple(row for window in loose for row in window.rows), FAMILY)

    def stands(hypothesis: Hypothesis, window: Window) -> bool:
        fixed, _, fates = parts(window, hypothesis, bounds, stated, Names.MORE)
        found = solutions(fates, fixed, slack.accepts(len(window.rows), stated))
        return found is None or all(found)

    moving = {id(window) for window in loose}
    telling = [window for window in witnesses if id(window) in moving]
    left = tuple(hypothesis for hypothesis in FAMILY if all(stands(hypothesis, window) for window in telling))
    return Exchange(slack.slack, left)


def _is_pinned(window: Window, anywhere: Sequence[Accepts], stated: frozenset[int], bounds: Bounds) -> bool:
    """Own answers leave its numbers no choice: not even with any other row's numbers would another account of it add up."""
    if (
        not window.closed
        or window.strays
        or any(one.role is not Role.ANSWER or one.floats or not one.has_one_cell for one in window.placed)
    ):
        return False
    fixed, variables, fates = parts(window, FAMILY[0], bounds, stated)
    vectors = [fixed, *(fate.adds for options in fates for fate in options)]
    if any(vector[at][0] != vector[at][1] for vector in vectors for at in stated):
        return False
    if not variables:
        return True
    found = solutions(fates, fixed, anywhere)
    return found is not None and all(len(labels) == 1 for labels in found)


def _any_sum(values: Sequence[int], rows: int) -> Accepts:
    """What that many of the values can add up to."""
    ordered = sorted(values)
    if comb(len(ordered), rows) <= SUMS_LIMIT:
        return one_of(sorted({sum(chosen) for chosen in combinations(ordered, rows)}))
    return between(sum(ordered[:rows]), sum(ordered[-rows:]))
