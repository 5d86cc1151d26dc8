"""Pages of the providers' usage and cost APIs, as they answer: a page, an array of pages, or a page a line. Pure.

Sources of the shapes: research/providers.md section 3 (openai-openapi 2.3.0; Anthropic's Usage and Cost API pages).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import orjson

from proxy.reconcile.usage_csv import read_csv
from proxy.reconcile.usage_exports import (
    FILE_LIMIT_BYTES,
    Bucket,
    Cell,
    Export,
    Reading,
    Source,
    count,
    joined,
    unusable,
)

_OPENAI_KEYS: Final = "An export needs an admin key (sk-admin-…) with the right to read usage."
_ANTHROPIC_KEYS: Final = "An export needs an admin key (sk-ant-admin…)."
_FETCH_AGAIN: Final = "Fetch it again, unchanged."
_CENTS: Final = 100  # Anthropic states costs in cents
# Of an OpenAI row, beside the numbers and what a Cell has a field for.
_OPENAI_LABELS: Final = ("project_id", "user_id", "line_item", "size", "source", "context_level", "quantity_unit")
_ANTHROPIC_LABELS: Final = (
    "workspace_id",
    "account_id",
    "service_account_id",
    "context_window",
    "inference_geo",
    "speed",
    "description",
    "cost_type",
    "token_type",
)


def read_exports(files: Sequence[tuple[str, bytes]], columns: Mapping[str, str]) -> Export:
    """Name and bytes of each file, in the order of time. `columns`: for a CSV, what is where. Raises UnusableExportError."""
    return joined(files, [_read(name, data, columns) for name, data in files])


def _read(name: str, data: bytes, columns: Mapping[str, str]) -> Reading:
    if len(data) > FILE_LIMIT_BYTES:
        unusable(
            name,
            "",
            f"it has {len(data)} bytes, and {FILE_LIMIT_BYTES} are read",
            "Fetch a shorter time, or wider buckets.",
        )
    text = data.removeprefix(b"\xef\xbb\xbf").strip()
    if not text:
        unusable(name, "", "it is empty", "Save the provider's answer into it.")
    if text[:1] not in b"{[":
        return read_csv(name, text, columns)
    pages = _pages(name, text)
    source, kind = _recognised(name, pages)
    read_bucket = _openai_bucket if source.startswith("openai") else _anthropic_bucket
    buckets = [
        read_bucket(name, f"page {number} bucket {row}", bucket, is_costs=source.endswith("_costs"))
        for number, page in enumerate(pages, 1)
        for row, bucket in enumerate(page["data"], 1)
    ]
    return Reading(source, kind, tuple(buckets), _check_chain(name, pages))


def _pages(name: str, text: bytes) -> list[dict[str, Any]]:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = _lines(name, text)
    pages = found if isinstance(found, list) else [found]
    for number, page in enumerate(pages, 1):
        if not isinstance(page, dict):
            unusable(name, f"page {number}", "it is no JSON object", "Save each page as the provider answered it.")
        _check_page(name, number, page)
    if not pages:
        unusable(name, "", "it is an empty list", "Save the provider's answer into it.")
    return pages


def _lines(name: str, text: bytes) -> list[Any]:
    """JSON lines; a document that is cut is none, and its first line does not stand alone either."""
    pages = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                pages.append(orjson.loads(line))
            except orjson.JSONDecodeError as error:
                place = f"line {number}"
                unusable(name, place, f"it is no whole JSON ({error}); half a file proves nothing", _FETCH_AGAIN)
    return pages


def _check_page(name: str, number: int, page: dict[str, Any]) -> None:
    place = f"page {number}"
    if (error := page.get("error")) is not None:
        says = error.get("message") if isinstance(error, dict) else error
        keys = _ANTHROPIC_KEYS if page.get("type") == "error" else _OPENAI_KEYS
        unusable(name, place, f"it is an error and no page: {str(says)[:300]!r}", keys)
    if not isinstance(page.get("data"), list) or not all(isinstance(bucket, dict) for bucket in page["data"]):
        remedy = "Save the answer of a usage or cost endpoint, or a CSV with --map."
        unusable(name, place, "it has no list of buckets under data", remedy)


def _check_chain(name: str, pages: list[dict[str, Any]]) -> bool:
    """Whether another file must follow."""
    for number, page in enumerate(pages, 1):
        more, following = page.get("has_more", False), page.get("next_page")
        if not isinstance(more, bool):
            unusable(name, f"page {number}", f"has_more is {more!r}", _FETCH_AGAIN)
        if more and not following:
            unusable(
                name, f"page {number}", "it says has_more and names no next_page: the chain is broken", _FETCH_AGAIN
            )
    return bool(pages[-1].get("has_more", False))


def _recognised(name: str, pages: list[dict[str, Any]]) -> tuple[Source, str]:
    found: set[tuple[Source, str]] = set()
    empty: set[tuple[Source, str]] = set()
    for number, page in enumerate(pages, 1):
        for row, bucket in enumerate(page["data"], 1):
            place = f"page {number} bucket {row}"
            results = bucket.get("results")
            if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
                unusable(name, place, "it has no list of results", _FETCH_AGAIN)
            is_openai = "start_time" in bucket
            if not is_openai and "starting_at" not in bucket:
                unusable(name, place, "it says neither start_time nor starting_at", _FETCH_AGAIN)
            empty.add(("openai_usage", "completions") if is_openai else ("anthropic_usage", "messages"))
            found |= {_kind_of(name, place, result, is_openai=is_openai) for result in results}
    if len(found) > 1 or (len({source.partition("_")[0] for source, _ in found | empty}) > 1):
        described = " and ".join(sorted(" ".join(one) for one in found | empty))
        unusable(name, "", f"it mixes {described}", "Keep each kind of export in files of its own.")
    if not found and not empty:
        unusable(name, "", "it has no bucket at all", "Fetch it with start and end of the time in question.")
    return next(iter(found or empty))


def _kind_of(name: str, place: str, result: dict[str, Any], *, is_openai: bool) -> tuple[Source, str]:
    if not is_openai:
        return ("anthropic_costs", "") if "amount" in result else ("anthropic_usage", "messages")
    words = str(result.get("object", "")).split(".")
    if words[:2] == ["organization", "costs"]:
        return "openai_costs", ""
    if words[:2] != ["organization", "usage"] or len(words) < 3:
        unusable(name, place, f"a result is of the unknown kind {result.get('object')!r}", _FETCH_AGAIN)
    return "openai_usage", words[2]


def _openai_bucket(name: str, place: str, bucket: dict[str, Any], *, is_costs: bool) -> Bucket:
    start, end = (count(name, place, field, bucket.get(field)) * 1000 for field in ("start_time", "end_time"))
    read_row = _openai_cost if is_costs else _openai_row
    cells = [
        read_row(name, f"{place} row {row}", result, start, end) for row, result in enumerate(bucket["results"], 1)
    ]
    return Bucket(start, end, tuple(cells), name, place)


def _text(name: str, place: str, row: dict[str, Any], field: str) -> str | None:
    value = row.get(field)
    if value is not None and not isinstance(value, str):
        unusable(name, place, f"{field} is {str(value)[:100]!r}, which is no text", _FETCH_AGAIN)
    return value


def _flag(name: str, place: str, row: dict[str, Any], field: str) -> bool | None:
    value = row.get(field)
    if value is not None and not isinstance(value, bool):
        unusable(name, place, f"{field} is {str(value)[:100]!r}, which is neither true nor false", _FETCH_AGAIN)
    return value


def _openai_row(name: str, place: str, row: dict[str, Any], start: int, end: int) -> Cell:
    def number(field: str) -> int | None:
        return None if row.get(field) is None else count(name, place, field, row[field])

    return Cell(
        start,
        end,
        _text(name, place, row, "model"),
        _text(name, place, row, "api_key_id"),
        _text(name, place, row, "service_tier"),
        _flag(name, place, row, "batch"),
        count(name, place, "num_model_requests", row.get("num_model_requests")),
        number("input_tokens"),
        number("input_cached_tokens"),
        number("input_cache_write_tokens"),
        number("output_tokens"),
        labels=_labels(row, _OPENAI_LABELS),
        place=place,
    )


def _openai_cost(name: str, place: str, row: dict[str, Any], start: int, end: int) -> Cell:
    amount = row.get("amount")
    if not isinstance(amount, dict):
        unusable(name, place, "it has no amount with value and currency", _FETCH_AGAIN)
    cost = _money(name, place, amount.get("value"))
    labels = _labels(row, _OPENAI_LABELS)
    key = _text(name, place, row, "api_key_id")
    currency = str(amount.get("currency")).upper()
    return Cell(start, end, None, key, None, None, None, None, None, None, None, cost, currency, labels, place)


def _anthropic_bucket(name: str, place: str, bucket: dict[str, Any], *, is_costs: bool) -> Bucket:
    start, end = (_instant_ms(name, place, field, bucket.get(field)) for field in ("starting_at", "ending_at"))
    read_row = _anthropic_cost if is_costs else _anthropic_row
    cells = [
        read_row(name, f"{place} row {row}", result, start, end) for row, result in enumerate(bucket["results"], 1)
    ]
    return Bucket(start, end, tuple(cells), name, place)


def _anthropic_row(name: str, place: str, row: dict[str, Any], start: int, end: int) -> Cell:
    """Its input is stated in parts; a total is what stays the same whatever the cache did."""
    writes = row.get("cache_creation") or {}
    if not isinstance(writes, dict):
        unusable(name, place, f"cache_creation is {writes!r}", _FETCH_AGAIN)
    written = sum(count(name, place, f"cache_creation.{field}", value) for field, value in writes.items())
    uncached, read, output = (
        count(name, place, field, row.get(field))
        for field in ("uncached_input_tokens", "cache_read_input_tokens", "output_tokens")
    )
    tier = _text(name, place, row, "service_tier")
    return Cell(
        start,
        end,
        _text(name, place, row, "model"),
        _text(name, place, row, "api_key_id"),
        tier,
        None if tier is None else tier == "batch",
        None,
        uncached + read + written,
        read,
        written,
        output,
        labels=_labels(row, _ANTHROPIC_LABELS),
        place=place,
    )


def _anthropic_cost(name: str, place: str, row: dict[str, Any], start: int, end: int) -> Cell:
    cost = _money(name, place, row.get("amount")) / _CENTS
    labels = _labels(row, _ANTHROPIC_LABELS)
    currency = str(row.get("currency") or "USD").upper()
    return Cell(
        start,
        end,
        _text(name, place, row, "model"),
        *(None,) * 8,
        cost,
        currency,
        labels,
        place,
    )


def _labels(row: dict[str, Any], names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(row[name])) for name in names if row.get(name) is not None)


def _money(name: str, place: str, value: object) -> Decimal:
    """May be below zero: a credit is a line of a bill."""
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or isinstance(value, bool):
        unusable(name, place, f"its amount is {value!r}", _FETCH_AGAIN)
    return amount


def _instant_ms(name: str, place: str, field: str, value: object) -> int:
    try:
        instant = datetime.fromisoformat(str(value))
    except ValueError:
        unusable(name, place, f"{field} is {value!r}, which is no time", _FETCH_AGAIN)
    if instant.tzinfo is None:
        unusable(name, place, f"{field} is {value!r}, which names no time zone", _FETCH_AGAIN)
    return int(instant.timestamp() * 1000)
