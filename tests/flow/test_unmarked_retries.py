"""A retry never costs a second send, said to be one or not; and headers that lie about it change nothing for the worse."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import pytest

from tests.harness.connections import connected, read_answer, receipts_of, request_bytes
from tests.harness.crashes import CUT
from tests.harness.neighbours import beside, process_of
from tests.harness.processes import Answer, Rig, chat, message, until
from tests.harness.upstreams import CLOSE, Act, Piece, RawUpstream, raw_upstream

CHAT, MESSAGES, EMBEDDINGS = "/openai/v1/chat/completions", "/anthropic/v1/messages", "/openai/v1/embeddings"
BODIES = {CHAT: chat, MESSAGES: message}
FINAL = {CHAT: 400, MESSAGES: 424}
PYTHON_SDK = {"x-stainless-lang": "python"}
RETRY = {**PYTHON_SDK, "x-stainless-retry-count": "1"}
PATIENCE_S = 0.3  # how long a client waits that will give up
GIVING_UP = 5
PAGE_BYTES = 12_000_000  # reading it takes longer than the client's next request
POLLS = 50
POLL = b'{"model":"synthetic","input":"is it up?"}'
both_dialects = pytest.mark.parametrize("path", [CHAT, MESSAGES])


def whole(status: bytes, body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (status, kind, len(body), body)


@dataclass
class Faked:
    """A proxy before an upstream whose answers the test writes, and may change between two requests."""

    rig: Rig
    upstream: RawUpstream
    replies: dict[str, tuple[Piece, ...]] = field(default_factory=dict)

    def asked(self, path: str) -> int:
        return sum(request.split(b" ")[1].decode() == path for request in self.upstream.requests)


@pytest.fixture(scope="module")
def faked(shared: Rig) -> Iterator[Faked]:
    replies: dict[str, tuple[Piece, ...]] = {}
    with raw_upstream(replies) as upstream:
        names = [argument for name in ("openai", "anthropic") for argument in ("--upstream", f"{name}={upstream.url}")]
        with beside(shared, *names) as rig:
            yield Faked(rig, upstream, replies)


# --- a slow first answer ------------------------------------------------------------------------------------------------


@both_dialects
def test_client_that_gives_up_five_times_gets_the_one_answer_in_the_end(faked: Faked, path: str) -> None:
    """Each time on a fresh connection, with nothing that marks a retry, while the provider works on the first request."""
    own_path = path.removeprefix("/openai").removeprefix("/anthropic")
    answer = b'{"choices":[],"content":[],"type":"message"}'
    faked.upstream.released.clear()
    faked.replies[own_path] = (Act.HOLD, whole(b"200 OK", answer))
    body = BODIES[path](text="slow")
    for _ in range(GIVING_UP):
        with connected(faked.rig.port) as client:
            client.settimeout(PATIENCE_S)
            client.sendall(request_bytes(path, body))
            with pytest.raises(TimeoutError):
                client.recv(1)
    with connected(faked.rig.port) as client:
        client.sendall(request_bytes(path, body))
        faked.upstream.released.set()
        last = read_answer(client)
    assert (last.status, last.body) == (200, answer)
    assert last.disposition in ("attached", "replayed")
    assert faked.asked(own_path) == 1


@both_dialects
def test_retry_right_behind_a_large_gateway_error_is_refused_as_behind_a_small_one(faked: Faked, path: str) -> None:
    """On the same connection, while the answer is still being read and judged: nothing proves yet that it may be sent again."""
    own_path = path.removeprefix("/openai").removeprefix("/anthropic")
    page = whole(b"502 Bad Gateway", b"<html>" + b"x" * PAGE_BYTES, b"text/html")
    faked.replies[own_path], before = (page,), faked.asked(own_path)
    request = request_bytes(path, BODIES[path](text="large gateway error"))
    with connected(faked.rig.port) as client:
        client.sendall(request)
        assert read_answer(client).status == 502
        client.sendall(request)
        again = read_answer(client)
    sends = faked.asked(own_path) - before
    assert (sends, again.status, again.disposition) == (1, FINAL[path], "refused")


# --- a health check ----------------------------------------------------------------------------------------------------

EMBEDDED = whole(b"200 OK", b'{"object":"list","data":[],"model":"synthetic"}')
HALF = EMBEDDED[:-10]
HTML = whole(b"502 Bad Gateway", b"<html>Bad Gateway</html>", b"text/html")
# What befalls one poll of many; nothing of it may be held against the next.
BLIPS: dict[str, tuple[Piece, ...]] = {
    "killed": (Act.HOLD, EMBEDDED),
    "gateway error": (HTML,),
    "cut within the answer": (HALF, CLOSE),
    "cut before the answer": (CLOSE,),
    "reset": (Act.RESET,),
}


@pytest.mark.parametrize("blip", BLIPS)
def test_health_check_is_never_refused_after_one_blip(faked: Faked, blip: str) -> None:
    """An embedding is billed and keeps nothing, so `on_unknown` and the others accept: fifty polls, one blip, fifty-one sends at most."""
    own_path, before = "/v1/embeddings", faked.asked("/v1/embeddings")
    poll = POLL.replace(b"it", f"{blip} ".encode())

    def polled() -> Answer:
        return faked.rig.post(EMBEDDINGS, poll)

    faked.replies[own_path] = (EMBEDDED,)
    answers = [polled() for _ in range(POLLS // 2)]
    faked.replies[own_path] = BLIPS[blip]
    if blip == "killed":
        faked.upstream.released.clear()
        with ThreadPoolExecutor(1) as pool:
            killed = pool.submit(polled)
            until(lambda: faked.asked(own_path) == before + POLLS // 2 + 1)
            process_of(faked.rig).kill()
            assert isinstance(killed.exception(), CUT)
        faked.upstream.released.set()
        faked.rig.restart()
    else:
        with suppress(*CUT):
            assert polled().status != 200
    faked.replies[own_path] = (EMBEDDED,)
    answers += [polled() for _ in range(POLLS // 2)]
    assert {(answer.status, answer.disposition) for answer in answers} == {(200, "forwarded")}
    assert faked.asked(own_path) == before + POLLS + 1


# --- headers that lie --------------------------------------------------------------------------------------------------


@both_dialects
def test_first_request_that_calls_itself_the_sixth_is_forwarded(shared: Rig, path: str) -> None:
    """Its first tries never reached this proxy."""
    body = BODIES[path](text="sixth")
    answer = shared.post(path, body, {**PYTHON_SDK, "x-stainless-retry-count": "5"})
    assert (answer.status, answer.disposition) == (200, "forwarded")
    assert len(receipts_of(shared, body)) == 1


@pytest.mark.parametrize("count", ["-1", "1.0", "0", "", "one", "٣"])
def test_count_that_is_no_positive_number_marks_no_retry(shared: Rig, count: str) -> None:
    """After a delivered answer it is another sample, as for any unmarked request."""
    body = chat(text=f"count {count}")
    lie = request_bytes(CHAT, body, PYTHON_SDK).replace(
        b"Host: proxy", b"Host: proxy\r\nx-stainless-retry-count: " + count.encode()
    )
    for _ in range(2):
        with connected(shared.port) as client:
            client.sendall(lie)
            assert read_answer(client).disposition == "forwarded"
    assert len(receipts_of(shared, body)) == 2


@both_dialects
def test_client_that_always_says_retry_gets_its_first_answer_again_on_each_new_connection(
    shared: Rig, path: str
) -> None:
    """Within `late_retry_s` its word is taken: a FIN does not prove that the client read what its kernel got."""
    body = BODIES[path](text="always a retry")
    answers = [shared.post(path, body, RETRY) for _ in range(10)]
    assert [answer.status for answer in answers] == [200] * 10
    assert len({answer.body for answer in answers}) == 1
    assert len(receipts_of(shared, body)) == 1


@both_dialects
def test_client_that_always_says_retry_on_one_connection_gets_a_new_answer_each_time(shared: Rig, path: str) -> None:
    """Its next request proves that it has read the answer before; only while that one is being recorded is it handed out."""
    body = BODIES[path](text="always a retry, one connection")
    with connected(shared.port) as client:
        answers = []
        for _ in range(10):
            client.sendall(request_bytes(path, body, RETRY))
            answers.append(read_answer(client))
            shared.settled()
    assert [answer.disposition for answer in answers] == ["forwarded"] * 10
    assert len({answer.body for answer in answers}) == 10
    assert len(receipts_of(shared, body)) == 10


def test_marked_retry_after_late_retry_s_is_another_sample(shared: Rig) -> None:
    """What was delivered so long ago was not lost on its way."""
    body = chat(text="too late")
    with beside(shared, settings="[timeouts]\nlate_retry_s = 0.001\n") as rig:
        first = rig.chat(body)
        rig.settled()
        again = rig.chat(body, RETRY)
    assert (again.disposition, again.body != first.body) == ("forwarded", True)
    assert len(receipts_of(shared, body)) == 2


@both_dialects
def test_marked_retries_beside_open_first_tries_send_nothing(shared: Rig, path: str) -> None:
    """Two samples are held and their sockets stay open: each of three retries waits in vain, and is told so."""
    body = BODIES[path]("synthetic/hold=forever", "open beside retries")
    impatient = "[timeouts]\nretry_wait_s = 0.2\n"
    with beside(shared, settings=impatient) as rig, connected(rig.port) as one, connected(rig.port) as two:
        for client in (one, two):
            client.sendall(request_bytes(path, body))
        rig.await_receipt(body, 2)
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda _: rig.post(path, body, RETRY), range(3)))
    assert [(answer.status, answer.code) for answer in answers] == [(409, "in_progress")] * 3
    assert {answer.headers["x-should-retry"] for answer in answers} == {"true"}
    assert len(receipts_of(shared, body)) == 2


@both_dialects
def test_as_many_unmarked_retries_as_samples_were_left_are_handed_their_answers(shared: Rig, path: str) -> None:
    """Three samples whose clients left are three answers owed, each to one retry; the fourth request is a sample."""
    body = BODIES[path]("synthetic/hold=1", "three left")
    with ExitStack() as clients:
        for _ in range(3):
            clients.enter_context(connected(shared.port)).sendall(request_bytes(path, body))
        shared.await_receipt(body, 3)
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: shared.post(path, body), range(3)))
    assert {answer.disposition for answer in answers} <= {"attached", "replayed"}
    assert len({answer.body for answer in answers}) == 3
    assert len(receipts_of(shared, body)) == 3
    assert shared.post(path, body).disposition == "forwarded"
    assert len(receipts_of(shared, body)) == 4
