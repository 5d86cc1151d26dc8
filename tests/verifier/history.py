"""A ledger's past written by hand: events and receipts in the order a proxy writes them, and what it says of its calls."""

from dataclasses import dataclass, field
from typing import Any

from tests.verifier.bundles import LEDGER, LINEAGE, ZEROS, Head, Line, Parts, digest_of, dumped


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

    def open_pass(self, run: str, number: int) -> None:
        """The gates are read at the newest event."""
        head = self.head
        self.event(
            "pass.opened", run=run, number=number, token_digest=ZEROS, on_divergence="refuse", head_seq=head["seq"],
            head_chain=head["chain"], gates={"unresolved": 1} if number > 1 else {},
        )  # fmt: skip
        self.parts.passes.append({"run": run, "number": number, "opened_seq": self.head["seq"]})

    def serve(self, call: str, number: int, disposition: str) -> None:
        self.event("pass.served", call, run=self.run_of(call), number=number, disposition=disposition)

    def run_of(self, call: str) -> str | None:
        return next(iter(self.owners[call]["scope"].split("/")[2:]), None)

    def identify(
        self, call: str, key: str, occurrence: int = 1, generation: int = 1, scope: str = "scope"
    ) -> dict[str, Any]:
        self.owners[call] = {
            "scope": scope, "key": key, "key_source": "explicit", "occurrence": occurrence, "generation": generation,
            "upstream": "openai", "caller_exact": "exact",
        }  # fmt: skip
        return self.owners[call]

    def claim(self, call: str, key: str, epoch: int, request: bytes, **more: Any) -> None:
        """call.requested and call.manifest; `more` overrides or adds data of the request."""
        identity = self.identify(
            call, key, more.pop("occurrence", 1), more.pop("generation", 1), more.pop("scope", "scope")
        )
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

    def answer(self, call: str, response: bytes, *, kept: bool = True, pass_number: int | None = None) -> None:
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
        self.deliver(call, "fin", "forwarded", pass_number)

    def deliver(self, call: str, how: str, disposition: str, pass_number: int | None) -> None:
        self.event("call.delivered", call, how=how, disposition=disposition, pass_number=pass_number)

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
            "run": self.run_of(call), "pass": None,
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

    def index(self, call: str, epoch: int | None, **told: Any) -> None:
        """The row of a call that is over; `told` says what is different."""
        last = max(line.record["seq"] for line in self.parts.events if line.record["call"] == call)
        identity = {name: self.owners[call][name] for name in ("scope", "key", "occurrence", "generation")}
        flags = {"is_open": 0, "is_in_flight": 0, "is_unfinished": 0, "is_unresolved": 0}
        rest = {"epoch": epoch, "last_seq": last, "lineage": None, "run": self.run_of(call), "served_pass": None}
        self.parts.index.append({"call_id": call, **identity, **rest, **flags, **told})
