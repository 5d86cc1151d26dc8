"""strace as a failing disk: one fault at the n-th system call of one thread of an unmodified proxy process.

Measured with strace 6.1: `when=N` counts each system call of each thread by itself, so one sweep has one system call and
one thread. Without -f only the main thread is traced, from its first instruction: starting, recovering and, later, spools.
With -f the writer is traced too; the main thread reaches a low N first, while it starts, so the writer's sweep begins
above what a start needs, and a request or two go before those that matter. A signal comes before its call is made, an
error instead of it. --seccomp-bpf halves the time, needs -f, and loses signals: at its stops ptrace injects none.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import pytest

from tests.harness.processes import Process, Rig

SYNCS: Final = frozenset({"fsync", "fdatasync"})
TRACED: Final = "fsync,fdatasync,pwrite64"  # all by which the ledger, the receipts and the spools reach their files
# -D: strace is the grandchild, so that exit codes and signals are the proxy's. It has to be started by Python (`Process`).
_EXEC: Final = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
_BEGUN: Final = re.compile(r"(\d+ +)?(fsync|fdatasync|pwrite64)\(\d+<([^>]+)>")
_RESUMED: Final = re.compile(r"(\d+) +<\.\.\. (?:fsync|fdatasync|pwrite64) resumed>")


class Thread(StrEnum):
    """Whose calls are counted."""

    MAIN = "main"
    WRITER = "writer"


class Tampering(StrEnum):
    """What strace makes of the call; the value is its word for it."""

    KILL = "signal=KILL"
    EIO = "error=EIO"
    ENOSPC = "error=ENOSPC"


@dataclass(frozen=True, slots=True)
class Fault:
    """A sweep: this, at the first call, the second, …"""

    tampering: Tampering
    call: str
    thread: Thread

    def __str__(self) -> str:
        return f"{self.tampering.name.lower()}-{self.call}-{self.thread}"


@dataclass(slots=True)
class Call:
    """One traced system call."""

    thread: str
    name: str
    path: str
    injected: bool


def require_strace() -> None:
    """Skips without strace, but never where a run is to prove something."""
    if shutil.which("strace") is None:
        says = "The sweep over every sync needs strace: apt-get install strace"
        pytest.fail(says) if os.environ.get("CI") else pytest.skip(says)


def start_traced(rig: Rig, log: Path, fault: Fault | None = None, number: int = 0) -> Process:
    """The proxy of `rig` under strace, its main thread only where no fault is named. Raises StartFailed, as `Rig.start`."""
    tracing = ["strace", "-D", "-y", "-s", "0", "-o", str(log), "-e", f"trace={TRACED}"]
    if fault is not None:
        tracing += ["-e", f"inject={fault.call}:{fault.tampering}:when={number}"]
        if fault.thread is Thread.WRITER:
            tracing += ["-f"] if fault.tampering is Tampering.KILL else ["-f", "--seccomp-bpf"]
    serve = [sys.executable, "-m", "proxy", "serve", "--port", "0", "--state-dir", str(rig.state_dir)]
    serve += ["--upstream", f"openai={rig.provider_url}"]
    rig.proxy_process = Process(["-c", _EXEC, *tracing, *serve], r"listens on http://[^ ]*:(\d+)")
    return rig.proxy_process


def read_trace(log: Path) -> list[Call]:
    """In the order in which the calls began."""
    calls: list[Call] = []
    begun: dict[str, Call] = {}
    for line in log.read_text().splitlines():
        if found := _BEGUN.match(line):
            thread, name, path = (found[1] or "").strip(), found[2], found[3]
            calls.append(Call(thread, name, path, "(INJECTED)" in line))
            begun[thread] = calls[-1]
        elif (resumed := _RESUMED.match(line)) and "(INJECTED)" in line:
            begun[resumed[1]].injected = True
    return calls


def injected(log: Path) -> tuple[Call, list[Call]] | None:
    """The call that was made to fail, and those that came after it; None while nothing has failed."""
    calls = read_trace(log)
    at = next((at for at, call in enumerate(calls) if call.injected), None)
    return None if at is None else (calls[at], calls[at + 1 :])


def sent_receipts(rig: Rig) -> Iterator[str]:
    """The calls that the proxy's own receipt log says may have been sent."""
    for segment in sorted((rig.state_dir / "receipts").glob("*.jsonl")):
        for line in segment.read_bytes().rstrip(b"\0").splitlines():
            row = json.loads(line) if line.startswith(b"{") and line.endswith(b"}") else {}
            if row.get("kind") == "sent":
                yield row["call"]
