"""What the events read so far tell, folded into one compact state a call and 32 bytes a link."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from ledger.verifier.calls import LADDER, STAY, Attempt, Call, step_of, told_digest
from ledger.verifier.records import MARKER, Event

LINK_BYTES = 32
IDENTITY = ("scope", "key", "key_source", "occurrence", "generation", "upstream", "caller_exact")
CLIENT_REQUEST_ID = "x-client-request-id"


@dataclass(frozen=True, slots=True)
class Epoch:
    number: int
    seq: int
    marked: bool
    lineage: str
    receipts: int
    receipts_chain: str
    config_digests: set[str]  # of every configuration it has had so far
    accepted: str | None  # lost_tail or copy


@dataclass(slots=True)
class Body:
    sizes: set[int] = field(default_factory=set)
    live: int = 0  # how many events keep it that are not erased


@dataclass(slots=True)
class Ledger:
    ledger_id: str
    links: bytearray = field(default_factory=bytearray)
    newest: Event | None = None
    calls: dict[str, Call] = field(default_factory=dict)
    groups: dict[tuple[str, str, int], Call] = field(default_factory=dict)  # the highest generation of an occurrence
    occurrences: dict[tuple[str, str], int] = field(default_factory=dict)  # the highest of a key
    epochs: dict[int, Epoch] = field(default_factory=dict)
    open_epoch: int | None = None
    newest_epoch: Epoch | None = None
    acceptances: list[Epoch] = field(default_factory=list)  # an operator accepted a loss for each of them
    accepted_receipts: int = 0  # the furthest position of those
    passes: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # of a run, as opened: number and seq
    unrefused: set[tuple[str, str, int]] = field(default_factory=set)  # occurrences that only mode "observe" let begin
    given: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # of a key: its last pass, how many
    observations: dict[int, tuple[str, int | None, str | None]] = field(default_factory=dict)  # by seq
    bodies: dict[str, Body] = field(default_factory=dict)  # those that an event keeps, by digest
    texts: dict[str, str] = field(default_factory=dict)  # scopes, upstreams and callers, each held once

    @property
    def length(self) -> int:
        return len(self.links) // LINK_BYTES

    @property
    def last_accepted(self) -> Epoch | None:
        """What came before it may be gone."""
        return self.acceptances[-1] if self.acceptances else None

    def link(self, seq: int) -> str | None:
        if not 0 < seq <= self.length:
            return None
        return self.links[(seq - 1) * LINK_BYTES : seq * LINK_BYTES].hex()

    def newest_pass(self, run: str | None) -> int:
        """Its number; 0 where none was opened."""
        opened = self.passes.get(run or "")
        return opened[-1][0] if opened else 0

    def position(self, call: Call, number: int) -> int:
        """How many occurrences of the call's key the pass of that number was given."""
        last, count = self.given.get(call.group[:2], (0, 0))
        return count if last == number else 0

    def apply(self, event: Event) -> None:
        self.links += bytes.fromhex(event.link)
        self.newest = event
        if event.kind == "pass.opened":
            self.passes.setdefault(event.data["run"], []).append((event.data["number"], event.seq))
            return
        if event.call is None:
            self._turn_epoch(event)
            return
        call = self.calls.get(event.call)
        if call is None:
            call = self.calls[event.call] = Call(event.call)
        call.last_seq, call.last_link = event.seq, event.link
        call.tell("events", {"seq": event.seq, "kind": event.kind, "attempt": event.attempt})
        if record := RECORDS.get(event.kind):
            record(self, call, event)
        after = LADDER[call.evidence].get(step_of(event))
        if after is None:
            call.corrupt = True
        elif after != STAY and not call.corrupt:
            call.evidence = after

    def _turn_epoch(self, event: Event) -> None:
        data = event.data
        if event.kind == "epoch.closed":
            self.open_epoch = None
            return
        if event.kind == "epoch.configured":
            if self.newest_epoch is not None and data["epoch"] == self.open_epoch:
                self.newest_epoch.config_digests.add(data["config_digest"])
            return
        self.open_epoch = data["epoch"]
        epoch = self.epochs[data["epoch"]] = Epoch(
            number=data["epoch"],
            seq=event.seq,
            marked=data["protocol"] == MARKER,
            lineage=data["receipts_lineage"],
            receipts=data["receipts_count"],
            receipts_chain=data["receipts_chain"],
            config_digests={data["config_digest"]},
            accepted=data["accepted"],
        )
        self.newest_epoch = epoch
        if epoch.accepted is not None:
            self.acceptances.append(epoch)
            self.accepted_receipts = max(self.accepted_receipts, epoch.receipts)

    def identify(self, call: Call, data: Mapping[str, Any]) -> None:
        """Take the call's identity from its first event, and supersede what it continues."""
        if call.identity is not None:
            return
        call.identity = {
            name: self.texts.setdefault(data[name], data[name]) if isinstance(data[name], str) else data[name]
            for name in IDENTITY
        }
        key = (call.identity["scope"], call.identity["key"])
        self.occurrences[key] = max(self.occurrences.get(key, 0), call.identity["occurrence"])
        other = self.groups.get(call.group)
        if other is None:
            self.groups[call.group] = call
        elif other.identity is not None and other.identity["generation"] < call.identity["generation"]:
            other.superseded_by, call.supersedes = call.call_id, other.call_id
            self.groups[call.group] = call
        elif other.identity is not None and other.identity["generation"] > call.identity["generation"]:
            call.superseded_by = other.call_id

    def keep(self, call: Call, which: str, body: Mapping[str, Any] | None) -> None:
        if body is None or not body["kept"]:
            return
        use = self.bodies.setdefault(body["digest"], Body())
        use.sizes.add(body["size"])
        use.live += 1
        call.kept[which, body["digest"]] = call.kept.get((which, body["digest"]), 0) + 1


def requested(ledger: Ledger, call: Call, event: Event) -> None:
    data = event.data
    epoch = ledger.epochs.get(data["epoch"])
    call.marked = call.marked or (epoch is not None and epoch.marked)
    call.epoch, call.continues, call.lineage = data["epoch"], data["continues"], data["lineage"]
    call.why_new = data["why_new"]
    call.endpoint_class = ledger.texts.setdefault(data["endpoint_class"], data["endpoint_class"])
    continued = ledger.calls.get(data["continues"]) if data["continues"] else None
    call.further_effects = (data["accepts_attempt"] is not None and data["authority"] is not None) + (
        continued is not None and continued.decision == "not_served"
    )
    ledger.identify(call, data)
    if "would_refuse" in (data["evidence"] or {}) and call.identity is not None:
        ledger.unrefused.add(call.group)


def manifest(ledger: Ledger, call: Call, event: Event) -> None:
    data = event.data
    body = data["body"]
    call.request = body["digest"] if body else None
    call.asks = {
        "method": data["method"],
        "intent_digest": data["intent_digest"],
        "url": blake3(data["url"].encode(errors="surrogatepass")).hexdigest(),
        "body": call.request or "",
        "context": told_digest(b"", data["context"]).hex(),
    }
    call.client_request_id = next(
        (value for name, value in [*data["injected"], *data["headers"]] if name.lower() == CLIENT_REQUEST_ID), None
    )
    call.tell("manifest", data)
    ledger.keep(call, "request", body)


def resumed(_: Ledger, call: Call, event: Event) -> None:  # noqa: ARG001 - one signature for all
    call.resumed = True


def started(_: Ledger, call: Call, event: Event) -> None:
    attempt = Attempt(epoch=event.data["epoch"], started_seq=event.seq)
    if event.attempt is not None:
        call.attempts.setdefault(event.attempt, attempt)
        call.newest = max(call.newest, event.attempt)


def witnessed(ledger: Ledger, call: Call, event: Event) -> None:
    ledger.identify(call, event.data)
    call.marked = True
    if event.attempt is not None:
        attempt = call.attempts.setdefault(event.attempt, Attempt())
        attempt.witness, attempt.witness_seq = event.data, event.seq
        attempt.witness_accepted = event.data["receipt"] <= ledger.accepted_receipts
        call.newest = max(call.newest, event.attempt)


def acknowledged(_: Ledger, call: Call, event: Event) -> None:
    if attempt := call.attempts.get(event.attempt or 0):
        attempt.acknowledged_seq, attempt.acknowledged_status = event.seq, event.data["status"]


def observed(ledger: Ledger, call: Call, event: Event) -> None:
    data = event.data
    digest = data["body"]["digest"] if data["body"] else None
    ledger.observations[event.seq] = (call.call_id, event.attempt, digest)
    ledger.keep(call, "response", data["body"])
    attempt = call.attempts.get(event.attempt or 0)
    if attempt is None:
        return
    attempt.seen = True
    attempt.proven_unsent |= (data["observation"], data["source"]) == ("not_sent", "salvage")
    if data["source"] != "late":
        attempt.observed_seq, attempt.observation, attempt.source = event.seq, data["observation"], data["source"]
        attempt.status, attempt.framing, attempt.response = data["status"], data["framing"], digest


def interpreted(_: Ledger, call: Call, event: Event) -> None:
    if attempt := call.attempts.get(event.attempt or 0):
        attempt.interpretations += 1
        attempt.effect, attempt.outcome = event.data["effect"], event.data["outcome"]


def served(ledger: Ledger, call: Call, event: Event) -> None:
    """A pass is delivered to anew."""
    number = event.data["number"]
    if number != call.served_pass:
        call.passes, call.delivered = (*call.passes, number), []
    if call.identity is not None:
        position = max(ledger.position(call, number), call.identity["occurrence"])
        ledger.given[call.group[:2]] = (number, position)


def delivered(_: Ledger, call: Call, event: Event) -> None:
    if event.data["pass_number"] == call.served_pass:
        call.delivered.append(event.data["how"])


def decided(_: Ledger, call: Call, event: Event) -> None:
    call.decision, call.decision_seq = event.data["decision"], event.seq
    call.tell("decisions", {**event.data, "seq": event.seq})


def erased(ledger: Ledger, call: Call, event: Event) -> None:
    body = (event.data["which"], event.data["digest"])
    if body in call.kept:
        ledger.bodies[event.data["digest"]].live -= call.kept[body]
        call.kept[body] = 0


RECORDS: dict[str, Callable[[Ledger, Call, Event], None]] = {
    "call.requested": requested,
    "call.manifest": manifest,
    "call.resumed": resumed,
    "attempt.started": started,
    "attempt.witnessed": witnessed,
    "attempt.acknowledged": acknowledged,
    "attempt.observed": observed,
    "attempt.interpreted": interpreted,
    "pass.served": served,
    "call.delivered": delivered,
    "reconcile.decided": decided,
    "body.erased": erased,
}
