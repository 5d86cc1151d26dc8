"""What a whole response proves about the effect: semantics.md section 5 as data. Sources: research/providers.md section 4.

Only whole responses are judged here. How a transport ended is judged where it is seen.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass

from ledger.stages import Effect


@dataclass(frozen=True, slots=True)
class UpstreamTraits:
    """What is particular to an upstream, from its configuration."""

    gateway: bool = False  # it may have tried another provider before its own 4xx, so that a 4xx proves nothing
    answered_statuses: frozenset[int] = frozenset()  # statuses that may have been billed, as Azure's 400
    terminal_evidence_required: bool = True  # False: its streams end without the dialect's terminal event


PLAIN = UpstreamTraits()


@dataclass(frozen=True, slots=True)
class _Case:
    has_envelope: bool
    in_band_error: bool
    gateway: bool
    exceptions: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Rule:
    statuses: Container[int]
    effect: Effect
    source: str
    applies: Callable[[int, _Case], bool] = lambda _status, _case: True


# 408 may come after the work began, 409 and 425 speak of another try, 499 is a proxy's word for a client that left.
UNPROVING_4XX = frozenset({408, 409, 425, 499})
_PROVING_4XX = frozenset(range(400, 500)) - UNPROVING_4XX

# First match wins; what no rule names is unknown.
_RULES = (
    _Rule(
        range(400, 600),
        Effect.ANSWERED,
        "the upstream's own list; Azure bills content-filter 400s (Azure manage-costs)",
        lambda status, case: status in case.exceptions,
    ),
    _Rule(
        _PROVING_4XX,
        Effect.ANSWERED,
        "a gateway's 4xx can be the last of several providers' answers",
        lambda _, case: case.gateway,
    ),
    _Rule(_PROVING_4XX, Effect.ABSENT, "validation, authentication and rate limits come before generation"),
    _Rule({529}, Effect.ABSENT, "Anthropic overloaded_error: refused before output, failed requests are not charged"),
    _Rule({307, 308}, Effect.ABSENT, "RFC 9110 section 15.4: asks to send the request elsewhere; never followed here"),
    _Rule(
        range(500, 600),
        Effect.ANSWERED,
        "the provider's own error; billing not stated (OpenAI) or not in general (Anthropic)",
        lambda _, case: case.has_envelope,
    ),
    _Rule(
        range(200, 300),
        Effect.ANSWERED,
        "an error event after 200; billing not stated by any provider",
        lambda _, case: case.in_band_error,
    ),
    _Rule(range(200, 300), Effect.HAPPENED, "the provider says that it served the request"),
)


def verdict(
    status: int,
    *,
    has_envelope: bool,
    in_band_error: bool,
    gateway: bool = False,
    exceptions: frozenset[int] = frozenset(),
) -> Effect:
    """The effect that a wholly received response with this status proves."""
    case = _Case(has_envelope, in_band_error, gateway, exceptions)
    for rule in _RULES:
        if status in rule.statuses and rule.applies(status, case):
            return rule.effect
    return Effect.UNKNOWN
