"""The admission table (semantics section 4) as one pure function: `decide`.

Read it top down: an explicit key names one occurrence; a derived key stands for a multiset of occurrences, of which the
request claims the oldest that is unclaimed, or a new one; within a run the next one in order (section 9). `rows` has the
table's rows for one call. Whoever applies the decision does so with an append that names the head it was taken on; if another
was first, it asks here again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ledger.calls import CallState
from ledger.claims import KeyHistory
from ledger.events import Authority
from ledger.ids import CallId, attempt_id
from ledger.ladder import UNFINISHED, Evidence
from ledger.stages import Effect, Stage
from proxy.codes import Code
from proxy.decisions import Ask, Attach, Forward, Live, Now, Place, Policy, Refuse, Replay, Verdict, Wait
from proxy.rows import by_stage, next_generation, setting_for

NOT_LIVE: Final = Live()


def decide(
    ask: Ask, history: KeyHistory, live: Mapping[CallId, Live], policy: Policy, now: Now, place: Place | None = None
) -> Verdict:
    """One request against the prior calls of its (scope, key). Pure; total over the table."""
    verdict = _enforced(ask, history, live, policy, now, place)
    if now.form_differs and isinstance(verdict, Replay):
        verdict = Refuse(Code.FORM_DIFFERS, verdict.call)
    if policy.observes and isinstance(verdict, Refuse) and verdict.code is not Code.CORRUPTION:
        return _observed(ask, history, verdict, policy)
    return verdict


def _observed(ask: Ask, history: KeyHistory, refused: Refuse, policy: Policy) -> Forward:
    """`mode = "observe"`: what is unresolved is continued on the setting's authority; anything else is another sample."""
    call, evidence = refused.call, {"would_refuse": refused.code, "would_refuse_for": refused.call.call}
    if refused.code in (Code.EFFECT_UNKNOWN, Code.EFFECT_HAPPENED):
        plan = next_generation(ask, call, "decision", Authority("setting", "mode", policy.config_digest))
        return replace(plan, evidence=evidence)
    return Forward(history.last_occurrence + 1, 1, "second_sample", evidence=evidence)


def _enforced(
    ask: Ask, history: KeyHistory, live: Mapping[CallId, Live], policy: Policy, now: Now, place: Place | None
) -> Verdict:
    newest = [state for state in history.calls if state.superseded_by is None]
    if corrupt := next((state for state in newest if state.stage is Stage.CORRUPTION), None):
        return Refuse(Code.CORRUPTION, corrupt)
    if ask.key_source == "explicit":
        if not newest:
            return _unless_diverged(Forward(1, 1, "first"), live, place)
        # There is another occurrence only where mode "observe" made one.
        call = max(newest, key=lambda state: (state.occurrence, state.generation))
        return by_stage(ask, call, live.get(call.call, NOT_LIVE), policy)
    accepted = _already_accepted(ask, history)
    if accepted is not None and (place is None or accepted.occurrence <= place.position + 1):
        return by_stage(ask, accepted, live.get(accepted.call, NOT_LIVE), policy)
    if place is not None:
        return _in_pass(ask, newest, live, policy, now, place)
    return _derived(ask, newest, history.last_occurrence, live, policy, now)


def _already_accepted(ask: Ask, history: KeyHistory) -> CallState | None:
    """An acceptance is used once: the request that repeats it belongs to the call that it began."""
    if ask.accepts_attempt is None:
        return None
    named = {attempt_id(state.call, each.number): state for state in history.calls for each in state.attempts}
    spent = named.get(ask.accepts_attempt)
    if spent is None or spent.superseded_by is None:
        return None
    of_occurrence = (
        state for state in history.calls if state.occurrence == spent.occurrence and not state.superseded_by
    )
    return max(of_occurrence, key=lambda state: state.generation, default=None)


# --- runs: a new start walks through what the earlier ones recorded ---------------------------------------------------


def _in_pass(
    ask: Ask, newest: list[CallState], live: Mapping[CallId, Live], policy: Policy, now: Now, place: Place
) -> Verdict:
    """A retry of what this pass was given is judged among that alone; any other request gets the next occurrence, if recorded."""
    given = [state for state in newest if state.occurrence <= place.position]
    verdict = _derived(ask, given, place.position, live, policy, now)
    if not isinstance(verdict, Forward) or verdict.continues is not None:
        return verdict
    # The next one; behind a gap that a lost tail left, the first one there is.
    ahead = (state for state in newest if state.occurrence > place.position)
    if (recorded := min(ahead, key=lambda state: state.occurrence, default=None)) is not None:
        return _of_occurrence(ask, recorded, live.get(recorded.call, NOT_LIVE), policy)
    return _unless_diverged(verdict, live, place)


def _unless_diverged(new: Forward, live: Mapping[CallId, Live], place: Place | None) -> Verdict:
    """No earlier pass asked this. While one of theirs is unknown, it may be that one in other words: not to be paid again."""
    if place is None or place.unresolved is None:
        return new
    if place.continues:
        return replace(new, evidence={**new.evidence, "diverges_from": place.unresolved.call})
    if live.get(place.unresolved.call, NOT_LIVE).alive:
        return Wait("finished", (place.unresolved.call,))
    return Refuse(Code.RUN_DIVERGED, place.unresolved)


def stands_in_the_way_of_new(unresolved: CallState, policy: Policy) -> bool:
    """Would the settings for this call, which an earlier pass left unresolved, refuse it?"""
    if unresolved.stage is Stage.CORRUPTION:
        return True
    accepts = unresolved.evidence is not Evidence.PARKED and getattr(policy, setting_for(unresolved))
    return not policy.observes and not accepts


# --- derived keys: a multiset of occurrences ---------------------------------------------------------------------------


def _derived(
    ask: Ask, newest: list[CallState], last_occurrence: int, live: Mapping[CallId, Live], policy: Policy, now: Now
) -> Verdict:
    """The oldest unclaimed occurrence: to send, to hand over, to refuse; else a new one."""
    lives = {state.call: _still_claimed(state, live.get(state.call, NOT_LIVE)) for state in newest}
    ask = replace(ask, certain_retry=_is_certain(ask, newest, now))
    verdicts = [(state, _of_occurrence(ask, state, lives[state.call], policy)) for state in newest]
    for _, verdict in verdicts:
        if isinstance(verdict, Wait) or _accepted(verdict):
            return verdict
    # Owed a first try or not: it may be this client's, and then it is paid.
    if (ours := _named(ask, verdicts, lives) or _oldest_unclaimed(verdicts, lives)) is not None:
        return ours
    for state, verdict in verdicts:
        if isinstance(verdict, Refuse) and _stands_in_the_way(ask, state, lives[state.call]):
            return verdict
    new = _new_occurrence(ask, newest, last_occurrence, lives, now)
    if ask.certain_retry:
        return _certain_retry(verdicts, lives, now) or new
    waiting = next((state for state in newest if lives[state.call].claimed and not _is_over(state)), None)
    if waiting is not None and not now.settled and not now.owed_first_try:
        return Wait("settled", (waiting.call,))  # its FIN may sit behind its own unsent bytes
    return new


def _is_certain(ask: Ask, newest: list[CallState], now: Now) -> bool:
    if now.owed_first_try:
        return False  # a retry of what was never recorded: none of these is its first try
    return ask.certain_retry or (ask.asks_once and not all(map(_is_over, newest)))


def _of_occurrence(ask: Ask, state: CallState, live: Live, policy: Policy) -> Verdict:
    if live.alive and live.delivered and state.evidence in UNFINISHED:
        return Wait("finished", (state.call,))  # its client has the end; what that proved is being read
    return by_stage(ask, state, live, policy)


def _still_claimed(state: CallState, live: Live) -> Live:
    """A delivered answer ends its claim, unless the effect happened: only then may the same request be another sample."""
    ended = live.delivered and not live.alive and state.effect is not Effect.HAPPENED
    return replace(live, claimed=False) if ended else live


def _named(ask: Ask, verdicts: list[tuple[CallState, Verdict]], lives: Mapping[CallId, Live]) -> Verdict | None:
    """A retry that repeats the beginning of an answer says itself whose it is; another one's is not its own."""
    of_it = (verdict for state, verdict in verdicts if state.call == ask.retells and not lives[state.call].claimed)
    return next(of_it, None)


def _oldest_unclaimed(verdicts: list[tuple[CallState, Verdict]], lives: Mapping[CallId, Live]) -> Verdict | None:
    """First one waiting to be sent, then one whose answer is owed."""
    unclaimed = [(state, verdict) for state, verdict in verdicts if not lives[state.call].claimed]
    for _, verdict in unclaimed:
        if isinstance(verdict, Forward):
            return verdict
    for state, verdict in unclaimed:
        if _is_owed_an_answer(state, lives[state.call], verdict):
            return verdict
    return None


def _accepted(verdict: Verdict) -> bool:
    """The caller named the very attempt, so whose socket is open does not matter."""
    return isinstance(verdict, Forward) and verdict.authority is not None and verdict.authority.kind == "caller"


def _is_owed_an_answer(state: CallState, live: Live, verdict: Verdict) -> bool:
    """Alive with its client gone, or answered and not delivered: this request is that client's retry."""
    if state.delivered or live.delivered:
        return False
    answer_lost = isinstance(verdict, Refuse) and verdict.code in (Code.RESPONSE_LOST, Code.CALLER_CHANGED)
    return isinstance(verdict, Attach | Replay) or (answer_lost and state.stage is not Stage.CLOSED)


def _stands_in_the_way(ask: Ask, state: CallState, live: Live) -> bool:
    """An unknown occurrence refuses every later one of its key, and so does a parked one; a closed one only its retry."""
    if live.alive or _is_over(state):
        return False  # nothing is unknown of it yet, or any more
    if state.stage is Stage.CLOSED:
        return ask.certain_retry or state.evidence is Evidence.PARKED
    return state.effect is not Effect.HAPPENED or state.stage is not Stage.COMPLETED


def _certain_retry(verdicts: list[tuple[CallState, Verdict]], lives: Mapping[CallId, Live], now: Now) -> Verdict | None:
    """All are claimed or delivered: wait for a close, then the newest answer that may have been lost on its way."""
    claimed = [state for state, _ in verdicts if lives[state.call].claimed and not _is_over(state)]
    if claimed and not now.waited_for_close:
        return Wait("closed", tuple(state.call for state in claimed))
    for state, verdict in verdicts:
        if lives[state.call].alive and not lives[state.call].claimed:
            return verdict  # its answer has just been delivered, and its bookkeeping is not finished
    late = [
        verdict
        for state, verdict in verdicts
        if isinstance(verdict, Replay | Refuse)
        and not {"fin", "acked"}.isdisjoint(state.deliveries)
        and state.delivered_at_ms is not None
        and now.at_ms - state.delivered_at_ms <= now.late_retry_ms
    ]
    if late:
        return late[-1]
    return Refuse(Code.IN_PROGRESS, claimed[0]) if claimed else None


def _is_over(state: CallState) -> bool:
    """Served and delivered. Erasing its bodies makes no difference: only a retry that comes late still asks for it."""
    return state.superseded_by is None and state.finished


def _new_occurrence(
    ask: Ask, newest: list[CallState], last_occurrence: int, lives: Mapping[CallId, Live], now: Now
) -> Forward:
    if last_occurrence == 0:
        return Forward(1, 1, "first")
    evidence = {
        "retry_sign": ask.certain_retry,
        "owed_first_try": now.owed_first_try,
        "open": [state.call for state in newest if lives[state.call].claimed],
        "delivered": {
            state.call: list(state.deliveries) or ["acknowledged"]
            for state in newest
            if state.delivered or lives[state.call].delivered
        },
        "decided": {state.call: state.decision.decision for state in newest if state.decision},
    }
    return Forward(last_occurrence + 1, 1, "second_sample", evidence=evidence)
