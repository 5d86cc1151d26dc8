"""Every state that a crash of the real proxy may leave, enumerated from a trace of its system calls and reopened.

`python -m tests.harness.crash_states --requests N --seed S [--stream]` in any copy of the tree: exit code 1 and the names
of what is broken, if anything is. The technique is ALICE's (Pillai and others, OSDI 2014).
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from ledger.ids import CallId
from proxy.settings import load, upstream_overrides
from tests.harness import syscalls
from tests.harness.crash_checks import Bench, Broken, Outside, Reopened, Step, Violation, progress, violations
from tests.harness.crashes import CHAT_PATH, MESSAGES_PATH, records_of, until
from tests.harness.disk import Disk, State
from tests.harness.figures import noted
from tests.harness.injection import PROXY
from tests.harness.processes import Process, Rig, chat, message, start_provider
from tests.harness.wire_marks import Begun, Wire

ENOUGH: Final = 200  # broken states, after which more say nothing new
AUDITED_EVERY: Final = 40  # states: an export and its audit take as long as five reopenings
TAIL_BYTES: Final = 4096  # of a trace; more than its last line

Request = tuple[str, bytes, dict[str, str]]
Conversation = list[Request]  # one after another: a retry comes when its first try has ended


# --- the run -----------------------------------------------------------------------------------------------------------


def conversations(count: int, *, stream: bool, rng: random.Random) -> list[Conversation]:
    """`count` requests: plain and large answers, derived and explicit keys, second samples, replays, and retries of errors."""
    made: list[Conversation] = []
    while sum(map(len, made)) < count:
        text, key = f"request {len(made)}", {"Idempotency-Key": f"key-{len(made)}"}
        ask = partial(chat, text=text, stream=stream)
        patterns: tuple[Conversation, ...] = (
            [(CHAT_PATH, ask("synthetic/chunks=3"), {})] * 2,
            [(CHAT_PATH, ask("synthetic/chunks=2"), key)] * 2,
            [(CHAT_PATH, ask("synthetic/status=400,times=1,chunks=1"), key)] * 2,
            [(CHAT_PATH, ask("synthetic/status=500,times=1,chunks=1"), key)] * 2,
            [(MESSAGES_PATH, message("synthetic/chunks=2", text, stream=stream), key)],
            [(CHAT_PATH, ask("synthetic/size=20000,chunks=2"), {})],
        )
        made.append(patterns[len(made) % len(patterns)])
    made[-1] = made[-1][: count - sum(map(len, made[:-1]))]
    rng.shuffle(made)
    return made


def hold(rig: Rig, conversation: Conversation) -> None:
    for path, body, headers in conversation:
        answer = rig.post(path, body, {"anthropic-version": "2023-06-01", **headers})
        if answer.status >= HTTPStatus.BAD_REQUEST:  # else its retry would attach to it
            until(partial(records_of, rig, answer.headers["sendonce-call"], "call.completed"))


@dataclass(frozen=True, slots=True)
class Recording:
    """A run of the proxy, as its trace tells it."""

    root: Path
    provider_url: str
    before: dict[str, bytes]
    operations: list[syscalls.Operation]
    wire: Wire


def _is_over(trace: Path, pid: int) -> bool:
    """Has strace written down the end of the process, which it does last?"""
    with trace.open("rb") as file:
        file.seek(max(0, trace.stat().st_size - TAIL_BYTES))
        last = file.read().splitlines()[-1]
    return last.startswith(b"%d " % pid) and b"+++" in last


def record(rig: Rig, drive: Callable[[], None], *, kill: bool, program: tuple[str, ...] = PROXY) -> Recording:
    """The proxy under strace over the rig's state dir, while `drive` uses it; then SIGKILL, or a stop."""
    trace = rig.directory / "proxy.trace"
    before = {str(path): path.read_bytes() for path in rig.state_dir.rglob("*") if path.is_file()}
    command = [*syscalls.STRACE, "-o", str(trace), sys.executable, *program, "serve", "--port", "0"]
    command += ["--state-dir", str(rig.state_dir)]
    for name in ("openai", "anthropic"):
        command += ["--upstream", f"{name}={rig.provider_url}"]
    small = {"SENDONCE_LIMITS__DISK_RESERVE_BYTES": "4096"}  # each state has a copy of it
    traced = Process(["-c", syscalls.BECOME, *command], r"listens on http://[^ ]*:(\d+)", small)
    rig.proxy_process = traced
    try:
        drive()
    finally:
        traced.kill() if kill else traced.stop()
    until(lambda: _is_over(trace, traced.child.pid))
    existing = {path: content for path, content in before.items() if not path.endswith(syscalls.IGNORED)}
    operations = syscalls.operations(trace, rig.state_dir, existing)
    provider_port = rig.provider_process.port
    return Recording(rig.state_dir, rig.provider_url, existing, operations, Wire(provider_port, traced.port))


# --- the enumeration ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """A violation, and the first state that shows it."""

    violation: Violation
    point: int
    operation: str
    state: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A state as one call meets it: how many epochs were open, how many leading steps of the call it holds."""

    epochs: int
    steps: int


@dataclass(slots=True)
class Report:
    """What was looked at, and what is broken."""

    events: int
    file_operations: int = 0
    crash_points: int = 0
    distinct_states: int = 0
    audited: int = 0  # of them
    seconds: float = 0.0
    broken: Counter[Broken] = field(default_factory=Counter)
    first: dict[Broken, Found] = field(default_factory=dict)
    covered: dict[CallId, set[Moment]] = field(default_factory=dict)
    began: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, Any]:
        return {
            "events": self.events, "file_operations": self.file_operations, "requests_sent": sum(self.began.values()),
            "crash_points": self.crash_points, "distinct_states": self.distinct_states,
            "audited": self.audited, "seconds": round(self.seconds, 1), "broken": dict(self.broken),
        }  # fmt: skip

    def covered_steps(self) -> set[int]:
        return {moment.steps for moments in self.covered.values() for moment in moments}

    def __str__(self) -> str:
        lines = [" ".join(f"{name}={value}" for name, value in self.figures().items() if name != "broken")]
        for broken, found in self.first.items():
            lines.append(
                f"VIOLATION {broken}: {self.broken[broken]} states; the first before operation {found.point} ({found.operation}), "
                f"{found.state}: {found.violation.detail}"
            )
        return "\n".join(lines if self.first else [*lines, "all invariants hold"])


class Enumeration:
    """Walks one recording; at each point yields what a crash there may leave, and checks each distinct state once.

    Between two syncs the possible states only grow, so the damaged ones are looked at just before each sync and mark.
    """

    def __init__(self, recording: Recording, outside: Outside, *, seed: int, variants: int) -> None:
        upstreams = upstream_overrides([f"{name}={recording.provider_url}" for name in ("openai", "anthropic")])
        settings = load(None, {"state_dir": recording.root, "upstreams": upstreams})
        self._recording, self._outside, self._variants, self._seed = recording, outside, variants, seed
        self._bench = Bench(recording.root, settings)
        self._rng = random.Random(seed)
        self._disk = Disk(recording.before)
        self._seen: set[tuple[object, ...]] = set()
        self.report = Report(len(recording.operations))

    def run(self) -> Report:
        begun = time.monotonic()
        for point, operation in enumerate(self._recording.operations):
            if isinstance(operation, syscalls.Sent):
                for mark in self._recording.wire.see(operation):
                    self._look(point, mark, damaged=False)
                    self._outside.see(mark)
                    self._disk.more_is_owed()
                    self.report.began[mark.call] += isinstance(mark, Begun)
                    self._look(point, mark, damaged=False)
                continue
            self._look(point, operation, damaged=isinstance(operation, syscalls.Sync))
            self._disk.apply(operation)
            self.report.file_operations += 1
            if sum(self.report.broken.values()) > ENOUGH:
                break
        self._look(len(self._recording.operations), None, damaged=True)
        self.report.seconds = time.monotonic() - begun
        return self.report

    def _look(self, point: int, coming: object, *, damaged: bool) -> None:
        self.report.crash_points += 1
        is_name = isinstance(coming, syscalls.Create | syscalls.Rename | syscalls.Unlink)
        for state in self._states(damaged=damaged, all_names=damaged or is_name):
            identity = (state.identity, self._outside.marks)
            if identity in self._seen:
                continue
            self._seen.add(identity)
            self.report.distinct_states += 1
            self._check(point, coming, state)

    def _states(self, *, damaged: bool, all_names: bool) -> Iterator[State]:
        yield from self._disk.plain_states(all_names=all_names)
        if damaged:
            yield from self._disk.damaged_states(self._rng, self._variants)

    def _is_audited(self) -> bool:
        is_one = self.report.distinct_states % AUDITED_EVERY == self._seed % AUDITED_EVERY
        self.report.audited += is_one
        return is_one

    def _check(self, point: int, coming: object, state: State) -> None:
        reopened = self._bench.reopen(state.build(), audited=self._is_audited())
        if isinstance(reopened, Reopened):
            found = violations(reopened, self._outside)
            yet_to_come = CallId("")
            for call in (yet_to_come, *reopened.history.calls, *self._outside.begun):
                moment = Moment(reopened.history.epochs, progress(reopened, self._outside, call))
                self.report.covered.setdefault(call, set()).add(moment)
        else:
            found = [reopened]
        for violation in found:
            self.report.broken[violation.broken] += 1
            self.report.first.setdefault(
                violation.broken, Found(violation, point, repr(coming)[:160] if coming else "the end", state.name)
            )


def enumerate_states(
    recording: Recording, what: str, *, seed: int, variants: int, already: Outside | None = None
) -> Report:
    """`what` names the run in its figures; `already`: what the outside had seen before the trace began."""
    report = Enumeration(recording, already or Outside(), seed=seed, variants=variants).run()
    noted(what="crash states", run=what, seed=seed, variants=variants, **report.figures())
    return report


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory in memory where there is one: each state is written anew."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="sendonce-states-", dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@contextmanager
def provided(directory: Path) -> Iterator[Rig]:
    """A provider, and no proxy yet."""
    rig = Rig(directory, start_provider(directory / "provider.jsonl"))
    try:
        yield rig
    finally:
        rig.close()


def run(
    requests: int, *, stream: bool, seed: int, concurrency: int, variants: int, kill: bool, is_prepared: bool = True
) -> Report:
    """Record one run from an empty state dir, which the proxy itself creates unless it `is_prepared`, and enumerate it."""
    planned = conversations(requests, stream=stream, rng=random.Random(seed))

    def drive() -> None:
        with ThreadPoolExecutor(concurrency) as pool:
            list(pool.map(lambda conversation: hold(rig, conversation), planned))
        rig.settled()

    with scratch() as directory, provided(directory) as rig:
        if is_prepared:
            rig.state_dir.mkdir(mode=0o700)
        what = f"{requests} {'streams' if stream else 'JSON requests'}, {concurrency} at a time"
        return enumerate_states(record(rig, drive, kill=kill), what, seed=seed, variants=variants)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--variants", type=int, default=6, help="writes looked at in one file at one point")
    parser.add_argument("--stop", action="store_true", help="end the run by SIGTERM instead of SIGKILL")
    asked = parser.parse_args()
    if (reason := syscalls.why_not()) is not None:
        sys.exit(reason)
    report = run(
        asked.requests, stream=asked.stream, seed=asked.seed, concurrency=asked.concurrency,
        variants=asked.variants, kill=not asked.stop,
    )  # fmt: skip
    print(report)
    steps = ["nothing", *Step]
    print("crashed after:", ", ".join(steps[count] for count in sorted(report.covered_steps())))
    return 1 if report.first else 0


if __name__ == "__main__":
    sys.exit(main())
