"""`python -m tests.harness.long_past STATE_DIR CALLS`: an epoch of so many answered calls, left as by SIGKILL.

Written by the ledger's own writer, with bodies and receipts, as the proxy would: only the HTTP around it is left out, which
would take an hour for 100,000 calls.
"""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from ledger.bodies import Packed, pack
from ledger.events import (
    AttemptAcknowledged,
    AttemptCompleted,
    AttemptInterpreted,
    AttemptObserved,
    AttemptRetryDecided,
    AttemptStarted,
    Body,
    CallCompleted,
    CallDelivered,
)
from ledger.ids import Key
from ledger.operations import Append, Entry, Expect, Receipt
from ledger.stages import Effect
from ledger.writer import Writer
from tests.harness.ledgers import MANIFEST, NOW_MS, REQUESTED, SCOPE, call_id, start, state_dir_in

AT_ONCE: Final = 500  # calls in the writer's queue
ANSWER: Final = b'{"choices":[{"message":{"role":"assistant","content":"' + b"word " * 150 + b'%d"}}]}'
PROMPT: Final = b'{"model":"synthetic","messages":[{"role":"user","content":"' + b"Say it once. " * 20 + b'%d"}]}'


def call_of(number: int, epoch: int) -> tuple[Append, ...]:
    """All operations of one call, in their order."""
    call, key = call_id(number), Key(f"past-{number}")
    request, answer = pack(PROMPT % number), pack(ANSWER % number)
    requested = replace(REQUESTED, key=key, key_source="explicit", epoch=epoch)
    manifest = replace(MANIFEST, body=_body(request))
    observed = AttemptObserved(
        "response", "end", "live", status=200, reason_phrase="OK", framing="length", body=_body(answer),
        headers=(("Content-Type", "application/json"),),
    )  # fmt: skip
    read = (
        Entry(call, 1, AttemptInterpreted(1, "answer", Effect.HAPPENED)),
        Entry(call, 1, AttemptRetryDecided("stop", "rule")),
        Entry(call, 1, AttemptCompleted()),
        Entry(call, None, CallCompleted("answer")),
    )
    return (
        Append((Entry(call, None, requested), Entry(call, None, manifest)), (Expect(SCOPE, key, None),), (request,)),
        Append((Entry(call, 1, AttemptStarted(epoch)),), receipt=Receipt("sent", call, 1, request.digest)),
        Append((Entry(call, 1, AttemptAcknowledged(200, (), {})),)),
        Append((Entry(call, 1, observed),), bodies=(answer,), receipt=Receipt("received", call, 1, answer.digest)),
        Append(read),
        Append((Entry(call, None, CallDelivered("fin", "forwarded")),)),
    )


def _body(packed: Packed) -> Body:
    return Body(packed.digest, packed.size)


async def write(root: Path, calls: int) -> None:
    state_dir = state_dir_in(root)
    lock, recovered = state_dir.lock(), start(state_dir)
    writer = Writer(recovered.store, recovered.receipts, state_dir.wal, lambda: NOW_MS)
    for first in range(0, calls, AT_ONCE):
        each = (call_of(number, recovered.epoch) for number in range(first, min(first + AT_ONCE, calls)))
        await asyncio.gather(*(writer.append(op) for ops in each for op in ops))
    del lock


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1]), int(sys.argv[2])))
    os._exit(0)  # nothing is closed, as after SIGKILL
