"""What each unknown can have been, given what a cell adds up to: every assignment that fits, by bounded search. Pure.

An attempt has fates; each adds an interval to every column. A total fits where it lies between the sums of the bounds. Columns are
looked at one by one, which allows more assignments than the truth does, never fewer: what holds in all of them holds.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from proxy.audit.attempts import OwnAttempt
from proxy.reconcile.usage_cells import Scope
from proxy.reconcile.usage_windows import Placed, Role

NODES_LIMIT: Final = 1 << 17  # about a second; all assignments of 16 unknowns. Beyond it nothing is decided

COLUMNS: Final = ("requests", "input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens")
Interval = tuple[int, int | None]  # None: no bound is known
Vector = tuple[Interval, ...]
NOTHING: Final[Vector] = ((0, 0),) * len(COLUMNS)
_INPUT: Final = COLUMNS.index("input_tokens")
_ANYTHING: Final[Vector] = ((0, None),) * len(COLUMNS)
Accepts = Callable[[int, int | None], bool]


class Label(StrEnum):
    ABSENT = "absent"  # nothing was counted or billed
    ERROR = "error"  # counted as a request, nothing billed
    SERVED = "served"
    ELSEWHERE = "elsewhere"  # in another cell


@dataclass(frozen=True, slots=True)
class Fate:
    label: Label
    adds: Vector


@dataclass(frozen=True, slots=True, order=True)
class Hypothesis:
    """Which own failures the provider counts as requests: all of a class or none."""

    refused: bool
    failed: int  # 0 not counted · 1 counted, nothing billed · 2 counted, and billed in part

    def __str__(self) -> str:
        failed = ("are not counted", "are counted and not billed", "are counted and may be billed")[self.failed]
        return f"refusals (4xx) {'are counted' if self.refused else 'are not counted'}; failures {failed}"


def described(left: Sequence[Hypothesis]) -> str:
    """Together, as a sentence: what is left open is said to be."""
    refused, failed = {one.refused for one in left}, {one.failed for one in left}
    words = {frozenset({True}): "are counted", frozenset({False}): "are not counted"}
    unbilled = " and not billed" if failed == {1} else ""
    return (
        f"refusals (4xx) {words.get(frozenset(refused), 'may be counted')}, "
        f"failures {words.get(frozenset(each > 0 for each in failed), 'may be counted')}{unbilled}"
    )


FAMILY: Final = tuple(Hypothesis(refused, failed) for refused in (False, True) for failed in (0, 1, 2))


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many tokens one attempt can have used at most. `twins`: input of a whole answer to the same bytes, by digest and model.
    `shown`: the statuses of errors that cells without unknowns have; of any other one it is not known whether it is counted.
    """

    scope: Scope
    twins: dict[tuple[str, str], int]
    shown: frozenset[tuple[Role, int | None]] = field(default=frozenset())

    def input_hi(self, one: Placed) -> int | None:
        upper = self.scope.input_upper(one.attempt)
        digest = one.attempt.request_digest
        if digest is None or not one.has_one_cell or self.scope.several(one.attempt):
            return upper
        twin = self.twins.get((digest, one.candidates[0].model))
        return upper if twin is None else twin if upper is None else min(upper, twin)

    def vector(self, one: Placed, *, billed: int) -> Vector:
        """One request with at least `billed` input tokens: an aborted one may have been billed in part."""
        high, attempt = self.input_hi(one), one.attempt
        several = self.scope.several(attempt)
        requests: Interval = (1, None if several else 1)
        output = None if several else attempt.max_output_tokens
        return requests, (billed, high), (0, high), (0, high), (0, output)


def bounds_of(placed: Sequence[Placed], scope: Scope) -> Bounds:
    twins: dict[tuple[str, str], int] = {}
    for one in placed:
        attempt = one.attempt
        if one.role is Role.ANSWER and attempt.tokens and attempt.request_digest and attempt.model:
            about = (str(attempt.request_digest), attempt.model)
            twins[about] = max(twins.get(about, 0), attempt.tokens.input)
    return Bounds(scope, twins)


def fates_of(one: Placed, hypothesis: Hypothesis, bounds: Bounds, stated: frozenset[int]) -> tuple[Fate, ...]:
    fates = _fates(one, hypothesis, bounds, stated)
    if not one.is_surely_here and one.role is not Role.JOB:
        return (Fate(Label.ELSEWHERE, NOTHING), *fates)
    return fates


def _fates(one: Placed, hypothesis: Hypothesis, bounds: Bounds, stated: frozenset[int]) -> tuple[Fate, ...]:
    counted: Vector = ((1, 1), *NOTHING[1:])
    is_shown = (one.role, one.attempt.status) in bounds.shown
    match one.role:
        case Role.ANSWER:
            return (Fate(Label.SERVED, _stated(one.attempt, bounds, one)),)
        case Role.REFUSED:
            if not is_shown:
                return (Fate(Label.ERROR, ((0, 1), *NOTHING[1:])),)
            return (Fate(Label.ERROR, counted if hypothesis.refused else NOTHING),)
        case Role.FAILED:
            billed = bounds.vector(one, billed=0)
            if not is_shown:
                return (Fate(Label.ERROR, ((0, billed[0][1]), *billed[1:])),)
            return (Fate(Label.ERROR, (NOTHING, counted, billed)[hypothesis.failed]),)
        case Role.JOB:
            return (Fate(Label.SERVED, _ANYTHING),)
        case Role.UNKNOWN:
            absent, served = Fate(Label.ABSENT, NOTHING), Fate(Label.SERVED, bounds.vector(one, billed=1))
            # Its status is any one. Where its tokens would not be seen, that some statuses are not counted says nothing of it.
            as_error = 0 in stated and (hypothesis.refused or hypothesis.failed > 0 or _INPUT not in stated)
            return (absent, Fate(Label.ERROR, counted), served) if as_error else (absent, served)


def _stated(attempt: OwnAttempt, bounds: Bounds, one: Placed) -> Vector:
    tokens = attempt.tokens
    if tokens is None:
        return bounds.vector(one, billed=0)
    requests: Interval = (1, None if bounds.scope.several(attempt) else 1)
    stated = (tokens.input, tokens.cached, tokens.cache_write, tokens.output)
    return requests, *((number, number) for number in stated)


def plus(left: Vector, right: Vector) -> Vector:
    return tuple(
        (low + more, None if high is None or top is None else high + top)
        for (low, high), (more, top) in zip(left, right, strict=True)
    )


def exactly(total: int | None) -> Accepts:
    """None: the source does not state the column."""
    return lambda low, high: total is None or (low <= total and (high is None or total <= high))


def one_of(values: Sequence[int]) -> Accepts:
    """`values` in order."""

    def accepts(low: int, high: int | None) -> bool:
        at = bisect_left(values, low)
        return at < len(values) and (high is None or values[at] <= high)

    return accepts


def between(least: int, most: int) -> Accepts:
    return lambda low, high: low <= most and (high is None or high >= least)


def solutions(
    variables: Sequence[tuple[Fate, ...]], fixed: Vector, accepts: Sequence[Accepts]
) -> tuple[frozenset[Label], ...] | None:
    """For each variable the labels it has in some assignment that fits; no variable has one where none fits.

    None: it would take more than NODES_LIMIT steps.
    """
    found: list[set[Label]] = [set() for _ in variables]
    rest = [NOTHING] * (len(variables) + 1)  # what the variables from here on can still add
    for at in range(len(variables) - 1, -1, -1):
        rest[at] = plus(rest[at + 1], hull(variables[at]))
    everything = [frozenset(fate.label for fate in fates) for fates in variables]
    stack: list[tuple[int, Vector, tuple[Label, ...]]] = [(0, fixed, ())]
    fits, nodes = False, 0
    while stack:
        at, sums, labels = stack.pop()
        nodes += 1
        if nodes > NODES_LIMIT:
            return None
        reachable = plus(sums, rest[at])
        if not all(accept(*interval) for accept, interval in zip(accepts, reachable, strict=True)):
            continue
        if at == len(variables):
            fits = True
            for seen, label in zip(found, labels, strict=True):
                seen.add(label)
            if all(seen == every for seen, every in zip(found, everything, strict=True)):
                break
            continue
        stack += [(at + 1, plus(sums, fate.adds), (*labels, fate.label)) for fate in variables[at]]
    return tuple(frozenset(seen) for seen in found) if fits else _none(variables)


def _none(variables: Sequence[tuple[Fate, ...]]) -> tuple[frozenset[Label], ...]:
    return (frozenset(),) * max(1, len(variables))


def hull(fates: tuple[Fate, ...]) -> Vector:
    """The least and the most that any of them adds to each column."""
    columns = zip(*(fate.adds for fate in fates), strict=True)
    return tuple(
        (
            min(low for low, _ in column),
            None if any(high is None for _, high in column) else max(high or 0 for _, high in column),
        )
        for column in columns
    )
