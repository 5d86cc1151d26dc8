"""From what the algebra proves to what may be recorded: the preconditions, each with its numbers, and the rulings. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from ledger.ids import CallId
from proxy.reconcile.operator import Ruling
from proxy.reconcile.usage_algebra import Algebra, Finding, Verdict, analyse
from proxy.reconcile.usage_cells import Placement
from proxy.reconcile.usage_equations import described
from proxy.reconcile.usage_exports import Cell, Export
from proxy.reconcile.usage_windows import Role, Window

# Twice the freshness that Anthropic documents ("typically within 5 minutes"). OpenAI documents none (providers.md section 3): for it
# this is a choice, and no more.
SETTLE_S: Final = 600.0

Holds = Literal["yes", "no", "not shown", "stated"]


@dataclass(frozen=True, slots=True)
class Precondition:
    name: str
    holds: Holds
    says: str


@dataclass(frozen=True, slots=True)
class Again:
    """A later fetch of the same, and by how many seconds its oldest file is younger than the youngest of the first fetch."""

    export: Export
    later_s: float


@dataclass(frozen=True, slots=True)
class Fetched:
    """`at_ms`: of the oldest file of the first fetch, by its time. `settled`: why whoever asks holds the numbers for final; it goes
    on record.
    """

    at_ms: int
    again: Again | None = None
    settled: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """`final`: the verdicts may be recorded; else they are what they would be."""

    placement: Placement
    algebra: Algebra
    preconditions: tuple[Precondition, ...]
    findings: tuple[Finding, ...]
    final: bool
    fetched: Fetched

    @property
    def alarms(self) -> tuple[str, ...]:
        return self.algebra.alarms


def judge(placement: Placement, fetched: Fetched) -> Report:
    algebra = analyse(placement)
    used = [one.window for one in algebra.findings if one.window is not None and one.verdict is not Verdict.UNDECIDED]
    if used:
        used += algebra.clean  # they say what is counted, and that it is all ours
    over_ms = _over_ms(used)
    is_settled = _settled(placement, used, fetched, over_ms)
    preconditions = (
        _exclusive(algebra),
        _over(fetched, over_ms),
        is_settled,
        _calibrated(algebra),
        _mapped(placement),
        _named(placement),
        _keys(placement),
        _one_each(placement),
    )
    broken = next((one for one in preconditions if one.name != "one" and _forbids(one)), None)
    findings = algebra.findings
    if broken is not None and not algebra.alarms:
        why = f"the precondition {broken.name} {'does not hold' if broken.holds == 'no' else 'is not shown'}: {broken.says}"
        findings = tuple(_withheld(finding, why) for finding in findings)
    final = broken is None and is_settled.holds in ("yes", "stated")
    return Report(placement, algebra, preconditions, findings, final, fetched)


def _forbids(one: Precondition) -> bool:
    """Only the proof that numbers are settled may be missing; then the verdicts are what they would be."""
    return one.holds == "no" or (one.holds == "not shown" and one.name != "settled")


def _withheld(finding: Finding, why: str) -> Finding:
    if finding.verdict is Verdict.UNDECIDED:
        return finding
    return replace(finding, verdict=Verdict.UNDECIDED, why=f"{finding.why}; {why}")


def _exclusive(algebra: Algebra) -> Precondition:
    if algebra.alarms:
        return Precondition("exclusive", "no", f"{len(algebra.alarms)} cells contradict the record")
    if not algebra.clean:
        return Precondition("exclusive", "not shown", "there is no cell without unknowns to show it")
    says = (
        f"all {len(algebra.clean)} cells without unknowns add up to own answers and nothing else; that nobody else used the key in the "
        "cells with unknowns is inferred from it"
    )
    return Precondition("exclusive", "yes", says)


def _calibrated(algebra: Algebra) -> Precondition:
    if algebra.alarms and not algebra.hypotheses:
        return Precondition(
            "calibrated", "no", "no rule about which own outcomes count fits the cells without unknowns"
        )
    if not algebra.clean:
        says = "no closed window has own answers and no unknown: export more time, or narrower buckets"
        return Precondition("calibrated", "not shown", says)
    says = f"by {len(algebra.clean)} cells without unknowns {described(algebra.hypotheses)}"
    return Precondition("calibrated", "yes", says)


def _mapped(placement: Placement) -> Precondition:
    if placement.foreign:
        return Precondition("mapped", "no", f"no own attempt can have used {', '.join(placement.foreign[:5])}")
    if placement.unsure:
        says = f"{', '.join(placement.unsure[:5])} may be what a request that was not answered was counted under, and no answer ever named it"
        return Precondition("mapped", "not shown", says)
    models = {window.key.model for window in placement.windows if window.rows}
    return Precondition("mapped", "yes", f"each of its {len(models)} models was named by an own answer or asked for")


def _named(placement: Placement) -> Precondition:
    """No verdict hangs on versions and tiers; that no name is answered by quite another model is what is left to believe."""
    silent = [one for one in placement.placed if one.role is not Role.ANSWER]
    asked = {one.attempt.asked_model for one in silent}
    strays = sum(bool(one.strays) for one in silent)
    says = (
        f"{len(silent)} attempts without an answer asked for {len(asked)} names; {strays} of them may stand in a cell of another version or "
        "tier as well, and verdicts hold either way. Taken for granted is that no name was answered by quite another model than it "
        "ever was in an answer on record"
    )
    if placement.near:
        names = ", ".join(sorted({one.attempt.upstream for one in placement.near}))
        says += f". Of {names}, which may have the same account, {len(placement.near)} attempts are allowed for"
    return Precondition("named", "yes", says)


def _keys(placement: Placement) -> Precondition:
    ids = placement.api_key_ids
    if placement.keys_given:
        return Precondition("key", "yes", f"compared are the rows of {', '.join(sorted(placement.scope.api_key_ids))}")
    if len(ids) > 1:
        says = f"the export has {len(ids)} keys ({', '.join(ids[:5])}); say which are sendonce's: --api-key-id ID"
        return Precondition("key", "no", says)
    return Precondition("key", "yes", f"the export has one key, {ids[0]}" if ids else "the export is not split by key")


def _one_each(placement: Placement) -> Precondition:
    reasons = {
        one.attempt.attempt: why
        for one in placement.placed
        if (why := "it is a job" if one.role is Role.JOB else placement.scope.several(one.attempt)) is not None
    }
    if not reasons:
        return Precondition("one", "yes", "each own call is one model request")
    attempt, why = next(iter(sorted(reasons.items())))
    says = f"{len(reasons)} own calls may be several model requests, so only bounds hold for them; the first is {attempt}: {why}"
    return Precondition("one", "no", says)


def _over_ms(used: Sequence[Window]) -> int | None:
    """When the last attempt of these windows can have been counted at the latest. What has no end is left out: it may have been counted
    or not, and every account of a window allows for both.
    """
    ends = (one.until_ms for window in used for one in window.placed)
    return max((end for end in ends if end is not None), default=None)


def _over(fetched: Fetched, over_ms: int | None) -> Precondition:
    if over_ms is None:
        return Precondition("over", "yes", "no window is used that could go on")
    if fetched.at_ms <= over_ms:
        says = (
            f"the first fetch is of {_exact(fetched.at_ms)} by its files' times, and what it is used for may go on until "
            f"{_exact(over_ms)}: fetch it after that"
        )
        return Precondition("over", "no", says)
    says = f"by its files' times the first fetch is {_after_s(fetched, over_ms):.0f} s younger than all that it is used for"
    return Precondition("over", "yes", says)


def _after_s(fetched: Fetched, over_ms: int) -> float:
    return (fetched.at_ms - over_ms) / 1000


def _exact(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def _settled(placement: Placement, used: Sequence[Window], fetched: Fetched, over_ms: int | None) -> Precondition:
    again, settled = fetched.again, fetched.settled
    if again is not None and (changed := _changed(placement.export, again.export, used)):
        return Precondition(
            "settled", "no", f"the second fetch says otherwise, first at {changed}: wait, and fetch both again"
        )
    lacks = _lacking(fetched, over_ms)
    if settled is not None and lacks:
        return Precondition("settled", "stated", settled if again is None else f"{lacks}. {settled}")
    if lacks or again is None:
        return Precondition("settled", "not shown", lacks)
    return Precondition(
        "settled", "yes", f"a fetch {again.later_s:.0f} s later has the same numbers in every window used"
    )


def _lacking(fetched: Fetched, over_ms: int | None) -> str:
    """Empty where two fetches are late enough, and far enough from each other."""
    if over_ms is not None and _after_s(fetched, over_ms) < SETTLE_S:
        return (
            f"the first fetch is {_after_s(fetched, over_ms):.0f} s younger, by its files, than all that it is used for; "
            f"{SETTLE_S:.0f} s are wanted: fetch it again"
        )
    if fetched.again is None:
        return f"fetch the same again {SETTLE_S / 60:.0f} minutes later, and give it as --again"
    if fetched.again.later_s < SETTLE_S:
        return f"the second fetch is {fetched.again.later_s:.0f} s younger by its files; {SETTLE_S:.0f} s are wanted"
    return ""


def _changed(first: Export, second: Export, used: Sequence[Window]) -> str | None:
    if (first.source, first.kind) != (second.source, second.kind):
        return f"its kind, {second.source} {second.kind}".rstrip()

    def within(cells: Sequence[Cell]) -> dict[tuple[object, ...], Cell]:
        return {
            cell.label: cell
            for cell in cells
            if any(window.start_ms <= cell.start_ms < window.end_ms for window in used)
        }

    before, after = within(first.cells), within(second.cells)
    for label in sorted(before.keys() | after.keys(), key=str):
        if before.get(label) != after.get(label):
            found = before.get(label) or after.get(label)
            return found.place if found else str(label)
    if used and not (
        second.start_ms <= min(one.start_ms for one in used) and max(one.end_ms for one in used) <= second.end_ms
    ):
        return "its range, which does not hold every window used"
    return None


def rulings(report: Report, reason: str, by: str) -> Mapping[CallId, Ruling]:
    """One for each verdict that a decision can rest on; empty unless every precondition holds."""
    if not report.final:
        return {}
    return {
        finding.placed.attempt.call: _ruling(report, finding, reason, by)
        for finding in report.findings
        if finding.settles
    }


def _ruling(report: Report, finding: Finding, reason: str, by: str) -> Ruling:
    window, again = finding.window, report.fetched.again
    evidence: dict[str, Any] = {
        "exports": dict(report.placement.export.files),
        "fetched_ms": report.fetched.at_ms,
        "again": dict(again.export.files) if again else {},
        "verdict": finding.verdict.value,
        "equation": finding.why,
        "preconditions": {one.name: f"{one.holds}: {one.says}" for one in report.preconditions},
        "hypotheses": [str(one) for one in report.algebra.hypotheses],
    }
    if window is not None:
        evidence["cell"] = str(window.key)
        evidence["window_ms"] = [window.start_ms, window.end_ms]
    served = finding.verdict is Verdict.SERVED
    return Ruling(
        "served" if served else "not_served",
        reason,
        by,
        how="usage_export",
        result="matches" if served else "absent_conclusive",
        evidence=evidence,
        looked_at=finding.placed.attempt.last_seq,
    )
