"""What the client is told, what is recorded, and what the same request gets next, for each way a provider can fail.

Semantics sections 5 and 7, I2 and I13; both dialects.
"""

import asyncio
import http.client
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ledger.reader import open_reader
from tests.harness.connections import connected, dechunked, documents, exchange, receipts_of, request_bytes
from tests.harness.processes import Answer, Rig, chat, message, rig, until

CHAT, MESSAGES = "/openai/v1/chat/completions", "/anthropic/v1/messages"
BODIES = {CHAT: chat, MESSAGES: message}
FINAL = {CHAT: 400, MESSAGES: 424}
TERMINAL = {CHAT: b"data: [DONE]", MESSAGES: b"event: message_stop"}
both_dialects = pytest.mark.parametrize("path", [CHAT, MESSAGES])


def events_of(made: Rig) -> list[str]:
    """The kinds of all events of calls, read beside a process that may not answer."""

    async def read() -> list[str]:
        async with open_reader(made.paths.ledger) as reader:
            (newest,) = await reader.newest(1)
            return [recorded.event.kind for recorded in await reader.events(newest.call)]

    return asyncio.run(read())


def row_of(made: Rig, body: bytes) -> dict[str, Any]:
    """The newest call with exactly this body, once nothing is in flight."""
    made.settled()
    digest = receipts_of(made, body)[0]["body_blake3"]
    found: dict[str, Any] = made.show(next(row["call_id"] for row in made.calls() if row["body_blake3"] == digest))
    return found


def assert_final_refusal(answer: Answer, path: str, code: str) -> None:
    """Stops every client at once, with the sentence and the command that settles it."""
    assert (answer.status, answer.code) == (FINAL[path], code)
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    assert answer.json["error"]["message"].endswith(answer.json["remedy"])


def ask_raw(made: Rig, path: str, body: bytes) -> tuple[bytes, bool]:
    """A stream's content and whether it ended cleanly."""
    content, whole = dechunked(exchange(made.port, request_bytes(path, body, {"Connection": "close"})))
    return content, whole


# --- whole answers that are no success -------------------------------------------------------------------------------


@both_dialects
@pytest.mark.parametrize("status", [429, 529, 401])
def test_answer_that_proves_absence_lets_the_same_request_through(shared: Rig, path: str, status: int) -> None:
    """Passed on as it came, recorded as absent; the next one is the same occurrence, resumed."""
    body = BODIES[path](f"synthetic/status={status},times=1", f"absent {status}")
    refused = shared.post(path, body)
    assert (refused.status, refused.disposition) == (status, "forwarded")
    row = row_of(shared, body)
    assert (row["stage"], row["effect"], row["next_operation"]) == ("completed", "absent", "start_call")
    again = shared.post(path, body)
    assert (again.status, again.disposition) == (200, "resumed")
    claim = shared.claim(again.headers["sendonce-call"])
    assert (claim.occurrence, claim.generation, claim.why_new) == (1, 2, "resumed")
    assert claim.continues == refused.headers["sendonce-call"]
    assert claim.authority is None


@both_dialects
@pytest.mark.parametrize("fault", ["status=500", "error_after=2"])
def test_error_of_the_provider_is_sent_again_on_a_settings_authority(shared: Rig, path: str, fault: str) -> None:
    """Envelope or in-band: answered. The default of after_server_error accepts, and the claim says so."""
    body = BODIES[path](f"synthetic/{fault},times=1", f"answered {fault}", stream=fault.startswith("error"))
    failed = shared.post(path, body)
    row = row_of(shared, body)
    assert (row["stage"], row["effect"]) == ("completed", "answered")
    again = shared.post(path, body)
    assert (again.status, again.disposition) == (200, "forwarded")
    claim = shared.claim(again.headers["sendonce-call"])
    assert (claim.why_new, claim.accepts_attempt) == ("decision", f"{failed.headers['sendonce-call']}.1")
    assert claim.authority is not None
    assert (claim.authority.kind, claim.authority.name) == ("setting", "after_server_error")
    assert claim.authority.config_digest
    assert len(receipts_of(shared, body)) == 2


@both_dialects
def test_in_band_error_ends_as_the_provider_ended_it(shared: Rig, path: str) -> None:
    """It is terminal evidence: the stream is whole, nothing of ours is added."""
    body = BODIES[path]("synthetic/error_after=2", "in band", stream=True)
    content, whole = ask_raw(shared, path, body)
    assert whole
    assert "the in-band error" in documents(content)[-1]["error"]["message"]
    assert b"sendonce" not in content


@both_dialects
@pytest.mark.parametrize("status", [502, 503, 500])
def test_page_of_a_gateway_leaves_the_effect_unknown(shared: Rig, path: str, status: int) -> None:
    """The page is passed on; no envelope says that the provider failed, so the same request is refused, the same way each time."""
    body = BODIES[path](f"synthetic/page={status}", f"page {status}")
    page = shared.post(path, body)
    assert (page.status, page.headers["content-type"]) == (status, "text/html")
    row = row_of(shared, body)
    assert (row["stage"], row["effect"], row["duplicate_effect_risk"]) == ("completed", "unknown", True)
    refused = [shared.post(path, body) for _ in range(2)]
    assert_final_refusal(refused[0], path, "effect_unknown")
    assert refused[0].body == refused[1].body
    assert len(receipts_of(shared, body)) == 1
    accepted = shared.post(path, body, {"Sendonce-Accept": refused[0].json["attempt"]})
    assert (accepted.status, accepted.disposition) == (status, "forwarded")
    claim = shared.claim(accepted.headers["sendonce-call"])
    assert claim.authority is not None
    assert (claim.authority.kind, claim.accepts_attempt) == ("caller", refused[0].json["attempt"])


@both_dialects
@pytest.mark.parametrize(("status", "effect"), [(307, "absent"), (308, "absent"), (302, "unknown")])
def test_redirect_is_neither_followed_nor_passed_on(shared: Rig, path: str, status: int, effect: str) -> None:
    """`redirect_refused`, without Location; only 307 and 308 prove that nothing was served."""
    body = BODIES[path](f"synthetic/redirect={status},times=1", f"redirect {status}")
    answer = shared.post(path, body)
    assert (answer.status, answer.code) == (FINAL[path], "redirect_refused")
    assert "location" not in answer.headers
    row = row_of(shared, body)
    assert (row["effect"], row["attempt_rows"][0]["status"]) == (effect, status)
    assert [line["path"] for line in shared.provider_receipts() if line["path"] == "/redirected"] == []
    again = shared.post(path, body)
    assert again.code == "effect_unknown" if effect == "unknown" else again.disposition == "resumed"


# --- answers that are not whole --------------------------------------------------------------------------------------


@both_dialects
@pytest.mark.parametrize("fault", ["clean_cut=3", "cut=3", "reset=mid"])
def test_stream_without_its_end_never_looks_complete(shared: Rig, path: str, fault: str) -> None:
    """What came, then an error event of the dialect, then an unclean end; the same request is refused."""
    body = BODIES[path](f"synthetic/{fault}", f"cut {fault}", stream=True)
    content, whole = ask_raw(shared, path, body)
    assert not whole
    assert content.count(b"receipt ") == 1
    assert TERMINAL[path] not in content
    error = documents(content)[-1]["error"]
    assert (error["code"], "the answer broke off" in error["message"]) == ("effect_happened", True)
    row = row_of(shared, body)
    assert (row["stage"], row["effect"], row["next_operation"]) == ("effect_happened", "happened", "reconcile_effect")
    assert (row["attempt_rows"][0]["observation"], row["attempt_rows"][0]["source"]) == ("partial", "live")
    assert_final_refusal(shared.post(path, body), path, "effect_happened")
    assert len(receipts_of(shared, body)) == 1


@both_dialects
@pytest.mark.parametrize("fault", ["clean_cut=1", "cut=1", "reset=mid"])
def test_json_without_its_end_never_looks_complete(shared: Rig, path: str, fault: str) -> None:
    """Fewer bytes than declared: every HTTP client notices; half a document whose framing is whole lacks its last byte."""
    body = BODIES[path](f"synthetic/{fault}", f"half {fault}")
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        shared.post(path, body)
    row = row_of(shared, body)
    assert (row["stage"], row["attempt_rows"][0]["observation"]) == ("effect_happened", "partial")
    assert_final_refusal(shared.post(path, body), path, "effect_happened")


@both_dialects
@pytest.mark.parametrize("fault", ["reset=before", "reset=head"])
@pytest.mark.parametrize("stream", [False, True])
def test_answer_lost_before_its_head_is_told_as_the_next_refusal(
    shared: Rig, path: str, fault: str, stream: bool
) -> None:
    """Sent and nothing came back: the client hears at once what the same request would get."""
    body = BODIES[path](f"synthetic/{fault}", f"lost {fault} {stream}", stream=stream)
    assert_final_refusal(shared.post(path, body), path, "effect_unknown")
    row = row_of(shared, body)
    assert (row["stage"], row["effect"]) == ("effect_unknown", "unknown")
    assert row["attempt_rows"][0]["observation"] == "lost"
    assert_final_refusal(shared.post(path, body), path, "effect_unknown")
    assert len(receipts_of(shared, body)) == 1


def test_cheap_request_that_was_lost_may_be_sent_again(shared: Rig) -> None:
    """Embeddings: on_unknown accepts by default, so the client is told to retry, and the second effect is on record."""
    body = json.dumps({"model": "synthetic/reset=before,times=1", "input": "lost"}).encode()
    lost = shared.post("/openai/v1/embeddings", body)
    assert (lost.status, lost.code, lost.headers["x-should-retry"]) == (502, "upstream_lost", "true")
    again = shared.post("/openai/v1/embeddings", body)
    assert (again.status, again.disposition) == (200, "forwarded")
    claim = shared.claim(again.headers["sendonce-call"])
    assert claim.authority is not None
    assert claim.authority.name == "on_unknown"


def test_unreachable_provider_is_proven_not_sent_and_resumed(tmp_path: Path) -> None:
    """503 with Retry-After; each retry is the next generation of the same occurrence."""
    with rig(tmp_path, "--upstream", "dead=http://127.0.0.1:9") as made:
        answers = [made.post("/dead/v1/x", b"{}") for _ in range(3)]
        made.settled()
        assert [(answer.status, answer.code) for answer in answers] == [(503, "upstream_unreachable")] * 3
        assert {answer.headers["retry-after"] for answer in answers} == {"1"}
        rows = made.calls()
        assert [(row["occurrence"], row["generation"]) for row in rows] == [(1, 3), (1, 2), (1, 1)]
        assert rows[0]["stage"] == "manifest_recorded"


# --- the end waits for the record (I2) -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@both_dialects
def test_end_is_not_visible_before_the_observation_is_durable(tmp_path: Path, path: str, stream: bool) -> None:
    """The proxy is stopped right before it records: the client lacks the end, the ledger the observation; then both have it."""
    body = BODIES[path](text="held", stream=stream)
    with rig(tmp_path) as made:
        made.proxy_process.close()  # type: ignore[union-attr]
        child = made.start("before-observed=stop").child
        with connected(made.port) as sock:
            sock.sendall(request_bytes(path, body, {"Connection": "close"}))
            until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
            sock.settimeout(0.2)
            got = b""
            try:
                while piece := sock.recv(65536):
                    got += piece
            except TimeoutError:
                pass
            assert TERMINAL[path] not in got
            assert not got.endswith(b"}")
            events = events_of(made)
            assert "attempt.started" in events
            assert "attempt.observed" not in events
            os.kill(child.pid, signal.SIGCONT)
            sock.settimeout(30)
            while piece := sock.recv(65536):
                got += piece
        assert TERMINAL[path] in got if stream else got.endswith(b"}")
        assert "attempt.observed" in events_of(made)
