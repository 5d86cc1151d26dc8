"""The outbound side against a provider that misbehaves: what is not_sent, what is lost, and that nothing is sent twice.

Real sockets, in one loop. Runs under uvloop and under asyncio's own loop.
"""

import asyncio
import os
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop

from proxy.headers import RawHeaders
from proxy.upstream import Answer, AttemptFailed, Upstream
from tests.harness.raw_provider import GZIPPED, Provider
from tests.harness.request_bodies import body_of

JSON = ((b"Content-Type", b"application/json"),)
BIG = b'{"x":"' + b"z" * 24_000_000 + b'"}'

Barrier = Callable[[], Awaitable[None]]


class Outcome(NamedTuple):
    kind: str
    proof: str
    body: bytes
    answer: Answer | None


async def passes() -> None:
    """A barrier that is passed at once."""


@dataclass
class Rig:
    """A provider and what sends to it."""

    provider: Provider
    made: list[Upstream] = field(default_factory=list)

    def upstream(self, **options: Any) -> Upstream:
        self.made.append(Upstream(**{"connect_timeout_s": 5.0, "idle_timeout_s": 5.0, "keepalive_s": 15.0, **options}))
        return self.made[-1]

    async def attempt(
        self,
        name: str,
        body: bytes = b"{}",
        *,
        method: str = "POST",
        headers: RawHeaders = JSON,
        barrier: Barrier = passes,
    ) -> Outcome:
        """With the newest upstream; `name` is a path below the provider, or a URL."""
        upstream = self.made[-1] if self.made else self.upstream()
        got, answer = bytearray(), None
        try:
            answer = await upstream.send(
                method, name if "://" in name else self.provider.base + name, headers, body_of(body), barrier
            )
            async for data in answer.body():
                got += data
        except AttemptFailed as failure:
            return Outcome(failure.kind, failure.proof, bytes(got), answer)
        finally:
            if answer is not None:
                answer.close()
        return Outcome("response", "", bytes(got), answer)


@pytest.fixture(params=[uvloop.EventLoopPolicy(), asyncio.DefaultEventLoopPolicy()], ids=["uvloop", "asyncio"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    policy: asyncio.AbstractEventLoopPolicy = request.param
    return policy


pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning")


@asynccontextmanager
async def serving(ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[Provider]:
    it = Provider()
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0, limit=2**20, ssl=ssl_context)
    it.base = f"http{'s' if ssl_context else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/"
    yield it
    server.close()
    it.resume.set()
    for writer in it.writers:
        writer.transport.abort()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with serving() as provider:
        it = Rig(provider)
        yield it
        for upstream in it.made:
            await upstream.close()


@pytest.fixture
async def tls(tmp_path: Path) -> AsyncIterator[tuple[str, ssl.SSLContext]]:
    """The URL of a provider with a certificate of its own, and the context that trusts it."""
    new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout k -out c -subj /CN=x"
    subprocess.run(
        [*new.split(), "-addext", "subjectAltName=IP:127.0.0.1"], cwd=tmp_path, check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "c", tmp_path / "k")
    async with serving(context) as provider:
        yield provider.base + "x", ssl.create_default_context(cafile=tmp_path / "c")


async def test_barrier_runs_on_a_ready_connection_before_any_byte(rig: Rig) -> None:
    """I1: while the barrier is awaited the provider has a connection and not one byte, fresh or pooled."""
    seen = []

    async def barrier() -> None:
        await asyncio.to_thread(int)  # the loop turns: had bytes been written, the provider would have read them
        seen.append((len(rig.provider.heads), len(rig.provider.writers)))

    for _ in range(2):
        assert (await rig.attempt("x", barrier=barrier)).kind == "response"
    assert seen == [(0, 1), (1, 1)]


async def test_barrier_error_propagates_unchanged_and_nothing_is_sent(rig: Rig) -> None:
    """Poisoned or a lost claim is the caller's own, also when it is an OSError or a time-out."""
    for error in (LookupError("claim lost"), OSError(5, "EIO"), TimeoutError(), ConnectionResetError(104, "own")):

        async def barrier(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            await rig.upstream().send("POST", rig.provider.base + "x", (), body_of(b"b"), barrier)
        assert caught.value is error
    assert rig.provider.heads == []


async def test_request_reaches_the_provider_byte_for_byte(rig: Rig) -> None:
    """Target, header order, case and duplicates are the client's; only Host and Content-Length are added."""
    sent = ((b"X-B", b"2"), (b"x-a", b"1"), (b"X-B", b"3"), (b"Accept-Encoding", b"br"), (b"cookie", b"a=b"))
    await rig.attempt("a%2Fb/%7e;x+y/length?q=%zz&&a=+", b"\x1f\x8b", headers=sent)
    lines = rig.provider.heads[0].split(b"\r\n")
    assert lines[0] == b"POST /v1/a%2Fb/%7e;x+y/length?q=%zz&&a=+ HTTP/1.1"
    assert lines[2:-2] == [*(name + b": " + value for name, value in sent), b"Content-Length: 2"]
    assert rig.provider.bodies == [b"\x1f\x8b"]


async def test_answer_is_raw_and_no_cookie_comes_back(rig: Rig) -> None:
    """Two Set-Cookie headers, undecodable bytes, odd reasons and gzip arrive as sent; the next caller sends no such cookie."""
    _, _, _, answer = await rig.attempt("length")
    assert answer is not None
    expected = ((b"Content-Length", b"5"), (b"Set-Cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"X-Raw", b"\xe9\xff"))
    assert answer.headers == expected
    _, _, _, answer = await rig.attempt("reason")
    assert answer is not None
    assert (answer.status, answer.reason.encode("utf-8", "surrogateescape")) == (299, b"Odd   Reason \xe9")
    assert (await rig.attempt("gzip")).body == GZIPPED
    assert b"ookie" not in rig.provider.heads[1]


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
    rig: Rig, name: str, method: str, framing: str, length: int | None, body: bytes
) -> None:
    """How the end of a body is known decides what a cut means; a redirect is an answer, not followed."""
    sent = b"{}" if method == "POST" else b""
    kind, _, got, answer = await rig.attempt(name, sent, method=method)
    assert answer is not None
    assert (kind, answer.framing, answer.length, got) == ("response", framing, length, body)
    assert len(rig.provider.heads) == 1


@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("fault", ["resetbefore", "finbefore", "finmidhead", "resetmidhead", "switch101", "twolengths"])
@pytest.mark.parametrize("fresh", [False, True])
async def test_connection_lost_before_the_head_is_lost_and_sent_once(
    rig: Rig, method: str, fault: str, fresh: bool
) -> None:
    """Left alone, aiohttp sends idempotent methods again, warm or fresh; here the provider counts one."""
    rig.upstream(fresh_connections=fresh)
    body = b"" if method in {"GET", "HEAD", "OPTIONS"} else b"{}"
    await rig.attempt("x", body, method=method)
    outcome = await rig.attempt(fault, body, method=method)
    assert outcome.kind == "lost"
    assert len(rig.provider.heads) == 2


@pytest.mark.parametrize(("fault", "partial"), [("finmidbody", 40), ("resetmidbody", 40), ("halfchunk", 4)])
async def test_cut_within_the_body_is_lost_and_keeps_its_bytes(rig: Rig, fault: str, partial: int) -> None:
    """What had arrived before the cut is handed out, even when the reset came in the same moment."""
    assert (await rig.attempt(fault))[:3] == ("lost", "an answer began", b"b" * partial)


@pytest.mark.parametrize(
    ("headers", "tail", "kind"),
    [
        (JSON, b"", "not_sent"),
        (JSON, b" " * 24_000_000, "lost"),
        (((b"Content-Type", b"application/x-ndjson"),), b"", "lost"),
        ((*JSON, (b"Content-Encoding", b"gzip")), b"", "lost"),
    ],
    ids=["json", "json-then-white-space", "ndjson", "encoded"],
)
async def test_reset_within_a_big_body_is_not_sent_only_for_one_plain_json(
    rig: Rig, headers: RawHeaders, tail: bytes, kind: str
) -> None:
    """Half a JSON document is useless; half of anything else may have been acted on."""
    body = BIG if not tail else b"{}" + tail
    outcome = await rig.attempt("resetinbody", body, headers=headers)
    assert outcome.kind == kind
    assert ("body bytes" in outcome.proof) == (kind == "not_sent")


async def test_big_body_arrives_whole(rig: Rig) -> None:
    """Piece by piece, nothing lost, nothing doubled."""
    assert (await rig.attempt("x", BIG)).kind == "response"
    assert rig.provider.bodies == [BIG]


async def test_garbage_within_the_body_is_lost_and_keeps_its_bytes(rig: Rig) -> None:
    """A chunk size that is none ends the answer; the bytes before it were handed out."""
    answer = await rig.upstream().send("POST", rig.provider.base + "begun", JSON, body_of(b"{}"), passes)
    body = answer.body()
    assert await anext(body) == b"bbbb"
    rig.provider.writers[-1].write(b"zz\r\n")
    with pytest.raises(AttemptFailed, match="lost: an answer began"):
        await anext(body)
    answer.close()
    assert (await rig.attempt("badchunk")).kind == "lost"


async def test_no_connection_is_not_sent(rig: Rig, tls: tuple[str, ssl.SSLContext]) -> None:
    """Refused, unresolvable, no TLS there, untrusted certificate, full accept queue, unwritable header: the barrier never ran."""
    rig.upstream(connect_timeout_s=0.5)
    ran = []

    async def barrier() -> None:
        ran.append(1)

    with socket.create_server(("127.0.0.1", 0)) as gone, socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        refused, hangs = (f"http://127.0.0.1:{sock.getsockname()[1]}/x" for sock in (gone, full))
        gone.close()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        unresolvable = "http://" + "a." * 130 + "invalid/x"  # too long for a name: fails without a query
        for url in (refused, hangs, unresolvable, rig.provider.base.replace("http:", "https:"), tls[0]):
            assert (await rig.attempt(url, barrier=barrier))[:2] == ("not_sent", "no connection"), url
        for filler in fillers:
            filler.close()
    assert (await rig.attempt("", headers=((b"X", b"\xff"),), barrier=barrier)).kind == "not_sent"
    assert ran == []
    rig.upstream(ssl=tls[1])
    assert (await rig.attempt(tls[0], b"x" * 300_000, barrier=barrier))[:3] == ("response", "", b"ok")
    assert ran == [1]


async def test_silent_provider_is_lost_and_stalled_upload_is_not_sent(rig: Rig) -> None:
    """The idle limit counts in both directions; the byte count tells the two apart."""
    rig.upstream(idle_timeout_s=0.2)
    assert (await rig.attempt("mute")).kind == "lost"
    assert (await rig.attempt("stallinbody", BIG)).kind == "not_sent"


@pytest.mark.parametrize("name", ["barrier", "mute", "stallinbody"])
async def test_cancelled_send_leaves_the_connection_closed(rig: Rig, name: str) -> None:
    """In the barrier, within the body, while waiting for the head: the provider sees the end."""
    in_barrier = asyncio.Event()

    async def barrier() -> None:
        in_barrier.set()
        if name == "barrier":
            await asyncio.Event().wait()

    task = asyncio.create_task(rig.attempt(name, BIG, barrier=barrier))
    await in_barrier.wait()
    if name == "barrier":
        await rig.provider.connected.wait()
    else:
        assert await rig.provider.arrived.get() == name
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    rig.provider.resume.set()
    await asyncio.wait_for(rig.provider.ended.get(), 5)


def disturb(writer: asyncio.StreamWriter, words: bytes) -> None:
    """At once in the peer's kernel, before any loop turns: these words, or a FIN."""
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as twin:
        twin.sendall(words) if words else twin.shutdown(socket.SHUT_WR)


async def test_pooled_connection_closed_in_the_kernel_only_is_replaced(rig: Rig) -> None:
    """The loop has not turned since the FIN, yet no request is lost on that connection."""
    for _ in range(10):
        assert (await rig.attempt("x")).kind == "response"
        disturb(rig.provider.writers[-1], b"")
    assert len(rig.provider.heads) == len(rig.provider.writers) == 10


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 6\r\n\r\nPOISON"])
async def test_disturbed_connection_never_carries_a_request(rig: Rig, words: bytes) -> None:
    """A peer that closes or speaks unasked: replaced when it was idle, not_sent when it happens during the barrier."""

    async def barrier() -> None:
        disturb(rig.provider.writers[-1], words)
        await asyncio.to_thread(int)  # the loop turns, as it does during a commit

    await rig.attempt("x")
    await barrier()
    assert (await rig.attempt("x")).body == b"ok"
    assert (await rig.attempt("x", barrier=barrier)).kind == "not_sent"
    assert len(rig.provider.heads) == 2
