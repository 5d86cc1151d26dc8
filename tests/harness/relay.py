"""A TCP relay between clients and a proxy, as load balancers are: what it does with a client's FIN decides what the proxy can know.

It reads ahead, so the proxy's peer is the relay: an answer counts as acknowledged once the relay has it. The limit of every
proxy behind a relay that holds (`holding`) is that a client that has gone looks like one that waits.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

_PIECE_BYTES: Final = 65_536
_BACKLOG: Final = 1024  # a campaign's clients all connect at once
_LOOK_AGAIN_S: Final = 0.01  # whether an answer may pass
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST


@dataclass(eq=False)
class Relay:
    """Connections to `port` go on to `target_port`, each over one of its own.

    A client's FIN is passed on in order, behind all of its bytes, `fin_delay_s` after it came; where `holding`, not at all: the
    upstream connection then stays until its other end closes it. A client's reset is passed on as a reset, after the same delay.

    `may_pass`, of what a connection was asked and has not begun to answer: until it is true, nothing of the answer passes.
    """

    target_port: int
    fin_delay_s: float = 0.0
    holding: bool = False
    may_pass: Callable[[bytes], bool] = lambda _: True
    port: int = 0
    asked: int = 0  # connections that a client has sent something over
    _loop: asyncio.AbstractEventLoop | None = None
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _running: set["asyncio.Task[None] | None"] = field(default_factory=set)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)  # both legs of every connection

    def cut(self, *, reset: bool = False) -> None:
        """Every connection is gone on both legs when it returns; new ones are served."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._cut(reset), self._loop).result()

    async def _cut(self, reset: bool) -> None:
        legs = list(self._open)
        for leg in legs:
            _drop(leg, reset=reset)
        await asyncio.gather(*(leg.wait_closed() for leg in legs), return_exceptions=True)

    async def serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0, backlog=_BACKLOG)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await self._stopped.wait()
        await self._cut(reset=False)
        await asyncio.gather(*filter(None, self._running))

    def stop(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopped.set)

    async def _relay(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            from_proxy, to_proxy = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:  # refused, as by a proxy that has been killed
            _drop(to_client, reset=True)
            return
        task, legs = asyncio.current_task(), {to_client, to_proxy}
        self._running.add(task)
        self._open |= legs
        question = bytearray()  # what was asked since the last piece of an answer
        await asyncio.gather(
            self._outward(from_client, to_proxy, question), self._back(from_proxy, to_client, to_proxy, question)
        )
        self._open -= legs
        self._running.discard(task)

    async def _outward(self, source: asyncio.StreamReader, to_proxy: asyncio.StreamWriter, question: bytearray) -> None:
        """The client's bytes, and how it ended."""
        is_silent = True

        async def note(piece: bytes) -> None:
            nonlocal is_silent
            self.asked += is_silent
            is_silent = False
            question.extend(piece)

        ended = await _pump(source, to_proxy, note)
        if self.holding:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self.fin_delay_s):
                await self._stopped.wait()
        if not ended:
            _drop(to_proxy, reset=True)
        elif not to_proxy.is_closing():
            with suppress(OSError):
                to_proxy.write_eof()

    async def _back(
        self,
        source: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        to_proxy: asyncio.StreamWriter,
        question: bytearray,
    ) -> None:
        """The proxy's bytes. What a client that has gone does not take is read all the same, or cut where it is not held."""

        async def hold(_: bytes) -> None:
            while question and not self.may_pass(bytes(question)) and not to_client.is_closing():
                await asyncio.sleep(_LOOK_AGAIN_S)
            question.clear()

        ended = await _pump(source, to_client, hold)
        if not ended and self.holding:
            with suppress(OSError):
                while await source.read(_PIECE_BYTES):
                    pass
        if ended:
            to_client.close()
        else:
            _drop(to_client, reset=True)
        to_proxy.close()


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, before: Callable[[bytes], Awaitable[None]]
) -> bool:
    """Until the source ends; False where one of the two was reset. `before` each piece is passed on, it is awaited."""
    with suppress(OSError):
        while piece := await source.read(_PIECE_BYTES):
            await before(piece)
            sink.write(piece)
            await sink.drain()
        return True
    return False


def _drop(leg: asyncio.StreamWriter, *, reset: bool) -> None:
    """At once: what it was still to write is lost."""
    if reset:
        with suppress(OSError):  # closed by then
            leg.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    leg.transport.abort()


@contextmanager
def relaying(
    target_port: int,
    *,
    fin_delay_s: float = 0.0,
    holding: bool = False,
    may_pass: Callable[[bytes], bool] = lambda _: True,
) -> Iterator[Relay]:
    """A relay in a thread of its own, which also asks `may_pass`."""
    made, ready = Relay(target_port, fin_delay_s, holding, may_pass), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(made.serve(ready)), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield made
    finally:
        made.stop()
        thread.join()
