"""Admission decisions that are wrong in one way, and what the laws of `claims_laws` say when they find it."""

from dataclasses import replace
from typing import Final

from ledger.claims import KeyHistory
from ledger.ids import CallId
from proxy.admission import decide
from proxy.codes import Code
from proxy.decisions import Ask, Forward, Live, Now, Policy, Refuse, Verdict

Lives = dict[CallId, Live]


def lives(live: Lives, **changes: bool) -> Lives:
    return {call: replace(one, **changes) for call, one in live.items()}


def ignores_claims(ask: Ask, history: KeyHistory, live: Lives, policy: Policy, now: Now) -> Verdict:
    return decide(ask, history, lives(live, claimed=False), policy, now)


def replays_what_was_delivered(ask: Ask, history: KeyHistory, live: Lives, policy: Policy, now: Now) -> Verdict:
    calls = tuple(replace(state, deliveries=()) for state in history.calls)
    return decide(ask, replace(history, calls=calls), lives(live, delivered=False), policy, now)


def takes_what_was_written_for_delivered(
    ask: Ask, history: KeyHistory, live: Lives, policy: Policy, now: Now
) -> Verdict:
    return decide(ask, history, lives(live, delivered=True), policy, now)


def forwards_on_unknown(ask: Ask, history: KeyHistory, live: Lives, policy: Policy, now: Now) -> Verdict:
    verdict = decide(ask, history, live, policy, now)
    if isinstance(verdict, Refuse) and verdict.code in (Code.EFFECT_UNKNOWN, Code.EFFECT_HAPPENED):
        return Forward(history.last_occurrence + 1, 1, "second_sample", evidence={"why": "a guess"})
    return verdict


def waits_for_no_fin(ask: Ask, history: KeyHistory, live: Lives, policy: Policy, now: Now) -> Verdict:
    return decide(ask, history, live, policy, replace(now, settled=True))


def reads_no_retry_sign(ask: Ask, history: KeyHistory, live: Lives, policy: Policy, now: Now) -> Verdict:
    return decide(replace(ask, certain_retry=False), history, live, policy, now)


def refuses_beside_an_open_one(ask: Ask, history: KeyHistory, live: Lives, policy: Policy, now: Now) -> Verdict:
    verdict = decide(ask, history, live, policy, now)
    beside = next((state for state in history.calls if live[state.call].claimed), None)
    return Refuse(Code.EFFECT_UNKNOWN, beside) if isinstance(verdict, Forward) and beside else verdict


WRONG: Final = {
    ignores_claims: "two that wait are given one answer",
    replays_what_was_delivered: "was given to two intents|two that wait",
    takes_what_was_written_for_delivered: "a new occurrence beside an answer that nobody claims|a retry was sent",
    forwards_on_unknown: "a new sample beside an unknown effect|a retry was sent",
    waits_for_no_fin: "a new occurrence beside an answer that nobody claims|a retry was sent",
    reads_no_retry_sign: "a certain retry made a new occurrence|a retry was sent",
    refuses_beside_an_open_one: "refused as",
}
