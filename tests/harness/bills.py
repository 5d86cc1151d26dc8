"""Attempts on a bill, made of real events that the ledger's own projection has read."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ledger.calls import CallState
from ledger.events import AttemptInterpreted, Body
from ledger.ids import CallId
from ledger.stages import Effect
from proxy.audit.attempts import OwnAttempt, own_attempts
from proxy.audit.bounds import NOTHING, Evidence
from proxy.audit.gathering import output_limits
from proxy.audit.prices import Prices, Source
from proxy.audit.report import OwnCall
from proxy.audit.spend import Item, item_of
from tests.harness.histories import Past, Step, observed
from tests.harness.ledgers import DIGEST, MANIFEST, NOW_MS

MODEL: Final = "gpt-5.5"  # 5 dollars a million tokens in, 30 out, up to 272,000 tokens in; 128,000 out at most (research, section 6)
PRICES: Final = Prices(
    {
        "openai": Source("openai", (("deployment-*", MODEL),)),
        "anthropic": Source("anthropic"),
        "gemini": Source("google"),
        "azure": Source("azure"),
        "local": Source("none"),
        "nobodys": Source(None),
    }
)
LIMITS: Final = output_limits()
USAGE: Final = {"prompt_tokens": 1000, "completion_tokens": 100}
CLOSING: Final[tuple[Step, ...]] = ("attempt.retry_decided", "attempt.completed", "call.completed")


def asked(model: str | None = MODEL, limit: int | None = None) -> tuple[Step, ...]:
    body = Body(DIGEST, 60)
    return (replace(MANIFEST, model=model, max_output_tokens=limit, body=body), "attempt.started")


def answered(
    usage: Mapping[str, int] | None = USAGE,
    effect: Effect = Effect.HAPPENED,
    status: int = 200,
    model: str | None = MODEL,
    limit: int | None = None,
    tier: str | None = None,
) -> tuple[Step, ...]:
    """The whole way, up to `call.completed`."""
    reading = AttemptInterpreted(1, "read", effect, None, usage, {}, model, service_tier=tier)
    return (*asked(model, limit), observed("response", status), reading, *CLOSING)


def state(*steps: Step, **requested: Any) -> CallState:
    past = Past()
    call = past.call(*steps, **requested)
    return past.calls[call]


def own(*steps: Step, **requested: Any) -> OwnAttempt:
    """The only attempt of a call after `steps`."""
    (attempt,) = own_attempts([state(*steps, **requested)])
    return attempt


def item(*steps: Step, evidence: Evidence = NOTHING, alive: bool = False, **requested: Any) -> Item:
    attempt = own(*steps, **requested)
    return item_of(attempt, PRICES, LIMITS, evidence, frozenset([attempt.call] if alive else []))


def at(made: Item, number: int, at_ms: int = NOW_MS) -> Item:
    """The same as another call, at another time."""
    call = CallId(f"call_{at_ms:012x}{number:016x}")
    attempt = replace(made.attempt, call=call, attempt=f"{call}.1", created_at_ms=at_ms, started_at_ms=at_ms)
    return replace(made, attempt=attempt)


def call_of(made: Item) -> OwnCall:
    attempt = made.attempt
    return OwnCall(attempt.call, attempt.created_at_ms, attempt.upstream, attempt.model, attempt.caller, attempt.run)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]} | fields).encode()
