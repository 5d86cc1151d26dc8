"""The only writer: one thread, one connection, group commit; then one receipt append and one fdatasync.

N waiting operations share one transaction, one COMMIT, one receipt append and one fdatasync; only then do their futures
resolve. A COMMIT or fdatasync that raises is an unknown outcome, never "not committed": the writer is poisoned, every
waiting and every later caller gets PoisonedError, and the process must exit. fsync is never retried.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from ledger.bodies import Packed, Packer
from ledger.errors import LedgerError, NoRoomError, PoisonedError
from ledger.failpoints import passed
from ledger.operations import Append, Appended, Stage
from ledger.receipts import ReceiptLog
from ledger.reserve import Reserve
from ledger.sqlite import Store

# operations in one transaction: bounds how long the first one waits for the last one's inserts
BATCH_LIMIT: Final = 256
# of WAL; large enough to be rare, small enough to read back quickly at start
CHECKPOINT_BYTES: Final = 16 * 1024 * 1024

CHECKPOINT_FULL_BYTES: Final = 4 * 1024 * 1024  # the same without room to spare: what was erased must make room again
ERASED_AT_ONCE_BYTES: Final = 8 * 1024 * 1024  # a batch of chunks is overwritten page by page
STAGED_COPIES: Final = 2  # what is staged lies in the WAL, and after a checkpoint in the file too

_Item = tuple[Append | Stage, "asyncio.Future[Any]"]
_Outcome = Appended | LedgerError | None


class Writer:
    """`await append(op)` returns once the operation and its receipt are durable, or raises with nothing changed."""

    def __init__(
        self,
        store: Store,
        receipts: ReceiptLog,
        wal: Path,
        now_ms: Callable[[], int],
        reserve: Reserve | None = None,
    ) -> None:
        """`reserve` is looked at before each transaction, from the thread: it makes room, and says whether there is any to spare."""
        self._reserve = reserve
        self._store, self._receipts, self._wal, self._now_ms = store, receipts, wal, now_ms
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self.poisoned: asyncio.Future[BaseException] = self._loop.create_future()
        self._stopped = False
        self._closing = False
        self.staging = 0  # bodies whose chunks may be stored already while nothing refers to them yet
        self._thread = threading.Thread(target=self._main, name="ledger-writer", daemon=True)
        self._thread.start()

    def append(self, op: Append) -> "asyncio.Future[Appended]":
        """Enqueues at once, in call order. A waiter that is cancelled does not undo the operation."""
        return self._enqueue(op)

    @asynccontextmanager
    async def staged(self, packer: Packer, size_bytes: int) -> AsyncIterator[Packed]:
        """A body's chunks are stored ahead of the event that names it, in batches between which others have their turn.

        Append that event within: until the end no chunk without a reference is swept. Raises NoRoomError, having written
        nothing where the disk has no room for all of `size_bytes`.
        """
        self.staging += 1
        try:
            with self._promised(STAGED_COPIES * size_bytes + self._uncopied()):
                while chunks := await asyncio.to_thread(packer.batch):
                    await self._enqueue(Stage(chunks))
                yield packer.packed()
        finally:
            self.staging -= 1

    def _enqueue(self, op: Append | Stage) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.poisoned.done():
            future.set_exception(PoisonedError(str(self.poisoned.result())))
        elif self._closing:
            future.set_exception(PoisonedError("the writer is closed"))
        else:
            self._queue.put((op, future))
        return future

    def post(self, op: Append) -> "asyncio.Future[Appended]":
        """For facts nobody waits for. A LedgerError of theirs is expected (the ladder moved on) and marked as seen."""
        future = self.append(op)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    async def close(self) -> None:
        """Finishes what is queued, checkpoints, closes the files."""
        self._closing = True
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    # --- the thread ------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        batch: list[_Item] = []
        try:
            for batch in self._batches():
                self._commit(batch)
            batch = []
            if self._has_room_for(self._uncopied()):
                self._store.checkpoint("TRUNCATE")
            self._store.close()
            self._receipts.close()
        except BaseException as error:  # noqa: BLE001 - whatever it was, durability is unknown from here on
            self._call(self._poison, batch, error)
            while not self._stopped and (item := self._queue.get()) is not None:
                self._call(self._fail, [item], error)

    def _batches(self) -> Iterator[list[_Item]]:
        while (item := self._queue.get()) is not None:
            batch = [item]
            while len(batch) < BATCH_LIMIT and not self._queue.empty():
                if (item := self._queue.get()) is None:
                    self._stopped = True
                    yield batch
                    return
                batch.append(item)
            yield batch
        self._stopped = True

    def _commit(self, batch: list[_Item]) -> None:
        has_room = self._reserve is None or self._reserve.look()
        self._store.begin()
        outcomes = [self._decide(op) for op, _ in batch]
        passed("before-commit")
        self._store.commit()
        passed("after-commit")
        lines = [row for outcome in outcomes if isinstance(outcome, Appended) for row in _receipt_rows(outcome)]
        if lines:
            self._receipts.append(lines)
        if any(line["kind"] == "sent" for line in lines):  # only what must precede a send is waited for
            passed("before-receipt-sync")
            self._receipts.sync()
            passed("after-sent-receipt")
        self._call(_resolve, batch, outcomes)
        if not self._receipts.is_synced:
            self._receipts.sync()
        # stat, never open: closing a second descriptor would drop SQLite's locks.
        # On a full disk the WAL stays as it is: all of it is durable there, and copying it takes room that commits need.
        wal_bytes, limit_bytes = self._uncopied(), CHECKPOINT_BYTES if has_room else CHECKPOINT_FULL_BYTES
        if wal_bytes > limit_bytes and self._has_room_for(wal_bytes):
            self._store.checkpoint("PASSIVE")

    def _decide(self, op: Append | Stage) -> _Outcome:
        """A LedgerError is the operation's own and wrote nothing; anything else poisons."""
        try:
            if isinstance(op, Stage):
                self._store.stage(op)
                return None
            if op.erasure is not None and not self._has_room_for(self._uncopied() + ERASED_AT_ONCE_BYTES):
                raise NoRoomError(
                    "the disk is too full to erase on it, which writes before it frees: make some room first"
                )
            return self._store.append(op, self._now_ms())
        except LedgerError as error:
            return error

    def _has_room_for(self, size_bytes: int) -> bool:
        return self._reserve is None or self._reserve.has_room_for(size_bytes)

    @contextmanager
    def _promised(self, size_bytes: int) -> Iterator[None]:
        if self._reserve is None:
            yield
            return
        with self._reserve.promised(size_bytes) as given:
            if not given:
                raise NoRoomError(f"the disk has no {size_bytes} bytes to spare")
            yield

    def _uncopied(self) -> int:
        """What a checkpoint may copy into the ledger's file: the WAL, or less."""
        return self._wal.stat().st_size

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends, and nobody waits any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _poison(self, batch: list[_Item], error: BaseException) -> None:
        if not self.poisoned.done():
            self.poisoned.set_result(error)
        self._fail(batch, error)

    @staticmethod
    def _fail(batch: list[_Item], error: BaseException) -> None:
        for _, future in batch:
            if not future.done():
                future.set_exception(PoisonedError(f"{type(error).__name__}: {error}"))


def _resolve(batch: list[_Item], outcomes: list[_Outcome]) -> None:
    for (_, future), outcome in zip(batch, outcomes, strict=True):
        if future.done():  # its waiter was cancelled
            continue
        if isinstance(outcome, LedgerError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _receipt_rows(appended: Appended) -> list[dict[str, Any]]:
    receipt, state = appended.receipt, appended.state
    if receipt is None or state is None:
        return []
    witness = appended.recorded[-1]
    row = {
        "kind": receipt.kind,
        "at": witness.at_ms,
        "scope": state.scope,
        "key": state.key,
        "key_source": state.key_source,
        "occurrence": state.occurrence,
        "generation": state.generation,
        "call": receipt.call,
        "attempt": receipt.attempt,
        "upstream": state.upstream,
        "caller_exact": state.caller_exact,
        "digest": receipt.digest,
        "seq": witness.seq,
        "chain": witness.chain,
    }
    return [row]
