"""The supervisor: a dead serving process is replaced, nobody is refused meanwhile, and what it is told reaches who serves."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from ledger.epochs import StateDir
from ledger.errors import StateDirError
from tests.harness.connections import connected, read_answer, read_until, request_bytes
from tests.harness.crashes import CHAT_PATH, CUT, begin, call_of, receipts_of
from tests.harness.processes import (
    ALONE,
    ROOT,
    SUPERVISED,
    Process,
    Rig,
    StartFailed,
    chat,
    children_of,
    provider_in,
    until,
)
from tests.harness.supervised import LISTENS, is_gone, kill_serving, next_serving, start_supervised, with_own_state

SLOW: Final = "synthetic/chunks=40,interval=0.05"


@contextmanager
def supervised(directory: Path, failpoints: str = "", **environment: str) -> Iterator[Rig]:
    with provider_in(directory) as made:
        made.supervised, made.environment = True, environment
        made.start(failpoints)
        yield made


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One supervisor that outlives its children; each test keeps to bodies of its own, and leaves it serving."""
    with supervised(tmp_path_factory.mktemp("held")) as made:
        yield made


@pytest.fixture
def provided(held: Rig, tmp_path: Path) -> Iterator[Rig]:
    """The provider of `held`, for a proxy that a test starts itself."""
    with with_own_state(held, tmp_path.name) as made:
        yield made


# --- a life follows another ----------------------------------------------------------------------------------------------


def test_killed_serving_process_is_replaced_and_says_so_in_one_sentence(provided: Rig) -> None:
    """Same port, next epoch, and the record goes on; the ready line is printed once."""
    process = start_supervised(provided)
    port, epoch, before = provided.port, provided.status()["epoch"], provided.serving_pid
    assert provided.chat(chat(text="before")).status == 200
    after = kill_serving(provided)
    assert provided.chat(chat(text="after")).status == 200
    assert (provided.port, provided.status()["epoch"]) == (port, epoch + 1)
    assert process.stop() == 0
    assert f"process {before} was killed by SIGKILL" in process.complained
    assert f"process {after} admits requests" in process.complained
    assert f"in epoch {epoch + 1}." in process.complained
    assert sum("listens on" in line for line in process.said) == 1


def test_connection_in_the_backlog_of_a_dead_process_is_served_by_the_next(held: Rig) -> None:
    """The stopped process never sees it: the request waits in the socket that the parent holds."""
    body, before = chat(text="in the backlog"), held.serving_pid
    os.kill(before, signal.SIGSTOP)
    with connected(held.port) as waiting:
        waiting.sendall(request_bytes(CHAT_PATH, body))
        os.kill(before, signal.SIGKILL)
        assert read_answer(waiting).status == 200
    assert len(receipts_of(held, body)) == 1


def test_request_during_recovery_is_held_and_not_refused(provided: Rig) -> None:
    """Each start sleeps before it opens its epoch: whoever asks meanwhile gets an answer, not a 503."""
    provided.supervised = True
    provided.start("recovery-before-epoch=sleep(1)")
    epoch, body = provided.status()["epoch"], chat(text="held")
    kill_serving(provided)
    with closing(begin(provided, CHAT_PATH, body)) as connection:
        assert provided.status()["epoch"] == epoch
        assert connection.getresponse().status == 200
    assert provided.status()["epoch"] == epoch + 1


def test_poisoned_process_is_replaced_and_its_answer_is_salvaged(provided: Rig) -> None:
    """Exit code 70 is a death as well: the same request is answered from the record, and the provider saw one."""
    provided.supervised = True
    provided.start("before-observed=eio")
    body = chat(text="poisoned")
    with pytest.raises(CUT):
        provided.chat(body)
    # What reaches the dying process still gets its 503; what comes after that waits for the next one.
    again = until(lambda: answer if (answer := provided.chat(body)).status != HTTPStatus.SERVICE_UNAVAILABLE else None)
    assert (again.status, again.disposition) == (200, "replayed")
    assert len(receipts_of(provided, body)) == 1
    assert provided.proxy_process is not None
    assert provided.proxy_process.stop() == 0
    assert "ended with exit code 70" in provided.proxy_process.complained


def test_served_process_that_ends_unasked_is_replaced_whatever_its_exit_code(provided: Rig) -> None:
    """Here 0: it was told to stop by somebody else than its parent, over the lifeline that both hold."""
    process = start_supervised(provided)
    port, before = provided.port, provided.serving_pid
    with shared_pipe(before, process.child.pid).open("wb", buffering=0) as told:
        told.write(b"s")
    next_serving(provided, before)
    assert provided.chat(chat(text="after an end unasked")).status == 200
    assert (provided.port, process.stop()) == (port, 0)
    assert f"The serving process {before} ended with exit code 0" in process.complained


def shared_pipe(child: int, parent: int) -> Path:
    """The pipe that the child reads and the parent writes to; it can be opened by this name."""

    def pipes(pid: int, mode: str) -> dict[Path, Path]:
        found = {}
        for path in Path(f"/proc/{pid}/fd").iterdir():
            flags = Path(f"/proc/{pid}/fdinfo/{path.name}").read_text().split("flags:")[1].split()[0]
            if str(path.readlink()).startswith("pipe:") and flags.endswith(mode):
                found[path.readlink()] = path
        return found

    (shared,) = pipes(child, "0").keys() & pipes(parent, "1").keys()  # O_RDONLY, O_WRONLY
    return pipes(child, "0")[shared]


def test_supervisor_whose_stderr_nobody_reads_goes_on(provided: Rig) -> None:
    """The terminal or the log's pipe that it was started in is gone, and so is systemd's socket: it replaces, and stops, in silence."""
    process = start_supervised(provided, NOTIFY_SOCKET=str(provided.state_dir / "nobody"))
    assert provided.chat(chat(text="read")).status == 200  # so it has said all that it says on stdout
    for pipe in (process.child.stdout, process.child.stderr):
        assert pipe is not None
        pipe.close()
    kill_serving(provided)
    assert provided.chat(chat(text="unread")).status == 200
    with closing(begin(provided, CHAT_PATH, chat(SLOW, "stopped unread", stream=True))) as connection:
        response = connection.getresponse()
        process.child.send_signal(signal.SIGTERM)
        assert response.read().endswith(b"data: [DONE]\n\n")
    assert process.wait() == 0


def test_start_that_always_dies_backs_off_with_a_sentence_each(tmp_path: Path) -> None:
    """At once, then 0.1 s, doubled each time; SIGTERM between two lives is an end without anything to stop."""
    environment = os.environ | SUPERVISED | {"SENDONCE_FAILPOINTS": "recovery-before-epoch=kill"}
    arguments = [sys.executable, "-m", "proxy", "serve", "--port", "0", "--state-dir", str(tmp_path / "state")]
    with subprocess.Popen(arguments, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(6)]
        with pytest.raises(StateDirError, match=f"belongs to a running sendonce .process {process.pid}."):
            StateDir(tmp_path / "state", tmp_path / "state" / "receipts").lock()  # between two lives, too
        process.send_signal(signal.SIGTERM)  # 1.6 s before the next start
        assert process.wait(5) == 0
    for number, (line, wait) in enumerate(
        zip(lines, ("at once", "in 0.1 s", "in 0.2 s", "in 0.4 s", "in 0.8 s", "in 1.6 s"), strict=True), 1
    ):
        assert (
            f"was killed by SIGKILL before it admitted requests, {number} in a row. The next one starts {wait}." in line
        )
        assert f"sendonce doctor --state-dir {tmp_path / 'state'}" in line


def test_start_that_cannot_succeed_ends_with_its_own_code_and_sentence(provided: Rig, held: Rig) -> None:
    """2 settings, 3 port, 4 state dir, 5 witnesses: who started it is told once, and nothing is tried again."""

    def refused(*arguments: str, **environment: str) -> int:
        with pytest.raises(StartFailed) as caught:
            start_supervised(provided, *arguments, **environment)
        assert caught.value.err.count("sendonce: ") == 1
        assert "Traceback" not in caught.value.err
        return caught.value.code

    assert refused(SENDONCE_MODE="sometimes") == 2
    assert refused("--port", str(held.port)) == 3
    assert refused("--state-dir", str(held.state_dir)) == 4
    start_supervised(provided)
    assert provided.proxy_process is not None
    assert provided.chat(chat(text="witnessed")).status == 200
    assert provided.proxy_process.stop() == 0
    for path in provided.paths.receipts.iterdir():
        path.unlink()
    assert refused() == 5


def test_without_a_supervisor_there_is_one_process(held: Rig, provided: Rig) -> None:
    """Who has a supervisor of his own kills and starts the serving process itself."""
    process = provided.start("", "--no-supervisor")
    assert children_of(process.child.pid) == []
    assert len(children_of(held.proxy_process.child.pid if held.proxy_process else 0)) == 1


# --- how it ends -----------------------------------------------------------------------------------------------------------


def test_killed_parent_takes_the_serving_process_with_it(provided: Rig) -> None:
    """The child hears the end of its lifeline, lets its answer in flight end, and frees the lock for the next owner."""
    process = start_supervised(provided)
    child, body = provided.serving_pid, chat(SLOW, "orphaned", stream=True)
    with closing(begin(provided, CHAT_PATH, body)) as connection:
        response = connection.getresponse()
        process.kill()
        assert response.read().endswith(b"data: [DONE]\n\n")
    until(lambda: is_gone(child))
    start_supervised(provided)
    assert provided.chat(chat(text="the next owner")).status == 200


@pytest.mark.parametrize("how", [SUPERVISED, ALONE], ids=["supervised", "alone"])
def test_end_of_the_lifeline_is_a_stop(provided: Rig, how: dict[str, str]) -> None:
    """Whoever starts a proxy for its own life holds the other end of a pipe, and need not live to say that it is over."""
    ends, lifeline = os.pipe()
    arguments = [
        "-m",
        "proxy",
        "serve",
        "--port",
        "0",
        "--state-dir",
        str(provided.state_dir),
        "--lifeline-fd",
        str(ends),
    ]
    process = provided.proxy_process = Process(arguments, LISTENS, how, (ends,))
    os.close(ends)
    os.close(lifeline)
    assert process.wait() == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_stop_lets_a_stream_end_and_takes_no_new_connection(provided: Rig, signum: signal.Signals) -> None:
    """To the group, as terminals, systemd and docker send it: for the child it is no second one, and no hurry. Exit 0."""
    process = start_supervised(provided)
    idle = provided.serving_pid
    with connected(provided.port) as kept, connected(provided.port) as streaming:
        kept.sendall(request_bytes(CHAT_PATH, chat(text="keep-alive")))
        assert read_answer(kept).status == 200
        streaming.sendall(request_bytes(CHAT_PATH, chat(SLOW, f"stopped by {signum}", stream=True)))
        read_until(streaming, b"data: ")
        for pid in (idle, process.child.pid, idle):
            os.kill(pid, signum)
        until(lambda: not is_listening(provided.port))
        kept.sendall(request_bytes(CHAT_PATH, chat(text="too late")))
        late = read_answer(kept)
        assert (late.status, late.code) == (503, "draining")
        read_until(streaming, b"data: [DONE]\n\n")
    assert process.wait() == 0
    assert call_of(provided)["stage"] == "completed"


def test_second_signal_hurries_and_cuts_what_is_in_flight(provided: Rig) -> None:
    """Handed on by the parent, though the first would have waited for a minute."""
    process = start_supervised(provided, SENDONCE_TIMEOUTS__STOP_S="60")
    with connected(provided.port) as streaming:
        body = chat("synthetic/chunks=5000,interval=0.1", "hurried", stream=True)
        streaming.sendall(request_bytes(CHAT_PATH, body))
        read_until(streaming, b"data: ")
        process.child.send_signal(signal.SIGTERM)
        until(lambda: not is_listening(provided.port))
        process.child.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    assert call_of(provided)["stage"] == "effect_happened"


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except ConnectionRefusedError:
        return False
    except ConnectionError:
        return True
    return True


def test_fifty_streams_at_a_stop_are_each_observed_or_unknown(provided: Rig) -> None:
    """Those within the deadline end whole, the others are cut and say so on record; exit 0, and the next start serves."""
    process = start_supervised(provided, SENDONCE_TIMEOUTS__STOP_S="8")
    short = [chat("synthetic/chunks=20,interval=0.05", f"short {number}", stream=True) for number in range(25)]
    endless = [chat("synthetic/chunks=5000,interval=0.1", f"endless {number}", stream=True) for number in range(25)]
    with ExitStack() as opened:
        answers = []
        for body in (*short, *endless):
            connection = opened.enter_context(closing(begin(provided, CHAT_PATH, body)))
            answers.append(connection)
        responses = [connection.getresponse() for connection in answers]
        process.child.send_signal(signal.SIGTERM)
        heard = []
        for response in responses:
            try:
                heard.append(response.read())
            except CUT:
                heard.append(b"")
        assert process.wait() == 0
    assert all(answer.endswith(b"data: [DONE]\n\n") for answer in heard[:25])
    assert not any(answer.endswith(b"data: [DONE]\n\n") for answer in heard[25:])
    start_supervised(provided)
    rows = {row["body_blake3"]: row["stage"] for row in provided.calls()}
    assert len(rows) == 50
    receipts = {body: receipts_of(provided, body) for body in (*short, *endless)}
    assert {len(found) for found in receipts.values()} == {1}
    assert [rows[receipts[body][0]["body_blake3"]] for body in short] == ["completed"] * 25
    assert {rows[receipts[body][0]["body_blake3"]] for body in endless} == {"effect_happened"}
    assert provided.chat(endless[0]).code == "effect_happened"
    assert provided.chat(chat(text="after fifty")).status == 200
