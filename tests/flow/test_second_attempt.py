"""The provider hangs up while `attempt.started` is being committed, and nobody listens there for the second attempt."""

import os
import signal
import socket

import pytest

from tests.harness.connections import connected, read_answer, receipts_of, request_bytes
from tests.harness.neighbours import beside, process_of, until_stopped
from tests.harness.processes import Rig, chat, message, start_provider

CHAT, MESSAGES = "/openai/v1/chat/completions", "/anthropic/v1/messages"
STARTED_COMMIT = "before-commit=stop@2"  # the first one is the claim
NOT_SENT_YET = ("not_sent", "manifest_recorded")


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat(text="gone")), (MESSAGES, message(text="gone", stream=True))])
@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "gone"}], ids=["derived", "explicit"])
def test_not_sent_then_refused_connection_is_unreachable_and_resumed_later(
    shared: Rig, path: str, body: bytes, key: dict[str, str]
) -> None:
    """503 from a proxy that lives on; with the provider back, the same request is the one that reaches it."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    name, before = path.split("/")[1], len(receipts_of(shared, body))
    with beside(shared, "--upstream", f"{name}=http://127.0.0.1:{port}", failpoints=STARTED_COMMIT) as made:
        with connected(made.port) as client:
            client.sendall(request_bytes(path, body, key))
            accepted, _ = listener.accept()
            pid = until_stopped(made)
            listener.close()
            accepted.close()
            os.kill(pid, signal.SIGCONT)
            answer = read_answer(client)
        assert (answer.status, answer.code) == (503, "upstream_unreachable")
        assert (answer.headers["x-should-retry"], answer.headers["retry-after"]) == ("true", "1")
        made.settled()
        (row,) = made.calls()
        assert (row["stage"] in NOT_SENT_YET, row["effect"], row["duplicate_effect_risk"]) == (True, "absent", False)
        assert made.show(row["call_id"])["attempt_rows"][0]["observation"] == "not_sent"
        assert process_of(made).child.poll() is None  # no illegal event, no exit 70
        provider = start_provider(shared.receipts_file, port=port)
        try:
            again = made.post(path, body, key)
        finally:
            provider.close()
        assert (again.status, again.disposition) == (200, "resumed")
        assert len(receipts_of(shared, body)) == before + 1
