"""The receipt log: the ledger's second witness (FORMAT.md section 6). Hash-chained lines in segments, fdatasynced.

It catches what SQLite cannot notice about itself: a restored backup, a deleted WAL, a lost tail.
"""

import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from ledger.codec import digest_of
from ledger.epochs import sync_directory
from ledger.errors import WitnessesDisagreeError
from ledger.ids import NO_CHAIN, Digest

SEGMENT_LIMIT_BYTES: Final = 64 * 1024 * 1024  # some 100,000 lines: a file that tools still open
BLOCK_BYTES: Final = 64 * 1024  # a file of another size was cut; some 120 lines, so that extending it is rare
REWRITTEN_BYTES: Final = 1024 * 1024  # more than one write: a batch of 256 lines, each below 1 KiB with its longest key
CHECKED_LINES: Final = 1024  # links checked at each start, more than one write leaves: some milliseconds
PIECE_BYTES: Final = 256 * 1024  # read at once, from the end back; a line is far shorter
SECTOR_BYTES: Final = 512  # what a disk writes whole or not at all
SEGMENT_NAME: Final = "{:06d}.jsonl"
_SEGMENT: Final = re.compile(r"\d{6}\.jsonl")
REMEDY: Final = (
    "Restore it; or move the receipts directory aside and put on record that unknown calls stay unknown: "
    'sendonce recover --accept-lost-tail --reason "…"'
)
_WHOSE: Final = frozenset(
    {"scope", "key", "key_source", "occurrence", "generation", "call", "attempt", "upstream", "caller_exact"}
)
_ATTEMPT_FIELDS: Final = _WHOSE | {"n", "kind", "at", "digest", "seq", "chain", "prev"}
_FIELDS: Final = {
    "segment": frozenset({"n", "kind", "lineage", "ledger", "prev"}),
    "sent": _ATTEMPT_FIELDS,
    "received": _ATTEMPT_FIELDS,
}


@dataclass(frozen=True, slots=True)
class Position:
    """Where the log stands: lines so far, and the digest of the last one."""

    lineage: str
    count: int
    chain: Digest


class ReceiptLog:
    """Appends to the newest segment. Owned by whoever owns the state dir; used from one thread."""

    def __init__(self, directory: Path, ledger_id: str, new_lineage: str) -> None:
        """Mends a torn last line, checks the newest links, creates the first segment. Raises WitnessesDisagreeError."""
        self._directory, self._ledger_id = directory, ledger_id
        self.is_synced = True
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = segments(directory)
        if not names:
            self._begin_segment(1, Position(new_lineage, 0, NO_CHAIN))
            return
        self._number, self._end = len(names), _mend_tail(names[-1])
        self._fd = os.open(names[-1], os.O_WRONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._fd).st_size
        self._write_again(names[-1])
        lines = read_back(directory)
        last = next(lines)
        for _ in itertools.islice(lines, CHECKED_LINES):
            pass
        self.position = Position(_lineage(names), last.row["n"], last.digest)

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Writes lines; `sync` makes them durable. Raises OSError, after which the log's state is unknown."""
        if not self.is_synced:  # so that a crash can tear the last write only
            self.sync()
        if self._end > SEGMENT_LIMIT_BYTES:
            os.close(self._fd)
            self._begin_segment(self._number + 1, self.position)
        self._write(rows)

    def sync(self) -> None:
        """Durable when it returns. If it raises, nothing is known: poison, never call it again."""
        os.fdatasync(self._fd)
        self.is_synced = True

    def close(self) -> None:
        os.close(self._fd)

    def _begin_segment(self, number: int, position: Position) -> None:
        """Under another name until it has its first line: a segment without one was damaged, never half made."""
        path = self._directory / SEGMENT_NAME.format(number)
        unfinished = path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(unfinished, flags, 0o600)
        self._number, self._end, self._size, self.position = number, 0, 0, position
        self._write([{"kind": "segment", "lineage": position.lineage, "ledger": self._ledger_id}])
        self.sync()
        unfinished.rename(path)
        sync_directory(self._directory)

    def _write(self, rows: list[dict[str, Any]]) -> None:
        lines = []
        for row in rows:
            count = self.position.count + 1
            line = orjson.dumps({"n": count, **row, "prev": self.position.chain})
            self.position = Position(self.position.lineage, count, digest_of(line))
            lines.append(line + b"\n")
        data = b"".join(lines)
        if self._end + len(data) >= self._size:
            self._extend(self._end + len(data))
        _write_at(self._fd, data, self._end)
        self._end += len(data)
        self.is_synced = False

    def _write_again(self, path: Path) -> None:
        """What a process wrote that was killed, or whose sync failed, may be in the page cache only, and after a failed sync no
        later one writes it. So the end is written again, the same bytes, and synced.
        """
        start = max(0, self._end - REWRITTEN_BYTES)
        with path.open("rb") as file:
            file.seek(start)
            _write_at(self._fd, file.read(self._end - start), start)
        self.sync()

    def _extend(self, end: int) -> None:
        """Room for lines up to `end` and at least one byte of padding. The size is set in one step: it is never half a block."""
        before, self._size = self._size, (end // BLOCK_BYTES + 1) * BLOCK_BYTES
        os.ftruncate(self._fd, self._size)
        _write_at(self._fd, bytes(self._size - before), before)  # space is taken now, and syncs need no metadata later
        os.fsync(self._fd)


@dataclass(frozen=True, slots=True)
class Line:
    """One line as read: its fields, and the digest that the next line names."""

    row: dict[str, Any]
    digest: Digest


def segments(directory: Path) -> list[Path]:
    """Oldest first. Raises WitnessesDisagreeError where one is missing; files of other names are nobody's evidence."""
    found = sorted(path for path in directory.glob("*.jsonl") if _SEGMENT.fullmatch(path.name))
    for number, path in enumerate(found, 1):
        if path.name != SEGMENT_NAME.format(number):
            raise WitnessesDisagreeError(
                f"The receipt log in {directory} lacks its segment {SEGMENT_NAME.format(number)}. {REMEDY}"
            )
    return found


def read_segment(path: Path) -> Iterator[Line]:
    """Checks every link. A torn last line is left out. Raises WitnessesDisagreeError where the chain breaks."""
    previous: Line | None = None
    for raw in _written(path).split(b"\n")[:-1]:
        line = _line(raw, path)
        expected = (previous.row["n"] + 1, previous.digest) if previous else (line.row["n"], line.row["prev"])
        if (line.row["n"], line.row["prev"]) != expected or (previous is None and line.row["kind"] != "segment"):
            raise WitnessesDisagreeError(_broken(path, line.row["n"]))
        previous = line
        yield line
    if previous is None:
        raise WitnessesDisagreeError(f"{path} has no line: it was emptied after it was written. {REMEDY}")


def read_since(directory: Path, count: int, among: list[Path] | None = None) -> Iterator[Line]:
    """The lines from number `count` on (that one included), one at a time, over as many segments as hold them."""
    previous: Line | None = None
    for path in _from(among or segments(directory), count):
        for line in read_segment(path):
            if previous is not None and (line.row["n"], line.row["prev"]) != (previous.row["n"] + 1, previous.digest):
                raise WitnessesDisagreeError(_broken(path, line.row["n"]))
            previous = line
            if line.row["n"] >= count:
                yield line


def read_back(directory: Path) -> Iterator[Line]:
    """The lines from the newest one back, each checked against the one that follows it; one piece in memory at a time.

    A torn last line is left out. What is not read is not vouched for. Raises WitnessesDisagreeError where the chain breaks.
    """
    following: Line | None = None
    for path in reversed(segments(directory)):
        for raw, is_first in _back(path):
            line = _line(raw, path)
            if following is not None and not _continued(line, following):
                raise WitnessesDisagreeError(_broken(path, line.row["n"] + 1))
            if is_first and line.row["kind"] != "segment":
                raise WitnessesDisagreeError(_broken(path, line.row["n"]))
            following = line
            yield line


def _continued(line: Line, following: Line) -> bool:
    return bool((following.row["n"], following.row["prev"]) == (line.row["n"] + 1, line.digest))


def _back(path: Path) -> Iterator[tuple[bytes, bool]]:
    """A segment's lines without their newlines, from its end back, and whether each is its first."""
    with path.open("rb") as file:
        at, rest, is_torn = _end(file, path), b"", True  # until a newline is seen, nothing is known to be whole
        while at:
            start = max(0, at - PIECE_BYTES)
            file.seek(start)
            lines = (file.read(at - start) + rest).split(b"\n")
            if is_torn:
                lines.pop()
                is_torn = not lines
            at, rest = start, lines.pop(0) if start and lines else b""
            if len(rest) > PIECE_BYTES:
                raise WitnessesDisagreeError(f"{path} holds a line that is no receipt: {rest[:120]!r}. {REMEDY}")
            for number in range(len(lines) - 1, -1, -1):
                yield lines[number], not start and not number
        if is_torn:
            raise WitnessesDisagreeError(f"{path} has no line: it was emptied after it was written. {REMEDY}")


def _end(file: BinaryIO, path: Path) -> int:
    """Where the padding begins. Raises WitnessesDisagreeError for a file that was cut: its size or padding tells."""
    size = at = os.fstat(file.fileno()).st_size
    while at:
        start = max(0, at - PIECE_BYTES)
        file.seek(start)
        if written := file.read(at - start).rstrip(b"\0"):
            at = start + len(written)
            break
        at = start
    if size % BLOCK_BYTES or (size and at == size):
        raise WitnessesDisagreeError(f"{path} was cut after it was written: its padding is not whole. {REMEDY}")
    return at


def _lineage(paths: list[Path]) -> str:
    """Of the newest segment, which has to continue the one before it."""
    with paths[-1].open("rb") as file:
        first = _line(file.readline(PIECE_BYTES).removesuffix(b"\n"), paths[-1])
    before = _line(next(_back(paths[-2]))[0], paths[-2]) if len(paths) > 1 else None
    if first.row["kind"] != "segment" or (before is not None and not _continued(before, first)):
        raise WitnessesDisagreeError(_broken(paths[-1], first.row["n"]))
    return str(first.row["lineage"])


def _from(paths: list[Path], count: int) -> list[Path]:
    """The segment that holds line `count`, and the later ones."""
    for at in range(len(paths) - 1, 0, -1):
        first = next(read_segment(paths[at]), None)
        if first is not None and first.row["n"] <= count:
            return paths[at:]
    return paths


def _line(raw: bytes, path: Path) -> Line:
    try:
        row = orjson.loads(raw)
        if row.keys() == _FIELDS[row["kind"]] and isinstance(row["n"], int):
            return Line(row, digest_of(raw))
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        pass
    raise WitnessesDisagreeError(f"{path} holds a line that is no receipt: {raw[:120]!r}. {REMEDY}")


def _broken(path: Path, number: int) -> str:
    return f"The receipt log is broken at line {number} ({path}): it was changed or cut after it was written. {REMEDY}"


def _written(path: Path) -> bytes:
    """The segment without its padding. Raises WitnessesDisagreeError for a file that was cut: its size or padding tells."""
    data = path.read_bytes()
    written = data.rstrip(b"\0")
    if len(data) % BLOCK_BYTES or (data and len(written) == len(data)):
        raise WitnessesDisagreeError(f"{path} was cut after it was written: its padding is not whole. {REMEDY}")
    return written


def _mend_tail(path: Path) -> int:
    """Undoes a write that a crash tore; returns where the lines end, 0 if there are none. Raises WitnessesDisagreeError for any other damage.

    A torn line vouches for nothing: it was never synced, so nothing left for it, and it is zeroed. One that is whole and
    continues the chain lacks only its newline: it is evidence that something was sent, so it is kept.
    """
    start, written = _tail(path)
    hole = written.find(b"\0")
    whole = written.rfind(b"\n", 0, hole if hole >= 0 else len(written)) + 1
    tail, at = written[whole:], start + whole
    if not tail:
        return at
    before = written[:whole].split(b"\n")[-2] if whole else None
    is_kept = hole < 0 and _continues(tail, before, path)
    is_longer_than_a_write = bool(start) and not whole
    if not is_kept and (is_longer_than_a_write or _continues(tail[:-1], before, path) or not _is_torn(tail, at)):
        raise WitnessesDisagreeError(
            f"The receipt log is damaged behind byte {at} of {path}: no crash leaves what stands there. {REMEDY}"
        )
    fd = os.open(path, os.O_WRONLY)
    try:
        if is_kept:
            _write_at(fd, b"\n", at + len(tail))
        else:
            _write_at(fd, bytes(len(tail)), at)
        os.fsync(fd)
    finally:
        os.close(fd)
    return at + len(tail) + 1 if is_kept else at


def _tail(path: Path) -> tuple[int, bytes]:
    """What is written at the end, from the beginning of a line on, and where that stands. A crash tears the last write only."""
    with path.open("rb") as file:
        end = _end(file, path)
        start = max(0, end - REWRITTEN_BYTES)
        file.seek(start)
        written = file.read(end - start)
    begins = written.find(b"\n") + 1 if start else 0
    return start + begins, written[begins:]


def _is_torn(tail: bytes, start: int) -> bool:
    """Would a crash explain it? Sectors that never reached the disk read as zeros: from a sector or a line on, up to a sector."""
    for run in re.finditer(rb"\0+", tail):
        begins_with_line = run.start() == 0 or tail[run.start() - 1 : run.start()] == b"\n"
        if (start + run.end()) % SECTOR_BYTES or not (begins_with_line or (start + run.start()) % SECTOR_BYTES == 0):
            return False
    return True


def _write_at(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:  # os.pwrite may write less than asked
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def _continues(last: bytes, before: bytes | None, path: Path) -> bool:
    try:
        row = _line(last, path).row
    except WitnessesDisagreeError:
        return False
    return before is not None and row["prev"] == digest_of(before)
