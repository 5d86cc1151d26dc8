"""Retry or second sample: the laws of semantics section 4, held against the real `decide` in any order of events.

Hypothesis chooses the steps, `claims_world` takes them, `claims_laws` judges. Each law is shown to be broken by a decision that
is wrong in one way.
"""

import os
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as Search
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ledger.events import Decision
from proxy.admission import decide
from proxy.decisions import Policy
from tests.harness.claims_laws import judged, sound
from tests.harness.claims_world import (
    ABANDONED,
    NOT_SENT,
    OUTCOMES,
    Decide,
    Intent,
    Phase,
    Try,
    World,
    accepted_attempt,
)
from tests.harness.wrong_decisions import WRONG

INTENTS: Final = 4  # more find nothing that four do not
TRIES: Final = 5  # of one intent
LATE_RETRY_MS: Final = (0, 10**6)
SETTINGS: Final = ("on_unknown", "after_server_error", "after_gateway_error", "after_cut_stream")
DECISIONS: Final[tuple[Decision, ...]] = ("served", "not_served", "accept_duplicate", "parked")
PHASES: Final = (Search.generate,)  # shrinking takes minutes, and the steps of a failure are few
Step = Callable[..., Any]
picks: Final = st.integers(0, 99)  # which of those that a rule applies to


# --- the steps ---------------------------------------------------------------------------------------------------------


def some(find: Callable[["Machine"], list[Any]]) -> Callable[[Step], Step]:
    """The rule needs one to apply to."""
    return precondition(lambda machine: bool(find(machine)))


def unanswered(machine: "Machine") -> list[Intent]:
    """Their client has left its last try, or was told that it failed."""
    return [
        intent for intent in machine.world.intents
        if not intent.satisfied and len(intent.asks) < TRIES
        and (intent.asks[-1].closed_at is not None or (intent.asks[-1].read and intent.asks[-1].written == "error"))
    ]  # fmt: skip


def tries(test: Callable[[Try], bool]) -> Callable[["Machine"], list[Any]]:
    return lambda machine: [each for each in machine.world.tries if test(each)]


def flying(*phases: Phase) -> Callable[["Machine"], list[Any]]:
    return lambda machine: [call for call, phase in machine.world.flights.items() if phase in phases]


def undecided(machine: "Machine") -> list[Any]:
    world = machine.world
    return [
        state for state in world.newest
        if state.call in world.ends and state.call not in world.flights and world.ends[state.call].setting is not None
    ]  # fmt: skip


def in_turn(machine: "Machine") -> list[Try]:
    """Who settles does so in the order of arrival."""
    waiting = [each for each in machine.world.tries if each.wait is not None]
    settling = [each for each in waiting if each.wait and each.wait.until == "settled"]
    return [*settling[:1], *(each for each in waiting if each not in settling)]


kept = tries(lambda each: each.read and each.closed_at is None)
closable = tries(
    lambda each: each.closed_at is None and (each.read or each.written != "good stream" or not each.arrived)
)
arriving = tries(lambda each: each.written is not None and not each.arrived and each.closed_at is None)
readable = tries(lambda each: each.arrived and not each.read and each.closed_at is None)
closing = tries(lambda each: each.closed_at is not None and not each.gone and not each.on_its_way)
overtaken = tries(lambda each: each.on_its_way)
unnoticed = tries(lambda each: each.gone and not each.over)


class Machine(RuleBasedStateMachine):
    """One key."""

    decide: Decide = staticmethod(decide)
    world: World

    def pick(self, find: Callable[["Machine"], list[Any]], number: int) -> Any:
        found = find(self)
        return found[number % len(found)]

    @initialize(
        accepted=st.sets(st.sampled_from(SETTINGS)), streams=st.booleans(), late_retry_ms=st.sampled_from(LATE_RETRY_MS)
    )
    def begins(self, accepted: set[str], streams: bool, late_retry_ms: int) -> None:
        policy = Policy(**dict.fromkeys(accepted, True) | dict.fromkeys(set(SETTINGS) - accepted, False))  # type: ignore[arg-type]
        self.world = World(type(self).decide, policy, streams, late_retry_ms, on_verdict=judged)

    # --- clients -------------------------------------------------------------------------------------------------------

    @precondition(lambda machine: len(machine.world.intents) < INTENTS)
    @rule(turned_away=st.integers(0, 9), slow=st.booleans())
    def wants_an_answer(self, turned_away: int, slow: bool) -> None:
        intent = Intent()
        self.world.intents.append(intent)
        if turned_away:
            self.world.ask(intent, marked=False, slow=slow)
        else:
            self.world.turn_away(intent)

    @some(overtaken)
    @rule(number=picks)
    def comes_late(self, number: int) -> None:
        self.world.come(self.pick(overtaken, number))

    @precondition(lambda machine: len(machine.world.intents) < INTENTS and bool(kept(machine)))
    @rule(number=picks)
    def wants_another_on_the_same_connection(self, number: int) -> None:
        before = self.pick(kept, number)
        self.world.intents.append(Intent())
        self.world.ask(self.world.intents[-1], marked=False, on=before)

    @some(unanswered)
    @rule(number=picks, marked=st.booleans(), kept=st.booleans())
    def retries(self, number: int, marked: bool, kept: bool) -> None:
        """`kept`: on the connection that its last try's error came on, if that is open."""
        intent = self.pick(unanswered, number)
        on = intent.asks[-1] if kept and intent.asks[-1].closed_at is None else None
        self.world.ask(intent, marked=marked, on=on)

    @precondition(lambda machine: bool(unanswered(machine) and undecided(machine)))
    @rule(number=picks, which=picks)
    def accepts(self, number: int, which: int) -> None:
        """`Sendonce-Accept` with the attempt of one that is unresolved."""
        attempt = accepted_attempt(self.pick(undecided, which))
        self.world.ask(self.pick(unanswered, number), marked=False, accepts=attempt)

    @some(closable)
    @rule(number=picks, reset=st.booleans())
    def closes(self, number: int, reset: bool) -> None:
        self.world.close(self.pick(closable, number), reset=reset)

    @some(readable)
    @rule(number=picks)
    def reads(self, number: int) -> None:
        self.world.read(self.pick(readable, number))

    # --- the network and the loop --------------------------------------------------------------------------------------

    @some(arriving)
    @rule(number=picks)
    def end_arrives(self, number: int) -> None:
        self.pick(arriving, number).arrived = True

    @some(closing)
    @rule(number=picks)
    def fin_arrives(self, number: int) -> None:
        self.pick(closing, number).gone = True

    @some(unnoticed)
    @rule(number=picks)
    def loop_notices(self, number: int) -> None:
        self.world.notice(self.pick(unnoticed, number))

    @precondition(lambda machine: bool(machine.world.undurable))
    @rule()
    def deliveries_are_written(self) -> None:
        self.world.catch_up()

    # --- the proxy -----------------------------------------------------------------------------------------------------

    @some(in_turn)
    @rule(number=picks)
    def has_waited(self, number: int) -> None:
        self.world.wait_is_over(self.pick(in_turn, number))

    @some(flying(Phase.CLAIMED, Phase.STARTED))
    @rule(number=picks, fails=st.integers(0, 5))
    def goes_on(self, number: int, fails: int) -> None:
        """Towards the provider; or nothing can be sent."""
        call = self.pick(flying(Phase.CLAIMED, Phase.STARTED), number)
        claimed = self.world.flights[call] is Phase.CLAIMED
        if fails == 0:
            self.world.observe(call, ABANDONED if claimed else NOT_SENT)
        elif claimed:
            self.world.start(call)
        else:
            self.world.send(call)

    @some(flying(Phase.SENT))
    @rule(number=picks, outcome=st.sampled_from([*OUTCOMES, *["good"] * 4]))
    def is_observed(self, number: int, outcome: str) -> None:
        self.world.observe(self.pick(flying(Phase.SENT), number), OUTCOMES[outcome])

    @some(flying(Phase.OBSERVED))
    @rule(number=picks)
    def is_concluded(self, number: int) -> None:
        self.world.conclude(self.pick(flying(Phase.OBSERVED), number))

    @some(flying(Phase.CLAIMED))
    @rule(number=picks)
    def all_goes_well(self, number: int) -> None:
        """The common life of a call in one step, or deep orders would be rare."""
        call = self.pick(flying(Phase.CLAIMED), number)
        self.world.start(call)
        self.world.send(call)
        self.world.observe(call, OUTCOMES["good"])
        self.world.conclude(call)
        for each in self.world.claimants(call):
            if each.closed_at is None:
                each.arrived = True
                self.world.read(each)

    @rule(how=st.integers(0, 4))
    def crashes(self, how: int) -> None:
        """Rarely, or nothing else would come to an end."""
        if how == 0:
            self.world.crash()

    @some(undecided)
    @rule(number=picks, decision=st.sampled_from(DECISIONS))
    def is_decided(self, number: int, decision: Decision) -> None:
        self.world.rule(self.pick(undecided, number), decision)

    @invariant()
    def laws_hold(self) -> None:
        sound(self.world)


def drive(machine: type[Machine], examples: int, steps: int, *, seeded: bool = False) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=seeded or "CI" in os.environ,
            database=None,
            print_blob=not seeded,
            report_multiple_bugs=False,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_no_order_of_events_breaks_a_law() -> None:
    """The same short lives on each run."""
    drive(Machine, examples=200, steps=40, seeded=True)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_wrong_decision_breaks_a_law(wrong: Decide) -> None:
    """So that the laws above say something."""
    machine = type("WrongMachine", (Machine,), {"decide": staticmethod(wrong)})
    with pytest.raises(AssertionError, match=WRONG[wrong]):
        drive(machine, examples=2000, steps=40, seeded=True)


@pytest.mark.parametrize(("samples_for_the_gone", "sends"), [(False, 1), (True, 2)])
def test_first_try_that_its_retry_overtook_is_sent_only_if_samples_are_made_for_nobody(
    samples_for_the_gone: bool, sends: int
) -> None:
    """The shortest order in which that matters: a verdict is not applied for a client that is known to have left."""
    world, intent = World(decide, Policy(), streams=False, late_retry_ms=0), Intent()
    world.samples_for_the_gone = samples_for_the_gone
    world.intents.append(intent)
    world.ask(intent, marked=False, slow=True)
    first_try = intent.asks[0]
    world.close(first_try, reset=False)
    world.ask(intent, marked=False)
    world.come(first_try)
    world.wait_is_over(first_try)
    for call in list(world.flights):
        world.start(call)
        world.send(call)
    assert len(world.sends) == sends


@pytest.mark.parametrize("outcome", [name for name in OUTCOMES if OUTCOMES[name].setting and OUTCOMES[name].concluding])
def test_retry_before_the_bookkeeping_of_its_error_is_done_waits_for_the_table(outcome: str) -> None:
    """The client has read that its first try failed, and asks again on the same connection while the call is still alive."""
    refusing = Policy(after_server_error=False)
    world, intent = World(decide, refusing, streams=False, late_retry_ms=0, on_verdict=judged), Intent()
    world.intents.append(intent)
    world.ask(intent, marked=False)
    (call,), first_try = world.flights, intent.asks[0]
    world.start(call)
    world.send(call)
    world.observe(call, OUTCOMES[outcome])
    first_try.arrived = True
    world.read(first_try)
    world.ask(intent, marked=False, on=first_try)
    retry = intent.asks[1]
    while retry.wait is not None:
        world.wait_is_over(retry)
    assert (retry.written, list(world.past.calls)) == ("error", [call])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_long_order_of_events_breaks_a_law() -> None:
    """Many long ones, others on each run."""
    drive(Machine, examples=5000, steps=80)
