"""SIGKILL while the provider holds a request: the same request is refused, until somebody decides."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.harness.commands import command
from tests.harness.crashes import (
    CHAT_PATH,
    MESSAGES_PATH,
    call_of,
    completed,
    events_of,
    held,
    kill_while_held,
    receipts_of,
    records_of,
    sentence_of,
)
from tests.harness.processes import Answer, Rig, chat, message

EXIT_DECISION: Final = 6
HELD_ONCE: Final = "synthetic/hold=forever,times=1"  # whoever sends it a second time is served
ANTHROPIC_VERSION: Final = {"anthropic-version": "2023-06-01"}
# flag -> stage it leads to, the code that the same request is refused with, does a second effect go on record
DECISIONS: Final[dict[str, tuple[str, str | None, bool]]] = {
    "--served": ("closed", "response_lost", False),
    "--not-served": ("settled", None, False),
    "--accept-duplicate": ("settled", None, True),
    "--park": ("closed", "parked", False),
}


def left_unknown(rig: Rig, headers: dict[str, str] | None = None, text: str = "hello") -> tuple[bytes, dict[str, Any]]:
    """A request body the provider has once, and its call in stage `effect_unknown`, under a living proxy."""
    body = chat(HELD_ONCE, text)
    kill_while_held(rig, CHAT_PATH, body, headers)
    row = call_of(rig)
    assert (row["stage"], row["duplicate_effect_risk"]) == ("effect_unknown", True)
    return body, row


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT_PATH, chat("synthetic/hold=forever"), 400),
        (CHAT_PATH, chat("synthetic/hold=forever", stream=True), 400),
        (MESSAGES_PATH, message("synthetic/hold=forever"), 424),
        (MESSAGES_PATH, message("synthetic/hold=forever", stream=True), 424),
    ],
    ids=["openai", "openai-stream", "anthropic", "anthropic-stream"],
)
def test_killed_while_provider_holds_is_refused_and_never_sent_again(
    running: Rig, path: str, body: bytes, status: int
) -> None:
    """No client has to do anything for it: no key, no header, no second request at the provider."""
    kill_while_held(running, path, body, ANTHROPIC_VERSION)
    row, events = call_of(running), events_of(running)
    first = running.post(path, body, ANTHROPIC_VERSION)
    assert (first.status, first.code, first.disposition) == (status, "effect_unknown", "refused")
    assert first.headers["x-should-retry"] == "false"
    assert "retry-after" not in first.headers
    assert first.headers["sendonce-call"] == row["call_id"]
    assert first.body.startswith(b'{"error": {"message": "This request was sent at ')
    assert f"sendonce reconcile {row['call_id']}" in sentence_of(first)
    running.restart()
    events += 2  # the dead epoch closed, the next one opened
    repeats = [running.post(path, body, ANTHROPIC_VERSION) for _ in range(3)]
    assert {repeat.body for repeat in repeats} == {first.body}
    assert {repeat.status for repeat in repeats} == {status}
    assert len(receipts_of(running, body)) == 1
    assert events_of(running) == events
    assert call_of(running) == row


def test_another_request_is_served_beside_an_unknown_one(running: Rig) -> None:
    """Protection is for the one intention, not for the caller."""
    left_unknown(running)
    assert running.chat(chat(text="something else")).disposition == "forwarded"


@pytest.mark.parametrize("alive", [True, False], ids=["owner-alive", "owner-dead"])
@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "mine"}], ids=["derived", "explicit"])
@pytest.mark.parametrize("flag", DECISIONS)
def test_decision_leads_where_the_table_says(running: Rig, flag: str, key: dict[str, str], alive: bool) -> None:
    """Through the living owner, or with the lock taken where there is none: same record, same consequence."""
    stage, code, accepts = DECISIONS[flag]
    body, row = left_unknown(running, key)
    if not alive:
        assert running.proxy_process is not None
        running.proxy_process.kill()
    done = command(
        running, "reconcile", row["call_id"], flag, "--reason", "looked at the provider's log", "--by", "ada"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert call_of(running)["stage"] == stage
    assert len(receipts_of(running, body)) == 1  # a decision sends nothing
    if not alive:
        running.start()
    retry = {"x-stainless-lang": "python", "x-stainless-retry-count": "1"} if flag == "--served" else {}
    answer = running.chat(body, key | retry)
    if code is not None:
        assert (answer.status, answer.code, answer.disposition) == (400, code, "refused")
        assert len(receipts_of(running, body)) == 1
        return
    assert (answer.status, answer.disposition) == (200, "forwarded")
    assert len(receipts_of(running, body)) == 2
    newest, older = completed(running), running.calls()[1]
    assert (older["stage"], older["superseded_by"], newest["generation"]) == ("superseded", newest["call_id"], 2)
    (requested,) = records_of(running, newest["call_id"], "call.requested")
    assert (requested["why_new"], requested["continues"]) == ("decision", row["call_id"])
    assert requested["authority"]["name"] == "ada"
    assert requested["accepts_attempt"] == (f"{row['call_id']}.1" if accepts else None)


def test_served_decision_of_a_derived_key_ends_the_occurrence(running: Rig) -> None:
    """An unmarked request afterwards is a next sample; a certain retry is refused like an explicit key."""
    body, row = left_unknown(running)
    command(running, "reconcile", row["call_id"], "--served", "--reason", "seen in the usage export")
    retry = running.chat(body, {"x-stainless-lang": "python", "x-stainless-retry-count": "1"})
    assert (retry.status, retry.code) == (400, "response_lost")
    assert len(receipts_of(running, body)) == 1
    assert running.chat(body).disposition == "forwarded"
    assert [(row["occurrence"], row["generation"]) for row in running.calls()] == [(2, 1), (1, 1)]


def test_caller_accepts_the_named_attempt_once(running: Rig) -> None:
    """`Sendonce-Accept: ATTEMPT`, as the refusal prints it, works for that attempt only, and is stripped."""
    body, row = left_unknown(running)
    attempt = running.chat(body).json["attempt"]
    assert attempt == f"{row['call_id']}.1"
    assert running.chat(body, {"Sendonce-Accept": f"{row['call_id']}.2"}).code == "effect_unknown"
    accepted = running.chat(body, {"Sendonce-Accept": attempt})
    assert (accepted.status, accepted.disposition) == (200, "forwarded")
    sent = receipts_of(running, body)
    assert len(sent) == 2
    assert not [name for receipt in sent for name in receipt["header_names"] if name.startswith("sendonce")]
    newest = completed(running)
    assert (newest["generation"], newest["effect"]) == (2, "happened")
    (requested,) = records_of(running, newest["call_id"], "call.requested")
    assert (requested["accepts_attempt"], requested["authority"]["kind"]) == (attempt, "caller")
    body, row = left_unknown(running, text="another")
    assert running.chat(body, {"Sendonce-Accept": attempt}).code == "effect_unknown"
    assert len(receipts_of(running, body)) == 1


def test_decision_about_a_call_in_flight_is_refused(running: Rig) -> None:
    """There is nothing to decide while the answer may still come."""
    body = chat("synthetic/hold=forever")
    with held(running, CHAT_PATH, body):
        row = call_of(running)
        assert row["alive"] is True
        events = events_of(running)
        refused = command(running, "reconcile", row["call_id"], "--not-served", "--reason", "impatient")
        assert refused.returncode == EXIT_DECISION
        assert "is in flight" in refused.stderr
        assert events_of(running) == events


@pytest.mark.parametrize("alive", [True, False], ids=["owner-alive", "owner-dead"])
def test_decision_is_idempotent_and_a_stale_one_is_refused(running: Rig, alive: bool) -> None:
    """The same words again change nothing; other words must name the decision they succeed."""
    body, row = left_unknown(running)
    call = row["call_id"]
    if not alive:
        assert running.proxy_process is not None
        running.proxy_process.kill()

    def decide(*arguments: str) -> tuple[int, str]:
        done = command(running, "reconcile", call, *arguments, "--by", "ada")
        return done.returncode, done.stdout + done.stderr

    park = ("--park", "--reason", "asked the provider")
    assert decide(*park)[0] == 0
    decisions = running.show(call)["decisions"]
    code, text = decide(*park)
    assert (code, running.show(call)["decisions"]) == (0, decisions)
    assert "decided so already" in text
    code, text = decide("--not-served", "--reason", "they answered")
    assert (code, running.show(call)["decisions"]) == (EXIT_DECISION, decisions)
    assert f"--succeeds {decisions[0]['seq']}" in text
    assert decide("--not-served", "--reason", "they answered", "--succeeds", str(decisions[0]["seq"] + 1))[0] == 6
    assert decide("--not-served", "--reason", "they answered", "--succeeds", str(decisions[0]["seq"]))[0] == 0
    assert [decision["decision"] for decision in running.show(call)["decisions"]] == ["parked", "not_served"]
    assert call_of(running)["stage"] == "settled"
    assert len(receipts_of(running, body)) == 1


@pytest.mark.parametrize("alive", [True, False], ids=["owner-alive", "owner-dead"])
def test_decision_about_an_unknown_call_is_refused(running: Rig, alive: bool) -> None:
    """One sentence and exit code 6, whoever is asked."""
    running.chat(chat())
    if not alive:
        assert running.proxy_process is not None
        running.proxy_process.kill()
    refused = command(running, "reconcile", "call_0123456789ab0123456789abcdef", "--park", "--reason", "guess")
    assert refused.returncode == EXIT_DECISION
    assert "There is no call call_0123456789ab0123456789abcdef" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_retry_beside_a_decision_is_sent_at_most_once_more(running: Rig) -> None:
    """Whichever is first, the retry is refused or sent as the decision says; never both and never twice."""
    body, row = left_unknown(running)
    with ThreadPoolExecutor() as pool:
        decided = pool.submit(running.command, "reconcile", row["call_id"], "--not-served", "--reason", "looked")
        answers: list[Answer] = []
        while not decided.done() or not answers:
            answers.append(running.chat(body))
    assert decided.result().returncode == 0
    sent_by_loop = [answer for answer in answers if answer.status == 200]
    assert {answer.code for answer in answers if answer.status != 200} <= {"effect_unknown"}
    final = running.chat(body)
    assert final.status == 200
    generations = [row for row in running.calls() if row["occurrence"] == 1]
    assert [row["generation"] for row in generations] == [2, 1]
    # Each further one is a sample of its own, after the one before was delivered.
    assert len(receipts_of(running, body)) == 1 + len(sent_by_loop) + 1 == len(running.calls())


def test_two_clients_after_a_decision_continue_it_once(running: Rig) -> None:
    """Eight at once with one explicit key: one is sent, the others are attached or get its answer replayed."""
    key = {"Idempotency-Key": "mine"}
    body, row = left_unknown(running, key)
    command(running, "reconcile", row["call_id"], "--not-served", "--reason", "looked")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: running.chat(body, key), range(8)))
    assert [answer.status for answer in answers] == [200] * 8
    assert [answer.disposition for answer in answers].count("forwarded") == 1
    assert len({answer.body for answer in answers}) == 1
    assert len(receipts_of(running, body)) == 2


@pytest.mark.parametrize("alive", [True, False], ids=["owner-alive", "owner-dead"])
def test_two_different_decisions_at_once_one_wins(running: Rig, alive: bool) -> None:
    """The other gets a sentence and exit code 6 (or 4: the state dir is the winner's), and no record."""
    _, row = left_unknown(running)
    if not alive:
        assert running.proxy_process is not None
        running.proxy_process.kill()
    flags = {"parked": "--park", "not_served": "--not-served"}
    with ThreadPoolExecutor() as pool:
        both = list(
            pool.map(
                lambda flag: running.command("reconcile", row["call_id"], flag, "--reason", "at once"), flags.values()
            )
        )
    codes = sorted(done.returncode for done in both)
    assert codes in ([0, 6], [0, 4])
    winner, loser = sorted(both, key=lambda done: done.returncode)
    assert loser.stderr.startswith("sendonce: ")
    assert winner.stderr == ""
    assert "Traceback" not in loser.stderr
    (decision,) = running.show(row["call_id"])["decisions"]
    assert flags[decision["decision"]] in winner.args
