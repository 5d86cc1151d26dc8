"""Pages are read whole or not at all; what is refused says the file, the place and what to do."""

import json
from decimal import Decimal
from typing import Any

import pytest

from proxy.reconcile import usage_exports
from proxy.reconcile.usage_exports import Export, UnusableExportError
from proxy.reconcile.usage_pages import read_exports
from tests.harness.usage_worlds import result

START = 1_796_000_400


def bucket(at: int, *results: dict[str, Any]) -> dict[str, Any]:
    return {
        "object": "bucket",
        "start_time": START + at * 3600,
        "end_time": START + (at + 1) * 3600,
        "results": [*results],
    }


def page(*buckets: dict[str, Any], more: bool = False) -> dict[str, Any]:
    return {"object": "page", "data": [*buckets], "has_more": more, "next_page": "page_2" if more else None}


def anthropic(at: int, *results: dict[str, Any]) -> dict[str, Any]:
    return {
        "starting_at": f"2026-11-30T{at:02}:00:00Z",
        "ending_at": f"2026-11-30T{at + 1:02}:00:00Z",
        "results": [*results],
    }


CLAUDE: dict[str, Any] = {
    "uncached_input_tokens": 10,
    "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4},
    "cache_read_input_tokens": 5,
    "output_tokens": 7,
    "model": "claude-opus-5",
    "api_key_id": None,
    "service_tier": "standard",
}
GPT = result("gpt-4o", 2, 30, 5, 9)


def read(*documents: Any) -> Export:
    """Each is a file; bytes as they are."""
    files = [
        (f"usage-{number}.json", document if isinstance(document, bytes) else json.dumps(document).encode())
        for number, document in enumerate(documents, 1)
    ]
    return read_exports(files, {})


def test_openai_page_is_read_into_cells() -> None:
    """Every number where it belongs, and how the row was split."""
    export = read(page(bucket(0, GPT | {"project_id": "proj_1"}), bucket(1)))
    (cell,) = export.cells
    assert (export.source, export.kind) == ("openai_usage", "completions")
    assert (export.start_ms, export.end_ms) == (START * 1000, (START + 7200) * 1000)
    assert (cell.model, cell.api_key_id, cell.requests, cell.input_tokens) == ("gpt-4o", "key_1", 2, 30)
    assert (cell.cached_tokens, cell.cache_write_tokens, cell.output_tokens) == (5, None, 9)
    assert cell.labels == (("project_id", "proj_1"),)


def test_anthropic_input_is_the_sum_of_its_parts() -> None:
    """A total stays the same whatever the cache did; requests are not stated."""
    (cell,) = read({"data": [anthropic(12, CLAUDE)], "has_more": False, "next_page": None}).cells
    assert (cell.requests, cell.input_tokens, cell.cached_tokens, cell.cache_write_tokens) == (None, 22, 5, 7)
    assert (cell.output_tokens, cell.tier, cell.batch) == (7, "standard", False)


@pytest.mark.parametrize("joined", ["array", "lines", "files"])
def test_pages_in_one_or_many_files_are_one_export(joined: str) -> None:
    """However they were saved."""
    pages = [page(bucket(0, GPT), more=True), page(bucket(1, GPT))]
    files: list[Any] = {
        "array": [pages],
        "lines": ["\n".join(json.dumps(one) for one in pages).encode()],
        "files": pages,
    }[joined]
    assert len(read(*files).cells) == 2


def test_cost_pages_are_money() -> None:
    """OpenAI states it in its currency, Anthropic in cents as a string."""
    cost = {
        "object": "organization.costs.result",
        "amount": {"value": 0.06, "currency": "usd"},
        "line_item": "gpt-4o, input",
    }
    (cell,) = read(page(bucket(0, cost))).cells
    assert (cell.cost, cell.currency, cell.labels) == (Decimal("0.06"), "USD", (("line_item", "gpt-4o, input"),))
    (cell,) = read({"data": [anthropic(0, {"amount": "12.5", "currency": "USD"})], "has_more": False}).cells
    assert cell.cost == Decimal("0.125")


BAD: dict[str, tuple[list[Any], str]] = {
    "nothing in it": ([b""], "it is empty"),
    "cut in the middle": ([json.dumps(page(bucket(0, GPT))).encode()[:200]], "half a file proves nothing"),
    "last page missing": ([page(bucket(0, GPT), more=True)], "the pages behind it are missing"),
    "broken chain": ([page(bucket(0, GPT), more=True) | {"next_page": None}], "names no next_page"),
    "page twice": ([page(bucket(0, GPT)), page(bucket(0, GPT))], "the same bucket stands there twice"),
    "overlap": (
        [page(bucket(0, GPT), bucket(1, GPT) | {"start_time": START + 1800})],
        "it overlaps page 1 bucket 1 of usage-1.json",
    ),
    "gap": ([page(bucket(0, GPT), bucket(2, GPT))], "3600 s are missing"),
    "shuffled": ([page(bucket(1, GPT), bucket(0, GPT))], "it begins before the bucket in front of it"),
    "row twice": ([page(bucket(0, GPT, GPT))], "one of them is doubled"),
    "openai error": ([{"error": {"message": "Missing scopes: api.usage.read", "type": "invalid"}}], "sk-admin-"),
    "anthropic error": ([{"type": "error", "error": {"message": "invalid x-api-key"}}], "sk-ant-admin"),
    "negative": ([page(bucket(0, GPT | {"input_tokens": -1}))], "input_tokens is -1"),
    "fraction": ([page(bucket(0, GPT | {"num_model_requests": 1.5}))], "num_model_requests is 1.5"),
    "true": ([page(bucket(0, GPT | {"input_tokens": True}))], "no whole number"),
    "no model": ([page(bucket(0, GPT | {"model": None}))], "group_by[]=model"),
    "mixed kinds": (
        [page(bucket(0, GPT)), page(bucket(1, GPT | {"object": "organization.usage.embeddings.result"}))],
        "Compare one kind of export at a time",
    ),
    "mixed providers": ([[page(bucket(0, GPT)), {"data": [anthropic(1, CLAUDE)], "has_more": False}]], "it mixes"),
    "no page": ([{"id": "resp_1"}], "no list of buckets under data"),
    "unknown kind": ([page(bucket(0, {"object": "organization.usage"}))], "of the unknown kind"),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_file_is_refused_with_its_place_and_remedy(case: str) -> None:
    """What is missing, doubled, out of order or another thing proves nothing."""
    documents, words = BAD[case]
    with pytest.raises(UnusableExportError) as refused:
        read(*documents)
    assert words in str(refused.value)
    assert str(refused.value).startswith("usage-")
    assert str(refused.value).endswith((".", ")"))


def test_file_over_the_limit_is_refused() -> None:
    """The limit is named; nothing is parsed."""
    with pytest.raises(UnusableExportError, match="are read"):
        read(b" " * (usage_exports.FILE_LIMIT_BYTES + 1))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("model", ["a"], "model is \"['a']\", which is no text"),
        ("api_key_id", {}, "api_key_id is '{}', which is no text"),
        ("service_tier", 1, "service_tier is '1', which is no text"),
        ("batch", "yes", "batch is 'yes', which is neither true nor false"),
    ],
)
def test_label_that_is_no_label_is_refused_by_place(field: str, value: object, says: str) -> None:
    """Rows are told apart by them."""
    found = bucket(0, result("gpt-4o", 1, 10, 0, 5) | {field: value})
    with pytest.raises(UnusableExportError, match="page 1 bucket 1 row 1") as error:
        read_exports([("usage.json", json.dumps(page(found)).encode())], {})
    assert says in str(error.value)


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_time_that_no_calendar_has_is_refused(moment: str) -> None:
    """It would be said in messages."""
    found = anthropic(0) | {"starting_at": moment, "ending_at": moment}
    with pytest.raises(UnusableExportError, match="no time since 1970"):
        read_exports([("usage.json", json.dumps(page(found)).encode())], {})
