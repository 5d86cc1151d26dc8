"""Connections on real sockets: what the kernel knows of them, and what a head may take.

Runs under uvloop, the loop that is shipped.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import uvloop
from aiohttp import web

from proxy.connections import still_open, unacknowledged_bytes
from proxy.refusals import OwnAnswer
from proxy.server import answer
from proxy.target import HEAD_LIMIT_BYTES
from tests.harness.inbound import Client, Connect, connections

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning")
GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    async with connections() as serve:
        yield serve


@pytest.mark.parametrize("end", ["fin", "fin behind bytes"])
async def test_still_open_sees_an_end_before_the_loop_does(connect: Connect, end: str) -> None:
    """Within one turn of the loop: the peer ends, the kernel knows, the transport does not."""
    seen: list[bool] = []
    client: Client

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        seen.append(still_open(transport))
        with socket.socket(fileno=os.dup(client.writer.get_extra_info("socket").fileno())) as twin:
            if end == "fin behind bytes":
                twin.sendall(b"GET /junk HT")
            twin.shutdown(socket.SHUT_WR)
        seen.extend([still_open(transport), transport.is_closing()])
        return await answer(request, OwnAnswer(200, (), b""))

    client = await connect(handler)
    client.writer.write(GET)
    await client.rest()
    assert seen == [True, False, False]


async def test_unacknowledged_bytes_count_what_the_peer_has_not_taken(connect: Connect) -> None:
    """A peer that reads nothing leaves bytes unacknowledged; one that has read all leaves none."""
    transports: list[asyncio.Transport] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        transports.append(request.transport)
        return await answer(request, OwnAnswer(200, (), b"x" * 20_000_000 + b"END"))

    client = await connect(handler)
    client.writer.write(GET)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it reads and writes
    while not transports:
        await asyncio.sleep(0)
    await asyncio.to_thread(int)
    assert (unacknowledged_bytes(transports[0]) or 0) > 1_000_000
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    while not (await client.reader.read(1 << 20)).endswith(b"END"):
        pass
    while unacknowledged_bytes(transports[0]):
        await asyncio.sleep(0)
    assert unacknowledged_bytes(transports[0]) == 0


async def hello(request: web.BaseRequest) -> web.StreamResponse:
    return await answer(request, OwnAnswer(200, (), b"hello"))


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "after a request"])
@pytest.mark.parametrize("begun", [b"GET /x HTTP/1.1\r\nHo", b"\r\n"], ids=["half a head", "an empty line"])
async def test_head_that_does_not_come_is_refused_and_closed(before: bytes, begun: bytes) -> None:
    """Slowloris, on a new connection and on a used one: its time is over, whatever trickles in."""
    async with connections(header_timeout_s=0.05) as connect:
        client = await connect(hello)
        if before:
            assert (await client.ask(before, b"hello")).startswith(b"HTTP/1.1 200")
        client.writer.write(begun)
        refused = await client.rest()
    assert refused.startswith(b"HTTP/1.1 400")
    assert b"did not come within 0.05 s" in refused


async def test_connection_that_says_nothing_is_closed() -> None:
    """Half-open ones must not pile up."""
    async with connections(header_timeout_s=0.05) as connect:
        assert b"HTTP/1.1 400" in await (await connect(hello)).rest()


async def test_head_in_time_is_no_matter_how_long_its_answer_takes() -> None:
    """The deadline is the head's: neither the body nor the answer is measured by it."""
    async with connections(header_timeout_s=0.05) as connect:
        gone_by = asyncio.Event()
        asyncio.get_running_loop().call_later(0.15, gone_by.set)  # the deadline, three times

        async def late(request: web.BaseRequest) -> web.StreamResponse:
            await gone_by.wait()
            return await hello(request)

        assert (await (await connect(late)).ask(GET, b"hello")).startswith(b"HTTP/1.1 200")


async def test_flood_of_headers_is_refused_before_it_fills_memory(connect: Connect) -> None:
    """Each header may be within its limit; all together they are not."""
    client = await connect(hello)
    line = b"X-Filler: " + b"x" * 60_000 + b"\r\n"
    client.writer.write(b"GET /x HTTP/1.1\r\nHost: h\r\n" + line * (HEAD_LIMIT_BYTES // len(line) + 1))
    refused = await client.rest()
    assert refused.startswith(b"HTTP/1.1 400")
    assert str(HEAD_LIMIT_BYTES).encode() in refused


async def test_body_is_no_head_however_large_and_slow_it_comes() -> None:
    """Bytes of a body may arrive before its handler has begun; neither the size nor the time of a head is theirs."""
    async with connections(header_timeout_s=0.05) as connect:
        body = b"x" * (4 * HEAD_LIMIT_BYTES)

        async def reads(request: web.BaseRequest) -> web.StreamResponse:
            return await answer(request, OwnAnswer(200, (), b"%d" % len(await request.read())))

        client = await connect(reads)
        for _ in range(20):
            client.writer.write(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body))
            client.writer.write(body)
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await client.reader.readexactly(len(b"%d" % len(body))) == b"%d" % len(body)


@pytest.mark.parametrize("flood", [False, True], ids=["late", "large"])
async def test_head_behind_a_request_that_is_answered_is_bounded_too(flood: bool) -> None:
    """Pipelined: the answer before it is not spoilt by a late one, whose time counts from its end; a large one ends both."""
    async with connections(header_timeout_s=0.05) as connect:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def late(request: web.BaseRequest) -> web.StreamResponse:
            begun.set()
            await goes_on.wait()
            return await hello(request)

        client = await connect(late)
        client.writer.write(GET)
        await begun.wait()
        client.writer.write(
            b"GET /y HTTP/1.1\r\nHost: h\r\n" + (b"X-Filler: " + b"x" * 60_000 + b"\r\n") * (6 if flood else 0)
        )
        if flood:
            with suppress(
                ConnectionResetError
            ):  # the rest of the flood was not read: where it had come, its kernel says so
                assert await client.rest() == b""
            return
        asyncio.get_running_loop().call_later(0.15, goes_on.set)  # its deadline, three times
        answers = await client.rest()
    assert answers.startswith(b"HTTP/1.1 200")
    assert b"did not come within 0.05 s" in answers
