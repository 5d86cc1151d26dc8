"""The shape of every record, as tables: which fields, of which types. What FORMAT.md does not list does not exist."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ledger.verifier.bundle import Unreadable, is_count, is_digest

Shape = Callable[[object], bool]

CALL_ID = re.compile(r"call_[0-9a-f]{28}")
RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MARKER = "started-before-send/1"
KIND_VERSION = 1  # of every kind's data in format 1


@dataclass(frozen=True, slots=True)
class Event:
    seq: int
    kind: str
    call: str | None
    attempt: int | None
    data: Mapping[str, Any]
    link: str

    @property
    def place(self) -> str:
        return f"seq {self.seq} {self.call}" if self.call else f"seq {self.seq}"


def text(value: object) -> bool:
    return isinstance(value, str)


def flag(value: object) -> bool:
    return isinstance(value, bool)


def number(value: object) -> bool:
    return is_count(value) and value != 0


def bit(value: object) -> bool:
    return is_count(value) and value in (0, 1)


def anything(_: object) -> bool:
    return True


def call_id(value: object) -> bool:
    return isinstance(value, str) and CALL_ID.fullmatch(value) is not None


def run(value: object) -> bool:
    return isinstance(value, str) and RUN.fullmatch(value) is not None


def tally(value: object) -> bool:
    """How many of each word, of those that are there."""
    return isinstance(value, dict) and all(number(count) for count in value.values())


def words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def pairs(value: object) -> bool:
    return isinstance(value, list) and all(words(pair) and len(pair) == len(("name", "value")) for pair in value)


def maybe(shape: Shape) -> Shape:
    return lambda value: value is None or shape(value)


def list_of(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def one_of(names: str) -> Shape:
    known = frozenset(names.split())
    return lambda value: isinstance(value, str) and value in known


def fields(**shapes: Shape) -> Shape:
    return lambda value: (
        isinstance(value, dict)
        and value.keys() == shapes.keys()
        and all(shape(value[name]) for name, shape in shapes.items())
    )


BODY = fields(digest=is_digest, size=is_count, kept=flag)
AUTHORITY = fields(kind=one_of("operator caller setting"), name=maybe(text), config_digest=maybe(text))
TOOL_CALL = fields(id=maybe(text), name=text, arguments=is_digest)
KEY = {"scope": text, "key": text, "key_source": one_of("explicit derived"), "occurrence": number, "generation": number}
EFFECTS = "absent answered unknown happened"
EVENTS: dict[str, dict[str, Shape]] = {
    "epoch.opened": {
        "epoch": number, "protocol": text, "ledger_id": text, "file_inode": is_count, "file_birth_ns": maybe(is_count),
        "config_digest": text, "secret_check": text, "receipts_lineage": text, "receipts_count": is_count,
        "receipts_chain": is_digest, "accepted": maybe(one_of("lost_tail copy")), "accepted_reason": maybe(text),
    },
    "epoch.configured": {"epoch": number, "config_digest": text},
    "epoch.closed": {"epoch": number, "by": one_of("self successor")},
    "call.requested": {
        **KEY, "epoch": number, "upstream": text, "endpoint_class": text, "dialect": text, "caller": text,
        "caller_exact": text, "caller_kind": text, "caller_rotates": flag, "client": text, "lineage": maybe(text),
        "why_new": one_of("first second_sample resumed decision"), "continues": maybe(call_id),
        "accepts_attempt": maybe(text), "authority": maybe(AUTHORITY), "evidence": anything,
    },
    "call.preparation_failed": {"code": text, "sentence": text},
    "call.manifest": {
        "method": text, "url": text, "headers": pairs, "body": maybe(BODY), "intent_digest": text, "model": maybe(text),
        "stream": maybe(flag), "max_output_tokens": maybe(is_count), "injected": pairs, "context": anything,
        "unrecorded": words,
    },
    "call.resumed": {
        "continues": call_id, "compared": words, "differences": words, "head_seq": is_count, "head_chain": is_digest,
    },
    "call.abandoned": {"reason": text},
    "attempt.started": {"epoch": number},
    "attempt.acknowledged": {"status": is_count, "headers": pairs, "provider_ids": anything},
    "attempt.observed": {
        "observation": one_of("response partial lost not_sent"), "ended_by": maybe(text),
        "source": one_of("live salvage recovered late"), "proof": maybe(text), "status": maybe(is_count),
        "reason_phrase": maybe(text), "headers": maybe(pairs), "framing": maybe(one_of("none length chunked close")),
        "body": maybe(BODY),
    },
    "attempt.interpreted": {
        "interpreter": anything, "outcome": text, "effect": one_of(EFFECTS), "finish_reason": maybe(text),
        "usage": anything, "provider_ids": anything, "model": maybe(text), "error": anything, "service_tier": maybe(text),
        "tool_calls": list_of(TOOL_CALL),
    },
    "attempt.retry_decided": {"decision": one_of("stop"), "authority": text},
    "attempt.completed": {},
    "call.completed": {"outcome": text},
    "call.delivered": {"how": one_of("next_request fin acked no"), "disposition": maybe(text), "pass_number": maybe(number)},
    "attempt.witnessed": {
        **KEY, "upstream": text, "caller_exact": text, "request_digest": maybe(is_digest), "receipt": number,
    },
    "reconcile.observed": {
        "how": text, "result": one_of("matches absent_conclusive absent_inconclusive differs unreadable stated"),
        "evidence": anything,
    },
    "reconcile.decided": {
        "decision": one_of("served not_served accept_duplicate parked"), "authority": AUTHORITY, "reason": maybe(text),
        "head_seq": is_count, "head_chain": is_digest, "succeeds": maybe(number),
    },
    "body.erased": {"digest": is_digest, "which": one_of("request response"), "why": text, "by": anything},
    "pass.opened": {
        "run": run, "number": number, "token_digest": is_digest, "on_divergence": one_of("refuse continue"),
        "head_seq": is_count, "head_chain": is_digest, "gates": tally,
    },
    "pass.served": {"run": run, "number": number, "disposition": one_of("forwarded resumed attached replayed")},
}  # fmt: skip
OF_LEDGER = frozenset({"epoch.opened", "epoch.configured", "epoch.closed", "pass.opened"})  # of no call
RECORD_FIELDS = ["seq", "at", "kind", "v", "call", "attempt", "data"]

WITNESS: dict[str, Shape] = {
    "n": number, "kind": one_of("sent received"), "at": is_count, **KEY, "call": call_id, "attempt": number,
    "upstream": text, "caller_exact": text, "digest": maybe(is_digest), "seq": number, "chain": is_digest,
    "prev": is_digest,
}  # fmt: skip
SEGMENT: dict[str, Shape] = {"n": number, "kind": text, "lineage": text, "ledger": text, "prev": is_digest}
INDEX_ROW: dict[str, Shape] = {
    "call_id": call_id, "scope": text, "key": text, "occurrence": number, "generation": number, "epoch": maybe(number),
    "last_seq": number, "is_open": bit, "is_in_flight": bit, "is_unfinished": bit, "lineage": maybe(text),
    "run": maybe(run), "served_pass": maybe(number), "is_unresolved": bit,
}  # fmt: skip
PASS_ROW: dict[str, Shape] = {"run": run, "number": number, "opened_seq": number}
INSPECTION: dict[str, Shape] = {
    "what": one_of("calls show refusal"), "head": anything, "head_after": anything, "document": anything,
}  # fmt: skip
LISTED: dict[str, Shape] = {**INSPECTION, "of": number}  # a row of a list of calls
PROVIDER_READS: dict[str, Shape] = {
    "method": text, "path": text, "body_blake3": is_digest, "complete": flag,
    "idempotency_key": maybe(text), "client_request_id": maybe(text),
}  # fmt: skip
MAY_LACK: dict[str, dict[str, Any]] = {  # records from before these fields
    "call.requested": {"client": "generic", "lineage": None},
    "call.delivered": {"pass_number": None},
    "call.manifest": {"unrecorded": []},
    "attempt.interpreted": {"service_tier": None, "tool_calls": []},
}
ROW_MAY_LACK = {"run": None, "pass": None}  # what was said before runs
PROVIDER_MAY_LACK = {"idempotency_key": None, "client_request_id": None}


def shaped(value: Mapping[str, Any], shapes: Mapping[str, Shape], where: str) -> None:
    """Raise where a field is missing, unknown or of a wrong type."""
    if odd := sorted(value.keys() ^ shapes.keys()):
        raise Unreadable(f"{where}: the field {odd[0][:100]} is {'missing' if odd[0] in shapes else 'unknown'}.")
    for name, shape in shapes.items():
        if not shape(value[name]):
            raise Unreadable(f"{where}: {name} has a wrong type or a value that format 1 does not know.")


def event_of(record: Mapping[str, Any], link: str, where: str) -> Event:
    if list(record) != RECORD_FIELDS:
        raise Unreadable(f"{where}: the record's fields are not {', '.join(RECORD_FIELDS)}, in this order.")
    seq, kind, call, attempt, data = (record[name] for name in ("seq", "kind", "call", "attempt", "data"))
    if not (number(seq) and is_count(record["at"]) and maybe(number)(attempt) and maybe(call_id)(call)):
        raise Unreadable(f"{where}: seq, at, call or attempt has a wrong type.")
    if not isinstance(kind, str) or kind not in EVENTS or not isinstance(data, dict):
        raise Unreadable(f"{where}: it is of a kind that format 1 does not know.")
    if type(record["v"]) is not int or record["v"] != KIND_VERSION:
        raise Unreadable(f"{where}: its version of {kind} is not known; use a newer verifier.")
    if (call is None) != (kind in OF_LEDGER):
        raise Unreadable(f"{where}: {kind} {'lacks its' if call is None else 'has a'} call.")
    data = {**MAY_LACK.get(kind, {}), **data}
    shaped(data, EVENTS[kind], where)
    return Event(seq, kind, call, attempt, data, link)
