"""The bundle as files: opened without trust, hashed in pieces, read line by line, parsed within limits."""

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from ledger.verifier.report import Sweep

RECORD_LIMIT_BYTES = 1 << 20  # of one event, receipt or row: bodies stand elsewhere, so nothing honest is longer
INSPECTION_LIMIT_BYTES = 16 << 20  # of one: a call's manifest, decisions and events; parsed it takes 50 times as much
DOCUMENT_LIMIT_BYTES = 256 << 20  # of bundle.json: it lists every body
PIECE_BYTES = 1 << 20  # of a file while it is hashed: memory does not grow with a body
INTEGER_LIMIT = 1 << 63  # SQLite's; beyond it nothing honest counts
BUNDLE_VERSION = 1
FORMAT_VERSION = 1
EVENTS, INDEX, INSPECTIONS, PROVIDER = "events.jsonl", "index.jsonl", "inspections.jsonl", "provider_receipts.jsonl"
PASSES = "passes.jsonl"
REQUIRED = (EVENTS, INDEX, PASSES, INSPECTIONS)
KNOWN_PATHS = re.compile(
    r"(events|index|passes|inspections|provider_receipts)\.jsonl|receipts/[0-9]{6}\.jsonl|bodies/[0-9a-f]{64}"
)
DIGEST = re.compile(r"[0-9a-f]{64}")
ABOUT = {"bundle", "format", "ledger_id", "made_at", "owner", "head", "receipts_through", "unreadable", "files"}


class Unreadable(Exception):  # noqa: N818 - it is the verdict's own word
    """Reading must stop here; its text is a sentence that names the place."""


@dataclass(slots=True)
class Bundle:
    directory: Path
    ledger_id: str
    owner: bool  # did a living proxy own the ledger while it was read?
    head: tuple[int, str] | None
    receipts_through: int
    unreadable: dict[str, str]
    files: dict[str, tuple[int, str]]  # path: size and digest as listed
    bodies: dict[str, tuple[int, str]] = field(default_factory=dict)  # digest in the name: size and digest of the bytes

    @property
    def segments(self) -> list[str]:
        return sorted(path for path in self.files if path.startswith("receipts/"))


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < INTEGER_LIMIT


def is_digest(value: object) -> bool:
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def head_of(value: object, where: str) -> tuple[int, str] | None:
    """`{seq, chain}` or null; anything else is unreadable."""
    if value is None:
        return None
    if (
        isinstance(value, dict)
        and value.keys() == {"seq", "chain"}
        and is_count(value["seq"])
        and is_digest(value["chain"])
    ):
        return value["seq"], value["chain"]
    raise Unreadable(f"{where} is neither null nor an object with a seq and a chain.")


def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two readers could differ over a name that is given twice."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def not_a_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def parsed(raw: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(raw.decode(), object_pairs_hook=named_once, parse_constant=not_a_number)
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not JSON, an integer beyond all bounds
        raise Unreadable(f"{where} is no readable JSON: {type(error).__name__}.") from error
    if not isinstance(document, dict):
        raise Unreadable(f"{where} is no JSON object.")
    return document


def opened(directory: Path, path: str) -> BinaryIO:
    """Open a regular file inside the directory; no part of its path may be a symbolic link."""
    target = directory
    for part in path.split("/"):
        target = target / part
        try:
            kind = target.lstat().st_mode
        except FileNotFoundError as error:
            raise Unreadable(f"{path} is listed but not there; obtain a complete bundle.") from error
        if stat.S_ISLNK(kind):
            raise Unreadable(f"{path} is or passes a symbolic link, which could lead out of the bundle.")
    if not stat.S_ISREG(kind):
        raise Unreadable(f"{path} is no regular file.")
    return os.fdopen(os.open(target, os.O_RDONLY | os.O_NOFOLLOW), "rb")


def lines(bundle: Bundle, path: str, limit_bytes: int = RECORD_LIMIT_BYTES) -> Iterator[tuple[str, int, bytes]]:
    """Each line with its place and offset, its newline kept: only a file's last line can lack one."""
    with opened(bundle.directory, path) as file:
        offset, number = 0, 0
        while line := file.readline(limit_bytes + 2):
            number += 1
            if len(line) > limit_bytes + 1:
                raise Unreadable(f"{path} line {number} is longer than {limit_bytes} bytes.")
            yield f"{path} line {number}", offset, line
            offset += len(line)


def objects(bundle: Bundle, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, _, line in lines(bundle, path):
        if not line.endswith(b"\n"):
            raise Unreadable(f"{place} does not end with a newline.")
        yield place, parsed(line, place)


def open_bundle(directory: Path) -> Bundle:
    if not directory.is_dir():
        raise Unreadable(f"{directory} is no directory; name the one that `sendonce export` wrote.")
    with opened(directory, "bundle.json") as file:
        raw = file.read(DOCUMENT_LIMIT_BYTES + 1)
    if len(raw) > DOCUMENT_LIMIT_BYTES:
        raise Unreadable(f"bundle.json is longer than {DOCUMENT_LIMIT_BYTES} bytes.")
    about = parsed(raw, "bundle.json")
    for name, known in (("bundle", BUNDLE_VERSION), ("format", FORMAT_VERSION)):
        if type(about.get(name)) is not int or about[name] != known:
            raise Unreadable(f"bundle.json: {name} is not {known}; use a verifier that knows it.")
    if about.keys() != ABOUT:
        raise Unreadable(f"bundle.json: its fields are not exactly {', '.join(sorted(ABOUT))}.")
    unreadable = about["unreadable"]
    typed = {
        "ledger_id": isinstance(about["ledger_id"], str),
        "made_at": is_count(about["made_at"]),
        "owner": isinstance(about["owner"], bool),
        "receipts_through": is_count(about["receipts_through"]),
        "unreadable": isinstance(unreadable, dict)
        and all(is_digest(digest) and isinstance(sentence, str) for digest, sentence in unreadable.items()),
    }
    if wrong := [name for name, right in typed.items() if not right]:
        raise Unreadable(f"bundle.json: {wrong[0]} has a wrong type.")
    return Bundle(
        directory=directory,
        ledger_id=about["ledger_id"],
        owner=about["owner"],
        head=head_of(about["head"], "bundle.json: head"),
        receipts_through=about["receipts_through"],
        unreadable=unreadable,
        files=listed_files(about["files"]),
    )


def listed_files(files: object) -> dict[str, tuple[int, str]]:
    if not isinstance(files, dict):
        raise Unreadable("bundle.json: files is no object.")
    for path, entry in files.items():
        if not KNOWN_PATHS.fullmatch(path):
            raise Unreadable(f"bundle.json: the path {path[:100]} climbs out of the bundle or is of no known file.")
        if not (isinstance(entry, dict) and entry.keys() == {"size", "blake3"}):
            raise Unreadable(f"bundle.json: {path} is not listed with a size and a blake3.")
        if not (is_count(entry["size"]) and is_digest(entry["blake3"])):
            raise Unreadable(f"bundle.json: {path} has a size or a blake3 of a wrong type.")
    if missing := [path for path in REQUIRED if path not in files]:
        raise Unreadable(f"bundle.json does not list {missing[0]}; obtain a complete bundle.")
    return {path: (entry["size"], entry["blake3"]) for path, entry in files.items()}


def standing_files(directory: Path, below: str = "") -> Iterator[str]:
    """Every file that is there, in order; a bundle has directories of one level, deeper ones hold nothing listed."""
    with os.scandir(directory / below) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = below + entry.name
        if entry.is_symlink():
            raise Unreadable(f"{path} is a symbolic link, which could lead out of the bundle.")
        if entry.is_dir() and not below:
            yield from standing_files(directory, f"{path}/")
        else:
            yield path


def files_are_as_listed(bundle: Bundle) -> Iterator[tuple[str, list[str]]]:
    for path in standing_files(bundle.directory):
        if path not in bundle.files and path != "bundle.json":
            yield path, ["file_unlisted"]
    for path, (size, digest) in sorted(bundle.files.items()):
        hasher, seen_bytes = blake3(), 0
        with opened(bundle.directory, path) as file:
            while piece := file.read(PIECE_BYTES):
                hasher.update(piece)
                seen_bytes += len(piece)
        found = hasher.hexdigest()
        if path.startswith("bodies/"):
            bundle.bodies[path.removeprefix("bodies/")] = (seen_bytes, found)
        yield path, [] if (seen_bytes, found) == (size, digest) else ["file_damaged"]


INVENTORY = Sweep(
    "files_are_as_listed",
    "every file has its listed size and digest, and none stands beside them",
    "files",
    files_are_as_listed,
)
