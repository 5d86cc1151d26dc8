"""Identities. All are plain strings on the wire and on disk; the types keep them apart in code."""

from dataclasses import dataclass
from typing import Final, NewType

CallId = NewType("CallId", str)
Digest = NewType("Digest", str)  # blake3, 64 hex digits
Key = NewType("Key", str)
Scope = NewType("Scope", str)

ENTROPY_BYTES: Final = 8  # ids of one millisecond collide with probability 2**-64 each
NO_CHAIN: Final = Digest("0" * 64)  # what the first link of a hash chain continues


def new_call_id(at_ms: int, entropy: bytes) -> CallId:
    """Time-ordered, so that neighbours in time are neighbours in the index: random ids cost 14 times the WAL bytes."""
    return CallId(f"call_{at_ms:012x}{entropy[:ENTROPY_BYTES].hex()}")


def attempt_id(call: CallId, number: int) -> str:
    """How an attempt is named to people, e.g. in `Sendonce-Accept`."""
    return f"{call}.{number}"


@dataclass(frozen=True, slots=True)
class Head:
    """A position in the ledger that a decision relied on: the newest event of what it read."""

    seq: int
    chain: Digest
