"""Time buckets of the usage exports, their pages, and what stands in them grouped. Pure; times are unix seconds."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from synthetic_provider.asked import Query, RefusedError
from synthetic_provider.usage import UsageRecord

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class Width:
    seconds: int
    default: int  # buckets on a page
    most: int


# The same at OpenAI (usage_completions_params.py of openai 3.57) and Anthropic (docs, usage-cost-api).
USAGE_WIDTHS: Mapping[str, Width] = {
    "1m": Width(MINUTE_S, 60, 1440),
    "1h": Width(HOUR_S, 24, 168),
    "1d": Width(DAY_S, 7, 31),
}


@dataclass(frozen=True, slots=True)
class Bucket:
    start: int
    end: int  # exclusive


@dataclass(frozen=True, slots=True)
class Page:
    buckets: Sequence[Bucket]
    next: str | None


def width_of(query: Query, widths: Mapping[str, Width]) -> Width:
    return widths[query.choice("bucket_width", widths, "1d")]


def page_of(query: Query, buckets: Iterable[Bucket], width: Width) -> Page:
    """The buckets that `limit` and `page` ask for; a page's name is where it starts."""
    limit = query.number("limit", width.default, least=1, most=width.most)
    cursor = query.one("page")
    start = 0
    if cursor is not None:
        number = cursor.removeprefix("page_")
        if not (number.isascii() and number.isdigit()):
            raise RefusedError(400, f"The parameter page is {cursor!r}: give the next_page of an earlier answer.")
        start = int(number)
    found = list(islice((bucket for bucket in buckets if bucket.start >= start), limit + 1))
    return Page(found[:limit], f"page_{found[limit].start}" if len(found) > limit else None)


def clipped(start: int, end: int, width_s: int) -> Iterator[Bucket]:
    """On the grid of UTC, all of the time from `start` to `end` and no more: the first and last may be shorter."""
    while start < end:
        border = min(end, start - start % width_s + width_s)
        yield Bucket(start, border)
        start = border


def snapped(start: int, end: int, width_s: int) -> Iterator[Bucket]:
    """Whole buckets on the grid of UTC, from the one that `start` is in; none ends after `end`."""
    start -= start % width_s
    while start + width_s <= end:
        yield Bucket(start, start + width_s)
        start += width_s


Key = TypeVar("Key", bound=Hashable)


def within(bucket: Bucket, records: Iterable[UsageRecord]) -> Iterator[UsageRecord]:
    """Which bucket counts a generation is undocumented at both providers; here the one it ended in."""
    return (record for record in records if bucket.start <= record.ended.timestamp() < bucket.end)


def grouped(
    records: Iterable[UsageRecord], key: Callable[[UsageRecord], Key]
) -> Iterator[tuple[Key, list[UsageRecord]]]:
    """By key, in the order of their first records."""
    groups: dict[Key, list[UsageRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    yield from groups.items()
