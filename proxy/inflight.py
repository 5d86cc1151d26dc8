"""One response as it arrives: a spool file, the offset that may be released, any number of readers from byte 0.

Memory does not grow with the body: the file is the buffer and a reader keeps only its own offset. A slow reader slows nobody,
since the writer never waits for readers. Everything is called from the event loop's thread.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ledger.spool import Spool
from proxy.headers import RawHeaders
from proxy.refusals import OwnAnswer

READ_BYTES: Final = 16 * 1024  # a reader that waits holds one piece, and a copy in its connection's buffer


@dataclass(frozen=True, slots=True)
class Head:
    """A response's head on its way to clients. `length` None means chunked; `bodyless` is HEAD, 204, 304."""

    status: int
    reason: str
    headers: RawHeaders
    length: int | None
    bodyless: bool

    @property
    def is_end(self) -> bool:
        """Nothing follows the head, so the head itself is the end that waits for the commit (I2)."""
        return self.bodyless or self.length == 0


class State(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"  # durable: the end is released
    CUT = "cut"  # what was not released never will be


class Recording:
    """Written by one forwarder, read by many.

    The forwarder: `begin`, `append`…, `end` (or `answer_instead` when no head came), `discard_spool` once the observation is
    durable, `close`. Without `discard_spool` the files stay, for recovery to salvage.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._readers = 0
        self._closing, self._discarding = False, False
        self._changed = asyncio.Event()
        self.head: Head | None = None
        self.own_answer: OwnAnswer | None = None
        self.tail = b""
        self.released = 0
        self.state = State.OPEN

    @property
    def size(self) -> int:
        return self._spool.size

    def begin(self, head: Head) -> None:
        self.head = head
        self._wake()

    def append(self, data: bytes, release_to: int) -> None:
        """Raises the spool's OSError, having released nothing of `data`."""
        self._spool.append(data)
        self._raise_released(release_to)
        self._wake()

    def release(self, release_to: int) -> None:
        """More of what was appended may leave."""
        self._raise_released(release_to)
        self._wake()

    def _raise_released(self, release_to: int) -> None:
        limit = self.size
        if self.head is not None and self.head.length is not None:
            limit = min(limit, self.head.length - 1)  # whatever the hold says, the end of framing waits for the commit
        self.released = max(self.released, min(release_to, limit))

    def end(self, state: State, tail: bytes = b"") -> None:
        """COMMITTED only once the observation is durable: it releases the end.

        `tail` (an error event of the dialect) goes out after the released bytes of a CUT. It is dropped where the client was
        told a length: there it could fill the body up and make it look complete (I13).
        """
        if state is State.OPEN or self.state not in {State.OPEN, state}:
            raise ValueError(f"A recording that is {self.state} cannot become {state}.")
        if self.state is State.OPEN:
            self.state = state
            if state is State.COMMITTED:
                self.released = self.size
            elif self.head is not None and self.head.length is None and not self.head.bodyless:
                self.tail = tail
            self._wake()

    def answer_instead(self, answer: OwnAnswer) -> None:
        """The attempt ended without a head, or with one that nobody was given: every reader gets this, whole. It ends the recording."""
        if self.head is not None and not self.head.is_end:
            raise ValueError("The provider's head is already on its way: end the recording with CUT instead.")
        self.own_answer = answer
        self.end(State.CUT)

    async def head_or_end(self) -> Head | None:
        """None when the recording ended without a head: see `own_answer`."""
        while self.head is None and self.state is State.OPEN:
            await self._changed.wait()
        return self.head

    async def committed(self) -> bool:
        while self.state is State.OPEN:
            await self._changed.wait()
        return self.state is State.COMMITTED

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Enter it in the same turn of the loop in which you found the recording: it keeps the spool open."""
        if self._spool.closed:
            raise ValueError("The recording is over: replay it from the ledger.")
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            self._settle()

    async def read(self) -> AsyncIterator[bytes]:
        """Inside `reading`: bytes from 0 on as they are released, then the tail of a cut. Afterwards `state` says how it ended."""
        offset = 0
        while True:
            if offset < self.released:
                data = self._spool.read_at(offset, min(READ_BYTES, self.released - offset))
                if not data:
                    raise OSError(errno.EIO, "The spool is shorter than what was written to it.")
                offset += len(data)
                yield data
                del data  # or a reader that waits would hold on to it
            elif self.state is State.OPEN:
                await self._changed.wait()
            else:
                if self.tail:
                    yield self.tail
                return

    def discard_spool(self) -> None:
        """The observation is durable: the files go with the last reader."""
        self._discarding = True
        self._settle()

    def close(self) -> None:
        """The forwarder is done; readers finish first."""
        self._closing = True
        self._settle()

    def _settle(self) -> None:
        if self._readers:
            return
        if self._discarding:
            self._spool.remove()
        if self._closing:
            self._spool.close()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
