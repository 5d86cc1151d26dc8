"""States as rows for people and programs: what `calls`, `show`, refusals and the control socket say. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from ledger.calls import AttemptState, CallState
from ledger.events import Recorded
from ledger.ids import Head, attempt_id
from ledger.ladder import Evidence
from ledger.projection import PROJECTION_VERSION
from ledger.stages import Effect, NextOperation

# Why a call stands where it stands, one sentence by last evidence; {since} is when its newest attempt started.
_REASONS: Final[Mapping[Evidence, str]] = {
    Evidence.NOTHING: "The record does not begin with a request.",
    Evidence.REQUESTED: "It was requested and nothing was recorded of what would be sent; no attempt can have started.",
    Evidence.PREPARATION_FAILED: "The request could not be prepared, and nothing was sent. {preparation}",
    Evidence.MANIFEST: "The manifest is recorded and no attempt has started; nothing was sent.",
    Evidence.ABANDONED: "It was given up before an attempt started; nothing was sent.",
    Evidence.STARTED: "An attempt started at {since} and nothing came back; the provider may have served it.",
    Evidence.ACKNOWLEDGED: "The provider began to answer the attempt of {since}, and the answer never ended.",
    Evidence.NOT_SENT: "An attempt is proven not to have reached the provider.",
    Evidence.LOST: "The attempt of {since} was sent and no answer came; the provider may have served it.",
    Evidence.PARTIAL: "The answer to the attempt of {since} broke off.",
    Evidence.WITNESSED: "The attempt is known from its receipt only: the ledger is older than what was sent.",
    Evidence.RESPONSE: "The answer is preserved and not interpreted yet; the provider is not needed.",
    Evidence.INTERPRETED: "The answer is interpreted; what follows from it is not recorded yet.",
    Evidence.RETRY_DECIDED: "The answer is interpreted; the attempt is not closed yet.",
    Evidence.ATTEMPT_COMPLETED: "The attempt is complete; the call is not closed yet.",
    Evidence.COMPLETED: "{complete}",
    Evidence.SERVED: "It was decided that the provider served it; its answer is not kept.",
    Evidence.NOT_SERVED: "It was decided that the provider did not serve it.",
    Evidence.ACCEPTED: "It was decided that a possible duplicate is acceptable.",
    Evidence.PARKED: "It was decided to leave it alone.",
    Evidence.ERASED: "{complete} Its bodies were erased; their digests stay.",
}


# What a completed call's answer proved (semantics section 5).
_COMPLETE: Final[Mapping[Effect, str]] = {
    Effect.HAPPENED: "It is complete.",
    Effect.ABSENT: "The provider answered {status} and did not serve it.",
    Effect.ANSWERED: "The provider answered with an error of its own ({status}); whether it bills for that is not proven.",
    Effect.UNKNOWN: "The answer ({status}) does not prove whether the provider served it.",
}


def instant(at_ms: int | None) -> str | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def head_row(head: Head | None) -> dict[str, Any] | None:
    return {"seq": head.seq, "chain": head.chain} if head else None


def since_of(call: CallState) -> str:
    """When the newest attempt started, else when the call was requested."""
    started = call.attempt.started_at_ms if call.attempt else None
    return instant(started or call.created_at_ms) or ""


def reason(call: CallState) -> str:
    if call.fault is not None:
        return f"The record contradicts itself: {call.fault}."
    if call.superseded_by is not None:
        return f"It was continued by {call.superseded_by}."
    observed = call.attempt.observed if call.attempt else None
    preparation = call.preparation.sentence if call.preparation else ""
    complete = _COMPLETE[call.effect].format(status=observed.status if observed else "nothing")
    return _REASONS[call.evidence].format(since=since_of(call), complete=complete, preparation=preparation).rstrip()


def call_row(call: CallState, alive: bool | None) -> dict[str, Any]:
    """The stable fields of `calls --json` and `show --json`. `alive` is null when no owner of the state dir answered."""
    attempt = call.attempt
    reading = attempt.interpreted if attempt else None
    manifest = call.manifest
    return {
        "call_id": call.call,
        "scope": call.scope,
        "run": call.run,
        "pass": call.served_pass,
        "key": call.key,
        "key_source": call.key_source,
        "client": call.requested.client if call.requested else None,
        "upstream": call.upstream,
        "occurrence": call.occurrence,
        "generation": call.generation,
        "stage": call.stage,
        "next_operation": NextOperation.NONE if alive else call.next_operation,
        "effect": call.effect,
        "duplicate_effect_risk": False if alive else call.duplicate_effect_risk,
        "reason": "It is in flight." if alive else reason(call),
        "alive": alive,
        "attempts": len(call.attempts),
        "model": (reading.model if reading and reading.model else None) or (manifest.model if manifest else None),
        "stream": manifest.stream if manifest else None,
        "outcome": reading.outcome if reading else None,
        "finish_reason": reading.finish_reason if reading else None,
        "usage": dict(reading.usage) if reading and reading.usage is not None else None,
        "provider_ids": dict(reading.provider_ids) if reading else {},
        "body_blake3": manifest.body.digest if manifest else None,
        "delivered": list(call.deliveries),
        "decision": call.decision.decision if call.decision else None,
        "would_refuse": call.requested.evidence.get("would_refuse") if call.requested else None,
        "erased": call.erased,
        "superseded_by": call.superseded_by,
        "created_at": instant(call.created_at_ms),
        "projection_version": PROJECTION_VERSION,
    }


def call_detail(call: CallState, alive: bool | None, events: list[Recorded]) -> dict[str, Any]:
    """`show`: the row, and the answers to what was attempted, from which inputs, what failed, what is unresolved."""
    return {
        **call_row(call, alive),
        "manifest": orjson.loads(orjson.dumps(call.manifest)) if call.manifest else None,
        "attempt_rows": [_attempt_row(call, attempt) for attempt in call.attempts],
        "unresolved": not alive and call.duplicate_effect_risk,
        "decisions": [
            {"seq": recorded.seq, "at": instant(recorded.at_ms), **orjson.loads(orjson.dumps(recorded.event))}
            for recorded in events
            if recorded.event.kind == "reconcile.decided"
        ],
        "erasures": [
            {"at": instant(recorded.at_ms), **orjson.loads(orjson.dumps(recorded.event))}
            for recorded in events
            if recorded.event.kind == "body.erased"
        ],
        "events": [
            {
                "seq": recorded.seq,
                "at": instant(recorded.at_ms),
                "kind": recorded.event.kind,
                "attempt": recorded.attempt,
            }
            for recorded in events
        ],
        "head": head_row(Head(call.last_seq, call.head_chain)),
    }


def _attempt_row(call: CallState, attempt: AttemptState) -> dict[str, Any]:
    observed, acknowledged = attempt.observed, attempt.acknowledged
    return {
        "attempt": attempt_id(call.call, attempt.number),
        "epoch": attempt.epoch,
        "started_at": instant(attempt.started_at_ms),
        "acknowledged_status": acknowledged.status if acknowledged else None,
        "observation": observed.observation if observed else None,
        "ended_by": observed.ended_by if observed else None,
        "source": observed.source if observed else None,
        "proof": observed.proof if observed else None,
        "status": observed.status if observed else None,
        "response_blake3": observed.body.digest if observed and observed.body else None,
        "response_bytes": observed.body.size if observed and observed.body else None,
        "effect": attempt.interpreted.effect if attempt.interpreted else None,
        "error": attempt.interpreted.error if attempt.interpreted else None,
    }
