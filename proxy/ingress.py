"""The data plane's one handler: bytes -> CallRequest -> `match decision`. It decides nothing itself and sends nothing itself."""

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

from aiohttp import web

from ledger.calls import CallState
from ledger.errors import (
    ConflictError,
    LedgerError,
    NoRoomError,
    PoisonedError,
    UnreadableRecordError,
    UnrecordableEventError,
)
from ledger.ids import CallId, Head, Key, Scope, attempt_id
from ledger.ladder import Evidence
from proxy import clock, manifest, refusals
from proxy.admission import decide
from proxy.codes import Code
from proxy.connections import descriptor_share, still_open
from proxy.decisions import Attach, Forward, Now, Policy, Refuse, Replay, Wait
from proxy.dialects.base import is_event_stream
from proxy.front import BadBody, DoorAnswer, Entered, FrontDoor, of_pass
from proxy.headers import RawHeaders
from proxy.intentions import Intentions
from proxy.interpreter import dialect_of
from proxy.liveness import Claimant, Flight
from proxy.manifest import CallRequest
from proxy.preparation import record_preparation_failure
from proxy.replayer import can_be_made, replay
from proxy.server import WireResponse, answer, relay
from proxy.services import Services
from proxy.standing import Standing
from proxy.takeoff import take_off
from proxy.views import since_of

DECISIONS_LIMIT: Final = 32  # decided again, for whatever reason; more means a storm, and 503 is kinder than spinning
CANONICAL_INLINE_LIMIT_BYTES: Final = 64 * 1024  # parsing more than this would stall every stream on the loop
CANONICAL_SHARED_LIMIT_BYTES: Final = 1024 * 1024  # beyond it one at a time, for the memory
# for the client's FIN or reset after our own; a living client that keeps its side open is left behind
LINGER_S: Final = 2.0
ACKNOWLEDGE_CHECKS_S: Final = (0.002, 0.02, 0.2)  # when to ask whether an answer's last byte was acknowledged


class Ingress:
    """`await ingress(request)` for every request on the data port."""

    def __init__(self, services: Services) -> None:
        self._services, self._door = services, FrontDoor(services)
        self._intentions, self._standing = Intentions(services), Standing(services)
        self._large_body = asyncio.Semaphore(1)  # canonicalising takes several times a body's memory: one at a time
        self._flights_limit = descriptor_share()
        self._turns: WeakValueDictionary[tuple[Scope, Key], asyncio.Lock] = WeakValueDictionary()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self._services.registry.next_request(request.transport)
        try:
            entered = await self._door.enter(request)
            if isinstance(entered, web.StreamResponse):
                return entered
            asked = await self._read(entered)
            with self._door.admitted(asked):
                return await self._serve_or_say_damaged(request, asked)
        except BadBody as own:
            await record_preparation_failure(self._services, request, own)
            return await self._door.answer(request, own)
        except DoorAnswer as own:
            return await self._door.answer(request, own)
        except UnrecordableEventError as error:  # what cannot be recorded is not sent
            return await self._door.answer(
                request, DoorAnswer(Code.BAD_FRAMING, f"The request cannot be recorded: {error}.")
            )
        except PoisonedError:
            return await self._door.answer(request, DoorAnswer(Code.CANNOT_RECORD, close=True))

    async def _read(self, entered: Entered) -> CallRequest:
        arguments = (
            self._services.secret,
            entered.route,
            entered.endpoint_class,
            entered.method,
            entered.headers,
            entered.body,
            entered.explicit,
        )
        if entered.body.size <= CANONICAL_INLINE_LIMIT_BYTES:
            return manifest.read(*arguments)
        if entered.body.size <= CANONICAL_SHARED_LIMIT_BYTES:
            return await asyncio.to_thread(manifest.read, *arguments)
        async with self._large_body:
            return await asyncio.to_thread(manifest.read, *arguments)

    async def _serve_or_say_damaged(self, request: web.BaseRequest, asked: CallRequest) -> web.StreamResponse:
        try:
            return await self._serve(request, await self._intentions.of(asked))
        except UnreadableRecordError as error:
            text = f"The record of this request is damaged: {error}. Look with sendonce doctor."
            raise DoorAnswer(Code.CORRUPTION, text, route=asked.route) from error

    async def _serve(self, request: web.BaseRequest, asked: CallRequest) -> web.StreamResponse:
        policy = self._services.settings.policy(asked.route.name, asked.endpoint_class)
        now = Now(0, int(self._services.settings.timeouts.late_retry_s * 1000))
        for _ in range(DECISIONS_LIMIT):
            match await self._decide(request, asked, policy, now):
                case WireResponse() as forwarded:
                    return forwarded
                case Wait() as wait:
                    now = await self._wait(wait, now)
                case Attach(call):
                    if (attached := await self._attach(request, asked, call)) is not None:
                        return attached
                case Replay(call):
                    replayed = await self._replay(request, asked, call, now)
                    if isinstance(replayed, WireResponse):
                        return replayed
                    now = replayed
                case Refuse(code, call):
                    return await self._refuse(request, asked, code, call)
        raise self._overloaded(asked)

    async def _decide(
        self, request: web.BaseRequest, asked: CallRequest, policy: Policy, now: Now
    ) -> WireResponse | Wait | Attach | Replay | Refuse:
        """In the key's turn. A Forward is applied here: its append is the claim, and who loses it decides again."""
        registry = self._services.registry
        async with AsyncExitStack() as turn:
            await turn.enter_async_context(self._turn(asked))
            for _ in range(DECISIONS_LIMIT):
                now = replace(now, at_ms=clock.now_ms(), owed_first_try=registry.owes(asked.scope, asked.key))
                history, place = await self._standing.of(asked)
                about = (*history.calls, *((place.unresolved,) if place and place.unresolved else ()))
                if registry.outran(about, self._services.epoch):
                    continue
                live = registry.live(about, place.number if place else None)
                verdict = decide(asked.ask, history, live, policy, now, place)
                if place is not None and isinstance(verdict, Replay) and not await self._can_be_made(asked, verdict):
                    now = replace(now, form_differs=True)  # a refusal, which moves no pass on
                    continue
                with suppress(ConflictError):
                    if isinstance(verdict, Forward):
                        return await self._forward(request, asked, verdict, history.head, policy, turn)
                    await self._standing.advance(asked, verdict, history)
                    return verdict
        raise self._overloaded(asked)

    def _overloaded(self, asked: CallRequest) -> DoorAnswer:
        self._door.owe(asked)
        return DoorAnswer(Code.OVERLOADED, route=asked.route)

    def _turn(self, asked: CallRequest) -> asyncio.Lock:
        """Requests of one key decide and claim one after another: n samples at once must not spend their tries on each
        other. What still moves the head in between is the bookkeeping of calls in flight.
        """
        return self._turns.setdefault((asked.scope, asked.key), asyncio.Lock())

    # --- the decisions ---------------------------------------------------------------------------------------------

    async def _forward(
        self,
        request: web.BaseRequest,
        asked: CallRequest,
        plan: Forward,
        head: Head | None,
        policy: Policy,
        turn: AsyncExitStack,
    ) -> WireResponse:
        """Raises ConflictError when another append was first. The flight is alive before its admission is queued."""
        if plan.why_new == "second_sample" and not still_open(request.transport):
            # Nobody is there to read another sample. It may be a first try that its own retry has overtaken.
            raise DoorAnswer(Code.OVERLOADED, route=asked.route)
        if not self._services.reserve.look():
            self._door.owe(asked)
            raise DoorAnswer(Code.CANNOT_RECORD, route=asked.route)
        limit, registry = self._services.outbound.turns(asked.route.name).limit, self._services.registry
        waits_in_vain = limit is not None and registry.count(asked.route.name) >= limit
        if waits_in_vain or len(self._services.registry.flights) >= self._flights_limit:
            raise self._overloaded(asked)
        flight = take_off(self._services, asked, plan, head, policy)
        disposition = "resumed" if plan.resumed else "forwarded"
        claimant = registry.claim(flight.call, request.transport, disposition, asked.pass_number)
        try:
            with flight.recording.reading():
                await asyncio.shield(flight.claimed)  # a handler that is cancelled takes nothing from the flight
                await turn.aclose()
                self._count_claim(asked, plan)
                return await self._relay(request, flight, claimant)
        except NoRoomError as error:
            registry.release(claimant)
            self._door.owe(asked)
            raise DoorAnswer(Code.CANNOT_RECORD, route=asked.route) from error
        except LedgerError:
            registry.release(claimant)
            raise

    def _count_claim(self, asked: CallRequest, plan: Forward) -> None:
        if self._services.registry.owes(asked.scope, asked.key):  # whatever it became: used up first
            self._services.registry.paid(asked.scope, asked.key)
        if plan.accepts_attempt is not None and plan.authority is not None:
            self._services.activity.accepted(asked.route.name, plan.authority)
        if (code := plan.evidence.get("would_refuse")) is not None:
            self._services.activity.observed(asked.route.name, code, call=plan.evidence["would_refuse_for"])

    async def _attach(self, request: web.BaseRequest, asked: CallRequest, call: CallId) -> WireResponse | None:
        """None: it ended, or must end first because another form is asked for; decide again."""
        flight = self._services.registry.flight(call)
        if flight is None:
            return None
        claimant = self._services.registry.claim(call, request.transport, "attached", asked.pass_number)
        if flight.request.facts.stream != asked.facts.stream or asked.retells is not None:
            await flight.finished.wait()
            self._services.registry.release(claimant)
            return None
        response = await self._relay(request, flight, claimant)
        self._services.activity.attached(asked.route.name, call=call)
        return response

    async def _relay(self, request: web.BaseRequest, flight: Flight, claimant: Claimant) -> WireResponse:
        response = await relay(request, flight.recording, _marks(flight.call, claimant.disposition))
        head = flight.recording.head
        claimant.is_stream = head is not None and is_event_stream(head.headers)
        self._services.activity.answered(flight.request.route.name, claimant.disposition)
        await self._answered(claimant, response)
        return response

    async def _replay(
        self, request: web.BaseRequest, asked: CallRequest, call: CallState, now: Now
    ) -> WireResponse | Now:
        """Now: decide again, for it cannot be made in the form that is asked for, or was erased meanwhile."""
        claimant = self._services.registry.claim(call.call, request.transport, "replayed", asked.pass_number)
        dialect, _ = dialect_of(self._services.settings, call)
        marks = (*_marks(call.call, "replayed"), (b"Idempotency-Replayed", b"true"))
        reader, again = self._services.reader, replace(now, form_differs=True)
        try:
            response = await replay(request, reader, self._services.preserver, call, dialect, marks, asked)
        except UnreadableRecordError:
            if not await self._is_erased(call):
                raise
            response, again = None, now
        if response is None:
            self._services.registry.release(claimant)
            return again
        claimant.is_stream = asked.facts.stream
        self._services.activity.answered(asked.route.name, "replayed")
        self._services.activity.replayed(asked.route.name, call=call.call)
        await self._answered(claimant, response)
        return response

    async def _can_be_made(self, asked: CallRequest, verdict: Replay) -> bool:
        services, (dialect, _) = self._services, dialect_of(self._services.settings, verdict.call)
        try:
            return await can_be_made(services.reader, services.preserver, verdict.call, dialect, asked)
        except UnreadableRecordError:
            if await self._is_erased(verdict.call):
                return True  # since it was read: then the head is another one, and it is decided again
            raise

    async def _is_erased(self, call: CallState) -> bool:
        """Since it was decided on: then its body is not damaged but gone, and the next decision says so."""
        now = await self._services.reader.call(call.call)
        return now is not None and now.evidence is Evidence.ERASED

    async def _refuse(self, request: web.BaseRequest, asked: CallRequest, code: Code, call: CallState) -> WireResponse:
        """Changes nothing in ledger, receipts or provider (I4); the same facts give the same bytes on every repeat."""
        rendered = refusals.render(
            code,
            refusals.column(asked.route.upstream.family),
            call=call.call,
            attempt=attempt_id(call.call, call.attempt.number) if call.attempt else None,
            since=since_of(call),
            next_operation=call.next_operation,
            options=self._services.command_options,
        )
        self._services.activity.refused(asked.route.name, code, call=call.call, **of_pass(asked.route))
        return await answer(request, rendered, _marks(call.call, "refused"))

    async def _wait(self, wait: Wait, now: Now) -> Now:
        timeouts = self._services.settings.timeouts
        match wait.until:
            case "finished":
                if (flight := self._services.registry.flight(wait.calls[0])) is not None:
                    await flight.finished.wait()
                else:
                    await self._services.interpreter.finish(wait.calls[0])
                return now
            case "settled":
                await asyncio.sleep(timeouts.duplicate_settle_ms / 1000)
                return replace(now, settled=True)
            case "closed":
                closed = await self._services.registry.wait_for_close(wait.calls, timeouts.retry_wait_s)
                return now if closed else replace(now, waited_for_close=True)

    # --- the client ------------------------------------------------------------------------------------------------

    async def _answered(self, claimant: Claimant, response: WireResponse) -> None:
        """The end was written, or not. Whether it arrived is asked soon after: once the socket is gone nobody can tell."""
        claimant.whole, claimant.pipelined = response.whole, response.followed
        if not response.whole:
            return
        loop = asyncio.get_running_loop()
        for delay_s in ACKNOWLEDGE_CHECKS_S:
            loop.call_later(delay_s, claimant.note_acknowledged)
        if not response.keep_alive and claimant.transport is not None and claimant.transport.can_write_eof():
            # If we closed first, a client that died with the answer unread could no longer tell us by its reset.
            with suppress(OSError, RuntimeError):
                claimant.transport.write_eof()
            await self._services.registry.until_lost(claimant.transport, LINGER_S)


def _marks(call: CallId, disposition: str) -> RawHeaders:
    return ((b"Sendonce-Call", call.encode()), (b"Sendonce-Disposition", disposition.encode()))
