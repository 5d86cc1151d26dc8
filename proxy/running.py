"""`sendonce run`: one pass of a run around a command, against the proxy that lives or one that lives as long as the command."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ledger.epochs import StateDir
from proxy import console, environment, inspection
from proxy.control import ask_owner
from proxy.environment import Behind
from proxy.passes import BadRunError

EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE, EXIT_SIGNAL = 127, 126, 128  # as shells have them
LISTENS: Final = "sendonce listens on "
# What a terminal sends to the whole group, the command included, is left to the command.
PASSED_ON: Final = (signal.SIGTERM, signal.SIGHUP)


class CommandError(Exception):
    """The command cannot be started; nothing was opened for it."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class ProxyStartError(Exception):
    """The proxy that was started for the command ended before it listened; it has said why. Its exit code goes on."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Pass:
    """An open pass, and where its requests go."""

    run: str
    number: int
    base: str
    gates: list[dict[str, Any]]
    earlier: int | None
    earlier_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Owner:
    """The living proxy: where it listens, and its upstreams."""

    url: str
    upstreams: dict[str, Behind]

    def variables(self, base: str) -> dict[str, str]:
        """Raises ElsewhereError."""
        return environment.variables(self.upstreams, self.url, base, os.environ)


def checked_command(command: Sequence[str]) -> None:
    """Raises CommandError."""
    if shutil.which(command[0]) is not None:
        return
    exists = Path(command[0]).exists()
    what = "cannot be executed" if exists else "does not exist"
    raise CommandError(
        f"The command {command[0]!r} {what}. Name one that can be started behind --, as in: sendonce run --id nightly -- python agent.py",
        EXIT_NOT_EXECUTABLE if exists else EXIT_NOT_FOUND,
    )


def open_pass(state_dir: StateDir, run: str, on_divergence: str) -> Pass:
    """Asks the living owner. Raises OwnerUnreachableError, OwnerSilentError, BadRunError."""
    asked = {"run": run, "on_divergence": on_divergence}
    _, answer = console.run(ask_owner(state_dir.control_socket, "POST", "/passes", asked))
    if "refused" in answer:
        raise BadRunError(answer["refused"])
    base = environment.base_url(answer["url"], run, answer["segment"])
    return Pass(run, answer["number"], base, answer["gates"], answer["earlier"], answer["earlier_at_ms"])


def owner_of(state_dir: StateDir) -> Owner | None:
    found = console.run(inspection.alive_calls(state_dir))
    if found is None:
        return None
    return Owner(found["url"], {name: Behind(**about) for name, about in found["upstreams"].items()})


@contextmanager
def proxy_for(state_dir: StateDir, arguments: Sequence[str]) -> Iterator[Owner]:
    """The living owner of the state dir, else one that is started and ends with this process. Raises ProxyStartError."""
    if (owner := owner_of(state_dir)) is not None:
        yield owner
        return
    lifeline, ours = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "proxy", "serve", "--port", "0", "--lifeline-fd", str(lifeline), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=(lifeline,),
        process_group=0,  # what a terminal sends is not for it: it ends when the command has
        text=True,
    )
    os.close(lifeline)
    try:
        assert child.stdout is not None
        listens = any(line.startswith(LISTENS) for line in child.stdout)
        if (owner := owner_of(state_dir) if listens else None) is None:
            raise ProxyStartError("The proxy for this run did not start.", child.wait())
        yield owner
    finally:
        os.close(ours)
        child.wait()


def run_command(command: Sequence[str], variables: dict[str, str]) -> int:
    """Its exit code; 128 and the number where a signal ended it."""
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(signum: int, _: FrameType | None) -> None:
        for child in children:
            child.send_signal(signum)
        if not children:
            early.append(signum)

    before = {signum: signal.signal(signum, pass_on) for signum in PASSED_ON}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)  # not ignored: the command would inherit that
    try:
        children.append(child := subprocess.Popen(command, env={**os.environ, **variables}))
        for signum in early:
            child.send_signal(signum)
        code = child.wait()
    finally:
        for signum, action in before.items():
            signal.signal(signum, action)
    return code if code >= 0 else EXIT_SIGNAL - code
