"""Items added up: by time, upstream, model, caller or run. Pure: the same record and the same log give the same report."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Final

from ledger.ids import CallId
from proxy.audit.money import ZERO, Between, total, up_to
from proxy.audit.spend import Category, Item
from proxy.codes import Code

LISTED: Final = (Category.UNKNOWN, Category.POSSIBLY_BILLED_FAILURE, Category.UNSTATED, Category.UNKNOWN_MODEL)
NOBODY: Final = "(none)"  # a group for what has no run, or whose model or caller is not known


class By(StrEnum):
    TIME = "time"
    UPSTREAM = "upstream"
    MODEL = "model"
    CALLER = "caller"
    RUN = "run"


class Bucket(StrEnum):
    DAY = "day"
    HOUR = "hour"
    MINUTE = "minute"


_BUCKETS: Final = {Bucket.DAY: "%Y-%m-%d", Bucket.HOUR: "%Y-%m-%d %H:00", Bucket.MINUTE: "%Y-%m-%d %H:%M"}
# Without these answers the client's retry would have been sent although the first one may have been served.
AVOIDING: Final = frozenset({Code.EFFECT_UNKNOWN, Code.EFFECT_HAPPENED, Code.PARKED, Code.RESPONSE_LOST})


@dataclass(frozen=True, slots=True)
class OwnCall:
    """What a group may be made of, of one call."""

    call: CallId
    created_at_ms: int
    upstream: str
    model: str | None
    caller: str
    run: str | None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the activity log, which is no witness: it is rotated, and lines may be lost."""

    at_ms: int
    what: str  # refused, replayed or attached
    upstream: str
    code: str | None
    call: CallId | None
    run: str | None


@dataclass(frozen=True, slots=True)
class Reach:
    """The activity log: its oldest line (None: it has none), how many lines could not be read, whether older ones were rotated away."""

    since_ms: int | None = None
    unreadable: int = 0
    is_missing: bool = False
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be reported. Times in milliseconds since 1970; `until_ms` is not in the range any more."""

    by: By = By.TIME
    bucket: Bucket = Bucket.DAY
    since_ms: int | None = None
    until_ms: int | None = None
    upstream: str | None = None
    run: str | None = None

    def holds(self, at_ms: int, upstream: str, run: str | None) -> bool:
        in_time = (self.since_ms is None or at_ms >= self.since_ms) and (self.until_ms is None or at_ms < self.until_ms)
        return in_time and self.upstream in (None, upstream) and self.run in (None, run)


@dataclass(slots=True)
class Row:
    """One group, or all of them. Of each `Between` the record does not say where in it the truth lies."""

    calls: int = 0
    attempts: int = 0
    refused: int = 0  # from here to `attached`: by the log
    replayed: int = 0
    attached: int = 0
    avoided: int = 0
    not_spent: Between = field(default_factory=Between)
    known: Decimal = ZERO
    costs: dict[Category, Between] = field(default_factory=dict)
    counts: Counter[Category] = field(default_factory=Counter)
    accepted_duplicates: int = 0
    decided_served: int = 0  # of the unknown: a person said that they were served, and nobody how much

    def cost(self, category: Category) -> Between:
        return self.costs.get(category, Between())

    @property
    def at_most(self) -> Decimal:
        """Known, and what the unknown ones may add as far as they have an upper bound."""
        return self.known + self.cost(Category.UNKNOWN).upper

    def add(self, item: Item) -> None:
        self.attempts += 1
        self.counts[item.category] += 1
        self.accepted_duplicates += item.is_duplicate
        self.decided_served += item.category is Category.UNKNOWN and item.attempt.decision == "served"
        if item.category is Category.KNOWN:
            self.known += item.cost.lower
        else:
            self.costs[item.category] = self.cost(item.category) + item.cost

    def log(self, line: LogLine, avoided: Between | None) -> None:
        self.refused += line.what == "refused"
        self.replayed += line.what == "replayed"
        self.attached += line.what == "attached"
        if avoided is not None:
            self.avoided += 1
            self.not_spent += avoided


@dataclass(frozen=True, slots=True)
class Report:
    """`listed`: the attempts behind the numbers that are not simply known, oldest first."""

    ask: Ask
    totals: Row
    groups: Mapping[str, Row]
    over_time: Mapping[str, Row]
    by_model: Mapping[str, Row]
    listed: Mapping[Category, tuple[Item, ...]]
    reach: Reach
    first_call_ms: int | None
    costs: Mapping[str, Decimal]  # of every attempt on record whose cost is known, by its id


def report(ask: Ask, calls: Iterable[OwnCall], items: Iterable[Item], log: Iterable[LogLine], reach: Reach) -> Report:
    """`calls` and `items`: all that are on record, whatever the range: a replay costs what its call did, whenever that was."""
    known_calls = {call.call: call for call in calls}
    every = list(items)
    totals = Row()
    grouped = {by: _Groups(by, ask.bucket) for by in {ask.by, By.TIME, By.MODEL}}
    for call in known_calls.values():
        if ask.holds(call.created_at_ms, call.upstream, call.run):
            for row in (totals, *(groups.of(call, call.created_at_ms) for groups in grouped.values())):
                row.calls += 1
    chosen = [item for item in every if ask.holds(_at(item), item.attempt.upstream, item.attempt.run)]
    for item in chosen:
        call = known_calls[item.attempt.call]
        for row in (totals, *(groups.of(call, _at(item)) for groups in grouped.values())):
            row.add(item)
    _add_log(ask, known_calls, every, log, totals, grouped)
    return Report(
        ask,
        totals,
        grouped[ask.by].ordered(),
        grouped[By.TIME].ordered(),
        grouped[By.MODEL].ordered(),
        {category: tuple(item for item in chosen if item.category is category) for category in LISTED},
        reach,
        min((call.created_at_ms for call in known_calls.values()), default=None),
        {item.attempt.attempt: item.cost.lower for item in every if item.category is Category.KNOWN},
    )


def _add_log(
    ask: Ask,
    calls: Mapping[CallId, OwnCall],
    items: list[Item],
    log: Iterable[LogLine],
    totals: Row,
    grouped: Mapping[By, "_Groups"],
) -> None:
    costs: dict[CallId, list[Between]] = {}
    for item in items:
        costs.setdefault(item.attempt.call, []).append(_avoidable(item))
    refused: set[CallId] = set()
    for line in log:
        call = calls.get(line.call) if line.call else None
        run = call.run if call else line.run
        if not ask.holds(line.at_ms, line.upstream, run):
            continue
        avoided = None
        if call is not None and line.what in ("replayed", "attached"):
            avoided = total(costs.get(call.call, []))
        elif call is not None and line.code in AVOIDING and call.call not in refused:
            refused.add(call.call)  # once: sent again it would have been answered, and not repeated
            whole = total(costs.get(call.call, []))
            avoided = Between(ZERO, whole.upper, whole.unbounded)
        about = call or OwnCall(CallId(""), line.at_ms, line.upstream, None, NOBODY, line.run)
        for row in (totals, *(groups.of(about, line.at_ms) for groups in grouped.values())):
            row.log(line, avoided)


def _avoidable(item: Item) -> Between:
    """What the same once more would have cost; of an unknown price nobody can say."""
    return up_to(None) if item.category is Category.UNKNOWN_MODEL else item.cost


def _at(item: Item) -> int:
    return item.attempt.created_at_ms if item.attempt.started_at_ms is None else item.attempt.started_at_ms


class _Groups:
    def __init__(self, by: By, bucket: Bucket) -> None:
        self._by, self._bucket = by, bucket
        self._rows: dict[str, Row] = {}

    def of(self, call: OwnCall, at_ms: int) -> Row:
        return self._rows.setdefault(self._name(call, at_ms), Row())

    def ordered(self) -> dict[str, Row]:
        """Times in their order, others by what they can have cost, most first."""
        names = sorted(self._rows)
        if self._by is not By.TIME:
            names.sort(key=lambda name: self._rows[name].at_most, reverse=True)
        return {name: self._rows[name] for name in names}

    def _name(self, call: OwnCall, at_ms: int) -> str:
        match self._by:
            case By.TIME:
                return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(_BUCKETS[self._bucket])
            case By.UPSTREAM:
                return call.upstream
            case By.MODEL:
                return call.model or NOBODY
            case By.CALLER:
                return call.caller or NOBODY
            case By.RUN:
                return call.run or NOBODY
