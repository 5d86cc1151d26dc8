"""The closed union of events: past-tense facts, frozen, versioned. FORMAT.md gives the meaning of every field.

An event's fields are its JSON `data`. `kind` and `version` are written beside them; a reader of an older version
gets `UPCASTS` applied, one function a version step, so that the rest of the code knows the newest shape only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from ledger.ids import CallId, Digest, Key, Scope
from ledger.stages import Effect

PROTOCOL: Final = "started-before-send/1"

KeySource = Literal["explicit", "derived"]
WhyNew = Literal["first", "second_sample", "resumed", "decision"]
ObservationKind = Literal["response", "partial", "lost", "not_sent"]
Source = Literal["live", "salvage", "recovered", "late"]
Decision = Literal["served", "not_served", "accept_duplicate", "parked"]
# What a look-up found (semantics section 6); `stated`: somebody says so.
Found = Literal["matches", "absent_conclusive", "absent_inconclusive", "differs", "unreadable", "stated"]
DeliveredHow = Literal["next_request", "fin", "acked", "no"]
OnDivergence = Literal["refuse", "continue"]
ServedBy = Literal["forwarded", "resumed", "attached", "replayed"]
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Body:
    """Which bytes. `kept` is false where they were counted and hashed but not stored."""

    digest: Digest
    size: int
    kept: bool = True


@dataclass(frozen=True, slots=True)
class Authority:
    """Who accepted or decided: an operator, the caller, or a standing setting with the digest of the whole config."""

    kind: Literal["operator", "caller", "setting"]
    name: str
    config_digest: str | None = None


@dataclass(frozen=True, slots=True)
class EpochOpened:
    kind: ClassVar[str] = "epoch.opened"
    version: ClassVar[int] = 1
    epoch: int
    protocol: str
    ledger_id: str
    file_inode: int
    file_birth_ns: int | None
    config_digest: str
    secret_check: str
    receipts_lineage: str
    receipts_count: int
    receipts_chain: Digest
    accepted: Literal["lost_tail", "copy"] | None = None
    accepted_reason: str | None = None


@dataclass(frozen=True, slots=True)
class EpochConfigured:
    """From here on acceptances by a setting may name this configuration too."""

    kind: ClassVar[str] = "epoch.configured"
    version: ClassVar[int] = 1
    epoch: int
    config_digest: str


@dataclass(frozen=True, slots=True)
class EpochClosed:
    kind: ClassVar[str] = "epoch.closed"
    version: ClassVar[int] = 1
    epoch: int
    by: Literal["self", "successor"]


@dataclass(frozen=True, slots=True)
class CallRequested:
    kind: ClassVar[str] = "call.requested"
    version: ClassVar[int] = 1
    scope: Scope
    key: Key
    key_source: KeySource
    occurrence: int
    generation: int
    epoch: int
    upstream: str
    endpoint_class: str
    dialect: str
    caller: str
    caller_exact: str
    why_new: WhyNew
    continues: CallId | None = None
    accepts_attempt: str | None = None
    authority: Authority | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    caller_kind: str = "unknown"
    caller_rotates: bool = False
    client: str = "generic"
    lineage: str | None = None


@dataclass(frozen=True, slots=True)
class CallPreparationFailed:
    kind: ClassVar[str] = "call.preparation_failed"
    version: ClassVar[int] = 1
    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class CallManifest:
    kind: ClassVar[str] = "call.manifest"
    version: ClassVar[int] = 1
    method: str
    url: str
    headers: Pairs
    body: Body
    intent_digest: Digest
    model: str | None
    stream: bool
    max_output_tokens: int | None
    injected: Pairs = ()
    context: Mapping[str, str] = field(default_factory=dict)
    unrecorded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallResumed:
    kind: ClassVar[str] = "call.resumed"
    version: ClassVar[int] = 1
    continues: CallId
    compared: tuple[str, ...]
    differences: tuple[str, ...]
    head_seq: int
    head_chain: Digest


@dataclass(frozen=True, slots=True)
class CallAbandoned:
    kind: ClassVar[str] = "call.abandoned"
    version: ClassVar[int] = 1
    reason: str


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    kind: ClassVar[str] = "attempt.started"
    version: ClassVar[int] = 1
    epoch: int


@dataclass(frozen=True, slots=True)
class AttemptAcknowledged:
    kind: ClassVar[str] = "attempt.acknowledged"
    version: ClassVar[int] = 1
    status: int
    headers: Pairs
    provider_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AttemptObserved:
    kind: ClassVar[str] = "attempt.observed"
    version: ClassVar[int] = 1
    observation: ObservationKind
    ended_by: str
    source: Source
    proof: str | None = None
    status: int | None = None
    reason_phrase: str = ""
    headers: Pairs = ()
    framing: str | None = None
    body: Body | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that an answer holds whole, for the client to run. `arguments`: digest of their canonical JSON, else of their text."""

    id: str | None
    name: str
    arguments: Digest


@dataclass(frozen=True, slots=True)
class AttemptInterpreted:
    kind: ClassVar[str] = "attempt.interpreted"
    version: ClassVar[int] = 1
    interpreter: int
    outcome: str
    effect: Effect
    finish_reason: str | None = None
    usage: Mapping[str, int] | None = None
    provider_ids: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    error: str | None = None
    service_tier: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptRetryDecided:
    kind: ClassVar[str] = "attempt.retry_decided"
    version: ClassVar[int] = 1
    decision: Literal["stop"]
    authority: str


@dataclass(frozen=True, slots=True)
class AttemptCompleted:
    kind: ClassVar[str] = "attempt.completed"
    version: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class CallCompleted:
    kind: ClassVar[str] = "call.completed"
    version: ClassVar[int] = 1
    outcome: str


@dataclass(frozen=True, slots=True)
class CallDelivered:
    kind: ClassVar[str] = "call.delivered"
    version: ClassVar[int] = 1
    how: DeliveredHow
    disposition: str
    pass_number: int | None = None


@dataclass(frozen=True, slots=True)
class AttemptWitnessed:
    kind: ClassVar[str] = "attempt.witnessed"
    version: ClassVar[int] = 1
    scope: Scope
    key: Key
    key_source: KeySource
    occurrence: int
    generation: int
    upstream: str
    caller_exact: str
    request_digest: Digest
    receipt: int


@dataclass(frozen=True, slots=True)
class ReconcileObserved:
    kind: ClassVar[str] = "reconcile.observed"
    version: ClassVar[int] = 1
    how: str
    result: Found
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReconcileDecided:
    kind: ClassVar[str] = "reconcile.decided"
    version: ClassVar[int] = 1
    decision: Decision
    authority: Authority
    reason: str
    head_seq: int
    head_chain: Digest
    succeeds: int | None = None


@dataclass(frozen=True, slots=True)
class BodyErased:
    kind: ClassVar[str] = "body.erased"
    version: ClassVar[int] = 1
    digest: Digest
    which: Literal["request", "response"]
    why: str
    by: str


@dataclass(frozen=True, slots=True)
class PassOpened:
    """One start of a run; it closes the one before."""

    kind: ClassVar[str] = "pass.opened"
    version: ClassVar[int] = 1
    run: str
    number: int
    token_digest: str
    on_divergence: OnDivergence
    head_seq: int
    head_chain: Digest
    gates: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PassServed:
    """The call is what this pass gets for the request at the call's occurrence."""

    kind: ClassVar[str] = "pass.served"
    version: ClassVar[int] = 1
    run: str
    number: int
    disposition: ServedBy


Event = (
    EpochOpened
    | EpochConfigured
    | EpochClosed
    | CallRequested
    | CallPreparationFailed
    | CallManifest
    | CallResumed
    | CallAbandoned
    | AttemptStarted
    | AttemptAcknowledged
    | AttemptObserved
    | AttemptInterpreted
    | AttemptRetryDecided
    | AttemptCompleted
    | CallCompleted
    | CallDelivered
    | AttemptWitnessed
    | ReconcileObserved
    | ReconcileDecided
    | BodyErased
    | PassOpened
    | PassServed
)

KINDS: Final[Mapping[str, type[Any]]] = {event.kind: event for event in Event.__args__}

# (kind, version it reads) -> data of the next version. Empty while every kind is at version 1.
UPCASTS: Final[Mapping[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]]] = {}


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event in its place in the ledger. `at_ms` is wall time for people; only `seq` orders."""

    seq: int
    chain: Digest
    at_ms: int
    call: CallId | None
    attempt: int | None
    event: Event
