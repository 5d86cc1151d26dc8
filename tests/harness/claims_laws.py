"""The laws of "retry or second sample" (semantics section 4), about a verdict and about the whole world of one key."""

from collections.abc import Mapping

from ledger.events import Decision
from ledger.ids import CallId
from proxy.codes import Code
from proxy.decisions import Attach, Forward, Live, Refuse, Replay, Verdict
from tests.harness.claims_world import Try, World


def refusing(world: World) -> list[CallId]:
    """Dead, sent, and neither a decision nor a setting says that its request may be sent again."""
    decided = {state.call for state in world.newest if state.decision}
    return [
        state.call
        for state in world.newest
        if state.call not in world.flights and state.call not in decided and state.call in world.ends
        and (setting := world.ends[state.call].setting) is not None and not getattr(world.policy, setting)
    ]  # fmt: skip


def ruled(world: World, decision: Decision) -> list[CallId]:
    return [state.call for state in world.newest if state.decision and state.decision.decision == decision]


def owes_an_answer(world: World, call: CallId, live: Live) -> bool:
    state = world.past.calls[call]
    good = call in world.ends and world.ends[call].client == "good"
    return (live.alive or good) and not live.delivered and not state.delivered and not state.decision


def judged(world: World, asked: Try, verdict: Verdict) -> None:
    """Asked of every verdict before it is applied."""
    live = world.live()
    match verdict:
        case Refuse(code):
            allowed = {
                Code.EFFECT_UNKNOWN: bool(refusing(world)),
                Code.EFFECT_HAPPENED: bool(refusing(world)),
                Code.PARKED: bool(ruled(world, "parked")),
                Code.RESPONSE_LOST: asked.marked and bool(ruled(world, "served")),
                Code.IN_PROGRESS: asked.marked and any(each.claimed for each in live.values()),
            }
            assert allowed.get(code, False), f"refused as {code}, though nothing of the key is unresolved"
        case Attach() | Replay():
            call = verdict.call if isinstance(verdict, Attach) else verdict.call.call
            waiting = [each for each in world.claimants(call) if each.closed_at is None and not each.read]
            late = asked.marked and live[call].delivered | world.past.calls[call].delivered  # for whoever says retry
            assert late or asked.accepts or not waiting, "two that wait are given one answer"
        case Forward(occurrence=occurrence, generation=1) if occurrence > 1:
            assert not refusing(world), "a new sample beside an unknown effect"
            assert not ruled(world, "parked"), "a new sample beside a parked one"
            if not world.owed:
                retry_has_its_occurrence(world, asked, live)
        case _:
            pass


def retry_has_its_occurrence(world: World, asked: Try, live: Mapping[CallId, Live]) -> None:
    """Every answer that is owed is owed to somebody else, whose socket is open; a certain retry would wait for that."""
    for state in world.newest:
        one = live[state.call]
        if owes_an_answer(world, state.call, one):
            held = [each for each in world.claimants(state.call) if not each.left_before(asked.born)]
            assert held, "a new occurrence beside an answer that nobody claims"
        assert not (asked.marked and one.alive), "a certain retry made a new occurrence beside a running one"


def sound(world: World) -> None:
    """Asked after every step."""
    assert len(world.sends) <= len(world.intents) + world.acceptances, "a retry was sent"
    occurrences = {state.occurrence for state in world.past.calls.values()}
    assert len(world.sends) <= len(occurrences) + world.acceptances, "an occurrence was sent twice"
    assert not [state.fault for state in world.past.calls.values() if state.fault]
    for call, readers in world.readers.items():
        unmarked = [each for each in readers if not any(one.marked or one.accepts for one in each.asks)]
        assert len(set(unmarked)) <= 1, f"the answer of {call} was given to two intents that never said retry"
