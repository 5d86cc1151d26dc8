"""The inbound side: aiohttp's low-level server as a parser and a connection; every byte of an answer is written here.

Also what the kernel knows of a connection (`still_open`, `unacknowledged_bytes`), which the event loop learns later or never.
"""

import asyncio
import fcntl
import resource
import select
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from aiohttp import http_parser, web
from aiohttp.abc import AbstractStreamWriter

from proxy import refusals
from proxy.headers import RawHeaders, end_to_end, find
from proxy.inflight import Head, Recording, State
from proxy.refusals import Code, Column, OwnAnswer
from proxy.request_body import RequestBody

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
DESCRIPTORS_A_CALL: Final = 5  # the client's socket, the upstream's, two of the spool, one idle in the upstream's pool
DESCRIPTORS_RESERVED: Final = 64  # ledger, receipts, log, listeners, the command line's questions
_SIOCOUTQ: Final = 0x5411  # Linux: bytes in the send queue that the peer has not acknowledged


class BodyTooLarge(Exception):  # noqa: N818 - an outcome of the client's, not an error of ours
    """The request body is above the limit: answer 413 `body_too_large` and close."""


class BodyBroke(Exception):  # noqa: N818 - as above
    """The request body ended early, stalled or was framed wrongly; `sentence` says which. Answer and close."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


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


def has_more_to_read(request: web.BaseRequest) -> bool:
    """Has the client sent something after this request already (pipelining)?"""
    connection, transport = request.protocol, request.transport
    if isinstance(connection, DataConnection) and connection.has_queued:
        return True
    sock = transport.get_extra_info("socket") if transport is not None and not transport.is_closing() else None
    if sock is None or (fd := sock.fileno()) < 0:
        return False
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder) > 0


async def read_body(request: web.BaseRequest, body: RequestBody, *, limit_bytes: int, idle_timeout_s: float) -> None:
    """The exact body bytes. Answers `Expect: 100-continue`, so call it only after the checks that need no body.

    Raises BodyTooLarge or BodyBroke, or the disk's OSError; then answer with `close=True`, since the rest of the body is unread.
    """
    declared = find(request.raw_headers, b"content-length")
    if declared is not None and int(declared) > limit_bytes:
        raise BodyTooLarge
    try:
        if (find(request.raw_headers, b"expect") or b"").strip().lower() == b"100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # aiohttp reads a count above zero as "the answer has begun"
        while not request.content.at_eof():
            async with asyncio.timeout(idle_timeout_s):
                piece = await request.content.readany()
            if body.size + len(piece) > limit_bytes:
                raise BodyTooLarge
            body.append(piece)
    except TimeoutError as error:
        raise BodyBroke(f"No byte of the request body came for {idle_timeout_s:g} s. Send it again, whole.") from error
    except web.RequestPayloadError as error:
        raise BodyBroke("The framing of the request body is broken. Send it again, whole.") from error
    except ConnectionError as error:
        raise BodyBroke("The connection was closed within the request body. Send it again, whole.") from error


class WireResponse(web.StreamResponse):
    """A response whose head, framing and end are written by us: nothing is added, dropped or spelled anew.

    aiohttp's own StreamResponse adds Server, Date and Content-Type and drops undecodable header bytes. `request.writer`, told
    neither length nor chunking, passes bytes through; so what aiohttp calls after the handler does nothing here.
    """

    def __init__(self, request: web.BaseRequest) -> None:
        super().__init__()
        self._request, self._wire = request, request.writer
        self._chunks, self._silent, self._closes = False, False, False
        self.begun = False  # a head was handed to the connection
        self.whole = False  # so was the end
        self.client_gone = False
        self.followed = False  # before the last piece left, the client had sent more already (pipelining)

    @property
    def keep_alive(self) -> bool:
        return self.whole and self._request.keep_alive and not self._closes

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:  # noqa: ARG002 - aiohttp's signature
        return self._wire

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing: `end` wrote the end, or there must be none."""

    async def begin(self, head: Head, extra_headers: RawHeaders = (), *, close: bool = False) -> None:
        self._silent = head.bodyless or self._request.method == "HEAD"
        self._chunks = head.length is None and not self._silent
        self._closes = close or not self._request.keep_alive
        lines = [f"HTTP/1.1 {head.status:03d} {head.reason}".encode("utf-8", "surrogateescape")]
        lines += [name + b": " + value for name, value in (*end_to_end(head.headers), *extra_headers)]
        if self._chunks:
            lines.append(b"Transfer-Encoding: chunked")
        elif (length := self._declared(head)) is not None:
            lines.append(b"Content-Length: " + length)
        if self._closes:
            lines.append(b"Connection: close")
        self.begun, self.followed = True, has_more_to_read(self._request)
        await self._wire.write(b"\r\n".join(lines) + b"\r\n\r\n")

    async def send(self, data: bytes) -> None:
        if not self._silent:
            self.followed = has_more_to_read(self._request)
            await self._wire.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunks else data)

    async def end(self) -> None:
        if self._chunks:
            await self._wire.write(b"0\r\n\r\n")
        self.whole = True

    def break_off(self) -> None:
        """Unclean on purpose: what was written is flushed, the framing is never completed."""
        if self._request.transport is not None:
            self._request.transport.close()

    def _declared(self, head: Head) -> bytes | None:
        """HEAD and 304 declare the length of a body that does not come; 204 must not declare any."""
        if head.status == HTTPStatus.NO_CONTENT:
            return None
        return find(head.headers, b"content-length") if head.length is None else b"%d" % head.length


async def relay(request: web.BaseRequest, recording: Recording, extra_headers: RawHeaders = ()) -> WireResponse:
    """One subscriber: a recording, from byte 0, to one client. A client that goes ends only this.

    Reach this in the same turn of the loop in which the recording was found. A ConnectionError must not leave: before the first
    byte aiohttp would log it as an error of the server and try to send a 500.
    """
    response = WireResponse(request)
    try:
        with recording.reading():
            await _relay(response, recording, extra_headers)
    except ConnectionError:
        response.client_gone = True
    if not response.whole:
        response.break_off()
    return response


async def _relay(response: WireResponse, recording: Recording, extra_headers: RawHeaders) -> None:
    head = await recording.head_or_end()
    if head is None:
        if recording.own_answer is not None:
            await _write_whole(response, recording.own_answer, extra_headers)
        return
    if head.is_end and not await recording.committed():
        return
    await response.begin(head, extra_headers)
    async for data in recording.read():
        await response.send(data)
    if recording.state is State.COMMITTED:
        await response.end()


async def answer(
    request: web.BaseRequest, own: OwnAnswer, extra_headers: RawHeaders = (), *, close: bool = False
) -> WireResponse:
    """An answer by the proxy itself. `close` where the request's body was not read to its end."""
    response = WireResponse(request)
    try:
        await _write_whole(response, own, extra_headers, close=close)
    except ConnectionError:
        response.client_gone = True
    return response


async def _write_whole(
    response: WireResponse, own: OwnAnswer, extra_headers: RawHeaders, *, close: bool = False
) -> None:
    reason = ""
    with suppress(ValueError):
        reason = HTTPStatus(own.status).phrase
    await response.begin(
        Head(own.status, reason, own.headers, len(own.body), bodyless=False), extra_headers, close=close
    )
    await response.send(own.body)
    await response.end()


def _one_too_many() -> bytes:
    own = refusals.render(Code.OVERLOADED, Column.OTHERS)
    head = [b"HTTP/1.1 503 Service Unavailable", b"Connection: close", *(b": ".join(pair) for pair in own.headers)]
    return b"\r\n".join(head) + b"\r\n\r\n" + own.body


class DataConnection(web.RequestHandler):
    """One connection. What aiohttp's parser refuses gets the refusal body of every bad request, and no traceback in a log."""

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


class DataServer(web.Server):
    """aiohttp's low-level server that bounds its connections, and tells when one is gone, and how."""

    def __init__(self, handler: Any, on_lost: Callable[[asyncio.Transport, BaseException | None], None]) -> None:
        super().__init__(handler, **KNOBS)
        self._on_lost, self._limit = on_lost, descriptor_share()
        self._transports: dict[web.RequestHandler, asyncio.Transport] = {}

    def __call__(self) -> web.RequestHandler:
        return DataConnection(self, loop=self._loop, **KNOBS)

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._transports) >= self._limit:
            transport.write(_one_too_many())
            transport.close()
            return
        self._transports[handler] = transport

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        """Called while the descriptor is still open, so that the kernel can be asked what was acknowledged."""
        if (transport := self._transports.pop(handler, None)) is not None:
            self._on_lost(transport, exc)
        super().connection_lost(handler, exc)
