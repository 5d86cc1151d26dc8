"""`sendonce run` and `env` beside a living proxy: what a command finds, how it ends, and what is said of bad input."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.agent_runs import is_ready, run_whole, started
from tests.harness.processes import Rig, rig


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig(tmp_path_factory.mktemp("commands")) as made:
        yield made


PRINTS = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]


def test_command_gets_every_sdks_variable(running: Rig) -> None:
    """Each behind its upstream's name, in this pass; and its exit code is the run's."""
    ended = run_whole(running, "variables", PRINTS)
    (found,) = ended.answers
    base = found["OPENAI_BASE_URL"].removesuffix("/openai/v1")
    assert base.startswith(f"{running.url}/run/variables/1-")
    assert (found["ANTHROPIC_BASE_URL"], found["GOOGLE_GEMINI_BASE_URL"]) == (f"{base}/anthropic", f"{base}/gemini")  # type: ignore[index]
    assert run_whole(running, "variables", ["sh", "-c", "exit 7"]).code == 7
    assert run_whole(running, "variables", ["sh", "-c", "kill -9 $$"]).code == 128 + signal.SIGKILL


def test_run_without_an_id_makes_one_and_prints_it(running: Rig) -> None:
    """So that it can be continued."""
    ended = run_whole(running, None, ["true"])
    name = ended.err.split("run ")[1].split(",")[0]
    assert ended.code == 0
    assert f"run {name}, pass 1:" in ended.err
    assert run_whole(running, name, ["true"]).err.count(f"run {name}, pass 2") == 2


@pytest.mark.parametrize(
    ("name", "command", "code", "sentence"),
    [
        ("a/b", ["true"], 2, "The run id 'a/b' cannot be used"),
        ("x" * 300, ["true"], 2, "(300 characters)"),
        ("nächtlich", ["true"], 2, "Use 1 to 128 of the characters"),
        ("", ["true"], 2, "The run id '' cannot be used"),
        ("fine", ["no-such-program"], 127, "The command 'no-such-program' does not exist"),
        ("fine", ["./README.md"], 126, "The command './README.md' cannot be executed"),
    ],
)
def test_bad_input_is_named_and_opens_nothing(
    running: Rig, name: str, command: list[str], code: int, sentence: str
) -> None:
    """Before a pass is opened or a proxy started."""
    ended = run_whole(running, name, command)
    assert (ended.code, sentence in ended.err, "Traceback" in ended.err) == (code, True, False), ended
    assert running.command("runs", "fine").returncode == 2


def test_variable_that_points_at_another_provider_is_refused(running: Rig) -> None:
    """Its key would go to the wrong one."""
    ended = run_whole(running, "elsewhere", ["true"], OPENAI_BASE_URL="https://llm.example.com/v1")
    assert ended.code == 2
    assert "OPENAI_BASE_URL is https://llm.example.com/v1" in ended.err
    assert running.command("runs", "elsewhere").returncode == 2


def test_variable_that_names_a_known_upstream_is_moved_behind_it(running: Rig) -> None:
    """Groq's endpoint in OpenAI's variable stays Groq's."""
    ended = run_whole(running, "moved", PRINTS, OPENAI_BASE_URL="https://api.groq.com/openai/v1")
    (found,) = ended.answers
    assert found["OPENAI_BASE_URL"].endswith("/groq/v1")  # type: ignore[index]


def test_script_without_an_interpreter_is_named(running: Rig, tmp_path: Path) -> None:
    """The system finds that out only when it starts it."""
    script = tmp_path / "script"
    script.write_text("echo hello")
    script.chmod(0o755)
    ended = run_whole(running, "script", [str(script)])
    assert (ended.code, "Traceback" in ended.err) == (126, False)
    assert f"The command '{script}' cannot be executed (Exec format error)" in ended.err


COUNTS = """
import signal, sys
counted = []
signal.signal(signal.SIGINT, lambda *_: counted.append(1))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(40 + len(counted)))
print('"ready"', flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("has_terminal", [False, True], ids=["ci", "terminal"])
def test_interrupt_of_run_alone_reaches_the_command_where_no_terminal_sends_it(
    running: Rig, has_terminal: bool
) -> None:
    """A terminal sends it to both, so passing it on would make two of one."""
    leader, follower = os.openpty()
    before = "import fcntl, os, sys, termios; fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0); os.execv(sys.argv[2], sys.argv[2:])"
    command = [sys.executable, "-c", COUNTS]
    with started(
        running, "interrupted", command, before=[before, str(follower)] if has_terminal else [], pass_fds=(follower,)
    ) as made:
        is_ready(made)
        made.child.send_signal(signal.SIGINT)  # both are pending at most: Python hears the lower number first
        made.child.send_signal(signal.SIGTERM)
        assert made.ended().code == (40 if has_terminal else 41)
    os.close(leader)
    os.close(follower)


def test_termination_is_passed_on_to_the_command(running: Rig) -> None:
    """It ends as it wishes, and its exit code stands."""
    shell = "trap 'exit 5' TERM; echo '\"ready\"'; while :; do sleep 0.05; done"
    with started(running, "terminated", ["bash", "-c", shell]) as made:
        assert made.child.stdout is not None
        made.child.stdout.readline()
        made.child.send_signal(signal.SIGTERM)
        assert made.ended().code == 5


def test_env_prints_what_a_shell_takes(running: Rig) -> None:
    """Without a run the plain base URLs, with one those of a new pass; as JSON with Codex's arguments."""
    plain = json.loads(running.command("env", "--json").stdout)
    assert plain["OPENAI_BASE_URL"] == f"{running.url}/openai/v1"
    assert plain["codex"] == ["-c", f'openai_base_url="{running.url}/openai/v1"']
    shell = running.command("env", "--id", "shell").stdout
    assert f"export ANTHROPIC_BASE_URL={running.url}/run/shell/1-" in shell
    assert json.loads(running.command("runs", "shell", "--json").stdout)["passes"][0]["pass"] == 1


def test_env_without_a_proxy_says_how_to_start_one(tmp_path: Path) -> None:
    """It starts nothing itself: what it printed would outlive it."""
    with rig(tmp_path) as made:
        assert made.proxy_process is not None
        made.proxy_process.stop()
        done = made.command("env")
        assert (done.returncode, "Start it: sendonce serve" in done.stderr) == (2, True)


def test_report_is_written_for_programs(running: Rig, tmp_path: Path) -> None:
    """The counts at the end, as `runs --json` has them."""
    path = tmp_path / "report.json"
    run_whole(running, "report", ["true"], "--report", str(path))
    assert json.loads(path.read_text())["passes"][0]["sent"] == 0
