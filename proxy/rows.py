"""One call and one request that may be its retry: the rows of the admission table (semantics section 4). Pure."""

from typing import Final

from ledger.calls import CallState
from ledger.events import Authority, WhyNew
from ledger.ids import attempt_id
from ledger.ladder import Evidence
from ledger.stages import Effect, Stage
from proxy.codes import Code
from proxy.decisions import Ask, Attach, Forward, Live, Policy, Refuse, Replay, Verdict, Wait

CLIENT_ABORT: Final = "client_abort"  # `ended_by` of an attempt whose client was gone for too long
GATEWAY_STATUSES: Final = frozenset({408, 502, 503, 504, *range(520, 530)})
_CLOSED_BY: Final = {
    Evidence.SERVED: Code.RESPONSE_LOST,
    Evidence.PARKED: Code.PARKED,
    Evidence.ERASED: Code.RESPONSE_ERASED,
}


def by_stage(ask: Ask, call: CallState, live: Live, policy: Policy) -> Verdict:
    """The rows of the table, for the newest call of one occurrence."""
    if (differing := _differs(ask, call)) is not None:
        return Refuse(differing, call)
    if live.alive:
        return _for_same_credential(ask, call, Attach(call.call))
    match call.stage:
        case Stage.REQUESTED | Stage.PREPARATION_FAILED | Stage.MANIFEST_RECORDED | Stage.NOT_SENT:
            return _resume(ask, call, "resumed")
        case Stage.EFFECT_UNKNOWN | Stage.EFFECT_HAPPENED:
            return _unless_accepted(ask, call, policy)
        case Stage.OBSERVED | Stage.INTERPRETED | Stage.ATTEMPT_COMPLETED:
            return Wait("finished", (call.call,))
        case Stage.SETTLED:
            return _resume(ask, call, "decision", call.decision.authority if call.decision else None)
        case Stage.COMPLETED:
            return _completed(ask, call, policy)
        case Stage.CLOSED:
            return Refuse(_CLOSED_BY.get(call.evidence, Code.RESPONSE_LOST), call)
        case Stage.CORRUPTION | Stage.SUPERSEDED:
            return Refuse(Code.CORRUPTION, call)


def _completed(ask: Ask, call: CallState, policy: Policy) -> Verdict:
    match call.effect:
        case Effect.HAPPENED if not _is_kept(call):
            return Refuse(Code.RESPONSE_LOST, call)
        case Effect.HAPPENED:
            return _for_same_credential(ask, call, Replay(call))
        case Effect.ABSENT:
            return _resume(ask, call, "resumed")
        case Effect.ANSWERED | Effect.UNKNOWN:
            return _unless_accepted(ask, call, policy)


def _differs(ask: Ask, call: CallState) -> Code | None:
    """Another request under this key? Checked first: before any attempt it is drift, after one the key was reused."""
    if call.manifest is None:
        return None  # nothing was recorded to compare with
    if call.manifest.intent_digest != ask.intent_digest:
        return Code.KEY_REUSED if call.attempts else Code.DRIFT
    return None


def _for_same_credential(ask: Ask, call: CallState, verdict: Attach | Replay) -> Verdict:
    """I9: an answer is given to the exact credential that asked for it; in a run the pass proves that it is the same one's."""
    return verdict if ask.in_pass or call.caller_exact == ask.caller_exact else Refuse(Code.CALLER_CHANGED, call)


def _unless_accepted(ask: Ask, call: CallState, policy: Policy) -> Verdict:
    """A second effect is possible: only with the caller's word or a standing setting, and that goes on record."""
    if call.attempt is None:  # not marked: there is no attempt that anybody could accept
        return Refuse(Code.PROTOCOL_MARKER_INVALID, call)
    if ask.accepts_attempt == attempt_id(call.call, call.attempt.number):
        return next_generation(ask, call, "decision", Authority("caller", "Sendonce-Accept"))
    setting = setting_for(call)
    if getattr(policy, setting):
        return next_generation(ask, call, "decision", Authority("setting", setting, policy.config_digest))
    if call.stage is Stage.EFFECT_HAPPENED:
        return Refuse(Code.EFFECT_HAPPENED, call)
    return Refuse(Code.EFFECT_UNKNOWN, call)


def setting_for(call: CallState) -> str:
    """Which setting rules an unresolved call (semantics section 4)."""
    observed = call.attempt.observed if call.attempt else None
    cut = observed is not None and observed.observation == "partial" and observed.source == "live"
    if observed and cut and observed.ended_by != CLIENT_ABORT:  # a client that left was not told of the cut
        return "after_cut_stream"
    if call.stage is Stage.COMPLETED and call.effect is Effect.ANSWERED:
        return "after_server_error"
    if call.stage is Stage.COMPLETED and observed and observed.status in GATEWAY_STATUSES:
        return "after_gateway_error"
    return "on_unknown"


def _resume(ask: Ask, call: CallState, why: WhyNew, authority: Authority | None = None) -> Forward | Refuse:
    """Not sent yet: what the client named beside the body has to be what was recorded (semantics section 8)."""
    if call.manifest is not None and dict(call.manifest.context) != dict(ask.context):
        return Refuse(Code.DRIFT, call)
    return next_generation(ask, call, why, authority)


def next_generation(ask: Ask, call: CallState, why: WhyNew, authority: Authority | None = None) -> Forward:
    accepts = attempt_id(call.call, call.attempt.number) if call.effect is not Effect.ABSENT and call.attempt else None
    differences = []
    if call.manifest is not None:
        differences = [] if call.manifest.body.digest == ask.body_digest else ["body"]
        differences += [] if call.manifest.url == ask.url else ["url"]
        differences += [] if dict(call.manifest.context) == dict(ask.context) else ["context"]
    return Forward(call.occurrence, call.generation + 1, why, call, accepts, authority, differences=tuple(differences))


def _is_kept(call: CallState) -> bool:
    observed = call.attempt.observed if call.attempt else None
    return observed is not None and (observed.body is None or observed.body.kept)
