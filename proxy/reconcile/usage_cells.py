"""Own attempts beside the cells that may have counted them: which model, key and tier each may have. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ledger.stages import Effect
from proxy.audit.attempts import OwnAttempt
from proxy.endpoints import EndpointClass, Family
from proxy.reconcile.usage_exports import SOURCE_FAMILIES, Cell, Export, UnusableExportError
from proxy.reconcile.usage_names import Naming
from proxy.reconcile.usage_windows import CellKey, Placed, Role, Window, instant, windows

DEFAULT_SKEW_S: Final = 60.0  # two clocks without NTP, and the provider's own way from counting to its bucket
DEFAULT_LONGEST_S: Final = 900.0  # the proxy's own idle limit: beyond it a provider has rarely been seen to work on

# What a row of this kind can have counted. A kind that is not listed counts neither model requests nor tokens.
_GENERATES: Final = frozenset({EndpointClass.GENERATE.value, EndpointClass.JOB.value})
_BILLS: Final = frozenset({EndpointClass.STATELESS_BILLED.value})
_KINDS: Final[Mapping[str, frozenset[str]]] = {
    "completions": _GENERATES,
    "messages": _GENERATES,
    "": _GENERATES | _BILLS,
}


@dataclass(frozen=True, slots=True)
class Scope:
    """How exports are held against the record. `several`: why an attempt may be counted more than once, else None. `acts`: why it may
    have done more than is billed, else None. `asked_tier`: the tier that its own request names, if it is known.
    """

    skew_ms: int = int(DEFAULT_SKEW_S * 1000)
    longest_ms: int = int(DEFAULT_LONGEST_S * 1000)
    api_key_ids: frozenset[str] = frozenset()
    alive: frozenset[str] = frozenset()  # calls in flight: nobody knows when they end
    input_upper: Callable[[OwnAttempt], int | None] = field(default=lambda _: None)
    several: Callable[[OwnAttempt], str | None] = field(default=lambda _: None)
    acts: Callable[[OwnAttempt], str | None] = field(default=lambda _: None)
    asked_tier: Callable[[OwnAttempt], str | None] = field(default=lambda _: None)


@dataclass(frozen=True, slots=True)
class Placement:
    """The whole comparison, laid out. `left_out`: attempts that this export cannot have counted, and why."""

    export: Export
    windows: tuple[Window, ...]
    placed: tuple[Placed, ...]
    left_out: Mapping[str, str]
    keys_given: bool
    api_key_ids: tuple[str, ...]  # of the export
    foreign: tuple[str, ...]  # models that no own attempt can have used
    unsure: tuple[str, ...]  # models that only an attempt whose model is not learnt can have used
    scope: Scope
    near: tuple[Placed, ...]  # of other upstreams that may be of the same account


def place(
    attempts: Sequence[OwnAttempt], export: Export, scope: Scope, family: Family, near: Sequence[OwnAttempt] = ()
) -> Placement:
    """`attempts`: all of one provider's address. `near`: those of other upstreams, whose account may be the same one: each may be in the
    export or not. Raises UnusableExportError where the export is another provider's, year's or organisation's.
    """
    _check_family(export, family)
    _check_range(attempts, export)
    ids = tuple(sorted({cell.api_key_id for cell in export.cells if cell.api_key_id}))
    if missing := sorted(scope.api_key_ids - set(ids)):
        raise UnusableExportError(
            f"{export.files[0][0]}: it has no row of the key {missing[0]}. Its keys are {', '.join(ids) or 'not stated'}; "
            "fetch it with group_by[]=api_key_id."
        )
    cells = [cell for cell in export.cells if not scope.api_key_ids or cell.api_key_id in scope.api_key_ids]
    used = {cell.api_key_id for cell in cells}
    by_key: dict[CellKey, list[Cell]] = {}
    for cell in cells:
        by_key.setdefault(_key(cell, one_key=len(used) == 1), []).append(cell)
    answers = (one for one in attempts if role_of(one) is Role.ANSWER)
    naming = Naming.learnt(answers, frozenset(by_key), scope.asked_tier)
    kinds = _KINDS.get(export.kind, _BILLS)
    left_out: dict[str, str] = {}
    placed: list[Placed] = []
    for attempt in attempts:
        if (role := role_of(attempt)) is None:
            left_out[attempt.attempt] = "it is proven to have reached nobody"
        elif attempt.endpoint_class not in kinds:
            left_out[attempt.attempt] = f"no {export.source} counts requests of the class {attempt.endpoint_class}"
        elif (one := _placed(attempt, role, naming, scope)) is not None:
            placed.append(one)
    _check_models(attempts, export, naming, placed)
    nearby = _nearby(near, naming, scope, kinds)
    own = {key.model for one in placed if not one.guessed for key in one.candidates}
    guessed = any(one.guessed and one.role is not Role.REFUSED for one in placed)
    strays = {key.model for one in (*placed, *nearby) for key in one.strays}
    strange = sorted({key.model for key in by_key} - own)
    return Placement(
        export,
        tuple(windows(placed, by_key, export, nearby)),
        tuple(placed),
        left_out,
        bool(scope.api_key_ids),
        ids,
        tuple(name for name in strange if not guessed and name not in strays),
        tuple(name for name in strange if guessed or name in strays),
        scope,
        nearby,
    )


def _nearby(near: Sequence[OwnAttempt], naming: Naming, scope: Scope, kinds: frozenset[str]) -> tuple[Placed, ...]:
    """They stand nowhere, and may have been counted in every cell that could have counted them."""
    placed = []
    for attempt in near:
        role = role_of(attempt)
        one = _placed(attempt, role, naming, scope) if role is not None and attempt.endpoint_class in kinds else None
        if one is not None:
            placed.append(replace(one, candidates=(), strays=naming.anywhere(attempt, one.role)))
    return tuple(placed)


def role_of(attempt: OwnAttempt) -> Role | None:
    """None: it can have added nothing."""
    if attempt.ended == "not_sent":
        return None
    if attempt.background:
        return Role.JOB
    if attempt.is_unknown:
        return Role.UNKNOWN
    match attempt.effect:
        case Effect.HAPPENED:
            answered = attempt.status is not None and 200 <= attempt.status < 300
            return Role.ANSWER if answered else Role.UNKNOWN
        case Effect.ANSWERED:
            return Role.FAILED
        case _:
            return Role.REFUSED if attempt.status is not None else None


def _key(cell: Cell, *, one_key: bool) -> CellKey:
    return CellKey(cell.model or "", (cell.api_key_id or "") if one_key else "", cell.tier or "", bool(cell.batch))


def _placed(attempt: OwnAttempt, role: Role, naming: Naming, scope: Scope) -> Placed | None:
    if role is Role.REFUSED and attempt.asked_model is None:
        return None  # a request that names no model is counted under none
    found = Placed(
        attempt,
        role,
        naming.candidates(attempt, role),
        None,
        None,
        guessed=naming.names(attempt, role) is None,
        strays=naming.strays(attempt, role),
    )
    start, end = attempt.started_at_ms, attempt.ended_at_ms
    from_ms = None if start is None else start - scope.skew_ms
    if start is None or role is Role.JOB or attempt.call in scope.alive:
        return replace(found, from_ms=from_ms)
    if attempt.ended == "whole" and end is not None:
        return replace(found, from_ms=from_ms, until_ms=max(start, end) + scope.skew_ms)
    until_ms = max(start, end or start) + scope.longest_ms + scope.skew_ms
    return replace(found, from_ms=from_ms, until_ms=until_ms)


def _check_family(export: Export, family: Family) -> None:
    wanted = SOURCE_FAMILIES.get(export.source)
    if wanted is not None and wanted is not family:
        raise UnusableExportError(
            f"{export.files[0][0]}: it is an export of {wanted}, and the upstream speaks {family}. Name its --upstream."
        )


def _check_range(attempts: Sequence[OwnAttempt], export: Export) -> None:
    times = [one.started_at_ms for one in attempts if one.started_at_ms is not None]
    if times and (max(times) < export.start_ms or min(times) >= export.end_ms):
        raise UnusableExportError(
            f"{export.files[0][0]}: it is of {instant(export.start_ms)} to {instant(export.end_ms)}, and the record of this upstream "
            f"of {instant(min(times))} to {instant(max(times))}: they share no moment. Fetch the record's time."
        )


def _check_models(attempts: Sequence[OwnAttempt], export: Export, naming: Naming, placed: Sequence[Placed]) -> None:
    theirs = {key.model for key in naming.keys}
    ours = {name for one in placed for name in naming.names(one.attempt, one.role) or ()}
    if attempts and theirs and ours and not theirs & ours:
        raise UnusableExportError(
            f"{export.files[0][0]}: its models ({', '.join(sorted(theirs)[:5])}) and the record's ({', '.join(sorted(ours)[:5])}) "
            "have none in common: it is another organisation's, or another upstream's."
        )
