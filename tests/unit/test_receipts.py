"""The receipt log: a torn tail heals, any other change is noticed, segments roll and survive a crash at their birth."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from ledger import receipts
from ledger.codec import digest_of
from ledger.errors import WitnessesDisagreeError
from ledger.ids import NO_CHAIN
from ledger.receipts import (
    BLOCK_BYTES,
    SECTOR_BYTES,
    Position,
    ReceiptLog,
    read_back,
    read_segment,
    read_since,
    segments,
)
from tests.harness.ledgers import FIRST, KEY, NOW_MS, SCOPE
from tests.harness.segments import content, put

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
    lines = content(tmp_path / "000001.jsonl").splitlines()
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
    whole = content(path)
    written(tmp_path, 1)
    last = content(path)[len(whole) :]
    for size in range(len(last) - 1):
        put(path, whole + last[:size])
        assert position(tmp_path) == before
        assert content(path) == whole
        assert path.stat().st_size == BLOCK_BYTES


def test_file_cut_at_any_size_is_noticed(tmp_path: Path) -> None:
    """A crash tears a write, it does not shorten the file: a durable last line is never taken for a torn one."""
    written(tmp_path, 3)
    path = tmp_path / "000001.jsonl"
    whole = path.read_bytes()
    for size in (*range(1, len(content(path)) + 3), SECTOR_BYTES, BLOCK_BYTES // 2, BLOCK_BYTES - 1):
        path.write_bytes(whole[:size])
        assert noticed(tmp_path), size
        assert path.stat().st_size == size


def test_sectors_lost_from_the_last_write_are_cut_off(tmp_path: Path) -> None:
    """Its later sectors may have reached the disk without an earlier one: none of its lines let anything leave."""
    written(tmp_path, 2)
    before, path = position(tmp_path), tmp_path / "000001.jsonl"
    whole = content(path)
    log = opened(tmp_path)
    log.append([row(number) for number in range(6)])  # one write of several sectors
    log.close()
    after = content(path)
    sectors = range(len(whole) // SECTOR_BYTES, len(after) // SECTOR_BYTES + 1)
    assert len(sectors) > 3
    for lost in sectors:
        start, end = max(lost * SECTOR_BYTES, len(whole)), min((lost + 1) * SECTOR_BYTES, len(after))
        put(path, after[:start] + bytes(end - start) + after[end:])
        assert position(tmp_path).count in range(before.count, before.count + 6)
        assert content(path) == after[: len(content(path))]


def test_zero_byte_that_no_crash_explains_is_noticed(tmp_path: Path) -> None:
    """A hole inside a sector is damage to a line that may have let something leave."""
    written(tmp_path, 3)
    path = tmp_path / "000001.jsonl"
    whole = content(path)
    for at in range(len(whole) - 1):
        if at % SECTOR_BYTES != SECTOR_BYTES - 1:  # there it is a torn sector's last byte, if a line began right before
            put(path, whole[:at] + b"\0" + whole[at + 1 :])
            assert noticed(tmp_path), at


def test_extending_never_shows_part_of_a_block(tmp_path: Path) -> None:
    """Over several blocks every line is there, the size is whole blocks, and one byte of padding always follows."""
    log = opened(tmp_path)
    path = tmp_path / "000001.jsonl"
    for number in range(400):
        log.append([row(number)])
        assert path.stat().st_size % BLOCK_BYTES == 0
        assert len(content(path)) < path.stat().st_size
    log.close()
    assert path.stat().st_size > 2 * BLOCK_BYTES
    assert position(tmp_path) == log.position


def test_whole_last_line_without_its_newline_is_evidence(tmp_path: Path) -> None:
    """Only the newline is missing, and the line continues the chain: it is kept, never taken for a proof of not sending."""
    written(tmp_path, 2)
    path = tmp_path / "000001.jsonl"
    whole, after = content(path), position(tmp_path)
    put(path, whole[:-1])
    assert position(tmp_path) == after
    assert content(path) == whole


@pytest.mark.parametrize("left", [0, 1, 40, BLOCK_BYTES])
def test_crash_at_the_logs_birth_heals(left: int, tmp_path: Path) -> None:
    """A segment has another name until its first line is durable: what is left of it vouches for nothing."""
    (tmp_path / "000001.new").write_bytes(b'{"n":1,"kind":"segment","lineage":"x"'.ljust(BLOCK_BYTES, b"\0")[:left])
    end = written(tmp_path, 2)
    assert (end.lineage, end.count) == ("lineage", 3)
    assert [path.name for path in tmp_path.iterdir()] == ["000001.jsonl"]


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
    whole = content(path)
    vouched = whole[:-1].rfind(b"\n") + 1
    for at in range(vouched):
        for mask in (0x01, 0x20, 0x80):
            put(path, whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
            assert noticed(tmp_path), (at, mask)


def test_flipping_a_byte_of_the_last_line_is_noticed_or_changes_the_position(tmp_path: Path) -> None:
    """Nothing after it vouches for the last line; its own place and form are checked, and recovery checks what it witnesses."""
    end = written(tmp_path, 2)
    path = tmp_path / "000001.jsonl"
    whole = content(path)
    start = whole[:-1].rfind(b"\n") + 1
    for at in range(start, len(whole)):
        put(path, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
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
    lines = content(path).splitlines(keepends=True)
    junk = [b"junk\n", b"[]\n", b"7\n", b"\n", b'{"n":1}\n', b'{"n":%d,"kind":"sent","prev":""}\n' % (at + 1)]
    changes = [_without(lines, at), _swapped(lines, at), [*lines[:at], foreign[at], *lines[at + 1 :]]]
    changes += [[*lines[:at], each, *lines[at:]] for each in (foreign[at], lines[at], *junk)]
    for changed in changes:
        put(path, b"".join(changed))
        assert noticed(directory)


@pytest.mark.parametrize("line", [b"junk\n", b"[]\n", b"\n", b'{"n":6,"kind":"sent","prev":"x"}\n'])
def test_foreign_line_at_the_end_is_noticed(line: bytes, tmp_path: Path) -> None:
    """A whole line that is no receipt is no torn one."""
    written(tmp_path, 4)
    path = tmp_path / "000001.jsonl"
    put(path, content(path) + line)
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
    assert all(len(content(path)) < 2 * LIMIT_BYTES for path in paths)
    assert position(tmp_path) == end
    for since in range(1, end.count + 2):
        assert [line.row["n"] for line in read_since(tmp_path, since)] == list(range(since, end.count + 1))
    lines = list(read_since(tmp_path, 1))
    assert [line.row["prev"] for line in lines] == [NO_CHAIN, *(line.digest for line in lines[:-1])]
    assert sum(line.row["kind"] == "segment" for line in lines) == len(paths)
    assert {line.row["lineage"] for line in lines if line.row["kind"] == "segment"} == {"lineage"}


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("piece_bytes", [700, 1024, receipts.PIECE_BYTES])
def test_reading_back_gives_the_same_lines(piece_bytes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Over pieces and segments, wherever a piece ends; a line that is being written is left out."""
    monkeypatch.setattr(receipts, "PIECE_BYTES", piece_bytes)
    written(tmp_path, 20)
    lines = list(read_since(tmp_path, 1))
    assert list(read_back(tmp_path)) == lines[::-1]
    newest = segments(tmp_path)[-1]
    put(newest, content(newest) + b'{"n":99,"kin')
    assert list(read_back(tmp_path)) == lines[::-1]


@pytest.mark.parametrize("at", range(1, 6))
def test_reading_back_notices_a_changed_line_when_it_comes_to_it(at: int, tmp_path: Path) -> None:
    """What lies behind it is not vouched for: that is `doctor`'s and the verifier's to read."""
    end = written(tmp_path, 6)
    path = tmp_path / "000001.jsonl"
    lines = content(path).splitlines(keepends=True)
    put(path, b"".join([*lines[:at], lines[at].replace(b'"openai"', b'"0penai"'), *lines[at + 1 :]]))
    back = read_back(tmp_path)
    assert [next(back).row["n"] for _ in range(end.count - at - 1)] == list(range(end.count, at + 1, -1))
    with pytest.raises(WitnessesDisagreeError):
        next(back)


@pytest.mark.usefixtures("small_segments")
def test_missing_or_shortened_older_segment_is_noticed(tmp_path: Path) -> None:
    """Each segment's first line names the last of the one before."""
    written(tmp_path, 20)
    *_, before, _newest = segments(tmp_path)
    whole = content(before)
    put(before, b"".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(WitnessesDisagreeError):
        list(read_since(tmp_path, 1))
    before.unlink()
    with pytest.raises(WitnessesDisagreeError):
        list(read_since(tmp_path, 1))


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("left", [0, 1, 40, BLOCK_BYTES])
def test_crash_while_a_segment_is_created_heals(left: int, tmp_path: Path) -> None:
    """The log goes on where it was, and the half-made segment is made anew when it is due."""
    before = written(tmp_path, 20)
    *_, newest = segments(tmp_path)
    half = tmp_path / f"{int(newest.stem) + 1:06d}.new"
    half.write_bytes(b'{"n":99,"kind":"segment","lineage":"x","ledger":"y"}'.ljust(BLOCK_BYTES, b"\0")[:left])
    assert position(tmp_path) == before
    end = written(tmp_path, 10)
    assert end.lineage == "lineage"
    assert [line.row["n"] for line in read_since(tmp_path, 1)] == list(range(1, end.count + 1))


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("content_left", [b"", bytes(BLOCK_BYTES)])
def test_emptied_newest_segment_is_noticed(content_left: bytes, tmp_path: Path) -> None:
    """It had lines, and they may have let something leave: it is not taken for one that was being made."""
    written(tmp_path, 20)
    segments(tmp_path)[-1].write_bytes(content_left)
    assert noticed(tmp_path)


@pytest.mark.usefixtures("small_segments")
def test_stray_newest_segment_is_noticed(tmp_path: Path) -> None:
    """A copy of an older one under the next name would hide the lines between."""
    written(tmp_path, 20)
    paths = segments(tmp_path)
    (tmp_path / f"{len(paths) + 1:06d}.jsonl").write_bytes(paths[0].read_bytes())
    assert noticed(tmp_path)


def test_files_of_other_names_are_left_alone(tmp_path: Path) -> None:
    """A backup beside the log is neither read nor removed."""
    end = written(tmp_path, 2)
    for name in ("000001.old.jsonl", "1.jsonl", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    assert position(tmp_path) == end
    assert len(list(tmp_path.iterdir())) == 4


def test_reading_a_segment_leaves_out_a_torn_line(tmp_path: Path) -> None:
    """A reader beside the writer may see half a line."""
    written(tmp_path, 2)
    path = tmp_path / "000001.jsonl"
    put(path, content(path) + b'{"n":4,"kin')
    assert [line.row["n"] for line in read_segment(path)] == [1, 2, 3]
