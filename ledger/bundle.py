"""Export for an auditor: everything the ledger says of one moment, as plain files (FORMAT.md section 10).

Beside a living writer the order of reading is what makes the files agree: first where the ledger stands, then the
receipts, then everything else as one snapshot. So every receipt in the bundle has its event in it, and every event up
to `receipts_through` has its receipts.
"""

import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson
from blake3 import blake3

from ledger.errors import LedgerError, UnreadableRecordError
from ledger.ids import Digest, Head
from ledger.queries import FORMAT
from ledger.reader import Reader
from ledger.receipts import segments

BUNDLE: Final = 1
MANIFEST: Final = "bundle.json"  # written last: a directory without it was not finished
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PROVIDER_FIELDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "method": lambda value: isinstance(value, str),
    "path": lambda value: isinstance(value, str),
    "body_blake3": lambda value: isinstance(value, str) and _DIGEST.fullmatch(value) is not None,
    "complete": lambda value: isinstance(value, bool),
    "idempotency_key": lambda value: value is None or isinstance(value, str),
    "client_request_id": lambda value: value is None or isinstance(value, str),
}

Progress = Callable[[int, int], None]  # bodies written, bodies in all


class BundleError(LedgerError):
    """The bundle cannot be written as asked: its directory is in use, or a file given to it is not what it should be."""


@dataclass(frozen=True, slots=True)
class Given:
    """What an export is given beside the ledger. `inspections`: lines as FORMAT.md section 10 describes them."""

    made_at_ms: int
    has_owner: bool
    inspections: AsyncIterator[dict[str, Any]]
    provider_receipts: Path | None = None
    earlier_inspections: Path | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """`unreadable`: bodies that are kept and could not be read, with the reason."""

    directory: Path
    head: Head | None
    bodies: int
    unreadable: Mapping[Digest, str]


@dataclass(slots=True)
class _Target:
    """The directory while it is written; `files` becomes the inventory."""

    root: Path
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """A new file. Raises BundleError where the disk refuses it: what is read here comes from elsewhere."""
        path = self.root / name
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with path.open("xb") as file:
                yield file
        except OSError as error:
            raise BundleError(
                f"{path} cannot be written ({error.strerror}). Name a directory with room for it."
            ) from error

    def seal(self, name: str) -> None:
        """Enters the file, as it is on disk, in the inventory."""
        path = self.root / name
        whole = blake3(max_threads=1)
        whole.update_mmap(path)
        self.files[name] = {"size": path.stat().st_size, "blake3": whole.hexdigest()}


def new_directory(path: Path) -> Path:
    """An empty directory, created if there is none. Raises BundleError: what is older is never mixed in or overwritten."""
    os.umask(0o077)  # bodies in the plain are nobody else's business
    path = path.absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        in_use = any(path.iterdir())
    except OSError as error:
        raise BundleError(f"{path} cannot be written ({error.strerror}). Name another directory.") from error
    if in_use:
        raise BundleError(
            f"{path} is not empty. Name a new directory, or remove what an export that broke off left there."
        )
    return path


async def export(reader: Reader, receipts: Path, directory: Path, given: Given, progress: Progress) -> Exported:
    """Writes the bundle into the empty `directory`. Raises BundleError, UnreadableRecordError, OSError, sqlite3.Error."""
    target = _Target(directory)
    if (damage := await reader.integrity()) != "ok":
        raise UnreadableRecordError(f"SQLite finds damage in the ledger: {damage}")
    if given.provider_receipts is not None:
        _copy_provider_receipts(target, given.provider_receipts)
    due = await reader.head()
    for segment in segments(receipts):
        _copy_segment(target, segment)
    async with reader.snapshot():
        head = await reader.head()
        await _write_events(target, reader)
        await _write_lines(target, "index.jsonl", reader.index_rows())
        await _write_lines(target, "passes.jsonl", reader.pass_rows())
        unreadable = await _write_bodies(target, reader, progress)
        await _write_lines(target, "inspections.jsonl", _inspections(given))
        ledger_id = await reader.meta("ledger_id")
    about = {
        "bundle": BUNDLE,
        "format": FORMAT,
        "ledger_id": ledger_id,
        "made_at": given.made_at_ms,
        "owner": given.has_owner,
        "head": head,
        "receipts_through": due.seq if due else 0,
        "unreadable": unreadable,
        "files": target.files,
    }
    with target.open(MANIFEST) as file:
        file.write(orjson.dumps(about, option=orjson.OPT_INDENT_2) + b"\n")
    bodies = sum(name.startswith("bodies/") for name in target.files)
    return Exported(directory, head, bodies, unreadable)


async def _write_events(target: _Target, reader: Reader) -> None:
    with target.open("events.jsonl") as file:
        async with aclosing(reader.all_events()) as events:
            async for record, chain, call in events:
                if _call_in(record) != call:
                    raise UnreadableRecordError(
                        f"an event's column call_id says {call}, its record {str(record)[:120]!r}"
                    )
                file.write(f"{chain} {record}\n".encode())
    target.seal("events.jsonl")


def _call_in(record: str) -> str | None:
    try:
        call: str | None = orjson.loads(record)["call"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise UnreadableRecordError(f"the record {str(record)[:120]!r} cannot be read") from error
    return call


async def _write_lines(target: _Target, name: str, lines: AsyncIterator[dict[str, Any]]) -> None:
    with target.open(name) as file:
        async for line in lines:
            file.write(orjson.dumps(line) + b"\n")
    target.seal(name)


async def _write_bodies(target: _Target, reader: Reader, progress: Progress) -> dict[Digest, str]:
    unreadable = {}
    bodies = await reader.bodies()
    for done, (digest, size) in enumerate(bodies):
        progress(done, len(bodies))
        try:
            written = await _write_body(target, reader, digest)
        except UnreadableRecordError as error:
            unreadable[digest] = str(error)
            (target.root / "bodies" / digest).unlink()
            continue
        target.seal(f"bodies/{digest}")
        if written != size:
            unreadable[digest] = f"its row says {size} bytes and it has {written}"
    progress(len(bodies), len(bodies))
    return unreadable


async def _write_body(target: _Target, reader: Reader, digest: Digest) -> int:
    """The bytes written. Raises UnreadableRecordError, with part of the file there."""
    written = 0
    with target.open(f"bodies/{digest}") as file:
        async with aclosing(reader.body(digest)) as pieces:
            async for piece in pieces:
                written += file.write(piece)
    return written


async def _inspections(given: Given) -> AsyncIterator[dict[str, Any]]:
    if given.earlier_inspections is not None:
        for line in _json_lines(given.earlier_inspections, "--inspections")[1]:
            yield line
    async for line in given.inspections:
        yield line


def _copy_segment(target: _Target, segment: Path) -> None:
    """One reading: beside a living writer the last line may be half there, as after a crash."""
    data = segment.read_bytes()
    with target.open(f"receipts/{segment.name}") as file:
        file.write(data)
    target.seal(f"receipts/{segment.name}")


def _copy_provider_receipts(target: _Target, path: Path) -> None:
    """Its lines, byte for byte."""
    raw_lines, lines = _json_lines(path, "--provider-receipts")
    for number, line in enumerate(lines, 1):
        for name, is_right in _PROVIDER_FIELDS.items():
            if not is_right(line.get(name)):
                raise BundleError(
                    f"Line {number} of {path}: {name} is {line.get(name)!r}. --provider-receipts takes one JSON object a "
                    "request with method, path, body_blake3 (64 hex digits) and complete; idempotency_key and "
                    "client_request_id are text, null or left out."
                )
    with target.open("provider_receipts.jsonl") as file:
        file.writelines(line + b"\n" for line in raw_lines)
    target.seal("provider_receipts.jsonl")


def _json_lines(path: Path, option: str) -> tuple[list[bytes], list[dict[str, Any]]]:
    """The lines as they are, and what they say. Read once: what is checked is what is copied."""
    if not path.is_file():
        raise BundleError(f"{option} {path} is no file.")
    try:
        raw_lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BundleError(f"{option} {path} cannot be read ({error.strerror}).") from error
    lines = []
    for number, raw in enumerate(raw_lines, 1):
        try:
            line = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise BundleError(
                f"Line {number} of {option} {path} is no JSON ({error}). If it broke off, take it away or wait for the rest."
            ) from error
        if not isinstance(line, dict):
            raise BundleError(f"Line {number} of {option} {path} is no JSON object.")
        lines.append(line)
    return raw_lines, lines
