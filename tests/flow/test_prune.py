"""`sendonce prune` beside a living proxy and after its death: what it erases, and what the same requests get then."""

import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ledger.bodies import chunk_digests
from tests.harness.commands import command
from tests.harness.crashes import CHAT_PATH, held, receipts_of, records_of
from tests.harness.crashes import CUT as BROKEN
from tests.harness.processes import ROOT, Rig, chat, rig, start_provider, until
from tests.harness.prunes import IMPATIENT, prune_process
from tests.verifier.bundles import digest_of

KEYED = {"Idempotency-Key": "the-key"}
SDK = {"x-stainless-lang": "python"}
RETRY = {**SDK, "x-stainless-retry-count": "1"}
ALL = ("prune", "--older-than", "0", "--by", "ada")


def prune(made: Rig, *options: str) -> Any:
    done = command(made, *ALL, *options, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def row_of(made: Rig, call: str) -> dict[str, Any]:
    return next(row for row in made.calls() if row["call_id"] == call)


def verified(made: Rig) -> bool:
    done = command(made, "verify")
    return done.returncode == 0 and done.stdout.endswith("OK\n")


def test_erased_answer_of_an_explicit_key_is_refused_on_every_repeat(running: Rig) -> None:
    """Never sent again, and the refusal says that it was erased; `show` and `calls` say so too."""
    body = chat(text="keyed")
    call = running.chat(body, KEYED).headers["sendonce-call"]
    running.settled()
    assert running.chat(body, KEYED).disposition == "replayed"
    running.settled()
    assert prune(running, "--reason", "the customer asked")["calls"] == 1
    events = running.status()["events"]
    for _ in range(2):
        answer = running.chat(body, KEYED)
        assert (answer.disposition, answer.code) == ("refused", "response_erased")
        assert "was erased" in answer.json["detail"]
    assert (len(receipts_of(running, body)), running.status()["events"]) == (1, events)
    row = row_of(running, call)
    assert (row["stage"], row["effect"], row["next_operation"], row["erased"]) == ("closed", "happened", "none", True)
    erased = records_of(running, call, "body.erased")
    assert [(one["which"], one["why"], one["by"]) for one in erased] == [
        ("request", "the customer asked", "ada"),
        ("response", "the customer asked", "ada"),
    ]
    assert erased[0]["digest"] == digest_of(body)
    shown = command(running, "show", call).stdout
    assert "Its bodies were erased; their digests stay." in shown
    assert f"erased request        {digest_of(body)}, by ada" in shown
    assert "sendonce reconcile" not in shown
    assert "closed (erased)" in command(running, "calls").stdout
    assert verified(running)


def test_erased_answer_of_a_derived_key_is_over(running: Rig) -> None:
    """The same request is the next occurrence; a certain retry of the erased one is refused."""
    body = chat(text="derived")
    assert running.chat(body, SDK).disposition == "forwarded"
    running.settled()
    assert prune(running)["bodies"] == 2
    retry = running.chat(body, RETRY)
    assert (retry.disposition, retry.code) == ("refused", "response_erased")
    again = running.chat(body, SDK)
    assert (again.status, again.disposition, len(receipts_of(running, body))) == (200, "forwarded", 2)
    running.settled()
    assert row_of(running, again.headers["sendonce-call"])["occurrence"] == 2
    assert verified(running)


def test_refused_request_may_be_sent_again_after_its_bodies_are_erased(running: Rig) -> None:
    """Its effect is absent: stage and next operation stay, and the next try is compared by digests."""
    body = chat("synthetic/status=429,times=1", "limited")
    call = running.chat(body, KEYED).headers["sendonce-call"]
    running.settled()
    assert prune(running)["tombstones"] == 2
    row = row_of(running, call)
    assert (row["stage"], row["effect"], row["next_operation"], row["erased"]) == (
        "completed",
        "absent",
        "start_call",
        True,
    )
    answer = running.chat(body, KEYED)
    assert (answer.status, answer.disposition, len(receipts_of(running, body))) == (200, "resumed", 2)
    assert verified(running)


def test_prune_of_a_dead_proxy_recovers_first_and_leaves_the_unknown_alone(running: Rig) -> None:
    """The lock, the recovery, then the erasure; the unresolved call is named and as protected as before."""
    running.chat(chat(text="done"))
    running.settled()
    lost = chat("synthetic/hold=600", "lost")
    with held(running, CHAT_PATH, lost):
        assert running.proxy_process is not None
        running.proxy_process.kill()
    done = command(running, *ALL)
    assert done.returncode == 0, done.stderr
    unknown = running.calls()[0]
    assert (unknown["stage"], unknown["erased"]) == ("effect_unknown", False)
    assert "1 calls completed or continued through" in done.stdout
    assert "1 calls as old keep their bodies" in done.stdout
    assert f"sendonce show {unknown['call_id']} --state-dir" in done.stdout
    assert "The file does not shrink" in done.stdout
    assert verified(running)
    running.start()
    answer = running.chat(lost)
    assert (answer.code, len(receipts_of(running, lost))) == ("effect_unknown", 1)


def test_prune_beside_a_busy_proxy_disturbs_no_request(running: Rig) -> None:
    """The same requests come while their earlier answers are erased: each is served, and every body that is kept is whole."""
    prompts = [chat(text=f"busy {number}") for number in range(20)]
    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(running.chat, prompt) for prompt in prompts]
            documents = [prune(running) for _ in range(2)]
            assert {answer.result().status for answer in answers} == {200}
        running.settled()
        assert all(document["left"] is None for document in documents)
    assert prune(running)["skipped"] == 0
    assert {row["erased"] for row in running.calls()} == {True}
    assert verified(running)


def test_prune_whose_proxy_is_killed_says_so_and_the_next_one_ends_it(running: Rig) -> None:
    """Bodies are gone, no chunk is swept: nothing is lost by that, and nothing is erased twice."""
    running.chat(chat(text="one"))
    running.settled()
    command = [sys.executable, "-m", "proxy", *ALL, "--state-dir", str(running.state_dir)]
    environment = {**os.environ, "SENDONCE_FAILPOINTS": "prune-erased=stop"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as asking:
        os.waitid(os.P_PID, asking.pid, os.WSTOPPED | os.WNOWAIT)
        assert running.proxy_process is not None
        running.proxy_process.kill()
        asking.send_signal(signal.SIGCONT)
        _, said = asking.communicate(timeout=30)
    assert (asking.returncode, "What is done is done; run it again" in said) == (6, True)
    assert verified(running)
    document = prune(running)
    assert (document["calls"], document["bodies"], document["chunks"]) == (0, 0, 2)
    assert verified(running)


def test_age_is_taken_from_the_settings(running: Rig, tmp_path: Path) -> None:
    """`limits.retention_days`; 30 where nothing is said, so that what has just been answered stays."""
    running.chat(chat(text="young"))
    running.settled()
    done = command(running, "prune", "--json")
    assert (json.loads(done.stdout)["calls"], done.returncode) == (0, 0)
    config = tmp_path / "sendonce.toml"
    config.write_text("[limits]\nretention_days = 0\n")
    assert json.loads(command(running, "prune", "--json", "--config", str(config)).stdout)["calls"] == 1


# --- calls that another one carries on ---------------------------------------------------------------------------------------


def kept(made: Rig) -> tuple[int, int]:
    """How many bodies are in the ledger, and how many chunks that belong to none."""
    with closing(sqlite3.connect(f"file:{made.paths.ledger}?mode=ro", uri=True)) as db:
        named = [chunk for (chunks,) in db.execute("SELECT chunks FROM body") for chunk in chunk_digests(chunks)]
        return db.execute("SELECT count(*) FROM body").fetchone()[0], len(
            {digest for (digest,) in db.execute("SELECT digest FROM chunk")}.difference(named)
        )


def test_prompt_that_was_resumed_is_erased_with_both_its_calls(running: Rig) -> None:
    """The provider was away, and the retry was served: nothing of the question stays, and the first call is what it was."""
    body, port = chat(text="a question that nobody heard at first"), running.provider_process.port
    running.provider_process.kill()
    assert running.chat(body).code == "upstream_unreachable"
    running.provider_process = start_provider(running.receipts_file, port=port)
    assert running.chat(body).disposition == "resumed"
    running.settled()
    assert verified(running)
    document = prune(running)
    assert (document["calls"], document["tombstones"], document["skipped"], kept(running)) == (2, 3, 0, (0, 0))
    assert [(row["stage"], row["effect"], row["erased"]) for row in running.calls()] == [
        ("closed", "happened", True),
        ("superseded", "absent", True),
    ]
    assert verified(running)


CUT = {"cut": "synthetic/cut=1,times=1", "lost": "synthetic/reset=before,times=1"}


@pytest.mark.parametrize("how", CUT)
def test_prompt_whose_first_answer_broke_off_is_erased_once_it_was_sent_again(how: str, tmp_path: Path) -> None:
    """On a setting's authority: whether the first try was served stays as unknown as it was, on record."""
    config = tmp_path / "sendonce.toml"
    config.write_text('[upstreams.openai.policy.generate]\nafter_cut_stream = "accept"\non_unknown = "accept"\n')
    with rig(tmp_path, "--config", str(config)) as made:
        body = chat(CUT[how], "a question", stream=True)
        with suppress(*BROKEN):
            made.chat(body)
        made.settled()
        first = made.calls()[0]
        assert made.chat(body).status == 200
        made.settled()
        document = prune(made)
        assert (document["calls"], document["skipped"], document["kept_elsewhere"], kept(made)) == (2, 0, 0, (0, 0))
        row = row_of(made, first["call_id"])
        assert (row["stage"], row["effect"], row["erased"]) == ("superseded", first["effect"], True)
        assert verified(made)


# --- beside traffic ------------------------------------------------------------------------------------------------------------


@contextmanager
def traffic(made: Rig, clients: int, prompts: Callable[[int], bytes]) -> Iterator[list[int]]:
    """Clients that ask without a pause, until the body of this context ends; the statuses of their answers."""
    ended, statuses = threading.Event(), list[int]()

    def ask(client: int) -> None:
        for number in itertools.count(client, clients):
            if ended.is_set():
                return
            statuses.append(made.chat(prompts(number)).status)

    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask, client) for client in range(clients)]
        try:
            until(lambda: statuses)
            yield statuses
        finally:
            ended.set()
            for one in asking:
                one.result()


def test_prune_beside_constant_small_traffic_sweeps_all(running: Rig) -> None:
    """Small bodies come with their events, so nobody waits for a moment without one."""
    for number in range(3):
        running.chat(chat(text=os.urandom(500_000).hex() + str(number)))
    running.settled()
    with traffic(running, 6, lambda number: chat(text=f"small {number}")) as statuses:
        done = prune_process(running.paths, "--json", limits=IMPATIENT)
    document = json.loads(done.stdout)
    running.settled()
    assert (document["left"], document["chunks"] > 100, set(statuses)) == (None, True, {200})
    assert kept(running)[1] == 0
    assert verified(running)


def test_prune_beside_large_uploads_takes_no_chunk_of_theirs(running: Rig) -> None:
    """The same questions of 3 MB again and again, while what was answered before is erased: each answered, each whole."""
    large = [chat(text=os.urandom(1_500_000).hex()) for _ in range(3)]
    with traffic(running, 2, lambda number: large[number % len(large)]) as statuses:
        documents = [prune(running) for _ in range(3)]
        before = len(statuses)
        until(lambda: len(statuses) > before)
    running.settled()
    assert set(statuses) == {200}
    assert sum(document["bodies"] for document in documents) > 0
    assert verified(running)
    assert prune(running)["left"] is None
    assert kept(running) == (0, 0)
    assert verified(running)


# --- options ---------------------------------------------------------------------------------------------------------------------


BAD = {
    ("--older-than", "-1"): "--older-than is -1. Give days from 0",
    ("--older-than", "36501"): "--older-than is 36501. Give days from 0",
    ("--older-than", "soon"): "Invalid value for '--older-than'",
    ("--before", "yesterday"): "--before 'yesterday' is no date. Give one like 2026-10-31",
    ("--before", "2999-01-01"): "--before 2999-01-01 is in the future",
    ("--before", "2020-01-01", "--older-than", "3"): "Give one of them",
    ("--older-than", "0", "--reason", " "): "--reason is empty",
}


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with rig(tmp_path_factory.mktemp("unchanged")) as made:
        made.chat(chat(text="stays"))
        made.settled()
        yield made


@pytest.mark.parametrize("options", BAD, ids=" ".join)
def test_bad_option_is_named_and_nothing_is_erased(options: tuple[str, ...], unchanged: Rig) -> None:
    """Exit code 2 and one sentence with the remedy."""
    before = unchanged.status()["events"]
    done = command(unchanged, "prune", *options)
    assert (done.returncode, BAD[options] in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
    assert unchanged.status()["events"] == before


def test_prune_without_a_ledger_says_so_and_creates_none(unchanged: Rig, tmp_path: Path) -> None:
    """Also in a dry run."""
    for options in ((), ("--dry-run",)):
        command = [sys.executable, "-m", "proxy", "prune", *options, "--state-dir", str(tmp_path / "none")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, "There is no ledger in" in done.stderr) == (2, True)
    assert not (tmp_path / "none").exists()
    assert unchanged.status()["running"]
