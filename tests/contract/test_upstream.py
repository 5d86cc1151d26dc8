"""The outbound side against a provider that misbehaves: what is not_sent, what is lost, and that nothing is sent twice.

Real sockets, in one loop. Runs under uvloop and under asyncio's own loop.
"""

import asyncio
import gzip
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from proxy.headers import RawHeaders
from proxy.upstream import Answer, AttemptFailed, Upstream

OK = b"HTTP/1.1 200 OK\r\n"
SMALL = OK + b"Content-Length: 2\r\n\r\nok"
JSON = ((b"Content-Type", b"application/json"),)
BIG = b'{"x":"' + b"z" * 12_000_000 + b'"}'

# What the provider answers by the last segment of the path: bytes, and how the connection goes on after them.
ANSWERS: dict[str, tuple[bytes, str]] = {
    "length": (OK + b"Content-Length: 5\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nX-Raw: \xe9\xff\r\n\r\nhello", "stay"),
    "chunked": (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nX-Trailer: t\r\n\r\n", "stay"),
    "close": (OK + b"\r\nhello", "fin"),
    "nocontent": (b"HTTP/1.1 204 No Content\r\n\r\n", "stay"),
    "notmodified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\n\r\n", "stay"),
    "head": (OK + b"Content-Length: 12345\r\n\r\n", "stay"),
    "early103": (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + SMALL, "stay"),
    "reason": (b"HTTP/1.1 299 Odd   Reason \xe9\r\nContent-Length: 0\r\n\r\n", "stay"),
    "switch101": (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw", "stay"),
    "gzip": (OK + b"Content-Encoding: gzip\r\nContent-Length: 29\r\n\r\n" + gzip.compress(b"x" * 1000, mtime=0), "stay"),
    "redirect": (b"HTTP/1.1 307 Go\r\nLocation: /length\r\nContent-Length: 0\r\n\r\n", "stay"),
    "resetbefore": (b"", "rst"),
    "finbefore": (b"", "fin"),
    "finmidhead": (OK + b"X-A: 1\r\nX-B", "fin"),
    "resetmidhead": (OK + b"X-A: 1\r\nX-B", "rst"),
    "twolengths": (OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok", "stay"),
    "finmidbody": (OK + b"Content-Length: 100\r\n\r\n" + b"b" * 40, "fin"),
    "resetmidbody": (OK + b"Content-Length: 100\r\n\r\n" + b"b" * 40, "rst"),
    "badchunk": (OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbbbb\r\nzz\r\n", "stay"),
    "halfchunk": (OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbbbb\r\n", "fin"),
    "closeafter": (SMALL, "fin"),
    "mute": (b"", "stay"),
}


def reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass
class Provider:
    """Records every request whose head came whole; `writers` are its open connections, newest last."""

    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    ended: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    base: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        end = "stay"
        try:
            while end == "stay":
                end = await self.exchange(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.ended.put_nowait("by the client")
        finally:
            writer.close()

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0)
        name = head.split(b" ")[1].decode().rpartition("/")[2].partition("?")[0]
        if name in {"resetinbody", "stallinbody"}:
            await reader.readexactly(1_000)
            if name == "stallinbody":
                writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that reads and writes
                await writer.wait_closed()
            reset(writer)
            return "rst"
        self.bodies.append(await reader.readexactly(length))
        answer, end = ANSWERS.get(name, (SMALL, "stay"))
        writer.write(answer)
        await writer.drain()
        if end == "rst":
            reset(writer)
        return end


@pytest.fixture(params=[uvloop.EventLoopPolicy(), asyncio.DefaultEventLoopPolicy()], ids=["uvloop", "asyncio"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    policy: asyncio.AbstractEventLoopPolicy = request.param
    return policy


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    it = Provider()
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0, limit=2**20)
    it.base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/"
    yield it
    server.close()
    for writer in it.writers:
        writer.transport.abort()


MakeUpstream = Callable[..., Upstream]


@pytest.fixture
async def make_upstream() -> AsyncIterator[MakeUpstream]:
    made: list[Upstream] = []

    def make(**options: Any) -> Upstream:
        made.append(Upstream(**{"connect_timeout_s": 5.0, "idle_timeout_s": 5.0, "keepalive_s": 15.0, **options}))
        return made[-1]

    yield make
    for upstream in made:
        await upstream.close()


@pytest.fixture
async def upstream(make_upstream: MakeUpstream) -> Upstream:
    return make_upstream()


async def passes() -> None:
    """A barrier that is passed at once."""


@dataclass
class Outcome:
    kind: str
    proof: str = ""
    body: bytes = b""
    answer: Answer | None = None


async def attempt(
    upstream: Upstream,
    url: str,
    body: bytes = b"{}",
    *,
    method: str = "POST",
    headers: RawHeaders = JSON,
    barrier: Callable[[], Awaitable[None]] = passes,
) -> Outcome:
    got, answer = bytearray(), None
    try:
        answer = await upstream.send(method, url, headers, body, barrier)
        async for data in answer.body():
            got += data
    except AttemptFailed as failure:
        return Outcome(failure.kind, failure.proof, bytes(got), answer)
    finally:
        if answer is not None:
            answer.close()
    return Outcome("response", "", bytes(got), answer)


async def test_barrier_runs_on_a_ready_connection_before_any_byte(provider: Provider, upstream: Upstream) -> None:
    """I1: while the barrier is awaited the provider has a connection and not one byte, fresh or pooled."""
    seen = []

    async def barrier() -> None:
        await asyncio.to_thread(lambda: None)  # the loop turns: had bytes been written, the provider would have read them
        seen.append((len(provider.heads), len(provider.writers)))

    for _ in range(2):
        assert (await attempt(upstream, provider.base + "x", barrier=barrier)).kind == "response"
    assert seen == [(0, 1), (1, 1)]


async def test_barrier_error_propagates_unchanged_and_nothing_is_sent(provider: Provider, upstream: Upstream) -> None:
    """Poisoned or a lost claim is the caller's own, also when it is an OSError or a time-out."""
    for error in (LookupError("claim lost"), OSError(5, "EIO"), TimeoutError(), ConnectionResetError(104, "own")):

        async def barrier(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            await upstream.send("POST", provider.base + "x", (), b"b", barrier)
        assert caught.value is error
    assert provider.heads == []


async def test_request_reaches_the_provider_byte_for_byte(provider: Provider, upstream: Upstream) -> None:
    """Target, header order, case and duplicates are the client's; only Host and Content-Length are added."""
    sent = ((b"X-B", b"2"), (b"x-a", b"1"), (b"X-B", b"3"), (b"Accept-Encoding", b"br"), (b"cookie", b"a=b"))
    await attempt(upstream, provider.base + "a%2Fb/%7e;x+y/length?q=%zz&&a=+", b"\x1f\x8b", headers=sent)
    lines = provider.heads[0].split(b"\r\n")
    assert lines[0] == b"POST /v1/a%2Fb/%7e;x+y/length?q=%zz&&a=+ HTTP/1.1"
    assert lines[2:-2] == [*(name + b": " + value for name, value in sent), b"Content-Length: 2"]
    assert provider.bodies == [b"\x1f\x8b"]


async def test_answer_headers_are_raw_and_no_cookie_comes_back(provider: Provider, upstream: Upstream) -> None:
    """Two Set-Cookie headers and undecodable bytes arrive as sent; the next caller does not send those cookies."""
    outcome = await attempt(upstream, provider.base + "length")
    assert outcome.answer is not None
    expected = ((b"Content-Length", b"5"), (b"Set-Cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"X-Raw", b"\xe9\xff"))
    assert outcome.answer.headers == expected
    await attempt(upstream, provider.base + "length")
    assert b"ookie" not in provider.heads[1]


@pytest.mark.parametrize(
    ("name", "method", "framing", "length", "body"),
    [
        ("length", "POST", "length", 5, b"hello"),
        ("chunked", "POST", "chunked", None, b"hello"),
        ("close", "POST", "close", None, b"hello"),
        ("nocontent", "DELETE", "none", None, b""),
        ("notmodified", "GET", "none", None, b""),
        ("head", "HEAD", "none", None, b""),
        ("early103", "POST", "length", 2, b"ok"),
        ("redirect", "POST", "length", 0, b""),
    ],
)
async def test_framing_is_told_as_it_came(
    provider: Provider, upstream: Upstream, name: str, method: str, framing: str, length: int | None, body: bytes
) -> None:
    """How the end of a body is known decides what a cut means; a redirect is an answer, not followed."""
    outcome = await attempt(upstream, provider.base + name, b"" if method != "POST" else b"{}", method=method)
    assert outcome.answer is not None
    assert (outcome.kind, outcome.answer.framing, outcome.answer.length, outcome.body) == ("response", framing, length, body)
    assert len(provider.heads) == 1


async def test_reason_and_encoded_body_are_kept_raw(provider: Provider, upstream: Upstream) -> None:
    """Odd reason phrases survive, and gzip stays gzip."""
    outcome = await attempt(upstream, provider.base + "reason")
    assert outcome.answer is not None
    assert outcome.answer.status == 299
    assert outcome.answer.reason.encode("utf-8", "surrogateescape") == b"Odd   Reason \xe9"
    assert (await attempt(upstream, provider.base + "gzip")).body == gzip.compress(b"x" * 1000, mtime=0)


@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("fault", ["resetbefore", "finbefore", "finmidhead", "resetmidhead", "switch101", "twolengths"])
@pytest.mark.parametrize("fresh", [False, True])
async def test_connection_lost_before_the_head_is_lost_and_sent_once(
    provider: Provider, make_upstream: MakeUpstream, method: str, fault: str, fresh: bool
) -> None:
    """aiohttp would send idempotent methods again by itself, on warm and on fresh connections; here the provider counts one."""
    upstream = make_upstream(fresh_connections=fresh)
    body = b"" if method in {"GET", "HEAD", "OPTIONS"} else b"{}"
    await attempt(upstream, provider.base + "x", body, method=method)
    outcome = await attempt(upstream, provider.base + fault, body, method=method)
    assert outcome.kind == "lost"
    assert len(provider.heads) == 2


@pytest.mark.parametrize(
    ("fault", "partial"), [("finmidbody", 40), ("resetmidbody", 40), ("halfchunk", 4), ("badchunk", 4)]
)
async def test_cut_within_the_body_is_lost_and_keeps_its_bytes(
    provider: Provider, upstream: Upstream, fault: str, partial: int
) -> None:
    """What had arrived before the cut is handed out, even when the reset came in the same moment."""
    outcome = await attempt(upstream, provider.base + fault)
    assert (outcome.kind, outcome.proof, outcome.body) == ("lost", "an answer began", b"b" * partial)


@pytest.mark.parametrize(
    ("headers", "tail", "kind"),
    [
        (JSON, b"", "not_sent"),
        (JSON, b" " * 12_000_000, "lost"),
        (((b"Content-Type", b"application/x-ndjson"),), b"", "lost"),
        ((*JSON, (b"Content-Encoding", b"gzip")), b"", "lost"),
    ],
    ids=["json", "json-then-white-space", "ndjson", "encoded"],
)
async def test_reset_within_a_big_body_is_not_sent_only_for_one_plain_json(
    provider: Provider, upstream: Upstream, headers: RawHeaders, tail: bytes, kind: str
) -> None:
    """Half a JSON document is useless; half of anything else may have been acted on."""
    body = BIG if not tail else b"{}" + tail
    outcome = await attempt(upstream, provider.base + "resetinbody", body, headers=headers)
    assert outcome.kind == kind
    assert ("body bytes" in outcome.proof) == (kind == "not_sent")


async def test_big_body_arrives_whole(provider: Provider, upstream: Upstream) -> None:
    """Piece by piece, nothing lost, nothing doubled."""
    assert (await attempt(upstream, provider.base + "x", BIG)).kind == "response"
    assert provider.bodies == [BIG]
