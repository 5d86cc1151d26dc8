"""What tokens cost, by the price list of genai-prices: bundled with it, dated, and never fetched from here. Pure.

The list is read when the first price is asked for (0.2 s). A model, a service tier or a kind of token that it does not have a price
for costs an unknown amount, never nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from typing import Any, Final

from proxy.audit.money import shown
from proxy.audit.tokens import Tokens

FREE: Final = "none"  # the setting's word for an upstream that nobody bills for
BY_FAMILY: Final[Mapping[str, str]] = {"openai": "openai", "anthropic": "anthropic", "gemini": "google"}
# What an answer calls the tier that the plain price is for: openai 3.57 and anthropic 2.14 types, Gemini's trafficType.
STANDARD_TIERS: Final = frozenset({"", "default", "standard", "auto", "on_demand"})
BATCH: Final = "batch"

Context = Mapping[str, str]
Counts = dict[str, int]


class BadPriceSourceError(Exception):
    """A setting names what the price list does not have; the message names the setting and the remedy. Exit code 2."""


@dataclass(frozen=True, slots=True)
class Source:
    """Whose prices an upstream has. `provider` None: nobody said."""

    provider: str | None
    price_as: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Price:
    """What it cost; two ends where the usage does not say enough. `model`: the price list's name for it."""

    lower: Decimal
    upper: Decimal
    model: str


@dataclass(frozen=True, slots=True)
class Unpriced:
    """No price. `reason` is a word for programs, `sentence` for people."""

    reason: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Found:
    """A model of the list. `is_own`: it is the provider's own entry; a borrowed one has no prices of its own for tiers."""

    model: Any
    is_own: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose price is wanted: the names to look for, best first, and when."""

    upstream: str
    names: tuple[str | None, ...]
    at_ms: int
    tier: str | None = None


@dataclass(slots=True)
class Prices:
    """Prices of the configured upstreams. Raises BadPriceSourceError on the first question where a setting names nothing in the list."""

    sources: Mapping[str, Source]
    _found: dict[tuple[str, str], Found | None] = field(default_factory=dict)

    def check(self) -> None:
        """Every setting at once, whether it is used or not."""
        for upstream, source in self.sources.items():
            if source.provider in (None, FREE):
                continue
            if not _has_provider(str(source.provider)):
                raise BadPriceSourceError(
                    f"The setting upstreams.{upstream}.price_provider is wrong: genai-prices {version()} knows no provider "
                    f'{source.provider!r}. Name one of {", ".join(provider_ids())}, or "none" where nobody bills.'
                )
            for pattern, model in source.price_as:
                if self._look_up(str(source.provider), model) is None:
                    raise BadPriceSourceError(
                        f"The setting upstreams.{upstream}.price_as is wrong: {pattern!r} is to be priced as {model!r}, which "
                        f"genai-prices {version()} does not know at {source.provider}. Name a model that it knows."
                    )

    def is_free(self, upstream: str) -> bool:
        source = self.sources.get(upstream)
        return source is not None and source.provider == FREE

    def provider(self, upstream: str) -> str | None:
        source = self.sources.get(upstream)
        return source.provider if source else None

    def price(self, asked: Asked, tokens: Tokens) -> Price | Unpriced:
        """Of what the provider stated."""
        found = self.model(asked)
        if isinstance(found, Unpriced):
            return found
        context = _context(asked.tier)
        if context and not _has_variant(found, context, asked.at_ms):
            return Unpriced(
                "no_tier_price",
                f"The price list has no price of {found.model.id} for the service tier {shown(asked.tier)}.",
            )
        prices = _prices(found, asked.at_ms, context)
        if (lacking := _lacking(prices, tokens)) is not None:
            return Unpriced("no_token_price", f"The price list has no price of {found.model.id} for {lacking} tokens.")
        costs = [cost for counts in _counted(tokens) if (cost := _cost(prices, counts)) is not None]
        if not costs:
            return Unpriced("odd_usage", "The usage that the provider stated contradicts itself.")
        return Price(min(costs), max(costs), found.model.id)

    def worst(
        self,
        asked: Asked,
        input_tokens: int,
        output_tokens: int,
        known: Tokens | None,
        *,
        hour_cache: bool,
        media: bool,
    ) -> Price | Unpriced:
        """The most that so many tokens can cost, whatever class they turn out to be of. `known`: the input's classes are stated."""
        found = self.model(asked)
        if isinstance(found, Unpriced):
            return found
        contexts = [
            {},
            *([context] if (context := _context(asked.tier)) and _has_variant(found, context, asked.at_ms) else []),
        ]
        costs = []
        for context in contexts:
            prices = _prices(found, asked.at_ms, context)
            if prices.input_mtok is None:
                return Unpriced("no_token_price", f"The price list has no price of {found.model.id} for tokens.")
            inputs = (
                [_input_counts(known)]
                if known
                else _worst_inputs(prices, input_tokens, hour_cache=hour_cache, media=media)
            )
            for given, made in product(inputs, _worst_outputs(prices, output_tokens)):
                if (cost := _cost(prices, given | made)) is not None:
                    costs.append(cost)
        return (
            Price(max(costs), max(costs), found.model.id)
            if costs
            else Unpriced("odd_usage", "The stated usage contradicts itself.")
        )

    def prices_output(self, asked: Asked) -> bool:
        """False for models that make vectors: the list has no price for their output."""
        found = self.model(asked)
        prices = None if isinstance(found, Unpriced) else _prices(found, asked.at_ms, {})
        return prices is None or any(
            price is not None for name, price in vars(prices).items() if name.startswith("output_")
        )

    def window(self, asked: Asked) -> int | None:
        """How many tokens the model can take in, where the list says so."""
        found = self.model(asked)
        window = None if isinstance(found, Unpriced) else found.model.context_window
        return window if isinstance(window, int) else None

    def names(self, asked: Asked) -> Iterator[str]:
        """The names, and before each the one that `price_as` puts in its place."""
        source = self.sources.get(asked.upstream, Source(None))
        for name in asked.names:
            if name is not None:
                yield from (model for pattern, model in source.price_as if fnmatchcase(name, pattern))
                yield name

    def model(self, asked: Asked) -> Found | Unpriced:
        provider = self.provider(asked.upstream)
        if provider is None or provider == FREE:
            return Unpriced(
                "no_price_provider",
                f"Nobody said whose prices the upstream {asked.upstream} has: set its price_provider.",
            )
        names = tuple(self.names(asked))
        if not names:
            return Unpriced("unknown_model", "No model is on record of it.")
        for name in names:
            if (found := self._look_up(provider, name)) is not None:
                return found
        return Unpriced(
            "unknown_model",
            f"The price list knows no model {shown(names[0])} at {provider}: map it with upstreams.{asked.upstream}.price_as.",
        )

    def _look_up(self, provider: str, name: str) -> Found | None:
        key = (provider, name)
        if key not in self._found:
            self._found[key] = _look_up(provider, name)
        return self._found[key]


# --- the list ---


@cache
def _snapshot() -> Any:
    from genai_prices import data_snapshot  # noqa: PLC0415 - 0.2 s, which most commands need not wait

    return data_snapshot.get_snapshot()


def version() -> str:
    from importlib import metadata  # noqa: PLC0415 - beside its only use

    return metadata.version("genai-prices")


def provider_ids() -> list[str]:
    return sorted(provider.id for provider in _snapshot().providers)


def _has_provider(name: str) -> bool:
    return name in provider_ids()


def _look_up(provider: str, name: str) -> Found | None:
    try:
        owner, model = _snapshot().find_provider_model(name, None, provider, None)
    except LookupError:
        return None
    return Found(model, any(model is own for own in owner.models))


def _context(tier: str | None) -> Context:
    """The keys that select a variant; the list silently passes over any other key (tests/unit/test_prices.py)."""
    word = (tier or "").lower()
    if word in STANDARD_TIERS:
        return {}
    return {"processing": BATCH} if word == BATCH else {"service_tier": word, "speed": word}


def _has_variant(found: Found, context: Context, at_ms: int) -> bool:
    return found.is_own and any(
        all(context.get(key) == value for key, value in variant.when.items())
        and (variant.constraint is None or variant.constraint.active(_moment(at_ms)))
        for variant in found.model.price_variants or ()
    )


def _prices(found: Found, at_ms: int, context: Context) -> Any:
    return found.model.get_prices(_moment(at_ms), context)


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _lacking(prices: Any, tokens: Tokens) -> str | None:
    if tokens.input and prices.input_mtok is None:
        return "input"
    return "output" if tokens.output and prices.output_mtok is None else None


def _cost(prices: Any, counts: Counts) -> Decimal | None:
    """None where the counts cannot be: more cached ones than there are, or classes that overlap by an unknown amount."""
    from genai_prices import Usage  # noqa: PLC0415 - as above

    try:
        cost = prices.calc_price(Usage(**counts))["total_price"]
    except ValueError:
        return None
    return cost if isinstance(cost, Decimal) else None


def _input_counts(tokens: Tokens) -> Counts:
    named = {
        "cache_read_tokens": tokens.cached,
        "cache_write_tokens": tokens.cache_write,
        "cache_write_1h_tokens": tokens.cache_write_1h,
        "input_audio_tokens": tokens.input_audio,
        "input_image_tokens": tokens.input_image,
        "web_searches": tokens.web_searches,
    }
    return {"input_tokens": tokens.input} | {name: count for name, count in named.items() if count}


def _counted(tokens: Tokens) -> Iterable[Counts]:
    """The ways to read a usage: how many of the cached tokens were audio or images is not stated, so none and as many as can be."""
    counts = _input_counts(tokens) | {"output_tokens": tokens.output}
    if tokens.output_audio:
        counts["output_audio_tokens"] = tokens.output_audio
    ways: list[Counts] = [{}]
    for name, count in (
        ("cache_audio_read_tokens", tokens.input_audio),
        ("cache_image_read_tokens", tokens.input_image),
    ):
        if count and tokens.cached:
            ways = [way | {name: both} for way in ways for both in (0, min(count, tokens.cached))]
    return [counts | way for way in ways]


# Classes of tokens that a price of their own may make dearer: the counts that say so, and the price.
_CACHED: Final = ((("cache_write_tokens",), "cache_write_mtok"),)
_FOR_AN_HOUR: Final = ((("cache_write_tokens", "cache_write_1h_tokens"), "cache_write_1h_mtok"),)
_MEDIA: Final = tuple(((f"input_{kind}_tokens",), f"input_{kind}_mtok") for kind in ("audio", "image", "video"))
_MADE: Final = tuple(((f"output_{kind}_tokens",), f"output_{kind}_mtok") for kind in ("audio", "image", "video"))
_Classes = Iterable[tuple[tuple[str, ...], str]]


def _worst_inputs(prices: Any, tokens: int, *, hour_cache: bool, media: bool) -> list[Counts]:
    """All at once is the most: in the list no price is lower behind a step to longer contexts (tests/unit/test_prices.py)."""
    classes = (*_CACHED, *(_FOR_AN_HOUR if hour_cache else ()), *(_MEDIA if media else ()))
    return _by_class(prices, "input_tokens", tokens, classes)


def _worst_outputs(prices: Any, tokens: int) -> list[Counts]:
    return _by_class(prices, "output_tokens", tokens, _MADE)


def _by_class(prices: Any, name: str, tokens: int, classes: _Classes) -> list[Counts]:
    """All of them plain, and all of them of each class that has a price."""
    priced = (names for names, price in classes if getattr(prices, price) is not None)
    return [{name: tokens}, *({name: tokens} | dict.fromkeys(names, tokens) for names in priced)]
