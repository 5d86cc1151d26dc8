"""Starts that must not happen: the witnesses disagree, or the state dir or the port is somebody else's."""

import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.harness.commands import command
from tests.harness.crashes import CHAT_PATH, call_of, kill_while_held, receipts_of
from tests.harness.processes import Rig, StartFailed, chat

EXIT_PORT, EXIT_STATE_DIR, EXIT_WITNESSES = 3, 4, 5
BEFORE: Final = chat(text="before the backup")
LOST: Final = (chat(text="lost tail"), chat(text="lost tail too"))
NOBODY_UID: Final = 65534


def refused_start(rig: Rig, *extra: str) -> StartFailed:
    with pytest.raises(StartFailed) as refused:
        rig.start("", *extra)
    assert refused.value.err.startswith("sendonce: ")
    assert "Traceback" not in refused.value.err
    return refused.value


def stop(rig: Rig) -> None:
    assert rig.proxy_process is not None
    assert rig.proxy_process.stop() == 0


def left_with_older_ledger(rig: Rig) -> list[str]:
    """The ledger file as it was before two requests; the receipts know both. Their attempts' names."""
    ledger = rig.state_dir / "ledger.db"
    rig.chat(BEFORE)
    stop(rig)
    older = ledger.read_bytes()
    rig.start()
    for body in LOST:
        rig.chat(body)
    attempts = [f"{row['call_id']}.1" for row in rig.calls()[:2]]
    stop(rig)
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (rig.state_dir / name).unlink(missing_ok=True)
    ledger.write_bytes(older)  # in place: it stays the same file, only its content is old
    return attempts


def test_older_ledger_under_newer_receipts_does_not_start(running: Rig) -> None:
    """I5: the message names what the ledger lost and the command; nothing is changed by the refused start."""
    attempts = left_with_older_ledger(running)
    before = (running.state_dir / "ledger.db").read_bytes()
    for _ in range(2):
        refused = refused_start(running)
        assert refused.code == EXIT_WITNESSES
        assert [attempt for attempt in attempts if attempt not in refused.err] == []
        assert "--accept-lost-tail --reason" in refused.err
    assert (running.state_dir / "ledger.db").read_bytes() == before


def test_accepted_lost_tail_refuses_those_keys_and_serves_others(running: Rig) -> None:
    """What only the receipts know is unknown, whatever became of its answer; and it can be decided like any other."""
    left_with_older_ledger(running)
    done = command(running, "recover", "--accept-lost-tail", "--reason", "restored last night's backup")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 attempts" in done.stdout
    running.start()
    for body in LOST:
        refused = running.chat(body)
        assert (refused.status, refused.code) == (400, "effect_unknown")
        assert len(receipts_of(running, body)) == 1
    assert running.chat(chat(text="another")).disposition == "forwarded"
    call = running.chat(LOST[0]).json["call"]
    assert command(running, "reconcile", call, "--not-served", "--reason", "not in the export").returncode == 0
    assert running.chat(LOST[0]).disposition == "forwarded"
    assert len(receipts_of(running, LOST[0])) == 2
    assert command(running, "doctor").returncode == 0


def test_refused_decision_and_acceptance_of_the_wrong_kind_change_nothing(running: Rig) -> None:
    """While the witnesses disagree, no decision slips past them: it recovers first, and is refused like the start."""
    left_with_older_ledger(running)
    before = (running.state_dir / "ledger.db").read_bytes()
    decided = command(running, "reconcile", call_of(running)["call_id"], "--park", "--reason", "try")
    assert decided.returncode == EXIT_WITNESSES
    assert (running.state_dir / "ledger.db").read_bytes() == before


def test_copied_state_dir_starts_only_when_accepted(running: Rig) -> None:
    """Two proxies over copies of one history could each send what the other has sent."""
    body, held = chat(text="served"), chat("synthetic/hold=forever")
    key = {"Idempotency-Key": "mine"}
    served = running.chat(body, key)
    kill_while_held(running, CHAT_PATH, held)
    stop(running)
    copy = replace(running, state_name="copy", proxy_process=None)
    shutil.copytree(running.state_dir, copy.state_dir)
    refused = refused_start(copy)
    assert refused.code == EXIT_WITNESSES
    assert "--accept-copy --reason" in refused.err
    assert command(copy, "recover", "--accept-copy", "--reason", "moved to another disk").returncode == 0
    copy.start()
    try:
        assert copy.chat(body, key).body == served.body
        assert copy.chat(held).code == "effect_unknown"
        assert copy.chat(chat(text="new")).disposition == "forwarded"
    finally:
        assert copy.proxy_process is not None
        copy.proxy_process.close()
    assert len(receipts_of(running, held)) == 1


def test_second_proxy_on_the_state_dir_names_the_first(running: Rig) -> None:
    """By its process id; the first goes on undisturbed."""
    assert running.proxy_process is not None
    refused = refused_start(replace(running, proxy_process=None))
    assert refused.code == EXIT_STATE_DIR
    assert f"process {running.proxy_process.child.pid}" in refused.err
    assert running.chat(chat()).status == 200


@pytest.mark.parametrize("name", ["", "secret", "spool", "receipts"])
def test_state_dir_that_others_may_read_is_refused(running: Rig, name: str) -> None:
    """It holds prompts and answers: the message gives the command that mends it."""
    stop(running)
    path = running.state_dir / name
    path.chmod(0o755)
    refused = refused_start(running)
    assert refused.code == EXIT_STATE_DIR
    assert f"chmod go-rwx {path}".rstrip("/") in refused.err
    path.chmod(0o700)
    running.start()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root can give a directory to somebody else")
def test_state_dir_of_another_user_is_refused(running: Rig) -> None:
    """Whoever owns it could read and change what is recorded."""
    stop(running)
    os.chown(running.state_dir, NOBODY_UID, NOBODY_UID)
    refused = refused_start(running)
    assert refused.code == EXIT_STATE_DIR
    assert f"another user (uid {NOBODY_UID})" in refused.err


def test_missing_secret_is_refused(running: Rig) -> None:
    """With a new one no recorded key would be recognised, and everything could be sent again."""
    running.chat(chat())
    stop(running)
    (running.state_dir / "secret").unlink()
    assert refused_start(running).code == EXIT_STATE_DIR


def test_taken_port_is_refused_before_the_state_dir_is_touched(tmp_path: Path, running: Rig) -> None:
    """Exit code 3, and no state dir appears."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        fresh = replace(running, directory=tmp_path, state_name="fresh", proxy_process=None)
        refused = refused_start(fresh, "--port", str(taken.getsockname()[1]))
    assert refused.code == EXIT_PORT
    assert not fresh.state_dir.exists()
