"""Bytes at the provider equal the bytes sent, bytes at the client the bytes answered (I11), whatever they are: by raw sockets."""

import gzip
import itertools
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import brotli
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.connections import exchange, request_bytes
from tests.harness.crashes import completed, digest_of
from tests.harness.processes import Rig, rig
from tests.harness.streams import CHAT_STREAM, MESSAGE_STREAM
from tests.harness.upstreams import CLOSE, RawUpstream, raw_upstream

EXAMPLES: Final = 300  # some 5 s, 20 s on a busy machine: an effectful one waits for three commits
HOP_BY_HOP: Final = {b"connection", b"content-length", b"transfer-encoding", b"host"}
ADDED: Final = {b"x-client-request-id", b"sendonce-call", b"sendonce-disposition"}
NUMBERS: Final = itertools.count(1)

Pairs = list[tuple[bytes, bytes]]

CODERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "br": brotli.compress,
    "zstd": zstandard.compress,
    "x-unheard-of": lambda data: data[::-1],
}


@dataclass(frozen=True)
class Message:
    """Header lines and a body. `pieces`: how the body is cut where it is sent in chunks; None sends it in one, by length."""

    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    pieces: tuple[bytes, ...] | None

    @property
    def lines(self) -> bytes:
        return b"".join(b"%b: %b\r\n" % pair for pair in self.headers)

    @property
    def framed(self) -> bytes:
        """The framing header, the end of the head, the body."""
        if self.pieces is None:
            return b"Content-Length: %d\r\n\r\n%b" % (len(self.body), self.body)
        return b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(map(chunk, self.pieces)) + b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def spelled(name: str) -> st.SearchStrategy[bytes]:
    return st.lists(st.booleans(), min_size=len(name), max_size=len(name)).map(
        lambda ups: "".join(letter.upper() if up else letter for letter, up in zip(name, ups, strict=True)).encode()
    )


NAMES: Final = st.sampled_from(["x-a", "x-b-c", "accept-language", "cookie", "traceparent", "x_odd.name~1"]).flatmap(
    spelled
)
# Inner white space stays, outer white space is no part of a value. Text beyond ASCII is UTF-8.
VALUES: Final = st.text(st.sampled_from("aZ09 \t,;=\"'()%/é漢😀"), max_size=12).map(lambda text: text.strip().encode())
PATHS: Final = st.lists(
    st.sampled_from(
        ["a", "B", "%2F", "%2f", ";", "+", "%20", "%C3%A9", "%c3%a9", "~", ":", "@", ",", "=", "'", "*", "%25"]
    ),
    min_size=1,
    max_size=6,
).map("".join)
QUERIES: Final = st.lists(
    st.sampled_from(["a=", "=b", "a=1", "a=1+2", "b=%2F%2f", "", "c", "d==", "e=%20;f=", "g=?/"]), max_size=4
).map(lambda listed: "?" + "&".join(listed) if any(listed) else "")
BODIES: Final = st.one_of(
    st.binary(max_size=300),
    st.text("é漢😀a", max_size=60).map(str.encode),
    st.sampled_from([b"", b'{"a":1,"a":2.50}', b"\r\n\r\n", b"0\r\n\r\n", bytes(range(256)) * 300]),
)
METHODS: Final = ("POST", "PUT", "PATCH", "DELETE", "GET", "HEAD")
SAFE: Final = {"GET", "HEAD", "OPTIONS"}


@st.composite
def messages(draw: st.DrawFn) -> Message:
    headers: Pairs = draw(st.lists(st.tuples(NAMES, VALUES), max_size=5))
    body, coding = draw(BODIES), draw(st.sampled_from([None, *CODERS]))
    if coding is not None:
        body = CODERS[coding](body)
        headers.insert(draw(st.integers(0, len(headers))), (b"content-Encoding", coding.encode()))
    cuts = None
    if draw(st.booleans()):
        marks = sorted({0, len(body), *draw(st.lists(st.integers(0, len(body)), max_size=4))})
        cuts = tuple(body[start:end] for start, end in itertools.pairwise(marks))
    return Message(tuple(headers), body, cuts)


@dataclass(frozen=True)
class Case:
    """What is sent, and what the provider answers. `closes`: the end of its body is the end of its connection."""

    method: str
    target: str
    request: Message
    status: int
    answer: Message
    closes: bool

    @property
    def has_body(self) -> bool:
        return self.method != "HEAD" and self.status not in (204, 304)

    @property
    def reply(self) -> tuple[bytes, ...]:
        """As the upstream writes it. HEAD and 304 declare the length of the body that they leave out."""
        head = b"HTTP/1.1 %d As It  Came\r\n%b" % (self.status, self.answer.lines)
        if self.status == 204:
            return (head + b"\r\n",)
        if not self.has_body:
            return (head + b"Content-Length: %d\r\n\r\n" % len(self.answer.body),)
        if self.closes:
            return (head + b"Connection: close\r\n\r\n" + self.answer.body, CLOSE)
        return (head + self.answer.framed,)


CASES: Final = st.builds(
    Case,
    method=st.sampled_from(METHODS),
    target=st.builds("/v1/{}{}".format, PATHS, QUERIES),
    request=messages(),
    status=st.sampled_from([200, 200, 201, 204, 304, 404, 429, 500]),
    answer=messages(),
    closes=st.booleans(),
)


@dataclass(frozen=True)
class Raw:
    """A proxy in front of an upstream whose replies the test writes."""

    rig: Rig
    upstream: RawUpstream
    replies: dict[str, tuple[bytes, ...]]

    def ask(self, data: bytes, target: str, reply: tuple[bytes, ...]) -> bytes:
        """All bytes that come back. `data` asks for the connection to be closed."""
        self.replies[target] = reply
        return exchange(self.rig.port, data)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raw]:
    replies: dict[str, tuple[bytes, ...]] = {}
    with raw_upstream(replies) as upstream:
        # Accepted sockets inherit it: pieces written one by one leave one by one.
        upstream.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        names = [f"{name}={upstream.url}" for name in ("raw", "openai", "anthropic", "gemini")]
        with rig(tmp_path_factory.mktemp("raw"), *(f"--upstream={name}" for name in names)) as made:
            yield Raw(made, upstream, replies)


def parsed(message: bytes) -> tuple[bytes, Pairs, bytes]:
    """First line, header pairs as spelled, body without its framing; raises where the framing is not whole."""
    head, _, rest = message.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    pairs = [(name, value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in lines)]
    framing = {name.lower(): value for name, value in pairs}
    if framing.get(b"transfer-encoding") == b"chunked":
        return first, pairs, dechunked(rest)
    return first, pairs, rest


def dechunked(rest: bytes) -> bytes:
    """The last chunk must be there, nothing after it: no trailer, no second answer."""
    body = b""
    while (found := re.match(rb"([0-9a-f]+)\r\n", rest)) and (size := int(found[1], 16)):
        body += rest[found.end() : found.end() + size]
        assert rest[found.end() + size :][:2] == b"\r\n"
        rest = rest[found.end() + size + 2 :]
    assert rest == b"0\r\n\r\n"
    return body


def end_to_end(pairs: Pairs) -> Pairs:
    return [pair for pair in pairs if pair[0].lower() not in HOP_BY_HOP | ADDED]


def as_first_spelled(pairs: Pairs) -> Pairs:
    """A repeated request header gets the spelling of its first: aiohttp would drop the first value (proxy/headers.py)."""
    first: dict[bytes, bytes] = {}
    return [(first.setdefault(name.lower(), name), value) for name, value in pairs]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=CASES)
def test_any_exchange_is_carried_byte_for_byte(raw: Raw, case: Case) -> None:
    """Target, headers in order with duplicates, bodies as encoded, any framing; recorded with the digests of these bytes."""
    own = ((b"Host", b"proxy"), (b"Authorization", b"Bearer x"), (b"Idempotency-Key", b"k%d" % next(NUMBERS)))
    sent = Message((*own, *case.request.headers), case.request.body, case.request.pieces)
    if case.method in SAFE:
        sent = Message(sent.headers, b"", None)
    head = f"{case.method} /raw{case.target} HTTP/1.1\r\n".encode() + sent.lines + b"Connection: close\r\n"
    came = raw.ask(head + sent.framed, case.target, case.reply)

    first, pairs, body = parsed(raw.upstream.requests[-1])
    assert first == f"{case.method} {case.target} HTTP/1.1".encode()
    assert end_to_end(pairs) == as_first_spelled(end_to_end(list(sent.headers)))
    assert body == sent.body

    first, pairs, body = parsed(came)
    assert first == b"HTTP/1.1 %d As It  Came" % case.status
    assert end_to_end(pairs) == list(case.answer.headers)
    assert body == (case.answer.body if case.has_body else b"")
    if case.status == 204:
        assert b"content-length" not in {name.lower() for name, _ in pairs}
    elif not case.has_body:
        assert [value for name, value in pairs if name == b"Content-Length"] == [b"%d" % len(case.answer.body)]

    call = dict(pairs).get(b"Sendonce-Call")
    assert (call is None) is (case.method in SAFE)
    if call is not None:
        row: dict[str, Any] = raw.rig.show(call.decode())
        (attempt,) = row["attempt_rows"]
        assert row["body_blake3"] == digest_of(sent.body)
        assert attempt["response_blake3"] == digest_of(body)


# --- streams, cut anywhere -------------------------------------------------------------------------------------------

TEXT: Final = "Hé漢😀"
GEMINI: Final = (
    f'data: {{"candidates":[{{"content":{{"parts":[{{"text":"{TEXT}"}}]}},"index":0}}]}}\n\n'
    f'data: {{"candidates":[{{"content":{{"parts":[{{"text":"{TEXT}"}}]}},"finishReason":"STOP","index":0}}]}}\n\n'
).encode()
RESPONSES: Final = (
    f'event: response.output_text.delta\ndata: {{"type":"response.output_text.delta","delta":"{TEXT}"}}\n\n'
    f'event: response.completed\ndata: {{"type":"response.completed","response":{{"id":"resp_1","model":"{TEXT}",'
    '"status":"completed","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"H"}]}],'
    '"usage":{"input_tokens":1,"output_tokens":2,"total_tokens":3}}}\n\n'
).encode()
# proxy path -> the stream; each ends with its dialect's terminal evidence
STREAMS: Final = {
    "/openai/v1/chat/completions": CHAT_STREAM.replace(b"Hel", TEXT.encode()),
    "/openai/v1/responses": RESPONSES,
    "/anthropic/v1/messages": MESSAGE_STREAM.replace(b"Hm", TEXT.encode()),
    "/gemini/v1beta/models/m:streamGenerateContent?alt=sse": GEMINI,
}


def one_by_one(data: bytes) -> tuple[bytes, ...]:
    return tuple(chunk(data[at : at + 1]) for at in range(len(data)))


def in_two(data: bytes) -> Iterator[tuple[bytes, ...]]:
    """Cut at each byte of the first multi-byte text: within each of its characters too."""
    start = data.index(TEXT.encode())
    for at in range(start, start + len(TEXT.encode()) + 1):
        yield chunk(data[:at]), chunk(data[at:])


@pytest.mark.parametrize("framing", ["chunked", "close"])
@pytest.mark.parametrize("path", STREAMS)
def test_stream_of_single_bytes_arrives_whole_and_is_completed(raw: Raw, path: str, framing: str) -> None:
    """Every event, and every character of several bytes, comes in pieces; the reading of the record is the whole one."""
    stream, target = STREAMS[path], "/" + path.split("/", 2)[2]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    replies = [
        (head + b"Transfer-Encoding: chunked\r\n\r\n", *pieces, b"0\r\n\r\n")
        for pieces in (one_by_one(stream), *in_two(stream))
    ]
    if framing == "close":
        replies = [(head + b"\r\n", *(stream[at : at + 1] for at in range(len(stream))), CLOSE)]
    for reply in replies:
        key = {"Idempotency-Key": f"k{next(NUMBERS)}", "Connection": "close"}
        _, pairs, body = parsed(raw.ask(request_bytes(path, b'{"model":"m","stream":true}', key), target, reply))
        row = completed(raw.rig)
        assert body == stream
        assert row["call_id"].encode() == dict(pairs)[b"Sendonce-Call"]
        assert (row["stage"], row["effect"], row["outcome"]) == ("completed", "happened", "succeeded")
        assert raw.rig.show(row["call_id"])["attempt_rows"][0]["response_blake3"] == digest_of(stream)
