"""The synthetic provider's usage exports, with the real SDK where it has them, over a usage file whose times are known."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import genai_prices
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthetic_provider.buckets import clipped, snapped
from synthetic_provider.prices import PRICES, total
from synthetic_provider.usage import UsageRecord
from tests.harness.provider_records import ANTHROPIC_ADMIN, KEY, OPENAI_ADMIN, Direct, direct
from tests.harness.sdks import sdk

MIDNIGHT = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp())
CHAT = "/v1/chat/completions"
COMPLETIONS, COSTS = "/v1/organization/usage/completions", "/v1/organization/costs"
MESSAGES, COST_REPORT = "/v1/organizations/usage_report/messages", "/v1/organizations/cost_report"
RECORD = UsageRecord(
    n=1,
    at="",
    started_at="",
    dialect="openai_chat",
    model="gpt-4o-mini",
    requested_model="synthetic/as=gpt-4o-mini",
    input_tokens=100,
    cached_tokens=40,
    cache_write_tokens=0,
    output_tokens=10,
    reasoning_tokens=0,
    billed=True,
    how="whole",
    status=200,
    api_key="key_a",
    service_tier=None,
    batch=False,
)


def at(seconds: float, **changes: Any) -> UsageRecord:
    """A generation that ended so long after midnight; it had begun an hour before, which no bucket may notice."""
    moment = datetime.fromtimestamp(MIDNIGHT + seconds, UTC).isoformat()
    before = datetime.fromtimestamp(MIDNIGHT + seconds - 3600, UTC).isoformat()
    return replace(RECORD, at=moment, started_at=before, **changes)


Over = Callable[..., Direct]


@pytest.fixture
def over(tmp_path: Path) -> Iterator[Over]:
    """Start a provider over these usage records."""
    with ExitStack() as stack:

        def start(*records: UsageRecord, options: tuple[str, ...] = ()) -> Direct:
            file = tmp_path / "provider.jsonl.usage"
            file.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records))
            return stack.enter_context(direct(tmp_path, *options))

        yield start


@contextmanager
def usage_api(provider: Direct) -> Iterator[Any]:
    module = sdk("openai")
    with module.OpenAI(api_key=KEY, admin_api_key=OPENAI_ADMIN, base_url=f"{provider.url}/v1", max_retries=0) as client:
        yield client.admin.organization.usage


def export(provider: Direct, path: str, **query: Any) -> list[Any]:
    """The buckets of one page of OpenAI's."""
    listed = "&".join(f"{name}={value}" for name, value in query.items())
    answer = provider.get(f"{path}?{listed}", OPENAI_ADMIN)
    assert answer.status == 200, answer.body
    return list(answer.json["data"])


def report(provider: Direct, path: str, query: str) -> Any:
    answer = provider.get(f"{path}?{query}", None, **{"x-api-key": ANTHROPIC_ADMIN})
    assert answer.status == 200, answer.body
    return answer.json


def test_usage_is_counted_in_the_minute_it_ended(over: Over) -> None:
    """Contiguous buckets, the empty ones too; the end is exclusive; fields that are not grouped by are null."""
    provider = over(at(59.9), at(60), at(61, cached_tokens=0), at(180), at(60, dialect="anthropic_messages"))
    with usage_api(provider) as usage:
        page = usage.completions(start_time=MIDNIGHT, end_time=MIDNIGHT + 180, bucket_width="1m")
    assert [bucket.end_time - bucket.start_time for bucket in page.data] == [60, 60, 60]
    assert (page.has_more, page.next_page) == (False, None)
    first, second, third = ([one.to_dict() for one in bucket.results] for bucket in page.data)
    assert ([one["num_model_requests"] for one in first], third) == ([1], [])
    (both,) = second
    assert {name: value for name, value in both.items() if value} == {
        "object": "organization.usage.completions.result",
        "num_model_requests": 2,
        "input_tokens": 200,
        "input_cached_tokens": 40,
        "input_uncached_tokens": 160,
        "output_tokens": 20,
        "input_text_tokens": 200,
        "input_cached_text_tokens": 40,
        "output_text_tokens": 20,
    }
    nulls = {name for name, value in both.items() if value is None}
    assert nulls == {"project_id", "user_id", "api_key_id", "model", "batch", "service_tier"}


def test_usage_is_grouped_and_filtered(over: Over) -> None:
    """By any of the documented fields, in combination; what was not billed is not counted."""
    provider = over(
        at(1),
        at(2, model="gpt-4o", api_key="key_b", service_tier="flex"),
        at(3, dialect="openai_responses", batch=True),
        at(4, billed=False, how="aborted"),
        at(5, billed=False, how="error_status", status=500),
    )
    with usage_api(provider) as usage:
        asked: Any = {"start_time": MIDNIGHT, "end_time": MIDNIGHT + 60}
        every: Any = ["project_id", "user_id", "api_key_id", "model", "batch", "service_tier"]
        (bucket,) = usage.completions(**asked, group_by=every).data
        assert [tuple(one.to_dict()[name] for name in every) for one in bucket.results] == [
            ("proj_synthetic", "user_synthetic", "key_a", "gpt-4o-mini", False, "default"),
            ("proj_synthetic", "user_synthetic", "key_b", "gpt-4o", False, "flex"),
            ("proj_synthetic", "user_synthetic", "key_a", "gpt-4o-mini", True, "default"),
        ]
        for filtered, count in (
            ({"models": ["gpt-4o", "x"]}, 1),
            ({"api_key_ids": ["key_a"]}, 2),
            ({"batch": False}, 2),
            ({"api_key_ids": ["key_a"], "batch": True}, 1),
        ):
            (bucket,) = usage.completions(**asked, **filtered).data
            assert sum(one.num_model_requests for one in bucket.results) == count
        (bucket,) = usage.embeddings(**asked).data
        assert bucket.results == []


def test_error_answers_are_counted_only_on_request(over: Over) -> None:
    """With --count-errors an answer of 500 is a request without tokens; one that never came is none."""
    records = (at(1), at(2, billed=False, how="error_status", status=500, input_tokens=0, output_tokens=0))
    provider = over(*records, at(3, billed=False, how="aborted", status=None), options=("--count-errors",))
    (bucket,) = export(provider, COMPLETIONS, start_time=MIDNIGHT, end_time=MIDNIGHT + 60)
    (result,) = bucket["results"]
    assert (result["num_model_requests"], result["input_tokens"]) == (2, 100)


def test_pages_of_the_export_follow_one_another(over: Over) -> None:
    """The default and the most of each width; an end that is no border is a border of the last bucket."""
    provider = over(at(3 * 86400))
    with usage_api(provider) as usage:
        for width, default, most in (("1m", 60, 1440), ("1h", 24, 168), ("1d", 7, 31)):
            asked: Any = {"start_time": MIDNIGHT, "end_time": MIDNIGHT + 40 * 86400, "bucket_width": width}
            assert len(usage.completions(**asked).data) == default
            assert len(usage.completions(**asked, limit=most).data) == most
            with pytest.raises(sdk("openai").BadRequestError, match="limit"):
                usage.completions(**asked, limit=most + 1)
        starts, page = [], None
        while True:
            more: Any = {} if page is None else {"page": page}
            found = usage.completions(start_time=MIDNIGHT + 10, end_time=MIDNIGHT + 5 * 86400 + 1, limit=2, **more)
            starts += [bucket.start_time - MIDNIGHT for bucket in found.data]
            page = found.next_page
            if not found.has_more:
                break
    assert starts == [10, *(day * 86400 for day in range(1, 6))]


def test_embeddings_have_an_export_of_their_own(over: Over) -> None:
    """What this process generated is exported as what an earlier one did; the bucket of this moment is included."""
    provider = over(at(1, dialect="openai_embeddings"))
    provider.ask("POST", "/v1/embeddings", {"model": "synthetic/as=e", "input": "one two three"})
    with usage_api(provider) as usage:
        found = usage.embeddings(start_time=MIDNIGHT, limit=31, group_by=["model"])
        results = [one for bucket in found.data for one in bucket.results]
        while found.has_more:
            found = usage.embeddings(start_time=MIDNIGHT, limit=31, group_by=["model"], page=found.next_page)
            results += [one for bucket in found.data for one in bucket.results]
    assert [(one.model, one.input_tokens, one.num_model_requests) for one in results] == [
        ("gpt-4o-mini", 100, 1),
        ("e", 3, 1),
    ]


@pytest.mark.parametrize("model", sorted(PRICES))
@pytest.mark.parametrize(
    ("change", "context"),
    [
        ({}, {}),
        ({"batch": True}, {"processing": "batch"}),
        ({"service_tier": "flex"}, {"service_tier": "flex"}),
    ],
)
def test_price_is_that_of_the_public_table(model: str, change: Any, context: Any) -> None:
    """A reconciler that prices with genai-prices and this export agree to the last digit."""
    record = at(0, model=model, input_tokens=10_000, cached_tokens=3_000, output_tokens=777, **change)
    usage = genai_prices.Usage(input_tokens=10_000, cache_read_tokens=3_000, output_tokens=777)
    provider = "anthropic" if model.startswith("claude") else "openai"
    priced = genai_prices.calc_price(usage, model, provider_id=provider, price_context=context)
    assert total(record) == priced.total_price > 0


def test_costs_are_those_of_the_tokens_by_line_item(over: Over) -> None:
    """One row for each kind of token, and one for all without grouping; an unknown model costs nothing."""
    provider = over(at(1), at(2, model="gpt-4o", input_tokens=40), at(3, model="unknown"), at(86400))
    (bucket, _) = export(
        provider, COSTS, start_time=MIDNIGHT, end_time=MIDNIGHT + 2 * 86400, **{"group_by[]": "line_item"}
    )
    rows = {one["line_item"]: (one["quantity"], one["amount"]["value"]) for one in bucket["results"]}
    assert rows == {
        "gpt-4o-mini, input_tokens": (60, pytest.approx(60 * 0.15e-6)),
        "gpt-4o-mini, input_cached_tokens": (40, pytest.approx(40 * 0.075e-6)),
        "gpt-4o-mini, output_tokens": (10, pytest.approx(10 * 0.6e-6)),
        "gpt-4o, input_cached_tokens": (40, pytest.approx(40 * 1.25e-6)),
        "gpt-4o, output_tokens": (10, pytest.approx(10 * 10e-6)),
        **{
            f"unknown, {kind}": (count, 0)
            for kind, count in (("input_tokens", 60), ("input_cached_tokens", 40), ("output_tokens", 10))
        },
    }
    with usage_api(provider) as usage:
        (first, _) = usage.costs(start_time=MIDNIGHT, end_time=MIDNIGHT + 2 * 86400).data
    (whole,) = first.results
    assert whole.amount.value == pytest.approx(sum(value for _, value in rows.values()))
    assert (whole.line_item, whole.quantity, whole.amount.currency) == (None, None, "usd")


def test_anthropic_report_counts_tokens_and_no_requests(over: Over) -> None:
    """Snapped to whole buckets before an exclusive end; grouped fields are named, the others null; pages follow."""
    claude = {"dialect": "anthropic_messages", "model": "claude-haiku-4-5"}
    provider = over(at(59, **claude), at(61, **claude), at(62, **claude, batch=True), at(120, **claude), at(61))
    query = "starting_at=2026-03-01T00:00:30Z&ending_at=2026-03-01T00:02:30Z&bucket_width=1m&group_by[]=service_tier"
    told = report(provider, MESSAGES, query)
    assert [bucket["starting_at"][-9:] for bucket in told["data"]] == ["00:00:00Z", "00:01:00Z"]
    assert [(row["service_tier"], row["output_tokens"]) for row in told["data"][1]["results"]] == [
        ("standard", 10),
        ("batch", 10),
    ]
    (row,) = told["data"][0]["results"]
    assert (row["uncached_input_tokens"], row["cache_read_input_tokens"]) == (60, 40)
    assert row["cache_creation"] == {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}
    assert (row["model"], row["api_key_id"], row["workspace_id"]) == (None, None, None)
    assert not [name for name in row if "request" in name and name != "server_tool_use"]
    first = report(provider, MESSAGES, f"{query}&limit=1")
    second = report(provider, MESSAGES, f"{query}&limit=1&page={first['next_page']}")
    assert ([*first["data"], *second["data"]], second["has_more"]) == (told["data"], False)
    assert report(provider, MESSAGES, f"{query}&models[]=claude-x")["data"][0]["results"] == []


def test_anthropic_cost_is_a_decimal_string_in_cents(over: Over) -> None:
    """All in one, or each kind of token by its description; batches at half the price."""
    claude = {"dialect": "anthropic_messages", "model": "claude-sonnet-4-5", "cached_tokens": 0}
    provider = over(at(1, **claude, input_tokens=1000, output_tokens=100), at(2, **claude, batch=True, output_tokens=0))
    query = "starting_at=2026-03-01T00:00:00Z&ending_at=2026-03-02T00:00:00Z"
    (bucket,) = report(provider, COST_REPORT, query)["data"]
    (row,) = bucket["results"]
    assert Decimal(row["amount"]) == Decimal("0.3") + Decimal("0.15") + Decimal("0.015")
    assert (row["currency"], row["cost_type"], row["model"]) == ("USD", None, None)
    (bucket,) = report(provider, COST_REPORT, f"{query}&group_by[]=description")["data"]
    assert [(row["token_type"], row["service_tier"], Decimal(row["amount"])) for row in bucket["results"]] == [
        ("uncached_input_tokens", "standard", Decimal("0.3")),
        ("output_tokens", "standard", Decimal("0.15")),
        ("uncached_input_tokens", "batch", Decimal("0.015")),
    ]


def test_usage_wants_an_admin_key_and_whole_parameters(over: Over) -> None:
    """A caller's key is not enough, nor the other provider's; what cannot be read is named."""
    provider = over()
    for path, key, status in (
        (COMPLETIONS, KEY, 403),
        (COSTS, ANTHROPIC_ADMIN, 403),
        (MESSAGES, OPENAI_ADMIN, 403),
        (f"{COMPLETIONS}?start_time=1&end_time=2", OPENAI_ADMIN, 200),
    ):
        assert provider.get(path, key).status == status
    for path, named in (
        (COMPLETIONS, "start_time"),
        (f"{COMPLETIONS}?start_time=1&bucket_width=2d", "bucket_width"),
        (f"{COMPLETIONS}?start_time=1&group_by[]=metadata", "group_by"),
        (f"{COSTS}?start_time=1&bucket_width=1m", "bucket_width"),
        (f"{COMPLETIONS}?start_time=1&page=x", "page"),
        (MESSAGES, "starting_at"),
    ):
        answer = provider.get(path, ANTHROPIC_ADMIN if "organizations" in path else OPENAI_ADMIN)
        assert (answer.status, named in answer.json["error"]["message"]) == (400, True)


@given(st.integers(0, 10**6), st.integers(0, 5000), st.sampled_from([60, 3600]))
def test_buckets_cover_the_time_once(start: int, length: int, width_s: int) -> None:
    """OpenAI's all of it and no more; Anthropic's in whole buckets, none behind the end."""
    end = start + length
    borders = [start, *(bucket.end for bucket in clipped(start, end, width_s))]
    assert [bucket.start for bucket in clipped(start, end, width_s)] == borders[:-1]
    assert (borders[-1], all(border % width_s == 0 for border in borders[1:-1])) == (max(start, end), True)
    whole = list(snapped(start, end, width_s))
    assert all((bucket.start % width_s, bucket.end - bucket.start) == (0, width_s) for bucket in whole)
    assert all(bucket.end <= end for bucket in whole)
    assert whole == [] or whole[0].start <= start < whole[0].end
