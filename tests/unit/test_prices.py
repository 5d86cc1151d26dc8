"""Prices: what the list has is taken with the time, tier and class of each token; what it lacks is never zero."""

import subprocess
import sys
from decimal import Decimal

import pytest
from genai_prices import data_snapshot
from genai_prices.types import TieredPrices

from proxy.audit.prices import Asked, BadPriceSourceError, Price, Prices, Source, Unpriced
from proxy.audit.tokens import Tokens
from tests.harness.bills import MODEL, PRICES
from tests.harness.ledgers import NOW_MS

THOUSAND = Tokens(1000, 1000)
OPUS = "claude-opus-5-5"
MODEL_OF_SOUND = "gpt-audio"


def price(
    model: str | None, tokens: Tokens, *, upstream: str = "openai", tier: str | None = None, at_ms: int = NOW_MS
) -> Price:
    found = PRICES.price(Asked(upstream, (model,), at_ms, tier), tokens)
    assert isinstance(found, Price), found
    return found


def refusal(model: str | None, tokens: Tokens = THOUSAND, *, upstream: str = "openai", tier: str | None = None) -> str:
    found = PRICES.price(Asked(upstream, (model,), NOW_MS, tier), tokens)
    assert isinstance(found, Unpriced), found
    assert found.sentence.endswith(".")
    return found.reason


def test_known_usage_has_the_price_of_the_list() -> None:
    """A thousand in and a thousand out at 5 and 30 dollars a million."""
    assert price(MODEL, THOUSAND) == Price(Decimal("0.035"), Decimal("0.035"), MODEL)


@pytest.mark.parametrize(
    ("upstream", "model", "tier"),
    [
        ("openai", MODEL, "batch"),
        ("openai", MODEL, "flex"),
        ("openai", MODEL, "priority"),
        ("openai", MODEL, "fast"),
        ("anthropic", OPUS, "batch"),
        ("anthropic", OPUS, "fast"),
        ("gemini", "gemini-3.8-flash", "batch"),
    ],
)
def test_each_tier_that_is_sent_changes_the_price(upstream: str, model: str, tier: str) -> None:
    """The list passes over a key that it does not know, so a wrong one would look right."""
    standard, tiered = price(model, THOUSAND, upstream=upstream), price(model, THOUSAND, upstream=upstream, tier=tier)
    assert tiered.upper != standard.upper


@pytest.mark.parametrize("tier", [None, "default", "standard", "auto", "ON_DEMAND"])
def test_standard_tier_under_any_name_has_the_plain_price(tier: str | None) -> None:
    """As the providers call it in their answers."""
    assert price(MODEL, THOUSAND, tier=tier).upper == Decimal("0.035")


def test_tier_that_the_list_does_not_have_is_no_price() -> None:
    """Anthropic's priority is sold as a commitment; the plain price would be a guess. A borrowed model has no tiers either."""
    assert refusal(OPUS, upstream="anthropic", tier="priority") == "no_tier_price"
    assert price("gpt-4o", THOUSAND, upstream="azure").upper > 0
    assert refusal(MODEL, upstream="azure", tier="batch") == "no_tier_price"
    assert refusal(MODEL, tier="nonsense") == "no_tier_price"


def test_each_class_of_tokens_has_its_own_price() -> None:
    """Cached ones are cheaper, written ones dearer, for an hour dearest; audio has its own; a search costs beside."""
    plain = price(OPUS, Tokens(1000, 0), upstream="anthropic").upper
    cached = price(OPUS, Tokens(1000, 0, cached=1000), upstream="anthropic").upper
    written = price(OPUS, Tokens(1000, 0, cache_write=1000), upstream="anthropic").upper
    for_an_hour = price(OPUS, Tokens(1000, 0, cache_write=1000, cache_write_1h=1000), upstream="anthropic").upper
    assert cached < plain < written < for_an_hour
    assert price(OPUS, Tokens(1000, 0, web_searches=3), upstream="anthropic").upper == plain + Decimal("0.03")
    heard, said = Tokens(1000, 0, input_audio=1000), Tokens(0, 1000, output_audio=1000)
    assert price("gpt-audio", heard).upper > price("gpt-audio", Tokens(1000, 0)).upper
    assert price("gpt-audio", said).upper > price("gpt-audio", Tokens(0, 1000)).upper


def test_cached_tokens_that_may_be_audio_have_two_ends() -> None:
    """The provider does not say how many were both, and both have a price."""
    found = price("gemini-2.5-flash", Tokens(1000, 0, cached=500, input_audio=400), upstream="gemini")
    assert found.lower < found.upper


def test_price_is_of_the_day_of_the_call() -> None:
    """A price that changed later did not change what was paid; a moment that the list knows nothing of has its oldest price."""
    model = "deepseek-reasoner"
    prices = Prices({"deepseek": Source("deepseek")})
    costs = set()
    for at_ms in (1_738_000_000_000, NOW_MS):
        found = prices.price(Asked("deepseek", (model,), at_ms), THOUSAND)
        assert isinstance(found, Price)
        costs.add(found.upper)
    assert len(costs) == 2


@pytest.mark.parametrize(
    ("model", "upstream", "reason"),
    [
        ("nobody-knows", "openai", "unknown_model"),
        (None, "openai", "unknown_model"),
        ("whisper-1", "openai", "no_token_price"),  # its price is by the hour: of tokens the list says 0
        ("moderation", "openai", "no_token_price"),
        ("text-embedding-3-small", "openai", "no_token_price"),  # a thousand tokens out, which it has no price for
        (MODEL, "nobodys", "no_price_provider"),
        (MODEL, "not-configured", "no_price_provider"),
    ],
)
def test_what_the_list_lacks_is_never_zero(model: str | None, upstream: str, reason: str) -> None:
    """It says which of them it is, and what would mend it."""
    assert refusal(model, upstream=upstream) == reason


def test_tokens_in_without_a_price_are_never_zero() -> None:
    """A transcription's tokens, at a price by the hour."""
    assert refusal("whisper-1", Tokens(1000, 0)) == "no_token_price"


def test_usage_that_contradicts_itself_has_no_price() -> None:
    """More tokens from the cache than there were."""
    assert refusal(MODEL, Tokens(10, 1, cached=20)) == "odd_usage"


def test_own_name_is_priced_as_the_settings_say() -> None:
    """Deployments and gateways have names of their own; the answer's own name comes first, where it is known."""
    assert price("deployment-east", THOUSAND).model == MODEL
    found = PRICES.price(Asked("openai", ("odd-answer", "deployment-east"), NOW_MS), THOUSAND)
    assert isinstance(found, Price)
    found = PRICES.price(Asked("openai", ("gpt-4o", "deployment-east"), NOW_MS), THOUSAND)
    assert isinstance(found, Price)
    assert found.model == "gpt-4o"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (Source("opneai"), ("upstreams.mine.price_provider", "opneai", "none")),
        (Source("openai", (("mine-*", "gpt-99"),)), ("upstreams.mine.price_as", "mine-*", "gpt-99")),
    ],
)
def test_setting_that_names_nothing_in_the_list_is_refused_with_its_name(source: Source, said: tuple[str, ...]) -> None:
    """Else all its calls would silently have no price."""
    with pytest.raises(BadPriceSourceError) as refused:
        Prices({"mine": source}).check()
    assert all(word in str(refused.value) for word in said)


def test_worst_price_is_no_less_than_any_usage_within_it() -> None:
    """Whatever class the tokens turn out to be of, and across the step to long contexts."""
    for model, upstream in ((OPUS, "anthropic"), (MODEL, "openai"), ("gemini-2.5-flash", "gemini")):
        for size in (1000, 200_001, 300_000):
            asked = Asked(upstream, (model,), NOW_MS)
            worst = PRICES.worst(asked, size, 500, None, hour_cache=True, media=True)
            assert isinstance(worst, Price)
            for tokens in (
                Tokens(size, 500),
                Tokens(size, 500, cached=size),
                Tokens(size, 500, cache_write=size, cache_write_1h=size),
                Tokens(size, 500, input_audio=size),
                Tokens(199_000 if size > 200_000 else size, 500, output_audio=500),
            ):
                assert price(model, tokens, upstream=upstream).upper <= worst.upper


@pytest.mark.parametrize(
    ("hour_cache", "media", "tokens"),
    [
        (False, False, Tokens(1000, 0, cache_write=1000)),
        (True, False, Tokens(1000, 0, cache_write=1000, cache_write_1h=1000)),
        (False, True, Tokens(1000, 0, input_audio=1000)),
    ],
)
def test_worst_price_is_of_the_dearest_class_that_is_possible(hour_cache: bool, media: bool, tokens: Tokens) -> None:
    """And of no dearer one: a bound should be no wider than it has to be."""
    model, upstream = (MODEL_OF_SOUND, "openai") if media else (OPUS, "anthropic")
    worst = PRICES.worst(Asked(upstream, (model,), NOW_MS), 1000, 0, None, hour_cache=hour_cache, media=media)
    assert isinstance(worst, Price)
    assert worst.upper == price(model, tokens, upstream=upstream).upper


def test_no_price_of_the_list_is_lower_behind_a_step() -> None:
    """Else the most tokens would not be the worst case."""
    models = [model for provider in data_snapshot.get_snapshot().providers for model in provider.models]
    conditional = [model.prices if isinstance(model.prices, list) else [model] for model in models]
    lists = [each.prices for of_model in conditional for each in of_model]
    lists += [variant.prices for model in models for variant in model.price_variants or ()]
    stepped = [price for prices in lists for price in vars(prices).values() if isinstance(price, TieredPrices)]
    assert len(stepped) > 10
    for price_of in stepped:
        steps = [price_of.base, *(tier.price for tier in price_of.tiers)]
        assert steps == sorted(steps)


def test_list_is_not_read_and_nothing_is_fetched_until_a_price_is_asked() -> None:
    """Other commands do not wait for it, and no thread of it ever asks the network."""
    program = (
        "import sys, threading; import proxy.cli; assert 'genai_prices' not in sys.modules; assert 'matplotlib' not in sys.modules; "
        "from tests.harness.bills import PRICES; PRICES.check(); assert 'genai_prices' in sys.modules; "
        "assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
