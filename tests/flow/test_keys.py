"""One intention, one effect: keys, replays, attachments and retries against a living proxy (semantics section 4)."""

import http.client
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from tests.harness.connections import CALLER, connected, read_until, receipts_of, request_bytes
from tests.harness.processes import Answer, Rig, chat, message

CHAT, MESSAGES, LOCAL = "/openai/v1/chat/completions", "/anthropic/v1/messages", "/local/v1/anything"
BODIES = {CHAT: chat, MESSAGES: message, LOCAL: chat}
RETRY = {"x-stainless-lang": "python", "x-stainless-retry-count": "1"}
# Where the first client leaves before its answer ends; long enough for what follows to find the call alive.
SLOW = "synthetic/chunks=10,interval=0.05"


def new_key() -> dict[str, str]:
    return {"Idempotency-Key": f"key-{uuid4()}"}


def dispositions(answers: list[Answer]) -> list[str]:
    return sorted(str(answer.disposition) for answer in answers)


def ask_and_leave(rig: Rig, path: str, body: bytes, mark: bytes) -> None:
    """Reads the answer up to `mark` and closes the socket: what a client does before it retries."""
    with connected(rig.port) as sock:
        sock.sendall(request_bytes(path, body))
        read_until(sock, mark)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, LOCAL])
def test_explicit_key_after_completion_replays_the_same_bytes(shared: Rig, path: str, stream: bool) -> None:
    """Body and stored headers equal; marked as a replay; the provider was asked once."""
    body, key = BODIES[path](text=f"replay {path} {stream}", stream=stream), new_key()
    first = shared.post(path, body, key)
    shared.settled()
    later = [shared.post(path, body, key) for _ in range(2)]
    assert (first.status, first.disposition, first.headers.get("idempotency-replayed")) == (200, "forwarded", None)
    for again in later:
        assert (again.status, again.body) == (200, first.body)
        assert again.headers["idempotency-replayed"] == "true"
        assert again.disposition == "replayed"
        assert again.headers["sendonce-call"] == first.headers["sendonce-call"]
        assert again.headers["content-type"] == first.headers["content-type"]
    assert [line["idempotency_key"] for line in receipts_of(shared, body)] == [key["Idempotency-Key"]]


def test_same_key_of_another_caller_is_a_call_of_its_own(shared: Rig) -> None:
    """Keys are compared inside one scope only, and answers never cross it."""
    body, key = chat(text="two callers"), new_key()
    answers = [shared.chat(body, {**key, "Authorization": f"Bearer sk-{who}"}) for who in ("a", "b")]
    assert dispositions(answers) == ["forwarded", "forwarded"]
    assert len({answer.headers["sendonce-call"] for answer in answers}) == 2
    assert len(receipts_of(shared, body)) == 2


@pytest.mark.parametrize(("path", "status"), [(CHAT, 400), (MESSAGES, 424), (LOCAL, 422)])
def test_same_key_for_another_request_is_refused(shared: Rig, path: str, status: int) -> None:
    """`key_reused` in the dialect's status, the same bytes on every repeat, and nothing recorded or sent."""
    key, other = new_key(), BODIES[path](text=f"another {path}")
    first = shared.post(path, BODIES[path](text=f"one {path}"), key)
    shared.settled()
    before = shared.status()["events"]
    refused = [shared.post(path, other, key) for _ in range(2)]
    assert [(answer.status, answer.code) for answer in refused] == [(status, "key_reused")] * 2
    assert refused[0].body == refused[1].body
    assert refused[0].headers["x-should-retry"] == "false"
    assert refused[0].headers["sendonce-call"] == first.headers["sendonce-call"]
    assert "retry-after" not in refused[0].headers
    assert receipts_of(shared, other) == []
    assert shared.status()["events"] == before


@pytest.mark.parametrize("model", ["synthetic/delay=0.3", "synthetic"])
def test_fifty_concurrent_requests_with_one_key_reach_the_provider_once(shared: Rig, model: str) -> None:
    """Overlapping or not: one leads, the others attach or get the replay, byte for byte."""
    body, key = chat(model, "fifty", stream=True), new_key()
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: shared.chat(body, key), range(50)))
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 1
    assert dispositions(answers).count("forwarded") == 1
    assert {answer.disposition for answer in answers} <= {"forwarded", "attached", "replayed"}
    assert len(receipts_of(shared, body)) == 1


@pytest.mark.parametrize("model", ["synthetic/delay=0.5", "synthetic"])
def test_eight_concurrent_identical_requests_without_a_key_are_eight_samples(shared: Rig, model: str) -> None:
    """All sockets open: eight intentions that look alike, never collapsed into one."""
    body = chat(model, "eight samples")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: shared.chat(body), range(8)))
    assert dispositions(answers) == ["forwarded"] * 8
    assert len({answer.body for answer in answers}) == 8
    assert len(receipts_of(shared, body)) == 8


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("model", ["synthetic", "synthetic/status=500"])
def test_sequential_identical_requests_are_each_forwarded(shared: Rig, kept: bool, model: str) -> None:
    """A delivered answer is never replayed to an unmarked request, on one connection or on fresh ones."""
    body = chat(model, f"sequential {kept}")
    about = {"Authorization": CALLER, "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=30)
    found = []
    for _ in range(12):
        connection.request("POST", CHAT, body, about)
        response = connection.getresponse()
        response.read()
        found.append(response.getheader("sendonce-disposition"))
        if not kept:
            connection.close()
    connection.close()
    assert found == ["forwarded"] * 12
    assert len(receipts_of(shared, body)) == 12


@pytest.mark.parametrize("retry", [{}, RETRY])
@pytest.mark.parametrize(("path", "mark"), [(CHAT, b"receipt"), (MESSAGES, b"receipt")])
def test_client_gone_within_the_answer_gets_it_on_its_retry(
    shared: Rig, path: str, mark: bytes, retry: dict[str, str]
) -> None:
    """Drained: an unmarked retry and a marked one attach to the running call, from byte 0."""
    body = BODIES[path](SLOW, f"gone {len(retry)}", stream=True)
    ask_and_leave(shared, path, body, mark)
    answer = shared.post(path, body, retry)
    assert (answer.status, answer.disposition) == (200, "attached")
    assert answer.body.count(b"receipt ") == 1
    assert len(receipts_of(shared, body)) == 1


def test_client_gone_before_the_end_gets_the_replay_once_it_is_over(shared: Rig) -> None:
    """The upstream was read to its end without it; nothing is asked again."""
    body = chat(SLOW, "gone and over", stream=True)
    ask_and_leave(shared, CHAT, body, b"receipt")
    shared.settled()
    answer = shared.chat(body)
    assert (answer.disposition, answer.headers["idempotency-replayed"]) == ("replayed", "true")
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert len(receipts_of(shared, body)) == 1


def test_certain_retry_beside_an_open_first_try_waits_and_is_handed_its_answer(shared: Rig) -> None:
    """It never makes a new occurrence while one is open; once the first socket closes it attaches."""
    body = chat("synthetic/hold=1", "retry beside its first try")
    with ThreadPoolExecutor(1) as pool, connected(shared.port) as first:
        first.sendall(request_bytes(CHAT, body))
        shared.await_receipt(body)
        retry = pool.submit(shared.chat, body, RETRY)
        first.close()
        assert retry.result().disposition in {"attached", "replayed"}
    assert len(receipts_of(shared, body)) == 1


def test_certain_retry_of_a_delivered_answer_is_replayed(shared: Rig) -> None:
    """Delivered to the client's kernel is not read by the client: the answer may have been lost behind it."""
    body = chat(text="late retry")
    first = shared.chat(body)
    again = shared.chat(body, RETRY)
    assert again.body == first.body
    assert again.disposition in {"attached", "replayed"}
    assert len(receipts_of(shared, body)) == 1


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_stored_stream_asked_for_without_stream_is_rendered_as_json(shared: Rig, path: str) -> None:
    """Claude Code's re-ask is the same intention; so is any other client's."""
    make, key = BODIES[path], new_key()
    streamed = shared.post(path, make(text=f"form {path}", stream=True), key)
    rendered = shared.post(path, make(text=f"form {path}"), key)
    assert (rendered.status, rendered.headers["content-type"]) == (200, "application/json")
    assert rendered.headers["idempotency-replayed"] == "true"
    assert rendered.headers["sendonce-call"] == streamed.headers["sendonce-call"]
    text = rendered.json["choices"][0]["message"]["content"] if path == CHAT else rendered.json["content"][0]["text"]
    assert text.startswith("receipt ")
    assert receipts_of(shared, make(text=f"form {path}")) == []


@pytest.mark.parametrize(("path", "status"), [(CHAT, 400), (MESSAGES, 424)])
def test_stored_json_asked_for_as_a_stream_is_refused(shared: Rig, path: str, status: int) -> None:
    """It cannot be rendered exactly: `form_differs`, and nothing is sent."""
    make, key = BODIES[path], new_key()
    shared.post(path, make(text=f"json {path}"), key)
    refused = shared.post(path, make(text=f"json {path}", stream=True), key)
    assert (refused.status, refused.code, refused.disposition) == (status, "form_differs", "refused")
    assert receipts_of(shared, make(text=f"json {path}", stream=True)) == []
