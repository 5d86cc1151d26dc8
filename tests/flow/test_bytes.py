"""The bytes are the client's and the provider's, both ways (I11); what is safe leaves no trace in the ledger."""

import gzip
import http.client
from collections.abc import Iterator

import pytest
from blake3 import blake3

from tests.harness.connections import connected, dechunked, exchange, receipts_of, request_bytes, status_of
from tests.harness.processes import Rig, chat, message, rig
from tests.harness.upstreams import CLOSE, RawUpstream, raw_upstream

GZIPPED = gzip.compress(b'{"id": 1}' * 50, mtime=0)
HEAD = b"HTTP/1.1 200 Fine by me\r\nX-ODD-Name: 1\r\nx-odd-name: 2\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
REPLIES: dict[str, tuple[bytes, ...]] = {
    "/v1/plain": (HEAD + b"Content-Length: 5\r\n\r\nhello",),
    "/v1/gzip": (HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(GZIPPED), GZIPPED),),
    "/v1/chunked": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n",),
    "/v1/close": (HEAD + b"\r\nuntil the end", CLOSE),
    "/v1/empty": (HEAD + b"Content-Length: 0\r\n\r\n",),
    "/v1/none": (b"HTTP/1.1 204 No Content\r\nX-Odd-Name: 1\r\n\r\n",),
    "/v1/own": (HEAD + b"Sendonce-Call: forged\r\nConnection: x-odd-name\r\nContent-Length: 2\r\n\r\nok",),
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, RawUpstream]]:
    """A proxy in front of the raw upstream, under /raw."""
    with (
        raw_upstream(REPLIES) as upstream,
        rig(tmp_path_factory.mktemp("raw"), "--upstream", f"raw={upstream.url}") as made,
    ):
        yield made, upstream


def ask_raw(made: Rig, path: str, method: str = "POST") -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", made.port, timeout=30)
    connection.request(method, f"/raw{path}", b"{}" if method == "POST" else None, {"Authorization": "Bearer x"})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/plain", b"hello"),
        ("/v1/gzip", GZIPPED),
        ("/v1/chunked", b"abcdefg"),
        ("/v1/close", b"until the end"),
        ("/v1/empty", b""),
    ],
)
def test_answer_reaches_the_client_byte_for_byte(raw: tuple[Rig, RawUpstream], path: str, body: bytes) -> None:
    """Body as it was encoded, reason phrase, header names as spelled, duplicates in order."""
    response, got = ask_raw(raw[0], path)
    assert (response.status, response.reason, got) == (200, "Fine by me", body)
    odd = [pair for pair in response.getheaders() if pair[0].lower() in {"x-odd-name", "set-cookie"}]
    assert odd == [("X-ODD-Name", "1"), ("x-odd-name", "2"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]
    assert response.getheader("Content-Encoding") == ("gzip" if path == "/v1/gzip" else None)


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_answer_without_a_body_is_passed_on_and_recorded(raw: tuple[Rig, RawUpstream], method: str) -> None:
    """204: the head is the end, so it waits for the commit; the provider served it."""
    response, got = ask_raw(raw[0], "/v1/none", method)
    assert (response.status, response.reason, got) == (204, "No Content", b"")
    assert response.getheader("Content-Length") is None
    call = response.getheader("Sendonce-Call")
    assert call is not None
    raw[0].settled()
    row = raw[0].show(call)
    assert (row["stage"], row["effect"]) == ("completed", "happened")


def test_own_and_hop_by_hop_headers_of_the_provider_stay_behind(raw: tuple[Rig, RawUpstream]) -> None:
    """Nobody upstream can speak for sendonce."""
    response, _ = ask_raw(raw[0], "/v1/own")
    names = [name.lower() for name, _ in response.getheaders()]
    assert response.getheader("Sendonce-Call", "").startswith("call_")
    assert names.count("sendonce-call") == 1
    assert "x-odd-name" not in names


def test_request_reaches_the_provider_byte_for_byte(raw: tuple[Rig, RawUpstream]) -> None:
    """Names as first spelled, duplicates in order, nothing added but the request id, own headers stripped."""
    made, upstream = raw
    headers = {"X-MiXed": "é", "Accept-Encoding": "gzip, br", "Sendonce-Task": "t" * 64}
    data = request_bytes("/raw/v1/plain", b'{"odd":  1.0}', {**headers, "Connection": "close"})
    data = data.replace(b"Sendonce-Task", b"X-Twice: 1\r\nx-twice: 2\r\nsendonce-TASK")
    assert status_of(exchange(made.port, data)) == 200
    head, _, body = upstream.requests[-1].partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    assert (first, body) == (b"POST /v1/plain HTTP/1.1", b'{"odd":  1.0}')
    assert b"X-MiXed: \xc3\xa9" in lines
    assert [line for line in lines if line.lower().startswith(b"x-twice")] == [b"X-Twice: 1", b"X-Twice: 2"]
    assert not [line for line in lines if line.lower().startswith(b"sendonce")]
    sent = {line.split(b":")[0].lower() for line in data.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]}
    added = {line.split(b":")[0].lower() for line in lines} - sent
    assert added == {b"x-client-request-id"}


def test_request_id_of_the_client_is_kept(raw: tuple[Rig, RawUpstream]) -> None:
    """The injected one is the call's id, and only where the client named none."""
    made, upstream = raw
    answer = made.post("/raw/v1/plain", b"{}", {"x-client-request-id": "mine"})
    assert b"x-client-request-id: mine" in upstream.requests[-1]
    assert upstream.requests[-1].lower().count(b"x-client-request-id") == 1
    answer = made.post("/raw/v1/plain", b"{}")
    assert f"X-Client-Request-Id: {answer.headers['sendonce-call']}".encode() in upstream.requests[-1]


@pytest.mark.parametrize(
    "path",
    ["/v1/a%2Fb%2fc", "/v1/x?a=1&b=%2F&&c", "/v1/x;p=1?q=a+b%20c", "/v1/%7Euser/caf%C3%A9", "/v1/a:b@c,d?e=[f]&g='h'"],
)
def test_odd_target_reaches_the_provider_unchanged(shared: Rig, path: str) -> None:
    """Not decoded, not normalised, not sorted."""
    body = chat(text=path)
    raw_answer = exchange(shared.port, request_bytes(f"/local{path}", body, {"Connection": "close"}))
    assert status_of(raw_answer) == 200
    assert [line["path"] for line in receipts_of(shared, body)] == [path]


@pytest.mark.parametrize("body", [b"{ }", b"", b"\x00\xff not JSON", b'{"a":1,"a":2}', b"x" * 300_000])
def test_any_body_is_forwarded_and_recorded_as_it_is(shared: Rig, body: bytes) -> None:
    """A body that is not the JSON it claims to be is its own canonical form."""
    answer = shared.post("/local/v1/any-body", body)
    assert answer.status == 200
    shared.settled()
    digest = blake3(body).hexdigest()
    assert receipts_of(shared, body)
    assert shared.show(answer.headers["sendonce-call"])["body_blake3"] == digest


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_safe_request_passes_without_a_trace(shared: Rig, method: str) -> None:
    """No event, no call, no disposition; HEAD has the length and no body."""
    shared.settled()
    before = shared.status()["events"]
    answer = shared.post("/openai/v1/models", b"", method=method)
    assert answer.status == 200
    assert "sendonce-call" not in answer.headers
    assert (answer.body == b"") is (method == "HEAD")
    assert int(answer.headers["content-length"]) > 0
    assert shared.status()["events"] == before


def test_read_only_post_passes_without_a_trace(shared: Rig) -> None:
    """Counting tokens is listed as safe."""
    before = shared.status()["events"]
    answer = shared.post("/anthropic/v1/messages/count_tokens", message(text="count me"))
    assert (answer.status, "sendonce-call" in answer.headers) == (200, False)
    assert shared.status()["events"] == before


def test_slow_reader_slows_nobody_else(shared: Rig) -> None:
    """Its own stream waits in a file; another one passes, and its own comes whole in the end."""
    body = chat("synthetic/size=8000000,chunks=100", "slow reader", stream=True)
    with connected(shared.port) as slow:
        slow.sendall(request_bytes("/openai/v1/chat/completions", body, {"Connection": "close"}))
        shared.await_receipt(body)
        for number in range(5):
            assert shared.chat(chat("synthetic/size=200000", f"fast {number}", stream=True)).status == 200
        got = b"".join(iter(lambda: slow.recv(1 << 20), b""))
    content, whole = dechunked(got)
    assert whole
    assert content.endswith(b"data: [DONE]\n\n")
    assert len(content) > 8_000_000
