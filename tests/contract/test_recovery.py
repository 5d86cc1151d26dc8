"""Starting after a crash: real processes die at named points, then a start says what could have happened."""

import shutil
from pathlib import Path

import pytest

from ledger.codec import digest_of
from ledger.events import AttemptObserved
from ledger.ids import attempt_id
from ledger.ladder import Evidence
from ledger.projection import CallState
from ledger.recovery import Acceptance
from ledger.spool import Judged
from ledger.stages import Effect, Stage
from tests.harness.ledger_child import SPOOL_BODY, SPOOL_HEAD
from tests.harness.ledgers import (
    call_id,
    run_child,
    started,
    state_dir_in,
    stored_body,
)
from tests.harness.segments import content, put
from tests.harness.starts import KILLED, STATE_DIR, WITNESSES_DISAGREE, crash, kinds, refused, state_after_start, tidy

FIRST, SECOND, THIRD = call_id(1), call_id(2), call_id(3)
EPOCH_CHANGE = ["epoch.closed", "epoch.opened"]


# --- what a crash leaves of an attempt --------------------------------------------------------------------------------

CRASHES: list[tuple[str, Evidence, list[str]]] = [
    ("before-commit=kill@2", Evidence.MANIFEST, []),  # the start was never durable
    ("after-commit=kill@2", Evidence.NOT_SENT, ["attempt.observed"]),  # durable, but without its receipt no byte left
    ("before-receipt-sync=kill", Evidence.STARTED, []),  # the line is there, so nothing is proven
    ("after-sent-receipt=kill", Evidence.STARTED, []),
]


@pytest.mark.parametrize(("failpoint", "evidence", "more"), CRASHES)
def test_killed_start_is_judged_by_its_receipt(
    failpoint: str, evidence: Evidence, more: list[str], tmp_path: Path
) -> None:
    """Without a `sent` receipt proven not sent; with one unknown, and not one event more than the epoch's."""
    crash(tmp_path, "claim:1", "started:1", failpoints=failpoint)
    before = kinds(tmp_path)
    state = state_after_start(tmp_path)
    assert state.evidence is evidence
    assert kinds(tmp_path) == [*before, *more, *EPOCH_CHANGE]
    if evidence is Evidence.NOT_SENT:
        assert state.effect is Effect.ABSENT
        assert state.attempt is not None
        assert state.attempt.observed is not None
        assert state.attempt.observed.proof
    if evidence is Evidence.STARTED:
        assert (state.stage, state.effect) == (Stage.EFFECT_UNKNOWN, Effect.UNKNOWN)


def test_further_starts_add_epochs_only(tmp_path: Path) -> None:
    """What was unknown stays unknown, however often the process starts: nothing falls back to not sent."""
    crash(tmp_path, "claim:1", "started:1", "die")
    before = kinds(tmp_path)
    for _ in range(3):
        assert state_after_start(tmp_path).stage is Stage.EFFECT_UNKNOWN
    assert kinds(tmp_path) == before + EPOCH_CHANGE * 3


def test_calls_of_one_crash_are_judged_each(tmp_path: Path) -> None:
    """Observed, acknowledged, started, claimed: each keeps what is recorded of it."""
    crash(tmp_path, *(f"claim:{n}" for n in range(1, 5)), "started:1", "observed:1", "started:2", "ack:2", "started:3",
          "die")  # fmt: skip
    with started(state_dir_in(tmp_path)) as recovered:
        states = [recovered.store.state(call_id(number)) for number in range(1, 5)]
        assert (recovered.not_sent, recovered.salvaged, recovered.witnessed) == ((), (), ())
        assert [state.call for state in recovered.unfinished] == [FIRST]
    found = [state.evidence for state in states if state]
    assert found == [Evidence.RESPONSE, Evidence.ACKNOWLEDGED, Evidence.STARTED, Evidence.MANIFEST]


@pytest.mark.parametrize("whole", [True, False])
def test_spool_is_salvaged_as_its_dialect_judges(whole: bool, tmp_path: Path) -> None:
    """With terminal evidence a response that the proxy can finish, without it a partial; the bytes are kept."""
    crash(tmp_path, "claim:1", "started:1", "spool:1", "die")
    with (tmp_path / "spool" / f"{FIRST}.body").open("ab") as stream:
        stream.write(b"bytes that no index line vouches for")
    seen: list[bytes] = []

    def judge(_state: CallState, head: dict[str, object], body: Path) -> Judged:
        assert head == SPOOL_HEAD
        seen.append(body.read_bytes())
        return Judged(whole, is_kept=True)

    with started(state_dir_in(tmp_path), judge) as recovered:
        state = recovered.store.state(FIRST)
        assert recovered.salvaged == (FIRST,)
        assert [each.call for each in recovered.unfinished] == ([FIRST] if whole else [])
        assert stored_body(recovered.store, digest_of(b"".join(SPOOL_BODY))) == b"".join(SPOOL_BODY)
    assert state is not None
    assert state.stage is (Stage.OBSERVED if whole else Stage.EFFECT_HAPPENED)
    assert seen == [b"".join(SPOOL_BODY)]
    assert list((tmp_path / "spool").iterdir()) == []
    observed = state.attempts[0].observed
    assert isinstance(observed, AttemptObserved)
    assert (observed.source, observed.status, observed.headers) == ("salvage", 200, (("A", "b"),))


@pytest.mark.parametrize("point", ["recovery-before-epoch", "recovery-after-epoch"])
def test_killed_recovery_is_repeated_without_a_second_fact(point: str, tmp_path: Path) -> None:
    """Salvage and proof are recorded once; a start that died before its epoch is as if it had not been."""
    crash(tmp_path, "claim:1", "started:1", "spool:1", "claim:2", "started:2", failpoints="after-commit=kill@4")
    before = kinds(tmp_path)
    for _ in range(2):
        assert run_child(tmp_path, "start", failpoints=f"{point}=kill").code == KILLED
    with started(state_dir_in(tmp_path)) as recovered:
        states = [recovered.store.state(call) for call in (FIRST, SECOND)]
    assert [state.evidence for state in states if state] == [Evidence.PARTIAL, Evidence.NOT_SENT]
    epochs = 1 if point == "recovery-before-epoch" else 3
    assert kinds(tmp_path) == [*before, "attempt.observed", "attempt.observed", *EPOCH_CHANGE * epochs]
    assert list((tmp_path / "spool").iterdir()) == []


# --- witnesses that disagree ------------------------------------------------------------------------------------------


def older_ledger(root: Path) -> None:
    """The file's bytes of one epoch ago, in the same inode: only the receipts can know."""
    tidy(root, "claim:1", "started:1", "observed:1")
    backup = (root / "ledger.db").read_bytes()
    tidy(root, "claim:2", "started:2", "observed:2", "claim:3", "started:3")
    (root / "ledger.db").write_bytes(backup)


def test_older_ledger_under_newer_receipts_is_refused(tmp_path: Path) -> None:
    """The message names each attempt that the ledger does not know and the command that goes on."""
    older_ledger(tmp_path)
    message = refused(tmp_path)
    assert attempt_id(SECOND, 1) in message
    assert attempt_id(THIRD, 1) in message
    assert attempt_id(FIRST, 1) not in message
    assert f"sendonce recover --state-dir {tmp_path} --accept-lost-tail --reason" in message


def test_accepted_lost_tail_enters_each_missing_attempt(tmp_path: Path) -> None:
    """On record: why the start went on, and each attempt as witnessed and unknown."""
    older_ledger(tmp_path)
    before = kinds(tmp_path)
    with started(state_dir_in(tmp_path), acceptance=Acceptance("lost_tail", "disk replaced")) as recovered:
        assert recovered.witnessed == (SECOND, THIRD)
        states = [recovered.store.state(call) for call in (SECOND, THIRD)]
        opened = recovered.store.last_epoch()
    assert [(state.stage, state.effect) for state in states if state] == [(Stage.EFFECT_UNKNOWN, Effect.UNKNOWN)] * 2
    assert opened is not None
    assert (opened.accepted, opened.accepted_reason) == ("lost_tail", "disk replaced")
    assert kinds(tmp_path) == [*before, *EPOCH_CHANGE, *["attempt.witnessed"] * 2]
    assert state_after_start(tmp_path, SECOND).stage is Stage.EFFECT_UNKNOWN


def test_attempt_witnessed_before_is_not_entered_twice(tmp_path: Path) -> None:
    """A second acceptance, over a log that lost its end, reads the same old lines again."""
    older_ledger(tmp_path)
    with started(state_dir_in(tmp_path), acceptance=Acceptance("lost_tail", "first")):
        pass
    path = tmp_path / "receipts" / "000001.jsonl"
    put(path, b"".join(content(path).splitlines(keepends=True)[:-1]))
    refused(tmp_path)
    with started(state_dir_in(tmp_path), acceptance=Acceptance("lost_tail", "second")) as recovered:
        assert recovered.witnessed == ()


def test_copied_directory_is_refused_until_accepted(tmp_path: Path) -> None:
    """A copy shares its past with another ledger: after the acceptance, what is in flight stays unknown."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    crash(original, "claim:1", "started:1", failpoints="after-commit=kill@2")
    shutil.copytree(original, copy)
    assert "--accept-copy" in refused(copy)
    assert run_child(copy, "start:lost_tail").code == WITNESSES_DISAGREE
    with started(state_dir_in(copy), acceptance=Acceptance("copy", "moved to another disk")) as recovered:
        state = recovered.store.state(FIRST)
    assert state is not None
    assert state.stage is Stage.EFFECT_UNKNOWN  # a missing receipt proves nothing here: the original may have gone on
    assert state_after_start(original).stage is Stage.NOT_SENT
    assert run_child(copy, "start").code == 0


def test_restored_backup_is_a_copy_and_its_lost_tail_is_entered(tmp_path: Path) -> None:
    """The usual restore: another file under the old name. One acceptance covers both."""
    tidy(tmp_path, "claim:1", "started:1", "observed:1")
    shutil.copy2(tmp_path / "ledger.db", tmp_path / "backup")
    tidy(tmp_path, "claim:2", "started:2", "observed:2")
    (tmp_path / "backup").replace(tmp_path / "ledger.db")
    assert "--accept-copy" in refused(tmp_path)
    with started(state_dir_in(tmp_path), acceptance=Acceptance("copy", "restored")) as recovered:
        assert recovered.witnessed == (SECOND,)
    assert state_after_start(tmp_path, SECOND).stage is Stage.EFFECT_UNKNOWN


def test_deleted_receipts_are_refused_until_accepted(tmp_path: Path) -> None:
    """A new log is no witness of the old epoch; accepted, its in-flight call stays unknown."""
    crash(tmp_path, "claim:1", "started:1", "die")
    shutil.rmtree(tmp_path / "receipts")
    assert "receipt log is not the one" in refused(tmp_path)
    with started(state_dir_in(tmp_path), acceptance=Acceptance("lost_tail", "log deleted")) as recovered:
        state = recovered.store.state(FIRST)
    assert state is not None
    assert state.stage is Stage.EFFECT_UNKNOWN


@pytest.mark.parametrize("earlier", [(), ("claim:1", "started:1", "observed:1")])
def test_deleted_wal_is_refused_where_receipts_know_more(earlier: tuple[str, ...], tmp_path: Path) -> None:
    """Committed, receipted, sent, and then the WAL is removed as if it were a temporary file."""
    if earlier:
        tidy(tmp_path, *earlier)
    crash(tmp_path, "claim:2", "started:2", "die")
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (tmp_path / name).unlink()
    assert attempt_id(SECOND, 1) in refused(tmp_path)
    assert run_child(tmp_path, "start:lost_tail").answers[0]["witnessed"] == [SECOND]


def test_wrong_secret_is_refused(tmp_path: Path) -> None:
    """Under another secret every recorded key is a stranger."""
    tidy(tmp_path, "claim:1")
    (tmp_path / "secret").write_bytes(b"x" * 32)
    assert "not the secret of this ledger" in refused(tmp_path, STATE_DIR)


def test_clean_end_and_start_changes_epochs_only(tmp_path: Path) -> None:
    """Nothing was left open, so nothing is entered."""
    tidy(tmp_path, "claim:1", "started:1", "observed:1")
    before = kinds(tmp_path)
    with started(state_dir_in(tmp_path)) as recovered:
        assert recovered.epoch == 2
        assert (recovered.witnessed, recovered.salvaged, recovered.not_sent) == ((), (), ())
    assert kinds(tmp_path) == [*before, *EPOCH_CHANGE]


def test_start_after_a_death_moves_the_wal_into_the_ledger(tmp_path: Path) -> None:
    """What the dead process wrote may be in the page cache only, and after a failed sync no later one would write it."""
    crash(tmp_path, *(f"claim:{n}" for n in range(1, 30)), "die")
    before = (tmp_path / "ledger.db-wal").stat().st_size
    with started(state_dir_in(tmp_path)):
        assert (tmp_path / "ledger.db-wal").stat().st_size < before / 2
