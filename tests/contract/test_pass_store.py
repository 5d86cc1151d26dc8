"""What any store owes to runs: one winner of two starts, nothing given but by the newest pass, and only the run's own calls."""

from dataclasses import replace
from pathlib import Path

import pytest

from ledger.errors import ConflictError, IllegalTransitionError
from ledger.events import PassOpened, PassServed
from ledger.ids import NO_CHAIN, Key, Scope
from ledger.operations import Append, Entry
from tests.harness.ledgers import FIRST, MANIFEST, NOW_MS, REQUESTED, RUN, RUN_SCOPE, SCOPE, call_id, ledger_in


def opening(number: int, run: str = RUN) -> Append:
    return Append((Entry(None, None, PassOpened(run, number, "d" * 64, "refuse", 0, NO_CHAIN, {})),))


def test_two_openings_at_once_give_one_winner(tmp_path: Path) -> None:
    """In one batch, as two starts of a run are: the second has to name what it closes, and another run is nobody's business."""
    with ledger_in(tmp_path) as ledger:
        ledger.store.begin()
        ledger.store.append(opening(1), NOW_MS)
        with pytest.raises(ConflictError, match="another start of the run nightly was first"):
            ledger.store.append(opening(1), NOW_MS)
        ledger.store.append(opening(1, "weekly"), NOW_MS)
        ledger.store.append(opening(2), NOW_MS)
        ledger.store.commit()
        assert [row[:2] for row in ledger.passes()] == [(RUN, 1), (RUN, 2), ("weekly", 1)]
        assert [row[2] for row in ledger.passes()] == [2, 4, 3]


@pytest.mark.parametrize("number", [0, 2, 3])
def test_opening_that_skips_a_pass_changes_nothing(number: int, tmp_path: Path) -> None:
    """Numbers count from 1 without gaps, also for the first one."""
    with ledger_in(tmp_path) as ledger:
        before = ledger.snapshot()
        with pytest.raises(ConflictError):
            ledger.apply(opening(number))
        assert ledger.snapshot() == before


@pytest.mark.parametrize("number", [1, 3])
def test_pass_that_is_not_the_newest_gives_nothing(number: int, tmp_path: Path) -> None:
    """Neither one that was closed, nor one that was never opened; a claim goes with the pass that it ends with."""
    with ledger_in(tmp_path, RUN_SCOPE) as ledger:
        ledger.open_pass()
        ledger.open_pass()
        ledger.walk("call.requested", "call.manifest")
        before = ledger.snapshot()
        served, claimed = PassServed(RUN, number, "forwarded"), replace(REQUESTED, scope=RUN_SCOPE, key=Key("another"))
        with pytest.raises(ConflictError, match="is not its newest"):
            ledger.append(Entry(FIRST, None, served))
        with pytest.raises(ConflictError, match="is not its newest"):
            ledger.claim(call_id(2), claimed, Entry(call_id(2), None, MANIFEST), Entry(call_id(2), None, served))
        assert ledger.snapshot() == before


@pytest.mark.parametrize("scope", [SCOPE, Scope("openai/caller"), Scope("openai/caller/weekly")])
def test_pass_gives_no_call_of_another_run(scope: Scope, tmp_path: Path) -> None:
    """Keys are compared inside one scope, and a run is a part of it."""
    with ledger_in(tmp_path, scope) as ledger:
        ledger.open_pass()
        ledger.walk("call.requested", "call.manifest")
        before = ledger.snapshot()
        with pytest.raises(IllegalTransitionError, match="is no call of the run nightly"):
            ledger.append(Entry(FIRST, None, PassServed(RUN, 1, "attached")))
        assert ledger.snapshot() == before
