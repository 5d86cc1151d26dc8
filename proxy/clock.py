"""The only place that reads clocks and randomness; everything else is handed the values."""

import os
import time

from ledger.ids import ENTROPY_BYTES


def now_ms() -> int:
    """Wall time, for people and ids; never for order or time-outs."""
    return time.time_ns() // 1_000_000


def entropy() -> bytes:
    return os.urandom(ENTROPY_BYTES)
