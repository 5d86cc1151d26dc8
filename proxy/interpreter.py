"""Preserved bytes -> facts, in the background, versioned. No provider is needed, so a restart simply does it again.

It reads preserved bytes only: what a client saw was durable before, and what is concluded here never changes it.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ledger.calls import CallState
from ledger.errors import IllegalTransitionError, UnreadableRecordError, UnrecordableEventError
from ledger.events import (
    AttemptCompleted,
    AttemptInterpreted,
    AttemptObserved,
    AttemptRetryDecided,
    Body,
    CallCompleted,
)
from ledger.failpoints import passed
from ledger.ids import CallId
from ledger.ladder import Evidence
from ledger.operations import Append, Entry
from ledger.reader import Reader
from ledger.spool import Judged
from ledger.writer import Writer
from proxy import endings
from proxy.dialects import registry
from proxy.dialects.base import Dialect, Outcome, Reading, TerminalEvidence, is_event_stream
from proxy.effects import PLAIN, UpstreamTraits
from proxy.endpoints import Family
from proxy.headers import RawHeaders, find
from proxy.manifest import as_headers
from proxy.preserve import PARSED_LIMIT_BYTES, Preserver, hold_of, is_kept, of_a_long_stream
from proxy.request_body import PIECE_BYTES
from proxy.settings import Settings

ENDS_CHUNKS: Final = 16  # 8 KiB on average: room for the head of an answer, and for its usage at the end
RETRY_AUTHORITY: Final = "the client retries; the proxy never does after an answer"


class Interpreter:
    """Finishes observed calls: interpreted, retry decided, attempt completed, call completed, in one append."""

    def __init__(self, settings: Settings, reader: Reader, writer: Writer, preserver: Preserver) -> None:
        self._settings, self._reader, self._writer, self._preserver = settings, reader, writer, preserver

    async def finish(self, call: CallId) -> None:
        """Whatever stage of `observed` … `attempt_completed` the call is in; for any other it does nothing."""
        state = await self._reader.call(call)
        if state is not None and state.attempt is not None and state.attempt.observed is not None:
            await self.conclude(state)

    async def conclude(self, state: CallState, body: bytes | None = None) -> None:
        """The same for a state at hand. `body`: the preserved bytes, where whoever preserved them still holds them."""
        entries = await self._remaining(state, body)
        if entries:
            # The forwarder, a waiting request and a start may all want to finish it: whoever is second finds it done.
            with suppress(IllegalTransitionError):
                await self._append(state, entries)
            passed("after-interpreted")

    async def reinterpret(self, state: CallState) -> bool:
        """A newer reading of a completed call's kept answer beside the older ones; whether one was added."""
        attempt = state.attempt
        dialect, _ = dialect_of(self._settings, state)
        if state.upstream not in self._settings.upstreams:
            return False  # its family and what its answers prove stand in the settings
        if state.evidence is not Evidence.COMPLETED or attempt is None or attempt.interpreted is None:
            return False
        if attempt.interpreted.interpreter >= dialect.version or not _is_kept(attempt.observed):
            return False
        reading = _event(await self._read(state, None))
        if reading.effect.rank < attempt.interpreted.effect.rank:
            return False  # it would open the way to sending again what an earlier version, or other settings, held for possible
        with suppress(IllegalTransitionError, UnrecordableEventError):  # erased meanwhile; the older reading stands
            await self._writer.append(Append((Entry(state.call, attempt.number, reading),)))
            passed("after-reinterpreted")
            return True
        return False

    async def _append(self, state: CallState, entries: tuple[Entry, ...]) -> None:
        """Total: what cannot be recorded of a reading leaves one that is judged by status."""
        try:
            await self._writer.append(Append(entries))
        except UnrecordableEventError:
            bare = AttemptInterpreted(0, Outcome.UNINTERPRETABLE, self._by_status(state).effect)
            plain = tuple(replace(entry, event=bare) if entry.event.kind == bare.kind else entry for entry in entries)
            await self._writer.append(Append(plain))

    def _by_status(self, state: CallState) -> Reading:
        assert state.attempt is not None
        assert state.attempt.observed is not None
        observed = state.attempt.observed
        dialect, traits = dialect_of(self._settings, state)
        return replace(
            dialect.interpret(observed.status or 0, as_headers(observed.headers), b"", traits),
            outcome=Outcome.UNINTERPRETABLE,
        )

    async def _remaining(self, state: CallState, body: bytes | None) -> tuple[Entry, ...]:
        assert state.attempt is not None
        number, reading = state.attempt.number, state.attempt.interpreted
        rungs = (Evidence.RESPONSE, Evidence.INTERPRETED, Evidence.RETRY_DECIDED, Evidence.ATTEMPT_COMPLETED)
        if state.evidence not in rungs:
            return ()
        if reading is None:
            reading = _event(await self._read(state, body))
        steps = (
            Entry(state.call, number, reading),
            Entry(state.call, number, AttemptRetryDecided("stop", RETRY_AUTHORITY)),
            Entry(state.call, number, AttemptCompleted()),
            Entry(state.call, None, CallCompleted(reading.outcome)),
        )
        return steps[rungs.index(state.evidence) :]

    async def _read(self, state: CallState, body: bytes | None) -> Reading:
        assert state.attempt is not None
        observed = state.attempt.observed
        assert observed is not None
        dialect, traits = dialect_of(self._settings, state)
        headers, status = as_headers(observed.headers), observed.status or 0
        if observed.body is None or not observed.body.kept:
            return self._by_status(state)
        is_coded = find(headers, b"content-encoding") is not None  # it may be a bomb: not on the loop
        if body is not None and not is_coded:
            return dialect.interpret(status, headers, body, traits)
        async with self._preserver.parsing:
            try:
                body = await self._body(observed.body, headers)
            except UnreadableRecordError:  # `doctor` names the damage; the call is judged by its status
                body = None
            if body is None:
                return self._by_status(state)
            return await asyncio.to_thread(dialect.interpret, status, headers, body, traits)

    async def _body(self, body: Body, headers: RawHeaders) -> bytes | None:
        """What is read of it. A long stream says what counts in its first and its last events; other long bodies say nothing."""
        if body.size <= PARSED_LIMIT_BYTES:
            return b"".join([piece async for piece in self._reader.body(body.digest)])
        if not is_event_stream(headers) or find(headers, b"content-encoding") is not None:
            return None
        first, last = slice(None, ENDS_CHUNKS), slice(-ENDS_CHUNKS, None)
        parts = [b"".join([piece async for piece in self._reader.body(body.digest, part)]) for part in (first, last)]
        return b"\n\n".join(parts)


def dialect_of(settings: Settings, state: CallState) -> tuple[Dialect, UpstreamTraits]:
    """By the recorded path; an upstream that is no longer configured is read as a generic one."""
    upstream = settings.upstreams.get(state.upstream)
    if upstream is None or state.manifest is None:
        return registry.select(Family.GENERIC, ""), PLAIN
    return registry.select(upstream.family, state.manifest.url), upstream.traits


def judge_salvaged(settings: Settings, state: CallState, head: dict[str, Any], body: Path) -> Judged:
    """Is what a crash left a whole response, and is it kept? By the rules that live answers are judged by."""
    headers = as_headers(tuple((name, value) for name, value in head["headers"]))
    size = body.stat().st_size
    evidence = TerminalEvidence.NONE_KNOWN
    dialect, traits = dialect_of(settings, state)
    if size <= PARSED_LIMIT_BYTES:
        evidence = dialect.evidence(head["status"], headers, body.read_bytes(), traits)
    elif is_event_stream(headers):
        hold = hold_of(dialect, headers, acts_on_items=False)
        with body.open("rb") as pieces:
            while piece := pieces.read(PIECE_BYTES):
                hold.feed(piece)
        evidence = of_a_long_stream(dialect, head["status"], headers, traits, hold)
    declared = int(find(headers, b"content-length") or b"-1")
    framing_ended = head["framing"] == "none" or (head["framing"] == "length" and size == declared)
    ended = endings.ended_by(head["framing"], evidence, framing_ended=framing_ended)
    kept = is_kept(state.requested.endpoint_class if state.requested else "", size, settings.limits.record_limit_bytes)
    return Judged(endings.is_whole(ended), kept)


def _is_kept(observed: AttemptObserved | None) -> bool:
    return observed is not None and observed.body is not None and observed.body.kept


def _event(reading: Reading) -> AttemptInterpreted:
    return AttemptInterpreted(
        interpreter=reading.version,
        outcome=reading.outcome,
        effect=reading.effect,
        finish_reason=reading.finish_reason,
        usage=reading.usage,
        provider_ids=reading.provider_ids,
        model=reading.model,
        error=reading.error,
        service_tier=reading.service_tier,
        tool_calls=reading.tool_calls,
    )
