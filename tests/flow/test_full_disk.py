"""The state disk fills up under streams: what is in flight is recorded, what is new is refused, and room ends it (semantics I10)."""

import http.client
import json
import os
import threading
from pathlib import Path

import pytest

from tests.harness.connections import CALLER, receipts_of
from tests.harness.processes import Answer, Process, Rig, chat, rig, until
from tests.harness.small_disk import fill, small_disk

STREAMS = 20
SLOW = "synthetic/chunks=20,interval=0.1,size=20000"


def health(made: Rig) -> Answer:
    return made.post("/_sendonce/health", b"", method="GET")


def stream(made: Rig, number: int, answers: dict[int, Answer]) -> None:
    answers[number] = made.chat(chat(SLOW, f"stream {number}", stream=True), {"Authorization": CALLER})


def test_full_disk_refuses_the_new_and_records_what_is_in_flight(tmp_path: Path) -> None:
    """Twenty streams end whole and recorded; requests meanwhile get 503 and are not sent; with room the same process admits."""
    with small_disk(tmp_path / "disk", 200) as disk, rig(disk) as made:
        assert health(made).status == 200
        assert (made.state_dir / "reserve").stat().st_mode & 0o777 == 0o600
        answers: dict[int, Answer] = {}
        threads = [threading.Thread(target=stream, args=(made, number, answers)) for number in range(STREAMS)]
        for thread in threads:
            thread.start()
        until(lambda: len(made.provider_receipts()) == STREAMS)
        filler = fill(disk)
        refused, body = made.chat(chat(text="too late")), chat(text="too late")
        assert (refused.status, refused.code, refused.headers["x-should-retry"]) == (503, "cannot_record", "true")
        assert (health(made).status, health(made).json["status"]) == (503, "cannot_record")
        assert not (made.state_dir / "reserve").exists()
        for thread in threads:
            thread.join()
        assert all(answer.status == 200 and answer.body.endswith(b"data: [DONE]\n\n") for answer in answers.values())
        assert receipts_of(made, body) == []
        filler.unlink()
        until(lambda: health(made).status == 200)
        assert made.chat(body).disposition == "forwarded"
        made.settled()
        rows = made.calls()
        assert {row["stage"] for row in rows} == {"completed"}
        assert len(rows) == STREAMS + 1
        assert isinstance(made.proxy_process, Process)
        assert made.proxy_process.stop() == 0


def test_replay_needs_no_room(tmp_path: Path) -> None:
    """What is recorded is answered from the record, however full the disk is."""
    with small_disk(tmp_path / "disk", 100) as disk, rig(disk) as made:
        first = made.chat(chat(text="before"), {"Idempotency-Key": "k"})
        made.settled()
        fill(disk)
        again = made.chat(chat(text="before"), {"Idempotency-Key": "k"})
        assert (again.disposition, again.body) == ("replayed", first.body)
        assert made.chat(chat(text="after")).code == "cannot_record"
        assert json.loads(made.command("status", "--json").stdout)["admitting"] is False


def test_start_on_a_full_disk_does_not_admit(tmp_path: Path) -> None:
    """It starts with what the reserve of the process before it gives back, answers from the record, and waits for room."""
    with small_disk(tmp_path / "disk", 100) as disk, rig(disk) as made:
        first = made.chat(chat(text="before"), {"Idempotency-Key": "k"})
        made.settled()
        filler = fill(disk)
        made.restart()
        assert made.chat(chat(text="before"), {"Idempotency-Key": "k"}).body == first.body
        assert made.chat(chat(text="after")).code == "cannot_record"
        filler.unlink()
        assert made.chat(chat(text="after")).disposition == "forwarded"


def test_large_upload_is_refused_where_it_would_not_fit_and_harms_nobody(tmp_path: Path) -> None:
    """It lies in a file while it comes, and would lie in the ledger twice: a stream beside it is answered whole."""
    with small_disk(tmp_path / "disk", 100) as disk, rig(disk) as made:
        answers: dict[int, Answer] = {}
        beside = threading.Thread(target=stream, args=(made, 1, answers))
        beside.start()
        until(lambda: len(made.provider_receipts()) == 1)
        upload = os.urandom(40_000_000)
        refused = made.post("/openai/v1/files", upload, {"Content-Type": "application/octet-stream"})
        assert (refused.status, refused.code) == (503, "cannot_record")
        beside.join()
        assert answers[1].body.endswith(b"data: [DONE]\n\n")
        assert receipts_of(made, upload) == []
        assert made.chat(chat(text="as before")).status == 200


def test_large_answer_is_cut_before_it_takes_the_room_of_the_others(tmp_path: Path) -> None:
    """More than the disk holds: recorded as what came, not kept; a small stream beside it ends whole, and the process goes on."""
    with small_disk(tmp_path / "disk", 100) as disk, rig(disk) as made:
        answers: dict[int, Answer] = {}
        beside = threading.Thread(target=stream, args=(made, 1, answers))
        beside.start()
        body, key = chat("synthetic/size=200000000,chunks=2000", stream=True), {"Idempotency-Key": "large"}
        with pytest.raises(http.client.IncompleteRead):
            made.chat(body, key)
        beside.join()
        assert answers[1].body.endswith(b"data: [DONE]\n\n")
        made.settled()
        (large,) = [row["call_id"] for row in made.calls() if row["key"] == "large"]
        attempt = made.show(large)["attempt_rows"][0]
        assert (attempt["observation"], attempt["ended_by"]) == ("partial", "DiskFull")
        assert made.chat(body, key).code == "effect_happened"
        until(lambda: health(made).status == 200)


def test_commit_that_finds_no_room_ends_the_process(tmp_path: Path) -> None:
    """Without a reserve: 70, so that a supervisor starts it again, and with room it recovers; nothing was sent twice."""
    with small_disk(tmp_path / "disk", 20) as disk, rig(disk) as made:
        made.chat(chat(text="before"))
        assert made.proxy_process is not None
        made.proxy_process.stop()
        (disk / "small.toml").write_text("[limits]\ndisk_reserve_bytes = 1\n")
        made.arguments = ["--config", str(disk / "small.toml")]
        made.start()
        filler = fill(disk, leave_bytes=16 * 1024)
        for number in range(20):
            try:
                made.chat(chat(text=f"{number}"))
            except (ConnectionError, http.client.HTTPException):
                break
        assert made.proxy_process.wait() == 70
        filler.unlink()
        made.start()
        assert made.chat(chat(text="after")).status == 200
        sent = [line["body_blake3"] for line in made.provider_receipts()]
        assert len(sent) == len(set(sent))
