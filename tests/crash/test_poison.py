"""A disk that fails under a commit or a sync: no success is told, nothing more is admitted, the process ends with 70."""

from contextlib import closing
from typing import Final

import pytest

from tests.harness.crashes import CHAT_PATH, begin, call_of, events_of, read_until_cut, receipts_of, until
from tests.harness.processes import Rig, chat

EXIT_POISONED: Final = 70
MODEL: Final = "synthetic/chunks=3,delay=0.1,interval=0.02"  # the head's event is committed before the body comes

# failpoint -> what the client gets, provider receipts then; after the restart: stage, disposition, code, sent then
CASES: Final = {
    # the claim: answered, since nothing is on record and nothing was sent
    "before-commit={}": ("cannot_record", 0, "nothing", "forwarded", None, 1),
    # attempt.started
    "before-commit={}@2": ("cut", 0, "manifest_recorded", "resumed", None, 1),
    # attempt.observed: the end was never released, the spool has all of it
    "before-commit={}@4": ("cut", 1, "completed", "replayed", None, 0),
    # committed, its `sent` receipt written and perhaps not durable: nobody can say that it was not sent
    "before-receipt-sync={}": ("cut", 0, "effect_unknown", "refused", "effect_unknown", 0),
    "after-commit={}@2": ("cut", 0, "not_sent", "resumed", None, 1),
    # not the writer: the forwarder itself
    "after-head={}": ("cut", 1, "effect_happened", "refused", "effect_happened", 0),
    "before-observed={}": ("cut", 1, "completed", "replayed", None, 0),
}


# Which error it was changes nothing that this test sees: a full disk is tried with JSON, its streams in `make slow`.
@pytest.mark.parametrize(
    ("error", "stream"),
    [("eio", False), ("eio", True), ("enospc", False), pytest.param("enospc", True, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("failpoint", CASES)
def test_failed_write_ends_the_process_and_the_restart_recovers(
    unstarted: Rig, failpoint: str, error: str, stream: bool
) -> None:
    """I10: its outcome is unknown, so it is never retried; what the record says afterwards is what is answered."""
    seen, sent, stage, disposition, code, sent_then = CASES[failpoint]
    body = chat(MODEL, stream=stream)
    process = unstarted.start(failpoint.format(error))
    with closing(begin(unstarted, CHAT_PATH, body)) as connection:
        answer, _ = read_until_cut(connection)
    assert (answer.code if answer else "cut") == seen
    if answer is not None:
        assert (answer.status, answer.headers["x-should-retry"]) == (503, "true")
    assert process.wait() == EXIT_POISONED
    process.close()
    assert "OSError" in process.complained
    assert "Traceback" not in process.complained
    assert len(receipts_of(unstarted, body)) == sent
    unstarted.restart()
    rows, events = unstarted.calls(), events_of(unstarted)
    assert (rows[0]["stage"] if rows else "nothing") == stage
    again = unstarted.chat(body)
    assert (again.disposition, None if again.status == 200 else again.code) == (disposition, code)
    assert len(receipts_of(unstarted, body)) == sent + sent_then
    if disposition == "refused":
        assert events_of(unstarted) == events


def test_poison_while_another_call_is_in_flight_leaves_that_one_unknown(unstarted: Rig) -> None:
    """The one that fails takes the process with it; what the provider holds then stays exactly what it was."""
    process = unstarted.start("before-commit=eio@3")  # claim and start of the first, claim of the second
    held, other = chat("synthetic/hold=forever"), chat(text="other")
    with closing(begin(unstarted, CHAT_PATH, held)) as connection:
        until(lambda: receipts_of(unstarted, held))
        assert unstarted.chat(other).code == "cannot_record"
        assert process.wait() == EXIT_POISONED
        assert read_until_cut(connection) == (None, b"")
    unstarted.restart()
    assert call_of(unstarted)["stage"] == "effect_unknown"
    assert unstarted.chat(held).code == "effect_unknown"
    assert unstarted.chat(other).disposition == "forwarded"
    assert (len(receipts_of(unstarted, held)), len(receipts_of(unstarted, other))) == (1, 1)


@pytest.mark.parametrize("error", ["eio", "enospc"])
def test_failed_write_of_the_last_event_ends_with_70_too(unstarted: Rig, error: str) -> None:
    """`epoch.closed` is the last thing written at SIGTERM; a stop that could not record itself is not a clean one."""
    process = unstarted.start(f"before-commit={error}")
    assert process.stop() == EXIT_POISONED
    assert "What is on disk is unknown" in process.complained
    assert "Traceback" not in process.complained
    unstarted.restart()
    assert unstarted.chat(chat()).disposition == "forwarded"
