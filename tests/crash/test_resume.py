"""Killed with the manifest on record and nothing sent: the same request continues, any other is refused."""

import pytest

from tests.harness.crashes import CUT, call_of, completed, events_of, receipts_of, records_of
from tests.harness.processes import Rig, chat


def left_with_manifest(rig: Rig, body: bytes, headers: dict[str, str] | None = None) -> str:
    """Killed right after the claim; a new proxy runs. The call's id."""
    assert rig.proxy_process is not None
    rig.proxy_process.close()
    rig.start("after-manifest=kill")
    with pytest.raises(CUT):
        rig.chat(body, headers)
    rig.restart()
    row = call_of(rig)
    assert (row["stage"], row["next_operation"], row["effect"]) == ("manifest_recorded", "start_call", "absent")
    assert receipts_of(rig, body) == []
    return str(row["call_id"])


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "mine"}], ids=["derived", "explicit"])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_same_request_after_manifest_is_resumed_and_sent_once(
    running: Rig, headers: dict[str, str], stream: bool
) -> None:
    """What the provider got is, digest for digest, what the manifest recorded before the crash."""
    body = chat(stream=stream)
    earlier = left_with_manifest(running, body, headers)
    answer = running.chat(body, headers)
    assert (answer.status, answer.disposition) == (200, "resumed")
    (receipt,) = running.provider_receipts()
    manifest = running.show(earlier)["manifest"]
    assert receipt["body_blake3"] == manifest["body"]["digest"]
    assert receipt["model"] == manifest["model"]
    newest = completed(running)
    assert (newest["generation"], newest["body_blake3"]) == (2, receipt["body_blake3"])
    (resumed,) = records_of(running, newest["call_id"], "call.resumed")
    assert (resumed["continues"], resumed["differences"]) == (earlier, [])
    assert running.show(earlier)["superseded_by"] == newest["call_id"]


def test_another_body_under_the_same_key_is_drift(running: Rig) -> None:
    """Refused, nothing sent, nothing recorded; the recorded one can still be resumed."""
    key = {"Idempotency-Key": "mine"}
    body, other = chat(), chat(text="something else")
    left_with_manifest(running, body, key)
    events = events_of(running)
    refused = running.chat(other, key)
    assert (refused.status, refused.code, refused.disposition) == (400, "drift", "refused")
    assert refused.headers["x-should-retry"] == "false"
    assert events_of(running) == events
    assert running.provider_receipts() == []
    assert running.chat(body, key).disposition == "resumed"
    assert len(running.provider_receipts()) == 1


def test_stream_asked_again_without_stream_is_resumed_with_the_difference_on_record(running: Rig) -> None:
    """Whether it streams is the answer's form, not the intention."""
    earlier = left_with_manifest(running, chat(stream=True))
    answer = running.chat(chat())
    assert (answer.status, answer.disposition) == (200, "resumed")
    (resumed,) = records_of(running, completed(running)["call_id"], "call.resumed")
    assert (resumed["continues"], resumed["differences"]) == (earlier, ["body"])


def test_killed_twice_before_sending_is_still_sent_once(running: Rig) -> None:
    """Each crash leaves one more generation of effect absent."""
    body = chat()
    left_with_manifest(running, body)
    left_with_manifest(running, body)
    assert running.chat(body).disposition == "resumed"
    assert [row["generation"] for row in running.calls()] == [3, 2, 1]
    assert len(receipts_of(running, body)) == 1
