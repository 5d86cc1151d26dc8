"""What an event keeps, and which calls may lose their bodies. (Stores, races and crashes: tests/contract/test_prune.py.)"""

from dataclasses import replace
from pathlib import Path

import pytest

from ledger.bodies import pack
from ledger.events import BodyErased, Event, Recorded
from ledger.ids import NO_CHAIN, Digest
from ledger.ladder import ATTEMPT_KINDS, Evidence
from ledger.operations import Entry
from ledger.queries import NEWEST_OCCURRENCES
from ledger.reader import open_reader
from ledger.retention import Page, kept_body
from ledger.stages import Effect, NextOperation, Stage
from tests.harness.histories import Past, completed, observed, one, steps_to
from tests.harness.ledgers import DIGEST, FIRST, KEY, NAMED, NOW_MS, PATHS, REQUESTED, SCOPE, call_id, ledger_in

KEEPING = {"call.manifest": "request"} | {name: "response" for name in NAMED if name.startswith("attempt.observed")}


def recorded(event: Event) -> Recorded:
    return Recorded(1, NO_CHAIN, NOW_MS, FIRST, 1, event)


@pytest.mark.parametrize("name", NAMED)
def test_events_that_carry_a_body_keep_it(name: str) -> None:
    """The request's, and every observation's, late ones too."""
    kept = kept_body(recorded(NAMED[name]))
    assert (kept and kept[0]) == KEEPING.get(name)
    assert kept is None or kept[1].digest == DIGEST


def test_body_that_was_only_counted_is_kept_by_nobody() -> None:
    """It has no bytes, so no tombstone is owed."""
    assert kept_body(recorded(observed("response", kept=False))) is None
    assert kept_body(recorded(observed("response"))) == ("response", observed("response").body)


# Behind a manifest, or behind an attempt that a receipt proves.
KEEP_A_BODY = set(PATHS) - {Evidence.NOTHING, Evidence.REQUESTED, Evidence.PREPARATION_FAILED}
ENDS = {
    Effect.HAPPENED: (Stage.CLOSED, NextOperation.NONE),
    Effect.ABSENT: (Stage.COMPLETED, NextOperation.START_CALL),
}


@pytest.mark.parametrize("effect", Effect)
def test_completed_call_is_erasable_where_its_effect_is_proven(effect: Effect) -> None:
    """Erased, a served one is closed and a refused one may still be tried again; the others' bodies are their evidence."""
    assert one(*completed(effect)).is_erasable is (effect in ENDS)
    erased = one(*completed(effect), "body.erased", "body.erased")
    if effect not in ENDS:
        assert erased.stage is Stage.CORRUPTION
        return
    assert (erased.stage, erased.next_operation, erased.effect) == (*ENDS[effect], effect)
    assert not erased.duplicate_effect_risk
    assert erased.is_erasable  # an observation that comes late brings a body too


@pytest.mark.parametrize("effect", Effect)
def test_superseded_completed_call_is_erasable_whatever_its_effect(effect: Effect) -> None:
    """Another call carries it on; what it was stays on record."""
    past = Past()
    first = past.call(*completed(effect))
    past.call("call.manifest", generation=2, continues=first, why_new="decision")
    past.step(first, "body.erased")
    state = past.calls[first]
    assert (state.stage, state.effect, state.evidence) == (Stage.SUPERSEDED, effect, Evidence.ERASED)


@pytest.mark.parametrize("evidence", sorted(set(PATHS) - {Evidence.COMPLETED, Evidence.ERASED, Evidence.NOTHING}))
def test_call_that_is_not_completed_is_not_erasable(evidence: Evidence) -> None:
    """Unresolved, settled by a decision, or not sent yet: a tombstone contradicts the record."""
    past = Past()
    call = past.call(*steps_to(evidence))
    assert not past.calls[call].is_erasable
    past.step(call, "body.erased")
    assert past.calls[call].stage is Stage.CORRUPTION


@pytest.mark.parametrize("evidence", sorted(KEEP_A_BODY - {Evidence.COMPLETED, Evidence.ERASED}))
def test_superseded_call_is_erasable_whatever_its_evidence(evidence: Evidence) -> None:
    """Nothing can be decided about it any more; erased, it is what it was."""
    past = Past()
    call = past.call(*steps_to(evidence))
    past.call("call.manifest", generation=2, continues=call, why_new="decision")
    before = past.calls[call]
    assert before.is_erasable
    past.step(call, "body.erased")
    past.step(call, "body.erased")
    erased = past.calls[call]
    assert (erased.stage, erased.effect, erased.evidence) == (Stage.SUPERSEDED, before.effect, evidence)
    assert (before.erased, erased.erased, erased.is_erasable) == (False, True, True)


@pytest.mark.parametrize("evidence", [Evidence.REQUESTED, Evidence.PREPARATION_FAILED])
def test_call_that_never_had_a_body_gets_no_tombstone(evidence: Evidence) -> None:
    """Superseded or not: there is nothing that it could name."""
    past = Past()
    call = past.call(*steps_to(evidence))
    past.call("call.manifest", generation=2, continues=call)
    past.step(call, "body.erased")
    assert past.calls[call].stage is Stage.CORRUPTION


def test_delivered_erased_answer_is_finished() -> None:
    """So that a hot key stays cheap: the index leaves it out, as it left it out before."""
    assert one(*completed(Effect.HAPPENED), "body.erased", "call.delivered").finished
    assert not one(*completed(Effect.HAPPENED), "body.erased").finished
    assert not one(*completed(Effect.ABSENT), "body.erased", "call.delivered").finished


def test_page_becomes_one_append_with_a_tombstone_for_each_body() -> None:
    """Why and by whom stands in each; a body that others keep is in no erasure."""
    shared, own = pack(b"shared"), pack(b"own")
    tombstones = (
        (FIRST, "request", shared.digest),
        (FIRST, "response", own.digest),
        (call_id(2), "request", shared.digest),
    )
    page = Page(tombstones, ((own.digest, own.size),), (), 2, call_id(2), 7)
    assert (page.calls, page.shared, page.erased.bodies, page.erased.body_bytes) == (2, {shared.digest}, 1, 3)
    op = page.append("asked", "ada")
    assert [entry.event for entry in op.entries] == [
        BodyErased(Digest(digest), which, "asked", "ada")  # type: ignore[arg-type]
        for _, which, digest in tombstones
    ]
    assert op.erasure is not None
    assert (op.erasure.counted_through, op.erasure.bodies, op.erasure.chunks) == (7, (own.digest,), ())


async def test_erasing_old_answers_hides_no_new_one_of_their_key(tmp_path: Path) -> None:
    """A tombstone is the newest event of an old call; the answer that a late retry asks for is still looked at."""
    calls = [call_id(occurrence) for occurrence in range(1, 21)]
    with ledger_in(tmp_path) as ledger:
        for occurrence, call in enumerate(calls, 1):
            ledger.claim(call, replace(REQUESTED, occurrence=occurrence, evidence={"socket": "open"}))
            for step in completed(Effect.HAPPENED):
                event = NAMED[step] if isinstance(step, str) else step
                ledger.append(Entry(call, 1 if event.kind in ATTEMPT_KINDS else None, event))
            ledger.step("call.delivered", call)
        for call in calls[:-1]:
            ledger.append(Entry(call, None, NAMED["body.erased"]))
        async with open_reader(ledger.path) as reader:
            history = await reader.history(SCOPE, KEY)
        assert calls[-1] in {state.call for state in history.calls}
        assert len(history.calls) <= 2 * NEWEST_OCCURRENCES
