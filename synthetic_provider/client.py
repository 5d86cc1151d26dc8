"""One client's connection: what is sent on it, and that it ended.

Plain asyncio streams rather than an HTTP library, because half a head, a reset and a missing last chunk are the point.
"""

import asyncio
import fcntl
import math
import socket
import struct
import termios
from collections.abc import Awaitable

ACK_POLL_S = 0.001
ACK_LIMIT_S = 5.0  # a client that reads nothing for this long gets its reset anyway
LINGER_ZERO = struct.pack("ii", 1, 0)


class ClientReader(asyncio.StreamReader):
    """Tells at once when the client's side ended, whatever it sent before: `at_eof` is silent behind unread bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.gone.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.gone.set()


class Client:
    """A client that only ends its sending side counts as gone, as it does for the proxies of most providers; it is
    noticed in a pause or by a write that fails, so a short answer without pauses still reaches it.
    """

    def __init__(self, gone: asyncio.Event, writer: asyncio.StreamWriter) -> None:
        self._gone, self._writer = gone, writer
        writer.transport.set_write_buffer_limits(0)  # drain() then means: handed to the kernel

    @property
    def is_gone(self) -> bool:
        return self._gone.is_set()

    async def send(self, data: bytes) -> bool:
        """False when the client is gone."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            return False
        return True

    async def pause(self, seconds: float) -> bool:
        """True when the client is there after it; without a length it only lets others go on."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return True
        return not await happened(self._gone, seconds)

    async def stays_until(self, reached: Awaitable[None]) -> bool:
        """False when the client went first."""
        going = asyncio.ensure_future(self._gone.wait())
        reaching = asyncio.ensure_future(reached)
        await asyncio.wait({going, reaching}, return_when=asyncio.FIRST_COMPLETED)
        for task in (going, reaching):
            task.cancel()
        return not self._gone.is_set()

    async def reset(self) -> None:
        """RST, but only after the peer's kernel has what was written: an RST discards what is still on its way."""
        transport, connection = self._writer.transport, self._writer.get_extra_info("socket")
        patience_s = ACK_LIMIT_S
        while not transport.is_closing() and _unacknowledged_bytes(connection.fileno()):
            if patience_s <= 0:
                break
            await asyncio.sleep(ACK_POLL_S)
            patience_s -= ACK_POLL_S
        if transport.is_closing():
            return  # the client left first
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        transport.abort()


async def happened(event: asyncio.Event, within_s: float) -> bool:
    """Waits for the event, at most so long; infinite: until it happens."""
    try:
        await asyncio.wait_for(event.wait(), None if math.isinf(within_s) else within_s)
    except TimeoutError:
        return False
    return True


def _unacknowledged_bytes(descriptor: int) -> int:
    """SIOCOUTQ, tcp(7); Linux gives it the number of TIOCOUTQ."""
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    return int(count)
