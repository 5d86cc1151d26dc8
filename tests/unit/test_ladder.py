"""The ladder, exhaustively, at the real store: what the table lists is written, everything else changes nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from ledger.errors import ClaimLostError, IllegalTransitionError
from ledger.events import AttemptInterpreted, Event
from ledger.ladder import ATTEMPT_KINDS, IN_FLIGHT, NEXT, Evidence, name_of
from ledger.operations import Entry
from ledger.stages import Effect
from tests.harness.ledgers import FIRST, NAMED, PATHS, RUN_SCOPE, decided, entry_for, ledger_in, observed, witnessed

NAMES = sorted(NAMED)
LEGAL = [(evidence, name) for evidence in Evidence for name in NEXT[evidence]]
COMPLETION = ("attempt.retry_decided", "attempt.completed", "call.completed")


def test_table_names_are_those_of_events() -> None:
    """A name no event has would be a rule that never applies."""
    assert {name for row in NEXT.values() for name in row} == set(NAMED)
    assert all(name_of(event) == name for name, event in NAMED.items())


def test_every_evidence_has_a_row_and_is_reached() -> None:
    """No rung hangs in the air, and none lacks its rules."""
    assert set(NEXT) == set(Evidence) == set(PATHS)


@pytest.mark.parametrize("evidence", Evidence)
def test_illegal_event_raises_and_changes_nothing(evidence: Evidence, tmp_path: Path) -> None:
    """Every event that the row does not list: refused, with events, bodies, index and head as they were."""
    with ledger_in(tmp_path, RUN_SCOPE) as ledger:
        ledger.open_pass()
        for name in PATHS[evidence]:
            ledger.step(name)
        before, state = ledger.snapshot(), ledger.store.state(FIRST)
        for name in set(NAMES) - set(NEXT[evidence]):
            # A start that came too late is a lost claim: the forwarder decides again.
            expected = ClaimLostError if name == "attempt.started" else IllegalTransitionError
            with pytest.raises(expected):
                ledger.step(name)
            assert (ledger.snapshot(), ledger.store.state(FIRST)) == (before, state), name
        ledger.reopen()
        assert (ledger.snapshot(), ledger.store.state(FIRST)) == (before, state)


@pytest.mark.parametrize("evidence", Evidence)
def test_legal_event_leads_where_the_table_says(evidence: Evidence, tmp_path: Path) -> None:
    """Each listed pair is written, and the evidence after it is the table's."""
    for number, (name, after) in enumerate(NEXT[evidence].items()):
        directory = tmp_path / str(number)
        directory.mkdir()
        with ledger_in(directory, RUN_SCOPE) as ledger:
            for step in PATHS[evidence]:
                ledger.step(step)
            ledger.step(name)
            state = ledger.store.state(FIRST)
            assert state is not None
            assert state.evidence is (after or evidence), name


@pytest.mark.parametrize(("evidence", "name"), [pair for pair in LEGAL if NAMED[pair[1]].kind in ATTEMPT_KINDS])
def test_wrong_attempt_number_is_refused(evidence: Evidence, name: str, tmp_path: Path) -> None:
    """Attempts count from 1 without gaps, and only the newest is written about."""
    with ledger_in(tmp_path) as ledger:
        for step in PATHS[evidence]:
            ledger.step(step)
        before, right = ledger.snapshot(), entry_for(name, FIRST, ledger.store.state(FIRST))
        assert right.attempt is not None
        # A witnessed attempt may lie beyond the next one: what is between was lost with the tail.
        wrong = {None, 0, right.attempt - 1, right.attempt + 1} - (
            {right.attempt + 1} if "witnessed" in name else set()
        )
        for number in wrong:
            with pytest.raises((IllegalTransitionError, ClaimLostError), match="attempt"):
                ledger.append(replace(right, attempt=number))
        assert ledger.snapshot() == before


@pytest.mark.parametrize("succeeds", [None, 1, 99])
def test_stale_decision_is_refused(succeeds: int | None, tmp_path: Path) -> None:
    """A decision names the one it succeeds; one taken on an older view changes nothing."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest", "attempt.started", "reconcile.decided:parked")
        before = ledger.snapshot()
        with pytest.raises(IllegalTransitionError, match="succeeds"):
            ledger.append(Entry(FIRST, None, decided("not_served", succeeds)))
        assert ledger.snapshot() == before
        assert ledger.walk("reconcile.decided:not_served").evidence is Evidence.NOT_SERVED


@pytest.mark.parametrize("effect", Effect)
def test_decision_on_a_settled_completed_call_is_refused(effect: Effect, tmp_path: Path) -> None:
    """Only a completed call whose effect is open leaves something to decide."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk(*PATHS[Evidence.RESPONSE])
        ledger.append(Entry(FIRST, 1, AttemptInterpreted(1, "read", effect)))
        ledger.walk(*COMPLETION)
        before = ledger.snapshot()
        if effect in {Effect.UNKNOWN, Effect.ANSWERED}:
            assert ledger.walk("reconcile.decided:served").evidence is Evidence.SERVED
            return
        with pytest.raises(IllegalTransitionError, match="nothing to decide"):
            ledger.append(Entry(FIRST, None, decided("not_served")))
        assert ledger.snapshot() == before


@pytest.mark.parametrize("evidence", [row for row in Evidence if "body.erased" in NEXT[row]])
def test_erasure_of_a_call_that_nothing_continues_is_refused(evidence: Evidence, tmp_path: Path) -> None:
    """Its bodies are its evidence, unless its answer proves what became of it."""
    with ledger_in(tmp_path) as ledger:
        for name in PATHS[evidence]:
            ledger.step(name)
        before, tombstone = ledger.snapshot(), Entry(FIRST, None, NAMED["body.erased"])
        if evidence is Evidence.ERASED:
            assert ledger.append(tombstone).recorded
            return
        with pytest.raises(IllegalTransitionError, match="nothing continues it"):
            ledger.append(tombstone)
        assert ledger.snapshot() == before


@pytest.mark.parametrize("evidence", [Evidence.MANIFEST, Evidence.NOT_SENT])
def test_attempt_of_an_erased_call_never_starts(evidence: Evidence, tmp_path: Path) -> None:
    """Only a superseded one is erased so early: whoever still holds its claim has lost it, and sends nothing."""
    with ledger_in(tmp_path) as ledger:
        erased = ledger.walk(*PATHS[evidence], "body.erased")
        before = ledger.snapshot()
        with pytest.raises(ClaimLostError, match="was continued by"):
            ledger.append(Entry(FIRST, len(erased.attempts) + 1, NAMED["attempt.started"]))
        assert ledger.snapshot() == before


@pytest.mark.parametrize("evidence", sorted(IN_FLIGHT))
def test_attempt_of_an_erased_call_is_not_in_flight(evidence: Evidence, tmp_path: Path) -> None:
    """So no start salvages an answer for it, nor judges it not sent: what it left stays as it is."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk(*PATHS[evidence])
        assert [state.call for state in ledger.store.in_flight(1)] == [FIRST]
        ledger.walk("body.erased")
        assert ledger.store.in_flight(1) == ()


LATER_ATTEMPT = [
    ("a second attempt after proof", "attempt.observed:not_sent", Entry(FIRST, 2, NAMED["attempt.started"])),
    ("a lost second attempt", "attempt.observed:not_sent", Entry(FIRST, 3, witnessed())),
    ("a backup from before the second attempt", None, Entry(FIRST, 2, witnessed())),
]


@pytest.mark.parametrize(("_why", "last", "entry"), LATER_ATTEMPT)
def test_later_attempt_is_entered(_why: str, last: str | None, entry: Entry, tmp_path: Path) -> None:
    """Attempts after the first, by their own start or by their receipt, make the effect unknown again."""
    with ledger_in(tmp_path) as ledger:
        ledger.walk("call.requested", "call.manifest", "attempt.started", *([last] if last else []))
        ledger.append(entry)
        state = ledger.store.state(FIRST)
        assert state is not None
        assert [attempt.number for attempt in state.attempts] == [1, entry.attempt]
        assert state.effect is Effect.UNKNOWN


SOURCES: list[tuple[Event, str]] = [
    (observed("response", "salvage"), "attempt.observed:response"),
    (observed("partial", "late"), "attempt.observed:late"),
    (observed("lost", "recovered"), "attempt.observed:recovered"),
]


@pytest.mark.parametrize(("event", "name"), SOURCES)
def test_source_of_an_observation_names_its_branch(event: Event, name: str) -> None:
    """A late or recovered observation is another event to the table than a live one of the same kind."""
    assert name_of(event) == name
