"""What can be asked of a store, as data: so that a thread, a process or another database can serve the same operations."""

from dataclasses import dataclass
from typing import Literal

from ledger.bodies import Packed
from ledger.calls import CallState
from ledger.events import Event, Recorded
from ledger.ids import CallId, Digest, Head, Key, Scope


@dataclass(frozen=True, slots=True)
class Entry:
    """One event to append and what it is about."""

    call: CallId | None
    attempt: int | None
    event: Event


@dataclass(frozen=True, slots=True)
class Expect:
    """Append only if the newest event of (scope, key) is still this one; None: if there is none."""

    scope: Scope
    key: Key
    head: Head | None


@dataclass(frozen=True, slots=True)
class Receipt:
    """A line for the receipt log. Its witness is the last entry of its Append."""

    kind: Literal["sent", "received"]
    call: CallId
    attempt: int
    digest: Digest | None


@dataclass(frozen=True, slots=True)
class Erasure:
    """Bytes that no event names any more, as counted over all events up to `counted_through` (retention.py).

    What an event after those names is left where it is.
    """

    counted_through: int
    bodies: tuple[Digest, ...] = ()
    chunks: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure took away: bodies with their size, chunks with what they took in the file."""

    bodies: int = 0
    body_bytes: int = 0
    chunks: int = 0
    chunk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Append:
    """All of it in one transaction, or nothing."""

    entries: tuple[Entry, ...]
    expects: tuple[Expect, ...] = ()
    bodies: tuple[Packed, ...] = ()
    receipt: Receipt | None = None
    erasure: Erasure | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """Chunks of a body too large for one transaction, ahead of the event that names the body. Nothing refers to them yet."""

    chunks: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append wrote: each event in its place, and the state of the call of the last one."""

    recorded: tuple[Recorded, ...]
    state: CallState | None
    receipt: Receipt | None = None
    erased: Erased | None = None
