"""Closed windows of time, with the rows of one key and every own attempt that they may have counted. Pure.

Whether a provider counts a request when it begins or when it ends is not documented (providers.md section 3), so an attempt may
stand in any bucket from its start to its end, and beyond by the skew of two clocks; one without an end as long as the provider may
have worked on. A window is the smallest union of buckets in which every attempt lies whole.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from proxy.audit.attempts import OwnAttempt
from proxy.reconcile.usage_exports import Cell, Export

Span = tuple[int, int]  # milliseconds since 1970; the end is outside

# Attempts across one boundary. Each is tried on both sides: 2^12 assignments for a window.
CROSSING_LIMIT: Final = 6


class Role(StrEnum):
    """What an own attempt can have added to a cell."""

    ANSWER = "answer"  # a whole 2xx: one request, its tokens as stated
    REFUSED = "refused"  # a wholly received refusal, such as a 400: by hypothesis
    FAILED = "failed"  # the provider said that it failed: by hypothesis
    UNKNOWN = "unknown"  # absent, an error or served; what a person decided of it is no evidence
    JOB = "job"  # goes on by itself: any number of requests, at any time from its start


@dataclass(frozen=True, slots=True, order=True)
class CellKey:
    """What cells of different times share. `api_key_id` is empty where keys are not told apart."""

    model: str
    api_key_id: str = ""
    tier: str = ""
    batch: bool = False

    def __str__(self) -> str:
        extra = [word for word in (self.api_key_id, self.tier, "batch" if self.batch else "") if word]
        return " ".join([self.model, *extra])


@dataclass(frozen=True, slots=True)
class Placed:
    """An attempt, where it may have been counted, and between which instants (None: it has no time)."""

    attempt: OwnAttempt
    role: Role
    candidates: tuple[CellKey, ...]
    from_ms: int | None
    until_ms: int | None
    crosses: bool = False  # of one window: it may stand in another one as well
    guessed: bool = False  # no answer ever taught what its model is called: it may stand in another cell yet
    strays: tuple[CellKey, ...] = ()  # where it may have been counted although nothing taught it

    @property
    def floats(self) -> bool:
        """No window holds it, so it is a possibility in every one."""
        return self.from_ms is None or self.until_ms is None

    @property
    def has_one_cell(self) -> bool:
        return len(self.candidates) == 1 and not self.guessed

    @property
    def is_surely_here(self) -> bool:
        return self.has_one_cell and not self.floats and not self.crosses

    def may_touch(self, start_ms: int, end_ms: int) -> bool:
        begins_before = self.from_ms is None or self.from_ms < end_ms
        return begins_before and (self.until_ms is None or self.until_ms >= start_ms)

    def within(self, start_ms: int, end_ms: int) -> bool:
        return (
            self.from_ms is not None
            and self.until_ms is not None
            and start_ms <= self.from_ms
            and self.until_ms < end_ms
        )


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of one key in a stretch of time, and every own attempt that they may have counted."""

    key: CellKey
    start_ms: int
    end_ms: int
    rows: tuple[Cell, ...]  # in the order of time
    placed: tuple[Placed, ...]
    closed: bool  # no attempt reaches beyond the export
    strays: tuple[Placed, ...] = ()  # what stands elsewhere, by what is known of names, and may have been counted here

    @property
    def answers(self) -> tuple[Placed, ...]:
        return tuple(one for one in self.placed if one.role is Role.ANSWER and one.is_surely_here)

    @property
    def unknowns(self) -> tuple[Placed, ...]:
        return tuple(one for one in self.placed if one.role is Role.UNKNOWN)

    @property
    def misses_no_row(self) -> bool:
        """Every bucket that an attempt of it may stand in has its row: a row that was dropped would be seen."""
        stretches = merged(self._spans, touching=True)
        return self._one_row_a_bucket and all(
            any(start <= self._from(one) and self._until(one) < end for start, end in stretches)
            for one in self.placed
            if not one.floats
        )

    def _from(self, one: Placed) -> int:
        return self.start_ms if one.from_ms is None else max(self.start_ms, one.from_ms)

    def _until(self, one: Placed) -> int:
        return self.end_ms - 1 if one.until_ms is None else min(self.end_ms - 1, one.until_ms)

    @property
    def has_no_strange_row(self) -> bool:
        """Each row surely holds an answer of ours: a row of somebody else's would stand alone."""
        spans = self._spans
        ours = {span for one in self.answers if (span := _holding(spans, one)) is not None and one.within(*span)}
        return self._one_row_a_bucket and ours == set(spans)

    @property
    def _spans(self) -> list[Span]:
        return [(row.start_ms, row.end_ms) for row in self.rows]

    @property
    def _one_row_a_bucket(self) -> bool:
        return len(set(self._spans)) == len(self.rows)


_ENDED: Final = frozenset({Role.ANSWER, Role.REFUSED, Role.FAILED})


def windows(
    placed: Sequence[Placed], rows: Mapping[CellKey, Sequence[Cell]], export: Export, near: Sequence[Placed] = ()
) -> Iterable[Window]:
    """`near`: what stands in no cell, and may have been counted in each of its strays."""
    of_key: dict[CellKey, list[Placed]] = {key: [] for key in rows}
    strays: dict[CellKey, list[Placed]] = {key: [] for key in rows}
    for one in placed:
        for key in one.candidates:
            of_key.setdefault(key, []).append(one)
    for one in (*placed, *near):
        for key in one.strays:
            strays[key].append(replace(one, candidates=()))
    buckets = [(bucket.start_ms, bucket.end_ms) for bucket in export.buckets]
    for key, mine in sorted(of_key.items()):
        found = list(_windows_of(key, mine, sorted(rows.get(key, ()), key=lambda row: row.start_ms), buckets))
        yield from _with_strays(found, strays.get(key, ()))


def _with_strays(found: Sequence[Window], strays: Sequence[Placed]) -> Iterable[Window]:
    spans = [(window.start_ms, window.end_ms) for window in found]
    inside: list[list[Placed]] = [[] for _ in found]
    for one in strays:
        for at in range(len(found)) if one.floats else _touching(spans, one):
            if one.may_touch(*spans[at]):
                inside[at].append(one)
    for window, may in zip(found, inside, strict=True):
        yield replace(window, strays=tuple(may)) if may else window


def _windows_of(
    key: CellKey, mine: Sequence[Placed], rows: Sequence[Cell], buckets: Sequence[Span]
) -> Iterable[Window]:
    """What has no end lies in one window. What has one, and stands across a boundary, is a possibility on both of its sides."""
    timed = [one for one in mine if not one.floats and one.may_touch(buckets[0][0], buckets[-1][1] - 1)]
    spans = [(row.start_ms, row.end_ms) for row in rows]
    for one in timed:
        spans += _touched(one, buckets) if one.role in _ENDED else [_reach(one, buckets)]
    found = _parted(merged(spans), [one for one in timed if one.role in _ENDED])
    inside: list[list[Placed]] = [[] for _ in found]
    for one in timed:
        for at in _touching(found, one):
            within = one.within(*found[at])
            inside[at].append(one if within else replace(one, crosses=True))
    standing: list[list[Cell]] = [[] for _ in found]
    for row in rows:
        standing[_at(found, row.start_ms)].append(row)
    floating = [one for one in mine if one.floats]
    for (start, end), placed, of_window in zip(found, inside, standing, strict=True):
        placed += [one for one in floating if one.may_touch(start, end)]
        closed = (
            buckets[0][0] <= start
            and end <= buckets[-1][1]
            and sum(one.crosses for one in placed) <= 2 * CROSSING_LIMIT
        )
        yield Window(key, start, end, tuple(of_window), tuple(placed), closed)


def _touched(one: Placed, buckets: Sequence[Span]) -> list[Span]:
    """Each bucket that it may stand in, by itself; where there is none, its own time: no row can hold it."""
    return [buckets[at] for at in _touching(buckets, one)] or [_reach(one, buckets)]


def _parted(spans: list[Span], ended: Sequence[Placed]) -> list[Span]:
    """Joins neighbours that too many attempts stand across: to try each on both sides would take too long."""
    while True:
        across: dict[int, int] = {}
        for one in ended:
            for at in _touching(spans, one)[:-1]:
                across[at] = across.get(at, 0) + 1
        joined = [(spans[at][0], spans[at + 1][1]) for at, number in across.items() if number > CROSSING_LIMIT]
        if not joined:
            return spans
        spans = merged([*spans, *joined])


def _touching(spans: Sequence[Span], one: Placed) -> range:
    """Which spans it may stand in, one behind the other; spans do not overlap."""
    assert one.from_ms is not None
    assert one.until_ms is not None
    first = _at(spans, one.from_ms)
    if first < 0 or spans[first][1] <= one.from_ms:
        first += 1
    return range(first, _at(spans, one.until_ms) + 1)


def _reach(one: Placed, buckets: Sequence[Span]) -> Span:
    """The buckets that it may stand in, and what it has of time between and beyond them, as one stretch."""
    assert one.from_ms is not None
    assert one.until_ms is not None
    found = [buckets[at] for at in _touching(buckets, one)]
    starts, ends = [start for start, _ in found], [end for _, end in found]
    return min([one.from_ms, *starts]), max([one.until_ms + 1, *ends])


def merged(spans: Iterable[Span], *, touching: bool = False) -> list[Span]:
    """Those that overlap become one; `touching`: those too of which one ends where the next begins."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and (start < found[-1][1] or (touching and start == found[-1][1])):
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _at(spans: Sequence[Span], moment: int) -> int:
    """Where the last span stands that begins by then; -1 where none does."""
    return bisect_right(spans, moment, key=lambda span: span[0]) - 1


def _holding(spans: Sequence[Span], one: Placed) -> Span | None:
    at = -1 if one.from_ms is None else _at(spans, one.from_ms)
    return spans[at] if at >= 0 else None


def instant(at_ms: int) -> str:
    """In UTC, to the minute: what exports are cut by."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ")
