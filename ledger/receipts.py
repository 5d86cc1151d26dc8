"""The receipt log: the ledger's second witness (FORMAT.md section 6). Hash-chained lines in segments, fdatasynced.

It catches what SQLite cannot notice about itself: a restored backup, a deleted WAL, a lost tail.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from ledger.codec import digest_of
from ledger.errors import WitnessesDisagreeError
from ledger.ids import NO_CHAIN, Digest

SEGMENT_LIMIT_BYTES: Final = 64 * 1024 * 1024  # one segment is read at start: a second or so
SEGMENT_NAME: Final = "{:06d}.jsonl"
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
        """Mends a torn last line, checks the newest segment, creates the first one. Raises WitnessesDisagreeError."""
        self._directory, self._ledger_id = directory, ledger_id
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = segments(directory)
        if names and _mend_torn_tail(names[-1]) == 0:  # died while the segment was being created: create it again
            names.pop().unlink()
        if not names:
            self._begin_segment(1, Position(new_lineage, 0, NO_CHAIN))
            return
        self._number = int(names[-1].stem)
        self._fd = os.open(names[-1], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._size = os.fstat(self._fd).st_size
        lines = list(read_segment(names[-1]))
        first, last = lines[0], lines[-1]
        self.position = Position(first.row["lineage"], last.row["n"], last.digest)

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Writes lines; `sync` makes them durable. Raises OSError, after which the log's state is unknown."""
        if self._size > SEGMENT_LIMIT_BYTES:
            os.fdatasync(self._fd)
            os.close(self._fd)
            self._begin_segment(self._number + 1, self.position)
        self._write(rows)

    def sync(self) -> None:
        """Durable when it returns. If it raises, nothing is known: poison, never call it again."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _begin_segment(self, number: int, position: Position) -> None:
        path = self._directory / SEGMENT_NAME.format(number)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._number, self._size, self.position = number, 0, position
        self._write([{"kind": "segment", "lineage": position.lineage, "ledger": self._ledger_id}])
        os.fsync(self._fd)
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)  # the name too must survive, or the segment is lost with its bytes intact
        finally:
            os.close(directory)

    def _write(self, rows: list[dict[str, Any]]) -> None:
        lines = []
        for row in rows:
            count = self.position.count + 1
            line = orjson.dumps({"n": count, **row, "prev": self.position.chain})
            self.position = Position(self.position.lineage, count, digest_of(line))
            lines.append(line + b"\n")
        data = memoryview(b"".join(lines))
        self._size += len(data)
        while data:  # os.write may write less than asked
            data = data[os.write(self._fd, data) :]


@dataclass(frozen=True, slots=True)
class Line:
    """One line as read: its fields, and the digest that the next line names."""

    row: dict[str, Any]
    digest: Digest


def segments(directory: Path) -> list[Path]:
    """Oldest first."""
    return sorted(directory.glob("[0-9]*.jsonl"))


def read_segment(path: Path) -> Iterator[Line]:
    """Checks every link. A torn last line is left out. Raises WitnessesDisagreeError where the chain breaks."""
    previous: Line | None = None
    for raw in path.read_bytes().split(b"\n")[:-1]:
        line = _line(raw, path)
        expected = (previous.row["n"] + 1, previous.digest) if previous else (line.row["n"], line.row["prev"])
        if (line.row["n"], line.row["prev"]) != expected or (previous is None and line.row["kind"] != "segment"):
            raise WitnessesDisagreeError(_broken(path, line.row["n"]))
        previous = line
        yield line


def read_since(directory: Path, count: int) -> Iterator[Line]:
    """The lines from number `count` on (that one included), one at a time, over as many segments as hold them."""
    previous: Line | None = None
    for path in _from(segments(directory), count):
        for line in read_segment(path):
            if previous is not None and (line.row["n"], line.row["prev"]) != (previous.row["n"] + 1, previous.digest):
                raise WitnessesDisagreeError(_broken(path, line.row["n"]))
            previous = line
            if line.row["n"] >= count:
                yield line


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
    raise WitnessesDisagreeError(f"{path} holds a line that is no receipt: {raw[:120]!r}.")


def _broken(path: Path, number: int) -> str:
    return f"The receipt log is broken at line {number} ({path}): it was changed or cut after it was written."


def _mend_torn_tail(path: Path) -> int:
    """A last line without its newline was being written when the process or the machine died. Returns the bytes left.

    A torn line vouches for nothing and is cut off. One that is whole and continues the chain lacks only its newline: it is
    evidence that something was sent, so it is kept.
    """
    *lines, last = path.read_bytes().split(b"\n")
    whole = sum(len(line) + 1 for line in lines)
    if not last:
        return whole
    is_kept = _continues(last, lines[-1] if lines else None, path)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        if is_kept:
            os.write(fd, b"\n")
        else:
            os.ftruncate(fd, whole)
        os.fsync(fd)
    finally:
        os.close(fd)
    return whole + (len(last) + 1 if is_kept else 0)


def _continues(last: bytes, before: bytes | None, path: Path) -> bool:
    try:
        row = _line(last, path).row
    except WitnessesDisagreeError:
        return False
    return before is not None and row["prev"] == digest_of(before)
