"""I3 at the store: no second effect without a recorded acceptance, no second sample without evidence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledger.errors import ClaimLostError, ConflictError, IllegalTransitionError
from ledger.events import AttemptInterpreted, AttemptStarted, CallRequested
from ledger.ids import Head, Key, Scope, attempt_id
from ledger.ladder import Evidence
from ledger.operations import Append, Entry, Expect
from ledger.stages import Effect, Stage
from tests.harness.ledgers import (
    FIRST,
    KEY,
    MANIFEST,
    OPERATOR,
    PATHS,
    REQUESTED,
    SCOPE,
    Ledger,
    call_id,
    continuing,
    decided,
    ledger_in,
    witnessed,
)

SECOND, THIRD = call_id(2), call_id(3)
ACCEPTED: dict[str, Any] = {"accepts_attempt": attempt_id(FIRST, 1), "authority": OPERATOR, "why_new": "decision"}
SAMPLE = replace(REQUESTED, occurrence=2, why_new="second_sample", evidence={"socket": "open"})


def completed(ledger: Ledger, effect: Effect) -> None:
    ledger.walk(*PATHS[Evidence.RESPONSE])
    ledger.append(Entry(FIRST, 1, AttemptInterpreted(1, "read", effect)))
    ledger.walk("attempt.retry_decided", "attempt.completed", "call.completed")


def refused(ledger: Ledger, event: CallRequested, words: str) -> None:
    """The claim is refused for this reason, and nothing changed."""
    before = ledger.snapshot()
    with pytest.raises(IllegalTransitionError, match=words):
        ledger.claim(SECOND, event)
    assert ledger.snapshot() == before


E = Evidence
ABSENT = {E.REQUESTED, E.PREPARATION_FAILED, E.MANIFEST, E.ABANDONED, E.NOT_SENT, E.NOT_SERVED}


@pytest.mark.parametrize("evidence", [each for each in Evidence if each not in {*ABSENT, E.NOTHING}])
def test_next_generation_of_an_open_effect_needs_an_acceptance(evidence: Evidence, tmp_path: Path) -> None:
    """Each rung above `started` whose effect is not proven absent: refused without, allowed with."""
    with ledger_in(tmp_path) as ledger:
        assert ledger.walk(*PATHS[evidence]).effect is not Effect.ABSENT
        refused(ledger, continuing(FIRST), "nobody accepted")
        refused(ledger, continuing(FIRST, accepts_attempt=attempt_id(FIRST, 1)), "nobody accepted")
        refused(ledger, continuing(FIRST, authority=OPERATOR), "nobody accepted")
        refused(ledger, continuing(FIRST, accepts_attempt=attempt_id(FIRST, 2), authority=OPERATOR), "nobody accepted")
        ledger.claim(SECOND, continuing(FIRST, **ACCEPTED))
        state = ledger.store.state(FIRST)
        assert state is not None
        assert (state.stage, state.superseded_by) == (Stage.SUPERSEDED, SECOND)


@pytest.mark.parametrize("effect", [Effect.ANSWERED, Effect.UNKNOWN, Effect.HAPPENED])
def test_next_generation_of_a_completed_call_needs_an_acceptance(effect: Effect, tmp_path: Path) -> None:
    """A completed call, by the effect that was read from its answer."""
    with ledger_in(tmp_path) as ledger:
        completed(ledger, effect)
        refused(ledger, continuing(FIRST), f"effect of {FIRST} is {effect}")
        ledger.claim(SECOND, continuing(FIRST, **ACCEPTED))


@pytest.mark.parametrize("evidence", sorted(ABSENT))
def test_next_generation_of_an_absent_effect_needs_none(evidence: Evidence, tmp_path: Path) -> None:
    """Proven absent, or decided so: the same key goes on."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk(*PATHS[evidence])
        ledger.claim(SECOND, continuing(FIRST))


WRONG_IDENTITY: list[tuple[CallRequested, str]] = [
    (continuing(FIRST, generation=3), "another key"),
    (replace(continuing(FIRST), occurrence=2), "another key"),
    (continuing(call_id(9)), "not the newest"),
    (replace(REQUESTED, generation=2), "must name the call it continues"),
    (REQUESTED, "occurrence 1 is not new"),
    (replace(SAMPLE, evidence={}), "must carry the evidence"),
    (replace(SAMPLE, occurrence=3), "occurrence 3 is not new"),
    (replace(SAMPLE, occurrence=0), "occurrence 0 is not new"),
]


@pytest.mark.parametrize(("event", "words"), WRONG_IDENTITY)
def test_claim_of_a_wrong_identity_is_refused(event: CallRequested, words: str, tmp_path: Path) -> None:
    """Occurrences and generations count from 1; taken ones, gaps and unnamed predecessors are refused."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest")
        refused(ledger, event, words)


def test_second_occurrence_with_evidence_is_claimed(tmp_path: Path) -> None:
    """A deliberate second sample starts beside an unknown first one."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest", "attempt.started")
        ledger.claim(SECOND, SAMPLE)
        assert ledger.walk("call.manifest", "attempt.started", call=SECOND).effect is Effect.UNKNOWN


def test_claim_of_a_superseded_call_is_refused(tmp_path: Path) -> None:
    """Two cannot continue the same call, cached or read again."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest")
        ledger.claim(SECOND, continuing(FIRST))
        for _ in range(2):
            with pytest.raises(IllegalTransitionError, match="not the newest"):
                ledger.claim(THIRD, continuing(FIRST))
            ledger.reopen()


def test_two_claims_in_one_operation_are_refused(tmp_path: Path) -> None:
    """The rule sees what its own operation is about to write."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest")
        for event in (continuing(FIRST), SAMPLE):
            before = ledger.snapshot()
            with pytest.raises(IllegalTransitionError):
                ledger.claim(SECOND, event, Entry(THIRD, None, event))
            assert ledger.snapshot() == before


def test_decision_and_claim_in_one_operation_supersede(tmp_path: Path) -> None:
    """A decision and the claim that rests on it may be one operation; cached and projected state agree after it."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest", "attempt.started")
        expect = Expect(SCOPE, KEY, ledger.store.key_head(SCOPE, KEY))
        ledger.append(
            Entry(FIRST, None, decided("not_served")), Entry(SECOND, None, continuing(FIRST)), expects=(expect,)
        )
        cached = ledger.store.state(FIRST)
        ledger.reopen()
        assert cached == ledger.store.state(FIRST)
        assert cached is not None
        assert cached.superseded_by == SECOND


@pytest.mark.parametrize(
    "expects", [(), (Expect(SCOPE, Key("another"), None),), (Expect(Scope("another"), KEY, None),)]
)
def test_claim_without_its_keys_head_is_refused(expects: tuple[Expect, ...], tmp_path: Path) -> None:
    """A claim rests on the head of its own key, not of none and not of another."""
    with ledger_in(tmp_path) as ledger:
        before = ledger.snapshot()
        with pytest.raises(IllegalTransitionError, match="must name the head"):
            ledger.apply(Append((Entry(FIRST, None, REQUESTED),), expects))
        assert ledger.snapshot() == before


def test_claim_on_an_older_head_is_a_conflict(tmp_path: Path) -> None:
    """Two appends that read the same head: the second one is told to read again."""
    with ledger_in(tmp_path) as ledger:
        ledger.claim()
        before = ledger.snapshot()
        for head in (None, Head(ledger.store.head.seq, ledger.events()[0].chain)):
            with pytest.raises(ConflictError):
                ledger.apply(Append((Entry(SECOND, None, SAMPLE),), (Expect(SCOPE, KEY, head),)))
        assert ledger.snapshot() == before


@pytest.mark.parametrize("reopened", [False, True])
def test_superseded_call_cannot_start(reopened: bool, tmp_path: Path) -> None:
    """The forwarder that lost its claim sends nothing, also where the store has to read the state again."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest")
        ledger.claim(SECOND, continuing(FIRST), Entry(SECOND, None, MANIFEST))
        if reopened:
            ledger.reopen()
        before = ledger.snapshot()
        with pytest.raises(ClaimLostError, match=SECOND):
            ledger.append(Entry(FIRST, 1, AttemptStarted(1)))
        assert ledger.snapshot() == before
        assert ledger.walk("attempt.started", call=SECOND).effect is Effect.UNKNOWN


@pytest.mark.parametrize("reopened", [False, True])
def test_witnessed_generation_supersedes_the_one_before(reopened: bool, tmp_path: Path) -> None:
    """A lost second generation was sent: the first, which a backup still holds, can neither start nor be continued."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest")
        ledger.append(Entry(SECOND, 1, witnessed(generation=2)))
        if reopened:
            ledger.reopen()
        before = ledger.snapshot()
        with pytest.raises(ClaimLostError, match=SECOND):
            ledger.append(Entry(FIRST, 1, AttemptStarted(1)))
        with pytest.raises(IllegalTransitionError, match="not the newest"):
            ledger.claim(THIRD, continuing(FIRST))
        assert ledger.snapshot() == before


def test_witnessed_call_beside_one_of_its_identity_keeps_both(tmp_path: Path) -> None:
    """A receipt may name an identity that was used again after a restore; neither call may vanish from its key."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest")
        ledger.append(Entry(SECOND, 1, witnessed()))
        assert [row[0] for row in ledger.index()] == [FIRST, SECOND]


def test_unmarked_epoch_proves_nothing(tmp_path: Path) -> None:
    """Without the protocol marker a call without attempts may have been sent: it cannot start or be continued."""
    with ledger_in(tmp_path) as ledger:
        ledger.claim(FIRST, replace(REQUESTED, epoch=7), Entry(FIRST, None, MANIFEST))
        state = ledger.store.state(FIRST)
        assert state is not None
        assert (state.stage, state.effect) == (Stage.EFFECT_UNKNOWN, Effect.UNKNOWN)
        with pytest.raises(ClaimLostError):
            ledger.append(Entry(FIRST, 1, AttemptStarted(7)))
        refused(ledger, continuing(FIRST), "only a person")
