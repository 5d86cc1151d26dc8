"""`sendonce run`: one pass of a run around a command, against the proxy that lives or one that lives as long as the command."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ledger.epochs import Lock, StateDir
from ledger.errors import StateDirError
from proxy import console, environment
from proxy.console import EXIT_DECISION, EXIT_POISONED, say
from proxy.control import ask_owner
from proxy.environment import Behind
from proxy.owner import alive_calls
from proxy.passes import BadRunError
from proxy.supervisor import STOP_MARGIN_S

EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE, EXIT_SIGNAL = 127, 126, 128  # as shells have them
LISTENS: Final = "sendonce listens on "
TERMINAL: Final = "/dev/tty"
PASSED_ON: Final = (signal.SIGTERM, signal.SIGHUP)
LOOK_S: Final = 0.2  # whether a proxy is gone; a person waits for it, and a look costs a socket
GONE_MARGIN_S: Final = STOP_MARGIN_S + 5  # beside timeouts.stop_s: a supervisor kills after ten, and then ends itself


class NotRunError(Exception):
    """The command did not run: it cannot be started (126, 127), its proxy did not listen and has said why (that one's code), or no
    pass was opened although the run's id is fine: others start it all the time (6), or the disk failed (70).
    """

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
    """The living proxy: where it listens, and its upstreams. `draining`: it ends, and takes no request any more."""

    url: str
    upstreams: dict[str, Behind]
    draining: bool

    def variables(self, base: str) -> dict[str, str]:
        """Raises ElsewhereError."""
        return environment.variables(self.upstreams, self.url, base, os.environ)


def checked_command(command: Sequence[str]) -> None:
    """Raises NotRunError."""
    if shutil.which(command[0]) is not None:
        return
    exists = Path(command[0]).exists()
    what = "cannot be executed" if exists else "does not exist"
    raise NotRunError(
        f"The command {command[0]!r} {what}. Name one that can be started behind --, as in: sendonce run --id nightly -- python agent.py",
        EXIT_NOT_EXECUTABLE if exists else EXIT_NOT_FOUND,
    )


def open_pass(state_dir: StateDir, run: str, on_divergence: str) -> Pass:
    """Asks the living owner. Raises OwnerUnreachableError, OwnerSilentError, BadRunError, NotRunError."""
    asked = {"run": run, "on_divergence": on_divergence}
    _, answer = console.run(ask_owner(state_dir.control_socket, "POST", "/passes", asked))
    if "refused" in answer:
        raise BadRunError(answer["refused"])
    if "conflict" in answer:
        raise NotRunError(f"No pass was opened: {answer['conflict']}.", EXIT_DECISION)
    if "poisoned" in answer:
        raise NotRunError(
            f"No pass was opened, since the proxy over {state_dir.root} cannot record: {answer['poisoned']}. It ends and recovers at "
            "its next start. If the disk is full or failing, mend that first.",
            EXIT_POISONED,
        )
    base = environment.base_url(answer["url"], run, answer["segment"])
    return Pass(run, answer["number"], base, answer["gates"], answer["earlier"], answer["earlier_at_ms"])


def owner_of(state_dir: StateDir) -> Owner | None:
    found = console.run(alive_calls(state_dir))
    if found is None:
        return None
    upstreams = {name: Behind(**about) for name, about in found["upstreams"].items()}
    return Owner(found["url"], upstreams, found["draining"])


@dataclass(frozen=True, slots=True)
class _OwnProxy:
    """One that was started for this command."""

    child: subprocess.Popen[str]
    lifeline_fd: int
    relay: threading.Thread  # of what it says

    def ended(self) -> int:
        """Its exit code, once all that it said is told."""
        self.relay.join()
        return self.child.wait()


@contextmanager
def proxy_for(state_dir: StateDir, arguments: Sequence[str], stop_s: float) -> Iterator[Owner]:
    """The living owner of the state dir, else one that is started, and ends when every run that uses it has.

    `stop_s`: how long an owner may drain. Raises NotRunError, and StateDirError where one does not end.
    """
    state_dir.prepare_root()
    turn = _turn(state_dir)
    try:
        use, found = _found(state_dir, stop_s + GONE_MARGIN_S)
        owner, own = (found, None) if found is not None else _started(state_dir, arguments)
    finally:
        turn.release()
    try:
        yield owner
    finally:
        _leave(state_dir, use, own)


def _turn(state_dir: StateDir) -> Lock:
    """One at a time looks for an owner, and starts or ends one."""
    if (turn := state_dir.turn(wait=False)) is None:
        say(f"Another sendonce run starts or ends a proxy over {state_dir.root}; this one waits for that.")
        turn = state_dir.turn(wait=True)
        assert turn is not None
    return turn


def _found(state_dir: StateDir, limit_s: float) -> tuple[Lock, Owner | None]:
    """A share in the owner's use, and the owner; None: there is none. Waits for one that ends, or starts. Raises StateDirError."""
    use: Lock | None = None
    deadline_s: float | None = None
    while True:
        use = use or state_dir.use()
        owner = owner_of(state_dir)
        if use is not None and owner is not None and not owner.draining:
            return use, owner
        if use is not None and owner is None and not state_dir.is_owned():
            return use, None
        if deadline_s is None:
            deadline_s = time.monotonic() + limit_s
            say(
                f"The proxy over {state_dir.root} is ending or starting, and may wait for answers; this run waits for it, up to "
                f"{limit_s:g} s."
            )
        elif time.monotonic() > deadline_s:
            raise StateDirError(
                f"The proxy over {state_dir.root} neither ended nor served within {limit_s:g} s. End it "
                f"(process {state_dir.owner_named()}), or give the run another --state-dir."
            )
        time.sleep(LOOK_S)


def _started(state_dir: StateDir, arguments: Sequence[str]) -> tuple[Owner, _OwnProxy]:
    """It listens. Raises NotRunError."""
    lifeline_fd, ours = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "proxy", "serve", "--port", "0", "--lifeline-fd", str(lifeline_fd), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,  # it may outlive this run: whoever reads our stderr to its end does not wait for that
        pass_fds=(lifeline_fd,),
        process_group=0,  # what a terminal sends is not for it: it ends when the command has
        text=True,
        errors="replace",
    )
    os.close(lifeline_fd)
    own = _OwnProxy(child, ours, threading.Thread(target=_relay, args=(child.stderr,), daemon=True))
    own.relay.start()
    assert child.stdout is not None
    listens = any(line.startswith(LISTENS) for line in child.stdout)
    if (owner := owner_of(state_dir) if listens else None) is None:
        os.close(ours)
        raise NotRunError("The proxy for this run did not start.", own.ended())
    return owner, own


def _relay(said: Iterable[str]) -> None:
    for line in said:
        with suppress(OSError):  # a reader that is gone; the proxy's pipe must not fill for that
            os.write(sys.stderr.fileno(), line.encode())


def _leave(state_dir: StateDir, use: Lock, own: _OwnProxy | None) -> None:
    """A proxy of its own is waited for, unless other runs use it: then it ends behind the last of them."""
    if own is None:
        use.release()
        return
    turn = _turn(state_dir)  # so nobody begins to use it while it is asked who does
    use.release()
    if (unused := state_dir.unused()) is not None:
        unused.release()
    os.close(own.lifeline_fd)
    if unused is not None:
        own.ended()
    turn.release()


def run_command(command: Sequence[str], variables: dict[str, str]) -> int:
    """Its exit code; 128 and the number where a signal ended it. Raises NotRunError.

    What a terminal sends, SIGINT, reaches the whole group, the command included. Where there is none it is passed on.
    """
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(signum: int, _: FrameType | None) -> None:
        for child in children:
            child.send_signal(signum)
        if not children:
            early.append(signum)

    before = {signum: signal.signal(signum, pass_on) for signum in PASSED_ON}
    # Not ignored where it is left to the terminal: the command would inherit that.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, (lambda *_: None) if _has_terminal() else pass_on)
    try:
        try:
            children.append(child := subprocess.Popen(command, env={**os.environ, **variables}))
        except OSError as error:
            raise NotRunError(
                f"The command {command[0]!r} cannot be executed ({error.strerror}). A script needs #! and a program that is there in "
                "its first line.",
                EXIT_NOT_EXECUTABLE,
            ) from error
        for signum in early:
            child.send_signal(signum)
        code = child.wait()
    finally:
        for signum, action in before.items():
            signal.signal(signum, action)
    return code if code >= 0 else EXIT_SIGNAL - code


def _has_terminal() -> bool:
    try:
        os.close(os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
