"""What a provider says it counted, as cells: one model, key and tier in one bucket of time. Pure, and strict.

An export proves something only while it is whole, so whatever is missing, doubled or out of order is refused with its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Final, Literal, NoReturn

from blake3 import blake3

from proxy.endpoints import Family

FILE_LIMIT_BYTES: Final = 64 * 2**20  # a day of one-minute buckets with hundreds of rows each is a tenth of it
LATEST_MS: Final = 253_402_300_799_999  # the end of the year 9999, beyond which no calendar here goes

Source = Literal["openai_usage", "openai_costs", "anthropic_usage", "anthropic_costs", "csv"]
SOURCE_FAMILIES: Final = {
    "openai_usage": Family.OPENAI,
    "openai_costs": Family.OPENAI,
    "anthropic_usage": Family.ANTHROPIC,
    "anthropic_costs": Family.ANTHROPIC,
}


class UnusableExportError(Exception):
    """A file proves nothing as it is. The message names the file, the place and the remedy. Exit code 2."""


def unusable(file: str, place: str, what: str, remedy: str) -> NoReturn:
    where = f"{file}, {place}" if place else file
    raise UnusableExportError(f"{where}: {what}. {remedy}")


@dataclass(frozen=True, slots=True)
class Cell:
    """One row. None: the source does not state it. `input_tokens` holds the cached and the cache-written ones."""

    start_ms: int
    end_ms: int
    model: str | None
    api_key_id: str | None
    tier: str | None
    batch: bool | None
    requests: int | None
    input_tokens: int | None
    cached_tokens: int | None
    cache_write_tokens: int | None
    output_tokens: int | None
    cost: Decimal | None = None
    currency: str | None = None
    labels: tuple[tuple[str, str], ...] = ()  # everything else that the export was split by
    place: str = field(default="", compare=False)

    @property
    def label(self) -> tuple[object, ...]:
        """What no two rows share."""
        return (self.start_ms, self.end_ms, self.model, self.api_key_id, self.tier, self.batch, self.labels)


@dataclass(frozen=True, slots=True)
class Bucket:
    """One stretch of time with its rows; `end_ms` is outside. Milliseconds since 1970."""

    start_ms: int
    end_ms: int
    cells: tuple[Cell, ...]
    file: str
    place: str


@dataclass(frozen=True, slots=True)
class Reading:
    """One file as it was read, before it is held against its neighbours."""

    source: Source
    kind: str  # openai_usage: completions, embeddings, …
    buckets: tuple[Bucket, ...]
    more: bool  # its last page says that another follows


@dataclass(frozen=True, slots=True)
class Export:
    """Whole, in order, nothing twice."""

    source: Source
    kind: str
    buckets: tuple[Bucket, ...]
    digest: str  # blake3 over the files' digests in order
    files: tuple[tuple[str, str], ...]  # name, blake3

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for bucket in self.buckets for cell in bucket.cells)

    @property
    def start_ms(self) -> int:
        return self.buckets[0].start_ms

    @property
    def end_ms(self) -> int:
        return self.buckets[-1].end_ms

    @property
    def is_costs(self) -> bool:
        return self.source.endswith("_costs")


def digest_of(data: bytes) -> str:
    return blake3(data).hexdigest()


def joined(files: Sequence[tuple[str, bytes]], readings: Sequence[Reading]) -> Export:
    """One export of several files, in the order given. Raises UnusableExportError."""
    first = readings[0]
    for (name, _), reading in zip(files, readings, strict=True):
        if (reading.source, reading.kind) != (first.source, first.kind):
            unusable(
                name,
                "",
                f"it is {_described(reading)}, and {files[0][0]} is {_described(first)}",
                "Compare one kind of export at a time.",
            )
    if readings[-1].more:
        name = files[-1][0]
        unusable(
            name,
            "its last page",
            "it says has_more: true, so the pages behind it are missing",
            "Fetch on with its next_page until has_more is false, and give every page.",
        )
    buckets = _in_order([bucket for reading in readings for bucket in reading.buckets], is_csv=first.source == "csv")
    digests = tuple((name, digest_of(data)) for name, data in files)
    whole = digest_of("".join(digest for _, digest in digests).encode())
    if not buckets:
        unusable(files[0][0], "", "it has no bucket at all", "Fetch it with start and end of the time in question.")
    export = Export(first.source, first.kind, tuple(buckets), whole, digests)
    if not export.is_costs:
        _check_models(export)
    return export


def _described(reading: Reading) -> str:
    return " ".join(word for word in (reading.source, reading.kind) if word)


def _in_order(buckets: list[Bucket], *, is_csv: bool) -> list[Bucket]:
    if is_csv and all(late.start_ms >= early.start_ms for early, late in pairwise(reversed(buckets))):
        buckets.reverse()  # newest first, as people like to read
    for bucket in buckets:
        _check_bucket(bucket)
    for early, late in pairwise(buckets):
        if (late.start_ms, late.end_ms) == (early.start_ms, early.end_ms):
            unusable(late.file, late.place, "the same bucket stands there twice", "Give each page once.")
        if late.start_ms < early.start_ms:
            unusable(
                late.file,
                late.place,
                f"it begins before the bucket in front of it ({early.file}, {early.place})",
                "Give the pages in the order of time, unchanged.",
            )
        if late.start_ms < early.end_ms:
            unusable(
                late.file,
                late.place,
                f"it overlaps {early.place} of {early.file}",
                "Give pages whose times do not overlap, each once.",
            )
        if late.start_ms > early.end_ms and not is_csv:
            unusable(
                late.file,
                late.place,
                f"between it and {early.place} of {early.file} {(late.start_ms - early.end_ms) // 1000} s are missing",
                "Fetch the whole range, and give every page.",
            )
    return buckets


def _check_bucket(bucket: Bucket) -> None:
    if bucket.start_ms < 0 or bucket.end_ms > LATEST_MS:
        unusable(bucket.file, bucket.place, "its time is no time since 1970", "Fetch it again, unchanged.")
    if bucket.end_ms <= bucket.start_ms:
        unusable(bucket.file, bucket.place, "it ends before it begins", "Fetch it again.")
    seen: dict[tuple[object, ...], Cell] = {}
    for cell in bucket.cells:
        if (twin := seen.get(cell.label)) is not None:
            unusable(
                bucket.file,
                cell.place,
                f"the row says the same model, key and tier as {twin.place}: one of them is doubled",
                "Fetch it again; in a CSV, have one row for each bucket and what it is split by.",
            )
        seen[cell.label] = cell


def _check_models(export: Export) -> None:
    nameless = next((cell for cell in export.cells if not cell.model), None)
    if nameless is not None:
        remedy = {"csv": "Map the column: --map model=COLUMN."}.get(export.source, "Fetch it with group_by[]=model.")
        unusable(export.files[0][0], nameless.place, "the row names no model", remedy)


def count(file: str, place: str, name: str, value: object) -> int:
    """A whole number that is not negative. Raises UnusableExportError."""
    if isinstance(value, bool) or not isinstance(value, int):
        unusable(file, place, f"{name} is {value!r}, which is no whole number", "Fetch it again, unchanged.")
    if value < 0:
        unusable(file, place, f"{name} is {value}, and nothing is counted below zero", "Fetch it again, unchanged.")
    return value
