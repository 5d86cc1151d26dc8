"""What a line-by-line review found, each kept from coming back: keys, broken uploads, clients that leave, words of acceptance."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.harness.connections import (
    connected,
    exchange,
    read_answer,
    read_until,
    receipts_of,
    request_bytes,
    status_of,
)
from tests.harness.crashes import CUT
from tests.harness.neighbours import beside, process_of
from tests.harness.processes import Rig, chat, message, until

CHAT, MESSAGES = "/openai/v1/chat/completions", "/anthropic/v1/messages"
FINAL = {CHAT: 400, MESSAGES: 424}
BODIES = {CHAT: chat, MESSAGES: message}
RETRY = {"x-stainless-lang": "python", "x-stainless-retry-count": "1"}
BAD_CHUNK = b"5\r\nhello\r\nnonsense\r\n"
AT_ONCE_S = 2.5  # far below timeouts.retry_wait_s = 5
both_dialects = pytest.mark.parametrize("path", [CHAT, MESSAGES])


# --- a retry beside the open connection of its first try ---------------------------------------------------------------


@both_dialects
@pytest.mark.parametrize("status", [429, 529])
@pytest.mark.parametrize("recorded", [True, False], ids=["once-recorded", "immediately"])
def test_retry_beside_the_idle_connection_of_a_refused_try_is_forwarded_at_once(
    shared: Rig, path: str, status: int, recorded: bool
) -> None:
    """The first connection got its whole answer and waits for more; it claims nothing of what proved to be absent."""
    body = BODIES[path](f"synthetic/status={status},times=1", f"idle beside {status} {recorded}")
    with connected(shared.port) as first:
        first.sendall(request_bytes(path, body))
        refused = read_answer(first)
        if recorded:
            shared.settled()
        began = time.monotonic()
        again = shared.post(path, body, RETRY)
        took_s = time.monotonic() - began
    assert refused.status == status
    assert (again.status, again.disposition) == (200, "resumed")
    assert took_s < AT_ONCE_S
    assert len(receipts_of(shared, body)) == 2
    shared.settled()
    newest = shared.show(again.headers["sendonce-call"])
    assert (newest["occurrence"], newest["generation"]) == (1, 2)


# --- a broken upload under an explicit key -----------------------------------------------------------------------------


def test_broken_upload_leaves_a_recorded_manifest_as_it_is(shared: Rig) -> None:
    """Drift is measured against what was to be sent, whatever came in between; then the right body goes on."""
    key = {"Idempotency-Key": "upload"}
    body, other = chat(text="the right one"), chat(text="another one")
    too_large = chat(text="x" * 3000)
    with beside(shared, settings="[limits]\nbody_bytes = 2000\n", failpoints="after-manifest=kill") as made:
        with pytest.raises(CUT):
            made.chat(body, key)
        assert process_of(made).wait() == -9
        made.restart()
        events = made.status()["events"]
        for _ in range(2):
            refused = made.chat(other, key)
            assert (refused.status, refused.code) == (400, "drift")
            large = made.chat(too_large, key)
            assert (large.status, large.code) == (413, "body_too_large")
            framing = b"Transfer-Encoding: chunked\r\n"
            chunked = request_bytes(CHAT, b"", key).replace(b"Content-Length: 0\r\n", framing)
            assert status_of(exchange(made.port, chunked + BAD_CHUNK)) == 400
            exchange(made.port, request_bytes(CHAT, body, key)[:-5], half_close=True)  # gone within its body: no answer
        assert made.status()["events"] == events
        right = made.chat(body, key)
        assert (right.status, right.disposition) == (200, "resumed")
    assert (len(receipts_of(shared, body)), receipts_of(shared, other)) == (1, [])


# --- a client that leaves, where the upstream is not drained -----------------------------------------------------------

ABANDONING = """
on_client_disconnect = "cancel_after"
timeouts.cancel_grace_s = 0.2

[upstreams.openai.policy.generate]
after_cut_stream = "accept"
[upstreams.anthropic.policy.generate]
after_cut_stream = "accept"
"""


@pytest.fixture(scope="module")
def abandoning(shared: Rig) -> Iterator[Rig]:
    """Gives a call up 0.2 s after its last client; a cut that a client was told of would be sent again."""
    with beside(shared, settings=ABANDONING) as made:
        yield made


# model, what the client reads before it leaves -> observation, stage
LEAVES = {
    "before the head": ("synthetic/hold=forever", b"", "lost", "effect_unknown"),
    "after the first event": ("synthetic/chunks=9,interval=600", b"receipt", "partial", "effect_happened"),
}


@both_dialects
@pytest.mark.parametrize("when", LEAVES)
def test_call_of_a_client_that_left_a_silent_provider_is_given_up(abandoning: Rig, path: str, when: str) -> None:
    """`client_abort`; nobody was told of a cut, so `on_unknown` rules and the same request is refused."""
    model, mark, observation, stage = LEAVES[when]
    body = BODIES[path](model, f"leaves {when}", stream=True)
    with connected(abandoning.port) as client:
        client.sendall(request_bytes(path, body))
        abandoning.await_receipt(body)
        read_until(client, mark)
    digest = receipts_of(abandoning, body)[0]["body_blake3"]
    until(lambda: _stage_and_life(abandoning, digest) == (stage, False))
    call = next(row["call_id"] for row in abandoning.calls() if row["body_blake3"] == digest)
    (attempt,) = abandoning.show(call)["attempt_rows"]
    assert (attempt["observation"], attempt["ended_by"]) == (observation, "client_abort")
    for headers in ({}, RETRY):
        refused = abandoning.post(path, body, headers)
        assert (refused.status, refused.code, refused.disposition) == (FINAL[path], stage, "refused")
    assert len(receipts_of(abandoning, body)) == 1


COMING_BACK = """
on_client_disconnect = "cancel_after"
timeouts.cancel_grace_s = 3
"""


@both_dialects
def test_call_whose_client_comes_back_within_the_grace_is_not_given_up(shared: Rig, path: str) -> None:
    """The grace counts only while nobody is there: the answer comes long after it, and is the first one."""
    with beside(shared, settings=COMING_BACK) as made:
        body = BODIES[path]("synthetic/hold=5", "comes back", stream=True)
        with connected(made.port) as client:
            client.sendall(request_bytes(path, body))
            made.await_receipt(body)
        answer = made.post(path, body)
        assert (answer.status, answer.disposition, len(receipts_of(made, body))) == (200, "attached", 1)
        (attempt,) = made.show(answer.headers["sendonce-call"])["attempt_rows"]
        assert attempt["observation"] == "response"


@both_dialects
def test_drain_ends_at_its_limit_and_says_why(shared: Rig, path: str) -> None:
    """A provider that never ends must not hold a call for ever; its effect stays what is proven of it."""
    with beside(shared, settings="timeouts.drain_limit_s = 0.3\n") as made:
        body = BODIES[path]("synthetic/hold=forever", "drained to the limit", stream=True)
        with connected(made.port) as client:
            client.sendall(request_bytes(path, body))
            made.await_receipt(body)
        digest = receipts_of(made, body)[0]["body_blake3"]
        until(lambda: _stage_and_life(made, digest) == ("effect_unknown", False))
        (row,) = made.calls()
        (attempt,) = made.show(row["call_id"])["attempt_rows"]
        assert (attempt["observation"], attempt["ended_by"]) == ("lost", "client_abort")
        assert made.post(path, body).code == "effect_unknown"


def _stage_and_life(rig: Rig, body_digest: str) -> tuple[str, bool]:
    row = next(row for row in rig.calls() if row["body_blake3"] == body_digest)
    return row["stage"], row["alive"]


# --- our own answer to a lost request is the refusal that follows ------------------------------------------------------


@both_dialects
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("fault", ["reset=before", "reset=head"])
def test_answer_to_a_lost_request_is_the_refusal_it_gets_next(shared: Rig, path: str, fault: str, stream: bool) -> None:
    """Byte for byte, head included: who asks again learns nothing else."""
    body = BODIES[path](f"synthetic/{fault}", f"same bytes {fault} {stream}", stream=stream)
    lost, *refused = [shared.post(path, body, headers) for headers in ({}, {}, RETRY)]
    assert (lost.status, lost.code) == (FINAL[path], "effect_unknown")
    for later in refused:
        assert (later.status, later.body) == (lost.status, lost.body)
        assert {**later.headers, "sendonce-disposition": "-"} == {**lost.headers, "sendonce-disposition": "-"}
    assert len(receipts_of(shared, body)) == 1


# --- Sendonce-Accept names one attempt, once ---------------------------------------------------------------------------

# From the refused call's id and another one's: words that accept nothing.
WRONG_WORDS: dict[str, Callable[[str, str], str]] = {
    "attempt of another call": lambda _, other: f"{other}.1",
    "call without its attempt": lambda call, _: call,
    "attempt that was never made": lambda call, _: f"{call}.2",
    "attempt zero": lambda call, _: f"{call}.0",
    "number in another spelling": lambda call, _: f"{call}.01",
    "two attempts": lambda call, other: f"{call}.1, {other}.1",
    "upper case": lambda call, _: f"{call}.1".upper(),
    "yes": lambda _call, _other: "yes",
    "star": lambda _call, _other: "*",
    "nothing": lambda _call, _other: "",
}


@both_dialects
@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "accepted-wrongly"}], ids=["derived", "explicit"])
def test_word_that_names_another_attempt_accepts_nothing(shared: Rig, path: str, key: dict[str, str]) -> None:
    """Of another call, of none, or misspelt: the same refusal, no event, nothing sent."""
    bodies = [BODIES[path]("synthetic/reset=before", f"{which} {len(key)}") for which in ("mine", "another")]
    mine = shared.post(path, bodies[0], key)
    other = shared.post(path, bodies[1])
    shared.settled()
    events = shared.status()["events"]
    for word in WRONG_WORDS.values():
        accept = word(mine.headers["sendonce-call"], other.headers["sendonce-call"])
        refused = shared.post(path, bodies[0], {**key, "Sendonce-Accept": accept})
        assert (refused.status, refused.code, refused.body) == (FINAL[path], "effect_unknown", mine.body), accept
    assert shared.status()["events"] == events
    assert [len(receipts_of(shared, body)) for body in bodies] == [1, 1]


@both_dialects
@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "accepted-twice"}], ids=["derived", "explicit"])
def test_word_for_a_superseded_attempt_accepts_nothing(shared: Rig, path: str, key: dict[str, str]) -> None:
    """Used once; the attempt that it led to needs a word of its own."""
    body = BODIES[path]("synthetic/reset=before,times=2", f"superseded {len(key)}")
    first = shared.post(path, body, key)
    second = shared.post(path, body, {**key, "Sendonce-Accept": first.json["attempt"]})
    assert second.json["attempt"] != first.json["attempt"]
    again = shared.post(path, body, {**key, "Sendonce-Accept": first.json["attempt"]})
    assert (again.status, again.code, again.body) == (FINAL[path], "effect_unknown", second.body)
    assert len(receipts_of(shared, body)) == 2
    served = shared.post(path, body, {**key, "Sendonce-Accept": second.json["attempt"]})
    assert (served.status, served.disposition) == (200, "forwarded")
    assert len(receipts_of(shared, body)) == 3
