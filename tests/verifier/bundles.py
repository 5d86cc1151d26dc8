"""Bundles written by hand from ledger/FORMAT.md, and the tools of a forger who chains and lists everything anew.

Nothing of ours is imported here. A forger reads a bundle into `Parts`, changes its events, receipts or inspections, and
`write`s it back: `rechain` and `rechain_receipts` renumber and link, references follow, and `reseal` lists the files. So what
is left wrong is wrong in meaning only.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blake3 import blake3

BLOCK_BYTES = 64 << 10
ZEROS = "0" * 64
LEDGER = "ledger-1"
LINEAGE = "lineage-1"

Head = tuple[int, str]


def digest_of(data: bytes) -> str:
    return blake3(data).hexdigest()


def call_id(number: int) -> str:
    return f"call_{number:028x}"


def dumped(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass
class Line:
    """One event or receipt: its JSON object, and the link (of a receipt: the digest of its line) it had before; "" if new."""

    record: dict[str, Any]
    link: str = ""


@dataclass
class Parts:
    """A bundle in memory, all but its bodies, which a forger changes on disk."""

    about: dict[str, Any]
    events: list[Line] = field(default_factory=list)
    segments: dict[str, list[Line]] = field(default_factory=dict)
    index: list[dict[str, Any]] = field(default_factory=list)
    passes: list[dict[str, Any]] = field(default_factory=list)
    inspections: list[dict[str, Any]] = field(default_factory=list)
    provider: list[dict[str, Any]] | None = None


def rechain(events: list[Line]) -> dict[Head, Head]:
    """Renumber and link the events in their present order, in place; return where each (seq, link) went.

    `succeeds`, `head_seq` and `head_chain` follow the events they named; what named nothing before is left as it is.
    """
    moved: dict[Head, Head] = {}
    previous = ZEROS
    for seq, line in enumerate(events, start=1):
        before = (line.record["seq"], line.link)
        data = line.record["data"]
        if "head_seq" in data:
            data["head_seq"], data["head_chain"] = moved.get(
                (data["head_seq"], data["head_chain"]), (data["head_seq"], data["head_chain"])
            )
        if data.get("succeeds"):
            data["succeeds"] = {old: new for (old, _), (new, _) in moved.items()}.get(
                data["succeeds"], data["succeeds"]
            )
        line.record["seq"] = seq
        previous = line.link = digest_of(previous.encode() + dumped(line.record))
        if before[1]:
            moved[before] = (seq, line.link)
    return moved


def rechain_receipts(segments: dict[str, list[Line]], moved: dict[Head, Head]) -> dict[Head, Head]:
    """Renumber and link the receipts in place; their `seq` and `chain` follow `moved` (of `rechain`).

    Returns where each position (number and digest of a line) went, for the epochs that name one.
    """
    positions: dict[Head, Head] = {}
    previous, number = ZEROS, 0
    for path in sorted(segments):
        for line in segments[path]:
            number += 1
            before = (line.record["n"], line.link)
            if "seq" in line.record:
                head = (line.record["seq"], line.record["chain"])
                line.record["seq"], line.record["chain"] = moved.get(head, head)
            line.record["n"], line.record["prev"] = number, previous
            previous = line.link = digest_of(dumped(line.record))
            if before[1]:
                positions[before] = (number, line.link)
    return positions


def follow(value: Any, moved: dict[Head, Head]) -> Any:
    """The same JSON with every `{seq, chain}`, every `{seq, kind, …}` and every decision's head in it moved."""
    seqs = {old: new for (old, _), (new, _) in moved.items()}
    if isinstance(value, list):
        return [follow(part, moved) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"seq", "chain"}:
        head = (value["seq"], value["chain"])
        return dict(zip(("seq", "chain"), moved.get(head, head), strict=True))
    if {"seq", "head_seq", "head_chain"} <= value.keys():
        head = (value["head_seq"], value["head_chain"])
        named = dict(zip(("head_seq", "head_chain"), moved.get(head, head), strict=True))
        places = {name: seqs.get(value[name], value[name]) for name in ("seq", "succeeds")}
        return value | named | places
    if {"seq", "kind"} <= value.keys():
        return value | {"seq": seqs.get(value["seq"], value["seq"])}
    return {name: follow(part, moved) for name, part in value.items()}


def settle(parts: Parts) -> None:
    """Chain everything anew in place, until the epochs' receipt positions and the receipts' events agree.

    An epoch moved before the events whose receipts it names can never agree: each would have to hash the other. Then the
    epoch keeps a position that no line has, and all else is right.
    """
    epochs = [line.record["data"] for line in parts.events if line.record["kind"] == "epoch.opened"]
    for _ in epochs:  # each round makes one more epoch agree
        positions = link(parts)
        for data in epochs:
            position = (data["receipts_count"], data["receipts_chain"])
            data["receipts_count"], data["receipts_chain"] = positions.get(position, position)
    link(parts)
    last = parts.events[-1] if parts.events else None
    parts.about["head"] = {"seq": last.record["seq"], "chain": last.link} if last else None


def link(parts: Parts) -> dict[Head, Head]:
    """Chain events and receipts once, and move everything that names an event; return where receipts' positions went."""
    moved = rechain(parts.events)
    parts.inspections = follow(parts.inspections, moved)
    seqs = {old: new for (old, _), (new, _) in moved.items()}
    for row in parts.index:
        row["last_seq"] = seqs.get(row["last_seq"], row["last_seq"])
    for row in parts.passes:
        row["opened_seq"] = seqs.get(row["opened_seq"], row["opened_seq"])
    through = parts.about["receipts_through"]
    parts.about["receipts_through"] = min(seqs.get(through, through), len(parts.events))
    return rechain_receipts(parts.segments, moved)


def read(directory: Path) -> Parts:
    """A well-formed bundle's parts; `write` of them gives the same meaning again."""
    parts = Parts(about=json.loads((directory / "bundle.json").read_bytes()))
    for raw in (directory / "events.jsonl").read_bytes().splitlines():
        parts.events.append(Line(json.loads(raw[65:]), raw[:64].decode()))
    for path in sorted((directory / "receipts").glob("*.jsonl")):
        whole = path.read_bytes().rstrip(b"\0").splitlines()
        parts.segments[f"receipts/{path.name}"] = [Line(json.loads(raw), digest_of(raw)) for raw in whole]
    parts.index = objects(directory / "index.jsonl")
    parts.passes = objects(directory / "passes.jsonl")
    parts.inspections = objects(directory / "inspections.jsonl")
    provider = directory / "provider_receipts.jsonl"
    parts.provider = objects(provider) if provider.exists() else None
    return parts


def objects(path: Path) -> list[dict[str, Any]]:
    return [json.loads(raw) for raw in path.read_bytes().splitlines()]


def padded(lines: bytes) -> bytes:
    return lines + b"\0" * (BLOCK_BYTES - len(lines) % BLOCK_BYTES)


def write(parts: Parts, directory: Path) -> None:
    """Settle the parts and put them on disk over what is there; bodies stay as they are; then list the files."""
    settle(parts)
    (directory / "receipts").mkdir(parents=True, exist_ok=True)
    (directory / "bodies").mkdir(exist_ok=True)
    events = b"".join(line.link.encode() + b" " + dumped(line.record) + b"\n" for line in parts.events)
    (directory / "events.jsonl").write_bytes(events)
    for path, lines in parts.segments.items():
        (directory / path).write_bytes(padded(b"".join(dumped(line.record) + b"\n" for line in lines)))
    listed = {"index": parts.index, "passes": parts.passes, "inspections": parts.inspections}
    listed["provider_receipts"] = parts.provider
    for name, rows in listed.items():
        if rows is not None:
            (directory / f"{name}.jsonl").write_bytes(b"".join(dumped(row) + b"\n" for row in rows))
    (directory / "bundle.json").write_bytes(dumped(parts.about))
    reseal(directory)


def reseal(directory: Path) -> None:
    """List every file beside bundle.json with its present size and digest."""
    about = json.loads((directory / "bundle.json").read_bytes())
    about["files"] = {
        path.relative_to(directory).as_posix(): {"size": path.stat().st_size, "blake3": digest_of(path.read_bytes())}
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "bundle.json"
    }
    (directory / "bundle.json").write_bytes(dumped(about))
