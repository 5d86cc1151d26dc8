"""A process with a state dir, for tests that kill it: `python -m tests.harness.ledger_child STATE COMMAND…`.

Each command is done in order; what it answers is one JSON line on stdout, flushed. N numbers a call of its own key.

    start [| start:lost_tail | start:copy]   recovery, then a writer      claim:N started:N ack:N observed:N   one operation
    spool:N         two pieces of a response                              burst:N     N claims at once, then one more
    die             SIGKILL to itself                                     wait        until stdin ends
    lock            only the lock                                         close       the writer
"""

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ledger.epochs import Lock, StateDir
from ledger.errors import PoisonedError, StartRefusedError
from ledger.events import AttemptAcknowledged, CallDelivered, CallRequested
from ledger.ids import Key
from ledger.operations import Append, Entry
from ledger.recovery import Acceptance, Recovered
from ledger.spool import Judged, Spool
from ledger.writer import Writer
from tests.harness import ledgers

SPOOL_HEAD = {"status": 200, "reason_phrase": "OK", "headers": [["A", "b"]], "framing": "chunked"}
SPOOL_BODY = (b"data: one\n\n", b"data: two\n\n")


def request_of(number: int, epoch: int) -> CallRequested:
    return replace(ledgers.REQUESTED, key=Key(f"key-{number}"), epoch=epoch)


class Child:
    def __init__(self, root: Path) -> None:
        self.state_dir = StateDir(root, root / "receipts")
        self.lock: Lock | None = None
        self.recovered: Recovered | None = None
        self.writer: Writer | None = None

    async def do(self, command: str) -> Any:
        name, _, argument = command.partition(":")
        match name:
            case "lock":
                self.state_dir.prepare()
                self.lock = self.state_dir.lock()
                return os.getpid()
            case "start":
                return await self.start(argument)
            case "spool":
                return self.spool(int(argument))
            case "burst":
                return await self.burst(int(argument))
            case "die":
                return os.kill(os.getpid(), signal.SIGKILL)
            case "wait":
                return await asyncio.to_thread(sys.stdin.read)
            case "close":
                assert self.writer is not None
                return await self.writer.close()
            case _:
                assert self.writer is not None
                return (await self.writer.append(self.operation(name, int(argument)))).recorded[-1].seq

    async def start(self, accepted: str) -> Any:
        acceptance = Acceptance(accepted, "looked") if accepted in {"lost_tail", "copy"} else None  # type: ignore[arg-type]
        done = ledgers.start(self.state_dir, lambda *_: Judged(accepted == "whole", is_kept=True), acceptance)
        self.recovered = done
        self.writer = Writer(done.store, done.receipts, self.state_dir.wal, lambda: ledgers.NOW_MS)
        return {
            "epoch": done.epoch,
            "witnessed": done.witnessed,
            "salvaged": done.salvaged,
            "not_sent": done.not_sent,
            "unfinished": [state.call for state in done.unfinished],
        }

    def operation(self, name: str, number: int) -> Append:
        assert self.recovered is not None
        call, epoch = ledgers.call_id(number), self.recovered.epoch
        if name == "claim":
            return ledgers.claim_op(call, request_of(number, epoch))
        if name == "started":
            return ledgers.started_op(call, epoch)
        if name == "ack":
            return Append((Entry(call, 1, AttemptAcknowledged(200, (), {})),))
        if name == "left":
            return Append((Entry(call, None, CallDelivered("no", "forwarded")),))
        return ledgers.observed_op(call)

    def spool(self, number: int) -> None:
        spool = Spool(self.state_dir.spool, ledgers.call_id(number))
        spool.head(json.dumps(SPOOL_HEAD).encode())
        for piece in SPOOL_BODY:
            spool.append(piece)

    async def burst(self, size: int) -> Any:
        """Outcomes of `size` operations handed over together, of one after them, of `poisoned`, and of `close`."""
        assert self.writer is not None
        operations = [self.operation("claim", 100 + number) for number in range(size)]
        operations.append(self.operation("started", 1))
        outcomes = await asyncio.gather(*map(self.writer.append, operations), return_exceptions=True)
        later = await asyncio.gather(self.writer.append(self.operation("claim", 999)), return_exceptions=True)
        poisoned = await asyncio.wait_for(self.writer.poisoned, 5)
        await asyncio.wait_for(self.writer.close(), 5)
        closed = await asyncio.gather(self.writer.append(self.operation("claim", 1000)), return_exceptions=True)
        return {
            "poisoned": repr(poisoned),
            "outcomes": [isinstance(outcome, PoisonedError) for outcome in (*outcomes, *later, *closed)],
        }


async def main(root: str, *commands: str) -> None:
    child = Child(Path(root))
    for command in commands:
        try:
            answer = await child.do(command)
        except StartRefusedError as refused:
            print(json.dumps({"refused": str(refused), "exit_code": refused.exit_code}), flush=True)
            os._exit(refused.exit_code)
        print(json.dumps(answer), flush=True)
    os._exit(0)  # no tidy end: what is not durable by now is lost


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
