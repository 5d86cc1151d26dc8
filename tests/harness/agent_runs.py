"""`sendonce run` around a program, as a process tree that is killed whole, and what the run's own counts say."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.harness.processes import ALONE, ROOT, Rig

AGENT: Final = ROOT / "tests" / "clients" / "programs" / "agent.py"
KEYS: Final = {"OPENAI_API_KEY": "sk-test-caller", "ANTHROPIC_API_KEY": "sk-ant-test-caller"}
LIMIT_S: Final = 60
# Waits until so many programs have got so far, and asks once. Prints its pass and the code of a refusal, else null.
MEETS: Final = """
import json, os, pathlib, sys, time, urllib.error, urllib.request
base, place = os.environ["OPENAI_BASE_URL"], pathlib.Path(sys.argv[1])
(place / str(os.getpid())).touch()
while len(list(place.iterdir())) < int(sys.argv[2]):
    time.sleep(0.02)
body = json.dumps({"model": "synthetic", "messages": [{"role": "user", "content": "hello"}]}).encode()
asked = urllib.request.Request(base + "/chat/completions", body, {"Content-Type": "application/json", "Authorization": "Bearer x"})
try:
    code = json.loads(urllib.request.urlopen(asked).read()).get("code")
except urllib.error.HTTPError as error:
    code = json.loads(error.read())["code"]
print(json.dumps([base.split("/run/")[1].split("/")[1].split("-")[0], code]))
"""
Script = Sequence[tuple[str, str, int]]  # model, prompt, samples


@dataclass(frozen=True)
class Ended:
    """What a person sees of it: the answers, the exit code, and what both programs said."""

    code: int
    out: str
    err: str

    @property
    def answers(self) -> list[str]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True)
class Started:
    """`sendonce run` and all that it started."""

    child: subprocess.Popen[str]

    def ended(self) -> Ended:
        out, err = self.child.communicate(timeout=LIMIT_S)
        return Ended(self.child.returncode, out, err)

    def kill(self) -> None:
        """SIGKILL to all of it at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)


@contextmanager
def started(
    rig: Rig,
    run: str | None,
    command: Sequence[str],
    *options: str,
    before: Sequence[str] = (),
    pass_fds: Sequence[int] = (),
    **environment: str,
) -> Iterator[Started]:
    """`sendonce run OPTIONS -- COMMAND` over the rig's state dir; `before`: a program, with arguments, that becomes it."""
    named = ["--id", run] if run is not None else []
    becomes = [sys.executable, "-c", *before] if before else []
    child = subprocess.Popen(
        [
            *becomes,
            sys.executable,
            "-m",
            "proxy",
            "run",
            *named,
            "--state-dir",
            str(rig.state_dir),
            *options,
            "--",
            *command,
        ],
        cwd=ROOT,
        env={**_clean(), **ALONE, **KEYS, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        pass_fds=pass_fds,
    )
    made = Started(child)
    with child:
        try:
            yield made
        finally:
            made.kill()


def agent(client: str, script: Script) -> list[str]:
    return [sys.executable, str(AGENT), client, json.dumps(script)]


def meets(place: Path, programs: int) -> list[str]:
    """`MEETS` as a command; `place` is an empty directory that they share."""
    place.mkdir(exist_ok=True)
    return [sys.executable, "-c", MEETS, str(place), str(programs)]


def until_exists(path: Path, then: Sequence[str] = ("true",)) -> list[str]:
    """A command that says "ready", waits for a file, and becomes another command."""
    waits = 'echo \'"ready"\'; while [ ! -e "$0" ]; do sleep 0.05; done; exec "$@"'
    return ["sh", "-c", waits, str(path), *then]


def is_ready(made: Started) -> None:
    """Waits for a command's first line."""
    assert made.child.stdout is not None
    assert made.child.stdout.readline() == '"ready"\n'


def run_whole(rig: Rig, run: str | None, command: Sequence[str], *options: str, **environment: str) -> Ended:
    with started(rig, run, command, *options, **environment) as made:
        return made.ended()


def kill_both(rig: Rig, made: Started) -> None:
    """The proxy first: its death is no news to an agent that is dead already."""
    assert rig.proxy_process is not None
    rig.proxy_process.kill()
    made.kill()
    made.child.communicate()


def passes(rig: Rig, run: str) -> list[dict[str, Any]]:
    """The counts of each pass, as `sendonce runs RUN --json` gives them."""
    found: list[dict[str, Any]] = json.loads(rig.command("runs", run, "--json").stdout)["passes"]
    return found


def counts(row: dict[str, Any]) -> dict[str, int]:
    return {name: row[name] for name in ("sent", "replayed", "attached", "refused", "diverged")}


def settle_all(rig: Rig) -> int:
    """Each unresolved call is ruled not served. How many there were: each is an acceptance on record."""
    unresolved = rig.status()["unresolved"]
    for call in unresolved:
        done = rig.command("reconcile", call, "--not-served", "--reason", "the test's provider was asked")
        assert done.returncode == 0, done.stderr
    return len(unresolved)


def _clean() -> dict[str, str]:
    """Nothing of this process's environment that a client or sendonce would read."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("SENDONCE_") and "_BASE" not in name
    }
