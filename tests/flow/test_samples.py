"""Whoever wants several answers to one prompt gets as many: no deliberate sample is merged with another or refused for nothing."""

import json
import re
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.harness.connections import connected, read_answer, receipts_of, request_bytes
from tests.harness.neighbours import beside, process_of
from tests.harness.processes import Answer, Rig, chat, message

CHAT, MESSAGES = "/openai/v1/chat/completions", "/anthropic/v1/messages"
BODIES = {CHAT: chat, MESSAGES: message}
FINAL = {CHAT: 400, MESSAGES: 424}
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST
SAMPLES = 100
either_form = pytest.mark.parametrize(
    ("path", "stream"), [(CHAT, False), (MESSAGES, True)], ids=["chat-json", "messages-stream"]
)
both_dialects = pytest.mark.parametrize("path", [CHAT, MESSAGES])


def receipt_in(answer: Answer) -> int:
    """Which of the provider's receipts this answer came with."""
    found = re.search(rb"receipt (\d+)", answer.body)
    assert found is not None, answer
    return int(found[1])


# --- at once -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def best_of_eight(shared: Rig) -> Iterator[Rig]:
    """A proxy of its own: it is killed."""
    with beside(shared) as made:
        yield made


@both_dialects
def test_eight_samples_killed_while_held_are_eight_unknowns_and_two_settled_ones_allow_two_more(
    best_of_eight: Rig, path: str
) -> None:
    """Each stays an occurrence of its own: a ninth request is refused, a third after two decisions as well."""
    rig, body = best_of_eight, BODIES[path]("synthetic/hold=forever,times=8", f"best of eight {path}")
    with ExitStack() as clients:
        for _ in range(8):
            client = clients.enter_context(connected(rig.port))
            client.sendall(request_bytes(path, body))
        rig.await_receipt(body, 8)
        process_of(rig).kill()
    rig.restart()
    unknown = [row for row in rig.calls() if row["stage"] == "effect_unknown"]
    assert (len(unknown), sorted(rig.show(row["call_id"])["occurrence"] for row in unknown)) == (8, [*range(1, 9)])

    def refused() -> bool:
        answer = rig.post(path, body)
        return (answer.status, answer.code, answer.disposition) == (FINAL[path], "effect_unknown", "refused")

    assert refused()
    for row in (unknown[2], unknown[5]):
        done = rig.command("reconcile", row["call_id"], "--not-served", "--reason", "looked", "--by", "ada")
        assert done.returncode == 0, done.stderr
    with ThreadPoolExecutor(3) as pool:  # at once, so that two decisions are not taken for three
        answers = list(pool.map(lambda _: rig.post(path, body), range(3)))
    assert sorted(answer.status for answer in answers) == [200, 200, FINAL[path]]
    assert len({receipt_in(answer) for answer in answers if answer.status == 200}) == 2
    assert len(receipts_of(rig, body)) == 10
    assert refused()
    assert len(receipts_of(rig, body)) == 10


@both_dialects
def test_sub_agents_that_ask_alike_beside_a_running_stream_each_get_an_answer(shared: Rig, path: str) -> None:
    """Streaming and plain, begun while the first one streams, all sockets open: four receipts, four answers."""
    slow = "synthetic/chunks=8,interval=0.1"
    forms = [BODIES[path](slow, "sub-agent", stream=stream) for stream in (True, False, True, False)]
    with ExitStack() as clients:
        sockets = [clients.enter_context(connected(shared.port)) for _ in forms]
        for number, (client, body) in enumerate(zip(sockets, forms, strict=True)):
            client.sendall(request_bytes(path, body))
            shared.await_receipt(body, 1 + forms[:number].count(body))
        answers = [read_answer(client) for client in sockets]
    assert {(answer.status, answer.disposition) for answer in answers} == {(200, "forwarded")}
    assert len({receipt_in(answer) for answer in answers}) == 4
    assert [len(receipts_of(shared, body)) for body in forms[:2]] == [2, 2]


# --- one after another -------------------------------------------------------------------------------------------------


@either_form
def test_hundred_samples_on_one_connection_are_a_hundred_answers(shared: Rig, path: str, stream: bool) -> None:
    """The next request on a connection proves that the answer before it was delivered."""
    body = BODIES[path](text=f"one connection {stream}", stream=stream)
    with connected(shared.port) as client:
        answers = []
        for _ in range(SAMPLES):
            client.sendall(request_bytes(path, body))
            answers.append(read_answer(client))
    assert len({receipt_in(answer) for answer in answers}) == SAMPLES
    assert len(receipts_of(shared, body)) == SAMPLES


def sampled(rig: Rig, path: str, body: bytes, *, reset: bool) -> Answer:
    """One whole answer on a connection of its own, closed by the client right after its last byte."""
    with connected(rig.port) as client:
        client.sendall(request_bytes(path, body))
        answer = read_answer(client)
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return answer


@either_form
def test_hundred_samples_on_connections_closed_by_fin_are_a_hundred_answers(
    shared: Rig, path: str, stream: bool
) -> None:
    """A FIN after an acknowledged end is a delivery."""
    body = BODIES[path](text=f"fin {stream}", stream=stream)
    answers = [sampled(shared, path, body, reset=False) for _ in range(SAMPLES)]
    assert len({receipt_in(answer) for answer in answers}) == SAMPLES
    assert len(receipts_of(shared, body)) == SAMPLES


@both_dialects
def test_hundred_streams_closed_by_reset_after_their_end_are_a_hundred_answers(shared: Rig, path: str) -> None:
    """A reset after an acknowledged terminal event is a delivery: some clients close so once they have it."""
    body = BODIES[path](text="reset stream", stream=True)
    answers = [sampled(shared, path, body, reset=True) for _ in range(SAMPLES)]
    assert len({receipt_in(answer) for answer in answers}) == SAMPLES
    assert len(receipts_of(shared, body)) == SAMPLES


@both_dialects
def test_plain_answers_closed_by_reset_count_as_lost_and_are_replayed(shared: Rig, path: str) -> None:
    """A client that resets may have died with the answer unread: it is handed out again, and nothing is sent, until a FIN."""
    body = BODIES[path](text="reset json")
    answers = [sampled(shared, path, body, reset=True) for _ in range(SAMPLES)]
    assert len({answer.body for answer in answers}) == 1
    assert len(receipts_of(shared, body)) == 1
    last, another = (sampled(shared, path, body, reset=False) for _ in range(2))
    assert (last.disposition, another.disposition) == ("replayed", "forwarded")
    assert len(receipts_of(shared, body)) == 2


# --- what only looks alike ---------------------------------------------------------------------------------------------

CLAUDE = {
    "User-Agent": "claude-cli/2.1.332 (external, cli)",
    "x-app": "cli",
    "X-Claude-Code-Session-Id": "5e551011-0000-4000-8000-000000000001",
    "X-Stainless-Lang": "js",
    "X-Stainless-Retry-Count": "0",
    "anthropic-version": "2023-06-01",
}


def limited(path: str, text: str, max_tokens: int, **more: object) -> bytes:
    return json.dumps({**json.loads(BODIES[path](text=text)), "max_tokens": max_tokens, **more}).encode()


def leave(rig: Rig, path: str, body: bytes, headers: dict[str, str] | None = None) -> None:
    """Asks, and goes before the answer: whatever is judged the same intention is handed this one's."""
    with connected(rig.port) as client:
        client.sendall(request_bytes(path, body, headers))
        rig.await_receipt(body)


@pytest.mark.parametrize("headers", [{}, CLAUDE], ids=["sdk", "claude-code"])
@pytest.mark.parametrize(("small", "large"), [(1, 32_000), (1, 2), (4096, 32_000)])
@both_dialects
def test_warm_up_with_a_small_output_limit_does_not_answer_the_real_request(
    shared: Rig, path: str, small: int, large: int, headers: dict[str, str]
) -> None:
    """Neither one whose client has left, nor one that was answered."""
    warm_up, real = (limited(path, f"warm-up {small} {large} {len(headers)}", count) for count in (small, large))
    leave(shared, path, warm_up, headers)
    assert shared.post(path, real, headers).disposition == "forwarded"
    assert [len(receipts_of(shared, body)) for body in (warm_up, real)] == [1, 1]


def test_output_limit_above_4096_of_claude_code_is_not_part_of_the_intention(shared: Rig) -> None:
    """It asks again with 64,000 what it asked with 128,000: after a broken stream, the same intention."""
    first, again = (limited(MESSAGES, "fallback", count) for count in (128_000, 64_000))
    leave(shared, MESSAGES, first, CLAUDE)
    assert shared.messages(again, CLAUDE).disposition in ("attached", "replayed")
    assert [len(receipts_of(shared, body)) for body in (first, again)] == [1, 0]


def session(number: int) -> dict[str, object]:
    return {"metadata": {"user_id": json.dumps({"device_id": "d", "session_id": f"session-{number}"})}}


def test_two_sessions_of_claude_code_with_one_prompt_are_two_intentions(shared: Rig) -> None:
    """The session stands in the body; the first one's client has left, and its answer is not handed to the other."""
    bodies = [limited(MESSAGES, "two sessions", 32_000, **session(number)) for number in (1, 2)]
    leave(shared, MESSAGES, bodies[0], CLAUDE)
    other = {**CLAUDE, "X-Claude-Code-Session-Id": "5e551011-0000-4000-8000-000000000002"}
    assert shared.messages(bodies[1], other).disposition == "forwarded"
    assert [len(receipts_of(shared, body)) for body in bodies] == [1, 1]


@both_dialects
def test_two_callers_with_one_prompt_are_two_intentions(shared: Rig, path: str) -> None:
    """Answers never cross the scope, also where the first caller has left."""
    body = BODIES[path](text="two callers, one prompt")
    leave(shared, path, body, {"Authorization": "Bearer sk-one"})
    assert shared.post(path, body, {"Authorization": "Bearer sk-two"}).disposition == "forwarded"
    assert len(receipts_of(shared, body)) == 2
