"""Event <-> stored record, and the hash chain over the records (FORMAT.md sections 2 and 3)."""

from functools import cache
from typing import Any

import orjson
from blake3 import blake3
from pydantic import TypeAdapter, ValidationError

from ledger.errors import UnreadableRecordError, UnrecordableEventError
from ledger.events import KINDS, UPCASTS, Event, Recorded
from ledger.ids import CallId, Digest


def digest_of(data: bytes) -> Digest:
    return Digest(blake3(data).hexdigest())


def chained(previous: Digest, record: bytes) -> Digest:
    """Link = blake3(previous link as 64 hex digits, then the record's exact bytes)."""
    return Digest(blake3(previous.encode() + record).hexdigest())


def encode(seq: int, at_ms: int, call: CallId | None, attempt: int | None, event: Event) -> bytes:
    """The record: one line of JSON without a newline. Field order is fixed; the chain covers these exact bytes.

    Raises UnrecordableEventError, so that a value which a client or a provider chose cannot poison the writer.
    """
    fields = {
        "seq": seq,
        "at": at_ms,
        "kind": event.kind,
        "v": event.version,
        "call": call,
        "attempt": attempt,
        "data": event,
    }
    try:
        return orjson.dumps(fields)
    except orjson.JSONEncodeError as error:
        raise UnrecordableEventError(f"{event.kind} of {call} cannot be recorded: {error}.") from error


def decode(record: bytes | str, chain: Digest) -> Recorded:
    """Raises UnreadableRecordError for an unknown kind, a newer version or data that is not of its kind's schema."""
    try:
        raw = orjson.loads(record)
        event = _event(raw["kind"], raw["v"], raw["data"])
        return Recorded(raw["seq"], chain, raw["at"], raw["call"], raw["attempt"], event)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValidationError) as error:
        raise UnreadableRecordError(f"the record {str(record)[:200]!r} cannot be read: {error}") from error


def _event(kind: str, version: int, data: dict[str, Any]) -> Event:
    if kind not in KINDS:
        raise UnreadableRecordError(f"the event kind {kind!r} is unknown here: a newer sendonce wrote this ledger")
    newest = KINDS[kind].version
    if version > newest:
        raise UnreadableRecordError(f"{kind} is of version {version}, this sendonce reads up to {newest}")
    while version < newest:
        data, version = UPCASTS[kind, version](data), version + 1
    event: Event = _schema(kind).validate_python(data)
    return event


@cache
def _schema(kind: str) -> TypeAdapter[Any]:
    """A stored event is checked against its schema where it is read, not where it is written."""
    return TypeAdapter(KINDS[kind])


def warm() -> None:
    """Builds every schema, before a fork: each takes milliseconds, and a start reads several kinds."""
    for kind in KINDS:
        _schema(kind)
