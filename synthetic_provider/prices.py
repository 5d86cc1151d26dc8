"""List prices of a few models, and what a usage record costs by them. Pure.

US dollars for a million tokens, as genai-prices 0.2.3 (MIT) has them, which takes them from openai.com/api/pricing and
claude.com/pricing; looked up 2026-11. Not here: Claude Sonnet 4.5's price above 200,000 tokens of input, priority tiers
(charged at the base price), tools, cache writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from synthetic_provider.usage import UsageRecord

MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Rates:
    uncached: Decimal
    cached: Decimal
    output: Decimal


@dataclass(frozen=True, slots=True)
class Price:
    standard: Rates
    batch: Rates
    flex: Rates | None = None  # None: the model has no such tier, it is charged at the standard


def _rates(uncached: str, cached: str, output: str) -> Rates:
    return Rates(Decimal(uncached), Decimal(cached), Decimal(output))


FREE = Price(_rates("0", "0", "0"), _rates("0", "0", "0"))
# In a batch OpenAI halves all but what is read from the cache, Anthropic all of it.
PRICES: Mapping[str, Price] = {
    "gpt-4o-mini": Price(_rates("0.15", "0.075", "0.60"), _rates("0.075", "0.075", "0.30")),
    "gpt-4o": Price(_rates("2.50", "1.25", "10.00"), _rates("1.25", "1.25", "5.00")),
    "gpt-4.1-mini": Price(_rates("0.40", "0.10", "1.60"), _rates("0.20", "0.10", "0.80")),
    "o4-mini": Price(_rates("1.10", "0.275", "4.40"), _rates("0.55", "0.275", "2.20"), _rates("0.55", "0.138", "2.20")),
    "claude-sonnet-4-5": Price(_rates("3.00", "0.30", "15.00"), _rates("1.50", "0.15", "7.50")),
    "claude-haiku-4-5": Price(_rates("1.00", "0.10", "5.00"), _rates("0.50", "0.05", "2.50")),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of a record's tokens."""

    tokens: int
    dollars: Decimal


def parts(record: UsageRecord) -> Mapping[str, Part]:
    """`uncached`, `cached` and `output`; a model without a price costs nothing. OpenRouter's names have a publisher."""
    price = PRICES.get(record.model.rpartition("/")[2], FREE)
    flex = price.flex if record.service_tier == "flex" else None
    rates = price.batch if record.batch else flex or price.standard
    counted = {
        "uncached": (record.input_tokens - record.cached_tokens, rates.uncached),
        "cached": (record.cached_tokens, rates.cached),
        "output": (record.output_tokens, rates.output),
    }
    return {name: Part(tokens, tokens * dollars / MILLION) for name, (tokens, dollars) in counted.items()}


def total(record: UsageRecord) -> Decimal:
    return sum((part.dollars for part in parts(record).values()), Decimal(0))
