"""Hostile clients: refused before admission, or forwarded as one unambiguous request; never two readings of the same bytes.

I4, I11 and I12; the tables are in tests/harness/attacks.py.
"""

import socket
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.harness.attacks import ACCEPTED, CHAT, REFUSED, SMUGGLED, head, post
from tests.harness.connections import connected, read_answer, read_to_end, readable, receipts_of, request_bytes
from tests.harness.framing import RawAnswer, answers
from tests.harness.neighbours import process_of
from tests.harness.processes import Rig, chat, peak_bytes, rig
from tests.harness.upstreams import RawUpstream, raw_upstream

SERVED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LAST = head("GET /openai/v1/last HTTP/1.1", "Connection: close")
STALL_S = 0.5
TRICKLE_S = 0.05
FLOOD = head("GET /_sendonce/health HTTP/1.1") * 1000
FLOOD_LIMIT_BYTES = 32_000_000  # what the kernel holds of one connection is a third of it
DEAF_S = 1.0
DEAF_MEMORY_BYTES = 32_000_000  # without the limit it grows by 20 bytes for each byte that is sent
Door = tuple[Rig, RawUpstream]


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A proxy whose provider keeps the raw bytes of what it got, and says ok."""
    directory = tmp_path_factory.mktemp("door")
    config = directory / "sendonce.toml"
    config.write_text(f"[timeouts]\nclient_body_idle_s = {STALL_S}\n")
    with (
        raw_upstream(defaultdict(lambda: (SERVED,))) as upstream,
        rig(directory, "--upstream", f"openai={upstream.url}", "--config", str(config)) as made,
    ):
        yield made, upstream


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Waits half a second for a head, and for each piece of a body."""
    directory = tmp_path_factory.mktemp("impatient")
    config = directory / "sendonce.toml"
    config.write_text(f"[timeouts]\nclient_header_s = {STALL_S}\nclient_body_idle_s = {STALL_S}\n")
    with rig(directory, "--config", str(config)) as made:
        yield made


def said(port: int, data: bytes) -> list[RawAnswer]:
    """All answers until the proxy closed, which it may do before it has read everything."""
    with connected(port) as sock:
        with suppress(ConnectionError):
            sock.sendall(data)
        return answers(read_to_end(sock))


def bodies(requests: list[bytes]) -> list[bytes]:
    return [request.partition(b"\r\n\r\n")[2] for request in requests]


def events(made: Rig) -> int:
    made.settled()
    count: int = made.status()["events"]
    return count


@pytest.mark.parametrize("name", REFUSED)
def test_attack_is_refused_before_admission(door: Door, name: str) -> None:
    """One JSON answer of ours, then the close. Nothing recorded, nothing sent, not even what came behind it; then all is well."""
    made, upstream = door
    row, before, sent = REFUSED[name], events(made), len(upstream.requests)
    (answer,) = said(made.port, row.data + SMUGGLED)
    assert (answer.status, answer.code, answer.clean) == (row.status, row.code, True)
    assert answer.headers["sendonce-disposition"] == "refused"
    assert events(made) == before
    normal = chat(text=f"after {name}")
    assert made.chat(normal).body == b"ok"
    assert bodies(upstream.requests[sent:]) == [normal]


@pytest.mark.parametrize("name", ACCEPTED)
def test_oddity_reaches_the_provider_once_and_unambiguous(door: Door, name: str) -> None:
    """The provider gets that request and the one behind it, and nothing in between."""
    made, upstream = door
    row, sent = ACCEPTED[name], len(upstream.requests)
    data = row.data.replace(b"sk-attacker", b"sk-%d" % list(ACCEPTED).index(name))  # another caller, so not a retry
    assert [(answer.status, answer.body) for answer in said(made.port, data + LAST)] == [(200, b"ok")] * 2
    first, last = upstream.requests[sent:]
    assert last.startswith(b"GET /v1/last HTTP/1.1\r\n")
    raw_head, _, body = first.partition(b"\r\n\r\n")
    line, *lines = raw_head.split(b"\r\n")
    assert (line, body) == (row.line, row.body)
    assert [header for header in lines if header in row.headers] == list(row.headers)
    assert [header for header in lines if row.without and header.lower().startswith(row.without)] == []
    names = [header.partition(b":")[0].lower() for header in lines]
    assert (names.count(b"host"), names.count(b"content-length"), b"transfer-encoding" in names) == (1, 1, False)


# --- bytes behind a request ---------------------------------------------------------------------------------------------


def test_garbage_behind_a_body_spoils_what_came_with_it(door: Door) -> None:
    """A body longer than declared, in one piece: nothing of that piece is served."""
    made, upstream = door
    before, sent = events(made), len(upstream.requests)
    (answer,) = said(made.port, post("Content-Length: 2", body=b"{}garbage\r\n\r\n" + SMUGGLED))
    assert (answer.status, answer.code) == (400, "bad_framing")
    assert (events(made), len(upstream.requests)) == (before, sent)


def test_garbage_behind_a_request_in_flight_takes_nothing_from_it(impatient: Rig) -> None:
    """The request is answered whole, then the garbage is refused as what it is."""
    body = chat("synthetic/hold=0.3", "before garbage")
    with connected(impatient.port) as sock:
        sock.sendall(request_bytes(CHAT, body))
        impatient.await_receipt(body)
        sock.sendall(b"garbage\r\n\r\n" + SMUGGLED)
        first, second = answers(read_to_end(sock))
    assert (first.status, first.clean, second.code) == (200, True, "bad_framing")
    assert len(receipts_of(impatient, body)) == 1


@pytest.mark.parametrize("count", [2, 300])
def test_pipelined_requests_are_served_in_order_each_with_its_own_admission(door: Door, count: int) -> None:
    """As many calls as requests, answered in the order in which they came."""
    made, upstream = door
    sent = len(upstream.requests)
    prompts = [chat(text=f"pipelined {number} of {count}") for number in range(count)]
    got = said(made.port, b"".join(request_bytes(CHAT, prompt) for prompt in prompts) + LAST)
    assert [answer.status for answer in got] == [200] * (count + 1)
    assert bodies(upstream.requests[sent:]) == [*prompts, b""]
    named = [answer.headers.get("sendonce-call") for answer in got]
    assert named.pop() is None
    made.settled()
    rows = {row["call_id"]: row for row in made.calls()}
    assert [rows[call]["stage"] for call in named if call] == ["completed"] * count


@pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_client_that_leaves_within_its_body_leaves_nothing_behind(door: Door, framing: str) -> None:
    """Half a request is none."""
    made, upstream = door
    before, sent = events(made), len(upstream.requests)
    with connected(made.port) as sock:
        sock.sendall(post(framing, body=b'8\r\n{"half":'))
        sock.shutdown(socket.SHUT_WR)
        assert [answer.code for answer in answers(read_to_end(sock))] in ([], ["bad_framing"])
    assert (events(made), len(upstream.requests)) == (before, sent)


# --- slow clients -------------------------------------------------------------------------------------------------------


def trickle(sock: socket.socket, data: bytes) -> RawAnswer:
    """Byte for byte until an answer is there."""
    for byte in data:
        if readable(sock, TRICKLE_S):
            break
        with suppress(ConnectionError):
            sock.sendall(bytes([byte]))
    (answer,) = answers(read_to_end(sock))
    return answer


SLOW = {
    "head, byte for byte": (b"POST /openai", b"/" * 1000, "did not come within"),
    "head, header for header": (head(f"POST {CHAT} HTTP/1.1")[:-2], b"X: 1\r\n" * 1000, "did not come within"),
    "empty lines": (b"", b"\r\n" * 1000, "did not come within"),
    "chunk extension": (
        post("Transfer-Encoding: chunked", body=b"4;"),
        b"a" * 1000,
        "No byte of the request body came",
    ),
    "trailers": (
        post("Transfer-Encoding: chunked", body=b"4\r\ntrue\r\n0\r\n"),
        b"X: 1\r\n" * 1000,
        "No byte of the request body came",
    ),
    "nothing after the head": (post("Content-Length: 100"), b"", "No byte of the request body came"),
    "nothing after half the body": (post("Content-Length: 100", body=b"{"), b"", "No byte of the request body came"),
}


@pytest.mark.parametrize("name", SLOW)
def test_slow_client_is_refused_when_its_time_is_over(impatient: Rig, name: str) -> None:
    """Bytes that are neither a whole head nor body do not buy time."""
    begun, drops, sentence = SLOW[name]
    before = events(impatient)
    with connected(impatient.port) as sock:
        sock.sendall(begun)
        answer = trickle(sock, drops)
    assert (answer.status, answer.code) == (400, "bad_framing")
    assert sentence.encode() in answer.body
    assert events(impatient) == before
    assert impatient.chat(chat(text=f"after {name}")).status == 200


def test_body_that_keeps_coming_is_served_however_long_it_takes(impatient: Rig) -> None:
    """The limit is an idle one."""
    body = chat(text="drop by drop")
    with connected(impatient.port) as sock:
        sock.sendall(request_bytes(CHAT, body)[: -len(body)])
        for byte in body:
            assert not readable(sock, STALL_S * 3 / len(body))
            sock.sendall(bytes([byte]))
        assert read_answer(sock).status == 200


def test_silent_and_idle_connections_take_nothing_from_a_working_one(impatient: Rig) -> None:
    """Two hundred that say nothing and twenty kept after a request: others are served; the silent ones are refused and closed."""
    with ExitStack() as open_sockets:
        kept = []
        for number in range(20):
            kept.append(open_sockets.enter_context(connected(impatient.port)))
            kept[-1].sendall(request_bytes(CHAT, chat(text=f"kept {number}")))
            assert read_answer(kept[-1]).status == 200
        silent = [open_sockets.enter_context(connected(impatient.port)) for _ in range(200)]
        assert impatient.chat(chat(text="beside 220 others")).status == 200
        for sock in silent:
            assert [answer.code for answer in answers(read_to_end(sock))] == ["bad_framing"]
        for number, sock in enumerate(kept):
            sock.sendall(request_bytes(CHAT, chat(text=f"kept on {number}")))
            assert read_answer(sock).status == 200


def test_client_that_takes_no_answers_gets_no_more_of_them(door: Door) -> None:
    """It pipelines small requests for ever: it is not read any further, memory stays, and others are served."""
    made, _ = door
    before = peak_bytes(process_of(made).child.pid)
    with connected(made.port) as deaf:
        deaf.settimeout(DEAF_S)
        with pytest.raises(TimeoutError):
            flood(deaf)
        assert made.chat(chat(text="beside a deaf one")).status == 200
    assert peak_bytes(process_of(made).child.pid) - before < DEAF_MEMORY_BYTES


def flood(sock: socket.socket) -> None:
    for _ in range(FLOOD_LIMIT_BYTES // len(FLOOD)):
        sock.sendall(FLOOD)
