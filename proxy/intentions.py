"""Which intention a request is a try of, where its own key does not say: a retry told in other words (`retelling`)."""

import asyncio
from contextlib import aclosing
from typing import Final

from ledger.calls import CallState
from ledger.errors import UnreadableRecordError
from ledger.events import Body
from ledger.stages import Effect, Stage
from proxy.codings import UndecodableError, decoded
from proxy.decisions import Live
from proxy.dialects.base import parsed_object
from proxy.headers import RawHeaders
from proxy.keys import CANONICAL_JSON_LIMIT_COMMAS
from proxy.manifest import CallRequest, as_headers
from proxy.preserve import PARSED_LIMIT_BYTES
from proxy.retelling import Retelling, told
from proxy.services import Services

READ_AGAIN_LIMIT: Final = 8  # a flight that ends while it is looked at is read from the ledger; each may end once


class Intentions:
    """Reads, and changes nothing."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def of(self, asked: CallRequest) -> CallRequest:
        """The request; as a certain retry of the earlier one, under its key, if it repeats the beginning of its answer.

        Only calls whose answer is not known to have arrived whole count: what follows a whole answer is another intention.
        """
        retells, registry = asked.client.retells, self._services.registry
        if not asked.may_retell or retells is None:
            return asked
        for _ in range(READ_AGAIN_LIMIT):
            earlier = await self._earlier(asked)
            if not registry.outran(earlier, self._services.epoch):
                break
        for call in earlier:
            manifest = call.manifest
            if manifest is None or call.key == asked.key or call.effect is Effect.ABSENT:
                continue
            if manifest.model != asked.facts.model:
                continue  # it would differ there: this spares a look at its bodies
            if (parts := await self._parts_told(retells, asked, call)) is not None:
                return asked.as_retold(call.call, manifest, call.key, parts)
        return asked

    async def _earlier(self, asked: CallRequest) -> list[CallState]:
        """What may be retold, newest first: of the same turn or session; in a run of the same pass, whoever first asked it."""
        if asked.pass_number is not None:
            return await self._services.reader.open_in_pass(asked.scope, asked.pass_number)
        return await self._services.reader.lineage(asked.scope, asked.lineage) if asked.lineage else []

    async def _parts_told(self, retells: Retelling, asked: CallRequest, call: CallState) -> int | None:
        registry = self._services.registry
        if (flight := registry.flight(call.call)) is not None and self._live(asked, call).delivered:
            await flight.finished.wait()  # its client has the end, and what that was is being read
        async with self._services.preserver.parsing:
            try:
                if registry.flight(call.call) is None:  # it may have ended since it was read
                    call = await self._services.reader.call(call.call) or call
                if _has_arrived(call, self._live(asked, call)):
                    return None
                request, headers, stream = await self._recorded(call)
            except UnreadableRecordError:  # erased, or never kept: nothing can be compared
                return None
            return await asyncio.to_thread(_parts_told, retells, asked, request, headers, stream)

    def _live(self, asked: CallRequest, call: CallState) -> Live:
        return self._services.registry.live([call], asked.pass_number)[call.call]

    async def _recorded(self, call: CallState) -> tuple[bytes, RawHeaders, bytes]:
        """The request's body, and of the answer the head and so much of the body as there is."""
        if (flight := self._services.registry.flight(call.call)) is not None:
            head = flight.recording.head
            request = flight.request.body.read_at(0, PARSED_LIMIT_BYTES)
            return request, head.headers if head else (), flight.spool.read_at(0, PARSED_LIMIT_BYTES)
        assert call.manifest is not None
        observed = call.attempt.observed if call.attempt else None
        request = await self._beginning(call.manifest.body)
        stream = await self._beginning(observed.body if observed else None)
        return request, as_headers(observed.headers) if observed else (), stream

    async def _beginning(self, body: Body | None) -> bytes:
        """As much of it as may be parsed: what a client repeats of a longer answer stands there, too."""
        if body is None or not body.size:
            return b""
        kept = bytearray()
        async with aclosing(self._services.reader.body(body.digest)) as pieces:
            async for piece in pieces:
                kept += piece
                if len(kept) >= PARSED_LIMIT_BYTES:
                    break
        return bytes(kept[:PARSED_LIMIT_BYTES])


def _has_arrived(call: CallState, live: Live) -> bool:
    """What follows a whole answer is another intention."""
    is_whole = call.stage in (Stage.COMPLETED, Stage.CLOSED) and call.effect is Effect.HAPPENED
    return is_whole and (call.delivered or live.delivered)


def _parts_told(
    retells: Retelling, asked: CallRequest, request: bytes, headers: RawHeaders, stream: bytes
) -> int | None:
    if request.count(b",") > CANONICAL_JSON_LIMIT_COMMAS:
        return None  # its conversation would stand in the later one, which keeps the bound
    try:
        parts = retells.parts(decoded(headers, stream))
    except UndecodableError:
        parts = []
    earlier, later = (asked.client.intention(parsed_object(body)) for body in (request, asked.body.whole()))
    if asked.pass_number is not None:
        earlier, later = map(asked.client.without_start_ids, (earlier, later))
    return told(retells, earlier, later, parts)
