"""Stored bytes -> client: the recorded answer again, marked as a replay, in the form that was asked for."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
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
from proxy.manifest import CallRequest, as_headers, reason_on_wire
from proxy.preserve import PARSED_LIMIT_BYTES, Preserver
from proxy.refusals import OwnAnswer
from proxy.server import WireResponse, answer


@dataclass(frozen=True, slots=True)
class _Form:
    """A form in which an answer was not stored. `render`: of the decoded body; None where it cannot be made exactly."""

    media_type: bytes
    render: Callable[[bytes], bytes | None]


_ABOUT_THE_BODY = frozenset({b"content-length", b"content-encoding", b"content-type", b"transfer-encoding"})


async def replay(
    request: web.BaseRequest,
    reader: Reader,
    preserver: Preserver,
    call: CallState,
    dialect: Dialect,
    extra: RawHeaders,
    asked: CallRequest,
) -> WireResponse | None:
    """Byte-identical body with the stored allow-listed headers; None where the form asked for cannot be made exactly."""
    attempt = call.attempt
    assert attempt is not None
    assert attempt.observed is not None
    observed = attempt.observed
    headers = as_headers(observed.headers)
    digest = observed.body.digest if observed.body is not None and observed.body.size else None
    if (form := _other_form(call, headers, dialect, asked)) is not None:
        rendered = await _made(reader, preserver, call, form)
        if rendered is None:
            return None
        kept = tuple(pair for pair in headers if pair[0].lower() not in _ABOUT_THE_BODY)
        own = OwnAnswer(HTTPStatus.OK, (*kept, (b"Content-Type", form.media_type)), rendered)
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


async def can_be_made(
    reader: Reader, preserver: Preserver, call: CallState, dialect: Dialect, asked: CallRequest
) -> bool:
    """Is there the form that is asked for? Within a run this is asked before the pass is given the call. Raises UnreadableRecordError."""
    observed = call.attempt.observed if call.attempt else None
    form = _other_form(call, as_headers(observed.headers), dialect, asked) if observed else None
    return form is None or await _made(reader, preserver, call, form) is not None


async def _made(reader: Reader, preserver: Preserver, call: CallState, form: _Form) -> bytes | None:
    observed = call.attempt.observed if call.attempt else None
    if observed is None or observed.body is None or observed.body.size > PARSED_LIMIT_BYTES:
        return None
    async with preserver.parsing:
        body = b"".join([piece async for piece in reader.body(observed.body.digest)])
        return await asyncio.to_thread(_rendered, form, as_headers(observed.headers), body)


def _other_form(call: CallState, headers: RawHeaders, dialect: Dialect, asked: CallRequest) -> _Form | None:
    """None: the stored bytes are the form that is asked for."""
    assert call.manifest is not None
    is_stream, as_stream = base.is_event_stream(headers), asked.facts.stream
    observed = call.attempt.observed if call.attempt else None
    # What a stream was asked for and answered otherwise is the answer; what came back by another way has that way's form.
    asked_before = is_stream if observed is not None and observed.source == "recovered" else call.manifest.stream
    if as_stream not in (asked_before, is_stream):
        return _Form(b"application/json", lambda body: None if as_stream else dialect.sse_to_json(body))
    retells, retold = asked.client.retells, asked.retells
    if is_stream and retells is not None and retold is not None and retold.parts and retold.call == call.call:
        return _Form(b"text/event-stream", lambda body: retells.after(body, retold.parts))
    return None


def _rendered(form: _Form, headers: RawHeaders, body: bytes) -> bytes | None:
    try:
        return form.render(decoded(headers, body))
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
