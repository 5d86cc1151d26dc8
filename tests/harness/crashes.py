"""What crash tests ask: hold a request open, wait for a fact, compare what the provider and the ledger say of one body."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from blake3 import blake3

from tests.harness.processes import ANSWER_LIMIT_S, Answer, Rig

POLL_S: Final = 0.01
CUT: Final = (ConnectionError, http.client.HTTPException)  # how a client notices that its answer will not come whole
CHAT_PATH: Final = "/openai/v1/chat/completions"
MESSAGES_PATH: Final = "/anthropic/v1/messages"


def until[T](asked: Callable[[], T], limit_s: float = ANSWER_LIMIT_S) -> T:
    """Asks again until the answer is true. A fact of another process can only be polled for."""
    deadline = time.monotonic() + limit_s
    while not (answer := asked()):
        if time.monotonic() > deadline:
            raise AssertionError(f"It did not come true within {limit_s} s.")
        time.sleep(POLL_S)
    return answer
