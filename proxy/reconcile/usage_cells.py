"""Own attempts beside the cells that may have counted them: which model, key and tier each may have. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ledger.stages import Effect
from proxy.audit.attempts import OwnAttempt
from proxy.endpoints import EndpointClass, Family
from proxy.reconcile.usage_exports import SOURCE_FAMILIES, Cell, Export, UnusableExportError
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
    have done more than is billed, else None.
    """

    skew_ms: int = int(DEFAULT_SKEW_S * 1000)
    longest_ms: int = int(DEFAULT_LONGEST_S * 1000)
    api_key_ids: frozenset[str] = frozenset()
    alive: frozenset[str] = frozenset()  # calls in flight: nobody knows when they end
    input_upper: Callable[[OwnAttempt], int | None] = field(default=lambda _: None)
    several: Callable[[OwnAttempt], str | None] = field(default=lambda _: None)
    acts: Callable[[OwnAttempt], str | None] = field(default=lambda _: None)


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


def place(attempts: Sequence[OwnAttempt], export: Export, scope: Scope, family: Family) -> Placement:
    """`attempts`: all of one upstream. Raises UnusableExportError where the export is another provider's, year's or organisation's."""
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
    naming = _Naming.learnt(attempts, frozenset(by_key))
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
    own = {key.model for one in placed if not one.guessed for key in one.candidates}
    guessed = any(one.guessed and one.role is not Role.REFUSED for one in placed)
    strange = sorted({key.model for key in by_key} - own)
    return Placement(
        export,
        tuple(windows(placed, by_key, export)),
        tuple(placed),
        left_out,
        bool(scope.api_key_ids),
        ids,
        () if guessed else tuple(strange),
        tuple(strange) if guessed else (),
        scope,
    )


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


@dataclass(frozen=True, slots=True)
class _Naming:
    """Which names an asked model was answered under, and at which tiers, as own whole answers taught."""

    keys: frozenset[CellKey]
    models: Mapping[str, frozenset[str]]
    tiers: Mapping[str, frozenset[str | None]]

    @classmethod
    def learnt(cls, attempts: Iterable[OwnAttempt], keys: frozenset[CellKey]) -> "_Naming":
        models: dict[str, frozenset[str]] = {}
        tiers: dict[str, frozenset[str | None]] = {}
        for one in attempts:
            if role_of(one) is Role.ANSWER and one.asked_model and one.model:
                models[one.asked_model] = models.get(one.asked_model, frozenset()) | {one.model}
                tiers[one.asked_model] = tiers.get(one.asked_model, frozenset()) | {one.service_tier}
        return cls(keys, models, tiers)

    def names(self, attempt: OwnAttempt, role: Role) -> frozenset[str] | None:
        """None: nobody can say."""
        if role is Role.ANSWER or attempt.model != attempt.asked_model:
            return frozenset({attempt.model}) if attempt.model else None
        asked = attempt.asked_model
        if asked is None:
            return None
        if (known := self.models.get(asked)) is not None:
            return known
        return frozenset({asked}) if any(key.model == asked for key in self.keys) else None

    def candidates(self, attempt: OwnAttempt, role: Role) -> tuple[CellKey, ...]:
        names = self.names(attempt, role)
        fitting = [
            key for key in self.keys if (names is None or key.model in names) and (role is Role.JOB or not key.batch)
        ]
        tiers = (
            {attempt.service_tier} if role is Role.ANSWER else self.tiers.get(attempt.asked_model or "", frozenset())
        )
        exact = [key for key in fitting if key.tier in tiers]
        if tiers and None not in tiers and exact:
            fitting = exact
        for name in names or ():
            if all(key.model != name for key in fitting):
                fitting.append(CellKey(name))  # the export has no row for it
        return tuple(sorted(fitting))


def _placed(attempt: OwnAttempt, role: Role, naming: _Naming, scope: Scope) -> Placed | None:
    if role is Role.REFUSED and attempt.asked_model is None:
        return None  # a request that names no model is counted under none
    candidates, guessed = naming.candidates(attempt, role), naming.names(attempt, role) is None
    start, end = attempt.started_at_ms, attempt.ended_at_ms
    from_ms = None if start is None else start - scope.skew_ms
    if start is None or role is Role.JOB or attempt.call in scope.alive:
        return Placed(attempt, role, candidates, from_ms, None, guessed=guessed)
    if attempt.ended == "whole" and end is not None:
        return Placed(attempt, role, candidates, from_ms, max(start, end) + scope.skew_ms, guessed=guessed)
    until_ms = max(start, end or start) + scope.longest_ms + scope.skew_ms
    return Placed(attempt, role, candidates, from_ms, until_ms, guessed=guessed)


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


def _check_models(attempts: Sequence[OwnAttempt], export: Export, naming: _Naming, placed: Sequence[Placed]) -> None:
    theirs = {key.model for key in naming.keys}
    ours = {name for one in placed for name in naming.names(one.attempt, one.role) or ()}
    if attempts and theirs and ours and not theirs & ours:
        raise UnusableExportError(
            f"{export.files[0][0]}: its models ({', '.join(sorted(theirs)[:5])}) and the record's ({', '.join(sorted(ours)[:5])}) "
            "have none in common: it is another organisation's, or another upstream's."
        )
