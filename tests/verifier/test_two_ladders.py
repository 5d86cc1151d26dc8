"""The verifier's ladder and the store's, written apart from one page: what one says of a call the other says too.

Here, and only here, the two meet. The store's events are encoded as it records them and read as the verifier reads them.
The verifier judges by the rules that a projection knows too: the table, attempt numbers, the marker and what a decision
succeeds. (What else a claim, a resumption, a delivery or an erasure must satisfy, the store checks as it writes.)
"""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ledger import codec, projection
from ledger.events import PROTOCOL, CallRequested, Event, ReconcileDecided, Recorded
from ledger.ids import NO_CHAIN, CallId
from ledger.ladder import NEXT, Evidence
from ledger.operations import Entry
from ledger.stages import Effect
from ledger.verifier import bundle, calls, fold, records, rules
from tests.harness.ledgers import (
    FIRST,
    NAMED,
    NOW_MS,
    OPENED,
    PATHS,
    REQUESTED,
    call_id,
    continuing,
    entry_for,
    witnessed,
)

EXAMPLES = 400
STEPS = 16  # enough for a decision, a recovery and the climb after it, wherever the walk began
GENERATIONS = (FIRST, call_id(2), call_id(3))
LADDER_RULES = {"events_follow_the_ladder", "attempts_belong_to_open_epochs", "decisions_stand_on_the_ledger"}
CHECKS = [check for check in rules.EVENT_CHECKS if check.name in LADDER_RULES]
# A pass that the call was given, or a delivery to one; the rules of passes are not the ladder's, so any number will do.
WITH_PASS = {"pass.served": ("number", (1, 2)), "call.delivered": ("pass_number", (None, 1, 2))}
WITH_STATUS = {"attempt.acknowledged": (200, 500), "attempt.observed": (200, 500, None)}


def read(recorded: bytes, link: str) -> records.Event:
    return records.event_of(bundle.parsed(recorded, "a record"), link, "a record")


def told(event: Event) -> records.Event:
    return read(codec.encode(1, NOW_MS, FIRST, 1, event), NO_CHAIN)


def test_tables_of_both_ladders_are_equal() -> None:
    """Every evidence, what may follow it, and where that leads."""
    steps = {name: calls.step_of(told(event)) for name, event in NAMED.items()}
    theirs = {
        evidence.value: {steps[name]: after.value if after else calls.STAY for name, after in row.items()}
        for evidence, row in NEXT.items()
    }
    assert theirs == calls.LADDER


@dataclass
class Both:
    """One history, folded by the verifier as it grows and projected by the store whenever asked."""

    protocol: str
    ledger: fold.Ledger = field(default_factory=lambda: fold.Ledger("ledger"))
    history: list[Recorded] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.append(Entry(None, None, replace(OPENED, protocol=self.protocol)))

    @property
    def chain(self) -> Any:
        return self.history[-1].chain if self.history else NO_CHAIN

    def states(self) -> dict[CallId, Any]:
        return projection.project(self.history, {})

    def append(self, entry: Entry) -> None:
        seq = len(self.history) + 1
        record = codec.encode(seq, NOW_MS, entry.call, entry.attempt, entry.event)
        link = codec.chained(self.chain, record)
        self.history.append(codec.decode(record, link))
        event = read(record, link)
        call = self.ledger.calls.get(event.call or "")
        wrong = [name for check in CHECKS if check.kinds is None or event.kind in check.kinds
                 for name in check.examine(self.ledger, event, call)]  # fmt: skip
        self.ledger.apply(event)
        if event.call and not rules.CORRUPTING.isdisjoint(wrong):
            self.ledger.calls[event.call].corrupt = True

    def take(self, step: "Step") -> None:
        """A walk to the step's evidence if its call is new, else the step's event, made to fit where it is not to be wrong."""
        generation = min(step.generation, len(self.ledger.calls))  # none comes before the one it continues
        call = GENERATIONS[generation]
        state = self.states().get(call)
        if state is None and step.legal:
            for name in PATHS[step.evidence]:
                self.write(name, call, generation, step)
            return
        row = sorted(NEXT[state.evidence if state else Evidence.NOTHING])
        orphan = state is None and generation > 0  # whether one supersedes is left open: it is corrupt either way
        names = row if row and (step.legal or orphan) else sorted(NAMED)
        self.write(names[step.choice % len(names)], call, generation, step)

    def write(self, name: str, call: CallId, generation: int, step: "Step") -> None:
        if name.startswith("reconcile.decided"):
            self.append(entry_for("reconcile.observed", call, self.states().get(call)))
        entry = entry_for(name, call, self.states().get(call))
        number = entry.attempt + step.shift if entry.attempt is not None else None
        self.append(
            Entry(call, max(number, 1) if number is not None else None, self.made(entry.event, step, generation))
        )

    def made(self, event: Event, step: "Step", generation: int) -> Event:
        changes: dict[str, Any] = {}
        if event.kind in WITH_STATUS:
            statuses = WITH_STATUS[event.kind]
            changes["status"] = statuses[step.status % len(statuses)]
        elif event.kind in WITH_PASS:
            name, numbers = WITH_PASS[event.kind]
            changes[name] = numbers[step.status % len(numbers)]
        elif event.kind == "attempt.interpreted":
            changes["effect"] = step.effect
        elif isinstance(event, ReconcileDecided):
            changes = {"head_seq": len(self.history), "head_chain": self.chain}
            changes["succeeds"] = 1 if step.shift else event.succeeds
        elif isinstance(event, CallRequested):
            return continuing(GENERATIONS[generation - 1], generation + 1) if generation else REQUESTED
        elif event.kind == "attempt.witnessed":
            return witnessed(generation=generation + 1)
        return replace(event, **changes)


@dataclass(frozen=True)
class Step:
    generation: int
    evidence: Evidence
    legal: bool
    choice: int
    shift: int  # of the attempt's number, or whether a decision names a wrong one
    status: int
    effect: Effect


STEP = st.builds(
    Step,
    generation=st.sampled_from((0, 0, 0, 0, 1, 1, 2)),
    evidence=st.sampled_from(sorted(PATHS)),
    legal=st.sampled_from((True,) * 9 + (False,)),
    choice=st.integers(0, 1 << 10),
    shift=st.sampled_from((0,) * 20 + (1, -1)),
    status=st.integers(0, 5),
    effect=st.sampled_from(Effect),
)


# A head of 200, then an observation that knows no status: the observation's rules.
SERVED = Step(0, Evidence.ACKNOWLEDGED, legal=True, choice=0, shift=0, status=2, effect=Effect.UNKNOWN)
UNSEEN = replace(SERVED, choice=sorted(NEXT[Evidence.ACKNOWLEDGED]).index("attempt.observed:partial"))
# Lost, continued by another call, and erased then: nothing but its bytes is gone.
GONE = replace(SERVED, evidence=Evidence.LOST)
CONTINUED = replace(GONE, generation=1, evidence=Evidence.MANIFEST)
ERASED = replace(GONE, choice=sorted(NEXT[Evidence.LOST]).index("body.erased"))


# Answered and delivered, then given to a pass: delivered to nobody yet; and what another pass takes does not count.
ANSWERED = replace(SERVED, evidence=Evidence.COMPLETED, effect=Effect.HAPPENED)
DELIVERED = replace(ANSWERED, choice=sorted(NEXT[Evidence.COMPLETED]).index("call.delivered"), status=0)
GIVEN = replace(DELIVERED, choice=sorted(NEXT[Evidence.COMPLETED]).index("pass.served"))


def stands(call: Any, risk: bool) -> tuple[Any, ...]:
    return str(call.stage), str(call.effect), str(call.next_operation), risk, call.superseded_by, call.served_pass


@pytest.mark.parametrize("protocol", [PROTOCOL, "send-and-hope/1"])
@settings(max_examples=EXAMPLES, deadline=None)
@example(steps=[SERVED, UNSEEN])
@example(steps=[GONE, CONTINUED, ERASED])
@example(steps=[GONE, ERASED])
@example(steps=[ANSWERED, DELIVERED, GIVEN, DELIVERED, replace(DELIVERED, status=1)])
@example(steps=[ANSWERED, GIVEN, replace(DELIVERED, status=1), replace(GIVEN, status=1)])
@given(steps=st.lists(STEP, max_size=STEPS))
def test_both_ladders_say_the_same_at_every_step(protocol: str, steps: list[Step]) -> None:
    """Stage, effect, next operation, duplicate risk, what superseded it, its pass and deliveries; or both say corruption."""
    both = Both(protocol)
    for step in steps:
        both.take(step)
        theirs = both.states()
        assert both.ledger.calls.keys() == theirs.keys()
        for call in both.ledger.calls.values():
            state = theirs[CallId(call.call_id)]
            if (call.stage, state.stage) == ("corruption", "corruption"):
                continue
            risk = call.row(alive=None)["duplicate_effect_risk"]
            assert stands(call, risk) == stands(state, state.duplicate_effect_risk)
            assert call.delivered == list(state.deliveries)
