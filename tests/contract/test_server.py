"""The inbound side on real sockets: bodies in, answers out, what an end looks like, what the kernel knows.

Runs under uvloop, the loop that is shipped.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop
from aiohttp import web

from ledger.spool import Spool
from proxy import server as inbound
from proxy.connections import assert_c_parser
from proxy.inflight import Head, Recording, State
from proxy.refusals import OwnAnswer
from proxy.server import WireResponse, answer, read_body, relay
from tests.harness.inbound import Connect, connections
from tests.harness.request_bodies import body_of

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning")
GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
EXTRA = ((b"Sendonce-Disposition", b"forwarded"),)


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    async with connections() as serve:
        yield serve


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    spool = Spool(tmp_path, "a1")
    spool.head(b"{}")
    return Recording(spool)


@dataclass
class Relayed:
    """Relays one recording to whoever asks; keeps the responses."""

    recording: Recording
    responses: asyncio.Queue[WireResponse]

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await relay(request, self.recording, EXTRA)
        self.responses.put_nowait(response)
        return response


@pytest.fixture
def relayed(recording: Recording) -> Relayed:
    return Relayed(recording, asyncio.Queue())


def head(length: int | None, *, status: int = 200, bodyless: bool = False, reason: str = "OK") -> Head:
    headers = (
        (b"X-A", b"\xff"),
        (b"Set-Cookie", b"a"),
        (b"set-cookie", b"b"),
        (b"Content-Length", b"12345"),
        (b"TE", b"t"),
    )
    return Head(status, reason, headers, length, bodyless)


def test_c_parser_is_in_use() -> None:
    """The lax pure-Python parser must not serve."""
    assert_c_parser()


async def test_relay_holds_the_end_and_adds_nothing(connect: Connect, relayed: Relayed) -> None:
    """Raw headers in order, odd reason, no Server or Date; the last byte only after the commit; then keep-alive."""
    client = await connect(relayed)
    recording = relayed.recording
    recording.begin(head(5, reason="Odd   Reason \udce9"))
    recording.append(b"hello", 4)
    got = await client.ask(GET, b"hell")
    assert got == (
        b"HTTP/1.1 200 Odd   Reason \xe9\r\nX-A: \xff\r\nSet-Cookie: a\r\nset-cookie: b\r\n"
        b"Sendonce-Disposition: forwarded\r\nContent-Length: 5\r\n\r\nhell"
    )
    assert relayed.responses.empty()
    recording.end(State.COMMITTED)
    assert await client.reader.readexactly(1) == b"o"
    assert (await relayed.responses.get()).whole
    assert (await client.ask(GET, b"hello")).endswith(b"\r\n\r\nhello")


async def test_chunked_relay_ends_with_the_terminator_only_after_the_commit(connect: Connect, relayed: Relayed) -> None:
    """All bytes may be out; the last chunk is the end."""
    client = await connect(relayed)
    relayed.recording.begin(head(None))
    relayed.recording.append(b"data: a\n\n", 9)
    assert b"Transfer-Encoding: chunked\r\n" in await client.ask(GET, b"9\r\ndata: a\n\n\r\n")
    assert relayed.responses.empty()
    relayed.recording.end(State.COMMITTED)
    assert await client.reader.readexactly(5) == b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "it", "declared"),
    [
        (b"HEAD", head(None, bodyless=True), b"Content-Length: 12345\r\n"),
        (b"GET", head(None, status=304, bodyless=True), b"Content-Length: 12345\r\n"),
        (b"GET", head(None, status=204, bodyless=True), b""),
        (b"GET", head(0), b"Content-Length: 0\r\n"),
    ],
)
async def test_head_without_body_waits_for_the_commit(
    connect: Connect, relayed: Relayed, method: bytes, it: Head, declared: bytes
) -> None:
    """The head is the end: another connection is served meanwhile, and nothing of this one came."""
    client = await connect(relayed)
    relayed.recording.begin(it)
    client.writer.write(GET.replace(b"GET", method))
    first = asyncio.create_task(client.reader.readuntil(b"\r\n\r\n"))
    probe = await connect(lambda request: answer(request, OwnAnswer(200, (), b"")))
    await probe.ask(GET, b"\r\n\r\n")
    assert not first.done()
    relayed.recording.end(State.COMMITTED)
    assert (await first).endswith(b"Sendonce-Disposition: forwarded\r\n" + declared + b"\r\n")
    assert (await client.ask(GET.replace(b"GET", method), b"\r\n\r\n")).startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize(
    ("length", "tail", "end"), [(None, b"event: error\n\n", b"e\r\nevent: error\n\n\r\n"), (100, b"x", b"")]
)
async def test_cut_is_an_unclean_end(
    connect: Connect, relayed: Relayed, length: int | None, tail: bytes, end: bytes
) -> None:
    """I13: released bytes, the error event where the framing allows one, then a FIN within the framing."""
    client = await connect(relayed)
    relayed.recording.begin(head(length))
    relayed.recording.append(b"abcdef", 3)
    relayed.recording.end(State.CUT, tail)
    client.writer.write(GET)
    got = await client.rest()
    body = got.partition(b"\r\n\r\n")[2]
    assert body == (b"3\r\nabc\r\n" + end if length is None else b"abc")
    response = await relayed.responses.get()
    assert (response.whole, response.client_gone) == (False, False)


async def test_cut_before_the_head_closes_without_a_head(connect: Connect, relayed: Relayed) -> None:
    """No status is invented."""
    client = await connect(relayed)
    relayed.recording.end(State.CUT)
    client.writer.write(GET)
    assert await client.rest() == b""


async def test_own_answer_instead_of_a_head_reaches_every_reader(connect: Connect, relayed: Relayed) -> None:
    """Whole, and the connection lives on."""
    client = await connect(relayed)
    relayed.recording.answer_instead(OwnAnswer(502, ((b"x-should-retry", b"true"),), b'{"error":1}'))
    for _ in range(2):
        got = await client.ask(GET, b'{"error":1}')
        assert got.startswith(
            b"HTTP/1.1 502 Bad Gateway\r\nx-should-retry: true\r\nSendonce-Disposition: forwarded\r\n"
        )
        assert (await relayed.responses.get()).whole


async def test_client_that_goes_ends_only_its_own_relay(connect: Connect, relayed: Relayed) -> None:
    """One client resets; the other gets everything, and the first relay says that its client went."""
    gone, stays = await connect(relayed), await connect(relayed)
    relayed.recording.begin(head(None))
    relayed.recording.append(b"one", 3)
    await gone.ask(GET, b"one")
    await stays.ask(GET, b"one")
    gone.writer.transport.abort()
    for _ in range(200):
        relayed.recording.append(b"x" * 65_536, relayed.recording.size + 65_536)
    relayed.recording.end(State.COMMITTED)
    assert len(await stays.reader.readuntil(b"\r\n0\r\n\r\n")) > 200 * 65_536
    ends = {(response.whole, response.client_gone) for response in [await relayed.responses.get() for _ in range(2)]}
    assert ends == {(False, True), (True, False)}


@dataclass
class Reads:
    """Reads a body and answers with it, or with how it failed."""

    limit_bytes: int = 1_000_000
    idle_timeout_s: float = 5.0

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            body = body_of(b"")
            await read_body(request, body, limit_bytes=self.limit_bytes, idle_timeout_s=self.idle_timeout_s)
        except inbound.BodyTooLarge:
            return await answer(request, OwnAnswer(413, (), b"too large"), close=True)
        except inbound.BodyBroke as broke:
            return await answer(request, OwnAnswer(400, (), broke.sentence.encode()), close=True)
        return await answer(request, OwnAnswer(200, (), body.whole()))


def post(length: int, *headers: bytes) -> bytes:
    return b"\r\n".join([b"POST /x HTTP/1.1", b"Host: h", b"Content-Length: %d" % length, *headers, b"", b""])


async def test_body_is_read_raw_whatever_its_framing(connect: Connect) -> None:
    """Nothing is decoded, chunks are joined, and a second request follows on the connection."""
    client = await connect(Reads())
    assert (await client.ask(post(5, b"Content-Encoding: gzip") + b"\x1f\x8b\x00no", b"\x8b\x00no")).startswith(
        b"HTTP/1.1 200"
    )
    chunked = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert (await client.ask(chunked, b"abcde")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(10**12),
        b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n"
        + b"x" * 0xFFFFF
        + b"\r\n0\r\n\r\n",
    ],
    ids=["declared", "chunked"],
)
async def test_body_above_the_limit_is_refused_and_the_connection_closed(
    connect: Connect, request_bytes: bytes
) -> None:
    """By its declared length before a byte is read, else as soon as it is too long."""
    client = await connect(Reads(limit_bytes=1_000))
    client.writer.write(request_bytes)
    got = await client.reader.readuntil(b"too large")
    assert b"Connection: close\r\n" in got


@pytest.mark.parametrize(
    ("request_bytes", "sentence"),
    [
        (post(10) + b"half", b"No byte of the request body came for 0.1 s."),
        (b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", b"No byte of the request body"),
    ],
)
async def test_stalled_body_is_refused_with_a_sentence(connect: Connect, request_bytes: bytes, sentence: bytes) -> None:
    """The deadline stands between two pieces, and the client is told."""
    client = await connect(Reads(idle_timeout_s=0.1))
    got = await client.ask(request_bytes, sentence)
    assert got.startswith(b"HTTP/1.1 400")


async def test_expect_is_answered_only_when_reading_starts(connect: Connect) -> None:
    """A refused head gets no 100; a read one gets it before the body comes."""
    refuses = await connect(lambda request: answer(request, OwnAnswer(400, (), b"no"), close=True))
    assert (await refuses.ask(post(5, b"Expect: 100-continue"), b"no")).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    reads = await connect(Reads())
    assert await reads.ask(post(5, b"Expect: 100-continue"), b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await reads.ask(b"hello", b"hello")).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_head_request_gets_no_body_of_an_own_answer(connect: Connect) -> None:
    """The length is told, the body is not sent."""
    client = await connect(lambda request: answer(request, OwnAnswer(400, (), b"body")))
    got = await client.ask(GET.replace(b"GET", b"HEAD"), b"\r\n\r\n")
    assert b"Content-Length: 4\r\n" in got
    assert (await client.ask(GET, b"body")).startswith(b"HTTP/1.1 400")
