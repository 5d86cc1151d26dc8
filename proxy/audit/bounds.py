"""How much an attempt can have cost at most, where nobody stated what it cost: [lower, upper] with the reason. Pure.

The lower end is always 0: no provider says how much it bills for an answer that broke off, and most do not say whether they do. What is
said stands in the presumption, with its source. Sources: research/providers.md sections 4 and 6, and those named below.
"""

import tomllib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

from proxy.audit.asking import Asking
from proxy.audit.attempts import OwnAttempt
from proxy.audit.money import Between, up_to
from proxy.audit.prices import Asked, Price, Prices, Unpriced
from proxy.audit.tokens import Tokens

# documented: in the provider's documents · stated: by its support, beside its documents · reported: by others · inferred: from one of
# these, by us · undetermined: nobody says
Mark = Literal["documented", "stated", "reported", "inferred", "undetermined"]
Billed = Literal["billed", "may_be_billed", "not_billed", "undetermined"]


@dataclass(frozen=True, slots=True)
class Presumption:
    """What the provider is known to do about a bill in such a case, and how well that is known."""

    billed: Billed
    mark: Mark
    source: str


UNDETERMINED: Final = Presumption("undetermined", "undetermined", "no word of the provider was found")
DECIDED: Final = Presumption(
    "billed", "undetermined", "an operator decided that it was served; that is no proof of a bill"
)
WHOLE: Final = Presumption("billed", "documented", "the answer came whole")

# By provider of genai-prices: an answer that was cut off, or never came.
CUT: Final[Mapping[str, Presumption]] = {
    "anthropic": Presumption(
        "billed",
        "stated",
        "support.claude.com 8114526: charged where the client goes and the call was on track to be successful",
    ),
    "aws": Presumption(
        "billed", "reported", "litellm#34147, from cost and usage reports: the full usage, after a disconnect too"
    ),
    "google": Presumption(
        "billed",
        "inferred",
        "openrouter.ai/docs, streaming, lists Google among those that do not stop when the client goes; of the bill it says nothing",
    ),
}


@dataclass(frozen=True, slots=True)
class _Failure:
    provider: str
    statuses: Container[int]
    presumption: Presumption


# The provider said that it failed; first match wins.
FAILURES: Final = (
    _Failure(
        "azure",
        {400},
        Presumption("may_be_billed", "documented", "Azure OpenAI, Manage costs: a filtered 400 may be charged"),
    ),
    _Failure(
        "azure",
        {408},
        Presumption("billed", "documented", "Azure OpenAI, Manage costs: a 408 is charged"),
    ),
    _Failure(
        "azure",
        range(500, 600),
        Presumption(
            "may_be_billed",
            "documented",
            "Azure OpenAI, Manage costs: may be charged where work was done, whatever the status",
        ),
    ),
    _Failure(
        "anthropic",
        {500, 529},
        Presumption("not_billed", "stated", "support.claude.com 8114526: in general, failed requests are not charged"),
    ),
    _Failure(
        "google",
        {400, 500},
        Presumption("not_billed", "documented", "ai.google.dev, billing: a 400 or 500 is not charged"),
    ),
    _Failure(
        "openrouter",
        range(400, 600),
        Presumption("not_billed", "reported", "openrouter.ai: an error status comes before any token"),
    ),
    _Failure(
        "openrouter",
        range(200, 300),
        Presumption("not_billed", "reported", "openrouter.ai: a generation that ends in an error is free"),
    ),
)


@dataclass(frozen=True, slots=True)
class OutputLimit:
    models: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """`reason`: how the upper end came about, or why there is none; a sentence."""

    cost: Between
    reason: str
    priced_as: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What else is on record of one attempt. `asking` None: its request cannot be read. `twin`: what the provider counted for the very
    same bytes another time. `stated`: what the answer that broke off said of its input.
    """

    asking: Asking | None = None
    twin: int | None = None
    stated: Tokens | None = None


NOTHING: Final = Evidence()


def limits_of(text: str) -> tuple[OutputLimit, ...]:
    """config/output_limits.toml. Raises ValueError, KeyError or TypeError where it is another file."""
    rows = tomllib.loads(text)["limit"]
    return tuple(OutputLimit(str(row["models"]), int(row["tokens"])) for row in rows)


def presumption(provider: str | None, status: int | None, *, failed: bool) -> Presumption:
    if not failed:
        return CUT.get(provider or "", UNDETERMINED)
    found = (row.presumption for row in FAILURES if row.provider == provider and status in row.statuses)
    return next(found, UNDETERMINED)


def bounds(attempt: OwnAttempt, evidence: Evidence, prices: Prices, limits: tuple[OutputLimit, ...]) -> Bounds:
    asking = evidence.asking
    asked = asked_price(attempt, asking.tier if asking else None)
    if isinstance(found := prices.model(asked), Unpriced):
        return Bounds(up_to(None), found.sentence)
    if attempt.background and attempt.dialect == "generic":
        return Bounds(up_to(None), "A job costs what it does later, which is not in the answer that began it.")
    if asking is not None and asking.loops is not None:
        return Bounds(up_to(None), f"It may have become several rounds, each with its own input: {asking.loops}.")
    given = _input(evidence, prices.window(asked))
    if given is None:
        return Bounds(
            up_to(None), f"Its input is not bounded: {_why_window(asking)}, and the price list has no context window."
        )
    made = _output(attempt, asking, prices, asked, limits)
    if made is None:
        return Bounds(
            up_to(None), "Its output is not bounded: the request sets no limit, and none of the model is known."
        )
    (input_tokens, input_words), (output_tokens, output_words) = given, made
    worst = prices.worst(
        asked,
        input_tokens,
        output_tokens,
        evidence.stated,
        hour_cache=asking is None or asking.hour_cache,
        media=asking is None or bool(asking.media or asking.beyond),
    )
    if isinstance(worst, Unpriced):
        return Bounds(up_to(None), worst.sentence)
    return Bounds(
        up_to(worst.upper),
        f"At most {input_tokens} tokens in ({input_words}) and {output_tokens} out ({output_words}).",
        worst.model,
    )


def known(attempt: OwnAttempt, tokens: Tokens, prices: Prices) -> Price | Unpriced:
    """The price of what the provider stated."""
    return prices.price(asked_price(attempt, attempt.service_tier), tokens)


def asked_price(attempt: OwnAttempt, tier: str | None) -> Asked:
    at_ms = attempt.started_at_ms if attempt.started_at_ms is not None else attempt.created_at_ms
    return Asked(attempt.upstream, (attempt.model, attempt.asked_model), at_ms, tier)


def _input(evidence: Evidence, window: int | None) -> tuple[int, str] | None:
    asking = evidence.asking
    if evidence.stated is not None:
        return evidence.stated.input, "as the answer that broke off said itself"
    if asking is not None and asking.beyond is None and evidence.twin is not None:
        return evidence.twin, "as the provider counted the same bytes another time"
    if asking is not None and asking.beyond is None and asking.media is None:
        return asking.input_tokens, "no more than the request has bytes"
    return None if window is None else (window, f"the context window, as {_why_window(asking)}")


def _why_window(asking: Asking | None) -> str:
    if asking is None:
        return "the request cannot be read"
    return asking.beyond or asking.media or "nothing bounds it"


def _output(
    attempt: OwnAttempt, asking: Asking | None, prices: Prices, asked: Asked, limits: tuple[OutputLimit, ...]
) -> tuple[int, str] | None:
    if not prices.prices_output(asked):
        return 0, "the model has no priced output"
    answers = asking.answers if asking else 1
    more = asking.more_output_tokens if asking else 0
    one: tuple[int, str] | None
    if attempt.max_output_tokens is not None:
        one = attempt.max_output_tokens, "the request's own limit"
    elif (limit := _model_limit(prices, asked, limits)) is not None:
        one = limit, "the model's limit"
    else:
        window = prices.window(asked)
        one = None if window is None else (window, "the context window")
    if one is None:
        return None
    tokens, words = one
    return tokens * answers + more, words if answers == 1 else f"{words}, {answers} times"


def _model_limit(prices: Prices, asked: Asked, limits: tuple[OutputLimit, ...]) -> int | None:
    for name in prices.names(asked):
        bare = name.rpartition("/")[2].lower()
        for limit in limits:
            if fnmatchcase(bare, limit.models):
                return limit.tokens
    return None
