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
    """The same JSON with every `{seq, chain}` and every `{seq, kind, …}` in it moved."""
    seqs = {old: new for (old, _), (new, _) in moved.items()}
    if isinstance(value, list):
        return [follow(part, moved) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"seq", "chain"}:
        head = (value["seq"], value["chain"])
        return dict(zip(("seq", "chain"), moved.get(head, head), strict=True))
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
    listed = {"index": parts.index, "inspections": parts.inspections, "provider_receipts": parts.provider}
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


@dataclass
class History:
    """Writes events and receipts in the order a proxy does, with links as it goes."""

    parts: Parts = field(
        default_factory=lambda: Parts(
            about={"bundle": 1, "format": 1, "ledger_id": LEDGER, "made_at": 1, "owner": False, "head": None}
            | {"receipts_through": 0, "unreadable": {}, "files": {}}
        )
    )
    bodies: dict[str, bytes] = field(default_factory=dict)
    owners: dict[str, dict[str, Any]] = field(default_factory=dict)  # identity by call

    @property
    def head(self) -> dict[str, Any]:
        last = self.parts.events[-1]
        return {"seq": last.record["seq"], "chain": last.link}

    @property
    def position(self) -> Head:
        lines = [line for path in sorted(self.parts.segments) for line in self.parts.segments[path]]
        return (len(lines), lines[-1].link) if lines else (0, ZEROS)

    def event(self, kind: str, call: str | None = None, attempt: int | None = None, /, **data: Any) -> None:
        events = self.parts.events
        record = {"seq": len(events) + 1, "at": 1, "kind": kind, "v": 1, "call": call, "attempt": attempt, "data": data}
        previous = events[-1].link if events else ZEROS
        events.append(Line(record, digest_of(previous.encode() + dumped(record))))

    def line(self, record: dict[str, Any]) -> None:
        number, previous = self.position
        record = {"n": number + 1, **record, "prev": previous}
        segment = self.parts.segments[max(self.parts.segments)]
        segment.append(Line(record, digest_of(dumped(record))))

    def segment(self, number: int) -> None:
        self.parts.segments[f"receipts/{number:06}.jsonl"] = []
        self.line({"kind": "segment", "lineage": LINEAGE, "ledger": LEDGER})

    def receipt(
        self, kind: str, call: str, attempt: int, digest: str | None, head: dict[str, Any] | None = None
    ) -> None:
        whose = {**self.owners[call], "call": call, "attempt": attempt}
        self.line({"kind": kind, "at": 1, **whose, "digest": digest, **(head or self.head)})

    def body(self, data: bytes, *, kept: bool = True) -> dict[str, Any]:
        if kept:
            self.bodies[digest_of(data)] = data
        return {"digest": digest_of(data), "size": len(data), "kept": kept}

    def epoch(self, number: int, accepted: str | None = None) -> None:
        count, chain = self.position
        self.event(
            "epoch.opened", epoch=number, protocol="started-before-send/1", ledger_id=LEDGER, file_inode=1,
            file_birth_ns=None, config_digest=ZEROS, secret_check=ZEROS, receipts_lineage=LINEAGE, receipts_count=count,
            receipts_chain=chain, accepted=accepted, accepted_reason="restored" if accepted else None,
        )  # fmt: skip

    def identify(self, call: str, key: str, occurrence: int = 1, generation: int = 1) -> dict[str, Any]:
        self.owners[call] = {
            "scope": "scope", "key": key, "key_source": "explicit", "occurrence": occurrence, "generation": generation,
            "upstream": "openai", "caller_exact": "exact",
        }  # fmt: skip
        return self.owners[call]

    def claim(self, call: str, key: str, epoch: int, request: bytes, **more: Any) -> None:
        """call.requested and call.manifest; `more` overrides or adds data of the request."""
        identity = self.identify(call, key, more.pop("occurrence", 1), more.pop("generation", 1))
        rest = {
            "continues": None,
            "accepts_attempt": None,
            "authority": None,
            "evidence": None,
            "why_new": "first",
            "endpoint_class": "generate",
        } | more
        self.event(
            "call.requested", call, **identity, epoch=epoch, dialect="openai_chat", caller="caller",
            caller_kind="api_key", caller_rotates=False, client="generic", lineage=None, **rest,
        )  # fmt: skip
        self.event(
            "call.manifest", call, method="POST", url="https://api.example/v1/chat", headers=[["accept", "*/*"]],
            body=self.body(request), intent_digest=digest_of(request), model="m", stream=False, max_output_tokens=None,
            injected=[["X-Client-Request-Id", call]], context={},
        )  # fmt: skip

    def start(self, call: str, epoch: int, request: bytes) -> None:
        self.event("attempt.started", call, 1, epoch=epoch)
        self.receipt("sent", call, 1, digest_of(request))

    def answer(self, call: str, response: bytes, *, kept: bool = True) -> None:
        """From the head to call.delivered."""
        self.event("attempt.acknowledged", call, 1, status=200, headers=[], provider_ids={})
        body = self.body(response, kept=kept)
        self.event(
            "attempt.observed", call, 1, observation="response", ended_by="length", source="live", proof=None, status=200,
            reason_phrase="OK", headers=[["content-type", "text/plain"]], framing="length", body=body,
        )  # fmt: skip
        self.receipt("received", call, 1, body["digest"])
        self.event(
            "attempt.interpreted", call, 1, interpreter="1", outcome="ok", effect="happened", finish_reason="stop",
            usage={}, provider_ids={}, model="m", error=None,
        )  # fmt: skip
        self.event("attempt.retry_decided", call, 1, decision="stop", authority="the client retries")
        self.event("attempt.completed", call, 1)
        self.event("call.completed", call, outcome="ok")
        self.event("call.delivered", call, how="fin", disposition="forwarded")

    def decide(self, call: str, decision: str, succeeds: int | None = None) -> None:
        head = self.head
        authority = {"kind": "operator", "name": "ann", "config_digest": None}
        self.event("reconcile.observed", call, how="asked", result="stated", evidence="the log")
        self.event(
            "reconcile.decided", call, decision=decision, authority=authority, reason="seen", head_seq=head["seq"],
            head_chain=head["chain"], succeeds=succeeds,
        )  # fmt: skip

    def row(self, call: str, request: bytes | None, **told: Any) -> dict[str, Any]:
        """A row of a completed, delivered call; `told` says what is different."""
        identity = {name: value for name, value in self.owners[call].items() if name != "caller_exact"}
        completed = {
            "stage": "completed", "effect": "happened", "next_operation": "none", "duplicate_effect_risk": False,
            "attempts": 1, "delivered": ["fin"], "decision": None, "superseded_by": None, "outcome": "ok", "alive": False,
            "reason": "for people", "body_blake3": digest_of(request) if request is not None else None,
        }  # fmt: skip
        return {"call_id": call, **identity, **completed, **told}

    def show(self, row: dict[str, Any], **attempt: Any) -> dict[str, Any]:
        call = row["call_id"]
        lines = [line for line in self.parts.events if line.record["call"] == call]
        told = {
            "attempt": f"{call}.1", "epoch": 2, "acknowledged_status": 200, "observation": "response", "source": "live",
            "status": 200, "response_blake3": None, "effect": "happened",
        }  # fmt: skip
        manifests = [line.record["data"] for line in lines if line.record["kind"] == "call.manifest"]
        decided = [line.record for line in lines if line.record["kind"] == "reconcile.decided"]
        return row | {
            "manifest": manifests[0] if manifests else None,
            "unresolved": row["duplicate_effect_risk"],
            "decisions": [{"seq": record["seq"], **record["data"]} for record in decided],
            "events": [{name: line.record[name] for name in ("seq", "kind", "attempt")} for line in lines],
            "head": {"seq": lines[-1].record["seq"], "chain": lines[-1].link},
            "attempt_rows": [told | attempt],
        }

    def say(self, what: str, document: dict[str, Any], **of: int) -> None:
        said = {"what": what, "head": self.head, "head_after": self.head, "document": document}
        self.parts.inspections.append(said | of)

    def index(self, call: str, epoch: int | None, *, is_open: int = 0, is_in_flight: int = 0) -> None:
        last = max(line.record["seq"] for line in self.parts.events if line.record["call"] == call)
        identity = {name: self.owners[call][name] for name in ("scope", "key", "occurrence", "generation")}
        flags = {"is_open": is_open, "is_in_flight": is_in_flight, "is_unfinished": 0, "lineage": None}
        self.parts.index.append({"call_id": call, **identity, "epoch": epoch, "last_seq": last, **flags})
