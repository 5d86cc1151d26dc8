"""Retries told in other words: the client repeats in its conversation what it got of an answer, so its body is another one.

The clients here write what Codex and Claude Code write (tests/golden), byte by byte; the real ones are in tests/clients.
"""

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.harness.connections import connected, read_until, request_bytes
from tests.harness.neighbours import beside
from tests.harness.passes import open_pass
from tests.harness.processes import Answer, Rig, until

SLOW = "synthetic/chunks=4,parts=2,interval={}"
REMARK = "<system-reminder>\nYour response above was cut off mid-stream. Resume directly.\n</system-reminder>"
Json = dict[str, Any]


@dataclass(frozen=True)
class Client:
    """How one client asks, and asks again after it has got the first part of an answer."""

    path: str
    headers: dict[str, str]
    ask: Callable[[str, str], Json]
    again: Callable[[Json, Json], Json]
    part_done: bytes  # in the stream, when the first part is whole
    refused: int


def codex_ask(model: str, text: str) -> Json:
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return {"model": model, "stream": True, "store": False, "input": [said], "client_metadata": {"turn_id": text}}


def codex_again(first: Json, part: Json) -> Json:
    kept = {name: value for name, value in part.items() if name != "status"}
    return {
        **first,
        "input": [*first["input"], {**kept, "internal_chat_message_metadata_passthrough": {"turn_id": "t"}}],
    }


def claude_ask(model: str, text: str) -> Json:
    said = {"role": "user", "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]}
    return {"model": model, "stream": True, "max_tokens": 32000, "messages": [said], "metadata": {"user_id": "one"}}


def claude_again(first: Json, part: Json) -> Json:
    (asked,) = first["messages"]
    said = {"role": "user", "content": asked["content"][0]["text"]}
    remark = {"role": "user", "content": [{"type": "text", "text": REMARK, "cache_control": {"type": "ephemeral"}}]}
    return {**first, "messages": [said, {"role": "assistant", "content": [part]}, remark]}


TURN = json.dumps({"turn_id": "turn-1", "request_kind": "turn"})
CLIENTS = {
    "codex": Client(
        "/openai/v1/responses",
        {"x-codex-turn-metadata": TURN, "originator": "codex_exec"},
        codex_ask,
        codex_again,
        b'"type":"response.output_item.done"',
        400,
    ),
    "claude code": Client(
        "/anthropic/v1/messages?beta=true",
        {"X-Claude-Code-Session-Id": "session-1", "X-Stainless-Lang": "js", "X-Stainless-Retry-Count": "0"},
        claude_ask,
        claude_again,
        b'"type":"content_block_stop"',
        424,
    ),
}
each_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)


def documents(stream: bytes) -> list[Json]:
    return [json.loads(line[6:]) for line in stream.replace(b"\r", b"").split(b"\n") if line.startswith(b"data: {")]


def first_part(stream: bytes) -> Json:
    """The first item or content block that came whole, as the client has it."""
    for document in documents(stream):
        if document["type"] == "response.output_item.done":
            item: Json = document["item"]
            return item
    text = "".join(
        d["delta"]["text"] for d in documents(stream) if d["type"] == "content_block_delta" and not d["index"]
    )
    return {"type": "text", "text": text}


def asked(rig: Rig, client: Client, document: Json, base: str = "") -> Answer:
    return rig.post(base + client.path, json.dumps(document).encode(), client.headers)


def leave_after_a_part(rig: Rig, client: Client, first: Json, base: str = "") -> Json:
    """The client's connection ends when it has one part whole; the part."""
    with connected(rig.port) as sock:
        sock.sendall(request_bytes(base + client.path, json.dumps(first).encode(), client.headers))
        return first_part(read_to_a_part(sock, client))


def started_again(client: Client, first: Json) -> tuple[Client, Json]:
    """The next start of the same program: another session, thread and turn, and nothing else."""
    if client is CLIENTS["codex"]:
        turn = TURN.replace("turn-1", "turn-2")
        return replace(client, headers=client.headers | {"x-codex-turn-metadata": turn}), {
            **first,
            "client_metadata": {"turn_id": "another"},
            "prompt_cache_key": "another",
        }
    headers = client.headers | {"X-Claude-Code-Session-Id": "session-2"}
    return replace(client, headers=headers), {**first, "metadata": {"user_id": "another"}}


def read_to_a_part(sock: socket.socket, client: Client) -> bytes:
    got = read_until(sock, client.part_done)
    while not got.endswith(b"\n\n\r\n"):
        got += sock.recv(1)
    return got


def sent(rig: Rig, before: int) -> int:
    return len(rig.provider_receipts()) - before


@each_client
def test_retold_retry_after_a_kill_is_refused_like_the_request_it_repeats(running: Rig, client: Client) -> None:
    """The proxy died in the middle of the answer: nobody may send it again, whatever words ask for it."""
    first = client.ask(SLOW.format(0.2), "killed in the middle")
    part = leave_after_a_part(running, client, first)
    running.restart()
    answers = [
        asked(running, client, document) for document in (client.again(first, part), first, client.again(first, part))
    ]
    assert [(answer.status, answer.code, answer.disposition) for answer in answers] == [
        (client.refused, "effect_happened", "refused")
    ] * 3
    assert len(running.provider_receipts()) == 1
    assert len(running.calls()) == 1


@each_client
def test_retold_retry_of_an_answer_in_flight_gets_that_answer(running: Rig, client: Client) -> None:
    """The client's leg was cut, the provider goes on: one receipt, and the rest of the answer is the client's."""
    first = client.ask(SLOW.format(0.2), "cut for the client")
    part = leave_after_a_part(running, client, first)
    answer = asked(running, client, client.again(first, part))
    assert (answer.status, answer.disposition) == (200, "replayed")
    assert len(running.provider_receipts()) == 1
    types = [document["type"] for document in documents(answer.body)]
    assert types[-1] in ("response.completed", "message_stop")
    done = [
        document["output_index"]
        for document in documents(answer.body)
        if document["type"] == "response.output_item.done"
    ]
    assert done == ([1] if client is CLIENTS["codex"] else [])  # the item that it has got is not given twice


@pytest.mark.parametrize("dies", [False, True], ids=["its connection is cut", "the proxy is killed"])
@each_client
def test_retold_retry_in_a_later_pass_of_a_run_is_not_sent(running: Rig, client: Client, dies: bool) -> None:
    """The pass was given a call that an earlier start of the program made: what it got of that, it may repeat in its own words."""
    first = client.ask(SLOW.format(0.7), "asked by the start before")
    before = open_pass(running, "retold").path
    leave_after_a_part(running, client, first, before)
    base = open_pass(running, "retold").path
    client, again = started_again(client, first)
    part = leave_after_a_part(running, client, again, base)
    if dies:
        running.restart()
    answer = asked(running, client, client.again(again, part), base)
    assert (answer.status, answer.disposition) == ((client.refused, "refused") if dies else (200, "replayed"))
    assert len(running.provider_receipts()) == 1


@each_client
def test_conversation_that_goes_on_in_a_run_beside_an_open_connection_is_sent(running: Rig, client: Client) -> None:
    """The pass has its answer whole: what follows is another question, and waits for no close."""
    base = open_pass(running, "goes-on").path
    first = client.ask("synthetic/chunks=4,parts=1", "arrived in a run")
    with connected(running.port) as sock:
        sock.sendall(request_bytes(base + client.path, json.dumps(first).encode(), client.headers))
        got = read_until(sock, b"0\r\n\r\n")
        running.settled()
        again = asked(running, client, client.again(first, first_part(got)), base)
    assert (again.status, again.disposition, len(running.provider_receipts())) == (200, "forwarded", 2)


@each_client
def test_conversation_that_goes_on_after_a_whole_answer_is_sent(running: Rig, client: Client) -> None:
    """The same words behind an answer that arrived are a new question."""
    first = client.ask("synthetic/chunks=4,parts=1", "arrived")
    answer = asked(running, client, first)
    running.settled()
    again = asked(running, client, client.again(first, first_part(answer.body)))
    assert (again.status, again.disposition, len(running.provider_receipts())) == (200, "forwarded", 2)


@each_client
def test_conversation_with_a_word_of_its_own_is_sent(running: Rig, client: Client) -> None:
    """A person who goes on after a broken answer asks something new: it is sent beside what is unresolved."""
    first = client.ask(SLOW.format(0.2), "a person goes on")
    part = leave_after_a_part(running, client, first)
    running.restart()
    again = client.again(first, part)
    name = "input" if "input" in again else "messages"
    again[name] = [*again[name], {"role": "user", "content": "and in French"}]
    assert asked(running, client, again | {"model": "synthetic"}).disposition == "forwarded"
    assert len(running.provider_receipts()) == 2


@each_client
def test_retold_retry_in_another_turn_or_session_is_sent(running: Rig, client: Client) -> None:
    """What was relayed to one session was not relayed to the other."""
    first = client.ask(SLOW.format(0.2), "another session")
    part = leave_after_a_part(running, client, first)
    running.restart()
    others = {"x-codex-turn-metadata": json.dumps({"turn_id": "turn-2"}), "X-Claude-Code-Session-Id": "session-2"}
    headers = {name: others.get(name, value) for name, value in client.headers.items()}
    body = json.dumps(client.again(first, part) | {"model": "synthetic"}).encode()
    assert running.post(client.path, body, headers).disposition == "forwarded"


ACCEPTING = """
[upstreams.openai.policy.generate]
on_unknown = "accept"
after_cut_stream = "accept"
[upstreams.anthropic.policy.generate]
on_unknown = "accept"
after_cut_stream = "accept"
"""


@each_client
def test_retold_retry_that_a_setting_accepts_continues_the_same_call(shared: Rig, client: Client) -> None:
    """Its second generation, the attempt it repeats named; and the next retry of that one is known again."""
    with beside(shared, settings=ACCEPTING) as made:
        first = client.ask("synthetic/chunks=4,parts=2,cut=3,times=1", "accepted")
        before = len(made.provider_receipts())
        cut = made_cut(made, client, first)
        again = client.again(first, first_part(cut))
        made_cut(made, client, again)  # another body: the provider cuts its first answer, too
        answer = asked(made, client, again)
        assert (answer.status, answer.disposition, sent(made, before)) == (200, "forwarded", 3)
        rows = sorted(made.calls(), key=lambda row: row["generation"])
        assert [(row["key"], row["generation"]) for row in rows] == [(rows[0]["key"], number) for number in (1, 2, 3)]
        for earlier, row, parts in zip(rows, rows[1:], (1, 0), strict=False):
            claim = made.claim(row["call_id"])
            assert claim.evidence == {"retells": {"call": earlier["call_id"], "parts": parts}}
            assert claim.accepts_attempt == f"{earlier['call_id']}.1"


def made_cut(rig: Rig, client: Client, first: Json) -> bytes:
    """The provider cut the stream; what the client got of it."""
    with connected(rig.port) as sock:
        sock.sendall(request_bytes(client.path, json.dumps(first).encode(), client.headers))
        got = b""
        while piece := sock.recv(65536):
            got += piece
    until(lambda: not rig.status()["in_flight"])
    return got


def test_retold_retry_of_one_of_two_equal_questions_gets_its_own_answer(running: Rig) -> None:
    """Two sub-agents of one session ask alike and both lose their connection; the second one comes back first."""
    client = CLIENTS["claude code"]
    body = json.dumps(client.ask(SLOW.format(0.4), "two sub-agents")).encode()
    with connected(running.port) as one, connected(running.port) as two:
        for count, sock in enumerate((one, two), 1):
            sock.sendall(request_bytes(client.path, body, client.headers))
            running.await_receipt(body, count)
        parts = [first_part(read_to_a_part(sock, client)) for sock in (one, two)]
    for part in reversed(parts):
        answer = asked(running, client, client.again(json.loads(body), part))
        assert (answer.disposition, first_part(answer.body)) == ("replayed", part)
    assert len(running.provider_receipts()) == 2


REFUSING = """
[upstreams.openai.policy.generate]
after_server_error = "refuse"
[upstreams.anthropic.policy.generate]
after_server_error = "refuse"
"""


@each_client
def test_retold_retry_behind_an_in_band_error_is_ruled_like_its_first_words(shared: Rig, client: Client) -> None:
    """The error arrived whole, and the answer did not: by another body it must not get what its own is refused."""
    with beside(shared, settings=REFUSING) as made:
        before = len(made.provider_receipts())
        first = client.ask("synthetic/chunks=4,parts=2,error_after=3,times=1", "an error in band")
        part = first_part(asked(made, client, first).body)
        made.settled()
        answers = [asked(made, client, document) for document in (client.again(first, part), first)]
        assert [(answer.status, answer.code) for answer in answers] == [(client.refused, "effect_unknown")] * 2
        assert sent(made, before) == 1


def test_retold_retry_in_a_session_with_many_open_calls_is_known(running: Rig) -> None:
    """Claude Code's lineage is its session: sub-agents in flight and failed calls stand between a call and its retry."""
    client = CLIENTS["claude code"]
    first = client.ask(SLOW.format(0.2), "in a busy session")
    part = leave_after_a_part(running, client, first)
    running.restart()
    for number in range(12):
        assert asked(running, client, client.ask("synthetic/status=400", f"refused {number}")).status == 400
    assert asked(running, client, client.again(first, part)).code == "effect_happened"
    assert len(running.provider_receipts()) == 13


@pytest.mark.parametrize("limit", ["\u00b2", "9" * 5000, True, None, [], 1e30])
def test_odd_output_limits_are_passed_on_and_break_no_comparison(running: Rig, limit: Any) -> None:
    """A number that only looks like one."""
    client = CLIENTS["claude code"]
    first = {**client.ask(SLOW.format(0.05), "odd"), "max_tokens": limit}
    part = leave_after_a_part(running, client, first)
    assert asked(running, client, client.again(first, part)).status == 200
    assert len(running.provider_receipts()) == 1
