"""The verifier on a good bundle, on input that nobody can read, as a process, and on bytes that were changed at random."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ledger
from ledger.verifier import Verdict, render, verify
from ledger.verifier.bundle import INSPECTION_LIMIT_BYTES, RECORD_LIMIT_BYTES
from tests.verifier.bundles import BLOCK_BYTES, digest_of, dumped, read, reseal, write
from tests.verifier.story import good_bundle

SECTOR_BYTES = 512
EXIT_CODES = {"OK": 0, "CONTRADICTION": 10, "TAMPERED": 11, "TRUNCATED": 12, "UNREADABLE": 13}
SEGMENT = "receipts/000002.jsonl"  # the last one of the story
ACCEPTED = (
    "epoch 2 accepted lost_tail: forgiven are 0 attempts without a sent receipt, 1 receipts whose events are gone."
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    good_bundle(tmp_path / "bundle")
    return tmp_path / "bundle"


def tail(directory: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the lines of the last segment, keep its size, and list it anew."""
    path = directory / SEGMENT
    path.write_bytes(change(path.read_bytes().rstrip(b"\0")).ljust(BLOCK_BYTES, b"\0"))
    reseal(directory)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As an auditor does, with nothing of ours on the path but the package; `-I` ignores the environment and the user's site."""
    root = str(Path(ledger.__file__).resolve().parents[1])
    program = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('ledger.verifier', run_name='__main__', alter_sys=True)"
    return subprocess.run(
        [sys.executable, "-I", "-c", program, root, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_good_bundle_is_ok_and_every_claim_looked_at_something(directory: Path) -> None:
    """A claim that counts nothing would be true of any bundle."""
    report = verify(directory)
    assert (report.verdict, report.findings, report.notes) == (Verdict.OK, (), (ACCEPTED,))
    assert [claim.name for claim in report.claims if not claim.ok or claim.count == 0] == []
    assert render(report).splitlines()[-1] == "OK"


def test_parts_read_and_written_are_the_same_bundle(directory: Path) -> None:
    """The forger's tools forge nothing by themselves."""
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    write(read(directory), directory)
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_torn_last_receipt_is_a_note(directory: Path) -> None:
    """A crash leaves it, a start mends it: half a line, its second half never written."""
    lines = (directory / SEGMENT).read_bytes().rstrip(b"\0").splitlines(keepends=True)
    torn = b"".join(lines) + lines[-1][:100]
    tail(directory, lambda _: torn)
    report = verify(directory)
    assert (report.verdict, len(report.notes)) == (Verdict.OK, 2), report.findings


def test_last_receipt_without_its_newline_counts(directory: Path) -> None:
    """A whole line that continues the chain is kept."""
    tail(directory, lambda lines: lines[:-1])
    report = verify(directory)
    assert (report.verdict, len(report.notes)) == (Verdict.OK, 2), report.findings


def test_hole_of_whole_sectors_behind_the_lines_is_a_note(directory: Path) -> None:
    """The second of three sectors of the last write reached the disk, the first did not."""
    lines = (directory / SEGMENT).read_bytes().rstrip(b"\0")
    hole = -len(lines) % SECTOR_BYTES
    tail(directory, lambda lines: lines + b"\0" * hole + b'half a line"}\n')
    assert verify(directory).verdict is Verdict.OK
    tail(directory, lambda lines: lines.rstrip(b"\0") + b"\0" * 3 + b"x")
    assert verify(directory).verdict is Verdict.TAMPERED


def change_about(name: str, value: object) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        about = json.loads((directory / "bundle.json").read_bytes())
        about[name] = value
        (directory / "bundle.json").write_bytes(dumped(about))

    return change


def list_a_file(path: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        about = json.loads((directory / "bundle.json").read_bytes())
        about["files"][path] = {"size": 0, "blake3": "0" * 64}
        (directory / "bundle.json").write_bytes(dumped(about))

    return change


def replace(path: str, data: bytes) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        (directory / path).write_bytes(data)
        if path != "bundle.json":
            reseal(directory)

    return change


def in_events(old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        text = (directory / "events.jsonl").read_bytes()
        assert old in text
        replace("events.jsonl", text.replace(old, new, 1))(directory)

    return change


def link_out(directory: Path) -> None:
    (directory / "index.jsonl").unlink()
    (directory / "index.jsonl").symlink_to("/etc/hostname")


def make_a_pipe(directory: Path) -> None:
    (directory / "index.jsonl").unlink()
    os.mkfifo(directory / "index.jsonl")


LINK = b"0" * 64 + b" "
BAD_INPUT: dict[str, tuple[Callable[[Path], object], str]] = {
    "no bundle.json": (lambda directory: (directory / "bundle.json").unlink(), "bundle.json is listed but not there"),
    "newer bundle": (change_about("bundle", 2), "bundle is not 1"),
    "newer format": (change_about("format", 2), "format is not 1"),
    "true for 1": (change_about("bundle", True), "bundle is not 1"),
    "unknown field": (change_about("more", 1), "fields are not exactly"),
    "head of a wrong type": (change_about("head", [1]), "head is neither null"),
    "huge number": (change_about("receipts_through", 1 << 70), "receipts_through has a wrong type"),
    "files of a wrong type": (change_about("files", []), "files is no object"),
    "absolute path": (list_a_file("/etc/passwd"), "climbs out"),
    "climbing path": (list_a_file("bodies/../../x"), "climbs out"),
    "unknown file": (list_a_file("notes.txt"), "of no known file"),
    "listed, not there": (list_a_file("bodies/" + "a" * 64), "is listed but not there"),
    "symbolic link": (link_out, "symbolic link"),
    "pipe": (make_a_pipe, "no regular file"),
    "directory for a file": (lambda d: [(d / "index.jsonl").unlink(), (d / "index.jsonl").mkdir()], "no regular file"),
    "not JSON": (replace("bundle.json", b"{"), "no readable JSON"),
    "not UTF-8": (replace("bundle.json", b"\xff"), "no readable JSON"),
    "no object": (replace("bundle.json", b"[]"), "no JSON object"),
    "too many digits": (replace("bundle.json", b'{"bundle":' + b"1" * 5000 + b"}"), "no readable JSON"),
    "deep nesting": (replace("bundle.json", b'{"bundle":' + b"[" * 200_000), "no readable JSON"),
    "name given twice": (replace("bundle.json", b'{"bundle":1,"bundle":1}'), "no readable JSON"),
    "event without a link": (replace("events.jsonl", b"{}\n"), "does not begin with a link"),
    "event that is no JSON": (replace("events.jsonl", LINK + b"x\n"), "no readable JSON"),
    "deep event": (replace("events.jsonl", LINK + b'{"a":' * 100_000 + b"\n"), "no readable JSON"),
    "endless event": (replace("events.jsonl", LINK + b" " * RECORD_LIMIT_BYTES + b"\n"), "is longer than"),
    "unknown kind": (in_events(b"attempt.started", b"attempt.stirred"), "kind that format 1 does not know"),
    "unknown version": (in_events(b'"v":1', b'"v":2'), "version of epoch.opened is not known"),
    "unknown event field": (in_events(b'"file_inode":', b'"file_inodes":'), "the field file_inode"),
    "missing event field": (in_events(b'"file_inode":1,', b""), "file_inode is missing"),
    "wrong event type": (in_events(b'"file_inode":1', b'"file_inode":"1"'), "file_inode has a wrong type"),
    "not a number": (in_events(b'"file_inode":1', b'"file_inode":NaN'), "no readable JSON"),
    "index that is cut": (replace("index.jsonl", b"{}"), "does not end with a newline"),
    "index of wrong rows": (replace("index.jsonl", b"{}\n"), "is missing"),
    "inspection of nothing": (replace("inspections.jsonl", b"{}\n"), "is missing"),
    "endless inspection": (replace("inspections.jsonl", b" " * (INSPECTION_LIMIT_BYTES + 2)), "is longer than"),
    "provider receipt of nothing": (replace("provider_receipts.jsonl", b"{}\n"), "is missing"),
    "receipt of nothing": (lambda directory: tail(directory, lambda _: b"{}\n"), "is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_unreadable_with_a_sentence(name: str, directory: Path) -> None:
    """Whatever is there: one sentence that names the place, no traceback."""
    change, sentence = BAD_INPUT[name]
    change(directory)
    report = verify(directory)
    assert report.verdict is Verdict.UNREADABLE
    place = next(finding for finding in report.findings if finding.name == "unreadable").places[0]
    assert sentence in place
    assert place.endswith(".")


def test_directory_that_is_not_there_is_unreadable(tmp_path: Path) -> None:
    """A wrong name is no traceback either."""
    assert verify(tmp_path / "nothing").verdict is Verdict.UNREADABLE
    assert verify(tmp_path / ("x" * 5000)).verdict is Verdict.UNREADABLE


def test_names_in_a_bundle_cannot_write_to_the_terminal(directory: Path) -> None:
    """A file name is the bundle's word, and may hold escapes and bytes that are no text."""
    (directory / "\x1b[2J\udcff").write_text("x")
    text = render(verify(directory))
    assert "\x1b" not in text
    assert "\\u001b[2J\\udcff" in text


def test_process_ends_with_the_exit_code_of_its_verdict(directory: Path) -> None:
    """Alone on the path, with the standard library and blake3; the last line is the verdict."""
    damages: dict[str, Callable[[Path], object]] = {
        "OK": lambda _: None,
        "CONTRADICTION": forge_contradiction,
        "TRUNCATED": lambda directory: cut(directory / SEGMENT),
        "TAMPERED": lambda directory: (directory / "more").write_text("x"),
        "UNREADABLE": lambda directory: (directory / "bundle.json").unlink(),
    }
    for verdict, damage in damages.items():
        damage(directory)
        ended = run(str(directory))
        assert (ended.stdout.splitlines()[-1], ended.returncode, ended.stderr) == (verdict, EXIT_CODES[verdict], "")
        document = json.loads(run(str(directory), "--json").stdout)
        assert (document["verdict"], document["exit_code"]) == (verdict, EXIT_CODES[verdict])
        named = {"name", "class", "count", "places", "sentence"}
        assert document["findings"] == [] or set(document["findings"][0]) == named
        assert set(document["claims"][0]) == {"name", "sentence", "count", "ok"}
        assert document["notes"] == ([] if verdict == "UNREADABLE" else [ACCEPTED])


def forge_contradiction(directory: Path) -> None:
    parts = read(directory)
    parts.index[1]["is_open"] = 1
    write(parts, directory)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    reseal(path.parents[1])


def test_process_called_wrongly_says_how(tmp_path: Path) -> None:
    """A usage error is none of the verdicts."""
    assert [run().returncode, run("--help").returncode, run(str(tmp_path), "b").returncode] == [2, 2, 2]


def test_verifier_loads_nothing_of_ours(directory: Path) -> None:
    """Its worth is that it shares no code with what it checks."""
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); before = set(sys.modules);"
        "from ledger.verifier import verify; verify(Path(sys.argv[2])); print(*sorted(sys.modules.keys() - before))"
    )
    root = str(Path(ledger.__file__).resolve().parents[1])
    arguments = [sys.executable, "-I", "-c", program, root, str(directory)]
    loaded = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    foreign = {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names | {"blake3"}}
    assert {name for name in foreign if not name.startswith("ledger.verifier")} == {"ledger"}
    assert {"blake3", "ledger.verifier.audit"} <= set(loaded)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One good bundle for all examples; each puts back what it changed."""
    made = tmp_path_factory.mktemp("fuzzed") / "bundle"
    good_bundle(made)
    return made


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    file=st.integers(0, 1 << 16),
    place=st.integers(0, 1 << 30),
    byte=st.integers(0, 255),
    erase=st.booleans(),
    listed=st.booleans(),
)
def test_any_byte_changed_ends_in_a_verdict(
    fuzzed: Path, file: int, place: int, byte: int, erase: bool, listed: bool
) -> None:
    """Never a traceback; and with the inventory as it was, never OK. (bundle.json is listed nowhere, so it may stay OK.)"""
    directory = fuzzed
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    path = paths[file % len(paths)]
    before, inventory = path.read_bytes(), (directory / "bundle.json").read_bytes()
    length = len(before.rstrip(b"\0")) + 1  # all padding is alike
    at = place % min(length, len(before))
    after = before[:at] + (b"" if erase else bytes([byte])) + before[at + 1 :]
    path.write_bytes(after)
    try:
        if listed and path.name != "bundle.json":
            reseal(directory)
        report = verify(directory)
        assert render(report).splitlines()[-1] == report.verdict
        if before != after and not listed and path.name != "bundle.json":
            assert report.verdict is not Verdict.OK
    finally:
        path.write_bytes(before)
        (directory / "bundle.json").write_bytes(inventory)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_event_moved_past_its_calls_others_is_never_ok(data: st.DataObject) -> None:
    """All chained anew, the ladder still tells the order; deliveries and erasures may stand in several places."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made) / "bundle"
        good_bundle(directory)
        parts = read(directory)
        at = data.draw(st.integers(0, len(parts.events) - 1))
        to = data.draw(st.integers(0, len(parts.events) - 1).filter(lambda to: to != at))
        line = parts.events.pop(at)
        same_call = {each.record["call"] for each in parts.events[min(at, to) : max(at, to)]} & {line.record["call"]}
        parts.events.insert(to, line)
        write(parts, directory)
        report = verify(directory)
        if same_call and line.record["kind"] not in ("body.erased", "call.delivered"):
            assert report.verdict is not Verdict.OK


JUNK = (None, True, -1, 0, 1 << 65, 1.5, "", "\ud800", "a" * 64, [], {}, [[]], [["", 1]], {"seq": 1, "chain": "a" * 64})


def parts_of(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value that can hold something else: its container and its key."""
    names = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, name) for name in names] + [place for name in names for place in parts_of(value[name])]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(which=st.integers(0, 4), line=st.integers(0, 1 << 16), place=st.integers(0, 1 << 16), junk=st.sampled_from(JUNK))
def test_any_value_replaced_ends_in_a_verdict(fuzzed: Path, which: int, line: int, place: int, junk: object) -> None:
    """Types that a record should not have, with its links right: never a traceback."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(shutil.copytree(fuzzed, Path(made) / "bundle"))
        path = [*sorted(directory.glob("*.jsonl")), directory / SEGMENT][which]
        lines = path.read_bytes().rstrip(b"\0").splitlines()
        skip = 65 if path.name == "events.jsonl" else 0
        records = [json.loads(raw[skip:]) for raw in lines]
        places = parts_of(records[line % len(records)])
        container, name = places[place % len(places)]
        container[name] = junk
        texts, link = [json.dumps(record).encode() for record in records], "0" * 64
        if skip:
            for number, text in enumerate(texts):
                link = digest_of(link.encode() + text)
                texts[number] = link.encode() + b" " + text
        path.write_bytes(b"".join(text + b"\n" for text in texts))
        reseal(directory)
        assert verify(directory).verdict in Verdict
