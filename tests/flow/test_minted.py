"""Endpoints that mint credentials: counted and hashed, never kept (I8)."""

import sqlite3

from tests.harness.processes import Rig


def test_bodies_of_a_minting_endpoint_are_recorded_by_digest_only(running: Rig) -> None:
    """The digests stand in the record, no body does, and nothing can be replayed."""
    path, body = "/openai/v1/realtime/client_secrets", b'{"expires_after":{"seconds":600}}'
    first = running.post(path, body, {"Idempotency-Key": "mint-1"})
    running.settled()
    call = running.show(first.headers["sendonce-call"])
    with sqlite3.connect(f"file:{running.paths.ledger}?mode=ro", uri=True) as db:
        kept = {digest for (digest,) in db.execute("SELECT digest FROM body")}
    digests = {call["manifest"]["body"]["digest"], call["attempt_rows"][0]["response_blake3"]}
    assert (first.status, call["stage"], call["effect"]) == (200, "completed", "happened")
    assert call["attempt_rows"][0]["response_bytes"] == len(first.body)
    assert not digests & kept
    again = running.post(path, body, {"Idempotency-Key": "mint-1"})
    assert (again.disposition, again.code) == ("refused", "response_lost")
    assert len(running.provider_receipts()) == 1
    assert list(running.paths.spool.iterdir()) == []
