"""The projection is pure and stable: from the cache, from all events, after a reopen, from a rebuilt index."""

import random
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import queries
from ledger.events import (
    PROTOCOL,
    AttemptAcknowledged,
    AttemptInterpreted,
    CallDelivered,
    CallRequested,
    Event,
    PassServed,
    Recorded,
    ServedBy,
)
from ledger.ids import NO_CHAIN, CallId, attempt_id
from ledger.ladder import NEXT, Evidence
from ledger.operations import Entry
from ledger.projection import project
from ledger.queries import rebuild_index
from ledger.reader import open_reader
from ledger.stages import Effect, NextOperation, Stage
from tests.harness.ledgers import (
    FIRST,
    KEY,
    NAMED,
    NOW_MS,
    OPERATOR,
    PATHS,
    REQUESTED,
    RUN,
    RUN_SCOPE,
    SCOPE,
    Ledger,
    call_id,
    continuing,
    ledger_in,
    observed,
)

CALLS_AT_MOST = 5
COMPLETION = (("attempt.retry_decided", 1), ("attempt.completed", 1), ("call.completed", None))


def served(number: int, disposition: ServedBy = "replayed") -> PassServed:
    return PassServed(RUN, number, disposition)


class Walker:
    """Does any of the things that the ladder and I3 allow next, as often as asked."""

    def __init__(self, ledger: Ledger, requested: CallRequested = REQUESTED) -> None:
        self.ledger, self.requested = ledger, requested
        self.calls: list[CallId] = []

    def choices(self) -> list[tuple[str, CallId]]:
        """Legal moves, in a fixed order: a step of a call, its continuation, a new occurrence, another start of the run."""
        found: list[tuple[str, CallId]] = []
        for call in self.calls:
            state = self.ledger.store.state(call)
            assert state is not None
            names = sorted(set(NEXT[state.evidence]) - ({"body.erased"} if not state.is_erasable else set()))
            if state.run is None:
                names = [name for name in names if name != "pass.served"]
            if state.superseded_by is None:
                found.append(("continue", call))
            else:
                names = [name for name in names if name != "attempt.started"]
            found += [(name, call) for name in names]
        if len(self.calls) < CALLS_AT_MOST:
            found.append(("occurrence", FIRST))
        return [*found, ("start", FIRST)]

    def do(self, move: str, call: CallId) -> None:
        store, new = self.ledger.store, call_id(len(self.calls) + 1)
        if move == "occurrence":
            number = 1 + max((row[3] for row in self.ledger.index()), default=0)
            self.ledger.claim(new, replace(self.requested, occurrence=number, evidence={"socket": "open"}))
        elif move == "continue":
            state = store.state(call)
            assert state is not None
            accepts = attempt_id(call, state.attempt.number) if state.attempt else None
            event = continuing(call, state.generation + 1, accepts_attempt=accepts, authority=OPERATOR)
            self.ledger.claim(new, replace(event, occurrence=state.occurrence, scope=state.scope))
        elif move == "start":
            self.ledger.open_pass()
            return
        else:
            self.ledger.step(move, call)
            return
        self.calls.append(new)


# Interpretations, heads and deliveries differ in what they prove, so a history draws those too.
VARIANTS: dict[str, list[Event]] = {
    "attempt.interpreted": [AttemptInterpreted(1, "read", effect) for effect in Effect],
    "attempt.acknowledged": [AttemptAcknowledged(status, (), {}) for status in (200, 500)],
    "attempt.observed:partial": [observed("partial", status=status) for status in (200, 500)],
    "call.delivered": [
        CallDelivered(how, "replayed", number) for how, number in (("fin", None), ("no", None), ("fin", 1), ("fin", 2))
    ],
}


def vary(ledger: Ledger, name: str, call: CallId, data: st.DataObject) -> bool:
    """Writes one of the event's variants instead of its plain form; False where it has none."""
    state = ledger.store.state(call)
    if name not in VARIANTS or state is None:
        return False
    event = data.draw(st.sampled_from(VARIANTS[name]))
    ledger.append(Entry(call, None if event.kind == "call.delivered" else len(state.attempts), event))
    return True


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_random_legal_history_projects_the_same_everywhere(data: st.DataObject) -> None:
    """Store's cache == all events folded == after a reopen; a dropped and rebuilt index has the same rows and answers."""
    with tempfile.TemporaryDirectory() as directory, ledger_in(Path(directory)) as ledger:
        ledger.open_pass()
        walker = Walker(ledger, replace(REQUESTED, scope=data.draw(st.sampled_from((SCOPE, RUN_SCOPE)))))
        for _ in range(data.draw(st.integers(1, 25))):
            move, call = data.draw(st.sampled_from(walker.choices()))
            if "reconcile.decided" in move and _settled(ledger, call):
                continue
            if move == "pass.served":
                ledger.append(Entry(call, None, served(ledger.newest_pass())))
            elif not vary(ledger, move, call, data):
                walker.do(move, call)
        cached = {call: ledger.store.state(call) for call in walker.calls}
        events, index, history = ledger.events(), (ledger.index(), ledger.passes()), _history(ledger)
        assert project(events, {}) == cached == project(tuple(events), {})
        ledger.reopen()
        assert {call: ledger.store.state(call) for call in walker.calls} == cached
        rebuild_index(ledger.store._db)
        assert ((ledger.index(), ledger.passes()), _history(ledger)) == (index, history)
        assert all(state is None or state.fault is None for state in cached.values())


def _settled(ledger: Ledger, call: CallId) -> bool:
    """A completed call with a proven effect: its row lists decisions, its effect forbids them."""
    state = ledger.store.state(call)
    settled = {Effect.ABSENT, Effect.HAPPENED}
    return state is not None and state.evidence is Evidence.COMPLETED and state.effect in settled


def _history(ledger: Ledger) -> list[tuple[str, ...]]:
    limit, execute = queries.NEWEST_OCCURRENCES, ledger.store._db.execute
    rows = [row for scope in (SCOPE, RUN_SCOPE) for row in execute(queries.HISTORY_OF_KEY, (scope, KEY, limit))]
    rows += execute(queries.HISTORY_IN_PASS, (RUN_SCOPE, KEY, limit, ledger.newest_pass()))
    return [tuple(row) for row in rows]


GIVEN: dict[str, tuple[list[Event], int | None, list[str]]] = {  # what happened, by which pass, delivered how to it
    "outside of runs": ([CallDelivered("fin", "forwarded")], None, ["fin"]),
    "to the pass that asked": ([served(1), CallDelivered("fin", "forwarded", 1)], 1, ["fin"]),
    "to an earlier pass": ([served(1), CallDelivered("fin", "forwarded", 1), served(2)], 2, []),
    "late, to an earlier pass": ([served(1), served(2, "attached"), CallDelivered("acked", "forwarded", 1)], 2, []),
    "to both": (
        [served(1), CallDelivered("fin", "forwarded", 1), served(2), CallDelivered("no", "replayed", 2)], 2, ["no"],
    ),
    "to the same pass again": ([served(1), CallDelivered("no", "forwarded", 1), served(1, "attached")], 1, ["no"]),
    "to nobody of the run": ([served(1), CallDelivered("fin", "forwarded")], 1, []),
}  # fmt: skip


@pytest.mark.parametrize("case", GIVEN)
def test_delivery_counts_for_the_newest_pass_alone(case: str) -> None:
    """Each start of a run gets every answer anew; what its predecessor's client still takes is no delivery to it."""
    steps, number, deliveries = GIVEN[case]
    answer = [*MINE, ("attempt.interpreted", 1), *((name, attempt) for name, attempt in COMPLETION)]
    events = [recorded(seq, name, attempt) for seq, (name, attempt) in enumerate(answer, 1)]
    events += [Recorded(90 + seq, NO_CHAIN, NOW_MS + seq, FIRST, None, event) for seq, event in enumerate(steps)]
    state = project(events, {1: PROTOCOL})[FIRST]
    assert (state.served_pass, list(state.deliveries)) == (number, deliveries)
    assert state.delivered is bool({"fin", "acked"} & set(deliveries))
    assert (state.delivered_at_ms is not None) is state.delivered
    assert (state.evidence, state.fault) == (Evidence.COMPLETED, None)


S, N = Stage, NextOperation
STAGES: dict[Evidence, tuple[Stage, Effect, NextOperation]] = {
    Evidence.REQUESTED: (S.REQUESTED, Effect.ABSENT, N.START_CALL),
    Evidence.PREPARATION_FAILED: (S.PREPARATION_FAILED, Effect.ABSENT, N.FIX_INPUTS),
    Evidence.MANIFEST: (S.MANIFEST_RECORDED, Effect.ABSENT, N.START_CALL),
    Evidence.ABANDONED: (S.MANIFEST_RECORDED, Effect.ABSENT, N.START_CALL),
    Evidence.STARTED: (S.EFFECT_UNKNOWN, Effect.UNKNOWN, N.RECONCILE_EFFECT),
    Evidence.ACKNOWLEDGED: (S.EFFECT_UNKNOWN, Effect.UNKNOWN, N.RECONCILE_EFFECT),
    Evidence.NOT_SENT: (S.NOT_SENT, Effect.ABSENT, N.START_NEXT_ATTEMPT),
    Evidence.LOST: (S.EFFECT_UNKNOWN, Effect.UNKNOWN, N.RECONCILE_EFFECT),
    Evidence.PARTIAL: (S.EFFECT_UNKNOWN, Effect.UNKNOWN, N.RECONCILE_EFFECT),
    Evidence.WITNESSED: (S.EFFECT_UNKNOWN, Effect.UNKNOWN, N.RECONCILE_EFFECT),
    Evidence.RESPONSE: (S.OBSERVED, Effect.UNKNOWN, N.REINTERPRET),
    Evidence.INTERPRETED: (S.INTERPRETED, Effect.UNKNOWN, N.REDECIDE),
    Evidence.RETRY_DECIDED: (S.INTERPRETED, Effect.UNKNOWN, N.FINALIZE),
    Evidence.ATTEMPT_COMPLETED: (S.ATTEMPT_COMPLETED, Effect.UNKNOWN, N.FINALIZE),
    Evidence.COMPLETED: (S.COMPLETED, Effect.UNKNOWN, N.RECONCILE_EFFECT),
    Evidence.SERVED: (S.CLOSED, Effect.HAPPENED, N.NONE),
    Evidence.NOT_SERVED: (S.SETTLED, Effect.ABSENT, N.START_CALL),
    Evidence.ACCEPTED: (S.SETTLED, Effect.UNKNOWN, N.START_CALL),
    Evidence.PARKED: (S.CLOSED, Effect.UNKNOWN, N.NONE),
    Evidence.ERASED: (S.CLOSED, Effect.HAPPENED, N.NONE),
}


@pytest.mark.parametrize("evidence", STAGES)
def test_evidence_projects_to_its_stage(evidence: Evidence, tmp_path: Path) -> None:
    """The table of semantics.md section 3, for answers whose status proves nothing."""
    with ledger_in(tmp_path) as ledger:
        state = ledger.walk(*PATHS[evidence])
        assert (state.stage, state.effect, state.next_operation) == STAGES[evidence]
        assert state.duplicate_effect_risk == (STAGES[evidence][2] is N.RECONCILE_EFFECT)


@pytest.mark.parametrize("event", [AttemptAcknowledged(204, (), {}), observed("partial")])
def test_success_head_without_a_whole_answer_is_effect_happened(event: Event, tmp_path: Path) -> None:
    """A 2xx head proves that the provider took it, whatever became of the answer."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest", "attempt.started")
        ledger.append(Entry(FIRST, 1, event))
        state = ledger.store.state(FIRST)
        assert state is not None
        assert (state.stage, state.effect) == (Stage.EFFECT_HAPPENED, Effect.HAPPENED)
        assert state.duplicate_effect_risk


def recorded(seq: int, name: str, attempt: int | None = None) -> Recorded:
    return Recorded(seq, NO_CHAIN, NOW_MS, FIRST, attempt, NAMED[name])


BROKEN: list[tuple[Recorded, ...]] = [
    (recorded(1, "call.manifest"),),
    (recorded(1, "attempt.observed:response", 1), recorded(2, "call.requested")),
    (recorded(1, "call.requested"), recorded(2, "call.requested")),
    (recorded(1, "call.requested"), recorded(2, "attempt.started", 1)),
    (recorded(1, "call.requested"), recorded(2, "call.manifest"), recorded(3, "attempt.started", 2)),
]


@pytest.mark.parametrize("events", BROKEN)
def test_history_the_ladder_forbids_projects_as_corruption(events: tuple[Recorded, ...]) -> None:
    """Reading never raises: what no writer could have written is unknown and a person's to inspect, for good."""
    for more in ((), (recorded(9, "call.delivered"), recorded(10, "call.manifest"))):
        state = project((*events, *more), {1: PROTOCOL})[FIRST]
        assert (state.stage, state.effect) == (Stage.CORRUPTION, Effect.UNKNOWN)
        assert (state.next_operation, state.duplicate_effect_risk) == (NextOperation.INSPECT, True)
        assert state.fault


async def test_history_of_a_hot_key_holds_the_open_and_the_newest(tmp_path: Path) -> None:
    """Delivered answers leave the admission's view after the newest few; what is open stays, however old."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest", "attempt.started")
        for occurrence in range(2, 14):
            call = call_id(occurrence)
            ledger.claim(call, replace(REQUESTED, occurrence=occurrence, evidence={"socket": "open"}))
            ledger.walk("call.manifest", "attempt.started", "attempt.observed:response", call=call)
            ledger.append(Entry(call, 1, AttemptInterpreted(1, "read", Effect.HAPPENED)))
            done = ledger.walk(
                "attempt.retry_decided", "attempt.completed", "call.completed", "call.delivered", call=call
            )
            assert done.finished
        async with open_reader(ledger.path) as reader:
            history = await reader.history(SCOPE, KEY)
        assert [state.occurrence for state in history.calls] == [1, *range(6, 14)]
        assert history.last_occurrence == 13
        assert history.head == ledger.store.key_head(SCOPE, KEY)


def test_order_of_other_calls_changes_no_state() -> None:
    """A call's state depends on its own occurrence alone, not on what stands between."""
    mine = [recorded(number, name, attempt) for number, (name, attempt) in enumerate(MINE)]
    other = [replace(each, call=call_id(2), event=_other(each.event)) for each in mine]
    alone = project(mine, {1: PROTOCOL})[FIRST]
    for seed in range(20):
        mixed, left, right = [], list(mine), list(other)
        chance = random.Random(seed)
        while left or right:
            side = left if left and (not right or chance.random() < 0.5) else right
            mixed.append(side.pop(0))
        assert project(mixed, {1: PROTOCOL})[FIRST] == alone


MINE = [("call.requested", None), ("call.manifest", None), ("attempt.started", 1), ("attempt.observed:response", 1)]


def _other(event: Event) -> Event:
    return replace(REQUESTED, occurrence=2) if event is REQUESTED else event
