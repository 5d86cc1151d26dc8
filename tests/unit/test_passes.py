"""Runs: what a new start's requests get, as a table and for any order of kills; and names, tokens and gates that are pure."""

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from proxy.admission import decide
from proxy.decisions import Wait
from proxy.passes import BadRunError, checked_run
from tests.harness.runs_world import (
    Decide,
    RunWorld,
    Socket,
    forgets_its_position,
    sends_beside_the_unknown,
    without_place,
)

PASSES = 4  # of one run: more of them find nothing that these do not
ROUNDS = st.lists(st.tuples(st.sampled_from("ABC"), st.sampled_from([1, 1, 3])), min_size=1, max_size=4)


def live_through(world: RunWorld, script: list[tuple[str, int]], draw: Any, answers: dict[int, Any]) -> bool:
    """One start of the agent over its script. True: it came to the end. `answers`: index -> the call it got, in every pass."""
    world.open_pass()
    seen: set[tuple[str, int]] = set()
    for index, (key, samples) in enumerate(script):
        sockets: list[Socket] = []
        for _ in range(samples):
            asked = world.ask(key)
            while isinstance(asked, Wait):
                for call in asked.calls:
                    world.finish(call)
                asked = world.ask(key)
            if asked is None:
                return False
            sockets.append(asked)
        for socket in sockets:
            if not comes_to_its_answer(world, key, socket, draw):
                return False
        got = sorted(world.calls[socket.call].occurrence for socket in sockets if socket.call)
        assert answers.setdefault(index, got) == got, "another answer than in the pass before"
        assert seen.isdisjoint((key, one) for one in got), "one answer for two requests"
        assert len(set(got)) == samples, "one answer for two requests"
        seen.update((key, one) for one in got)
    return True


def comes_to_its_answer(world: RunWorld, key: str, socket: Socket, draw: Any) -> bool:
    """Delivered, perhaps after a cut and the client's retry; False: killed, or refused after the proxy's death."""
    assert socket.call is not None
    for _ in range(draw(st.integers(0, 3))):
        if socket.call in world.flights:
            world.advance(socket.call)
    happens = draw(st.sampled_from(["deliver", "deliver", "deliver", "cut", "crash and retry", "kill", "kill both"]))
    match happens if socket.open else "it was cut by a crash":
        case "deliver":
            world.deliver(socket)
            return True
        case "kill":
            is_killed(world, draw)
            return False
        case "kill both":
            world.crash()
            return False
        case "cut":
            world.cut(socket)
        case "crash and retry":
            world.crash()
    again = world.ask(key, marked=draw(st.booleans()))
    if not isinstance(again, Socket):
        return False
    socket.call = again.call
    world.deliver(again)
    return True


def is_killed(world: RunWorld, draw: Any) -> None:
    """The proxy lives, and reads to the end, or is still at it when the next start asks."""
    for each in world.sockets:
        if each.open:
            world.cut(each)
    for call in list(world.flights):
        if draw(st.booleans()):
            world.finish(call)


def check(wrap: Any, examples: int) -> None:
    """Any script, any kills, an operator between the starts: never more effects than requests and acceptances."""
    decides: Decide = wrap(decide)

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(script=ROUNDS, data=st.data())
    def lives(script: list[tuple[str, int]], data: st.DataObject) -> None:
        world, answers = RunWorld(decides), dict[int, Any]()
        wanted = sum(samples for _, samples in script)
        for _ in range(data.draw(st.integers(1, PASSES))):
            if live_through(world, script, data.draw, answers):
                break
            assert world.sends <= wanted + world.acceptances, "paid twice"
            if data.draw(st.booleans()):
                world.crash()
                world.settle()
        world.crash()
        world.settle()
        world.open_pass()
        for key, samples in script:
            for socket in [world.ask(key) for _ in range(samples)]:
                assert isinstance(socket, Socket), "refused although nothing is unresolved"
                world.deliver(socket)
        assert world.sends <= wanted + world.acceptances, "paid twice"

    lives()


def test_killed_agent_started_again_pays_for_nothing_twice() -> None:
    """Effects are at most the script's requests and the acceptances; every pass gets the same answers; the last one comes to its end."""
    check(lambda decides: decides, 100)


@pytest.mark.parametrize("wrong", [without_place, forgets_its_position], ids=lambda wrong: wrong.__name__)
def test_wrong_decision_in_a_pass_is_found(wrong: Any) -> None:
    """So that the law above says something."""
    with pytest.raises(AssertionError, match=r"paid twice|another answer|refused although|one answer for two"):
        check(wrong, 100)


@pytest.mark.slow
def test_killed_agent_pays_for_nothing_twice_in_many_lives() -> None:
    """The same law over many more lives."""
    check(lambda decides: decides, 3_000)


# --- what is new beside something unknown ------------------------------------------------------------------------------


def left_unknown() -> RunWorld:
    """Pass 1 asked A and got it, asked B and died; pass 2 is open."""
    world = RunWorld(decide)
    world.open_pass()
    first = world.ask("A")
    assert isinstance(first, Socket)
    world.deliver(first)
    second = world.ask("B")
    assert isinstance(second, Socket)
    assert second.call is not None
    world.advance(second.call)
    world.advance(second.call)
    return world


def test_new_request_beside_an_unknown_of_an_earlier_pass_is_refused() -> None:
    """A clock in the prompt makes another key: it may be the unknown one in other words."""
    world = left_unknown()
    world.crash()
    world.open_pass()
    assert isinstance(world.ask("A"), Socket)
    assert world.ask("B at another time") is None
    assert [state.key for state in world.refused] == ["B"]
    world.settle()
    assert isinstance(world.ask("B at another time"), Socket)


def test_new_request_waits_for_what_an_earlier_pass_left_running() -> None:
    """What is alive is not unknown yet: it comes to its end first."""
    world = left_unknown()
    world.open_pass()
    waits = world.ask("C")
    assert isinstance(waits, Wait)
    world.finish(waits.calls[0])
    assert isinstance(world.ask("C"), Socket)


def test_new_request_beside_an_unknown_of_its_own_pass_is_sent() -> None:
    """Within a pass section 4 alone decides: a sibling's cut answer stops no other request."""
    world = left_unknown()
    world.crash()
    assert isinstance(world.ask("C"), Socket)


def test_mutant_that_sends_beside_the_unknown_differs() -> None:
    """The refusal above is the obstacle's doing."""
    world = left_unknown()
    world.crash()
    world.open_pass()
    world.decide = sends_beside_the_unknown(decide)
    assert isinstance(world.ask("C"), Socket)


def test_refusal_does_not_advance() -> None:
    """Asked again and again, the same occurrence is refused; settled once, it is sent once."""
    world = left_unknown()
    world.crash()
    world.open_pass()
    assert [world.ask("B") for _ in range(3)] == [None] * 3
    assert world.history(world.refused[0].key).position == 0
    world.settle()
    sent = world.ask("B")
    assert isinstance(sent, Socket)
    world.deliver(sent)
    assert (world.sends, world.acceptances) == (3, 1)


# --- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nightly", "2026-11-30-a1b2c3", "a", "A.b_c-9", "x" * 128])
def test_usable_run_id_is_taken_as_it_is(name: str) -> None:
    """It is a path segment and a column; nothing is changed about it."""
    assert checked_run(name) == name


@pytest.mark.parametrize(
    "name", ["", "a/b", "..", ".hidden", "-x", "nächtlich", "x" * 129, "x" * 300, "a b", "a%2fb", "a\n"]
)
def test_unusable_run_id_is_named_with_its_remedy(name: str) -> None:
    """Slashes, unicode, length, what would be an option: one sentence."""
    with pytest.raises(BadRunError, match=r"The run id .* cannot be used.*Use 1 to 128"):
        checked_run(name)


def test_what_is_parked_stands_in_the_way_of_what_is_new() -> None:
    """Setting it aside said nothing about its effect."""
    world = left_unknown()
    world.crash()
    (unknown,) = (state for state in world.calls.values() if state.unresolved)
    world.past.step(unknown.call, "reconcile.decided:parked")
    world.open_pass()
    assert world.ask("B in other words") is None
    assert [state.call for state in world.refused] == [unknown.call]


def test_claim_of_a_closed_pass_is_never_sent() -> None:
    """It waited for its turn when the next start came; that one has it sent, once."""
    world = RunWorld(decide)
    world.open_pass()
    waiting = world.ask("A")
    assert isinstance(waiting, Socket)
    assert waiting.call is not None
    world.open_pass()
    world.finish(waiting.call)
    assert world.sends == 0
    again = world.ask("A")
    assert isinstance(again, Socket)
    world.deliver(again)
    assert world.sends == 1
