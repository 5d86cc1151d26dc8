"""One call, in order. The line order of `forward` is the durability argument:

    claim durable -> connection -> attempt.started durable, `sent` receipt durable -> bytes leave
    -> bytes spooled as they come -> observation durable -> the end is released

It runs as a task of its own and goes on when its client goes.
"""

import asyncio
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Final

import orjson

from ledger.bodies import INLINE_LIMIT_BYTES, STAGE_BYTES
from ledger.calls import CallState
from ledger.errors import ClaimLostError, LedgerError, PassClosedError
from ledger.events import (
    AttemptAcknowledged,
    AttemptObserved,
    AttemptStarted,
    CallAbandoned,
    ObservationKind,
    Pairs,
)
from ledger.failpoints import passed
from ledger.ids import Head, attempt_id
from ledger.operations import Append, Entry, Expect, Receipt
from ledger.reserve import Reserve
from ledger.writer import Writer
from proxy import endings, manifest, refusals
from proxy.codes import Code
from proxy.decisions import Forward, Policy
from proxy.dialects.base import header_ids, is_event_stream
from proxy.headers import RESPONSE_STORED, find, stored
from proxy.inflight import Head as WireHead
from proxy.inflight import State
from proxy.interpreter import Interpreter
from proxy.liveness import Flight
from proxy.manifest import as_pairs, injected, reason_recorded
from proxy.outbound import Outbound, TurnsClosedError
from proxy.preserve import Preserver, hold_of
from proxy.refusals import OwnAnswer
from proxy.sse import Hold, LastByteHold
from proxy.upstream import Answer, AttemptFailed
from proxy.views import instant

ATTEMPTS_LIMIT: Final = 2  # in one call, after a proven `not_sent`: a dead pooled connection deserves a second one
REDIRECTS: Final = frozenset({300, 301, 302, 303, 305, 306, 307, 308})


class DiskFull(Exception):  # noqa: N818 - what an attempt is recorded to have ended by
    """A large answer is cut off before it takes the room in which the others are recorded."""


@dataclass(slots=True)
class Attempt:
    """One numbered try, while it runs. `hold` says how much of the answer may leave before the commit."""

    number: int
    started: bool = False
    answer: Answer | None = None
    hold: Hold = field(default_factory=LastByteHold)
    started_at_ms: int | None = None
    state: CallState | None = None  # after its observation


class Forwarder:
    """Stateless; the flight carries everything of one call."""

    def __init__(
        self,
        epoch: int,
        writer: Writer,
        outbound: Outbound,
        preserver: Preserver,
        interpreter: Interpreter,
        reserve: Reserve,
        command_options: str,
    ) -> None:
        self._epoch, self._writer, self._outbound = epoch, writer, outbound
        self._preserver, self._interpreter, self._reserve = preserver, interpreter, reserve
        self._command_options = command_options

    async def forward(self, flight: Flight, plan: Forward, head: Head | None, policy: Policy) -> None:
        """Never raises what the provider or the network did: that is recorded. Raises PoisonedError and what is fatal."""
        try:
            await self._claim(flight, plan, head)  # BARRIER 0
            flight.claimed.set_result(None)
            passed("after-manifest")
            for number in range(1, ATTEMPTS_LIMIT + 1):
                attempt = Attempt(number)
                try:
                    async with self._outbound.turns(flight.request.route.name).turn() as waited:
                        await self._attempt(flight, attempt, policy, waited=waited)
                    break
                except AttemptFailed as failure:
                    if not await self._observe_failure(flight, attempt, failure, policy):
                        break
            if attempt.state is not None:
                await self._interpreter.conclude(attempt.state, self._preserved(flight))
        except TurnsClosedError:
            flight.recording.answer_instead(self._own_answer(flight, Attempt(1), Code.DRAINING))
        except (
            ClaimLostError
        ) as lost:  # settled, superseded or of a closed pass between claim and start: nothing was sent
            code = Code.STALE_PASS if isinstance(lost, PassClosedError) else Code.IN_PROGRESS
            flight.recording.answer_instead(self._own_answer(flight, Attempt(1), code))
        except LedgerError as error:
            if flight.claimed.done():
                raise
            flight.claimed.set_exception(error)  # the claim was not made: whoever waits for it decides again
        finally:
            if flight.recording.state is State.OPEN:  # interrupted: the end is never released
                flight.recording.end(State.CUT)

    async def _attempt(self, flight: Flight, attempt: Attempt, policy: Policy, *, waited: bool) -> None:
        if waited and not flight.is_watched:
            raise AttemptFailed("not_sent", "its client left while it waited for its turn", ConnectionError())

        async def start() -> None:
            passed("after-connect")
            await self._start(flight, attempt)  # BARRIER 1

        request = flight.request
        headers = (*request.headers, *injected(request, flight.call))
        try:
            attempt.answer = answer = await self._outbound.session(request.route.name).send(
                request.method, request.url, headers, request.body, start
            )
            await self._receive(flight, attempt, answer)
        except asyncio.CancelledError as cancelled:
            if not flight.abandoned:
                raise
            raise AttemptFailed("lost", "its client was gone for too long", cancelled) from cancelled
        finally:
            flight.interruptible = False
        evidence = await self._preserver.evidence(request, answer, flight.spool, attempt.hold)
        ended = endings.ended_by(answer.framing, evidence, framing_ended=True)
        is_whole = endings.is_whole(ended)
        passed("before-observed")
        await self._observe(flight, attempt, "response" if is_whole else "partial", ended)  # BARRIER 2
        passed("after-observed")
        passed("before-release")
        self._release(flight, attempt, policy, is_whole=is_whole)
        passed("after-release")

    async def _receive(self, flight: Flight, attempt: Attempt, answer: Answer) -> None:
        try:
            self._acknowledge(flight, attempt, answer)
            passed("after-head")
            async with aclosing(answer.body()) as pieces:
                async for data in pieces:
                    self._check_room(flight)
                    releases = attempt.hold.feed(data)
                    flight.recording.append(data, releases)
                    del data  # or it would stay while the next one is waited for
                    if attempt.hold.sync_to > releases:
                        await asyncio.to_thread(flight.spool.sync)
                        flight.recording.release(attempt.hold.sync_to)
                    passed("mid-stream")
        finally:
            answer.close()

    def _check_room(self, flight: Flight) -> None:
        """What is in flight has the last room on the disk; of that the small answers have the last."""
        if self._reserve.look() or flight.spool.size < STAGE_BYTES or self._reserve.has_room_for(0):
            return
        raise AttemptFailed("lost", "the disk is full", DiskFull())

    # --- the durable steps -----------------------------------------------------------------------------------------

    async def _claim(self, flight: Flight, plan: Forward, head: Head | None) -> None:
        """The claim and the manifest with the exact bytes, on the head the decision was taken on. Raises ConflictError."""
        request, call = flight.request, flight.call
        async with AsyncExitStack() as staging:
            body, packed = await self._preserver.preserved(request.body, request.endpoint_class, staging)
            entries = [
                Entry(call, None, manifest.requested(request, plan, self._epoch)),
                Entry(call, None, manifest.manifest(request, injected(request, call), body)),
            ]
            if head is not None and (resumed := manifest.resumed(request, plan, head)) is not None:
                entries.append(Entry(call, None, resumed))
            if (served := manifest.served(request, "resumed" if plan.resumed else "forwarded")) is not None:
                entries.append(Entry(call, None, served))
            await self._writer.append(Append(tuple(entries), (Expect(request.scope, request.key, head),), packed))

    async def _start(self, flight: Flight, attempt: Attempt) -> None:
        """Conditional: raises ClaimLostError if the call was settled, superseded or abandoned meanwhile. Nothing was sent then."""
        receipt = Receipt("sent", flight.call, attempt.number, flight.request.body.digest)
        entry = Entry(flight.call, attempt.number, AttemptStarted(self._epoch))
        appended = await self._writer.append(Append((entry,), receipt=receipt))
        attempt.started = flight.interruptible = True
        attempt.started_at_ms = appended.recorded[-1].at_ms
        passed("after-attempt-started")

    async def _observe(
        self, flight: Flight, attempt: Attempt, kind: ObservationKind, ended_by: str, proof: str | None = None
    ) -> None:
        """What came back, with every byte of it; durable when it returns."""
        answer, endpoint_class = attempt.answer, flight.request.endpoint_class
        async with AsyncExitStack() as staging:
            kept = await self._preserver.preserved_if_room(flight.spool, endpoint_class, staging) if answer else None
            body, packed = kept or (None, ())
            observed = AttemptObserved(
                observation=kind,
                ended_by=ended_by,
                source="live",
                proof=proof,
                status=answer.status if answer else None,
                reason_phrase=reason_recorded(answer.reason) if answer else "",
                headers=_recorded(answer) if answer else (),
                framing=answer.framing if answer else None,
                body=body,
            )
            entry = Entry(flight.call, attempt.number, observed)
            receipt = Receipt("received", flight.call, attempt.number, body.digest if body else None)
            appended = await self._writer.append(Append((entry,), bodies=packed, receipt=receipt))
        attempt.state = appended.state
        if kind != "not_sent":  # another attempt may still fill it
            flight.recording.discard_spool()

    # --- the way back ----------------------------------------------------------------------------------------------

    def _acknowledge(self, flight: Flight, attempt: Attempt, answer: Answer) -> None:
        """The head is in: written at once, not waited for. A redirect of an effectful request is not passed on."""
        headers = _recorded(answer)
        entry = Entry(
            flight.call, attempt.number, AttemptAcknowledged(answer.status, headers, header_ids(answer.headers))
        )
        self._writer.post(Append((entry,)))
        request = flight.request
        # Some upstreams label a stream as another thing.
        asked_for = request.facts.stream and 200 <= answer.status < 300
        if asked_for or is_event_stream(answer.headers):
            attempt.hold = hold_of(request.dialect, answer.headers, acts_on_items=request.client.acts_on_items)
        about = {
            "status": answer.status,
            "reason_phrase": reason_recorded(answer.reason),
            "headers": headers,
            "framing": answer.framing,
        }
        flight.spool.head(orjson.dumps(about))
        if answer.status not in REDIRECTS:
            bodyless = answer.framing == "none"
            flight.recording.begin(WireHead(answer.status, answer.reason, answer.headers, answer.length, bodyless))

    def _preserved(self, flight: Flight) -> bytes | None:
        """A small body is still at hand; a large one is read back in pieces."""
        spool = flight.spool
        return spool.read_at(0, spool.size) if spool.size <= INLINE_LIMIT_BYTES else None

    def _release(self, flight: Flight, attempt: Attempt, policy: Policy, *, is_whole: bool) -> None:
        recording, answer = flight.recording, attempt.answer
        assert answer is not None
        if recording.head is None:
            recording.answer_instead(self._own_answer(flight, attempt, Code.REDIRECT_REFUSED))
        elif is_whole:
            recording.end(State.COMMITTED)
        elif recording.head.is_end:
            code = refusals.cut_answer(accepts=policy.observes or policy.after_cut_stream)
            recording.answer_instead(self._own_answer(flight, attempt, code))
        else:
            recording.end(State.CUT, _error_event(flight, attempt, policy))

    async def _observe_failure(self, flight: Flight, attempt: Attempt, failure: AttemptFailed, policy: Policy) -> bool:
        """Records what is proven about the failed try, and tells the client. True: proven not sent, and one more try is due."""
        if not attempt.started:
            if attempt.number == 1:  # after a proven `not_sent` the record says it already
                reason = f"{failure.proof} ({type(failure.error).__name__})"  # its text would hold the whole URL (I8)
                await self._writer.append(Append((Entry(flight.call, None, CallAbandoned(reason)),)))
            flight.recording.answer_instead(self._own_answer(flight, attempt, Code.UPSTREAM_UNREACHABLE))
            return False
        if failure.kind == "not_sent":
            await self._observe(flight, attempt, "not_sent", type(failure.error).__name__, failure.proof)
            if attempt.number < ATTEMPTS_LIMIT:
                return True
            flight.recording.answer_instead(self._own_answer(flight, attempt, Code.UPSTREAM_UNREACHABLE))
            return False
        ended_by = "client_abort" if flight.abandoned else type(failure.error).__name__
        await self._observe(flight, attempt, "partial" if attempt.answer else "lost", ended_by)
        if flight.recording.head is not None:
            flight.recording.end(State.CUT, _error_event(flight, attempt, policy))
        else:
            accepts = policy.observes or (policy.after_cut_stream if attempt.answer else policy.on_unknown)
            code = refusals.lost_answer(accepts=accepts)
            flight.recording.answer_instead(self._own_answer(flight, attempt, code))
        return False

    def _own_answer(self, flight: Flight, attempt: Attempt, code: Code) -> OwnAnswer:
        return refusals.render(
            code,
            refusals.column(flight.request.route.upstream.family),
            call=flight.call,
            attempt=attempt_id(flight.call, attempt.number) if attempt.started else None,
            since=instant(attempt.started_at_ms),
            next_operation=attempt.state.next_operation if attempt.state else None,
            options=self._command_options,
        )


def _recorded(answer: Answer) -> Pairs:
    return as_pairs(stored(answer.headers, RESPONSE_STORED))


def _error_event(flight: Flight, attempt: Attempt, policy: Policy) -> bytes:
    """In a content-encoded or length-framed answer nothing can be inserted: there only the unclean end tells."""
    answer = attempt.answer
    if answer is None or not is_event_stream(answer.headers) or find(answer.headers, b"content-encoding") is not None:
        return b""
    attempt_name = attempt_id(flight.call, attempt.number)
    code = refusals.cut_answer(accepts=policy.observes or policy.after_cut_stream)
    sentence = refusals.sentence(code, call=flight.call, attempt=attempt_name, since=instant(attempt.started_at_ms))
    return flight.request.dialect.error_event(code, sentence)
