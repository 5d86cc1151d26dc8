"""How a generation goes and ends, and what it counts. Pure.

Marks stand in a script between its bytes (script.py). They say where the generation is, and come before the bytes that
tell the client of it: whoever reads an answer's end finds its usage record and its stored object already there.
"""

from dataclasses import dataclass
from enum import StrEnum


class How(StrEnum):
    """How a generation ended, as its usage record says it."""

    WHOLE = "whole"
    CONTINUED = "continued"  # to its end, after the connection had ended
    ABORTED = "aborted"  # with the client's connection
    CANCELLED = "cancelled"  # a background response, on request
    ERROR_AFTER = "error_after"  # in-band error
    CUT = "cut"  # by the fault of this name, and nothing went on; the same for the next two
    CLEAN_CUT = "clean_cut"
    RESET = "reset"
    ERROR_STATUS = "error_status"  # refused: nothing was generated
    REDIRECT = "redirect"
    BODYLESS = "bodyless"


BROKEN = frozenset({How.CUT, How.CLEAN_CUT, How.RESET})  # our faults; for the generation the client is gone
REFUSED = frozenset({How.ERROR_STATUS, How.REDIRECT, How.BODYLESS})
FINISHED = frozenset({How.WHOLE, How.CONTINUED})


@dataclass(frozen=True, slots=True)
class Begins:
    """An answer with this status begins."""

    status: int


@dataclass(frozen=True, slots=True)
class Made:
    """So many content chunks are there."""

    chunks: int


@dataclass(frozen=True, slots=True)
class Ends:
    how: How


Mark = Begins | Made | Ends


@dataclass(frozen=True, slots=True)
class Tokens:
    """`taken` is all input, cached or not; `reasoning` is part of `made`."""

    taken: int
    cached: int = 0
    made: int = 0
    reasoning: int = 0

    def after(self, chunks: int, of: int) -> "Tokens":
        """What counts once `chunks` of all `of` chunks were made: all input, output in proportion."""
        share = min(chunks, of)
        return Tokens(self.taken, self.cached, self.made * share // of, self.reasoning * share // of)
