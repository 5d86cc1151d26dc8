"""strace as a failing disk: one fault at the n-th system call of one thread of an unmodified proxy process.

Measured with strace 6.1: `when=N` counts each system call of each thread by itself, so one sweep has one system call and
one thread. Without -f only the main thread is traced, from its first instruction: starting, recovering and, later, spools.
With -f the writer is traced too; the main thread reaches a low N first, while it starts, so the writer's sweep begins
above what a start needs, and a request or two go before those that matter. With --trace-path only calls on those paths count.
A signal comes before its call is made, an error instead of it. --seccomp-bpf halves the time, needs -f, and loses signals:
at its stops ptrace injects none.

Swept are all syncs, all writes of the ledger, the receipts and the spools, and what makes room in the receipt log: an
ftruncate, a write of zeros, an fsync. Not swept are the other calls that change files: write (the secret), SQLite's
ftruncate, open, rename, mkdir and unlink. What a crash leaves of those the crash states hold (tests/harness/crash_states.py).
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from ledger.receipts import BLOCK_BYTES
from proxy.keys import EXPLICIT_KEY_LIMIT_BYTES
from tests.harness import segments
from tests.harness.processes import Process, Rig, chat
from tests.harness.syscalls import BECOME

PROXY: Final = ("-m", "proxy")
# The unmodified program with one constant smaller: nobody waits for 64 MiB of receipts.
WITH_SMALL_SEGMENTS: Final = (
    "-c",
    "from ledger import receipts; receipts.SEGMENT_LIMIT_BYTES = receipts.BLOCK_BYTES; from proxy.cli import main; main()",
)
FIRST_SEGMENT, SECOND_SEGMENT = "000001.jsonl", "000002.jsonl"
UNFINISHED_SEGMENT: Final = "000002.new"  # the second one's name until it has a line
SYNCS: Final = frozenset({"fsync", "fdatasync"})
TRACED: Final = "fsync,fdatasync,pwrite64,ftruncate"
_BEGUN: Final = re.compile(r"(\d+ +)?(fsync|fdatasync|pwrite64|ftruncate)\(\d+<([^>]+)>")
_RESUMED: Final = re.compile(r"(\d+) +<\.\.\. (?:fsync|fdatasync|pwrite64|ftruncate) resumed>")


class Thread(StrEnum):
    """Whose calls are counted."""

    MAIN = "main"
    WRITER = "writer"
    ROOM = "room"  # the writer, and only what it does to a receipt log that needs room: the rest is not traced


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


def fill_a_block(rig: Rig) -> None:
    """Calls of an untraced proxy until the first block of the first receipt segment has no room for one more.

    The next call extends that segment; with WITH_SMALL_SEGMENTS the line after it begins another.
    """
    process, segment = rig.start(), rig.state_dir / "receipts" / FIRST_SEGMENT
    size = grown = number = 0
    while BLOCK_BYTES - size >= grown:
        key = f"filler-{number}".ljust(EXPLICIT_KEY_LIMIT_BYTES, "-")  # long lines, few calls
        assert rig.chat(chat(text=f"filler {number}"), {"Idempotency-Key": key}).status == 200
        before, size, number = size, len(segments.content(segment)), number + 1
        grown = size - before
    assert process.stop() == 0


def start_traced(rig: Rig, log: Path, fault: Fault | None = None, number: int = 0) -> Process:
    """The proxy of `rig` under strace, its main thread only where no fault is named. Raises StartFailed, as `Rig.start`."""
    tracing, program = ["strace", "-D", "-y", "-s", "0", "-o", str(log), "-e", f"trace={TRACED}"], PROXY
    if fault is not None:
        tracing += ["-e", f"inject={fault.call}:{fault.tampering}:when={number}"]
        if fault.thread is not Thread.MAIN:
            tracing += ["-f"] if fault.tampering is Tampering.KILL else ["-f", "--seccomp-bpf"]
        if fault.thread is Thread.ROOM:
            receipts, program = rig.state_dir / "receipts", WITH_SMALL_SEGMENTS
            tracing += [
                f"--trace-path={receipts / name}" for name in ("", FIRST_SEGMENT, SECOND_SEGMENT, UNFINISHED_SEGMENT)
            ]
    serve = [sys.executable, *program, "serve", "--port", "0", "--state-dir", str(rig.state_dir)]
    serve += ["--upstream", f"openai={rig.provider_url}"]
    rig.proxy_process = Process(["-c", BECOME, *tracing, *serve], r"listens on http://[^ ]*:(\d+)")
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


def struck(log: Path, fault: Fault, number: int) -> tuple[Call, list[Call]] | None:
    """The call that the fault met, and those that came after it; None while there was none. Counts as strace does."""
    calls, counts = read_trace(log), Counter[str]()
    for at, call in enumerate(calls):
        counts[call.thread] += call.name == fault.call
        if counts[call.thread] == number:
            return call, calls[at + 1 :]
    return None


def sent_receipts(rig: Rig) -> Iterator[str]:
    """The calls that the proxy's own receipt log says may have been sent."""
    for segment in sorted((rig.state_dir / "receipts").glob("*.jsonl")):
        for line in segment.read_bytes().rstrip(b"\0").splitlines():
            row = json.loads(line) if line.startswith(b"{") and line.endswith(b"}") else {}
            if row.get("kind") == "sent":
                yield row["call"]
