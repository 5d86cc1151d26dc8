"""An export and the record, line by line: what matches, what unknowns explain, what nothing explains. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

from proxy.audit.attempts import OwnAttempt
from proxy.endpoints import EndpointClass
from proxy.reconcile.usage_algebra import Algebra, Solved
from proxy.reconcile.usage_cells import Placement, role_of
from proxy.reconcile.usage_exports import Cell, Export
from proxy.reconcile.usage_windows import Placed, Role, Window

State = Literal["matched", "unmatched", "unknown"]

CENT: Final = Decimal("0.01")
_COSTLESS: Final = frozenset({EndpointClass.IDEMPOTENT.value, EndpointClass.CREDENTIAL_MINT.value})


@dataclass(frozen=True, slots=True)
class Numbers:
    """None: not stated. Of own attempts: what whole answers state."""

    requests: int | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    cost: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One cell of the export, joined to its window, or own attempts that no cell holds."""

    start_ms: int
    end_ms: int
    cell: str
    own: Numbers
    export: Numbers
    unknowns: int
    state: State
    says: str


def compare(placement: Placement, algebra: Algebra, costs: Mapping[str, Decimal] | None = None) -> tuple[Line, ...]:
    """In the order of time. `costs`: of own attempts, by attempt id, in the currency of the export."""
    solved = {id(one.window): one for one in algebra.solved}
    lines = [_line(window, solved.get(id(window)), costs) for window in placement.windows]
    return tuple(sorted(lines, key=lambda line: (line.start_ms, line.cell)))


def compare_costs(
    attempts: Sequence[OwnAttempt], export: Export, costs: Mapping[str, Decimal] | None
) -> tuple[Line, ...]:
    """A cost page says neither requests nor, mostly, models: each bucket as a whole. What it counts late or early is not known."""
    lines = []
    for bucket in export.buckets:
        mine = [
            one for one in attempts if one.started_at_ms is None or bucket.start_ms <= one.started_at_ms < bucket.end_ms
        ]
        billed = sum((cell.cost for cell in bucket.cells if cell.cost is not None), Decimal(0))
        unstated = sum(_may_cost(one) and one.attempt not in (costs or {}) for one in mine)
        known = None if costs is None else sum((costs.get(one.attempt, Decimal(0)) for one in mine), Decimal(0))
        state, says = _cost_state(known, billed, unstated)
        currency = "/".join(sorted({cell.currency for cell in bucket.cells if cell.currency})) or "no rows"
        # A sum with a gap would look like a number.
        own = Numbers(requests=sum(role_of(one) is Role.ANSWER for one in mine), cost=None if unstated else known)
        unknowns = sum(one.is_unknown for one in mine)
        lines.append(
            Line(bucket.start_ms, bucket.end_ms, f"all, {currency}", own, Numbers(cost=billed), unknowns, state, says)
        )
    return tuple(lines)


def _may_cost(attempt: OwnAttempt) -> bool:
    """Not what is proven to have reached nobody, or to have been refused; and what ends in the same state however often it is asked."""
    return attempt.endpoint_class not in _COSTLESS and role_of(attempt) not in (None, Role.REFUSED)


def _cost_state(known: Decimal | None, billed: Decimal, unstated: int) -> tuple[State, str]:
    """`unstated`: own attempts that may have cost something, nobody knows how much."""
    if known is None:
        return "unknown", "no own costs were given to compare with"
    if unstated and known < billed + CENT:
        more = f"{max(billed - known, Decimal(0))} more than the known costs; "
        return "unknown", f"{more}{unstated} own attempts whose cost is not known may have cost it"
    if _is_one_amount(known, billed):
        return "matched", ""
    return "unmatched", f"{billed - known} beside own answers"


def _is_one_amount(own: Decimal, billed: Decimal) -> bool:
    """To the cent: how a provider rounds each of its rows is not documented."""
    return abs(own - billed) < CENT


def _line(window: Window, one: Solved | None, costs: Mapping[str, Decimal] | None) -> Line:
    answers = window.answers
    unknowns = sum(placed.role in (Role.UNKNOWN, Role.JOB) for placed in window.placed)
    own, export = _own(answers, costs), _stated(window.rows)
    state, says = _state(window, one, own, export)
    return Line(window.start_ms, window.end_ms, str(window.key), own, export, unknowns, state, says)


def _state(window: Window, one: Solved | None, own: Numbers, export: Numbers) -> tuple[State, str]:
    if not window.closed:
        return "unknown", "the window reaches beyond the export"
    if not window.rows:
        only_unknown = all(placed.role is not Role.ANSWER for placed in window.placed)
        return ("unknown" if only_unknown else "unmatched"), "the export has no row for these own attempts"
    if not window.placed:
        empty = one is not None and one.fits
        return ("matched" if empty else "unmatched"), "" if empty else "no own attempt can have caused it"
    if one is None:
        return "unknown", "not compared, since nothing adds up elsewhere"
    if not one.fits:
        return "unmatched", "no account of the attempts on record gives these numbers"
    if one.variables and all(placed.crosses for placed in one.variables):
        return "matched", f"some of the {len(one.variables)} own attempts across its edges stand in it"
    if any(one.residual) or one.variables:
        return "unknown", "what is beyond own answers is within what the other attempts can have used"
    if own.cost is not None and export.cost is not None and not _is_one_amount(own.cost, export.cost):
        return "unmatched", f"the cost differs by {export.cost - own.cost}"
    return "matched", ""


def _own(answers: Sequence[Placed], costs: Mapping[str, Decimal] | None) -> Numbers:
    tokens = [placed.attempt.tokens for placed in answers]
    whole = [one for one in tokens if one is not None]
    if len(whole) < len(tokens):  # a sum with a gap would look like a number
        return Numbers(len(answers))
    cost = None
    if costs is not None and all(placed.attempt.attempt in costs for placed in answers):
        cost = sum((costs[placed.attempt.attempt] for placed in answers), Decimal(0))
    return Numbers(
        len(answers),
        sum(one.input for one in whole),
        sum(one.cached for one in whole),
        sum(one.cache_write for one in whole),
        sum(one.output for one in whole),
        cost,
    )


def _stated(rows: Sequence[Cell]) -> Numbers:
    def total(name: str) -> int | None:
        values = [getattr(row, name) for row in rows]
        return None if None in values else sum(values)

    costs = [row.cost for row in rows if row.cost is not None]
    return Numbers(
        total("requests"),
        total("input_tokens"),
        total("cached_tokens"),
        total("cache_write_tokens"),
        total("output_tokens"),
        sum(costs, Decimal(0)) if costs and len(costs) == len(rows) else None,
    )
