"""Who calls, where the credential alone does not say it: a configured header, a claim, an account (semantics section 1)."""

import base64
import json
from collections.abc import Iterator

import pytest

from tests.harness.connections import receipts_of
from tests.harness.processes import Rig, chat, rig

CONFIG = """
[upstreams.openai.caller]
header = "X-User"
[upstreams.anthropic.caller]
bearer_claim = "sub"
"""


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("callers")
    (directory / "sendonce.toml").write_text(CONFIG)
    with rig(directory, "--config", str(directory / "sendonce.toml")) as made:
        yield made


def token(subject: str, number: int) -> str:
    """A JWT that is renewed: the same subject, other bytes."""
    parts = ({"alg": "none"}, {"sub": subject, "iat": number})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return f"Bearer {'.'.join(encoded)}.signature{number}"


def test_two_users_on_one_key_do_not_meet(named: Rig) -> None:
    """One API key, one idempotency key, one prompt: the header tells them apart, and the same user is recognised."""
    body, key = chat(text="one key"), {"Idempotency-Key": "shared"}
    answers = [named.chat(body, {**key, "X-User": who}) for who in ("ann", "bob")]
    assert [answer.disposition for answer in answers] == ["forwarded", "forwarded"]
    named.settled()
    again = named.chat(body, {**key, "X-User": "ann"})
    assert (again.disposition, again.body) == ("replayed", answers[0].body)
    assert len(receipts_of(named, body)) == 2


def test_renewed_token_keeps_the_protection_of_unresolved_calls(named: Rig) -> None:
    """Sent with one token, lost, asked again with the next: refused. By another subject: another caller."""
    body = b'{"model":"synthetic/reset=before","max_tokens":5,"messages":[]}'
    lost = named.messages(body, {"Authorization": token("ann", 1)})
    assert lost.status == 424
    named.settled()
    assert named.messages(body, {"Authorization": token("ann", 2)}).code == "effect_unknown"
    assert len(receipts_of(named, body)) == 1
    named.messages(body, {"Authorization": token("bob", 3)})
    assert len(receipts_of(named, body)) == 2


def test_renewed_token_does_not_get_the_answer_of_the_old_one(named: Rig) -> None:
    """An answer is bound to the exact credential (I9)."""
    body, key = b'{"model":"synthetic","max_tokens":5,"messages":[]}', {"Idempotency-Key": "renewed"}
    assert named.messages(body, {**key, "Authorization": token("ann", 1)}).status == 200
    named.settled()
    assert named.messages(body, {**key, "Authorization": token("ann", 2)}).code == "caller_changed"
    assert len(receipts_of(named, body)) == 1


def test_status_counts_the_unresolved_calls_of_short_lived_tokens(named: Rig) -> None:
    """Where the claim is missing, the whole token is who calls: its protection ends when it is renewed, and status says so."""
    body = b'{"model":"synthetic/reset=before","max_tokens":6,"messages":[]}'
    named.messages(body, {"Authorization": "Bearer ya29.no-claims-in-here"})
    named.settled()
    assert len(named.status()["rotating"]) == 1
