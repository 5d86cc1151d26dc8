"""What a dead process had received stands in its spool: the next start records it, without the provider."""

from typing import Final

import pytest

from tests.harness.crashes import (
    CHAT_PATH,
    MESSAGES_PATH,
    begin,
    call_of,
    digest_of,
    events_of,
    read_until_cut,
    receipts_of,
    records_of,
)
from tests.harness.processes import Rig, StartFailed, chat, message

ANTHROPIC_VERSION: Final = {"anthropic-version": "2023-06-01"}
WHOLE: Final = {
    "openai": (CHAT_PATH, chat("synthetic/chunks=3")),
    "openai-stream": (CHAT_PATH, chat("synthetic/chunks=3", stream=True)),
    "anthropic": (MESSAGES_PATH, message("synthetic/chunks=3")),
    "anthropic-stream": (MESSAGES_PATH, message("synthetic/chunks=3", stream=True)),
}


def killed_at(rig: Rig, failpoint: str, path: str, body: bytes) -> bytes:
    """The proxy dies there, and then the provider: the next start has nobody to ask. What the client received."""
    process = rig.start(failpoint)
    connection = begin(rig, path, body, ANTHROPIC_VERSION)
    answer, received = read_until_cut(connection)
    connection.close()
    assert answer is None  # the end was not released
    assert process.wait() == -9
    rig.provider_process.kill()
    return received


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
def test_partial_answer_is_salvaged_and_refused(unstarted: Rig, stream: bool) -> None:
    """Its bytes are kept as evidence: the provider began to answer."""
    model = "synthetic/chunks=9,interval=0.05" if stream else "synthetic/cut=0,size=20000"
    body = chat(model, stream=stream)
    received = killed_at(unstarted, "mid-stream=kill", CHAT_PATH, body)
    unstarted.start()
    row = call_of(unstarted)
    assert (row["stage"], row["effect"], row["duplicate_effect_risk"]) == ("effect_happened", "happened", True)
    (observed,) = records_of(unstarted, row["call_id"], "attempt.observed")
    assert (observed["observation"], observed["source"], observed["ended_by"]) == ("partial", "salvage", "crash")
    assert observed["status"] == 200
    assert observed["body"]["size"] >= max(1, len(received))
    events = events_of(unstarted)
    refused = unstarted.chat(body)
    assert (refused.status, refused.code) == (400, "effect_happened")
    assert events_of(unstarted) == events
    assert len(receipts_of(unstarted, body)) == 1
    assert not list((unstarted.state_dir / "spool").iterdir())


@pytest.mark.parametrize("failpoint", ["before-observed=kill", "after-observed=kill"])
@pytest.mark.parametrize("form", WHOLE)
def test_whole_answer_is_finished_at_start_without_the_provider(unstarted: Rig, form: str, failpoint: str) -> None:
    """From the spool, or from an observation nobody had read: completed, then replayed byte for byte."""
    path, body = WHOLE[form]
    received = killed_at(unstarted, failpoint, path, body)
    unstarted.start()
    row = call_of(unstarted)
    assert (row["stage"], row["outcome"], row["effect"]) == ("completed", "succeeded", "happened")
    (observed,) = records_of(unstarted, row["call_id"], "attempt.observed")
    assert observed["observation"] == "response"
    assert observed["source"] == ("salvage" if failpoint.startswith("before") else "live")
    assert row["finish_reason"] in ("stop", "end_turn")
    replay = unstarted.post(path, body, ANTHROPIC_VERSION)
    assert (replay.status, replay.disposition) == (200, "replayed")
    assert digest_of(replay.body) == observed["body"]["digest"]
    assert replay.body.startswith(received)
    assert len(receipts_of(unstarted, body)) == 1


def test_salvage_survives_a_crash_of_the_start_itself(unstarted: Rig) -> None:
    """Observed once, though the spool was read twice."""
    path, body = WHOLE["openai-stream"]
    killed_at(unstarted, "before-observed=kill", path, body)
    with pytest.raises(StartFailed, match="exit -9"):
        unstarted.start("recovery-before-epoch=kill")
    unstarted.start()
    row = call_of(unstarted)
    assert len(records_of(unstarted, row["call_id"], "attempt.observed")) == 1
    assert unstarted.chat(body).disposition == "replayed"
    assert len(receipts_of(unstarted, body)) == 1


def test_torn_spool_vouches_for_its_valid_prefix_only(unstarted: Rig) -> None:
    """A byte changed on disk after it was counted: what stands behind it is not taken for an answer."""
    path, body = WHOLE["openai-stream"]
    killed_at(unstarted, "before-observed=kill", path, body)
    (spooled,) = (unstarted.state_dir / "spool").glob("*.body")
    data = spooled.read_bytes()
    spooled.write_bytes(data[:-4] + b"XXXX")
    unstarted.start()
    row = call_of(unstarted)
    assert row["stage"] == "effect_happened"
    (observed,) = records_of(unstarted, row["call_id"], "attempt.observed")
    assert (observed["observation"], observed["source"]) == ("partial", "salvage")
    assert observed["body"]["size"] < len(data)
    assert unstarted.chat(body).code == "effect_happened"
    assert len(receipts_of(unstarted, body)) == 1
