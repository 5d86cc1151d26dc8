"""Whatever a power cut leaves of the real proxy's files, the next start keeps every promise, and needs nobody for it.

The proxy runs under strace; from its system calls every state that a crash may leave is enumerated and reopened.
"""

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path

import pytest

from ledger.ids import CallId
from ledger.receipts import BLOCK_BYTES
from tests.harness import syscalls
from tests.harness.crash_checks import Outside, Step, receipt_lines
from tests.harness.crash_states import Moment, Report, enumerate_states, provided, record, run, scratch
from tests.harness.crashes import CHAT_PATH, held, kinds_of, records_of, until
from tests.harness.disk import Disk
from tests.harness.injection import FIRST_SEGMENT, SECOND_SEGMENT, UNFINISHED_SEGMENT, WITH_SMALL_SEGMENTS, fill_a_block
from tests.harness.processes import Rig, chat
from tests.harness.syscalls import Create, FileOperation, Rename, Resize, Sync, Unlink, Write
from tests.harness.wire_marks import Begun, Ended

VARIANTS = 3  # writes looked at in one file at one point, so that the default runs stay within a minute
VARIANTS_SLOW = 8


@pytest.fixture(autouse=True)
def _traceable() -> None:
    syscalls.require_strace()


@pytest.fixture
def memory() -> Iterator[Path]:
    with scratch() as directory:
        yield directory


def assert_clean(report: Report) -> None:
    print(report)
    assert not report.first, str(report)


def assert_every_step_was_crashed_at(report: Report) -> None:
    """Some state lies before the first step, after the last, and between each two neighbours."""
    steps = ["nothing", *Step]
    assert [steps[count] for count in sorted(report.covered_steps())] == steps


@pytest.mark.timeout(240)
def test_crash_anywhere_while_json_is_answered_keeps_the_promises() -> None:
    """Second samples, replays and retries of errors included, two at a time, up to the end of an orderly stop."""
    report = run(10, stream=False, seed=1, concurrency=2, variants=VARIANTS, kill=False)
    assert_clean(report)
    assert_every_step_was_crashed_at(report)


@pytest.mark.timeout(240)
def test_crash_anywhere_while_streams_are_answered_keeps_the_promises() -> None:
    """The terminal event is an end as much as the end of framing is."""
    report = run(10, stream=True, seed=2, concurrency=2, variants=VARIANTS, kill=True)
    assert_clean(report)
    assert_every_step_was_crashed_at(report)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_crash_anywhere_under_load_keeps_the_promises(seed: int) -> None:
    """120 requests, eight at a time: operations of many calls share a commit."""
    assert_clean(run(120, stream=seed % 2 == 0, seed=seed, concurrency=8, variants=VARIANTS_SLOW, kill=seed != 13))


def test_state_directory_that_the_proxy_created_outlives_a_crash() -> None:
    """Its name stands in its parent: unsynced, a crash loses the ledger and every witness with it."""
    assert_clean(run(1, stream=False, seed=3, concurrency=1, variants=VARIANTS, kill=True, is_prepared=False))


@pytest.mark.timeout(240)
def test_crash_anywhere_while_the_receipt_log_makes_room_keeps_the_promises(memory: Path) -> None:
    """A second block for the segment, and at the next line another segment."""
    with provided(memory) as rig:
        fill_a_block(rig)
        outside = Outside()
        for row in receipt_lines(rig.state_dir / "receipts"):
            if row["kind"] == "sent":
                outside.see(Begun(row["call"]))

        def ask_twice() -> None:
            for text in ("one", "two"):
                assert rig.chat(chat("synthetic", text)).status == HTTPStatus.OK

        recording = record(rig, ask_twice, kill=True, program=WITH_SMALL_SEGMENTS)
        report = enumerate_states(recording, "room for receipts", seed=6, variants=VARIANTS, already=outside)
    assert_clean(report)
    receipts = rig.state_dir / "receipts"
    extended = Resize(str(receipts / FIRST_SEGMENT), 2 * BLOCK_BYTES)
    begun = Rename(str(receipts / UNFINISHED_SEGMENT), str(receipts / SECOND_SEGMENT))
    assert [each for each in recording.operations if each in (extended, begun)] == [extended, begun]


# --- the crash of a start -----------------------------------------------------------------------------------------------

KEYS = {name: {"Idempotency-Key": name} for name in ("answered", "silent", "partial", "unsent")}


def leave_open_calls(rig: Rig) -> tuple[Outside, dict[str, CallId]]:
    """One life that is killed with a call answered, one without an answer, one within its stream, one started and not sent."""
    outside = Outside()
    first = rig.start()
    answer = rig.chat(chat("synthetic/chunks=2", "answered"), KEYS["answered"])
    outside.see(Ended(answer.headers["sendonce-call"], answer.status, answer.body, is_whole=True))
    rig.settled()
    first.kill()
    # Its seventh commit is the last call's attempt.started: the process dies before the receipt.
    second = rig.start("after-commit=kill@7")
    with ExitStack() as stack:
        stack.enter_context(held(rig, CHAT_PATH, chat("synthetic/hold=forever", "silent"), KEYS["silent"]))
        stream = chat("synthetic/interval=600,chunks=3", "partial", stream=True)
        stack.enter_context(held(rig, CHAT_PATH, stream, KEYS["partial"]))
        newest = rig.calls()[0]["call_id"]
        until(lambda: "attempt.acknowledged" in kinds_of(rig, newest))
        spooled = rig.state_dir / "spool" / f"{newest}.body"
        until(lambda: spooled.exists() and spooled.stat().st_size)
        with pytest.raises(ConnectionError):
            rig.chat(chat("synthetic", "unsent"), KEYS["unsent"])
    second.wait()
    second.close()
    for row in receipt_lines(rig.state_dir / "receipts"):
        if row["kind"] == "sent":
            outside.see(Begun(row["call"]))
    calls = {records_of(rig, row["call_id"], "call.requested")[0]["key"]: row["call_id"] for row in rig.calls()}
    assert calls.keys() == KEYS.keys()
    assert kinds_of(rig, calls["unsent"])[-1] == "attempt.started"
    assert calls["unsent"] not in outside.begun
    return outside, calls


@pytest.mark.timeout(240)
def test_crash_anywhere_while_a_start_recovers_keeps_the_promises(memory: Path) -> None:
    """Recovery is repeated after a crash within it, and what it leaves is served: replayed, refused, sent for the first time."""
    with provided(memory) as rig:
        outside, calls = leave_open_calls(rig)

        def ask_again() -> None:
            dispositions = {
                name: rig.chat(chat(model, name, stream=name == "partial"), KEYS[name]).disposition
                for name, model in {
                    "answered": "synthetic/chunks=2",
                    "silent": "synthetic/hold=forever",
                    "partial": "synthetic/interval=600,chunks=3",
                    "unsent": "synthetic",
                }.items()
            }
            expected = {"answered": "replayed", "silent": "refused", "partial": "refused", "unsent": "resumed"}
            assert dispositions == expected
            rig.settled()

        recording = record(rig, ask_again, kill=False)
        report = enumerate_states(recording, "a start over open calls", seed=4, variants=VARIANTS, already=outside)
    assert_clean(report)
    spooled, observed = (list(Step).index(step) + 1 for step in (Step.SPOOLED, Step.OBSERVED))
    # Before the partial answer is salvaged, between that and the new epoch, and after it.
    assert {Moment(2, spooled), Moment(2, observed), Moment(3, observed)} <= report.covered[calls["partial"]]


# --- the model itself ---------------------------------------------------------------------------------------------------

FILE, NEW, DIRECTORY = "/state/file", "/state/new", "/state"


def escaped(text: str) -> str:
    """As strace shows it with -xx."""
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


DOES_IT_ALL = """
import os, sys
root = sys.argv[1]; file = root + "/file"
os.chdir(root); os.mkdir(root + "/sub")
fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, b"ab"); os.write(fd, b"cd"); os.pwrite(fd, b"X", 1); os.posix_fallocate(fd, 0, 6); os.ftruncate(fd, 3); os.fdatasync(fd)
os.write(os.open("file", os.O_WRONLY | os.O_APPEND), b"z"); os.truncate(file, 1)
os.rename(file, root + "/new"); os.fsync(os.open(".", os.O_RDONLY)); os.unlink(root + "/new")
"""


def test_trace_of_a_known_process_gives_its_operations(tmp_path: Path) -> None:
    """Offsets that no call names, names relative to a directory and calls split over two lines included."""
    root, trace = tmp_path / "state", tmp_path / "trace"
    root.mkdir()
    command = [*syscalls.STRACE, "-o", str(trace), sys.executable, "-c", DOES_IT_ALL, str(root)]
    subprocess.run(command, capture_output=True, check=True)  # its output ends when strace does
    file, new = f"{root}/file", f"{root}/new"
    assert syscalls.operations(trace, root, {}) == [
        Create(f"{root}/sub", is_directory=True),
        Create(file),
        Write(file, 0, b"ab", extends=True),
        Write(file, 2, b"cd", extends=True),
        Write(file, 1, b"X", extends=False),
        Resize(file, 6, only_grow=True),
        Resize(file, 3),
        Sync(file),
        Write(file, 3, b"z", extends=True),
        Resize(file, 1),
        Rename(file, new),
        Sync(str(root)),
        Unlink(new),
    ]


UNREADABLE = {
    "work that is not shown": "1 io_uring_setup(1, {flags=0}) = 3",
    "a call without a rule": f'1 symlink("{escaped("/x")}", "{escaped(FILE)}") = 0',
    "a name relative to nobody knows what": f'1 unlink("{escaped("file")}") = 0',
    "a string that was cut": f'1 pwrite64(3<{escaped(FILE)}>, "{escaped("ab")}"..., 9, 0) = 9',
    "a write that a sync may not cover": f"""1 fsync(3<{escaped(FILE)}> <unfinished ...>
2 pwrite64(3<{escaped(FILE)}>, "{escaped("ab")}", 2, 0) = 2
1 <... fsync resumed>) = 0""",
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_trace_with_something_unreadable_is_an_error(what: str, tmp_path: Path) -> None:
    """What is not understood might be what breaks a promise."""
    (tmp_path / "trace").write_text(UNREADABLE[what] + "\n")
    with pytest.raises(syscalls.UnreadableTraceError):
        syscalls.operations(tmp_path / "trace", Path(DIRECTORY), {FILE: b""})


def states_after(*operations: FileOperation, before: dict[str, bytes] | None = None) -> list[dict[str, bytes]]:
    disk = Disk(before or {})
    for operation in operations:
        disk.apply(operation)
    states = [*disk.plain_states(all_names=True), *disk.damaged_states(random.Random(1), 100)]
    return [{path: bytes(content) for path, content in state.build().items()} for state in states]


def test_crash_may_lose_what_was_not_synced_and_nothing_else() -> None:
    """A name needs the sync of its directory, bytes that of their file."""
    written = (Create(FILE), Write(FILE, 0, b"one", extends=True))
    assert {} in states_after(*written, Sync(FILE))
    assert {FILE: b""} in states_after(*written, Sync(DIRECTORY))
    assert all(state == {FILE: b"one"} for state in states_after(*written, Sync(FILE), Sync(DIRECTORY)))
    renamed = states_after(Rename(FILE, NEW), before={FILE: b"one"})
    assert {FILE: b"one"} in renamed
    assert {NEW: b"one"} in renamed
    assert all(len(state) == 1 for state in renamed)


def test_crash_may_tear_a_write_between_sectors_and_reorder_writes() -> None:
    """Each half of a write alone, and a later write without the one before it."""
    write = Write(FILE, 0, b"a" * 512 + b"b" * 512, extends=False)
    states = states_after(write, Write(FILE, 1024, b"c", extends=True), before={FILE: bytes(1024)})
    contents = {state[FILE] for state in states}
    assert {b"a" * 512 + bytes(512) + b"c", bytes(512) + b"b" * 512 + b"c", bytes(1024) + b"c"} <= contents


def test_crash_leaves_one_of_the_sizes_a_file_had() -> None:
    """Bytes written into room that was made before do not make it: where the new size is lost, so are they."""
    states = states_after(Resize(FILE, 2048), Write(FILE, 0, b"a" * 2048, extends=False), before={FILE: b""})
    assert {len(state[FILE]) for state in states} == {0, 2048}
