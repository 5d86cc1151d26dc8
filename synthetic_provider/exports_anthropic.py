"""Anthropic's usage and cost reports, as docs.anthropic.com/en/api/usage-cost-api and
platform.claude.com/docs/en/api/admin/cost_report have them, from usage records.

A usage report counts tokens, never requests. Amounts are decimal strings in cents.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from synthetic_provider import prices
from synthetic_provider.asked import Asked, RefusedError, Told
from synthetic_provider.buckets import DAY_S, USAGE_WIDTHS, Bucket, Width, grouped, page_of, snapped, width_of, within
from synthetic_provider.usage import UsageRecord
from synthetic_provider.wire import JsonObject

COST_WIDTHS: Mapping[str, Width] = {"1d": Width(DAY_S, 7, 31)}
SMALL_WINDOW_TOKENS: Final = 200_000
CENTS: Final = 100

_KINDS = {"uncached": "uncached_input_tokens", "cached": "cache_read_input_tokens", "output": "output_tokens"}
_TITLES = {"uncached": "Input Tokens", "cached": "Input Tokens, Cache Read", "output": "Output Tokens"}


def _tier(record: UsageRecord) -> str:
    return "batch" if record.batch else record.service_tier or "standard"


def _window(record: UsageRecord) -> str:
    return "0-200k" if record.input_tokens <= SMALL_WINDOW_TOKENS else "200k-1M"


_GROUPS: Mapping[str, Callable[[UsageRecord], object]] = {
    "model": lambda record: record.model,
    "api_key_id": lambda record: record.api_key,
    "workspace_id": lambda _: None,  # the default workspace has no id
    "account_id": lambda _: None,
    "service_account_id": lambda _: None,
    "service_tier": _tier,
    "context_window": _window,
    "inference_geo": lambda _: "not_available",
    "speed": lambda _: "standard",
}
_FILTERS = {
    "models": "model",
    "api_key_ids": "api_key_id",
    "service_tiers": "service_tier",
    "context_window": "context_window",
    "inference_geos": "inference_geo",
    "speeds": "speed",
}


def usage_report(asked: Asked) -> Told:
    by = asked.query.within("group_by", _GROUPS)
    records = list(_billed(asked))

    def results(bucket: Bucket) -> Iterator[JsonObject]:
        for key, group in grouped(within(bucket, records), lambda record: tuple(_GROUPS[name](record) for name in by)):
            yield _tokens(group) | dict.fromkeys(_GROUPS) | dict(zip(by, key, strict=True))

    return _told(asked, USAGE_WIDTHS, results)


def _tokens(group: Sequence[UsageRecord]) -> dict[str, object]:
    cached = sum(one.cached_tokens for one in group)
    written = sum(one.cache_write_tokens for one in group)
    return {
        "uncached_input_tokens": sum(one.input_tokens for one in group) - cached - written,
        "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
        "cache_read_input_tokens": cached,
        "output_tokens": sum(one.output_tokens for one in group),
        "server_tool_use": {"web_search_requests": 0},
    }


def cost_report(asked: Asked) -> Told:
    """Of models that prices.py knows; the others cost nothing. One row for each kind of token by `description`."""
    by = asked.query.within("group_by", ("workspace_id", "description"))
    records = list(_billed(asked))

    def results(bucket: Bucket) -> Iterator[JsonObject]:
        rows: dict[JsonKey, Decimal] = {}
        for record in within(bucket, records):
            for kind, part in prices.parts(record).items():
                key = (record.model, _tier(record), _window(record), kind) if "description" in by else None
                if part.tokens:
                    rows[key] = rows.get(key, Decimal(0)) + part.dollars
        for key, dollars in rows.items():
            yield _cost(key, dollars)

    return _told(asked, COST_WIDTHS, results)


JsonKey = tuple[str, str, str, str] | None


def _cost(key: JsonKey, dollars: Decimal) -> JsonObject:
    model, tier, window, kind = key or (None, None, None, None)
    return {
        "currency": "USD",
        "amount": f"{dollars * CENTS:f}",
        "workspace_id": None,
        "description": None if kind is None else f"{model} Usage - {_TITLES[kind]}",
        "cost_type": None if kind is None else "tokens",
        "context_window": window,
        "model": model,
        "service_tier": tier,
        "token_type": None if kind is None else _KINDS[kind],
        "inference_geo": None,
    }


def _billed(asked: Asked) -> Iterator[UsageRecord]:
    query = asked.query
    for record in asked.books.usage.records:
        if (
            record.billed
            and record.dialect == "anthropic_messages"
            and all(
                not query.all(name) or _GROUPS[group](record) in query.all(name) for name, group in _FILTERS.items()
            )
        ):
            yield record


def _told(asked: Asked, widths: Mapping[str, Width], results: Callable[[Bucket], Iterable[JsonObject]]) -> JsonObject:
    """Whole buckets from the one `starting_at` is in up to `ending_at`; without it up to the bucket of this moment."""
    query = asked.query
    width = width_of(query, widths)
    now = int(asked.receipt.at.timestamp())
    start = _time(query.one("starting_at"), "starting_at")
    ending = query.one("ending_at")
    end = now - now % width.seconds + width.seconds if ending is None else _time(ending, "ending_at")
    page = page_of(query, snapped(start, end, width.seconds), width)
    data = [
        {"starting_at": _rfc3339(bucket.start), "ending_at": _rfc3339(bucket.end), "results": list(results(bucket))}
        for bucket in page.buckets
    ]
    return {"data": data, "has_more": page.next is not None, "next_page": page.next}


def _time(text: str | None, name: str) -> int:
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError as error:
        raise RefusedError(400, f"{name}: {text!r} is no RFC 3339 time; give e.g. 2026-11-29T00:00:00Z.") from error
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())


def _rfc3339(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
