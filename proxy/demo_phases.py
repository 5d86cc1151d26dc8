"""The phases of `sendonce demo`, each a process of its own: a provider, a proxy, an inspection, a naive restart.

Every child runs the very code that runs the demo, whatever the working directory or the environment says. Only
`python -m proxy.demo_phases` is started here beside the two public programs, for the two phases that have no command.
"""

import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import proxy
from ledger.bundle import new_directory
from ledger.epochs import StateDir, sync_directory
from ledger.ids import CallId
from ledger.reader import open_reader
from proxy import evidence

SOURCE: Final = Path(proxy.__path__[0]).parent
WAIT_LIMIT_S: Final = 30  # for anything that takes milliseconds on a healthy machine
POLL_S: Final = 0.01
GRACE_S: Final = 0.5  # how long something that must not happen is given to happen
CREDENTIAL: Final = "Bearer sendonce-demo"
CHAT: Final = "/openai/v1/chat/completions"


class PhaseError(Exception):
    """A phase did not come to its end; the sentence says which and why."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a process of its own reads from a state dir, and the provider's receipts at that moment."""

    calls: list[dict[str, Any]]  # newest first
    shows: list[dict[str, Any]]
    receipts: list[dict[str, Any]]

    @property
    def newest(self) -> dict[str, Any]:
        return self.calls[0]

    @property
    def standing(self) -> str:
        """The newest call's place in the projection."""
        call = self.newest
        return f"{call['stage']}, {call['effect']}, {call['next_operation']}"

    @property
    def call_events(self) -> int:
        """Events about calls; those of the ledger itself come and go with every process."""
        return sum(len(shown["events"]) for shown in self.shows)

    @property
    def unrecorded_receipts(self) -> int:
        """Effects at the provider for which the ledger holds no started attempt with these bytes."""
        effects = Counter(receipt["body_blake3"] for receipt in self.receipts)
        for call in self.calls:
            effects[call["body_blake3"]] -= call["attempts"]
        return sum((+effects).values())


class Process:
    """A child that says on stdout where it listens. Its stderr is kept beside the case."""

    def __init__(self, arguments: list[str], log: Path, failpoints: str = "") -> None:
        self._log = log
        with log.open("wb") as stderr:
            self.child = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=log.parent,
                env=_environment(failpoints),
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self.port = self._announced_port()

    def _announced_port(self) -> int:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if found := re.search(r"on http://[^ ]*:(\d+)", line):
                return int(found[1])
        raise PhaseError(f"a process did not start (exit {self.child.wait()}): {self._log.read_text()[-300:]}")

    def end(self, signum: signal.Signals | None = None) -> int:
        """Sends the signal, if any, and waits; the exit code, negative for the signal that ended it."""
        if signum is not None and self.child.poll() is None:
            self.child.send_signal(signum)
        try:
            return self.child.wait(WAIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise PhaseError(f"the process of {self._log.name} did not end") from None
        finally:
            if self.child.stdout is not None:
                self.child.stdout.close()


@dataclass
class Case:
    """One directory: a provider with its receipts, a state dir, and the proxies that own it one after another."""

    directory: Path
    provider: Process | None = None
    proxy: Process | None = None
    started: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)

    @property
    def state_dir(self) -> Path:
        return self.directory / "state"

    def start_provider(self) -> Process:
        arguments = ["-m", "synthetic_provider", "--port", "0", "--receipts", str(self.directory / "provider.jsonl")]
        self.provider = self._start(arguments, "provider")
        return self.provider

    def start_proxy(self, failpoints: str = "") -> Process:
        """The next owner of the state dir; the one before must be dead."""
        assert self.provider is not None
        upstream = f"openai=http://127.0.0.1:{self.provider.port}"
        arguments = ["-m", "proxy", "serve", "--no-supervisor", "--port", "0"]  # who is killed here stays dead
        arguments += ["--state-dir", str(self.state_dir), "--upstream", upstream]
        self.proxy = self._start(arguments, "proxy", failpoints)
        return self.proxy

    def _start(self, arguments: list[str], name: str, failpoints: str = "") -> Process:
        log = self.directory / f"{len(self.started) + 1}-{name}.stderr"
        self.started.append(Process(arguments, log, failpoints))
        return self.started[-1]

    def receipts(self) -> list[dict[str, Any]]:
        """From the provider's own file: the whole requests that reached it."""
        path = self.directory / "provider.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [receipt for line in lines if (receipt := json.loads(line))["complete"]]

    def inspect(self) -> Inspection:
        lines = [json.loads(line) for line in run_phase("inspect", str(self.state_dir)).splitlines()]
        self._put_on_record(*lines)
        said = {what: [line["document"] for line in lines if line["what"] == what] for what in ("calls", "show")}
        return Inspection(said["calls"], said["show"], self.receipts())

    def ask_again(self, body: bytes, key: str | None) -> "Answer | None":
        """A refusal goes on record with the ledger's head before and after it: it may have changed nothing."""
        assert self.proxy is not None
        before = self.head()
        answer = ask(self.proxy.port, body, key)
        if answer is not None and (code := answer.refusal) is not None:
            document = {"status": answer.status, "code": code}
            self._put_on_record({"what": "refusal", "head": before, "head_after": self.head(), "document": document})
        return answer

    def _put_on_record(self, *lines: dict[str, Any]) -> None:
        with (self.directory / "inspections.jsonl").open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def head(self) -> dict[str, Any] | None:
        """The ledger's newest event now; read beside the living proxy."""
        return asyncio.run(evidence.head(_paths(self.state_dir)))

    def verdict(self) -> str:
        """Of the independent verifier, on a bundle of all that was recorded here."""
        directory = self.directory / "bundle"
        given = {"--state-dir": "state", "--provider-receipts": "provider.jsonl", "--inspections": "inspections.jsonl"}
        options = [word for name, path in given.items() for word in (name, str(self.directory / path))]
        run("-m", "proxy", "export", str(directory), *options)
        return str(json.loads(run("-m", "ledger.verifier", str(directory), "--json", fails=True))["verdict"])

    def copy_to(self, directory: Path) -> "Case":
        """The state dir without its socket, and the provider's receipts. Only while nothing owns the state dir."""
        copy = Case(directory)
        shutil.copytree(self.state_dir, copy.state_dir, ignore=shutil.ignore_patterns("*.sock"))
        shutil.copy(self.directory / "provider.jsonl", directory)
        return copy

    def close(self) -> None:
        for process in self.started:
            process.end(signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client saw of one answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool

    @property
    def refusal(self) -> str | None:
        """Its code, where the proxy itself answered."""
        disposition = self.headers.get("sendonce-disposition", "")
        return str(json.loads(self.body).get("code")) if disposition == "refused" and self.is_whole else None

    @property
    def text(self) -> str:
        """`200 resumed`, `400 drift`: the status, and the refusal's code or how it came about."""
        told = self.refusal or self.headers.get("sendonce-disposition", "")
        return f"{self.status} {told}" if self.is_whole else f"{self.status} without its end"


def ask(port: int, body: bytes, key: str | None, *, end_within_s: float = WAIT_LIMIT_S) -> Answer | None:
    """One request on a connection of its own. None when no head came before the connection broke.

    All but the last byte is waited for as long as it takes; the last one for `end_within_s`.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_LIMIT_S)
    about = {"Content-Type": "application/json", "Authorization": CREDENTIAL}
    try:
        connection.request("POST", CHAT, body, about | ({"Idempotency-Key": key} if key else {}))
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        length = int(headers["content-length"])
        received = _read(connection, response, length, end_within_s)
        return Answer(response.status, headers, received, is_whole=len(received) == length)
    except (http.client.HTTPException, ConnectionError):
        return None
    finally:
        connection.close()


def _read(
    connection: http.client.HTTPConnection, response: http.client.HTTPResponse, length: int, end_within_s: float
) -> bytes:
    received = b""
    try:
        received = response.read(length - 1)
        if connection.sock is not None:
            connection.sock.settimeout(end_within_s)
        return received + response.read(1)
    except (TimeoutError, http.client.IncompleteRead, ConnectionError):
        return received


def ask_aside(port: int, body: bytes, key: str | None) -> None:
    """A client whose answer nobody waits for."""
    threading.Thread(target=ask, args=(port, body, key), daemon=True).start()


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + WAIT_LIMIT_S
    while not holds():
        if time.monotonic() > limit:
            raise PhaseError(f"{what} did not come within {WAIT_LIMIT_S} s")
        time.sleep(POLL_S)


def run_phase(*arguments: str) -> str:
    return run("-m", "proxy.demo_phases", *arguments)


def run(*arguments: str, fails: bool = False) -> str:
    """`python ARGUMENTS` to its end; its stdout. `fails`: its exit code tells what its stdout tells too."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=SOURCE,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=False,
    )
    if done.returncode and not fails:
        raise PhaseError(f"{' '.join(arguments[:3])} failed: {done.stderr[-300:]}")
    return done.stdout


def _environment(failpoints: str = "") -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SENDONCE_")}
    path = os.pathsep.join(filter(None, (str(SOURCE), clean.get("PYTHONPATH"))))
    own = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    return clean | own | ({"SENDONCE_FAILPOINTS": failpoints} if failpoints else {})


@contextmanager
def evidence_directory(directory: Path | None) -> Iterator[Path]:
    """`directory` itself, kept; without it a temporary directory that is removed. Raises BundleError."""
    if directory is not None:
        yield new_directory(directory)
        return
    root = Path(tempfile.mkdtemp(prefix="sendonce-demo-"))
    try:
        yield root
    finally:
        shutil.rmtree(root)


def write_durably(path: Path, content: Any) -> None:
    """On disk, and its name too, when this returns."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)


# --- the two phases without a command of their own -----------------------------------------------------------------------


def _paths(state_dir: Path) -> StateDir:
    return StateDir(state_dir, state_dir / "receipts")


async def _naive(state_dir: Path, call: CallId, port: int) -> int:
    """What restart loops do: the recorded request, its very bytes and key, straight to the provider. The status."""
    async with open_reader(_paths(state_dir).ledger) as reader:
        state = await reader.call(call)
        if state is None or state.manifest is None:
            raise PhaseError(f"{call} has no manifest in {state_dir}")
        recorded = state.manifest
        body = b"".join([piece async for piece in reader.body(recorded.body.digest)])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_LIMIT_S)
    about = {"Authorization": CREDENTIAL, **dict(recorded.headers), **dict(recorded.injected)}
    connection.request(recorded.method, urlsplit(recorded.url).path, body, about)
    return connection.getresponse().status


def main() -> None:
    match sys.argv[1:]:
        case ["inspect", state_dir]:
            for line in asyncio.run(evidence.inspections(_paths(Path(state_dir)))):
                print(json.dumps(line))
        case ["naive", state_dir, call, port]:
            print(asyncio.run(_naive(Path(state_dir), CallId(call), int(port))))
        case other:
            raise SystemExit(f"{other} is no phase: name inspect or naive.")


if __name__ == "__main__":
    main()
