"""Killed with the manifest on record and nothing sent: the same request continues, any other is refused."""

import pytest

from tests.harness.crashes import CUT, call_of, completed, events_of, receipts_of, records_of
from tests.harness.processes import Rig, chat


def left_with_manifest(rig: Rig, body: bytes, headers: dict[str, str] | None = None) -> str:
    """Killed right after the claim; a new proxy runs. The call's id."""
    if rig.proxy_process is not None:
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
    unstarted: Rig, headers: dict[str, str], stream: bool
) -> None:
    """What the provider got is, digest for digest, what the manifest recorded before the crash."""
    body = chat(stream=stream)
    earlier = left_with_manifest(unstarted, body, headers)
    answer = unstarted.chat(body, headers)
    assert (answer.status, answer.disposition) == (200, "resumed")
    (receipt,) = unstarted.provider_receipts()
    manifest = unstarted.show(earlier)["manifest"]
    assert receipt["body_blake3"] == manifest["body"]["digest"]
    assert receipt["model"] == manifest["model"]
    newest = completed(unstarted)
    assert (newest["generation"], newest["body_blake3"]) == (2, receipt["body_blake3"])
    (resumed,) = records_of(unstarted, newest["call_id"], "call.resumed")
    assert (resumed["continues"], resumed["differences"]) == (earlier, [])
    assert unstarted.show(earlier)["superseded_by"] == newest["call_id"]


def test_another_body_under_the_same_key_is_drift(unstarted: Rig) -> None:
    """Refused, nothing sent, nothing recorded; the recorded one can still be resumed."""
    key = {"Idempotency-Key": "mine"}
    body, other = chat(), chat(text="something else")
    left_with_manifest(unstarted, body, key)
    events = events_of(unstarted)
    refused = unstarted.chat(other, key)
    assert (refused.status, refused.code, refused.disposition) == (400, "drift", "refused")
    assert refused.headers["x-should-retry"] == "false"
    assert events_of(unstarted) == events
    assert unstarted.provider_receipts() == []
    assert unstarted.chat(body, key).disposition == "resumed"
    assert len(unstarted.provider_receipts()) == 1


def test_stream_asked_again_without_stream_is_resumed_with_the_difference_on_record(unstarted: Rig) -> None:
    """Whether it streams is the answer's form, not the intention."""
    earlier = left_with_manifest(unstarted, chat(stream=True))
    answer = unstarted.chat(chat())
    assert (answer.status, answer.disposition) == (200, "resumed")
    (resumed,) = records_of(unstarted, completed(unstarted)["call_id"], "call.resumed")
    assert (resumed["continues"], resumed["differences"]) == (earlier, ["body"])


def test_killed_twice_before_sending_is_still_sent_once(unstarted: Rig) -> None:
    """Each crash leaves one more generation of effect absent."""
    body = chat()
    left_with_manifest(unstarted, body)
    left_with_manifest(unstarted, body)
    assert unstarted.chat(body).disposition == "resumed"
    assert [row["generation"] for row in unstarted.calls()] == [3, 2, 1]
    assert len(receipts_of(unstarted, body)) == 1
