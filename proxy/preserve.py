"""Bodies on their way into the ledger: packed, or only counted; and judged by their terminal evidence. Memory is bounded.

A body is held in memory only to be parsed, and then one at a time: five hundred slow readers must not take five hundred bodies.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Final

from ledger.bodies import (
    INLINE_LIMIT_BYTES,
    STAGE_BYTES,
    Packed,
    Source,
    digest_of,
    pack,
    pack_stream,
    packer_of,
    stream_of,
)
from ledger.errors import NoRoomError
from ledger.events import Body
from ledger.writer import Writer
from proxy.codings import UndecodableError, decoder
from proxy.dialects.base import Dialect, TerminalEvidence, is_event_stream, is_json
from proxy.effects import UpstreamTraits
from proxy.endpoints import EndpointClass
from proxy.headers import RawHeaders, find
from proxy.manifest import CallRequest
from proxy.sse import DecodedEventHold, EventHold, Hold, no_items
from proxy.upstream import Answer

PARSED_LIMIT_BYTES: Final = 16 * 1024 * 1024  # JSON of this size becomes some 100 MiB of objects


class Preserver:
    """One a process."""

    def __init__(self, writer: Writer, record_limit_bytes: int) -> None:
        self._writer, self._record_limit_bytes = writer, record_limit_bytes
        self.parsing = asyncio.Semaphore(1)  # enter it before a body is fetched to be parsed

    async def preserved(
        self, source: Source, endpoint_class: EndpointClass, staging: AsyncExitStack
    ) -> tuple[Body, tuple[Packed, ...]]:
        """The body as an event names it, and what is to be stored with that event. Append it before you leave `staging`."""
        if not is_kept(endpoint_class, source.size, self._record_limit_bytes):
            return await self._counted(source)
        packed = await self._packed(source, staging)
        return Body(packed.digest, packed.size), (packed,)

    async def preserved_if_room(
        self, source: Source, endpoint_class: EndpointClass, staging: AsyncExitStack
    ) -> tuple[Body, tuple[Packed, ...]]:
        """The same for an answer, which is here already: a large one is counted and hashed where the disk has no room for it."""
        try:
            return await self.preserved(source, endpoint_class, staging)
        except NoRoomError:
            return await self._counted(source)

    @staticmethod
    async def _counted(source: Source) -> tuple[Body, tuple[Packed, ...]]:
        digest, size = await asyncio.to_thread(digest_of, stream_of(source))
        return Body(digest, size, kept=False), ()

    async def _packed(self, source: Source, staging: AsyncExitStack) -> Packed:
        if source.size <= INLINE_LIMIT_BYTES:
            return pack(source.read_at(0, source.size))
        if source.size <= STAGE_BYTES:
            return await asyncio.to_thread(lambda: pack_stream(stream_of(source)))
        return await staging.enter_async_context(self._writer.staged(packer_of(stream_of(source)), source.size))

    async def evidence(self, request: CallRequest, answer: Answer, source: Source, hold: Hold) -> TerminalEvidence:
        """Of the preserved bytes; of a stream that is too long to judge, what its hold saw as it came."""
        found = await self._judged(request, answer, source)
        if found is not TerminalEvidence.NONE_KNOWN or not is_event_stream(answer.headers):
            return found  # any other body that nobody can judge is left to its framing
        return of_a_long_stream(request.dialect, answer.status, answer.headers, request.route.upstream.traits, hold)

    async def _judged(self, request: CallRequest, answer: Answer, source: Source) -> TerminalEvidence:
        status, headers = answer.status, answer.headers
        judged = is_json(headers) or is_event_stream(headers) or not source.size
        if answer.framing == "none" or not judged or source.size > PARSED_LIMIT_BYTES:
            return TerminalEvidence.NONE_KNOWN

        def judged_now() -> TerminalEvidence:
            body, traits = source.read_at(0, source.size), request.route.upstream.traits
            return request.dialect.evidence(status, headers, body, traits)

        if (
            source.size <= INLINE_LIMIT_BYTES and find(headers, b"content-encoding") is None
        ):  # a coded one may be a bomb
            return judged_now()
        async with self.parsing:
            return await asyncio.to_thread(judged_now)


def hold_of(dialect: Dialect, headers: RawHeaders, *, acts_on_items: bool) -> EventHold | DecodedEventHold:
    """For an event stream, in whatever content coding."""
    terminal, item = dialect.is_terminal, dialect.item_done if acts_on_items else no_items
    if find(headers, b"content-encoding") is None:
        return EventHold(terminal, item)
    try:
        return DecodedEventHold(terminal, decoder(headers), item)
    except UndecodableError:
        return DecodedEventHold(terminal, None, item)


def of_a_long_stream(
    dialect: Dialect, status: int, headers: RawHeaders, traits: UpstreamTraits, hold: Hold
) -> TerminalEvidence:
    """What a hold that was fed all of it knows. Where the end is not known by an event's type, it may lie beyond what was looked at."""
    if hold.is_blind or (not dialect.ends_by_type and (hold.terminal_seen or hold.overlooks)):
        return TerminalEvidence.NONE_KNOWN
    return TerminalEvidence.PROVEN if hold.terminal_seen else dialect.evidence(status, headers, b"", traits)


def is_kept(endpoint_class: str, size_bytes: int, record_limit_bytes: int) -> bool:
    """Bodies of endpoints that mint credentials (I8) and those beyond the limit (I2) are counted and hashed, never stored."""
    return endpoint_class != EndpointClass.CREDENTIAL_MINT and size_bytes <= record_limit_bytes
