"""Each attempt on record as a bill sees it. Pure: the same calls give the same attempts."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ledger.calls import AttemptState, CallState
from ledger.events import AttemptObserved
from ledger.ids import CallId, Digest, attempt_id
from ledger.stages import Effect, NextOperation
from proxy.audit.tokens import Tokens, tokens_of

# whole: an answer with its end · partial: it broke off · lost: nothing came · open: nothing is recorded after the start ·
# not_sent: proven to have reached nobody · witnessed: known from a receipt only
Ended = Literal["whole", "partial", "lost", "open", "not_sent", "witnessed"]


@dataclass(frozen=True, slots=True)
class OwnAttempt:
    """One attempt. `model` is what the answer named, else what was asked for; `asked_model` always the latter."""

    attempt: str
    call: CallId
    upstream: str
    dialect: str
    endpoint_class: str
    caller: str
    run: str | None
    asked_model: str | None
    model: str | None
    service_tier: str | None
    started_at_ms: int | None
    ended_at_ms: int | None
    ended: Ended
    status: int | None
    outcome: str | None
    effect: Effect  # a standing decision included
    decision: str | None
    tokens: Tokens | None
    request_bytes: int | None
    request_digest: Digest | None
    max_output_tokens: int | None
    background: bool
    last_seq: int  # the call's newest event, as it was read
    is_answered: bool = False  # what the provider itself gave says that it happened: no decision is needed to know that
    created_at_ms: int = 0  # of the call
    superseded: bool = False  # another call carries on what this one began
    next_operation: NextOperation = NextOperation.NONE
    decision_seq: int | None = None  # which a further decision has to name

    @property
    def is_unknown(self) -> bool:
        """Nobody can say from the record what, or how much, the provider did. What a person decided is no record of that."""
        if self.ended == "not_sent":
            return False
        decided = self.decision is not None and not (self.ended == "whole" and self.is_answered)
        happened = self.effect is Effect.HAPPENED and self.ended != "whole"
        return decided or happened or self.effect is Effect.UNKNOWN


def own_attempts(calls: Iterable[CallState]) -> Iterator[OwnAttempt]:
    """In the order of the calls."""
    for call in calls:
        for attempt in call.attempts:
            yield _own(call, attempt)


def _own(call: CallState, attempt: AttemptState) -> OwnAttempt:
    requested, manifest, reading = call.requested, call.manifest, attempt.interpreted
    observed, acknowledged = attempt.observed, attempt.acknowledged
    is_newest = call.attempt is attempt
    asked = manifest.model if manifest else None
    dialect = requested.dialect if requested else "generic"
    head = observed or acknowledged
    return OwnAttempt(
        attempt=attempt_id(call.call, attempt.number),
        call=call.call,
        upstream=call.upstream,
        dialect=dialect,
        endpoint_class=requested.endpoint_class if requested else "unknown",
        caller=requested.caller if requested else call.caller_exact,
        run=call.run,
        asked_model=asked,
        model=(reading.model if reading else None) or asked,
        service_tier=reading.service_tier if reading else None,
        started_at_ms=attempt.started_at_ms,
        ended_at_ms=attempt.observed_at_ms,
        ended=_ended(attempt),
        status=head.status if head else None,
        outcome=reading.outcome if reading else None,
        effect=_effect(call, attempt, is_newest=is_newest),
        decision=call.decision.decision if is_newest and call.decision else None,
        tokens=tokens_of(dialect, reading.usage) if reading else None,
        request_bytes=manifest.body.size if manifest else None,
        request_digest=manifest.body.digest if manifest else None,
        max_output_tokens=manifest.max_output_tokens if manifest else None,
        background=requested is not None and requested.endpoint_class == "job",
        last_seq=call.last_seq,
        is_answered=reading is not None and reading.effect is Effect.HAPPENED and not _is_somebodys_file(observed),
        created_at_ms=call.created_at_ms,
        superseded=call.superseded_by is not None,
        next_operation=call.next_operation if is_newest else NextOperation.NONE,
        decision_seq=call.decision_seq if is_newest else None,
    )


def _effect(call: CallState, attempt: AttemptState, *, is_newest: bool) -> Effect:
    if is_newest:
        return replace(call, superseded_by=None).effect
    return Effect.ABSENT if _ended(attempt) == "not_sent" else Effect.UNKNOWN


def _is_somebodys_file(observed: AttemptObserved | None) -> bool:
    """An answer that a person brought (`--served --response FILE`): as good as that person's word."""
    return observed is not None and observed.source == "recovered" and observed.ended_by == "operator_statement"


def _ended(attempt: AttemptState) -> Ended:
    observed = attempt.observed
    if observed is None:
        return "witnessed" if attempt.witnessed else "open"
    return "whole" if observed.observation == "response" else observed.observation
