"""The command line beside a living proxy and after its death: the same rows, nothing appended, never a traceback."""

import asyncio
import http.client
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from typer.testing import CliRunner

from ledger.events import EpochClosed
from ledger.reader import open_reader
from proxy.cli import app
from tests.harness.commands import command as sendonce
from tests.harness.connections import connected, read_answer, request_bytes
from tests.harness.passes import open_pass
from tests.harness.processes import Rig, chat, message, rig, until

CHAT = "/openai/v1/chat/completions"
READS = ("status", "calls", "doctor")


def ask_three(made: Rig) -> dict[str, str]:
    """Call ids by what became of them."""
    done = made.chat(chat(text="done")).headers["sendonce-call"]
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        made.messages(message("synthetic/cut=1", "cut"))
    keyed = made.chat(chat(text="keyed"), {"Idempotency-Key": "the-key"}).headers["sendonce-call"]
    made.settled()
    cut = next(row["call_id"] for row in made.calls() if row["stage"] == "effect_happened")
    return {"done": done, "cut": cut, "keyed": keyed}


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, dict[str, str]]]:
    with rig(tmp_path_factory.mktemp("living")) as made:
        yield made, ask_three(made)


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, dict[str, str]]]:
    """Killed with SIGKILL, one more call in flight."""
    with rig(tmp_path_factory.mktemp("dead")) as made:
        calls = ask_three(made)
        body = chat("synthetic/hold=60", "in flight")
        with connected(made.port) as sock:
            sock.sendall(request_bytes(CHAT, body))
            made.await_receipt(body)
            assert made.proxy_process is not None
            made.proxy_process.kill()
        calls["lost"] = next(row["call_id"] for row in made.calls() if row["stage"] == "effect_unknown")
        yield made, calls


def output(made: Rig, *arguments: str, code: int = 0) -> str:
    done = sendonce(made, *arguments)
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    return done.stdout


def documents(made: Rig, *arguments: str) -> Any:
    return json.loads(output(made, *arguments, "--json"))


def fingerprint(made: Rig) -> dict[str, str]:
    """Every file of the state dir that could have been written to; -shm is SQLite's index of the WAL for its readers."""
    files = [path for path in sorted(made.state_dir.rglob("*")) if path.is_file() and not path.name.endswith("-shm")]
    return {str(path): blake3(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("command", READS)
def test_read_command_of_a_dead_proxy_changes_no_byte(dead: tuple[Rig, dict[str, str]], command: str) -> None:
    """With and without --json, twice: it works and appends nothing, recovers nothing, checkpoints nothing."""
    before = fingerprint(dead[0])
    assert output(dead[0], command)
    assert documents(dead[0], command)
    assert output(dead[0], "show", dead[1]["lost"])
    assert fingerprint(dead[0]) == before


def test_rows_of_a_living_and_a_dead_proxy_have_the_same_fields(
    living: tuple[Rig, dict[str, str]], dead: tuple[Rig, dict[str, str]]
) -> None:
    """The stable ones; `alive` is false beside the owner and null where none answers."""
    stable = {
        "call_id", "scope", "key", "key_source", "upstream", "stage", "next_operation", "effect", "alive", "model",
        "duplicate_effect_risk", "reason", "attempts", "usage", "body_blake3", "created_at",
    }  # fmt: skip
    here, gone = documents(living[0], "calls"), documents(dead[0], "calls")
    assert stable <= set(here[0]) == set(gone[0])
    assert ({row["alive"] for row in here}, {row["alive"] for row in gone}) == ({False}, {None})
    same = ("stage", "effect", "next_operation", "reason", "usage", "key_source")
    for name in ("done", "keyed"):
        ours = next(row for row in here if row["call_id"] == living[1][name])
        theirs = next(row for row in gone if row["call_id"] == dead[1][name])
        assert [ours[field] for field in same] == [theirs[field] for field in same]
    assert [row["call_id"] for row in gone] == sorted((row["call_id"] for row in gone), reverse=True)


def test_call_in_flight_is_alive_and_nothing_is_to_be_done(living: tuple[Rig, dict[str, str]]) -> None:
    """`alive` true, next operation none, no risk: the proxy is at it."""
    made, _ = living
    body = chat("synthetic/hold=30", "alive")
    with connected(made.port) as sock:
        sock.sendall(request_bytes(CHAT, body))
        made.await_receipt(body)
        row = documents(made, "calls")[0]
        assert (row["alive"], row["next_operation"], row["duplicate_effect_risk"]) == (True, "none", False)
        assert row["reason"] == "It is in flight."
        assert documents(made, "status")["in_flight"] == [row["call_id"]]
        refused = sendonce(made, "reconcile", row["call_id"], "--served", "--reason", "x", "--by", "ada")
        assert (refused.returncode, "is in flight" in refused.stderr) == (6, True)


def test_calls_are_found_by_stage_key_and_limit(dead: tuple[Rig, dict[str, str]]) -> None:
    """Filters, and a word on stderr where the limit hides some."""
    made, calls = dead
    found = documents(made, "calls", "--stage", "effect_unknown")
    assert [row["call_id"] for row in found] == [calls["lost"]]
    found = documents(made, "calls", "--key", "the-key")
    assert [row["call_id"] for row in found] == [calls["keyed"]]
    assert documents(made, "calls", "--key", "no-such-key") == []
    limited = sendonce(made, "calls", "--limit", "1", "--json")
    assert [row["call_id"] for row in json.loads(limited.stdout)] == [calls["lost"]]
    assert f"the newest 1 of {len(calls)} calls" in limited.stderr


def test_status_counts_what_is_unresolved(living: tuple[Rig, dict[str, str]], dead: tuple[Rig, dict[str, str]]) -> None:
    """Running or not, and every call whose effect may have happened."""
    here, gone = documents(living[0], "status"), documents(dead[0], "status")
    assert (here["running"], gone["running"]) == (True, False)
    assert (here["epoch"], gone["epoch"]) == (1, 1)
    assert gone["in_flight"] is None
    assert set(gone["unresolved"]) == {dead[1]["cut"], dead[1]["lost"]}
    assert gone["stages"] == {"completed": 2, "effect_happened": 1, "effect_unknown": 1}
    assert "unresolved            2" in output(dead[0], "status")


def test_show_tells_what_was_attempted_and_what_is_safe_next(dead: tuple[Rig, dict[str, str]]) -> None:
    """From which inputs, what came back, what is unresolved, and the command that settles it."""
    made, calls = dead
    document = documents(made, "show", calls["cut"])
    assert (document["unresolved"], document["next_operation"]) == (True, "reconcile_effect")
    assert document["manifest"]["url"].endswith("/v1/messages")
    assert document["attempt_rows"][0]["observation"] == "partial"
    kinds = [event["kind"] for event in document["events"]]
    assert kinds[:3] == ["call.requested", "call.manifest", "attempt.started"]
    assert f"sendonce reconcile {calls['cut']}" in output(made, "show", calls["cut"])
    assert "sk-test-caller" not in json.dumps(document)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("show", "call_nothing"), 2, "There is no call call_nothing"),
        (("show",), 2, "Missing argument"),
        (("calls", "--limit", "0"), 2, "--limit"),
        (("calls", "--stage", "no_such_stage"), 2, "no_such_stage"),
        (("nonsense",), 2, "nonsense"),
        (("reconcile", "call_nothing", "--served", "--reason", "x", "--by", "ada"), 6, "call_nothing"),
        (("reconcile", "call_x", "--reason", "x"), 2, "--served, --not-served"),
        (("reconcile", "call_x", "--served", "--reason", " "), 2, "--reason is empty"),
        (("recover", "--reason", "x"), 2, "--accept-lost-tail"),
    ],
)
def test_wrong_usage_is_one_sentence(
    living: tuple[Rig, dict[str, str]], arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    """On stderr, with the exit code of its kind."""
    done = sendonce(living[0], *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert sentence in done.stderr


@pytest.mark.parametrize("command", ["", "serve", "status", "calls", "show", "doctor", "reconcile", "recover"])
def test_help_of_every_command_explains_itself(tmp_path: Path, command: str) -> None:
    """Exit 0, and a description above the options."""
    done = CliRunner().invoke(app, [*([command] if command else []), "--help"])
    assert done.exit_code == 0
    assert "Usage:" in done.stdout
    assert not list(tmp_path.iterdir())


def test_commands_without_a_ledger_say_so(tmp_path: Path) -> None:
    """Exit 4 and the remedy; doctor has nothing to complain about. Nothing is created."""
    made = Rig(tmp_path, None)  # type: ignore[arg-type]
    for command in ("status", "calls"):
        done = sendonce(made, command)
        assert (done.returncode, "There is no ledger at" in done.stderr) == (4, True)
    assert all(finding["ok"] for finding in documents(made, "doctor"))
    assert not made.state_dir.exists()


# --- doctor ------------------------------------------------------------------------------------------------------------


def flip(path: Path, needle: bytes) -> None:
    data = path.read_bytes()
    at = data.index(needle)
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def damage_ledger(made: Rig) -> None:
    flip(made.state_dir / "ledger.db", b'"upstream":"openai"')


def damage_receipts(made: Rig) -> None:
    flip(made.state_dir / "receipts" / "000001.jsonl", b'"kind":"sent"')


def loosen(made: Rig) -> None:
    (made.state_dir / "secret").chmod(0o644)


def forget_a_pass(made: Rig) -> None:
    """A run's newest pass would be another one then."""
    with closing(sqlite3.connect(made.state_dir / "ledger.db")) as ledger, ledger:
        ledger.execute("DELETE FROM pass_index WHERE number = 2")


DAMAGES = [
    (damage_ledger, "ledger", 4), (damage_receipts, "receipts", 4), (loosen, "permissions", 4), (forget_a_pass, "passes", 4),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "what", "code"), DAMAGES)
def test_doctor_finds_damage(tmp_path: Path, damage: Any, what: str, code: int) -> None:
    """Exactly that finding is bad, and it says what to do; before the damage all are well."""
    with rig(tmp_path) as made:
        made.chat(chat())
        for _ in range(2):
            open_pass(made, "nightly")
        assert made.proxy_process is not None
        assert made.proxy_process.stop() == 0
        assert all(finding["ok"] for finding in documents(made, "doctor"))
        damage(made)
        done = sendonce(made, "doctor", "--json")
        assert (done.returncode, "Traceback" in done.stderr) == (code, False)
        bad = [finding for finding in json.loads(done.stdout) if not finding["ok"]]
        assert [finding["what"] for finding in bad] == [what]
        assert "BAD" in sendonce(made, "doctor").stdout


# --- own endpoints and the end -------------------------------------------------------------------------------------------


def test_health_and_metrics_of_a_living_proxy(living: tuple[Rig, dict[str, str]]) -> None:
    """200 while it admits; refusals and accepted effects are counted in the text format of Prometheus."""
    made, _ = living
    health = made.post("/_sendonce/health", b"", method="GET")
    assert (health.status, health.json["status"]) == (200, "admitting")
    body = chat("synthetic/page=502", "counted")
    refused = [made.chat(body) for _ in range(3)][-1]
    made.chat(body, {"Sendonce-Accept": refused.json["attempt"]})
    metrics = made.post("/_sendonce/metrics", b"", method="GET")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = metrics.body.decode().splitlines()
    assert 'sendonce_refusals_total{code="effect_unknown",upstream="openai"} 2.0' in lines
    assert 'sendonce_accepted_effects_total{authority="caller",upstream="openai"} 1.0' in lines
    assert "sendonce_admitting 1.0" in lines
    log = (made.state_dir / "activity.log").read_text()
    assert '"code":"effect_unknown"' in log
    assert "sk-test-caller" not in log


def test_sigterm_lets_an_answer_in_flight_end_and_closes_the_epoch(tmp_path: Path) -> None:
    """The answer comes whole, new connections are refused, exit 0, `epoch.closed` by self."""
    with rig(tmp_path) as made:
        body = chat("synthetic/delay=1", "in flight at the end")
        process = made.proxy_process
        assert process is not None
        with connected(made.port) as sock:
            sock.sendall(request_bytes(CHAT, body))
            made.await_receipt(body)
            os.kill(process.child.pid, signal.SIGTERM)
            answer = read_answer(sock)
        assert process.wait() == 0
        assert (answer.status, answer.disposition) == (200, "forwarded")
        row = made.show(answer.headers["sendonce-call"])
        assert (row["stage"], row["effect"]) == ("completed", "happened")
        assert [closing.by for closing in closings(made)] == ["self"]


def test_health_is_503_while_it_drains(tmp_path: Path) -> None:
    """On a connection that was open before; what it asks for is refused as `draining` and owed a first try."""
    with rig(tmp_path) as made:
        body = chat("synthetic/hold=2", "keeps it draining")
        process = made.proxy_process
        assert process is not None
        with connected(made.port) as busy, connected(made.port) as sock:
            busy.sendall(request_bytes(CHAT, body))
            made.await_receipt(body)
            os.kill(process.child.pid, signal.SIGTERM)
            until(lambda: made.status()["admitting"] is False)
            sock.sendall(b"GET /_sendonce/health HTTP/1.1\r\nHost: p\r\n\r\n")
            assert (health := read_answer(sock)).status == 503
            assert health.json["status"] == "draining"
            sock.sendall(request_bytes(CHAT, chat(text="too late")))
            refused = read_answer(sock)
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "draining", "1")
        assert process.wait() == 0


def closings(made: Rig) -> list[EpochClosed]:
    async def read() -> list[EpochClosed]:
        async with open_reader(made.paths.ledger) as reader:
            events = [recorded.event for recorded in await reader.ledger_events()]
            return [event for event in events if isinstance(event, EpochClosed)]

    return asyncio.run(read())
