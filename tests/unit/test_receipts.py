"""The receipt log: a torn tail heals, any other change is noticed, segments roll and survive a crash at their birth."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from ledger import receipts
from ledger.codec import digest_of
from ledger.errors import WitnessesDisagreeError
from ledger.ids import NO_CHAIN
from ledger.receipts import Position, ReceiptLog, read_segment, read_since, segments
from tests.harness.ledgers import FIRST, KEY, NOW_MS, SCOPE

LIMIT_BYTES = 1024


def row(number: int, **changes: Any) -> dict[str, Any]:
    """A `sent` line's own fields; `n` and `prev` are the log's."""
    whose = {"scope": SCOPE, "key": KEY, "key_source": "derived", "occurrence": 1, "generation": 1, "call": FIRST}
    what = {"attempt": number, "upstream": "openai", "caller_exact": "exact", "digest": None}
    return {"kind": "sent", "at": NOW_MS, **whose, **what, "seq": number, "chain": NO_CHAIN, **changes}


def opened(directory: Path, lineage: str = "lineage") -> ReceiptLog:
    return ReceiptLog(directory, "ledger", lineage)


def written(directory: Path, lines: int) -> Position:
    log = opened(directory)
    for number in range(lines):
        log.append([row(number)])
    log.sync()
    log.close()
    return log.position


def position(directory: Path) -> Position:
    log = opened(directory, "another")
    log.close()
    return log.position


def test_lines_are_chained_as_format_md_says(tmp_path: Path) -> None:
    """`n` counts from 1, `prev` is the digest of the line before without its newline."""
    end = written(tmp_path, 3)
    lines = (tmp_path / "000001.jsonl").read_bytes().splitlines()
    rows = [orjson.loads(line) for line in lines]
    assert [each["n"] for each in rows] == [1, 2, 3, 4]
    assert [each["kind"] for each in rows] == ["segment", "sent", "sent", "sent"]
    assert [each["prev"] for each in rows] == [NO_CHAIN, *map(digest_of, lines[:-1])]
    assert rows[0] == {"n": 1, "kind": "segment", "lineage": "lineage", "ledger": "ledger", "prev": NO_CHAIN}
    assert end == Position("lineage", 4, digest_of(lines[-1])) == position(tmp_path)


def test_tail_torn_at_every_byte_is_cut_off(tmp_path: Path) -> None:
    """Whatever part of the last line reached the disk, the log goes on after the line before it."""
    written(tmp_path, 2)
    before = position(tmp_path)
    path = tmp_path / "000001.jsonl"
    whole = path.read_bytes()
    written(tmp_path, 1)
    last = path.read_bytes()[len(whole) :]
    for size in range(len(last) - 1):
        path.write_bytes(whole + last[:size])
        assert position(tmp_path) == before
        assert path.read_bytes() == whole


def test_whole_last_line_without_its_newline_is_evidence(tmp_path: Path) -> None:
    """Only the newline is missing, and the line continues the chain: it is kept, never taken for a proof of not sending."""
    written(tmp_path, 2)
    path = tmp_path / "000001.jsonl"
    whole, after = path.read_bytes(), position(tmp_path)
    path.write_bytes(whole[:-1])
    assert position(tmp_path) == after
    assert path.read_bytes() == whole


def test_first_line_torn_at_every_byte_is_created_again(tmp_path: Path) -> None:
    """A crash at the log's birth leaves nothing that vouches for anything: it is born again."""
    written(tmp_path, 0)
    path = tmp_path / "000001.jsonl"
    first = path.read_bytes()
    for size in range(len(first)):
        path.write_bytes(first[:size])
        assert position(tmp_path).lineage == "another"


def noticed(directory: Path) -> bool:
    try:
        position(directory)
    except WitnessesDisagreeError:
        return True
    return False


def test_flipping_any_byte_before_the_last_line_is_noticed(tmp_path: Path) -> None:
    """Every bit pattern of a few masks, at every byte that a later line vouches for."""
    written(tmp_path, 3)
    path = tmp_path / "000001.jsonl"
    whole = path.read_bytes()
    vouched = whole[:-1].rfind(b"\n") + 1
    for at in range(vouched):
        for mask in (0x01, 0x20, 0x80):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
            assert noticed(tmp_path), (at, mask)


def test_flipping_a_byte_of_the_last_line_is_noticed_or_changes_the_position(tmp_path: Path) -> None:
    """Nothing after it vouches for the last line; its own place and form are checked, and recovery checks what it witnesses."""
    end = written(tmp_path, 2)
    path = tmp_path / "000001.jsonl"
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for at in range(start, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert noticed(tmp_path) or position(tmp_path).chain != end.chain, at


def _without(lines: list[bytes], at: int) -> list[bytes]:
    return lines[:at] + lines[at + 1 :]


def _swapped(lines: list[bytes], at: int) -> list[bytes]:
    return [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]


@pytest.mark.parametrize("at", range(4))
def test_deleted_swapped_or_foreign_line_is_noticed(at: int, tmp_path: Path) -> None:
    """At every place of the segment but its end, which only the ledger can vouch for."""
    written(tmp_path / "foreign", 4)
    foreign = (tmp_path / "foreign" / "000001.jsonl").read_bytes().splitlines(keepends=True)
    log = opened(directory := tmp_path / "log", "mine")
    log.append([row(number, call="call_other") for number in range(4)])
    log.close()
    path = directory / "000001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    junk = [b"junk\n", b"[]\n", b"7\n", b"\n", b'{"n":1}\n', b'{"n":%d,"kind":"sent","prev":""}\n' % (at + 1)]
    changes = [_without(lines, at), _swapped(lines, at), [*lines[:at], foreign[at], *lines[at + 1 :]]]
    changes += [[*lines[:at], each, *lines[at:]] for each in (foreign[at], lines[at], *junk)]
    for changed in changes:
        path.write_bytes(b"".join(changed))
        assert noticed(directory)


@pytest.mark.parametrize("line", [b"junk\n", b"[]\n", b"\n", b'{"n":6,"kind":"sent","prev":"x"}\n'])
def test_foreign_line_at_the_end_is_noticed(line: bytes, tmp_path: Path) -> None:
    """A whole line that is no receipt is no torn one."""
    written(tmp_path, 4)
    with (tmp_path / "000001.jsonl").open("ab") as stream:
        stream.write(line)
    assert noticed(tmp_path)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "SEGMENT_LIMIT_BYTES", LIMIT_BYTES)


@pytest.mark.usefixtures("small_segments")
def test_segments_roll_and_reading_spans_them(tmp_path: Path) -> None:
    """The chain and the count go on over segments; reading starts at any line, in whichever segment it stands."""
    end = written(tmp_path, 20)
    paths = segments(tmp_path)
    assert len(paths) > 3
    assert all(path.stat().st_size < 2 * LIMIT_BYTES for path in paths)
    assert position(tmp_path) == end
    for since in range(1, end.count + 2):
        assert [line.row["n"] for line in read_since(tmp_path, since)] == list(range(since, end.count + 1))
    lines = list(read_since(tmp_path, 1))
    assert [line.row["prev"] for line in lines] == [NO_CHAIN, *(line.digest for line in lines[:-1])]
    assert sum(line.row["kind"] == "segment" for line in lines) == len(paths)
    assert {line.row["lineage"] for line in lines if line.row["kind"] == "segment"} == {"lineage"}


@pytest.mark.usefixtures("small_segments")
def test_missing_or_shortened_older_segment_is_noticed(tmp_path: Path) -> None:
    """Each segment's first line names the last of the one before."""
    written(tmp_path, 20)
    *_, before, _newest = segments(tmp_path)
    whole = before.read_bytes()
    before.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(WitnessesDisagreeError):
        list(read_since(tmp_path, 1))
    before.unlink()
    with pytest.raises(WitnessesDisagreeError):
        list(read_since(tmp_path, 1))


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("left", [0, 1, 40])
def test_crash_while_a_segment_is_created_heals(left: int, tmp_path: Path) -> None:
    """A newest segment without one whole line is created again, and the log goes on where it was."""
    before = written(tmp_path, 20)
    *_, newest = segments(tmp_path)
    torn = tmp_path / f"{int(newest.stem) + 1:06d}.jsonl"
    torn.write_bytes(b'{"n":99,"kind":"segment","lineage":"x","ledger":"y"}'[:left])
    assert position(tmp_path) == before
    end = written(tmp_path, 10)
    assert end.lineage == "lineage"
    assert [line.row["n"] for line in read_since(tmp_path, 1)] == list(range(1, end.count + 1))


def test_reading_a_segment_leaves_out_a_torn_line(tmp_path: Path) -> None:
    """A reader beside the writer may see half a line."""
    written(tmp_path, 2)
    path = tmp_path / "000001.jsonl"
    path.write_bytes(path.read_bytes() + b'{"n":4,"kin')
    assert [line.row["n"] for line in read_segment(path)] == [1, 2, 3]
