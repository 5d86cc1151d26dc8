"""Connections: those that come in, with their limits; what bounds those that go out; what the kernel knows of a socket.

The kernel is asked (`still_open`, `unacknowledged_bytes`) because the event loop learns of a close later or never.
"""

import asyncio
import fcntl
import resource
import select
import socket
import ssl
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from aiohttp import StreamReader, http_parser, web

from proxy import refusals
from proxy.codes import Code
from proxy.refusals import Column
from proxy.target import HEAD_LIMIT_BYTES

KNOBS: Final[dict[str, Any]] = {
    "auto_decompress": False,  # the provider gets the client's bytes
    "keepalive_timeout": 75.0,  # the default is an hour; above the keep-alive of common client pools
    "lingering_time": 2.0,  # how long an unread request body is drained after an early answer
    "max_line_size": 16_384,
    "max_field_size": 65_536,
    "max_headers": 256,
    "access_log": None,
}
_PEER_GONE: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
# the client's socket, its body's file, the upstream's, two of the spool, one idle in the pool
DESCRIPTORS_A_CALL: Final = 6
DESCRIPTORS_RESERVED: Final = 64  # ledger, receipts, log, listeners, the command line's questions
ACCEPT_AGAIN_S: Final = 1  # as the loop's own servers wait when descriptors have run out
WRITE_BUFFER_BYTES: Final = 16 * 1024  # beyond the kernel's own: what a client does not read waits in its spool
RECEIVE_BUFFER_BYTES: Final = 128 * 1024  # of an upstream's socket: 1.2 MB/s at 100 ms; no model writes so fast
_SIOCOUTQ: Final = 0x5411  # Linux: bytes in the send queue that the peer has not acknowledged


def assert_c_parser() -> None:
    """The pure-Python parser is laxer (research/reliability.md section 0.7): refuse to start with it."""
    for parser in (http_parser.HttpRequestParser, http_parser.HttpResponseParser):
        if parser.__module__ != "aiohttp._http_parser":
            raise RuntimeError(
                f"{parser.__qualname__} is not aiohttp's C parser. "
                "Install an aiohttp wheel with extensions and unset AIOHTTP_NO_EXTENSIONS."
            )


def still_open(transport: asyncio.BaseTransport | None) -> bool:
    """Asks the kernel, not the loop: False as soon as the peer's FIN or RST is in, even behind unread bytes.

    A FIN that waits behind the peer's own unsent bytes cannot be seen (`duplicate_settle_ms`). poll() rather than a peek: it
    sees a FIN behind a pipelined request and does not consume a pending error. Without POLLRDHUP (not Linux) it sees only RST.
    """
    if transport is None or transport.is_closing():  # first: uvloop keeps the number of a closed descriptor
        return False
    sock = transport.get_extra_info("socket")
    if sock is None or (fd := sock.fileno()) < 0:
        return False
    poll = select.poll()
    poll.register(fd, _PEER_GONE)
    return not any(event & (_PEER_GONE | select.POLLNVAL) for _, event in poll.poll(0))


def unacknowledged_bytes(transport: asyncio.Transport | None) -> int | None:
    """Bytes written to this connection that the peer's kernel has not acknowledged: 0 means delivered to its host.

    Right also within `connection_lost`, where the descriptor is still open. None where it cannot be known: the descriptor is
    closed, or this is not Linux.
    """
    if transport is None or not sys.platform.startswith("linux"):
        return None
    sock = transport.get_extra_info("socket")
    if sock is None or (fd := sock.fileno()) < 0:
        return None
    try:
        queued = int.from_bytes(fcntl.ioctl(fd, _SIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return None
    return queued + transport.get_write_buffer_size()


def outgoing_socket(address: Any) -> socket.socket:
    """A busy loop reads all that a socket's buffer holds before anybody writes it down: five hundred streams must fit."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    return made


def has_more_to_read(request: web.BaseRequest) -> bool:
    """Has the client sent something after this request already (pipelining)?"""
    connection, transport = request.protocol, request.transport
    if isinstance(connection, DataConnection) and connection.has_queued:
        return True
    sock = transport.get_extra_info("socket") if transport is not None and not transport.is_closing() else None
    if sock is None or (fd := sock.fileno()) < 0:
        return False
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder) > 0


def _raw(code: Code, text: str | None = None) -> bytes:
    """An answer to a connection on which no request was read."""
    own = refusals.render(code, Column.OTHERS, text)
    head = [f"HTTP/1.1 {own.status} {HTTPStatus(own.status).phrase}".encode(), b"Connection: close"]
    head += [b": ".join(pair) for pair in (*own.headers, (b"Content-Length", b"%d" % len(own.body)))]
    return b"\r\n".join(head) + b"\r\n\r\n" + own.body


class DataConnection(web.RequestHandler):
    """One connection. A head must come whole, within a time and a size: aiohttp waits for one for ever, and piles it up.

    What aiohttp's parser refuses gets the refusal body of every bad request, and no traceback in a log.
    """

    def __init__(self, manager: "DataServer", *, header_timeout_s: float, **knobs: Any) -> None:
        super().__init__(manager, **knobs)
        self._header_timeout_s = header_timeout_s
        self._head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._body: StreamReader | None = None  # of the newest request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._head_begins()

    def data_received(self, data: bytes) -> None:
        heads, is_head = self._request_count, self._body is None or self._body.is_eof()
        super().data_received(data)
        if self._request_count > heads:
            self._body = self._messages[-1][1]
            self._head_ends()
        elif data and is_head:
            self._head_begins()
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT_BYTES:
                self._refuse(
                    f"The head of the request is larger than {HEAD_LIMIT_BYTES} bytes. Send fewer or shorter headers."
                )

    def connection_lost(self, exc: BaseException | None) -> None:
        self._head_ends()
        super().connection_lost(exc)

    def _head_begins(self) -> None:
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(self._header_timeout_s, self._head_is_late)

    def _head_ends(self) -> None:
        self._head_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _head_is_late(self) -> None:
        self._deadline = None
        if self._is_answering:  # its head stands behind a request that is answered: the time counts from then on
            self._head_begins()
            return
        self._refuse(f"The head of the request did not come within {self._header_timeout_s:g} s. Send it at once.")

    @property
    def _is_answering(self) -> bool:
        return self._current_request is not None or bool(self._messages)

    def _refuse(self, text: str) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing() and not self._is_answering:
            transport.write(_raw(Code.BAD_FRAMING, text))
        self.force_close()

    @property
    def has_queued(self) -> bool:
        """Requests that were read while an earlier one was being answered. (aiohttp keeps them privately.)"""
        return bool(self._messages)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        text = "The request is not HTTP/1.1 as this proxy reads it, or its head is too large. Send it well-formed."
        refused = refusals.render(Code.BAD_FRAMING, Column.OTHERS, text)
        response = web.Response(status=refused.status, body=refused.body, content_type="application/json")
        response.headers.update({"x-should-retry": "false", "Sendonce-Disposition": "refused"})
        response.force_close()
        return response


def descriptor_share() -> int:
    """How many connections, and how many calls in flight, this process's descriptors allow."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, (limit - DESCRIPTORS_RESERVED) // DESCRIPTORS_A_CALL)


async def accept_tls(
    sock: socket.socket, server: "DataServer", context: ssl.SSLContext, handshake_timeout_s: float
) -> None:
    """Accepts until it is cancelled. Of the loop's own servers nobody counts connections before their handshake is over."""
    loop, places = asyncio.get_running_loop(), asyncio.Semaphore(descriptor_share())

    async def shake_hands(connection: socket.socket) -> None:
        try:
            with suppress(OSError):  # of TLS too: no client of ours, or one that is gone
                await loop.connect_accepted_socket(
                    server, connection, ssl=context, ssl_handshake_timeout=handshake_timeout_s
                )
        finally:
            places.release()

    sock.setblocking(False)
    async with asyncio.TaskGroup() as handshakes:
        while True:
            await places.acquire()
            try:
                connection, _ = await loop.sock_accept(sock)
            except OSError:  # no descriptor, or a client that is gone: a listener that ends here would end unseen
                places.release()
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            handshakes.create_task(shake_hands(connection))


class DataServer(web.Server):
    """aiohttp's low-level server that bounds its connections, and tells when one is gone, and how."""

    def __init__(
        self, handler: Any, on_lost: Callable[[asyncio.Transport, BaseException | None], None], header_timeout_s: float
    ) -> None:
        super().__init__(handler, **KNOBS)
        self._on_lost, self._limit, self._header_timeout_s = on_lost, descriptor_share(), header_timeout_s
        self._transports: dict[web.RequestHandler, asyncio.Transport] = {}

    def __call__(self) -> web.RequestHandler:
        return DataConnection(self, loop=self._loop, header_timeout_s=self._header_timeout_s, **KNOBS)

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._transports) >= self._limit:
            transport.write(_raw(Code.OVERLOADED))
            transport.close()
            return
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._transports[handler] = transport

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        """Called while the descriptor is still open, so that the kernel can be asked what was acknowledged."""
        if (transport := self._transports.pop(handler, None)) is not None:
            self._on_lost(transport, exc)
        super().connection_lost(handler, exc)
