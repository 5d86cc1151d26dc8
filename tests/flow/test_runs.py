"""Runs over real sockets: what a new start gets, whose requests are stale, and the commands around a run."""

import json
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness.agent_runs import counts, passes, run_whole, started
from tests.harness.passes import open_pass
from tests.harness.processes import Rig, chat, message, rig, until


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig(tmp_path_factory.mktemp("runs")) as made:
        yield made


def new_receipts(rig: Rig, before: int) -> int:
    return len(rig.provider_receipts()) - before


# --- passes ------------------------------------------------------------------------------------------------------------


def test_each_occurrence_is_replayed_to_the_next_pass_in_order(running: Rig) -> None:
    """Though each was delivered: a new start asks for what it asked before, samples one by one."""
    before = len(running.provider_receipts())
    first = open_pass(running, "order")
    made = [first.chat(chat(text="order")).body for _ in range(3)]
    second = open_pass(running, "order")
    again = [second.chat(chat(text="order")) for _ in range(4)]
    assert [answer.body for answer in again[:3]] == made
    assert [answer.disposition for answer in again] == ["replayed"] * 3 + ["forwarded"]
    assert len(set(made)) == 3
    assert new_receipts(running, before) == 4
    assert [counts(row)["sent"] for row in passes(running, "order")] == [3, 1]


def test_same_request_outside_of_the_run_and_in_another_run_is_its_own(running: Rig) -> None:
    """Keys are compared within one scope, and a run has its own."""
    before = len(running.provider_receipts())
    body = chat(text="scopes")
    dispositions = [running.chat(body).disposition]
    dispositions += [open_pass(running, name).chat(body).disposition for name in ("one", "two")]
    assert dispositions == ["forwarded"] * 3
    assert new_receipts(running, before) == 3


def test_explicit_key_replays_in_every_pass(running: Rig) -> None:
    """And its pass is on record all the same."""
    keyed = {"Idempotency-Key": "explicit-in-a-run"}
    first = open_pass(running, "explicit").chat(chat(text="explicit"), keyed)
    second = open_pass(running, "explicit").chat(chat(text="explicit"), keyed)
    assert (second.disposition, second.body) == ("replayed", first.body)
    assert counts(passes(running, "explicit")[1])["replayed"] == 1


def test_certain_retry_within_a_pass_does_not_advance_it(running: Rig) -> None:
    """The SDK's retry gets its first try's answer; the next request is the next occurrence."""
    body, again = chat(text="retried"), {"x-stainless-lang": "python", "x-stainless-retry-count": "1"}
    opening = open_pass(running, "retried")
    first = opening.chat(body, {"x-stainless-lang": "python"})
    assert opening.chat(body, again).body == first.body
    second = opening.chat(body, {"x-stainless-lang": "python"})
    assert second.body != first.body
    later = open_pass(running, "retried")
    replayed = [
        later.chat(body, headers) for headers in ({"x-stainless-lang": "python"}, again, {"x-stainless-lang": "python"})
    ]
    assert [answer.body for answer in replayed] == [first.body, first.body, second.body]


def test_new_start_attaches_to_what_the_killed_one_left_running(running: Rig) -> None:
    """The proxy has read on; the answer goes to whoever asks for it next."""
    body = chat("synthetic/hold=2", text="left running")
    first = open_pass(running, "attach")
    with ThreadPoolExecutor() as pool:
        orphan = pool.submit(first.chat, body)
        running.await_receipt(body)
        second = open_pass(running, "attach").chat(body)
        assert (second.disposition, second.body) == ("attached", orphan.result().body)
    running.await_receipt(body, 1)
    assert [line for line in running.provider_receipts() if line["body_bytes"] == len(body)]
    assert counts(passes(running, "attach")[1])["attached"] == 1


def test_orphan_beside_a_newer_pass_is_stale_and_sends_nothing(running: Rig) -> None:
    """Old and new requests of it, known and unknown ones."""
    before = len(running.provider_receipts())
    first = open_pass(running, "orphan")
    first.chat(chat(text="known"))
    second = open_pass(running, "orphan")
    stale = [first.chat(chat(text=text)) for text in ("known", "unknown")]
    assert [(answer.status, answer.code) for answer in stale] == [(400, "stale_pass")] * 2
    assert stale[0].headers["x-should-retry"] == "false"
    assert "Stop the old program" in stale[0].json["detail"]
    assert second.chat(chat(text="known")).disposition == "replayed"
    assert new_receipts(running, before) == 1


def test_request_that_waits_while_its_pass_is_closed_is_stale(running: Rig) -> None:
    """It was let in by a pass that was open then; what it would be given is not its own any more."""
    held = chat("synthetic/hold=1", text="earlier")
    opening = open_pass(running, "waits")
    with ThreadPoolExecutor() as pool:
        earlier = pool.submit(opening.chat, held)
        running.await_receipt(held)
        second = open_pass(running, "waits")
        waiting = pool.submit(second.chat, chat(text="new beside a running one"))
        third = open_pass(running, "waits")
        assert third.chat(held).json == earlier.result().json
        assert waiting.result().code == "stale_pass"


@pytest.mark.parametrize(
    "path",
    [
        "/run/never/1-abc",
        "/run/forged/1-abc",
        "/run/forged/2-abc",
        "/run/forged/x",
        "/run/forged/0-abc",
        "/run//1-a",
        "/run/a%2fb/1-a",
    ],
)
def test_pass_that_was_never_opened_is_stale(running: Rig, path: str) -> None:
    """A guess at a run, a number or a token gets nothing, and is no call."""
    open_pass(running, "forged")
    before = len(running.provider_receipts())
    answer = running.post(f"{path}/openai/v1/chat/completions", chat(text="forged"))
    assert (answer.status, answer.code) == (400, "stale_pass")
    assert new_receipts(running, before) == 0


def test_unknown_upstream_in_a_run_is_named(running: Rig) -> None:
    """As outside of one."""
    opened = open_pass(running, "lost")
    answer = running.post(f"{opened.path}/nowhere/v1/x", b"{}")
    assert (answer.status, answer.code) == (404, "unknown_upstream")


def test_safe_request_in_a_run_passes_through(running: Rig) -> None:
    """Lists of models are no calls."""
    opened = open_pass(running, "safe")
    assert running.post(f"{opened.path}/openai/v1/models", b"", method="GET").status == 200


def test_pass_stands_for_the_callers_token(tmp_path: Path) -> None:
    """Whoever was handed the base URL needs no header besides; whoever guesses at one is told nothing."""
    with rig(tmp_path) as made:
        made.environment["SENDONCE_CALLER_TOKEN"] = "x" * 16
        made.restart()
        assert made.chat(chat()).status == 401
        assert open_pass(made, "token").chat(chat()).status == 200
        guess = made.post("/run/token/1-guess/nowhere/v1/x", b"{}")
        assert guess.code == "stale_pass"


def test_two_starts_at_once_the_last_wins_and_names_the_earlier(running: Rig) -> None:
    """Each is told which pass it closed; only the newest is served."""
    with ThreadPoolExecutor() as pool:
        opened = sorted(pool.map(lambda _: open_pass(running, "at once"[:2]), range(4)), key=lambda one: one.number)
    assert [one.opened["earlier"] for one in opened] == [None, 1, 2, 3]
    answers = [one.chat(chat(text="at once")) for one in opened]
    assert [answer.code for answer in answers[:3]] == ["stale_pass"] * 3
    assert answers[3].status == 200


def test_background_response_that_still_runs_is_a_gate(running: Rig) -> None:
    """The provider said that it goes on; whether it is over is not known here."""
    body = json.dumps({"model": "synthetic", "input": "hi", "background": True}).encode()
    opened = open_pass(running, "background")
    answer = running.post(f"{opened.path}/openai/v1/responses", body)
    assert answer.json["status"] in {"queued", "in_progress"}
    running.settled()
    assert open_pass(running, "background").gates == ["background_running"]


def test_unresolved_call_is_a_gate_with_the_command_that_shows_it(tmp_path: Path) -> None:
    """As a reason for programs when the pass opens, and for people in `runs`."""
    with rig(tmp_path) as made:
        held = chat("synthetic/hold=forever", text="gate")
        with ThreadPoolExecutor() as pool:
            cut = pool.submit(open_pass(made, "gates").cut_chat, held)
            made.await_receipt(held)
            made.restart()
            cut.result()
        opened = open_pass(made, "gates")
        assert opened.gates == ["unresolved"]
        call = opened.opened["gates"][0]["call"]
        assert f"sendonce show {call}" in made.command("runs", "gates").stdout
        (row,) = json.loads(made.command("runs", "--json").stdout)
        assert (row["run"], row["passes"], row["calls"], row["unresolved"]) == ("gates", 2, 1, 1)


# --- the commands ------------------------------------------------------------------------------------------------------

PRINTS = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]


def test_command_gets_every_sdks_variable(running: Rig) -> None:
    """Each behind its upstream's name, in this pass; and its exit code is the run's."""
    ended = run_whole(running, "variables", PRINTS)
    (found,) = ended.answers
    base = found["OPENAI_BASE_URL"].removesuffix("/openai/v1")
    assert base.startswith(f"{running.url}/run/variables/1-")
    assert (found["ANTHROPIC_BASE_URL"], found["GOOGLE_GEMINI_BASE_URL"]) == (f"{base}/anthropic", f"{base}/gemini")  # type: ignore[index]
    assert run_whole(running, "variables", ["sh", "-c", "exit 7"]).code == 7
    assert run_whole(running, "variables", ["sh", "-c", "kill -9 $$"]).code == 128 + signal.SIGKILL


def test_run_without_an_id_makes_one_and_prints_it(running: Rig) -> None:
    """So that it can be continued."""
    ended = run_whole(running, None, ["true"])
    name = ended.err.split("run ")[1].split(",")[0]
    assert ended.code == 0
    assert f"run {name}, pass 1:" in ended.err
    assert run_whole(running, name, ["true"]).err.count(f"run {name}, pass 2") == 2


@pytest.mark.parametrize(
    ("name", "command", "code", "sentence"),
    [
        ("a/b", ["true"], 2, "The run id 'a/b' cannot be used"),
        ("x" * 300, ["true"], 2, "(300 characters)"),
        ("nächtlich", ["true"], 2, "Use 1 to 128 of the characters"),
        ("", ["true"], 2, "The run id '' cannot be used"),
        ("fine", ["no-such-program"], 127, "The command 'no-such-program' does not exist"),
        ("fine", ["./README.md"], 126, "The command './README.md' cannot be executed"),
    ],
)
def test_bad_input_is_named_and_opens_nothing(
    running: Rig, name: str, command: list[str], code: int, sentence: str
) -> None:
    """Before a pass is opened or a proxy started."""
    ended = run_whole(running, name, command)
    assert (ended.code, sentence in ended.err, "Traceback" in ended.err) == (code, True, False), ended
    assert running.command("runs", "fine").returncode == 2


def test_variable_that_points_at_another_provider_is_refused(running: Rig) -> None:
    """Its key would go to the wrong one."""
    ended = run_whole(running, "elsewhere", ["true"], OPENAI_BASE_URL="https://llm.example.com/v1")
    assert ended.code == 2
    assert "OPENAI_BASE_URL is https://llm.example.com/v1" in ended.err
    assert running.command("runs", "elsewhere").returncode == 2


def test_variable_that_names_a_known_upstream_is_moved_behind_it(running: Rig) -> None:
    """Groq's endpoint in OpenAI's variable stays Groq's."""
    ended = run_whole(running, "moved", PRINTS, OPENAI_BASE_URL="https://api.groq.com/openai/v1")
    (found,) = ended.answers
    assert found["OPENAI_BASE_URL"].endswith("/groq/v1")  # type: ignore[index]


def test_termination_is_passed_on_to_the_command(running: Rig) -> None:
    """It ends as it wishes, and its exit code stands."""
    shell = "trap 'exit 5' TERM; echo '\"ready\"'; while :; do sleep 0.05; done"
    with started(running, "terminated", ["bash", "-c", shell]) as made:
        assert made.child.stdout is not None
        made.child.stdout.readline()
        made.child.send_signal(signal.SIGTERM)
        assert made.ended().code == 5


def test_env_prints_what_a_shell_takes(running: Rig) -> None:
    """Without a run the plain base URLs, with one those of a new pass; as JSON with Codex's arguments."""
    plain = json.loads(running.command("env", "--json").stdout)
    assert plain["OPENAI_BASE_URL"] == f"{running.url}/openai/v1"
    assert plain["codex"] == ["-c", f'openai_base_url="{running.url}/openai/v1"']
    shell = running.command("env", "--id", "shell").stdout
    assert f"export ANTHROPIC_BASE_URL={running.url}/run/shell/1-" in shell
    assert json.loads(running.command("runs", "shell", "--json").stdout)["passes"][0]["pass"] == 1


def test_env_without_a_proxy_says_how_to_start_one(tmp_path: Path) -> None:
    """It starts nothing itself: what it printed would outlive it."""
    with rig(tmp_path) as made:
        assert made.proxy_process is not None
        made.proxy_process.stop()
        done = made.command("env")
        assert (done.returncode, "Start it: sendonce serve" in done.stderr) == (2, True)


def test_report_is_written_for_programs(running: Rig, tmp_path: Path) -> None:
    """The counts at the end, as `runs --json` has them."""
    path = tmp_path / "report.json"
    run_whole(running, "report", ["true"], "--report", str(path))
    assert json.loads(path.read_text())["passes"][0]["sent"] == 0


def test_anthropic_agents_run_under_their_own_column(running: Rig) -> None:
    """A refusal in a run has the status that the dialect's clients stop at."""
    first = open_pass(running, "anthropic")
    running.post(f"{first.path}/anthropic/v1/messages", message(), {"anthropic-version": "2023-06-01"})
    open_pass(running, "anthropic")
    stale = running.post(f"{first.path}/anthropic/v1/messages", message(), {"anthropic-version": "2023-06-01"})
    assert (stale.status, stale.code) == (424, "stale_pass")


def test_interrupted_waits_are_over_when_the_proxy_stops(running: Rig) -> None:
    """A run's rows stay readable while nothing is alive."""
    until(lambda: running.status()["running"])
    assert running.command("runs").returncode == 0
