"""One call as its events tell it: the ladder, the fold, and what is derived from both (FORMAT.md, section 9)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from ledger.verifier.records import Event

STAY = ""  # legal, and the evidence remains
D = {"call.delivered": STAY}
P = {"pass.served": STAY}
L = {"late": STAY}
W = {"attempt.witnessed": "witnessed"}
B = {"body.erased": STAY}
ANSWER = {"response": "response", "partial": "partial"}
O = ANSWER | {"lost": "lost"}  # noqa: E741 - FORMAT.md's own letter
R = {
    "reconcile.observed": STAY,
    **{word: word for word in ("decided_served", "decided_not_served", "decided_accept_duplicate", "decided_parked")},
}
ABANDONED = {"call.abandoned": "abandoned"}
STARTED = {"attempt.started": "started"}
INTERPRETED = {"attempt.interpreted": "interpreted"}
AGAIN = {"attempt.interpreted": STAY}
# Evidence: {step: evidence after it}. What a row does not list is illegal.
LADDER: dict[str, dict[str, str]] = {
    "nothing": {"call.requested": "requested"} | W,
    "requested": {"call.manifest": "manifest", "call.preparation_failed": "preparation_failed"} | ABANDONED | W,
    "preparation_failed": D,
    "manifest": {"call.resumed": STAY} | STARTED | ABANDONED | W | P | B,
    "abandoned": D | P | B,
    "started": {"attempt.acknowledged": "acknowledged", "not_sent": "not_sent"} | O | W | R | D | P | B,
    "acknowledged": ANSWER | R | D | P | B,
    "not_sent": STARTED | W | D | P | B,
    "lost": R | D | P | L | B,
    "partial": R | D | P | L | B,
    "witnessed": W | R | L | B,
    "response": INTERPRETED | D | P | B,
    "interpreted": INTERPRETED | {"attempt.retry_decided": "retry_decided"} | D | P | B,
    "retry_decided": {"attempt.completed": "attempt_completed"} | D | P | B,
    "attempt_completed": {"call.completed": "completed"} | D | P | B,
    "completed": AGAIN | {"body.erased": "erased"} | R | D | P | L,
    "decided_served": {"recovered": "response"} | R | D | L | B,
    "decided_not_served": R | D | L | B,
    "decided_accept_duplicate": R | D | L | B,
    "decided_parked": R | D | L | B,
    "erased": AGAIN | D | L | B,
}
STAGES = {
    "requested": "requested", "preparation_failed": "preparation_failed", "manifest": "manifest_recorded",
    "abandoned": "manifest_recorded", "started": "effect_unknown", "acknowledged": "effect_unknown",
    "lost": "effect_unknown", "partial": "effect_unknown", "witnessed": "effect_unknown", "not_sent": "not_sent",
    "response": "observed", "interpreted": "interpreted", "retry_decided": "interpreted",
    "attempt_completed": "attempt_completed", "completed": "completed", "decided_not_served": "settled",
    "decided_accept_duplicate": "settled", "decided_served": "closed", "decided_parked": "closed", "erased": "closed",
}  # fmt: skip
STAGE_EFFECTS = {
    "requested": "absent", "preparation_failed": "absent", "manifest_recorded": "absent", "not_sent": "absent",
    "effect_unknown": "unknown", "corruption": "unknown", "effect_happened": "happened",
}  # fmt: skip
EVIDENCE_EFFECTS = {"decided_not_served": "absent", "decided_served": "happened"}
NEXT_OPERATIONS = {
    "requested": "start_call", "manifest_recorded": "start_call", "settled": "start_call",
    "preparation_failed": "fix_inputs", "effect_unknown": "reconcile_effect", "effect_happened": "reconcile_effect",
    "not_sent": "start_next_attempt", "observed": "reinterpret", "interpreted": "redecide",
    "attempt_completed": "finalize", "superseded": "none", "closed": "none", "corruption": "inspect",
}  # fmt: skip
COMPLETED_NEXT = {"happened": "none", "unknown": "reconcile_effect", "absent": "start_call", "answered": "start_call"}
DELIVERED_HOW = {"next_request", "fin", "acked"}
IN_FLIGHT = {"started", "acknowledged"}
UNFINISHED = {"response", "interpreted", "retry_decided", "attempt_completed"}


def told_digest(before: bytes, said: object) -> bytes:
    """One digest over a list of JSON values, one at a time: equal for equal lists, and true is not 1 here."""
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return blake3(before + text.encode()).digest()


@dataclass(slots=True)
class Attempt:
    epoch: int | None = None  # null: witnessed
    started_seq: int = 0  # 0: not started here
    witness: Mapping[str, Any] | None = None  # data of its attempt.witnessed
    witness_seq: int = 0
    witness_accepted: bool = False  # stands its receipt before an acceptance that the witness follows?
    acknowledged_seq: int = 0
    acknowledged_status: int | None = None
    observed_seq: int = 0  # of the newest observation that is not late
    observation: str | None = None
    source: str | None = None
    status: int | None = None
    response: str | None = None  # digest
    seen: bool = False  # any observation, late ones too
    proven_unsent: bool = False  # a start found no sent receipt of it: the one proof of absence that needs no answer
    framing: str | None = None
    interpretations: int = 0
    effect: str | None = None
    outcome: str | None = None
    sent_receipts: int = 0
    witness_found: bool = False

    @property
    def head_status(self) -> int | None:
        return self.acknowledged_status if self.observation is None else self.status

    @property
    def may_have_effect(self) -> bool:
        return self.observation != "not_sent" and self.effect != "absent"


@dataclass(slots=True)
class Call:
    call_id: str
    identity: Mapping[str, Any] | None = None  # scope, key, key_source, occurrence, generation, upstream, caller_exact
    epoch: int | None = None
    lineage: str | None = None
    endpoint_class: str | None = None  # null: witnessed only
    marked: bool = False
    corrupt: bool = False
    evidence: str = "nothing"
    continues: str | None = None
    supersedes: str | None = None
    superseded_by: str | None = None
    further_effects: int = 0  # how many its claim allows beyond the occurrence's one
    resumed: bool = False
    asks: dict[str, str] | None = None  # what call.resumed compares: of the manifest, by word
    request: str | None = None  # digest
    kept: dict[tuple[str, str], int] = field(default_factory=dict)  # (which, digest): times kept; 0 once erased
    client_request_id: str | None = None
    attempts: dict[int, Attempt] = field(default_factory=dict)
    newest: int = 0
    why_new: str | None = None  # of its claim; null: witnessed only
    passes: tuple[int, ...] = ()  # of its run, that were given it, in order
    delivered: list[str] = field(default_factory=list)  # in a run: to the newest of those
    decision: str | None = None
    decision_seq: int | None = None
    last_seq: int = 0
    last_link: str = ""
    told: dict[str, bytes] = field(default_factory=dict)  # what `show` lists, by part: a digest over all of it

    def tell(self, part: str, said: object) -> None:
        """Follow a part of `show` by its digest alone: every call has one, so none is held as text."""
        self.told[part] = told_digest(self.told.get(part, b""), said)

    @property
    def attempt(self) -> Attempt | None:
        return self.attempts.get(self.newest)

    @property
    def group(self) -> tuple[str, str, int]:
        assert self.identity is not None
        return self.identity["scope"], self.identity["key"], self.identity["occurrence"]

    @property
    def run(self) -> str | None:
        """What stands in its scope behind the upstream and the caller."""
        parts = self.identity["scope"].split("/", 2) if self.identity is not None else []
        return parts[2] if len(parts) == len(("upstream", "caller", "run")) else None

    @property
    def served_pass(self) -> int | None:
        return self.passes[-1] if self.passes else None

    @property
    def risk(self) -> bool:
        return self.next_operation == "reconcile_effect" or self.stage == "corruption"

    @property
    def succeeded_head(self) -> bool:
        return self.attempt is not None and self.attempt.head_status in range(200, 300)

    @property
    def own_stage(self) -> str:
        """The stage as if no later generation existed."""
        if self.corrupt:
            return "corruption"
        if self.evidence in ("acknowledged", "partial") and self.succeeded_head:
            return "effect_happened"
        if not self.marked and self.evidence in ("requested", "manifest", "abandoned"):
            return "effect_unknown"
        if self.evidence == "erased" and self.attempt is not None and self.attempt.effect == "absent":
            return "completed"
        return STAGES[self.evidence]

    @property
    def stage(self) -> str:
        return "superseded" if self.superseded_by and not self.corrupt else self.own_stage

    @property
    def effect(self) -> str:
        by_status = "happened" if self.succeeded_head else "unknown"
        stage = self.own_stage
        if stage in STAGE_EFFECTS:
            return STAGE_EFFECTS[stage]
        if stage == "observed":
            return by_status
        if self.evidence in EVIDENCE_EFFECTS:
            return EVIDENCE_EFFECTS[self.evidence]
        return (self.attempt.effect if self.attempt else None) or by_status

    @property
    def next_operation(self) -> str:
        if self.stage == "completed":
            return COMPLETED_NEXT[self.effect]
        if self.stage == "interpreted" and self.evidence == "retry_decided":
            return "finalize"
        return NEXT_OPERATIONS[self.stage]

    @property
    def is_delivered(self) -> bool:
        return bool(DELIVERED_HOW & set(self.delivered))

    def row(self, alive: object) -> dict[str, Any]:
        """What a row of `sendonce calls` says of this call, but for the fields for people."""
        judged = {
            "call_id": self.call_id,
            "stage": self.stage,
            "effect": self.effect,
            "next_operation": "none" if alive is True else self.next_operation,
            "duplicate_effect_risk": self.risk and alive is not True,
            "superseded_by": self.superseded_by,
        }
        if self.corrupt or self.identity is None:
            return judged  # what else a broken call is, FORMAT.md leaves open
        names = ("scope", "key", "key_source", "upstream", "occurrence", "generation")
        return (
            judged
            | {name: self.identity[name] for name in names}
            | {
                "run": self.run,
                "pass": self.served_pass,
                "attempts": len(self.attempts),
                "delivered": self.delivered,
                "decision": self.decision,
                "body_blake3": self.request,
                "outcome": self.attempt.outcome if self.attempt else None,
            }
        )

    def attempt_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "attempt": f"{self.call_id}.{number}",
                "epoch": attempt.epoch,
                "acknowledged_status": attempt.acknowledged_status,
                "observation": attempt.observation,
                "source": attempt.source,
                "status": attempt.status,
                "response_blake3": attempt.response,
                "effect": attempt.effect,
            }
            for number, attempt in sorted(self.attempts.items())
        ]

    def index_row(self) -> dict[str, Any]:
        """Its row of `call_index`; a corrupt call's flags are left open."""
        assert self.identity is not None
        row = {"call_id": self.call_id, "last_seq": self.last_seq}
        row |= {name: self.identity[name] for name in ("scope", "key", "occurrence", "generation")}
        if self.corrupt:
            return row
        superseded = self.superseded_by is not None
        answered = self.evidence in ("completed", "erased") and self.effect == "happened"
        finished = superseded or (answered and self.is_delivered)
        return row | {
            "epoch": self.attempt.epoch if self.attempt else self.epoch,
            "is_open": int(not finished),
            "is_in_flight": int(not superseded and self.evidence in IN_FLIGHT),
            "is_unfinished": int(not superseded and self.evidence in UNFINISHED),
            "lineage": self.lineage,
            "run": self.run,
            "served_pass": self.served_pass,
            "is_unresolved": int(not superseded and (self.risk or self.evidence == "decided_parked")),
        }


def step_of(event: Event) -> str:
    """The word under which the ladder lists an event."""
    if event.kind == "reconcile.decided":
        return f"decided_{event.data['decision']}"
    if event.kind != "attempt.observed":
        return event.kind
    observation, source = event.data["observation"], event.data["source"]
    if source == "late" or observation == "not_sent":
        return "late" if source == "late" else "not_sent"
    return str(source if source == "recovered" else observation)


def numbered_legally(call: Call, event: Event) -> bool:
    """Is the attempt that an event names one that it may name?"""
    number = event.attempt
    if event.kind == "attempt.started":
        return number == call.newest + 1
    if event.kind == "attempt.witnessed":
        return number is not None and number > call.newest
    if event.kind.startswith("attempt."):
        return number == call.newest and number in call.attempts
    if event.kind.startswith("reconcile.") or event.kind in ("call.delivered", "body.erased"):
        return number is None or number in call.attempts
    return number is None


def is_legal(call: Call, event: Event) -> bool:
    step = step_of(event)
    if step not in LADDER[call.evidence] or not numbered_legally(call, event):
        return False
    if event.kind == "reconcile.decided" and call.evidence == "completed":
        return call.effect in ("unknown", "answered")
    if event.kind == "body.erased" and call.superseded_by is None:
        return call.evidence in ("completed", "erased") and call.effect in ("happened", "absent")
    return True
