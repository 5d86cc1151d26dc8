"""A state dir whose calls stand in every relation that erasing has to mind, and the prune of it as a process of its own.

SERVED, SAME_ANSWER   happened; their answers are the same bytes
LOST                  unresolved; its request is the same bytes as SAME_ANSWER's
REFUSED               absent: the provider said 400
FAILED, AGAIN         answered by an error, and continued by a call that happened; their requests are the same bytes
BILLED                answered by an error and left so
TURN, NEXT_TURN       a long request, happened; a longer one that begins with it, unresolved: they share chunks
MINTED                happened; its bodies were counted and not kept
UNREACHED, REACHED    given up before its attempt; resumed by a call that happened: their requests are the same bytes
CUT, MENDED           broke off; continued on a setting's authority by a call that happened: their requests are the same bytes
LATER                 not there yet: continues LOST where a test says so
"""

import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ledger import bodies, retention
from ledger.codec import digest_of
from ledger.epochs import StateDir
from ledger.events import (
    AttemptAcknowledged,
    AttemptCompleted,
    AttemptInterpreted,
    AttemptObserved,
    AttemptRetryDecided,
    AttemptStarted,
    Authority,
    Body,
    CallAbandoned,
    CallCompleted,
    CallDelivered,
    CallResumed,
    Event,
    ObservationKind,
)
from ledger.ids import CallId, Digest, Key
from ledger.operations import Append, Appended, Entry, Erased, Expect, Receipt
from ledger.reader import Reader, open_reader
from ledger.stages import Effect
from ledger.writer import Writer
from tests.harness import ledgers
from tests.harness.ledgers import ROOT, call_id, locked

LONG_AGO_MS: Final = 1_600_000_000_000
SERVED, SAME_ANSWER, LOST, REFUSED, FAILED, AGAIN, BILLED, TURN, NEXT_TURN, MINTED = map(call_id, range(1, 11))
UNREACHED, REACHED, CUT, MENDED, LATER = map(call_id, range(11, 16))
ERASABLE: Final = (SERVED, SAME_ANSWER, REFUSED, FAILED, AGAIN, TURN, UNREACHED, REACHED, CUT, MENDED)
SKIPPED: Final = (LOST, BILLED, NEXT_TURN)
# Random bytes do not compress, so they can be looked for in the file.
CANARY: Final = random.Random("canary").randbytes(4000)
_LONG: Final = random.Random("turn").randbytes(100_000)
REQUESTS: Final = {
    SERVED: CANARY, SAME_ANSWER: b"the same question", LOST: b"the same question", REFUSED: b"a bad question",
    FAILED: b"a hard question", AGAIN: b"a hard question", BILLED: b"a long question", TURN: _LONG,
    NEXT_TURN: _LONG + b" and then?", MINTED: b"a token, please",
    UNREACHED: b"nobody hears", REACHED: b"nobody hears", LATER: b"the same question",
    CUT: b"a story", MENDED: b"a story",
}  # fmt: skip
ANSWERS: Final = {
    SERVED: b"the same answer", SAME_ANSWER: b"the same answer", REFUSED: b"no", FAILED: b"oh", AGAIN: b"yes",
    BILLED: b"oh no", TURN: b"go on", MINTED: b"a secret", REACHED: b"somebody does", CUT: b"once upon",
    MENDED: b"once upon a time", LATER: b"the same answer after all",
}  # fmt: skip
# Smaller pages, so that a small ledger has several of each; the program is the unmodified one.
_SMALL_PAGES: Final = "from ledger import retention; retention.PAGE_CALLS = 3; retention.BATCH_CHUNKS = 8; "
IMPATIENT: Final = "from proxy import pruning; pruning.STAGING_LIMIT_S = 0; "
_RUN: Final = "from proxy.cli import main; main()"


@dataclass
class Past:
    """Writes calls as a proxy would, all of them long ago."""

    writer: Writer
    reader: Reader
    at_ms: int = LONG_AGO_MS

    async def write(self, call: CallId, event: Event, number: int | None = 1, **options: Any) -> Appended:
        return await self.writer.append(Append((Entry(call, number, event),), **options))

    async def claim(self, call: CallId, key: str, *, body: Body | None = None, **changes: Any) -> None:
        asked = replace(ledgers.REQUESTED, key=Key(key), **changes)
        request = bodies.pack(REQUESTS[call])
        manifest = replace(ledgers.MANIFEST, body=body or Body(request.digest, request.size), intent_digest=Digest(key))
        history = await self.reader.history(asked.scope, asked.key)
        entries = [Entry(call, None, asked), Entry(call, None, manifest)]
        if asked.continues and history.head:
            resumed = CallResumed(asked.continues, ("body",), (), history.head.seq, history.head.chain)
            entries.append(Entry(call, None, resumed))
        kept = (request,) if manifest.body.kept else ()
        await self.writer.append(Append(tuple(entries), (Expect(asked.scope, asked.key, history.head),), kept))

    async def send(self, call: CallId, key: str, **changes: Any) -> None:
        await self.claim(call, key, **changes)
        sent = Receipt("sent", call, 1, digest_of(REQUESTS[call]))
        await self.write(call, AttemptStarted(1), receipt=sent)

    async def observe(
        self, call: CallId, kind: ObservationKind, status: int, body: bytes, *, kept: bool = True
    ) -> None:
        answer = bodies.pack(body)
        observed = AttemptObserved(
            kind, "end", "live", status=status, framing="length", body=Body(answer.digest, answer.size, kept)
        )
        received = Receipt("received", call, 1, answer.digest)
        await self.write(call, observed, bodies=(answer,) if kept else (), receipt=received)

    async def answer(self, call: CallId, status: int, effect: str, *, kept: bool = True) -> None:
        await self.write(call, AttemptAcknowledged(status, (), {}))
        await self.observe(call, "response", status, ANSWERS[call], kept=kept)
        await self.write(call, AttemptInterpreted(1, "read", Effect(effect)))
        await self.write(call, AttemptRetryDecided("stop", "rule"))
        await self.write(call, AttemptCompleted())
        await self.write(call, CallCompleted("read"), None)
        await self.write(call, CallDelivered("fin", "forwarded"), None)

    async def happen(self) -> None:
        for call in (SERVED, SAME_ANSWER, LOST, REFUSED, FAILED, BILLED, TURN, NEXT_TURN):
            await self.send(call, call)
        for call, status, effect in (
            (SERVED, 200, "happened"), (SAME_ANSWER, 200, "happened"), (REFUSED, 400, "absent"),
            (FAILED, 500, "answered"), (BILLED, 500, "answered"), (TURN, 200, "happened"),
        ):  # fmt: skip
            await self.answer(call, status, effect)
        await self.send(AGAIN, FAILED, **accepting(FAILED, "after_server_error"))
        await self.answer(AGAIN, 200, "happened")
        await self.claim(UNREACHED, UNREACHED)
        await self.write(UNREACHED, CallAbandoned("no connection"), None)
        await self.send(REACHED, UNREACHED, generation=2, why_new="resumed", continues=UNREACHED)
        await self.answer(REACHED, 200, "happened")
        await self.send(CUT, CUT)
        await self.observe(CUT, "partial", 200, ANSWERS[CUT])
        await self.send(MENDED, CUT, **accepting(CUT, "after_cut_stream"))
        await self.answer(MENDED, 200, "happened")
        request = bodies.pack(REQUESTS[MINTED])
        unkept = Body(request.digest, request.size, kept=False)
        await self.send(MINTED, MINTED, body=unkept, endpoint_class="credential_mint")
        await self.answer(MINTED, 200, "happened", kept=False)


@asynccontextmanager
async def past_in(state_dir: StateDir) -> AsyncIterator[Past]:
    """Under the lock, in an epoch of its own; left without its end, as by a kill."""
    with locked(state_dir):
        started = ledgers.start(state_dir)
        writer = Writer(started.store, started.receipts, state_dir.wal, lambda: past.at_ms)
        try:
            async with open_reader(state_dir.ledger) as reader:
                past = Past(writer, reader)
                yield past
        finally:
            await writer.close()


async def make(root: Path) -> StateDir:
    """The state dir, with nobody in it."""
    state_dir = ledgers.state_dir_in(root)
    async with past_in(state_dir) as past:
        await past.happen()
    return state_dir


def accepting(call: CallId, setting: str) -> dict[str, Any]:
    """Of the claim that continues `call` on the setting's authority."""
    authority = Authority("setting", setting, "config")
    accepts = {"accepts_attempt": f"{call}.1", "authority": authority}
    return {"generation": 2, "why_new": "decision", "continues": call, **accepts}


def request_again(number: int, body: bytes) -> Append:
    """A new call with a key of its own and the given request, claimed."""
    call, packed = call_id(number), bodies.pack(body)
    asked = replace(ledgers.REQUESTED, key=Key(f"again-{number}"))
    manifest = replace(ledgers.MANIFEST, body=Body(packed.digest, packed.size))
    entries = (Entry(call, None, asked), Entry(call, None, manifest))
    return Append(entries, (Expect(asked.scope, asked.key, None),), (packed,))


async def prune(writer: Writer, plan: retention.Plan) -> Erased:
    """All of it, one page after another, with nothing in between."""
    plan.count(silent)
    while (page := plan.page()) is not None:
        if page.tombstones:
            await writer.append(page.append("retention", "ada"))
        plan.done(page)
        plan.count(silent)
    plan.find_loose(silent)
    swept = Erased()
    while (batch := plan.batch()) is not None:
        swept = (await writer.append(batch)).erased or swept
        plan.swept(batch)
        plan.count(silent)
    return swept


def silent(*_: object) -> None:
    """No progress is watched."""


def prune_process(
    state_dir: StateDir, *options: str, failpoints: str = "", limits: str = ""
) -> "subprocess.CompletedProcess[str]":
    """`sendonce prune --older-than 0` with small pages. `limits`: IMPATIENT gives up where it should wait for a moment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SENDONCE_")}
    arguments = ["prune", "--older-than", "0", "--by", "ada", "--state-dir", str(state_dir.root), *options]
    return subprocess.run(
        [sys.executable, "-c", _SMALL_PAGES + limits + _RUN, *arguments],
        cwd=ROOT, env={**clean, "SENDONCE_FAILPOINTS": failpoints}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
