"""The only outbound session. Every failure of a send is `not_sent` (with its proof) or `lost`; everything else is an answer.

The order on the wire, kept by `BarrierConnector.connect`: a clean connection (pool, or DNS, TCP, TLS), then
`before_first_byte` awaited, then the connection is looked at again, then bytes. It runs once a send: a second run would be a re-send.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from ssl import SSLContext
from typing import Any, Final, Literal

import aiohttp
from aiohttp import payload
from aiohttp.abc import AbstractStreamWriter
from aiohttp.connector import Connection
from aiohttp.http_writer import StreamWriter
from yarl import URL

from ledger.failpoints import passed
from proxy.connections import outgoing_socket, still_open
from proxy.headers import RawHeaders, as_text, end_to_end, find, media_type
from proxy.request_body import PIECE_BYTES, RequestBody

UNCLEAN_LIMIT: Final = 32  # connections in one send: a pool may hold so many dead ones, a peer may hang up for ever
DNS_CACHE_S: Final = 30  # a moved name is found again soon; a lookup an attempt would be slow
JSON_WHITESPACE: Final = b" \t\r\n"

Framing = Literal["none", "length", "chunked", "close"]


class AttemptFailed(Exception):  # noqa: N818 - an outcome, recorded as it is named
    """`not_sent`: `proof` says why the provider cannot have the request. `lost`: it may have it, and no whole answer came."""

    def __init__(self, kind: Literal["not_sent", "lost"], proof: str, error: BaseException) -> None:
        super().__init__(f"{kind}: {proof} ({type(error).__name__}: {error})")
        self.kind, self.proof, self.error = kind, proof, error


@dataclass(slots=True)
class _Progress:
    """What has provably happened in one send; read when something fails."""

    before_first_byte: Callable[[], Awaitable[None]]
    needed: (
        int | None
    )  # body bytes without which the provider cannot act; None: a part of the body may already be acted on
    acquired: bool = False  # a clean connection was there
    cleared: bool = False  # the barrier passed: bytes may have left
    handed: int = 0  # body bytes handed to the transport, never counted too low
    answered: bool = False  # a final status line came in
    callers_own: BaseException | None = None  # raised by the barrier: no failure of the network
    transport: asyncio.Transport | None = None
    lost: asyncio.Future[None] | None = None  # done when the connection is; an exception in it is a cut

    def failure(self, error: BaseException) -> AttemptFailed:
        if not self.acquired:
            return AttemptFailed("not_sent", "no connection", error)
        if not self.cleared:
            return AttemptFailed("not_sent", "no byte left: the connection ended before the first one", error)
        if self.answered:
            return AttemptFailed("lost", "an answer began", error)
        if self.needed is not None and self.handed < self.needed:
            proof = f"{self.handed} of {self.needed} body bytes were handed to the transport, then it was closed"
            return AttemptFailed("not_sent", proof, error)
        return AttemptFailed("lost", "the request may have been received", error)

    def abort(self) -> None:
        """close() would go on flushing to a peer that may never read; nothing of this send may leave any more."""
        if self.transport is not None:
            self.transport.abort()


def _needed_bytes(headers: RawHeaders, body: RequestBody) -> int | None:
    """Only a single plain JSON document is useless without its last byte; white space after it is not needed."""
    media = media_type(headers)
    single = media == b"application/json" or media.endswith(b"+json")
    if not single or find(headers, b"content-encoding") is not None:
        return None
    needed = body.size
    while needed:
        tail = body.read_at(max(0, needed - PIECE_BYTES), min(needed, PIECE_BYTES))
        if rest := tail.rstrip(JSON_WHITESPACE):
            return needed - len(tail) + len(rest)
        needed -= len(tail)
    return None


class CountedBody(payload.Payload):
    """The body in pieces; each is handed over only after all others have left this process.

    With the lowest write buffer limit `drain` returns when the kernel (under TLS: the transport below) has taken everything. So
    while fewer bytes than needed are handed over, the provider cannot have a complete request, whatever broke.
    """

    _autoclose = True

    def __init__(self, body: RequestBody, progress: _Progress, idle_timeout_s: float) -> None:
        super().__init__(body)
        self._size, self._progress, self._idle_timeout_s = body.size, progress, idle_timeout_s

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return bytes(self._value.whole()).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        assert isinstance(writer, StreamWriter)
        assert writer.transport is not None
        # Plain transports pause above the limit, TLS transports at it: with 0 those would pause on an empty buffer, for ever.
        writer.transport.set_write_buffer_limits(high=0 if writer.transport.get_extra_info("sslcontext") is None else 1)
        for piece in self._value.pieces():
            self._progress.handed += len(piece)  # counted before the call: it may raise after handing over
            await writer.write(piece, drain=False)
            await self._drain(writer)
            passed("after-first-byte")

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:  # noqa: ARG002
        await self.write(writer)

    async def _drain(self, writer: StreamWriter) -> None:
        """The write time-out that aiohttp lacks: idle_timeout_s without the kernel taking a byte."""
        while (transport := writer.transport) is not None and not transport.is_closing():
            waiting = transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(self._idle_timeout_s):
                    await writer.drain()
            except TimeoutError:
                if transport.get_write_buffer_size() >= waiting:
                    transport.abort()
                    raise
            else:
                return
        raise ConnectionResetError("the connection was closed within the request body")


@dataclass(slots=True)
class Answer:
    """A final status line and headers are in; the body is still coming. `length` only where the framing is a length."""

    status: int
    reason: str
    headers: RawHeaders
    framing: Framing
    length: int | None
    _response: aiohttp.ClientResponse = field(repr=False)
    _progress: _Progress = field(repr=False)

    async def body(self) -> AsyncGenerator[bytes, None]:
        """Raw bytes as they come. Raises AttemptFailed('lost') when cut; what had arrived before the cut comes out first."""
        content = self._response.content
        with self._ended_by_connection():
            while not content.at_eof():
                try:
                    data = await content.readany()
                except (aiohttp.ClientError, OSError) as error:
                    # The public readers refuse to hand out what came before a reset; the pinned version keeps it here.
                    if salvaged := content._read_nowait(-1):  # noqa: SLF001
                        yield salvaged
                    raise self._progress.failure(error) from error
                if data:
                    yield data
                    del data  # or each stream would hold its last piece while it waits for the next
        lost = self._progress.lost
        if self.framing == "close" and lost and lost.done() and not lost.cancelled() and (reset := lost.exception()):
            raise self._progress.failure(reset) from reset  # aiohttp takes it for the end of the body

    @contextmanager
    def _ended_by_connection(self) -> Iterator[None]:
        """After broken chunk framing aiohttp closes the connection but never ends the body: a reader would wait for ever."""
        content, lost = self._response.content, self._progress.lost
        assert lost is not None

        def end_body(_: object) -> None:
            if not content.is_eof() and content.exception() is None:
                content.set_exception(aiohttp.ClientPayloadError("the connection ended within the body"))

        lost.add_done_callback(end_body)  # called soon where it is lost already
        try:
            yield
        finally:
            lost.remove_done_callback(end_body)

    def close(self) -> None:
        """Gives a wholly read connection back to the pool (aiohttp has done so already), breaks any other."""
        self._response.close()


def _seen(closed: asyncio.Future[None]) -> None:
    """Otherwise asyncio logs that nobody looked at the exception."""
    if not closed.cancelled():
        closed.exception()


async def _never_again(
    request: aiohttp.ClientRequest, send: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]]
) -> aiohttp.ClientResponse:
    """On exactly these two errors aiohttp sends idempotent methods again, even on a fresh connection: hide them from it."""
    try:
        return await send(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientError(f"{type(error).__name__}: {error}") from error


_progress: ContextVar[_Progress] = ContextVar("progress")  # session.request calls connector.connect within one task


class BarrierConnector(aiohttp.TCPConnector):
    """`connect` lies outside aiohttp's connect time-out, so a slow commit is not taken for a slow peer."""

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout  # noqa: ASYNC109
    ) -> Connection:  # fmt: skip
        progress = _progress.get()
        if progress.acquired:
            raise aiohttp.ClientError("refused to send one attempt twice")
        connection = await super().connect(req, traces, timeout)
        for _ in range(
            UNCLEAN_LIMIT
        ):  # a pooled one on which the peer closed or spoke: its words would pass for our answer
            if _clean(connection):
                break
            connection.close()
            connection = await super().connect(req, traces, timeout)
        else:
            connection.close()
            raise aiohttp.ClientConnectionError("the peer closes every connection before the first byte")
        progress.acquired, progress.transport = True, connection.transport
        assert connection.protocol is not None
        progress.lost = lost = connection.protocol.closed
        assert lost is not None  # a clean one is not lost
        lost.remove_done_callback(_seen)  # once on a pooled connection, not once a request
        lost.add_done_callback(_seen)
        try:
            await _pass_barrier(progress)
        except BaseException:
            connection.close()
            raise
        if not _clean(connection):
            connection.close()
            raise aiohttp.ClientConnectionError("the peer closed or spoke before the first byte")
        progress.cleared = True
        return connection


async def _pass_barrier(progress: _Progress) -> None:
    try:
        await progress.before_first_byte()
    except BaseException as error:
        progress.callers_own = error
        raise


def _clean(connection: Connection) -> bool:
    protocol, transport = connection.protocol, connection.transport
    return protocol is not None and not protocol.should_close and still_open(transport)


class Upstream:
    """Create it inside the running loop, after any fork."""

    def __init__(
        self,
        *,
        connect_timeout_s: float,
        idle_timeout_s: float,
        keepalive_s: float,
        fresh_connections: bool = False,
        ssl: SSLContext | bool = True,
        egress_proxy: str | None = None,
    ) -> None:
        """`egress_proxy`: http://[user:password@]host:port; an https upstream is reached through its CONNECT."""
        self._idle_timeout_s, self._ssl, self._egress_proxy = idle_timeout_s, ssl, egress_proxy
        pool: dict[str, Any] = {"force_close": True} if fresh_connections else {"keepalive_timeout": keepalive_s}
        self._session = aiohttp.ClientSession(
            connector=BarrierConnector(socket_factory=outgoing_socket, limit=0, ttl_dns_cache=DNS_CACHE_S, **pool),
            timeout=aiohttp.ClientTimeout(
                total=None, connect=connect_timeout_s, sock_connect=connect_timeout_s, sock_read=idle_timeout_s
            ),
            cookie_jar=aiohttp.DummyCookieJar(),  # the default jar would hand one caller's cookies to another
            auto_decompress=False,
            trust_env=False,
            read_bufsize=8 * 1024,  # aiohttp stops reading at twice that
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            middlewares=(_never_again,),
            max_line_size=65_536,
            max_field_size=65_536,
            max_headers=256,
        )

    async def send(
        self,
        method: str,
        url: str,
        headers: RawHeaders,
        body: RequestBody,
        before_first_byte: Callable[[], Awaitable[None]],
    ) -> Answer:
        """One attempt, never repeated. Raises AttemptFailed; what the barrier raises comes out as it is, and nothing was sent.

        `url` is written to the wire byte for byte. Cancelled, it leaves the connection closed.
        """
        progress = _Progress(before_first_byte, _needed_bytes(headers, body))
        token = _progress.set(progress)
        try:
            response = await self._session.request(
                method,
                URL(url, encoded=True),
                headers=as_text(end_to_end(headers)),
                data=CountedBody(body, progress, self._idle_timeout_s) if body.size else None,
                allow_redirects=False,
                ssl=self._ssl,
                proxy=self._egress_proxy,
            )
        except BaseException as error:
            progress.abort()
            if progress.callers_own is not None:
                raise progress.callers_own from None
            if isinstance(error, (aiohttp.ClientError, OSError, ValueError)):
                raise progress.failure(error) from error
            raise
        finally:
            _progress.reset(token)
        progress.answered = True
        return _answer(method, response, progress)

    async def close(self) -> None:
        await self._session.close()


def _answer(method: str, response: aiohttp.ClientResponse, progress: _Progress) -> Answer:
    """Nothing that we forward may upgrade (aiohttp hands a 101 over as final), and chunks are the only coding taken off here."""
    coding = find(response.raw_headers, b"transfer-encoding")
    if response.status == HTTPStatus.SWITCHING_PROTOCOLS or (coding is not None and coding.lower() != b"chunked"):
        response.close()
        proof = "the provider switched protocols, or used a transfer coding, unasked"
        raise AttemptFailed("lost", proof, aiohttp.ClientError(f"{response.status}"))
    framing, length = _framing(method, response, is_chunked=coding is not None)
    return Answer(response.status, response.reason or "", response.raw_headers, framing, length, response, progress)


def _framing(method: str, response: aiohttp.ClientResponse, *, is_chunked: bool) -> tuple[Framing, int | None]:
    if method == "HEAD" or response.status in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}:
        return "none", None
    if is_chunked:
        return "chunked", None
    if (declared := find(response.raw_headers, b"content-length")) is not None:
        return "length", int(declared)
    return "close", None
