"""Beyond `limits.record_limit_bytes` a body is carried whole, counted and hashed, and not kept (I2): nothing to replay."""

from collections.abc import Iterator

import pytest
from blake3 import blake3

from tests.harness.connections import receipts_of
from tests.harness.kept_bodies import digest_of_pieces, is_kept
from tests.harness.neighbours import beside
from tests.harness.processes import Rig, chat
from tests.harness.sent_answers import stream_of

LOWEST = 1024 * 1024
LARGE = "synthetic/size=3000000,chunks=30"


@pytest.fixture(scope="module")
def limited(shared: Rig) -> Iterator[Rig]:
    with beside(shared, settings=f"[limits]\nrecord_limit_bytes = {LOWEST}\n") as made:
        yield made


def test_answer_beyond_the_limit_is_relayed_whole_and_not_kept(limited: Rig) -> None:
    """Its digest is on record; the same key again is refused and not sent again."""
    body, key = chat(LARGE, "large answer", stream=True), {"Idempotency-Key": "large-answer"}
    first = limited.chat(body, key)
    limited.settled()
    row = limited.show(first.headers["sendonce-call"])
    (receipt,), (attempt,) = receipts_of(limited, body), row["attempt_rows"]
    digest = blake3(first.body).hexdigest()
    assert digest == digest_of_pieces(stream_of(receipt, body)) == attempt["response_blake3"]
    assert attempt["response_bytes"] == len(first.body) > LOWEST
    assert (row["stage"], row["effect"]) == ("completed", "happened")
    assert (is_kept(limited, digest), is_kept(limited, row["body_blake3"])) == (False, True)
    for _ in range(2):
        again = limited.chat(body, key)
        assert (again.disposition, again.code) == ("refused", "response_lost")
    assert len(receipts_of(limited, body)) == 1
    assert list(limited.paths.spool.iterdir()) == []


def test_request_beyond_the_limit_is_sent_whole_and_recognised(limited: Rig) -> None:
    """Its retry is replayed by key; another body under that key is refused."""
    body, key = chat(text="x" * 3 * LOWEST), {"Idempotency-Key": "large-request"}
    first = limited.chat(body, key)
    limited.settled()
    row = limited.show(first.headers["sendonce-call"])
    digest = blake3(body).hexdigest()
    assert (first.status, row["stage"], row["body_blake3"]) == (200, "completed", digest)
    assert row["manifest"]["body"] == {"digest": digest, "size": len(body), "kept": False}
    assert not is_kept(limited, digest)
    again, other = limited.chat(body, key), limited.chat(body + b" " + body, key)
    assert (again.disposition, again.body) == ("replayed", first.body)
    assert (other.disposition, other.code) == ("refused", "key_reused")
    assert len(receipts_of(limited, body)) == 1


def test_certain_retry_of_a_request_beyond_the_limit_attaches_or_replays(limited: Rig) -> None:
    """Without a key of its own: the derived one does not need the body on record."""
    body = chat(text="y" * 3 * LOWEST)
    sdk = {"x-stainless-lang": "python", "x-stainless-retry-count": "0"}
    first = limited.chat(body, sdk)
    again = limited.chat(body, sdk | {"x-stainless-retry-count": "1"})
    assert (first.disposition, again.disposition) == ("forwarded", "replayed")
    assert again.body == first.body
    assert len(receipts_of(limited, body)) == 1
