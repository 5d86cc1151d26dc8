"""What an export proves about attempts of unknown effect. Pure; docs/usage.md says in plain words what it proves and what not.

A verdict holds in every assignment of every hypothesis that the cells without unknowns left standing, and it would still hold if rows
had been dropped, added or exchanged without notice. One contradiction anywhere is an alarm, and then there is no verdict at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ledger.stages import Effect, NextOperation
from proxy.audit.attempts import OwnAttempt
from proxy.endpoints import EndpointClass
from proxy.reconcile.usage_cells import Placement
from proxy.reconcile.usage_doubt import Doubt, totals_of
from proxy.reconcile.usage_equations import (
    COLUMNS,
    FAMILY,
    NOTHING,
    Bounds,
    Hypothesis,
    Label,
    Vector,
    bounds_of,
    exactly,
    solutions,
)
from proxy.reconcile.usage_exchange import Names, exchange_of, parts
from proxy.reconcile.usage_exports import Cell
from proxy.reconcile.usage_windows import Placed, Role, Window, instant

# Whose requests are read: what such a one can do stands in its body. Below `generic` there are threads, runs and agents of others, with
# a state, and with tools that no body names.
_READ: Final = frozenset({"openai_chat", "openai_responses", "anthropic_messages", "gemini"})
_BY_RULE: Final = frozenset({Role.REFUSED, Role.FAILED})  # what these add, a rule of counting says


class Verdict(StrEnum):
    SERVED = "served"
    NOT_BILLED = "not_billed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Finding:
    """About one attempt of unknown effect. `settles`: the decision that it allows, where it allows one."""

    placed: Placed
    verdict: Verdict
    why: str
    window: Window | None = None

    @property
    def settles(self) -> bool:
        """Whether a decision can rest on it: nobody has decided, and what was not billed had no other effect."""
        attempt = self.placed.attempt
        open_ = attempt.next_operation is NextOperation.RECONCILE_EFFECT and attempt.decision is None
        if not open_ or attempt.superseded or self.verdict is Verdict.UNDECIDED:
            return False
        return self.verdict is Verdict.SERVED or (attempt.effect is Effect.UNKNOWN and _bill_is_effect(attempt))

    @property
    def is_said(self) -> bool:
        """False of what was decided, and is not contradicted: there is nothing more to find out."""
        contradicted = {"served": Verdict.NOT_BILLED, "not_served": Verdict.SERVED}
        decision = self.placed.attempt.decision
        return decision not in contradicted or contradicted[decision] is self.verdict


def _bill_is_effect(attempt: OwnAttempt) -> bool:
    """Nothing billed is then nothing that a second request could double."""
    match attempt.endpoint_class:
        case EndpointClass.GENERATE.value:
            return attempt.dialect in _READ
        case EndpointClass.STATELESS_BILLED.value:
            return True
        case _:
            return False


@dataclass(frozen=True, slots=True)
class Solved:
    """One window under the hypotheses left. `residual`: what is left of each stated column beyond own answers."""

    window: Window
    totals: tuple[int | None, ...]
    residual: tuple[int | None, ...]
    variables: tuple[Placed, ...]
    labels: tuple[frozenset[Label], ...] | None  # None: too many assignments
    fits: bool
    fixed: Vector


@dataclass(frozen=True, slots=True)
class Algebra:
    """`alarms`: sentences; with one there is no verdict anywhere."""

    findings: tuple[Finding, ...]
    solved: tuple[Solved, ...]
    alarms: tuple[str, ...]
    hypotheses: tuple[Hypothesis, ...]
    clean: tuple[Window, ...]  # closed ones without unknowns that add up


def analyse(placement: Placement) -> Algebra:
    bounds = bounds_of(placement.placed, placement.scope)
    stated = _stated_columns(placement.export.cells)
    closed = [window for window in placement.windows if window.closed]
    clean = [window for window in closed if _is_clean(window)]
    witnesses = [window for window in clean if window.misses_no_row and window.has_no_strange_row]
    telling = [window for window in witnesses if any(one.role in _BY_RULE for one in window.placed)]
    bounds = replace(bounds, shown=_shown(telling))
    left = tuple(h for h in FAMILY if all(_solve(one, stated, (h,), bounds).fits for one in telling))
    if not left:
        alarm = _nothing_left(telling, stated, bounds)
        return _without_verdict(placement, (), (alarm,), ())
    solved = tuple(_solve(window, stated, left, bounds) for window in closed)
    alarms = tuple(_contradiction(one) for one in solved if not one.fits)
    matched = _matched(solved)
    if alarms or placement.foreign:
        return _without_verdict(placement, solved, alarms, left)
    doubt = Doubt(
        placement.windows,
        tuple(h for h in FAMILY if all(_solve(one, stated, (h,), bounds, Names.MORE).fits for one in telling)),
        exchange_of(placement.windows, witnesses, stated, bounds),
        stated,
        bounds,
    )
    findings = [
        _finding(one, placed, doubt)
        for one in solved
        for placed in one.variables
        if placed.role is Role.UNKNOWN and placed.is_surely_here
    ]
    found = {finding.placed.attempt.attempt for finding in findings}
    findings += [
        Finding(placed, Verdict.UNDECIDED, _why_nowhere(placed, placement))
        for placed in placement.placed
        if placed.role is Role.UNKNOWN and placed.attempt.attempt not in found
    ]
    said = sorted((one for one in findings if one.is_said), key=lambda one: one.placed.attempt.attempt)
    return Algebra(tuple(said), solved, (), left, matched)


def _matched(solved: Sequence[Solved]) -> tuple[Window, ...]:
    return tuple(one.window for one in solved if one.fits and _is_clean(one.window))


def _stated_columns(cells: Sequence[Cell]) -> frozenset[int]:
    return frozenset(
        at for at, name in enumerate(COLUMNS) if cells and all(getattr(cell, name) is not None for cell in cells)
    )


def _is_clean(window: Window) -> bool:
    """Own traffic, all of it with a known outcome: it shows what the provider counts."""
    known = all(
        one.role in (Role.ANSWER, Role.REFUSED, Role.FAILED) and one.has_one_cell and not one.floats
        for one in window.placed
    )
    return known and bool(window.answers) and bool(window.rows)


def _shown(telling: Sequence[Window]) -> frozenset[tuple[Role, int | None]]:
    return frozenset(
        (one.role, one.attempt.status)
        for window in telling
        for one in window.placed
        if one.role in _BY_RULE and one.is_surely_here
    )


def _solve(
    window: Window,
    stated: frozenset[int],
    hypotheses: Sequence[Hypothesis],
    bounds: Bounds,
    names: Names = Names.TAUGHT,
) -> Solved:
    totals = totals_of(window, stated)
    accepts = [exactly(total) for total in totals]
    labels: dict[str, frozenset[Label]] = {}
    fits, complete, unknowns, first = False, True, window.unknowns, NOTHING
    everybody = window.placed if names is Names.TAUGHT else (*window.placed, *window.strays)
    depends = any(one.role in _BY_RULE or one.role is Role.UNKNOWN for one in everybody)
    for hypothesis in hypotheses if depends else hypotheses[:1]:
        fixed, variables, fates = parts(window, hypothesis, bounds, stated, names)
        found = solutions(fates, fixed, accepts)
        if hypothesis is hypotheses[0]:
            first, unknowns = fixed, variables
        if found is None:
            fits, complete = True, False
        elif all(found):
            fits = True
            for one, seen in zip(variables, found, strict=True):
                labels[one.attempt.attempt] = labels.get(one.attempt.attempt, frozenset()) | seen
    residual = tuple(None if total is None else total - low for total, (low, _) in zip(totals, first, strict=True))
    known = tuple(labels.get(one.attempt.attempt, frozenset()) for one in unknowns) if complete else None
    return Solved(window, totals, residual, unknowns, known, fits, first)


def _finding(one: Solved, placed: Placed, doubt: Doubt) -> Finding:
    window, bounds, equation = one.window, doubt.bounds, equation_of(one, doubt.bounds)
    if placed.attempt.decision is not None:
        equation += f"; it was decided {placed.attempt.decision} on record, which only a person replaces"

    def undecided(why: str) -> Finding:
        return Finding(placed, Verdict.UNDECIDED, f"{equation}; {why}", window)

    if one.labels is None:
        return undecided("too many assignments to look at each")
    labels = one.labels[one.variables.index(placed)]
    if not window.rows or not window.answers:
        return undecided("no row with an answer of ours says that this cell was counted at all; absence proves nothing")
    if len(labels) != 1 or Label.ERROR in labels:
        return undecided(f"it may have been {' or '.join(sorted(labels))}")
    if not window.has_no_strange_row:
        return undecided("a row of it holds no answer that is surely ours, so it may be somebody else's")
    served = Label.SERVED in labels
    if not (served and _all_counted(one)) and not window.misses_no_row:
        return undecided("a bucket in which it may stand has no row of this cell, and absence proves nothing")
    if (why := doubt.against(window, placed, labels)) is not None:
        return undecided(why)
    verdict = Verdict.SERVED if served else Verdict.NOT_BILLED
    more = bounds.scope.several(placed.attempt) or bounds.scope.acts(placed.attempt)
    if verdict is Verdict.NOT_BILLED and more is not None:
        return undecided(f"nothing of it was billed, but {more}, so the bill is not all that it can have done")
    return Finding(placed, verdict, equation, window)


def _all_counted(one: Solved) -> bool:
    """As many requests are left as there are unknowns: a dropped row could only have made them fewer."""
    low, high = one.fixed[0]
    return one.totals[0] is not None and low == high and all(labels == {Label.SERVED} for labels in one.labels or ())


def _without_verdict(
    placement: Placement, solved: tuple[Solved, ...], alarms: tuple[str, ...], left: tuple[Hypothesis, ...]
) -> Algebra:
    if placement.foreign:
        names = ", ".join(placement.foreign[:5])
        alarm = (
            f"{names}: the export counts a model that no attempt on record can have used. Somebody else uses this organisation "
            "or key, or sendonce is bypassed; compare one key that only sendonce uses: --api-key-id."
        )
        alarms = (alarm, *alarms)
    why = "an alarm: the export contradicts the record, so it proves nothing"
    unknown = [Finding(one, Verdict.UNDECIDED, why) for one in placement.placed if one.role is Role.UNKNOWN]
    return Algebra(tuple(one for one in unknown if one.is_said), solved, alarms, left, _matched(solved))


def _nothing_left(windows: Sequence[Window], stated: frozenset[int], bounds: Bounds) -> str:
    worst = next((one for one in windows if not _solve(one, stated, FAMILY, bounds).fits), windows[0])
    return (
        f"{equation_of(_solve(worst, stated, FAMILY, bounds), bounds)}: no rule about what the provider counts makes every cell without "
        "unknowns add up. The export is damaged or not settled, or somebody else uses the key."
    )


def _contradiction(one: Solved) -> str:
    if not one.window.placed:
        return f"{equation_of(one)}: nothing on record can have caused it. Somebody else uses this key, or sendonce is bypassed."
    if any(left is not None and left < 0 for left in one.residual):
        return f"{equation_of(one)}: less than the record's own answers. The export is not settled, lacks rows, or is of another key."
    return (
        f"{equation_of(one)}: more than the record can account for. Somebody else uses this key, sendonce is bypassed, or the export "
        "is damaged."
    )


def equation_of(one: Solved, bounds: Bounds | None = None) -> str:
    """As people read it: 17 requests, 16 own answers, 1 unknown, input tokens 312 left for it (at most 871)."""
    window = one.window
    words = []
    if one.totals[0] is not None:
        words.append(f"{one.totals[0]} requests")
    words.append(f"{len(window.answers)} own answers")
    if across := sum(placed.crosses for placed in window.placed):
        words.append(f"{across} across its edges")
    others = {
        Role.REFUSED: "refused",
        Role.FAILED: "failed",
        Role.JOB: "jobs",
        Role.UNKNOWN: "unknown",
    }
    for role, name in others.items():
        if number := sum(placed.role is role and not placed.crosses for placed in window.placed):
            words.append(f"{number} {name}")
    if decided := sum(placed.attempt.decision is not None for placed in window.unknowns):
        words.append(f"{decided} of them decided, which proves nothing")
    for at, name in ((1, "input"), (4, "output")):
        if one.residual[at] is not None:
            words.append(f"{name} tokens {one.residual[at]} left" + (_at_most(one, bounds) if at == 1 else ""))
    return f"{window.key} {instant(window.start_ms)} to {instant(window.end_ms)}: {', '.join(words)}"


def _at_most(one: Solved, bounds: Bounds | None) -> str:
    if bounds is None or not one.window.unknowns:
        return ""
    highs = [bounds.input_hi(placed) for placed in one.window.unknowns]
    total = None if None in highs else sum(high or 0 for high in highs)
    others = " and for what stands across" if any(placed.crosses for placed in one.window.placed) else ""
    return f" for it ({'no bound is known' if total is None else f'at most {total}'}){others}"


def _why_nowhere(placed: Placed, placement: Placement) -> str:
    attempt = placed.attempt
    if placed.from_ms is None:
        return "it is known from a receipt only, without its time: it may stand in any bucket"
    if attempt.call in placement.scope.alive:
        return "it is in flight"
    if not placed.candidates:
        return f"the export has no row for {attempt.asked_model}, and absence proves nothing"
    if placed.guessed:
        return f"no answer on record says what {attempt.asked_model or 'its model'} is called in the export"
    if len(placed.candidates) > 1:
        return f"it may stand in {len(placed.candidates)} cells: {', '.join(str(key) for key in placed.candidates[:4])}"
    export = placement.export
    if not placed.may_touch(export.start_ms, export.end_ms):
        return f"the export is of {instant(export.start_ms)} to {instant(export.end_ms)}, which is another time"
    return "it may stand beyond the export, or too much else does: fetch from a quiet time before it to a quiet time behind it"
