"""SIGKILL, EIO and ENOSPC at every sync and every write of an unmodified proxy, one system call after the other.

A failpoint is where we thought of a crash; these are all the places where a disk can fail. After each fault an untouched
proxy starts over the same state dir, everything is asked again, and the provider's own receipts say what was sent.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.harness.crashes import CUT, digest_of, events_of, receipts_of, until
from tests.harness.figures import noted
from tests.harness.injection import (
    FIRST_SEGMENT,
    SECOND_SEGMENT,
    SYNCS,
    UNFINISHED_SEGMENT,
    Call,
    Fault,
    Tampering,
    Thread,
    fill_a_block,
    read_trace,
    sent_receipts,
    start_traced,
    struck,
)
from tests.harness.processes import Answer, Rig, StartFailed, chat, provider_in
from tests.harness.syscalls import require_strace

SIGKILLED: Final = -9
EXIT_START_REFUSED: Final = 4
EXIT_POISONED: Final = 70
SHARDS: Final = 4  # of one sweep over some hundred writes: for xdist, and to stay below the time limit
SWEEP_LIMIT_S: Final = 1800

# Every sync, whoever dies or fails there; every write too, since a page may be in the file and the next one not.
SYNC_SWEEPS: Final = [
    Fault(tampering, call, thread)
    for tampering in Tampering
    for call, thread in [
        ("fsync", Thread.MAIN),
        ("fdatasync", Thread.MAIN),
        ("fdatasync", Thread.WRITER),
        ("fsync", Thread.ROOM),  # the writer fsyncs nothing else
        ("ftruncate", Thread.ROOM),
    ]
]
WRITE_SWEEPS: Final = [Fault(tampering, "pwrite64", thread) for tampering in Tampering for thread in Thread]
ROOT, WAL, RECEIPTS = ".", "ledger.db-wal", "receipts"
SEGMENT, NEXT_SEGMENT = f"{RECEIPTS}/{FIRST_SEGMENT}", f"{RECEIPTS}/{SECOND_SEGMENT}"
UNFINISHED = f"{RECEIPTS}/{UNFINISHED_SEGMENT}"
# What a default run looks at: a sweep, its n-th call (the writer's are counted from its first one after the start), and what
# that call must be about: when, and which file (the writer's order of commits and receipts depends on what shares a commit).
SAMPLES: Final = (
    (Fault(Tampering.KILL, "fsync", Thread.MAIN), 2, "start", {ROOT}),
    (Fault(Tampering.EIO, "fdatasync", Thread.MAIN), 10, "start", {WAL}),
    (Fault(Tampering.EIO, "fsync", Thread.ROOM), 1, "request 1", {SEGMENT}),  # its second block
    (Fault(Tampering.KILL, "fsync", Thread.ROOM), 2, "request 1", {UNFINISHED}),
    (Fault(Tampering.ENOSPC, "fsync", Thread.ROOM), 3, "request 1", {RECEIPTS}),  # the new name
    (Fault(Tampering.KILL, "fdatasync", Thread.ROOM), 6, "request 3", {NEXT_SEGMENT}),  # a `sent` receipt
    (Fault(Tampering.EIO, "fdatasync", Thread.WRITER), 6, "request 3", {WAL, SEGMENT}),
    (Fault(Tampering.ENOSPC, "pwrite64", Thread.MAIN), 53, "request 3", {"spool/CALL.body", "spool/CALL.index"}),
    (Fault(Tampering.ENOSPC, "pwrite64", Thread.WRITER), 130, "request 3", {WAL, SEGMENT}),
    (Fault(Tampering.KILL, "pwrite64", Thread.WRITER), 145, "request 3", {WAL, SEGMENT}),
)
_CALL: Final = re.compile(r"call_[0-9a-f]+")
# SQLite undoes a half-made database file by its rollback journal, and syncs what it undid: the start is refused all the
# same, and nothing was recorded yet. From then on there is a write-ahead log, and no file is synced after it failed.
UNDONE: Final = ("ledger.db", "ledger.db-journal")


def is_unseen(call: Call, rig: Rig) -> bool:
    """SQLite syncs the directory of a journal that it made, and does not look at the result (unixSync in os_unix.c).

    The start syncs it once more, and looks (ledger/recovery.py).
    """
    return (call.name, call.path) == ("fdatasync", str(rig.state_dir))


@dataclass(frozen=True, slots=True)
class Request:
    body: bytes
    headers: dict[str, str]

    @property
    def explicit(self) -> bool:
        return bool(self.headers)


def script(name: str) -> list[Request]:
    """The first two use up the count of calls that the start needed (tests/harness/injection.py)."""
    bodies = [chat(text=f"{name} {text}", stream=text == "stream") for text in ("one", "two", "key", "json", "stream")]
    return [Request(body, {"Idempotency-Key": name} if at == 2 else {}) for at, body in enumerate(bodies)]


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One provider for all runs; each has a state dir of its own."""
    require_strace()
    with provider_in(tmp_path_factory.mktemp("provider")) as made:
        yield made


@pytest.fixture(scope="module")
def calls_of_a_start(provider: Rig) -> dict[str, int]:
    """How often the main thread makes each system call before it listens: the writer's sweep begins above."""
    rig, log = Rig(provider.directory, provider.provider_process, state_name="plain"), provider.directory / "plain.log"
    start_traced(rig, log).stop()
    calls = [call.name for call in read_trace(log)]
    return {name: calls.count(name) for name in set(calls)}


@dataclass(slots=True)
class Run:
    """One proxy life under one fault, and the whole answers that its clients got."""

    rig: Rig
    requests: list[Request]
    answers: list[Answer | None]
    code: int
    started: bool
    complained: str
    struck: tuple[Call, list[Call]] | None  # the call that met the fault, and those after it


def run_until_fault(rig: Rig, fault: Fault, number: int) -> Run:
    """The script, then SIGTERM: starting, serving and stopping are all under the fault."""
    log, requests = rig.directory / f"{rig.state_name}.log", script(rig.state_name)
    if fault.thread is Thread.ROOM:
        fill_a_block(rig)
    try:
        process = start_traced(rig, log, fault, number)
    except StartFailed as failed:
        nothing = [None] * len(requests)
        return Run(rig, requests, [*nothing], failed.code, False, failed.err, struck(log, fault, number))
    answers = [asked(rig, request) for request in requests]

    def fired() -> bool:
        met = struck(log, fault, number)
        return process.child.poll() is not None or (met is not None and not is_unseen(met[0], rig))

    def at_rest() -> bool:
        rows = [row_of(rig, request) for request in requests]
        return all(row and row["stage"] == "completed" and row["delivered"] for row in rows)

    if None not in answers:
        until(lambda: fired() or at_rest())
    code = process.wait() if fired() or None in answers else process.stop()
    process.close()
    return Run(rig, requests, answers, code, True, process.complained, struck(log, fault, number))


def asked(rig: Rig, request: Request) -> Answer | None:
    """The whole 200, or None for what a client tries again: a cut, no connection, a 503 that says so."""
    try:
        answer = rig.chat(request.body, request.headers)
    except CUT:
        return None
    if answer.status != 200:
        assert (answer.status, answer.code, answer.headers["x-should-retry"]) == (503, "cannot_record", "true")
        return None
    return answer


def check_end(run: Run, fault: Fault) -> bool:
    """Whether the fault was met. If so, the process has ended as it must, and admitted and synced nothing after it."""
    if run.code == 0:
        assert run.struck is None or is_unseen(run.struck[0], run.rig), run.struck
        assert None not in run.answers
        return run.struck is not None
    assert run.struck is not None, run.complained
    failed, after = run.struck
    if fault.tampering is Tampering.KILL:
        assert run.code == SIGKILLED
    else:
        assert failed.injected
        assert run.code == (EXIT_POISONED if run.started else EXIT_START_REFUSED), (failed, run.complained)
        assert "Traceback" not in run.complained
        again = [call for call in after if call.name in SYNCS and call.path == failed.path]
        assert not again or (not run.started and Path(failed.path).name in UNDONE), (failed, again)
    for request, _ in list(zip(run.requests, run.answers, strict=True))[_first_failure(run) + 1 :]:
        assert sent_of(run, request) == 0, "a request was sent after the fault"
    return True


def _first_failure(run: Run) -> int:
    """Nothing was served after the first request that failed: the index of that one."""
    at = run.answers.index(None) if None in run.answers else len(run.answers)
    assert run.answers[at:] == [None] * (len(run.answers) - at)
    return at


def sent_of(run: Run, request: Request) -> int:
    """How often the provider has it, by its own receipts."""
    return len(receipts_of(run.rig, request.body))


def row_of(rig: Rig, request: Request) -> dict[str, Any] | None:
    """The newest call of exactly this body."""
    return next((row for row in rig.calls() if row["body_blake3"] == digest_of(request.body)), None)


def check_again(run: Run, request: Request, before: Answer | None) -> str:
    """Asks once more at the restarted proxy, by semantics section 4; returns how it was answered."""
    rig, sent, row = run.rig, sent_of(run, request), row_of(run.rig, request)
    assert sent <= 1
    answer = rig.chat(request.body, request.headers)
    disposition = str(answer.disposition)
    if before is not None and row is not None and row["delivered"] and not request.explicit:
        assert disposition == "forwarded"  # a derived key, delivered on record: a second sample
        assert (answer.status, sent_of(run, request)) == (200, 2)
    elif before is not None:
        assert (disposition, answer.body) == ("replayed", before.body)
        assert sent_of(run, request) == sent == 1
    elif answer.status == 200:
        assert disposition in (("replayed",) if sent else ("forwarded", "resumed"))
        assert sent_of(run, request) == 1
    else:
        assert row is not None
        assert (answer.code, disposition) == (row["stage"], "refused")
        assert row["stage"] in ("effect_unknown", "effect_happened")
        # The provider has it, or our own receipt says that it may: the fault was between that line and the first byte.
        assert sent or (row["stage"] == "effect_unknown" and row["call_id"] in sent_receipts(rig))
        rig.settled()
        events = events_of(rig)
        assert rig.chat(request.body, request.headers).body == answer.body
        assert (sent_of(run, request), events_of(rig)) == (sent, events)
    return disposition if answer.status == 200 else f"{disposition} {answer.code}"


def moment_of(run: Run) -> str:
    if not run.started:
        return "start"
    return f"request {_first_failure(run) + 1}" if None in run.answers else "rest"


@dataclass(frozen=True, slots=True)
class Visit:
    """What met the fault, as a path in the state dir, and when; and how the five requests were answered after it."""

    path: str
    moment: str
    answered: str


def visit(provider: Rig, fault: Fault, number: int) -> Visit | None:
    """One fault, from a fresh state dir to the second asking. None: it was not met."""
    rig = Rig(provider.directory, provider.provider_process, state_name=f"{fault}-{number}")
    try:
        run = run_until_fault(rig, fault, number)
        if not check_end(run, fault):
            return None
        rig.start()
        pairs = zip(run.requests, run.answers, strict=True)
        answered = [check_again(run, request, before) for request, before in pairs]
        rows = rig.calls()
        for request in run.requests:  # I5
            attempts = sum(row["attempts"] for row in rows if row["body_blake3"] == digest_of(request.body))
            assert attempts >= sent_of(run, request)
        assert run.struck is not None
        path = _CALL.sub("CALL", os.path.relpath(run.struck[0].path, rig.state_dir))
        return Visit(path, moment_of(run), ", ".join(answered))
    finally:
        rig.leave()


def first_of(fault: Fault, calls_of_a_start: dict[str, int]) -> int:
    """The number of the thread's first call that no other thread reaches before it."""
    return calls_of_a_start[fault.call] + 1 if fault.thread is Thread.WRITER else 1


@pytest.mark.parametrize(
    ("fault", "at", "moment", "paths"), [pytest.param(*sample, id=f"{sample[0]}-{sample[1]}") for sample in SAMPLES]
)
def test_fault_at_one_call_is_recovered_from_and_sends_nothing_twice(
    provider: Rig, calls_of_a_start: dict[str, int], fault: Fault, at: int, moment: str, paths: set[str]
) -> None:
    """A few of each kind; the sweeps below look at all."""
    visited = visit(provider, fault, first_of(fault, calls_of_a_start) + at - 1)
    assert visited is not None
    assert visited.moment == moment
    assert visited.path in paths


def sweep(provider: Rig, fault: Fault, numbers: Iterator[int]) -> set[str]:
    """Until the fault is no longer met; which files met it."""
    began, visits = time.monotonic(), list[Visit]()
    for number in numbers:
        try:
            visited = visit(provider, fault, number)
        except AssertionError as failure:
            failure.add_note(f"{fault} at call number {number}")
            raise
        if visited is None:
            break
        visits.append(visited)
    assert visits
    counts = {what: Counter(getattr(each, what) for each in visits) for what in ("path", "moment", "answered")}
    noted(kind=str(fault), fired=len(visits), seconds=round(time.monotonic() - began, 1), **counts)
    return {visited.path for visited in visits}


def stepping(first: int, step: int) -> Iterator[int]:
    yield from range(first, 10_000, step)  # far above what one script needs


@pytest.mark.slow
@pytest.mark.timeout(SWEEP_LIMIT_S)
@pytest.mark.parametrize("fault", SYNC_SWEEPS, ids=str)
def test_fault_at_every_sync(provider: Rig, calls_of_a_start: dict[str, int], fault: Fault) -> None:
    """First to last, start and stop included."""
    paths = sweep(provider, fault, stepping(first_of(fault, calls_of_a_start), 1))
    if fault.thread is Thread.ROOM:
        assert paths >= {SEGMENT, UNFINISHED}


@pytest.mark.slow
@pytest.mark.timeout(SWEEP_LIMIT_S)
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("fault", WRITE_SWEEPS, ids=str)
def test_fault_at_every_write(provider: Rig, calls_of_a_start: dict[str, int], fault: Fault, shard: int) -> None:
    """The shards together: first to last."""
    sweep(provider, fault, stepping(first_of(fault, calls_of_a_start) + shard, SHARDS))
