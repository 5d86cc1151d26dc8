"""Every upstream's own session, with its own connections, authorities and egress proxy; and the calls that wait for their turn."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from ssl import create_default_context
from typing import Final

from proxy.settings import Timeouts
from proxy.upstream import Upstream
from proxy.upstream_settings import UpstreamSettings

QUEUE_DEFAULT: Final = 100  # calls; what waits longer than a client does is better refused while it is proven not sent


class TurnsClosedError(Exception):
    """The process stops: who still waits was not sent."""


class Turns:
    """How many calls are sent at once. Who waits is recorded as `manifest_recorded`: nothing was sent, and a restart may resume it."""

    def __init__(self, concurrency: int | None, queue: int) -> None:
        """`limit`: how many calls may be alive for this upstream; None: any number."""
        self.limit = concurrency + queue if concurrency else None
        self._free = concurrency or 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[bool]:
        """First come, first served; true where it had to wait. Raises TurnsClosedError."""
        if self.limit is None:
            yield False
            return
        waits = self._free == 0
        if waits:
            await self._wait()
        else:
            self._free -= 1
        try:
            yield waits
        finally:
            self._pass_on()

    def close(self) -> None:
        for place in self._waiting:
            if not place.done():
                place.set_exception(TurnsClosedError())

    async def _wait(self) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was given the turn in the same moment
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1


class Outbound:
    """Create it inside the running loop, after any fork. Sessions are made when they are first asked for."""

    def __init__(self, upstreams: Mapping[str, UpstreamSettings], timeouts: Timeouts) -> None:
        self._settings, self._timeouts = upstreams, timeouts
        self._sessions: dict[str, Upstream] = {}
        self._turns: dict[str, Turns] = {}

    def session(self, name: str) -> Upstream:
        if name not in self._sessions:
            self._sessions[name] = _session(self._settings[name], self._timeouts)
        return self._sessions[name]

    def turns(self, name: str) -> Turns:
        if name not in self._turns:
            settings = self._settings[name]
            self._turns[name] = Turns(settings.concurrency, settings.queue or QUEUE_DEFAULT)
        return self._turns[name]

    def stop_waiting(self) -> None:
        """Before a stop: whoever waits for a turn is told that nothing was sent."""
        for turns in self._turns.values():
            turns.close()

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()


def _session(settings: UpstreamSettings, timeouts: Timeouts) -> Upstream:
    return Upstream(
        connect_timeout_s=settings.connect_s or timeouts.upstream_connect_s,
        idle_timeout_s=settings.idle_s or timeouts.upstream_idle_s,
        keepalive_s=settings.keepalive_s or timeouts.upstream_keepalive_s,
        fresh_connections=settings.fresh_connections,
        ssl=create_default_context(cafile=settings.ca_file) if settings.ca_file else True,
        egress_proxy=settings.egress_proxy.get_secret_value() if settings.egress_proxy else None,
    )
