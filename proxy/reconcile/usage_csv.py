"""A CSV from a provider's console. No console's layout is documented, so the columns are named by whoever has the file. Pure."""

import csv
import io
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Final

from proxy.reconcile.usage_exports import Bucket, Cell, Reading, unusable

# What --map can name. `bucket` is no column but the width of each row's time, where no column says its end.
KEYS: Final = (
    "start",
    "end",
    "bucket",
    "model",
    "api_key_id",
    "tier",
    "requests",
    "input_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "output_tokens",
    "cost",
)
WIDTHS_MS: Final = {"1m": 60_000, "1h": 3_600_000, "1d": 86_400_000}
_COUNTS: Final = ("requests", "input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens")
_DELIMITERS: Final = ",;\t|"
_SNIFFED_CHARACTERS: Final = 64 * 1024  # some lines; the sniffer is slow on more
_GROUPED: Final = re.compile(r"\d{1,3}(?:([, _'\u00a0\u202f])\d{3})(?:\1\d{3})+|\d{1,3}[ _'\u00a0\u202f]\d{3}")
_DATE_ONLY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_MILLISECONDS_FROM: Final = 10**11  # as seconds it would be the year 5138


def read_csv(name: str, data: bytes, columns: Mapping[str, str]) -> Reading:
    """Rows of the same time are one bucket. Raises UnusableExportError."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        unusable(name, "", "it is neither JSON nor UTF-8 text", "Save it as UTF-8.")
    reader = csv.reader(io.StringIO(text), delimiter=_delimiter(text), strict=False)
    try:
        rows = list(reader)
    except csv.Error as error:  # a field without an end, mostly: a quote that nobody closes
        unusable(
            name, f"line {reader.line_num}", f"it cannot be read ({error})", "Save it again, with quotes in pairs."
        )
    header = [heading.strip() for heading in rows[0]]
    _check_columns(name, header, columns)
    buckets: dict[tuple[int, int], list[Cell]] = {}
    order: list[tuple[int, int]] = []
    for number, row in enumerate(rows[1:], 2):
        if not any(field.strip() for field in row):
            continue
        if len(row) != len(header):
            what = f"it has {len(row)} fields and the header {len(header)}; half a line proves nothing"
            unusable(name, f"line {number}", what, "Save it again.")
        cell = _cell(name, f"line {number}", dict(zip(header, (field.strip() for field in row), strict=True)), columns)
        span = (cell.start_ms, cell.end_ms)
        if not order or order[-1] != span:
            order.append(span)
        buckets.setdefault(span, []).append(cell)
    # A time that comes again behind another one is a bucket of its own here, and refused as shuffled where all are joined.
    firsts = [Bucket(*span, tuple(buckets[span]), name, buckets[span][0].place) for span in order]
    return Reading("csv", "", tuple(firsts), more=False)


def _delimiter(text: str) -> str:
    try:
        return csv.Sniffer().sniff(text[:_SNIFFED_CHARACTERS], _DELIMITERS).delimiter
    except csv.Error:  # one column, or too little to tell
        first = text.partition("\n")[0]
        return max(_DELIMITERS, key=first.count)


def _check_columns(name: str, header: list[str], columns: Mapping[str, str]) -> None:
    found = ", ".join(repr(heading) for heading in header)
    if twice := sorted({heading for heading in header if header.count(heading) > 1}):
        unusable(name, "line 1", f"the column {twice[0]!r} stands there twice", "Name each column once.")
    for key, column in columns.items():
        if key != "bucket" and column not in header:
            unusable(name, "line 1", f"there is no column {column!r} for {key}", f"Its columns are {found}.")
    if missing := [key for key in ("start", "model") if key not in columns]:
        wanted = " ".join(f"--map {key}=COLUMN" for key in missing)
        unusable(
            name,
            "line 1",
            f"nothing says where {' and '.join(missing)} stand",
            f"Add {wanted}. Its columns are {found}.",
        )
    if not any(key in columns for key in ("requests", "input_tokens", "output_tokens", "cost")):
        remedy = f"Add --map requests=COLUMN, input_tokens=…, output_tokens=…. Its columns are {found}."
        unusable(name, "line 1", "no column with numbers is mapped", remedy)


def _cell(name: str, place: str, row: dict[str, str], columns: Mapping[str, str]) -> Cell:
    def text(key: str) -> str | None:
        return (row[columns[key]] or None) if key in columns else None

    counts = {key: _count(name, place, columns[key], row[columns[key]]) for key in _COUNTS if key in columns}
    start = _instant_ms(name, place, columns["start"], row[columns["start"]])
    labels = tuple((heading, value) for heading, value in row.items() if heading not in columns.values())
    return Cell(
        start,
        _end_ms(name, place, row, columns, start),
        text("model"),
        text("api_key_id"),
        text("tier"),
        None,
        counts.get("requests"),
        counts.get("input_tokens"),
        counts.get("cached_tokens"),
        counts.get("cache_write_tokens"),
        counts.get("output_tokens"),
        _money(name, place, columns["cost"], row[columns["cost"]]) if "cost" in columns else None,
        labels=labels,
        place=place,
    )


def _end_ms(name: str, place: str, row: dict[str, str], columns: Mapping[str, str], start: int) -> int:
    if "end" in columns:
        return _instant_ms(name, place, columns["end"], row[columns["end"]])
    width = columns.get("bucket")
    if width is None and _DATE_ONLY.fullmatch(row[columns["start"]]):
        width = "1d"
    if width not in WIDTHS_MS:
        remedy = "Add --map end=COLUMN, or --map bucket=1m, 1h or 1d."
        unusable(name, place, "nothing says when the row's time ends", remedy)
    return start + WIDTHS_MS[width]


def _count(name: str, place: str, column: str, value: str) -> int:
    """Thousands separators only where they can be nothing else: twice the same one, or one that no decimal point looks like."""
    plain = re.sub(r"\D", "", value) if _GROUPED.fullmatch(value) else value
    if re.fullmatch(r"\d{1,18}", plain, re.ASCII) is None:
        what = f"{column!r} is {value!r}, which is no whole number that is not negative"
        unusable(name, place, what, "Export plain digits, without separators, signs or fractions.")
    return int(plain)


def _money(name: str, place: str, column: str, value: str) -> Decimal:
    try:
        amount = Decimal(value.lstrip("$€£"))
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite():
        unusable(
            name,
            place,
            f"{column!r} is {value!r}, which is no amount",
            "Export it with a decimal point, no separators.",
        )
    return amount


def _instant_ms(name: str, place: str, column: str, value: str) -> int:
    """ISO 8601, in UTC where it names no zone (dashboards are in UTC: providers.md section 3), or seconds since 1970."""
    if re.fullmatch(r"\d{9,13}", value, re.ASCII):
        return int(value) if int(value) >= _MILLISECONDS_FROM else int(value) * 1000
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        unusable(
            name,
            place,
            f"{column!r} is {value!r}, which is no time",
            "Use 2026-11-30, 2026-11-30T12:00:00Z or seconds since 1970.",
        )
    return int((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp() * 1000)
