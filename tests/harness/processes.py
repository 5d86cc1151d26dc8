"""Real processes for product tests: a synthetic provider and the proxy, started, killed and started again over one state dir."""

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3

from ledger.epochs import StateDir
from ledger.events import CallRequested
from ledger.ids import CallId
from ledger.reader import open_reader
from proxy import inspection

ROOT = Path(__file__).resolve().parents[2]
ANSWER_LIMIT_S = 30
ALONE = {"SENDONCE_SUPERVISOR": "false"}  # most tests mean the serving process when they kill "the proxy"
SUPERVISED = {"SENDONCE_SUPERVISOR": "true"}
ASK_AGAIN_S = 0.03  # also how long `settled` sees nothing follow
T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """One whole HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def disposition(self) -> str | None:
        return self.headers.get("sendonce-disposition")

    @property
    def code(self) -> str | None:
        found: str | None = self.json.get("code")
        return found


def chat(model: str = "synthetic", text: str = "hello", *, stream: bool = False) -> bytes:
    """An OpenAI chat request body."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}]}
    return json.dumps(body | ({"stream": True} if stream else {})).encode()


def message(model: str = "synthetic", text: str = "hello", *, stream: bool = False) -> bytes:
    """An Anthropic messages request body."""
    body: dict[str, Any] = {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": text}]}
    return json.dumps(body | ({"stream": True} if stream else {})).encode()


class Process:
    """A child process that says on stdout when it listens."""

    def __init__(
        self,
        arguments: list[str],
        ready: str,
        environment: dict[str, str] | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SENDONCE_")}
        self.child = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**clean, **ALONE, "PYTHONUNBUFFERED": "1", **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
        )
        self.said: list[str] = []
        self.complained = ""  # stderr, once it has ended
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.said.append(line)
            if found := re.search(ready, line):
                self.port = int(found[1])
                return
        self.child.wait()
        self._close()
        raise StartFailed(self.child.returncode, "".join(self.said), self.complained)

    def wait(self) -> int:
        """Until it ends by itself; its exit code (negative: the signal)."""
        return self.child.wait(ANSWER_LIMIT_S)

    def kill(self) -> None:
        """SIGKILL: no cleanup of any kind runs."""
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()
        self._close()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.child.send_signal(signal.SIGTERM)
        code = self.wait()
        self._close()
        return code

    def _close(self) -> None:
        """Keeps what it said last, for tests that read every byte of it."""
        assert self.child.stdout is not None
        assert self.child.stderr is not None
        if not self.child.stdout.closed:
            self.said += self.child.stdout.readlines()
            self.complained = self.child.stderr.read()
        self.child.stdout.close()
        self.child.stderr.close()

    def close(self) -> None:
        if self.child.poll() is None:
            self.kill()
        self._close()


def until(asked: Callable[[], T]) -> T:
    """Asks again until the answer is true; one that never is fails the test. A fact of another process can only be polled for."""
    deadline = time.monotonic() + ANSWER_LIMIT_S
    while not (answer := asked()):
        if time.monotonic() > deadline:
            raise AssertionError(f"It did not come true within {ANSWER_LIMIT_S} s: {asked}")
        time.sleep(ASK_AGAIN_S)
    return answer


class StartFailed(Exception):  # noqa: N818 - an outcome that tests expect
    """The process ended before it listened."""

    def __init__(self, code: int, out: str, err: str) -> None:
        super().__init__(f"exit {code}: {out}{err}")
        self.code, self.out, self.err = code, out, err


@dataclass
class Rig:
    """One provider, one state dir, and the proxies that own it one after another."""

    directory: Path
    provider_process: Process
    arguments: list[str] = field(default_factory=list)
    proxy_process: Process | None = None
    state_name: str = "state"  # several rigs may share one provider
    supervised: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def state_dir(self) -> Path:
        return self.directory / self.state_name

    @property
    def receipts_file(self) -> Path:
        return self.directory / "provider.jsonl"

    @property
    def provider_url(self) -> str:
        return f"http://127.0.0.1:{self.provider_process.port}"

    @property
    def port(self) -> int:
        assert self.proxy_process is not None
        return self.proxy_process.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, failpoints: str = "", *extra: str) -> Process:
        """Starts a proxy over the state dir; the one before must be dead. Raises StartFailed."""
        if self.proxy_process is not None and self.proxy_process.child.poll() is not None:
            self.proxy_process.close()
        arguments = ["-m", "proxy", "serve", "--port", "0", "--state-dir", str(self.state_dir)]
        for name in ("openai", "anthropic"):
            arguments += ["--upstream", f"{name}={self.provider_url}"]
        environment = self.environment | ({"SENDONCE_FAILPOINTS": failpoints} if failpoints else {})
        environment |= SUPERVISED if self.supervised else {}
        self.proxy_process = Process(
            arguments + self.arguments + list(extra), r"listens on http://[^ ]*:(\d+)", environment
        )
        return self.proxy_process

    @property
    def serving_pid(self) -> int:
        """The supervisor's child. Raises IndexError where none lives at the moment."""
        assert self.proxy_process is not None
        return children_of(self.proxy_process.child.pid)[0]

    def restart(self, failpoints: str = "") -> None:
        """SIGKILL, then a new process over the same state dir."""
        assert self.proxy_process is not None
        self.proxy_process.close()
        self.start(failpoints)

    def post(
        self,
        path: str,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        method: str = "POST",
        port: int | None = None,
    ) -> Answer:
        """One request on a connection of its own. Raises ConnectionError or http.client's errors when it is cut."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=ANSWER_LIMIT_S)
        about = {"Content-Type": "application/json", "Authorization": "Bearer sk-test-caller", **(headers or {})}
        try:
            connection.request(method, path, body, about)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def chat(self, body: bytes, headers: dict[str, str] | None = None) -> Answer:
        return self.post("/openai/v1/chat/completions", body, headers)

    def messages(self, body: bytes, headers: dict[str, str] | None = None) -> Answer:
        return self.post("/anthropic/v1/messages", body, {"anthropic-version": "2023-06-01", **(headers or {})})

    def provider_receipts(self, method: str = "POST") -> list[dict[str, Any]]:
        """What the provider itself wrote down, whole requests only."""
        if not self.receipts_file.exists():
            return []
        whole, _, _ = self.receipts_file.read_text().rpartition("\n")  # a line may be read while it is being written
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line for line in lines if line["method"] == method and line["complete"]]

    def calls(self) -> list[dict[str, Any]]:
        """The rows of `sendonce calls --json`, newest first."""
        return asyncio.run(inspection.calls(self.paths, 1000, None)).rows

    def show(self, call: str) -> dict[str, Any]:
        return asyncio.run(inspection.show(self.paths, call))  # type: ignore[arg-type]

    def claim(self, call: str) -> CallRequested:
        """The first event of a call that was admitted, as it stands in the ledger."""

        async def read() -> Any:
            async with open_reader(self.paths.ledger) as reader:
                return (await reader.events(CallId(call)))[0].event

        event = asyncio.run(read())
        assert isinstance(event, CallRequested)
        return event

    def status(self) -> dict[str, Any]:
        return asyncio.run(inspection.status(self.paths))

    def settled(self) -> None:
        """Until nothing is in flight and no event has followed for a moment: deliveries are recorded when sockets close."""
        seen = -1

        def still() -> bool:
            nonlocal seen
            status = self.status()
            before, seen = seen, status["events"]
            return not status["in_flight"] and seen == before

        until(still)

    def await_receipt(self, body: bytes, count: int = 1) -> None:
        """Until the provider has written down that many receipts of exactly these bytes."""
        digest = blake3(body).hexdigest()
        until(lambda: [line["body_blake3"] for line in self.provider_receipts()].count(digest) >= count)

    @property
    def paths(self) -> StateDir:
        return StateDir(self.state_dir, self.state_dir / "receipts")

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`sendonce ARGUMENTS --state-dir …` as a process of its own."""
        return subprocess.run(
            [sys.executable, "-m", "proxy", *arguments, "--state-dir", str(self.state_dir)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def leave(self) -> None:
        """Ends the proxy and keeps its state dir, without the preallocated room: one run of the tests makes hundreds of them."""
        if self.proxy_process is not None:
            self.proxy_process.close()
        self.paths.reserve.unlink(missing_ok=True)

    def close(self) -> None:
        self.leave()
        self.provider_process.close()


def start_provider(receipts: Path, *extra: str, port: int = 0) -> Process:
    arguments = ["-m", "synthetic_provider", "--port", str(port), "--receipts", str(receipts), *extra]
    return Process(arguments, r"on http://[^ ]*:(\d+)")


@contextmanager
def provider_in(directory: Path, *extra: str) -> Iterator[Rig]:
    """A provider that no proxy stands before yet; `extra` are for those that will."""
    made = Rig(directory, start_provider(directory / "provider.jsonl"), list(extra))
    try:
        yield made
    finally:
        made.close()


@contextmanager
def rig(directory: Path, *extra: str) -> Iterator[Rig]:
    """A provider and a running proxy in `directory`; `extra` are arguments for `serve`."""
    with provider_in(directory, *extra) as made:
        made.start()
        yield made


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def peak_bytes(pid: int) -> int:
    """The most that this process ever had in memory at once (VmHWM), and each of its children, however old."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024 + sum(map(peak_bytes, children_of(pid)))
