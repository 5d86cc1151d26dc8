"""A receipt log that was torn, cut or changed: mended where a crash explains it, refused where it is no proof any more."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger import receipts
from ledger.errors import WitnessesDisagreeError
from ledger.receipts import BLOCK_BYTES
from ledger.recovery import Acceptance
from ledger.stages import Stage
from ledger.writer import Writer
from tests.harness.ledgers import (
    FIRST,
    NOW_MS,
    call_id,
    claim_op,
    observed_op,
    start,
    started,
    started_op,
    state_dir_in,
)
from tests.harness.segments import content, put
from tests.harness.starts import crash, refused, state_after_start

SECOND = call_id(2)

Lines = list[bytes]
CUTS: list[tuple[str, Callable[[Lines], Lines]]] = [
    ("a flipped call", lambda lines: [*lines[:-1], lines[-1].replace(FIRST.encode(), SECOND.encode())]),
    ("a flipped attempt", lambda lines: [*lines[:-1], lines[-1].replace(b'"attempt":1', b'"attempt":2')]),
    ("a flipped seq", lambda lines: [*lines[:-1], lines[-1].replace(b'"seq":4', b'"seq":3')]),
    ("a flipped kind", lambda lines: [*lines[:-1], lines[-1].replace(b'"sent"', b'"sens"')]),
    ("a flipped name", lambda lines: [*lines[:-1], lines[-1].replace(b'"call"', b'"cbll"')]),
    ("a deleted receipt of an answered attempt", lambda lines: lines[:-1]),
    ("only a first line of another lineage", lambda lines: [lines[0].replace(b'"lineage":"', b'"lineage":"0')]),
]


@pytest.mark.parametrize(("_what", "change"), CUTS, ids=[what for what, _ in CUTS])
def test_changed_last_receipt_is_refused_not_read_as_proof(
    _what: str, change: Callable[[Lines], Lines], tmp_path: Path
) -> None:
    """No later line vouches for the last one, so it is compared with the event it witnesses."""
    crash(tmp_path, "claim:1", "started:1", "ack:1", "die")
    path = tmp_path / "receipts" / "000001.jsonl"
    lines = content(path).splitlines(keepends=True)
    changed = change(lines)
    assert changed != lines
    put(path, b"".join(changed))
    refused(tmp_path)


def test_torn_receipt_of_a_start_is_no_receipt(tmp_path: Path) -> None:
    """The line was being written, so its fdatasync had not returned and no byte had left."""
    crash(tmp_path, "claim:1", "started:1", "die")
    path = tmp_path / "receipts" / "000001.jsonl"
    put(path, content(path)[:-2])
    assert state_after_start(tmp_path).stage is Stage.NOT_SENT


def test_receipt_that_lacks_only_its_newline_is_a_receipt(tmp_path: Path) -> None:
    """Its last byte did not reach the disk: what may have been sent stays unknown, it is not sent again."""
    crash(tmp_path, "claim:1", "started:1", "die")
    path = tmp_path / "receipts" / "000001.jsonl"
    put(path, content(path)[:-1])
    assert state_after_start(tmp_path).stage is Stage.EFFECT_UNKNOWN


@pytest.mark.parametrize("size", [1, 100, 512, 4096, BLOCK_BYTES - 1])
def test_receipt_log_that_was_cut_is_refused_not_read_as_proof(size: int, tmp_path: Path) -> None:
    """A crash never shortens the file, so a call in flight is not taken for one that was not sent."""
    crash(tmp_path, "claim:1", "started:1", "die")
    path = tmp_path / "receipts" / "000001.jsonl"
    os.truncate(path, size)
    assert "was cut" in refused(tmp_path)
    assert path.stat().st_size == size


def test_log_that_lost_an_answered_attempt_is_refused(tmp_path: Path) -> None:
    """An older copy of the log, whole and of the same size: an answer in the ledger gives it away, so that the call in flight
    beside it does not read as not sent.
    """
    crash(tmp_path, "claim:1", "started:1", "ack:1", "observed:1", "claim:2", "started:2", "die")
    path = tmp_path / "receipts" / "000001.jsonl"
    put(path, content(path).splitlines(keepends=True)[0])
    assert "an attempt that was sent has no receipt" in refused(tmp_path)


async def test_ledger_that_lost_an_answer_is_refused_until_accepted(tmp_path: Path) -> None:
    """A copy from the middle of the epoch, in place: it knows the attempt and not what came back; the receipts know both."""
    state_dir = state_dir_in(tmp_path)
    recovered = start(state_dir)
    writer = Writer(recovered.store, recovered.receipts, state_dir.wal, lambda: NOW_MS)
    await writer.append(claim_op())
    await writer.append(started_op())
    older = {path: path.read_bytes() for path in (state_dir.ledger, state_dir.wal)}
    await writer.append(observed_op())
    await writer.close()
    for path, before in older.items():
        path.write_bytes(before)
    assert "an answer has a receipt and is not in the ledger" in refused(tmp_path)
    with started(state_dir, acceptance=Acceptance("lost_tail", "restored")) as accepted:
        assert accepted.witnessed == ()
    assert state_after_start(tmp_path).stage is Stage.EFFECT_UNKNOWN


# --- how far a start reads --------------------------------------------------------------------------------------------


OTHERS = range(2, 22)


def long_epoch(root: Path, *more: str, **options: str) -> Path:
    """The first call is sent and left open, twenty others are answered behind it; then the process dies."""
    others = [f"{step}:{number}" for number in OTHERS for step in ("claim", "started", "ack", "observed")]
    crash(root, "claim:1", "started:1", *others, *more, **options)
    return root / "receipts" / "000001.jsonl"


@pytest.fixture
def few_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small log is a long one."""
    monkeypatch.setattr(receipts, "CHECKED_LINES", 2)


@pytest.mark.usefixtures("few_links")
def test_open_attempt_behind_many_answers_keeps_its_receipt(tmp_path: Path) -> None:
    """It is read back to it, however far: what was sent is never taken for proven not sent."""
    long_epoch(tmp_path, "die")
    assert state_after_start(tmp_path).stage is Stage.EFFECT_UNKNOWN


@pytest.mark.usefixtures("few_links")
def test_damage_behind_an_open_attempt_is_refused(tmp_path: Path) -> None:
    """Every line that the proof leans on is read, up to the last one, which no later line vouches for."""
    path = long_epoch(tmp_path, "die")
    lines = content(path).splitlines(keepends=True)
    for at in range(1, len(lines) - 1):
        put(path, b"".join([*lines[:at], lines[at].replace(b'"upstream":"', b'"upstream":"x'), *lines[at + 1 :]]))
        with pytest.raises(WitnessesDisagreeError):
            start(state_dir_in(tmp_path))
    put(path, b"".join(lines))
    assert state_after_start(tmp_path).stage is Stage.EFFECT_UNKNOWN


@pytest.mark.usefixtures("few_links")
def test_damage_in_front_of_all_that_is_open_is_left_to_doctor(tmp_path: Path) -> None:
    """No decision leans on those lines: the start goes on, and whoever reads the whole log names them."""
    path = long_epoch(tmp_path, "observed:1", "claim:22", "started:22", "ack:22", "die")
    lines = content(path).splitlines(keepends=True)
    put(path, b"".join([*lines[:5], lines[5].replace(b'"upstream":"', b'"upstream":"x'), *lines[6:]]))
    assert state_after_start(tmp_path, call_id(22)).stage is Stage.EFFECT_HAPPENED
    with pytest.raises(WitnessesDisagreeError):
        list(receipts.read_since(tmp_path / "receipts", 1))


@pytest.mark.usefixtures("few_links")
def test_start_without_its_receipt_behind_many_answers_is_proven_not_sent(tmp_path: Path) -> None:
    """The last commit before the death: reading back ends where its line would stand."""
    long_epoch(tmp_path, "observed:1", "claim:22", "started:22", failpoints=f"after-commit=kill@{4 * len(OTHERS) + 5}")
    assert state_after_start(tmp_path, call_id(22)).stage is Stage.NOT_SENT


@pytest.mark.usefixtures("few_links")
def test_client_that_left_an_open_attempt_changes_nothing_of_its_proof(tmp_path: Path) -> None:
    """Its delivery is the call's newest event then, behind the start that the log is asked for."""
    others = [f"{step}:{number}" for number in OTHERS for step in ("claim", "started", "ack", "observed")]
    crash(tmp_path, "claim:1", "started:1", *others, "left:1", "claim:22", "die")
    assert state_after_start(tmp_path).stage is Stage.EFFECT_UNKNOWN


def test_log_that_lost_its_end_behind_an_open_attempt_is_refused(tmp_path: Path) -> None:
    """Its newest line is the ledger's and the open attempt has its receipt; the answered one behind it tells."""
    crash(
        tmp_path, "claim:1", "started:1", "claim:2", "started:2", "ack:2", "observed:2", "claim:3", "started:3", "die"
    )
    path = tmp_path / "receipts" / "000001.jsonl"
    put(path, b"".join(content(path).splitlines(keepends=True)[:2]))
    assert "an attempt that was sent has no receipt" in refused(tmp_path)
