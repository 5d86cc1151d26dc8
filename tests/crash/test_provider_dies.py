"""The provider dies, resets or is not there: the client hears the truth, and the same request gets the same truth."""

import http.client
from contextlib import closing
from typing import Final

import pytest

from tests.harness.crashes import (
    CHAT_PATH,
    MESSAGES_PATH,
    begin,
    call_of,
    events_of,
    kinds_of,
    read_until_cut,
    receipts_of,
    until,
)
from tests.harness.processes import Rig, chat, message, start_provider

ENDLESS: Final = "synthetic/chunks=1000,interval=0.02"
ANTHROPIC_VERSION: Final = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize(
    ("path", "body", "event", "status"),
    [
        (CHAT_PATH, chat(ENDLESS, stream=True), b'data: {"error":', 400),
        (MESSAGES_PATH, message(ENDLESS, stream=True), b"event: error", 424),
    ],
    ids=["openai", "anthropic"],
)
def test_provider_killed_mid_stream_is_an_error_event_and_an_unclean_end(
    running: Rig, path: str, body: bytes, event: bytes, status: int
) -> None:
    """I13: no client can take it for a whole answer, and the same request is refused with what happened."""
    with closing(begin(running, path, body, ANTHROPIC_VERSION)) as connection, connection.getresponse() as response:
        assert response.status == 200
        assert response.readline()
        running.provider_process.kill()
        with pytest.raises(http.client.IncompleteRead) as cut:
            response.read()
    last_event = cut.value.partial.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
    assert last_event.startswith(event)
    row = until(lambda: next((row for row in running.calls() if not row["alive"]), None))
    assert row is not None
    assert (row["stage"], row["effect"]) == ("effect_happened", "happened")
    assert running.show(row["call_id"])["attempt_rows"][0]["observation"] == "partial"
    events = events_of(running)
    again = running.post(path, body, ANTHROPIC_VERSION)
    assert (again.status, again.code) == (status, "effect_happened")
    assert again.headers["x-should-retry"] == "false"
    assert events_of(running) == events
    assert len(receipts_of(running, body)) == 1


@pytest.mark.parametrize("where", ["before", "head"])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_reset_before_the_head_answers_what_the_same_request_gets_next(running: Rig, where: str, stream: bool) -> None:
    """Sent and lost: unknown. The own answer and the refusal after it are alike to every client."""
    body = chat(f"synthetic/reset={where}", stream=stream)
    own, next_one = running.chat(body), running.chat(body)
    assert (own.status, own.code, own.disposition) == (400, "effect_unknown", "forwarded")
    assert (next_one.status, next_one.code, next_one.disposition) == (400, "effect_unknown", "refused")
    assert own.headers["x-should-retry"] == next_one.headers["x-should-retry"] == "false"
    assert own.headers["sendonce-call"] == next_one.headers["sendonce-call"]
    assert (own.json["attempt"], own.json["remedy"]) == (next_one.json["attempt"], next_one.json["remedy"])
    assert running.show(call_of(running)["call_id"])["attempt_rows"][0]["observation"] == "lost"
    assert len(receipts_of(running, body)) == 1


def test_reset_of_an_accepted_class_tells_the_client_to_retry(running: Rig) -> None:
    """Embeddings cost little: by default a second effect is accepted, and the claim says by which setting."""
    body = chat("synthetic/reset=before,times=1")
    lost = running.post("/openai/v1/embeddings", body)
    assert (lost.status, lost.code, lost.headers["x-should-retry"]) == (502, "upstream_lost", "true")
    again = running.post("/openai/v1/embeddings", body)
    assert (again.status, again.disposition) == (200, "forwarded")
    assert len(receipts_of(running, body)) == 2
    assert call_of(running)["generation"] == 2


def test_unreachable_provider_is_503_and_the_same_request_is_resumed_later(running: Rig) -> None:
    """Nothing is recorded as started, so nothing has to be settled when the provider is back."""
    port, body = running.provider_process.port, chat()
    running.provider_process.kill()
    for _ in range(2):
        unreachable = running.chat(body)
        assert (unreachable.status, unreachable.code) == (503, "upstream_unreachable")
        assert (unreachable.headers["x-should-retry"], unreachable.headers["retry-after"]) == ("true", "1")
    newest = call_of(running)
    assert newest["stage"] == "manifest_recorded"
    assert "attempt.started" not in kinds_of(running, newest["call_id"])
    running.provider_process = start_provider(running.receipts_file, port=port)
    answer = running.chat(body)
    assert (answer.status, answer.disposition) == (200, "resumed")
    assert len(receipts_of(running, body)) == 1


def test_provider_killed_while_it_holds_is_lost(running: Rig) -> None:
    """A FIN or reset instead of a head, after the receipt: unknown, refused, sent once."""
    body = chat("synthetic/hold=forever")
    with closing(begin(running, CHAT_PATH, body)) as connection:
        until(lambda: receipts_of(running, body))
        running.provider_process.kill()
        answer, _ = read_until_cut(connection)
    assert answer is not None
    assert (answer.status, answer.code) == (400, "effect_unknown")
    assert running.chat(body).code == "effect_unknown"
    assert len(receipts_of(running, body)) == 1
