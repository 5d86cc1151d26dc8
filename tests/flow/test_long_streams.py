"""Streams that are too long to be parsed: whole only with their terminal event, and never made into JSON in memory."""

import http.client

import pytest

from tests.harness.connections import receipts_of
from tests.harness.processes import Rig, chat

LONG = "synthetic/size=20000000,chunks=100"  # above PARSED_LIMIT_BYTES


@pytest.mark.parametrize("encoding", ["", ",encoding=br"])
def test_long_stream_that_lacks_its_end_is_cut(shared: Rig, encoding: str) -> None:
    """Its framing ends well, its terminal event never came: the client sees an unclean end, and it is not replayed."""
    body, key = chat(f"{LONG},clean_cut=95,interval=0.01{encoding}", stream=True), {"Idempotency-Key": f"cut{encoding}"}
    with pytest.raises(http.client.IncompleteRead) as cut:
        shared.chat(body, key)
    assert encoding or b'data: {"error"' in cut.value.partial[-2000:]
    shared.settled()
    assert shared.chat(body, key).code == "effect_happened"
    assert len(receipts_of(shared, body)) == 1


def test_long_stream_is_read_by_its_ends_and_not_shown_as_json(shared: Rig) -> None:
    """Usage and outcome are known; asked for without `stream` it is refused, not put together in memory."""
    body, key = (
        chat(LONG, stream=True).replace(b'"stream"', b'"stream_options":{"include_usage":true},"stream"'),
        {"Idempotency-Key": "long"},
    )
    streamed = shared.chat(body, key)
    shared.settled()
    row = next(row for row in shared.calls() if row["call_id"] == streamed.headers["sendonce-call"])
    assert (row["stage"], row["outcome"], row["usage"]["completion_tokens"]) == ("completed", "succeeded", 100)
    assert shared.chat(chat(LONG), key).code == "form_differs"
    assert shared.chat(body, key).body == streamed.body
