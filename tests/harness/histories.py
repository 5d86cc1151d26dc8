"""Pasts of one key, built from real events in memory and read through the ledger's own projection."""

from dataclasses import dataclass, field, replace
from typing import Any

from ledger.calls import CallState
from ledger.claims import KeyHistory
from ledger.events import (
    PROTOCOL,
    AttemptInterpreted,
    AttemptObserved,
    Body,
    CallRequested,
    Event,
    KeySource,
    ReconcileDecided,
    Recorded,
)
from ledger.ids import CallId, Digest, Head
from ledger.ladder import ATTEMPT_KINDS, Evidence
from ledger.projection import project
from ledger.stages import Effect
from tests.harness.ledgers import DIGEST, NAMED, NOW_MS, PATHS, REQUESTED, call_id

Step = str | Event  # a name of the ladder's table, or an event with values of its own

STARTED: tuple[Step, ...] = ("call.manifest", "attempt.started")


def observed(
    observation: str, status: int | None = 200, *, kept: bool = True, ended_by: str = "end"
) -> AttemptObserved:
    return AttemptObserved(observation, ended_by, "live", status=status, body=Body(DIGEST, 6, kept))  # type: ignore[arg-type]


def completed(effect: Effect, status: int = 200, *, kept: bool = True) -> tuple[Step, ...]:
    """The whole way up to `call.completed`."""
    reading = AttemptInterpreted(1, "read", effect)
    closing = ("attempt.retry_decided", "attempt.completed", "call.completed")
    return (*STARTED, observed("response", status, kept=kept), reading, *closing)


@dataclass
class Past:
    """Every event of one (scope, key), in ledger order."""

    key_source: KeySource = "derived"
    protocol: str = PROTOCOL
    records: list[Recorded] = field(default_factory=list)

    def call(self, *steps: Step, occurrence: int = 1, generation: int = 1, **requested: object) -> CallId:
        """A call after `steps`; `call.requested` comes first unless the call is known from its receipt only."""
        call = call_id(len(self.calls) + 1)
        opening = replace(
            REQUESTED,
            key_source=self.key_source,
            occurrence=occurrence,
            generation=generation,
            **requested,  # type: ignore[arg-type]
        )
        first: tuple[Step, ...] = () if steps[:1] == ("attempt.witnessed",) else (opening,)
        for step in (*first, *steps):
            self.step(call, step)
        return call

    def step(self, call: CallId, step: Step) -> None:
        """The event as it would be written next: the right attempt number, the right decision to succeed."""
        event, state = NAMED[step] if isinstance(step, str) else step, self.calls.get(call)
        number = len(state.attempts) if state else 0
        if event.kind in {"attempt.started", "attempt.witnessed"}:
            number += 1
        if isinstance(event, ReconcileDecided):
            event = replace(event, succeeds=state.decision_seq if state else None)
        seq = len(self.records) + 1
        attempt = number if event.kind in ATTEMPT_KINDS else None
        self.records.append(Recorded(seq, Digest(f"{seq:064x}"), NOW_MS + seq, call, attempt, event))

    @property
    def calls(self) -> dict[CallId, CallState]:
        return project(self.records, {1: self.protocol})

    @property
    def history(self) -> KeyHistory:
        calls = tuple(self.calls.values())
        head = Head(self.records[-1].seq, self.records[-1].chain) if self.records else None
        return KeyHistory(calls, head, max((state.occurrence for state in calls), default=0))


def one(*steps: Step, **options: Any) -> CallState:
    """The state of a single call after `steps`."""
    past = Past(**options)
    call = past.call(*steps)
    return past.calls[call]


def steps_to(evidence: Evidence) -> tuple[Step, ...]:
    """A shortest walk to the evidence, without the request that opens it; only a proven answer can be erased."""
    if evidence is Evidence.ERASED:
        return (*completed(Effect.HAPPENED), "body.erased")
    path = PATHS[evidence]
    return path[1:] if path[0] == "call.requested" else path


def requested_by(past: Past, occurrence: int, generation: int, **more: object) -> CallRequested:
    return replace(
        REQUESTED,
        key_source=past.key_source,
        occurrence=occurrence,
        generation=generation,
        **more,  # type: ignore[arg-type]
    )
