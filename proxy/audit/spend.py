"""One attempt on the bill: what it is counted as, and what it cost or can have cost. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ledger.ids import CallId
from ledger.stages import Effect
from proxy.audit.attempts import OwnAttempt
from proxy.audit.bounds import DECIDED, NOTHING, WHOLE, Evidence, OutputLimit, Presumption, bounds, known, presumption
from proxy.audit.money import Between, exactly
from proxy.audit.prices import Prices, Unpriced
from proxy.endpoints import EndpointClass


class Category(StrEnum):
    """What an attempt counts as. Every attempt counts once."""

    IN_FLIGHT = "in_flight"  # it runs now
    ABSENT = "absent"  # proven not to have been served: nothing to pay
    DECIDED_ABSENT = "decided_absent"  # an operator decided so, which proves nothing about a bill
    FREE = "free"  # nobody bills for this upstream, by its price_provider "none"
    NOT_BY_TOKENS = "not_by_tokens"  # files, conversations, cancellations: no tokens are billed for the request
    KNOWN = "known"  # the provider stated the tokens, and they have a price
    UNKNOWN_MODEL = "unknown_model"  # it stated the tokens, and nobody knows their price
    UNSTATED = "unstated"  # it was served, and the answer says not, or not exactly, how many tokens it took
    POSSIBLY_BILLED_FAILURE = "possibly_billed_failure"  # the provider answered that it failed
    UNKNOWN = "unknown"  # whether, or how much of it, was served is not known


BOUNDED: Final = frozenset({Category.UNSTATED, Category.POSSIBLY_BILLED_FAILURE, Category.UNKNOWN})
# Upstream endpoints that take no tokens themselves. What they keep (files, caches) may cost rent, which no request states.
_WITHOUT_TOKENS: Final = frozenset(
    {EndpointClass.STATE, EndpointClass.IDEMPOTENT, EndpointClass.CREDENTIAL_MINT, EndpointClass.SAFE}
)


@dataclass(frozen=True, slots=True)
class Item:
    """`reason`: a sentence where the cost is not simply known. `duplicate`: another attempt followed although this may be billed."""

    attempt: OwnAttempt
    category: Category
    cost: Between
    reason: str = ""
    presumption: Presumption | None = None
    priced_as: str | None = None

    @property
    def is_duplicate(self) -> bool:
        """It was accepted that the same is served, and paid for, twice."""
        return self.attempt.superseded and self.category not in (
            Category.ABSENT,
            Category.DECIDED_ABSENT,
            Category.IN_FLIGHT,
        )


def category_of(attempt: OwnAttempt, prices: Prices, alive: frozenset[CallId]) -> Category:
    """Before the price is looked up: what is KNOWN here may still turn out to have no price."""
    if attempt.ended == "open" and attempt.call in alive:
        return Category.IN_FLIGHT
    if attempt.effect is Effect.ABSENT:
        return Category.DECIDED_ABSENT if attempt.decision == "not_served" else Category.ABSENT
    if prices.is_free(attempt.upstream):
        return Category.FREE
    if attempt.endpoint_class in _WITHOUT_TOKENS:
        return Category.NOT_BY_TOKENS
    if attempt.effect is Effect.HAPPENED and attempt.ended == "whole":
        return Category.KNOWN if attempt.tokens is not None else Category.UNSTATED
    failed = attempt.effect is Effect.ANSWERED or (attempt.status is not None and attempt.status >= 400)
    return Category.POSSIBLY_BILLED_FAILURE if failed else Category.UNKNOWN


def item_of(
    attempt: OwnAttempt,
    prices: Prices,
    limits: tuple[OutputLimit, ...],
    evidence: Evidence = NOTHING,
    alive: frozenset[CallId] = frozenset(),
) -> Item:
    category = category_of(attempt, prices, alive)
    if category is Category.KNOWN and attempt.tokens is not None:
        return _known(attempt, prices)
    if category not in BOUNDED:
        return Item(attempt, category, Between())
    found = bounds(attempt, evidence, prices, limits)
    return Item(attempt, category, found.cost, found.reason, _presumed(attempt, category, prices), found.priced_as)


def _known(attempt: OwnAttempt, prices: Prices) -> Item:
    assert attempt.tokens is not None
    price = known(attempt, attempt.tokens, prices)
    if isinstance(price, Unpriced):
        return Item(attempt, Category.UNKNOWN_MODEL, Between(), price.sentence)
    if price.lower == price.upper:
        return Item(attempt, Category.KNOWN, exactly(price.upper), priced_as=price.model)
    reason = (
        "The usage does not say how many of the cached tokens were audio or images, which have a price of their own."
    )
    return Item(attempt, Category.UNSTATED, Between(price.lower, price.upper), reason, WHOLE, price.model)


def _presumed(attempt: OwnAttempt, category: Category, prices: Prices) -> Presumption:
    if category is Category.UNSTATED:
        return WHOLE
    if attempt.decision == "served":
        return DECIDED
    return presumption(
        prices.provider(attempt.upstream), attempt.status, failed=category is Category.POSSIBLY_BILLED_FAILURE
    )
