"""What this process knows beyond the ledger: the calls alive in it, and which client sockets claim which call.

A call is alive from before its admission is queued until its last event is durable and its upstream socket is closed.
An occurrence has at most one claimant: a client whose socket is open and whose answer is not known to be delivered.
Nothing here outlives the process, and nothing else counts: no process id, no clock, no heartbeat.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from ledger.calls import CallState
from ledger.events import DeliveredHow
from ledger.ids import CallId, Key, Scope
from ledger.ladder import IN_FLIGHT
from ledger.spool import Spool
from proxy.connections import still_open, unacknowledged_bytes
from proxy.decisions import Live
from proxy.inflight import Recording
from proxy.manifest import CallRequest

OWED_LIMIT: Final = 65_536  # keys; a storm of refused first tries must not grow the process
OWED_S: Final = 120  # no client comes back later; a debt that stands for ever would let some later retry be sent anew
GIVE_UP_AGAIN_S: Final = 1  # a durable step takes milliseconds
LED: Final = frozenset({"forwarded", "resumed"})  # dispositions of who got an answer while it came
DELIVERED_REMEMBERED: Final = 4096  # calls; their `call.delivered` may be on its way to the disk for milliseconds


@dataclass(slots=True, eq=False)
class Flight:
    """One call alive in this process, from its claim to its last event."""

    call: CallId
    request: CallRequest
    spool: Spool
    recording: Recording
    claimed: "asyncio.Future[None]"
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None
    interruptible: bool = False  # only between the first byte and the last: elsewhere an append may be in the air
    abandoned: bool = False
    abandon: asyncio.TimerHandle | None = None  # set while no client is there

    @property
    def is_watched(self) -> bool:
        return self.abandon is None

    def give_up(self) -> None:
        """The client is gone for too long: the attempt ends as `client_abort`."""
        if self.interruptible and self.task is not None:
            self.abandoned = True
            self.task.cancel()
        elif not self.finished.is_set():
            self.abandon = asyncio.get_running_loop().call_later(GIVE_UP_AGAIN_S, self.give_up)


@dataclass(slots=True)
class Owed:
    """First tries of one key that were refused, proven not sent; `until_s` by the loop's clock."""

    count: int = 0
    until_s: float = 0


@dataclass(slots=True, eq=False)
class Claimant:
    """One client's hold on one call: leading, attached or replayed."""

    call: CallId
    transport: asyncio.Transport | None
    disposition: str
    pass_number: int | None = None  # which start of its run asked
    whole: bool = False  # the end was written
    is_stream: bool = False
    acknowledged: bool = False  # the peer's kernel has every byte of it
    pipelined: bool = False  # the next request was there before this answer ended: it proves nothing about it

    @property
    def delivered(self) -> bool:
        """The end was written and acknowledged. Asked of the kernel, so it is right before the loop has noticed a close."""
        self.note_acknowledged()
        return self.acknowledged

    def note_acknowledged(self) -> None:
        if self.whole and not self.acknowledged:
            self.acknowledged = unacknowledged_bytes(self.transport) == 0

    @property
    def holds(self) -> bool:
        return still_open(self.transport)

    def how(self, error: BaseException | None) -> DeliveredHow:
        """How a connection that is now closed delivered the answer (semantics section 3, `call.delivered`)."""
        if not self.delivered:
            return "no"
        if error is None:
            return "fin"
        # A live stream's end comes last, and who resets behind it has read it. A recorded answer comes in one burst, which the
        # kernel acknowledges while its reader may have seen nothing.
        return "acked" if self.is_stream and self.disposition in LED else "no"


class Registry:
    """Single-threaded: all calls come from the event loop."""

    def __init__(self, on_delivery: Callable[[Claimant, DeliveredHow], None], abandon_after_s: float) -> None:
        """`abandon_after_s`: how long a call whose last client has gone is still worked for."""
        self._on_delivery, self._abandon_after_s = on_delivery, abandon_after_s
        self._flights: dict[CallId, Flight] = {}
        self._claimants: dict[CallId, list[Claimant]] = {}
        self._of_connection: dict[asyncio.Transport, Claimant] = {}
        self._changed = asyncio.Event()  # replaced at each change: whoever waited wakes and looks again
        self._owed: OrderedDict[tuple[Scope, Key], Owed] = OrderedDict()
        self._delivered: OrderedDict[tuple[CallId, int | None], None] = OrderedDict()

    # --- flights ---------------------------------------------------------------------------------------------------

    def enter(self, flight: Flight) -> None:
        self._flights[flight.call] = flight

    def leave(self, flight: Flight) -> None:
        """In one turn of the loop with the recording's close: nobody finds a flight whose spool is gone."""
        del self._flights[flight.call]
        if flight.abandon:
            flight.abandon.cancel()
        flight.recording.close()
        flight.finished.set()
        self._wake()

    def flight(self, call: CallId) -> Flight | None:
        return self._flights.get(call)

    @property
    def flights(self) -> tuple[Flight, ...]:
        return tuple(self._flights.values())

    def count(self, upstream: str) -> int:
        """The calls alive for one upstream, sent or waiting."""
        return sum(
            flight.request.route.name == upstream and (flight.is_watched or flight.interruptible)
            for flight in self._flights.values()  # who left while waiting for a turn is never sent
        )

    def live(self, states: Iterable[CallState], pass_number: int | None) -> dict[CallId, Live]:
        """Within a run only what clients of this pass hold and got counts."""
        found = {}
        for state in states:
            claimants = [each for each in self._claimants.get(state.call, []) if each.pass_number == pass_number]
            found[state.call] = Live(
                alive=state.call in self._flights,
                claimed=any(claimant.holds for claimant in claimants),
                delivered=(state.call, pass_number) in self._delivered
                or any(claimant.delivered for claimant in claimants),
            )
        return found

    def outran(self, states: Iterable[CallState], epoch: int) -> bool:
        """Whether a flight of this epoch ended after `states` were read: they say in flight, the registry says no more.

        Its observation is durable by then, so reading again sees it. Judged by the two together it would look dead and unknown.
        """
        return any(
            state.evidence in IN_FLIGHT
            and state.attempt
            and state.attempt.epoch == epoch
            and state.call not in self._flights
            for state in states
        )

    # --- claimants -------------------------------------------------------------------------------------------------

    def claim(
        self, call: CallId, transport: asyncio.Transport | None, disposition: str, pass_number: int | None = None
    ) -> Claimant:
        claimant = Claimant(call, transport, disposition, pass_number)
        if transport is None:  # the client has gone already: it claims nothing
            self._abandon_if_unwatched(call)
            return claimant
        self._claimants.setdefault(call, []).append(claimant)
        self._of_connection[transport] = claimant
        if (flight := self._flights.get(call)) and flight.abandon:
            flight.abandon.cancel()
            flight.abandon = None
        return claimant

    def next_request(self, transport: asyncio.Transport | None) -> None:
        """A request on a connection proves that the answer before it was delivered, and ends that claim."""
        claimant = self._of_connection.pop(transport, None) if transport else None
        if claimant is not None:
            arrived = claimant.whole and not claimant.pipelined and unacknowledged_bytes(transport) in (0, None)
            self._end(claimant, "next_request" if arrived else "no")

    def connection_lost(self, transport: asyncio.Transport, error: BaseException | None) -> None:
        claimant = self._of_connection.pop(transport, None)
        if claimant is not None:
            self._end(claimant, claimant.how(error))
            claimant.transport = None  # its descriptor's number will be another connection's

    async def until_lost(self, transport: asyncio.Transport, limit_s: float) -> None:
        """Until the connection is lost and how is recorded, or for `limit_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while transport in self._of_connection:
                    await self._changed.wait()

    def release(self, claimant: Claimant) -> None:
        """It never came to an answer: another decision follows."""
        if claimant.transport is not None and self._of_connection.get(claimant.transport) is claimant:
            del self._of_connection[claimant.transport]
            self._forget(claimant)

    async def wait_for_close(self, calls: tuple[CallId, ...], limit_s: float) -> bool:
        """Until one of these calls is claimed by no socket or alive no more; false when `limit_s` passed first."""
        alive = [call for call in calls if call in self._flights]
        try:
            async with asyncio.timeout(limit_s):
                while all(map(self.is_watched, calls)) and all(call in self._flights for call in alive):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _end(self, claimant: Claimant, how: DeliveredHow) -> None:
        self._forget(claimant)
        if how != "no":
            self._delivered[claimant.call, claimant.pass_number] = None
            if len(self._delivered) > DELIVERED_REMEMBERED:
                self._delivered.popitem(last=False)
        self._on_delivery(claimant, how)

    def _forget(self, claimant: Claimant) -> None:
        claimants = self._claimants[claimant.call]
        claimants.remove(claimant)
        if not claimants:
            del self._claimants[claimant.call]
        self._abandon_if_unwatched(claimant.call)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def is_watched(self, call: CallId) -> bool:
        return any(claimant.holds for claimant in self._claimants.get(call, []))

    def _abandon_if_unwatched(self, call: CallId) -> None:
        """Nobody waits any more: the upstream is read to its end, within a limit (semantics section 4, "client gone")."""
        flight = self._flights.get(call)
        if flight is not None and flight.abandon is None and not self.is_watched(call):
            flight.abandon = asyncio.get_running_loop().call_later(self._abandon_after_s, flight.give_up)

    # --- first tries owed ------------------------------------------------------------------------------------------

    def owe(self, scope: Scope, key: Key) -> None:
        """A 503 "proven not sent" was given before anything was recorded: its retry is a first try."""
        if len(self._owed) < OWED_LIMIT:  # one that is not remembered is judged like any other: never unsafe
            owed = self._owed.setdefault((scope, key), Owed())
            owed.count, owed.until_s = owed.count + 1, asyncio.get_running_loop().time() + OWED_S

    def owes(self, scope: Scope, key: Key) -> bool:
        owed = self._owed.get((scope, key))
        if owed is not None and owed.until_s < asyncio.get_running_loop().time():
            del self._owed[scope, key]
            return False
        return owed is not None

    def paid(self, scope: Scope, key: Key) -> None:
        owed = self._owed[scope, key]
        owed.count -= 1
        if owed.count == 0:
            del self._owed[scope, key]
