"""Requests, retries, lost clients, kills, restarts and decisions in any order, against the provider's own receipts.

Hypothesis chooses the steps; real processes take them. What is allowed after each is a table in tests/harness/machine.py.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from ledger.events import Decision
from tests.harness.figures import noted
from tests.harness.machine import AFTER_DECISION, Fate, Intention, World, cut_off
from tests.harness.processes import Rig, chat, start_provider

HELD_ONCE: Final = "synthetic/hold=forever,times=1"  # whoever sends it a second time is served
MODELS: Final = (
    "synthetic",
    "synthetic/status=400,times=1",
    "synthetic/status=429,times=2",
    "synthetic/status=500,times=1",
    "synthetic/error_after=2,times=1",
    "synthetic/page=502,times=1",
    "synthetic/cut=2,times=2",
    "synthetic/clean_cut=2,times=1",
    "synthetic/reset=before,times=1",
)
# When a client goes -> the model that is slow enough for it, in which form, what it has read by then.
LEAVING: Final = {
    "before the head": ("synthetic/hold=0.3,times=1", (True, False), b""),
    "within the stream": ("synthetic/interval=0.1", (True,), b"receipt"),
}
ASKED: Final = tuple(fate for fate in Fate if fate is not Fate.HELD)  # who asks for a held body waits with it
# The client knows how its last request ended: one more is answered, not refused.
OPEN: Final = (Fate.WHOLE, Fate.ABSENT, Fate.SERVER_ERROR, Fate.SETTLED)
# A death matters to these; after it they are asked about anew.
ON_THE_WAY: Final = (Fate.HELD, Fate.LEFT, Fate.WHOLE, Fate.SETTLED)
DECIDABLE: Final = (Fate.UNRESOLVED, Fate.SERVED, Fate.SETTLED, Fate.PARKED)
Step = Callable[..., Any]
decisions: Final[st.SearchStrategy[Decision]] = st.sampled_from(list(AFTER_DECISION))
picks: Final = st.integers(0, 99)  # which of those that a rule applies to


def any_of(*fates: Fate, spent: bool = False) -> Callable[[Step], Step]:
    """The rule needs an intention that it applies to."""
    return precondition(lambda machine: bool(machine.some(*fates, spent=spent)))


class Machine(RuleBasedStateMachine):
    """One provider, one state dir, and the proxies that own it one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(prefix="sendonce-machine-")
        directory = Path(self.directory.name)
        self.rig = Rig(directory, start_provider(directory / "provider.jsonl"))
        self.rig.start()
        self.world = World(self.rig)

    def some(self, *fates: Fate, spent: bool = False) -> list[Intention]:
        return [each for each in self.world.of_fate(*fates) if each.spent is not None or not spent]

    def pick(self, number: int, *fates: Fate, spent: bool = False) -> Intention:
        some = self.some(*fates, spent=spent)
        return some[number % len(some)]

    def new(self, model: str, *, stream: bool, explicit: bool) -> Intention:
        text = f"intention {len(self.world.intentions)}"
        return self.world.new(chat(model, text, stream=stream), explicit=explicit)

    # --- clients ---------------------------------------------------------------------------------------------------

    @rule(model=st.sampled_from(MODELS), stream=st.booleans(), explicit=st.booleans())
    def asks(self, model: str, stream: bool, explicit: bool) -> None:
        self.world.ask(self.new(model, stream=stream, explicit=explicit))

    @any_of(*ASKED)
    @rule(number=picks)
    def asks_again(self, number: int) -> None:
        """Without a key, after an answer, it is another sample."""
        self.world.ask(self.pick(number, *ASKED))

    @any_of(*ASKED)
    @rule(number=picks)
    def retries(self, number: int) -> None:
        """Marked as the SDKs mark theirs."""
        self.world.ask(self.pick(number, *ASKED), again=True)

    @rule(stream=st.booleans(), explicit=st.booleans(), patient=st.booleans())
    def is_held(self, stream: bool, explicit: bool, patient: bool) -> None:
        """The provider has it and does not answer; a patient client stays, another goes."""
        intention = self.new(HELD_ONCE, stream=stream, explicit=explicit)
        intention.open = self.world.send(intention, receipt=True)
        intention.fate = Fate.HELD
        if not patient:
            self.world.let_go(intention)

    @rule(when=st.sampled_from(list(LEAVING)), stream=st.booleans(), explicit=st.booleans())
    def leaves(self, when: str, stream: bool, explicit: bool) -> None:
        """Its answer is on its way, and is read by the proxy alone."""
        model, forms, mark = LEAVING[when]
        intention = self.new(model, stream=stream if stream in forms else forms[0], explicit=explicit)
        cut_off(self.world.send(intention, receipt=True), mark)
        intention.fate = Fate.LEFT

    @any_of(Fate.UNRESOLVED)
    @rule(number=picks)
    def accepts(self, number: int) -> None:
        """`Sendonce-Accept` with the attempt that the refusal names."""
        self.world.accept(self.pick(number, Fate.UNRESOLVED))

    @any_of(*ASKED, spent=True)
    @rule(number=picks)
    def accepts_the_same_again(self, number: int) -> None:
        self.world.accept_again(self.pick(number, *ASKED, spent=True))

    # --- operators -------------------------------------------------------------------------------------------------

    @any_of(*DECIDABLE)
    @rule(number=picks, decision=decisions)
    def decides(self, number: int, decision: Decision) -> None:
        """About what nobody knows, or instead of what was decided before."""
        self.world.decide(self.pick(number, *DECIDABLE), decision)

    # --- processes -------------------------------------------------------------------------------------------------

    @any_of(*ON_THE_WAY)
    @rule(end=st.sampled_from([World.kill, World.stop]))
    def ends(self, end: Callable[[World], None]) -> None:
        """SIGKILL or SIGTERM, and the next process over the same state dir."""
        end(self.world)

    @rule(number=picks, first=st.booleans(), explicit=st.booleans(), receipt=st.booleans())
    def is_killed_within_a_request(self, number: int, first: bool, explicit: bool, receipt: bool) -> None:
        """At once, or as soon as the provider has a first one."""
        if first or not self.some(*OPEN):
            self._killed_within(self.new("synthetic", stream=number % 2 == 0, explicit=explicit), receipt=receipt)
        else:
            self._killed_within(self.pick(number, *OPEN), receipt=False)

    def _killed_within(self, intention: Intention, *, receipt: bool) -> None:
        connection = self.world.send(intention, receipt=receipt)
        intention.fate = Fate.INTERRUPTED
        self.world.kill()
        connection.close()

    # --- always ----------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_was_sent_that_nobody_permitted(self) -> None:
        self.world.check_receipts()

    def teardown(self) -> None:
        try:
            for intention in self.world.intentions:
                self.world.let_go(intention)
            assert self.rig.proxy_process is not None
            self.rig.close()
            self.world.check_receipts()
            self.world.check_records()
        finally:
            self.rig.close()
            self.directory.cleanup()


def drive(examples: int, steps: int) -> None:
    """No shrinking: a step takes a process's time, and the steps of a failure are few and printed with a blob."""
    began = time.monotonic()
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize="CI" in os.environ,
            database=None,
            print_blob=True,
            report_multiple_bugs=False,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
    noted(kind="state machine", examples=examples, steps=steps, seconds=round(time.monotonic() - began, 1))


def test_no_order_of_steps_sends_what_nobody_permitted() -> None:
    """A few short lives."""
    drive(examples=5, steps=20)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_long_order_of_steps_sends_what_nobody_permitted() -> None:
    """Many long ones."""
    drive(examples=60, steps=40)
