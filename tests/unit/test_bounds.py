"""Bounds: an upper end that holds, its reason in words, and none where nothing bounds it."""

import tomllib
from decimal import Decimal
from importlib.resources import files
from typing import Any

import pytest

from proxy.audit.asking import ALLOWANCE_TOKENS, asking
from proxy.audit.bounds import CUT, FAILURES, Bounds, Evidence, bounds, limits_of, presumption
from proxy.audit.money import Between
from proxy.audit.tokens import Tokens
from tests.harness.bills import LIMITS, PRICES, asked, body, own
from tests.harness.histories import Step

MILLION = Decimal(1_000_000)
IN, OUT = Decimal(5), Decimal(30)  # dollars a million tokens of the model
LOST: tuple[Step, ...] = ("attempt.observed:lost",)
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com"}}]}]


def found(evidence: Evidence, *, limit: int | None = 100, model: str | None = "gpt-5.5", **requested: Any) -> Bounds:
    return bounds(own(*asked(model, limit), *LOST, **requested), evidence, PRICES, LIMITS)


def reading(**fields: Any) -> Evidence:
    return Evidence(asking(body(**fields)))


def cost(tokens_in: int, tokens_out: int) -> Between:
    return Between(Decimal(0), (tokens_in * IN + tokens_out * OUT) / MILLION)


def test_text_is_bounded_by_its_bytes_and_the_requests_own_limit() -> None:
    """No tokenizer makes more tokens than bytes; no provider goes beyond the limit that it was given."""
    made = found(reading())
    size = len(body()) + ALLOWANCE_TOKENS
    assert made.cost == cost(size, 100)
    assert (
        made.reason
        == f"At most {size} tokens in (no more than the request has bytes) and 100 out (the request's own limit)."
    )


def test_same_bytes_counted_another_time_bound_the_input_exactly() -> None:
    """The provider itself counted them, whether they held an image or not; not so where they only name one."""
    assert found(Evidence(asking(body()), twin=11)).cost == cost(11, 100)
    inline = body(messages=[{"content": [{"type": "image", "source": {"type": "base64", "data": "AA"}}]}])
    assert found(Evidence(asking(inline), twin=900)).cost == cost(900, 100)
    assert "context window" in found(Evidence(asking(body(messages=IMAGE)), twin=900)).reason


def test_answer_that_broke_off_says_its_input_itself() -> None:
    """With the class of each token, so that cached ones are priced as such."""
    made = found(Evidence(asking(body(messages=IMAGE)), stated=Tokens(1000, 1, cached=1000)))
    assert made.cost.upper == (1000 * Decimal("0.5") + 100 * OUT) / MILLION


@pytest.mark.parametrize("evidence", [Evidence(), reading(messages=IMAGE), reading(previous_response_id="resp_1")])
def test_input_that_is_kept_elsewhere_is_bounded_by_the_context_window(evidence: Evidence) -> None:
    """At the price of long contexts, where there is one."""
    made = found(evidence)
    assert "(the context window, as " in made.reason
    assert made.cost.upper >= Decimal(5)  # a million tokens at five dollars


def test_no_limit_in_the_request_is_the_models_own() -> None:
    """From config/output_limits.toml, by the name that the price list would be asked for, too."""
    assert found(reading(), limit=None).reason.endswith("and 128000 out (the model's limit).")
    assert found(reading(), limit=None, model="deployment-east").reason.endswith("and 128000 out (the model's limit).")
    assert found(Evidence(asking(body(n=3)))).reason.endswith("and 300 out (the request's own limit, 3 times).")


def test_model_that_makes_vectors_has_no_output_to_pay() -> None:
    """Its list has no price for any."""
    made = found(
        reading(), limit=None, model="text-embedding-3-small", endpoint_class="stateless_billed", dialect="generic"
    )
    assert made.cost == Between(Decimal(0), (len(body()) + ALLOWANCE_TOKENS) * Decimal("0.02") / MILLION)


@pytest.mark.parametrize(
    ("evidence", "requested", "model", "words"),
    [
        (reading(tools=[{"type": "web_search"}]), {}, "gpt-5.5", "several rounds"),
        (reading(), {"endpoint_class": "job", "dialect": "generic"}, "gpt-5.5", "A job"),
        (reading(), {}, "nobody-knows", "knows no model"),
        (reading(), {"upstream": "nobodys"}, "gpt-5.5", "price_provider"),
        (Evidence(), {"upstream": "gemini"}, "gemini-2.5-pro", "no context window"),
    ],
)
def test_what_nothing_bounds_says_so(evidence: Evidence, requested: dict[str, Any], model: str, words: str) -> None:
    """A number here would be made up."""
    made = found(evidence, model=model, **requested)
    assert made.cost == Between(unbounded=1)
    assert words in made.reason


def test_response_in_the_background_is_bounded_like_any_other() -> None:
    """It is one generation, with a limit of its own."""
    made = found(reading(), endpoint_class="job", dialect="openai_responses")
    assert made.cost.unbounded == 0


def test_tier_that_the_request_asks_for_raises_the_bound() -> None:
    """And a cheaper one does not lower it: the provider may serve it as a standard one."""
    plain = found(reading()).cost.upper
    assert found(reading(service_tier="priority")).cost.upper > 2 * plain
    assert found(reading(service_tier="flex")).cost.upper >= plain


def test_presumption_says_how_well_it_is_known() -> None:
    """A table with sources; what is not in it is undetermined."""
    assert presumption("openai", None, failed=False).mark == "undetermined"
    assert presumption("azure", 408, failed=True).billed == "billed"
    assert presumption("google", 500, failed=True).billed == "not_billed"
    assert presumption("google", 503, failed=True).billed == "undetermined"
    assert all(
        row.source and row.mark != "undetermined" for row in (*CUT.values(), *(row.presumption for row in FAILURES))
    )


@pytest.mark.parametrize(
    ("provider", "status", "billed", "mark"),
    [
        ("anthropic", None, "billed", "stated"),  # words of its support
        ("anthropic", 529, "not_billed", "stated"),
        ("google", None, "billed", "inferred"),  # reported is only that it does not stop
        ("azure", 400, "may_be_billed", "documented"),
        ("azure", 503, "may_be_billed", "documented"),
        ("aws", None, "billed", "reported"),
    ],
)
def test_presumption_is_as_strong_as_its_source(provider: str, status: int | None, billed: str, mark: str) -> None:
    """A help centre is no documentation, "may" is no "is", and what follows from a report is not reported."""
    found = presumption(provider, status, failed=status is not None)
    assert (found.billed, found.mark) == (billed, mark)


def test_output_limits_are_in_order_and_each_can_match() -> None:
    """A pattern behind one that takes all its models would never be read."""
    text = files("config").joinpath("output_limits.toml").read_text()
    limits = limits_of(text)
    assert len(limits) == len(tomllib.loads(text)["limit"]) > 10
    for place, limit in enumerate(limits):
        bare = limit.models.replace("*", "")
        assert limit.tokens > 0
        assert not any(
            bare.startswith(earlier.models.rstrip("*")) for earlier in limits[:place] if "*" not in earlier.models[:-1]
        )
    assert text.count("[[limit]] # ") == len(limits)  # each names its models, whose source stands at the top
