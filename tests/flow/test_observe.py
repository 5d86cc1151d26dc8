"""`mode = "observe"`: everything is forwarded, and the record shows what enforce would have refused (semantics section 4)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.processes import Rig, chat, rig

CONFIG = """
mode = "observe"
[upstreams.anthropic.policy.generate]
mode = "enforce"
"""
PARTIAL = "synthetic/cut=2,times=1"


@pytest.fixture(scope="module")
def observing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("observe")
    (directory / "sendonce.toml").write_text(CONFIG)
    with rig(directory, "--config", str(directory / "sendonce.toml")) as made:
        yield made


def row_of(made: Rig, call: str) -> dict[str, object]:
    return next(row for row in made.calls() if row["call_id"] == call)


def test_unresolved_call_is_continued_on_the_settings_authority(observing: Rig) -> None:
    """Refused by default; observed, it is sent again, the second effect is on record and so is who accepted it."""
    body, key = chat(PARTIAL, "unresolved", stream=True), {"Idempotency-Key": "unresolved"}
    with pytest.raises(Exception, match="IncompleteRead"):
        observing.chat(body, key)
    observing.settled()
    again = observing.chat(body, key)
    assert (again.status, again.disposition) == (200, "forwarded")
    row = row_of(observing, again.headers["sendonce-call"])
    assert (row["would_refuse"], row["occurrence"], row["generation"]) == ("effect_happened", 1, 2)
    claims = [
        line for line in observing.show(again.headers["sendonce-call"])["events"] if line["kind"] == "call.requested"
    ]
    assert len(claims) == 1
    metrics = observing.post("/_sendonce/metrics", b"", method="GET").body.decode()
    assert 'sendonce_accepted_effects_total{authority="mode",upstream="openai"} 1.0' in metrics
    assert 'sendonce_observed_refusals_total{code="effect_happened",upstream="openai"} 1.0' in metrics


def test_reused_key_is_a_sample_of_its_own(observing: Rig) -> None:
    """Another body under one key: forwarded, marked, and from then on the newer one is what the key means."""
    key = {"Idempotency-Key": "reused"}
    first, second = chat(text="reused one"), chat(text="reused two")
    assert observing.chat(first, key).disposition == "forwarded"
    observing.settled()
    other = observing.chat(second, key)
    observing.settled()
    assert (other.disposition, row_of(observing, other.headers["sendonce-call"])["would_refuse"]) == (
        "forwarded",
        "key_reused",
    )
    replay = observing.chat(second, key)
    assert (replay.disposition, replay.body) == ("replayed", other.body)


def test_answer_in_another_form_is_asked_for_anew(observing: Rig) -> None:
    """JSON cannot become a stream; observed, the stream is fetched."""
    key = {"Idempotency-Key": "form"}
    observing.chat(chat(text="form"), key)
    observing.settled()
    streamed = observing.chat(chat(text="form", stream=True), key)
    assert streamed.disposition == "forwarded"
    assert row_of(observing, streamed.headers["sendonce-call"])["would_refuse"] == "form_differs"


def test_class_that_enforces_refuses_all_the_same(observing: Rig) -> None:
    """The mode is the upstream's and the class's own where they set it."""
    body = b'{"model":"synthetic/reset=mid","max_tokens":5,"stream":true,"messages":[]}'
    with pytest.raises(Exception, match="IncompleteRead"):
        observing.messages(body, {"Idempotency-Key": "enforced"})
    observing.settled()
    assert observing.messages(body, {"Idempotency-Key": "enforced"}).code == "effect_happened"


def test_record_of_an_observing_proxy_is_sound(observing: Rig, tmp_path: Path) -> None:
    """The verifier accepts every claim that was made on the setting's authority; `calls` lists them."""
    for text in ("sound one", "sound two"):
        observing.chat(chat(text=text), {"Idempotency-Key": "sound"})
    observing.chat(chat(text="sound three"))
    observing.settled()
    made = observing.command("export", str(tmp_path / "bundle"))
    assert made.returncode == 0, made.stderr
    verdict = subprocess.run(
        [sys.executable, "-m", "ledger.verifier", str(tmp_path / "bundle")], capture_output=True, text=True, check=False
    )
    assert verdict.returncode == 0, verdict.stdout
    rows = json.loads(observing.command("calls", "--would-refuse", "--json").stdout)
    assert {row["would_refuse"] for row in rows if row["key"] == "sound"} == {"key_reused"}
    assert all(row["would_refuse"] for row in rows)
    assert "enforce would refuse" in observing.command("calls", "--would-refuse").stdout
