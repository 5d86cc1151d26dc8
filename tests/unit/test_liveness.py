"""What a process knows beyond the ledger: who holds which call, how an answer was delivered, which first tries are owed."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ledger.ids import Key, Scope
from ledger.spool import Spool
from ledger.stages import Effect
from proxy import liveness
from proxy.admission import Live
from proxy.inflight import Recording
from proxy.liveness import Claimant, Flight, Registry
from tests.harness.histories import STARTED, completed, one

STATE = one(*STARTED)
CALL = STATE.call


class Wire:
    """The part of a transport that the registry asks, over a real TCP connection."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.client = socket.create_connection(listener.getsockname())
        self.server, _ = listener.accept()
        listener.close()

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _name: str) -> socket.socket:
        return self.server

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def wire() -> Iterator[Any]:
    made = Wire()
    yield made
    made.close()


class Told:
    """Every delivery that the registry reports."""

    def __init__(self) -> None:
        self.deliveries: list[tuple[str, str]] = []

    def __call__(self, to: Claimant, how: str) -> None:
        assert to.call == CALL
        self.deliveries.append((how, to.disposition))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def registry(told: Told) -> Registry:
    return Registry(told, 900)


def live(registry: Registry) -> Live:
    return registry.live([STATE], None)[CALL]


async def test_history_older_than_a_flights_end_is_outran(registry: Registry, tmp_path: Path) -> None:
    """In flight by the history, gone by the registry: it ended between the two looks. Of an earlier epoch it simply died."""
    assert STATE.attempt is not None
    assert STATE.attempt.epoch is not None
    assert registry.outran([STATE], STATE.attempt.epoch)
    assert not registry.outran([STATE], STATE.attempt.epoch + 1)
    assert not registry.outran([one(*completed(Effect.HAPPENED))], STATE.attempt.epoch)
    spool, request = Spool(tmp_path, CALL), cast("Any", None)
    registry.enter(Flight(CALL, request, spool, Recording(spool), asyncio.get_running_loop().create_future()))
    assert not registry.outran([STATE], STATE.attempt.epoch)


async def test_call_is_claimed_while_its_clients_socket_is_open(registry: Registry, wire: Any) -> None:
    """Asked of the socket itself: the loop has noticed nothing here."""
    assert live(registry) == Live()
    registry.claim(CALL, wire, "forwarded")
    assert live(registry) == Live(claimed=True)
    wire.client.close()
    assert live(registry) == Live()


async def test_call_of_one_client_of_two_stays_claimed(registry: Registry, wire: Any) -> None:
    """Attached ones hold it too."""
    gone = Wire()
    registry.claim(CALL, gone, "forwarded")  # type: ignore[arg-type]
    registry.claim(CALL, wire, "attached")
    gone.close()
    assert registry.is_watched(CALL)


@pytest.mark.parametrize(("whole", "how"), [(True, "next_request"), (False, "no")])
async def test_next_request_ends_the_claim(registry: Registry, told: Told, wire: Any, whole: bool, how: str) -> None:
    """It proves delivery where the end was written; and only once."""
    registry.claim(CALL, wire, "replayed").whole = whole
    registry.next_request(wire)
    registry.next_request(wire)
    assert told.deliveries == [(how, "replayed")]
    assert live(registry) == Live(delivered=whole)


@pytest.mark.parametrize(
    ("disposition", "whole", "acknowledged", "stream", "error", "how"),
    [
        ("forwarded", True, True, False, None, "fin"),
        ("replayed", True, True, True, None, "fin"),
        ("forwarded", True, True, True, ConnectionResetError(), "acked"),
        ("resumed", True, True, True, ConnectionResetError(), "acked"),
        ("replayed", True, True, True, ConnectionResetError(), "no"),
        ("attached", True, True, True, ConnectionResetError(), "no"),
        ("forwarded", True, True, False, ConnectionResetError(), "no"),
        ("forwarded", True, False, True, None, "no"),
        ("forwarded", False, True, True, None, "no"),
    ],
)
async def test_lost_connection_says_how_it_delivered(
    registry: Registry, told: Told, wire: Any, *, disposition: str, whole: bool, acknowledged: bool, stream: bool,
    error: Any, how: str,
) -> None:  # fmt: skip
    """Semantics section 3: fin after an acknowledged end; a reset only after a live stream's; anything else is no delivery."""
    claimant = registry.claim(CALL, wire, disposition)
    claimant.whole, claimant.is_stream = whole, stream
    if not acknowledged:
        wire.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        wire.server.setblocking(False)
        fill(wire.server)
    registry.connection_lost(wire, error)
    assert told.deliveries == [(how, disposition)]


def fill(sock: socket.socket) -> None:
    """Until neither kernel takes more, so that something stays unacknowledged."""
    try:
        while sock.send(b"x" * 65536):
            pass
    except BlockingIOError:
        return


async def test_delivery_is_known_before_it_is_durable(registry: Registry, wire: Any) -> None:
    """Between the close and the commit of `call.delivered` a new request must not be taken for that client's retry."""
    registry.claim(CALL, wire, "forwarded").whole = True
    assert live(registry) == Live(claimed=True, delivered=True)
    registry.connection_lost(wire, None)
    assert live(registry) == Live(delivered=True)


async def test_remembered_deliveries_are_bounded(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger knows them all; memory only the newest."""
    monkeypatch.setattr(liveness, "DELIVERED_REMEMBERED", 2)
    registry._on_delivery = lambda *_: None
    calls = [f"{CALL}{number}" for number in range(3)]
    wires = [Wire() for _ in calls]
    for call, connection in zip(calls, wires, strict=True):
        registry.claim(call, connection, "forwarded").whole = True  # type: ignore[arg-type]
        registry.connection_lost(connection, None)  # type: ignore[arg-type]
        connection.close()
    assert [call for call, _ in registry._delivered] == calls[1:]


async def test_released_claim_is_no_delivery(registry: Registry, told: Told, wire: Any) -> None:
    """Another decision follows; its connection may claim again."""
    registry.release(registry.claim(CALL, wire, "attached"))
    assert live(registry) == Live()
    registry.next_request(wire)
    assert told.deliveries == []


async def test_wait_for_close_ends_with_the_last_claim_or_at_its_limit(registry: Registry, wire: Any) -> None:
    """Woken by the close, not by the clock; nothing to wait for returns at once."""
    await registry.wait_for_close(CALL, 30)
    registry.claim(CALL, wire, "forwarded")
    await registry.wait_for_close(CALL, 0.01)
    assert registry.is_watched(CALL)
    waiting = asyncio.create_task(registry.wait_for_close(CALL, 30))
    await asyncio.sleep(0)
    wire.client.close()
    registry.connection_lost(wire, None)
    async with asyncio.timeout(5):
        await waiting


async def test_first_tries_are_owed_one_by_one(registry: Registry) -> None:
    """Of one key in one scope; each is used up by one forward."""
    scope, key = Scope("s"), Key("k")
    assert not registry.owes(scope, key)
    registry.owe(scope, key)
    registry.owe(scope, key)
    assert not registry.owes(scope, Key("other"))
    registry.paid(scope, key)
    assert registry.owes(scope, key)
    registry.paid(scope, key)
    assert not registry.owes(scope, key)
    assert not registry._owed


async def test_first_try_is_owed_for_as_long_as_a_client_may_come_back(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for ever: some later request of that key would be taken for it."""
    scope, key = Scope("s"), Key("k")
    registry.owe(scope, key)
    assert registry.owes(scope, key)
    monkeypatch.setattr(liveness, "OWED_S", -1)
    registry.owe(scope, key)
    assert not registry.owes(scope, key)
