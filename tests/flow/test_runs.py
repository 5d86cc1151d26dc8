"""Runs over real sockets: what a new start gets and whose requests are stale."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from proxy.control import ask_owner
from tests.harness.agent_runs import counts, meets, passes, run_whole, started
from tests.harness.passes import open_pass
from tests.harness.processes import Rig, chat, message, rig


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
    body = chat("synthetic/hold=4", text="left running")
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
    held = chat("synthetic/hold=5", text="earlier")
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


def test_two_starts_at_once_the_last_wins_and_names_the_earlier(running: Rig, tmp_path: Path) -> None:
    """Two commands: one is told which pass it closed, and only that one is served."""
    command = meets(tmp_path / "met", 2)
    with started(running, "together", command) as one, started(running, "together", command) as two:
        ended = sorted((one.ended(), two.ended()), key=lambda each: each.out)
    assert [(each.code, each.answers) for each in ended] == [(0, [["1", "stale_pass"]]), (0, [["2", None]])]
    assert ["it closes pass 1" in each.err for each in ended] == [False, True]


def test_too_many_starts_at_once_are_told_so(running: Rig) -> None:
    """Each opening that wins makes the others look again; who has lost five times is told, and not that its id is bad."""

    async def opened() -> list[dict[str, Any]]:
        asked = {"run": "crowd", "on_divergence": "refuse"}
        asks = [ask_owner(running.paths.control_socket, "POST", "/passes", asked) for _ in range(40)]
        return [answer for _, answer in await asyncio.gather(*asks)]

    answers = asyncio.run(opened())
    assert {frozenset(answer) & {"number", "conflict"} for answer in answers} == {
        frozenset({"number"}),
        frozenset({"conflict"}),
    }
    assert "is being started again and again" in next(each["conflict"] for each in answers if "conflict" in each)


def test_proxy_that_cannot_record_is_no_bad_run_id(tmp_path: Path) -> None:
    """Its disk fails as the pass is opened: exit 70, as of the proxy itself."""
    with rig(tmp_path) as made:
        made.restart("before-commit=eio")
        ended = run_whole(made, "fine", ["true"])
        assert (ended.code, "cannot record" in ended.err, "Traceback" in ended.err) == (70, True, False), ended


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


def test_anthropic_agents_run_under_their_own_column(running: Rig) -> None:
    """A refusal in a run has the status that the dialect's clients stop at."""
    first = open_pass(running, "anthropic")
    running.post(f"{first.path}/anthropic/v1/messages", message(), {"anthropic-version": "2023-06-01"})
    open_pass(running, "anthropic")
    stale = running.post(f"{first.path}/anthropic/v1/messages", message(), {"anthropic-version": "2023-06-01"})
    assert (stale.status, stale.code) == (424, "stale_pass")
