"""A recorded answer whose bytes changed on disk: never served as if it were whole, and nothing else suffers."""

import http.client
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from tests.harness.connections import exchange, read_answer, receipts_of, request_bytes
from tests.harness.crashes import records_of
from tests.harness.neighbours import beside, process_of
from tests.harness.processes import Answer, Rig, chat, message

CHAT, MESSAGES = "/openai/v1/chat/completions", "/anthropic/v1/messages"
LARGE = "synthetic/size=300000"
# form -> path, the recorded request, which of the answer's chunks is damaged
DAMAGED = {
    "small json": (CHAT, chat(text="small"), 0),
    "small stream": (CHAT, chat("synthetic/chunks=3", "small", stream=True), 0),
    "first of a large one": (MESSAGES, message(LARGE, "first"), 0),
    "later of a large one": (MESSAGES, message(LARGE, "later"), 1),
}
SOUND = chat(text="sound")
DIGEST_BYTES = 32


def key_of(form: str) -> dict[str, str]:
    return {"Idempotency-Key": form.replace(" ", "-")}


def damage(rig: Rig, call: str, number: int) -> None:
    """Flips a byte of a stored chunk, as a failing disk would; the append-only trigger stands aside for that."""
    (observed,) = records_of(rig, call, "attempt.observed")
    with closing(sqlite3.connect(rig.state_dir / "ledger.db")) as ledger, ledger:
        (trigger,) = ledger.execute("SELECT sql FROM sqlite_schema WHERE name = 'chunk_is_never_updated'").fetchone()
        ledger.execute("DROP TRIGGER chunk_is_never_updated")
        (order,) = ledger.execute("SELECT chunks FROM body WHERE digest = ?", (observed["body"]["digest"],)).fetchone()
        digest = order[number * DIGEST_BYTES :][:DIGEST_BYTES]
        (frame,) = ledger.execute("SELECT frame FROM chunk WHERE digest = ?", (digest,)).fetchone()
        at = len(frame) // 2
        flipped = frame[:at] + bytes([frame[at] ^ 0x10]) + frame[at + 1 :]
        ledger.execute("UPDATE chunk SET frame = ? WHERE digest = ?", (flipped, digest))
        ledger.execute(trigger)


@pytest.fixture(scope="module")
def damaged(shared: Rig) -> Iterator[tuple[Rig, dict[str, Answer]]]:
    """Every answer of DAMAGED recorded, then damaged while no proxy ran; and the answers as they were."""
    with beside(shared) as made:
        before = {form: made.post(path, body, key_of(form)) for form, (path, body, _) in DAMAGED.items()}
        before["sound"] = made.chat(SOUND, key_of("sound"))
        assert {answer.status for answer in before.values()} == {200}
        made.settled()
        assert process_of(made).stop() == 0
        for form, (_, _, number) in DAMAGED.items():
            damage(made, before[form].headers["sendonce-call"], number)
        made.start()
        yield made, before


def parsed(raw: bytes) -> Answer | None:
    """What an HTTP client makes of the bytes; None where it notices that the answer is not whole."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        threading.Thread(target=_write, args=(theirs, raw)).start()
        try:
            return read_answer(ours)
        except http.client.HTTPException:
            return None


def _write(sock: socket.socket, raw: bytes) -> None:
    with suppress(OSError):  # the reader had enough
        sock.sendall(raw)
        sock.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("form", DAMAGED)
def test_damaged_answer_is_never_replayed_as_whole(damaged: tuple[Rig, dict[str, Answer]], form: str) -> None:
    """Refused as corruption, or broken off where the replay had begun; nothing is sent instead."""
    rig, before = damaged
    path, body, _ = DAMAGED[form]
    raw = exchange(rig.port, request_bytes(path, body, {**key_of(form), "Connection": "close"}))
    found = parsed(raw)
    if found is not None:
        assert (found.status, found.code) == (400 if path == CHAT else 424, "corruption")
        assert (found.disposition, found.headers["x-should-retry"]) == ("refused", "false")
    assert raw.count(b"HTTP/1.1 ") == 1  # never a second answer within the first one
    assert before[form].body not in raw
    assert len(receipts_of(rig, body)) == 1


def test_damaged_stream_asked_for_as_json_is_refused(damaged: tuple[Rig, dict[str, Answer]]) -> None:
    """Nothing of it can be rendered."""
    rig, _ = damaged
    answer = rig.chat(chat("synthetic/chunks=3", "small"), key_of("small stream"))
    assert (answer.status, answer.code, answer.disposition) == (400, "corruption", "refused")


def test_other_records_are_served_beside_a_damaged_one(damaged: tuple[Rig, dict[str, Answer]]) -> None:
    """Replays of sound records, and new requests."""
    rig, before = damaged
    replay = rig.chat(SOUND, key_of("sound"))
    assert (replay.disposition, replay.body) == ("replayed", before["sound"].body)
    assert rig.chat(chat(text="new beside damage")).disposition == "forwarded"


def test_doctor_names_damage_in_a_recorded_body(damaged: tuple[Rig, dict[str, Answer]]) -> None:
    """It reads every byte, so it is the one who can say so before a replay is asked for."""
    rig, _ = damaged
    done = rig.command("doctor")
    assert done.returncode != 0
    assert "chunk" in done.stdout + done.stderr
