"""OpenAI's usage and cost exports, as resources/admin/organization/usage.py of openai 3.57 has them, from usage records.

What is billed counts as a request; an answer with an error status only with --count-errors, and without tokens: whether
the provider counts it is undocumented. All is of one project and one user. Line items are named `MODEL, KIND`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from synthetic_provider import prices
from synthetic_provider.asked import Asked, Told
from synthetic_provider.buckets import DAY_S, USAGE_WIDTHS, Bucket, Width, clipped, grouped, page_of, width_of, within
from synthetic_provider.outcomes import How
from synthetic_provider.usage import UsageRecord
from synthetic_provider.wire import JsonObject

PROJECT, USER = "proj_synthetic", "user_synthetic"
COST_WIDTHS: Mapping[str, Width] = {"1d": Width(DAY_S, 7, 180)}

_COMPLETIONS = frozenset({"openai_chat", "openai_responses"})
_EMBEDDINGS = frozenset({"openai_embeddings"})
_KINDS = {"uncached": "input_tokens", "cached": "input_cached_tokens", "output": "output_tokens"}
_GROUPS: Mapping[str, Callable[[UsageRecord], object]] = {
    "project_id": lambda _: PROJECT,
    "user_id": lambda _: USER,
    "api_key_id": lambda record: record.api_key,
    "model": lambda record: record.model,
    "batch": lambda record: record.batch,
    "service_tier": lambda record: record.service_tier or "default",
}
_FILTERS = {"project_ids": "project_id", "user_ids": "user_id", "api_key_ids": "api_key_id", "models": "model"}


def completions(asked: Asked) -> Told:
    return _usage(asked, _COMPLETIONS, tuple(_GROUPS), _completions_result)


def embeddings(asked: Asked) -> Told:
    names = ("project_id", "user_id", "api_key_id", "model")
    return _usage(asked, _EMBEDDINGS, names, _embeddings_result)


def _usage(
    asked: Asked,
    dialects: frozenset[str],
    names: Sequence[str],
    result: Callable[[Sequence[UsageRecord], JsonObject], JsonObject],
) -> JsonObject:
    by = asked.query.within("group_by", names)
    records = list(_counted(asked, dialects))

    def results(bucket: Bucket) -> Iterator[JsonObject]:
        for key, group in grouped(within(bucket, records), lambda record: tuple(_GROUPS[name](record) for name in by)):
            yield result(group, dict.fromkeys(names) | dict(zip(by, key, strict=True)))

    return _told(asked, USAGE_WIDTHS, results)


def _told(asked: Asked, widths: Mapping[str, Width], results: Callable[[Bucket], Iterable[JsonObject]]) -> JsonObject:
    """Contiguous buckets from `start_time` (inclusive) to `end_time` (exclusive; without it until now)."""
    query = asked.query
    width = width_of(query, widths)
    start, now = query.number("start_time"), int(asked.receipt.at.timestamp()) + 1
    page = page_of(query, clipped(start, query.number("end_time", now), width.seconds), width)
    data = [
        {"object": "bucket", "start_time": bucket.start, "end_time": bucket.end, "results": list(results(bucket))}
        for bucket in page.buckets
    ]
    return {"object": "page", "data": data, "has_more": page.next is not None, "next_page": page.next}


def _counted(asked: Asked, dialects: frozenset[str]) -> Iterator[UsageRecord]:
    query, batch = asked.query, asked.query.one("batch")
    for record in asked.books.usage.records:
        if (
            record.dialect in dialects
            and (record.billed or (asked.count_errors and record.how == How.ERROR_STATUS))
            and batch in (None, str(record.batch).lower())
            and all(
                not query.all(name) or _GROUPS[group](record) in query.all(name) for name, group in _FILTERS.items()
            )
        ):
            yield record


def _completions_result(group: Sequence[UsageRecord], named: JsonObject) -> JsonObject:
    """All tokens are text."""
    taken, made = sum(one.input_tokens for one in group), sum(one.output_tokens for one in group)
    cached, written = sum(one.cached_tokens for one in group), sum(one.cache_write_tokens for one in group)
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": taken,
        "input_cached_tokens": cached,
        "input_cache_write_tokens": written,
        "input_uncached_tokens": taken - cached - written,
        "output_tokens": made,
        "input_text_tokens": taken,
        "input_cached_text_tokens": cached,
        "output_text_tokens": made,
        **{f"{name}_{kind}_tokens": 0 for kind in ("audio", "image") for name in ("input", "input_cached", "output")},
        "num_model_requests": len(group),
        **named,
    }


def _embeddings_result(group: Sequence[UsageRecord], named: JsonObject) -> JsonObject:
    taken = sum(one.input_tokens for one in group)
    kind = "organization.usage.embeddings.result"
    return {"object": kind, "input_tokens": taken, "num_model_requests": len(group), **named}


def costs(asked: Asked) -> Told:
    """Of models that prices.py knows; the others cost nothing."""
    names = ("project_id", "user_id", "line_item", "api_key_id")
    by = asked.query.within("group_by", names)
    items = asked.query.all("line_items")
    records = [record for record in _counted(asked, _COMPLETIONS | _EMBEDDINGS) if record.billed]

    def results(bucket: Bucket) -> Iterator[JsonObject]:
        groups: dict[tuple[object, ...], list[prices.Part]] = {}
        for record in within(bucket, records):
            for kind, part in prices.parts(record).items():
                item = f"{record.model}, {_KINDS[kind]}"
                if part.tokens and (not items or item in items):
                    key = tuple(item if name == "line_item" else _GROUPS[name](record) for name in by)
                    groups.setdefault(key, []).append(part)
        for key, parts in groups.items():
            yield _cost(parts, dict.fromkeys(names) | dict(zip(by, key, strict=True)))

    return _told(asked, COST_WIDTHS, results)


def _cost(parts: Sequence[prices.Part], named: dict[str, Any]) -> JsonObject:
    dollars = sum((part.dollars for part in parts), Decimal(0))
    of_item = named["line_item"] is not None
    return {
        "object": "organization.costs.result",
        "amount": {"value": float(dollars), "currency": "usd"},
        **named,
        "quantity": sum(part.tokens for part in parts) if of_item else None,
        "quantity_unit": "tokens" if of_item else None,
    }
