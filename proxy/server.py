"""The inbound side of one request: its body comes in here, and every byte of its answer is written here."""

import asyncio
from contextlib import suppress
from http import HTTPStatus

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from proxy.connections import has_more_to_read
from proxy.headers import RawHeaders, end_to_end, find
from proxy.inflight import Head, Recording, State
from proxy.refusals import OwnAnswer
from proxy.request_body import RequestBody


class BodyTooLarge(Exception):  # noqa: N818 - an outcome of the client's, not an error of ours
    """The request body is above the limit: answer 413 `body_too_large` and close."""


class BodyBroke(Exception):  # noqa: N818 - as above
    """The request body ended early, stalled or was framed wrongly; `sentence` says which. Answer and close."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


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
            await self._wire.drain()  # `write` waits after 64 KiB only

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
    if head is None or (head.is_end and not await recording.committed()):
        if recording.own_answer is not None:
            await _write_whole(response, recording.own_answer, extra_headers)
        return
    await response.begin(head, extra_headers)
    async for data in recording.read():
        await response.send(data)
        del data
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
