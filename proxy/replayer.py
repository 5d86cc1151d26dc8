"""Stored bytes -> client: the recorded answer again, marked as a replay, in the form that was asked for."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus

from aiohttp import web

from ledger.calls import CallState
from ledger.errors import UnreadableRecordError
from ledger.reader import Reader
from proxy.codings import UndecodableError, decoded
from proxy.dialects import base
from proxy.dialects.base import Dialect
from proxy.headers import RawHeaders
from proxy.inflight import Head
from proxy.manifest import as_headers, reason_on_wire
from proxy.preserve import PARSED_LIMIT_BYTES, Preserver
from proxy.refusals import OwnAnswer
from proxy.server import WireResponse, answer

_ABOUT_THE_BODY = frozenset({b"content-length", b"content-encoding", b"content-type", b"transfer-encoding"})


async def replay(
    request: web.BaseRequest,
    reader: Reader,
    preserver: Preserver,
    call: CallState,
    dialect: Dialect,
    extra: RawHeaders,
    *,
    as_stream: bool,
) -> WireResponse | None:
    """Byte-identical body with the stored allow-listed headers; None where the other form cannot be made exactly."""
    attempt, stored = call.attempt, call.manifest
    assert attempt is not None
    assert attempt.observed is not None
    assert stored is not None
    observed = attempt.observed
    headers = as_headers(observed.headers)
    digest = observed.body.digest if observed.body is not None and observed.body.size else None
    if stored.stream != as_stream and base.is_event_stream(headers) != as_stream:
        rendered = None
        if not as_stream and observed.body is not None and observed.body.size <= PARSED_LIMIT_BYTES:
            async with preserver.parsing:
                body = b"".join([piece async for piece in reader.body(observed.body.digest)])
                rendered = await asyncio.to_thread(_rendered, dialect, headers, body)
        if rendered is None:
            return None
        kept = tuple(pair for pair in headers if pair[0].lower() not in _ABOUT_THE_BODY)
        own = OwnAnswer(HTTPStatus.OK, (*kept, (b"Content-Type", b"application/json")), rendered)
        return await answer(request, own, extra)
    size = observed.body.size if observed.body else 0
    head = Head(
        observed.status or 0,
        reason_on_wire(observed.reason_phrase),
        headers,
        None if observed.framing in ("chunked", "close") else size,
        bodyless=observed.framing == "none",
    )
    return await _write(request, head, extra, reader.body(digest) if digest else _nothing())


def _rendered(dialect: Dialect, headers: RawHeaders, body: bytes) -> bytes | None:
    try:
        return dialect.sse_to_json(decoded(headers, body))
    except UndecodableError:
        return None


async def _write(
    request: web.BaseRequest, head: Head, extra: RawHeaders, pieces: AsyncGenerator[bytes, None]
) -> WireResponse:
    """Raises UnreadableRecordError only before the head: once it has left, damage ends the answer uncleanly (I13)."""
    response = WireResponse(request)
    async with aclosing(pieces):
        first = await anext(pieces, b"")
        try:
            await response.begin(head, extra)
            if first:
                await response.send(first)
            async for piece in pieces:
                await response.send(piece)
            await response.end()
        except ConnectionError:
            response.client_gone = True
        except UnreadableRecordError:
            pass
    if not response.whole:
        response.break_off()
    return response


async def _nothing() -> AsyncGenerator[bytes, None]:
    return
    yield
