"""`sendonce audit` over what a real proxy recorded: beside it while it lives, after it was killed, and over what is not there."""

import json
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.harness.commands import command, sendonce
from tests.harness.crashes import CHAT_PATH, CUT, held, kill_while_held
from tests.harness.processes import ROOT, Answer, Rig, chat, message, rig, until

IN, OUT = Decimal("0.000005"), Decimal("0.00003")  # dollars a token of gpt-5.5
KEY = {"Idempotency-Key": "the-key"}
PRICED = """
[upstreams.openai]
price_as = { "synthetic*" = "gpt-5.5" }
[upstreams.anthropic]
price_as = { "synthetic*" = "claude-opus-5" }
"""


@pytest.fixture
def priced(tmp_path: Path) -> Iterator[Rig]:
    """A rig whose audit knows what the synthetic models cost."""
    (tmp_path / "prices.toml").write_text(PRICED)
    with rig(tmp_path) as made:
        yield made


def audit(made: Rig, *options: str) -> Any:
    done = command(made, "audit", "--config", str(made.directory / "prices.toml"), "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def cost_of(answer: Answer) -> Decimal:
    usage = answer.json["usage"]
    return IN * int(usage["prompt_tokens"]) + OUT * int(usage["completion_tokens"])


def ask_in_vain(made: Rig, body: bytes, headers: dict[str, str]) -> None:
    with suppress(*CUT):
        made.chat(body, headers)


def test_known_spend_is_what_the_provider_stated_times_the_price(priced: Rig) -> None:
    """To the last digit; a replay costs nothing, and saves as much as its call cost."""
    answers = [priced.chat(chat(text=f"known {number}")) for number in range(3)]
    keyed = priced.chat(chat(text="keyed"), KEY)
    priced.settled()
    assert priced.chat(chat(text="keyed"), KEY).disposition == "replayed"
    priced.settled()
    document = audit(priced)
    assert Decimal(document["totals"]["known"]) == sum(map(cost_of, (*answers, keyed)))
    assert Decimal(document["totals"]["log_not_spent"]["lower"]) == cost_of(keyed)
    assert document["totals"]["log_not_spent"]["width"] == "0"
    counts = ("calls", "attempts", "log_replayed", "log_refused", "log_duplicates_avoided")
    assert [document["totals"][name] for name in counts] == [4, 4, 1, 0, 1]
    assert document["totals"]["possible_extra"]["upper"] == "0"


def test_request_that_shares_an_answer_is_money_not_spent(priced: Rig) -> None:
    """It attached to the call that was under way: paid for once, answered twice."""
    body = chat("synthetic/hold=0.5", "shared")
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: priced.chat(body, KEY), range(2)))
    assert sorted(str(answer.disposition) for answer in answers) == ["attached", "forwarded"]
    priced.settled()
    totals = audit(priced)["totals"]
    assert (totals["attempts"], totals["log_attached"]) == (1, 1)
    assert Decimal(totals["known"]) == Decimal(totals["log_not_spent"]["lower"]) == cost_of(answers[0])


def test_crash_in_mid_call_is_a_range_and_its_decision_moves_it(priced: Rig) -> None:
    """The printed command works; afterwards nothing is unknown, and by decision is not by proof."""
    body = chat("synthetic/hold=forever", "crash")
    kill_while_held(priced, CHAT_PATH, body, KEY)
    refused = priced.chat(body, KEY)
    assert refused.code == "effect_unknown"
    document = audit(priced)
    (unknown,) = document["unknown"]
    upper = Decimal(unknown["cost"]["upper"])
    assert upper == IN * (len(body) + 1024) + OUT * 128_000
    assert (unknown["cost"]["lower"], unknown["presumption"]["billed"]) == ("0", "undetermined")
    assert document["totals"]["log_not_spent"]["upper"] == unknown["cost"]["upper"]
    assert "may have cost between $0.00 and" in document["headline"]
    words = [word.replace("--park", "--not-served") for word in shlex.split(unknown["settle"], comments=True)]
    assert sendonce(*words[1:]).returncode == 0
    settled = audit(priced)["totals"]
    assert settled["attempts_by_category"]["decided_absent"] == 1
    assert (settled["possible_extra"]["upper"], settled["log_not_spent"]["upper"]) == ("0", "0")


def test_same_request_counted_later_bounds_the_unknown_one_exactly(priced: Rig) -> None:
    """The provider counted the same bytes when they were sent again."""
    body = chat("synthetic/hold=forever,times=1", "twin")
    kill_while_held(priced, CHAT_PATH, body, KEY)
    call = priced.chat(body, KEY).headers["sendonce-call"]
    attempt = priced.show(call)["attempt_rows"][0]["attempt"]
    answer = priced.chat(body, {**KEY, "Sendonce-Accept": attempt})
    assert answer.status == 200
    priced.settled()
    document = audit(priced)
    (unknown,) = document["unknown"]
    assert "as the provider counted the same bytes another time" in unknown["reason"]
    tokens = int(answer.json["usage"]["prompt_tokens"])
    assert Decimal(unknown["cost"]["upper"]) == IN * tokens + OUT * 128_000
    assert (unknown["settle"], document["totals"]["accepted_duplicates"]) == (None, 1)


def test_stream_that_broke_off_is_bounded_by_what_it_said_of_itself(priced: Rig) -> None:
    """Anthropic counts the input in its first event."""
    body = message("synthetic/cut=2", "cut", stream=True)
    with suppress(*CUT):
        priced.messages(body, KEY)
    priced.settled()
    (unknown,) = audit(priced)["unknown"]
    assert "as the answer that broke off said itself" in unknown["reason"]
    assert (unknown["ended"], unknown["presumption"]["mark"]) == ("partial", "stated")


def test_audit_beside_a_living_proxy_does_not_call_what_runs_unknown(priced: Rig) -> None:
    """It is in flight: neither spent nor in doubt."""
    with held(priced, CHAT_PATH, chat("synthetic/hold=forever", "running")):
        document = audit(priced)
        assert document["totals"]["attempts_by_category"]["in_flight"] == 1
        assert document["unknown"] == []
        assert document["remarks"] == ["1 attempts are in flight and not in the sums."]


def test_failures_and_missing_prices_are_counted_apart(priced: Rig) -> None:
    """A 4xx is proven free, a 5xx is not; an unknown model and a missing usage are never zero."""
    for model in ("synthetic/status=400", "synthetic/status=500", "nobody-knows-this-model"):
        priced.chat(chat(model, "apart"))
    priced.chat(chat("synthetic", "apart", stream=True))  # without include_usage
    priced.settled()
    totals = audit(priced)["totals"]
    categories = ("unknown_model", "absent", "unstated", "possibly_billed_failure", "known")
    assert [totals["attempts_by_category"][name] for name in categories] == [1, 1, 1, 1, 0]
    assert (totals["without_price"], totals["known"]) == (1, "0")
    assert Decimal(totals["possibly_billed_failures"]["upper"]) > 0
    assert Decimal(totals["unstated"]["upper"]) > 0


def test_groups_and_ranges_hold_the_same_money(priced: Rig) -> None:
    """By whatever it is grouped; the days beside it have none of it."""
    for number in range(3):
        priced.chat(chat(text=f"groups {number}"))
    priced.messages(message(text="groups"))
    priced.settled()
    known = audit(priced)["totals"]["known"]
    for by in ("time", "upstream", "model", "caller", "run"):
        rows = audit(priced, "--by", by, "--bucket", "minute")["rows"]
        assert sum(Decimal(row["known"]) for row in rows) == Decimal(known)
    only = [audit(priced, "--upstream", name)["totals"] for name in ("openai", "anthropic")]
    assert [row["calls"] for row in only] == [3, 1]
    nothing = audit(priced, "--since", "2001-01-01", "--until", "2001-01-02")
    assert (nothing["rows"], nothing["remarks"]) == ([], ["There is nothing on record in this range."])


def test_damaged_and_missing_log_are_said(priced: Rig) -> None:
    """It is no witness, and the report names what it cannot know."""
    priced.chat(chat(text="log"))
    priced.settled()
    log = priced.paths.activity_log
    log.write_bytes(log.read_bytes() + b'{"at":"2026-11-3\n[]\n{"what":"replayed"}\n')
    assert audit(priced)["log_lines_unreadable"] == 3
    log.unlink()
    assert audit(priced)["remarks"] == [
        "There is no activity log: what was refused or given from the record is not counted."
    ]


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_log_that_is_no_file_is_no_log(priced: Rig, kind: str) -> None:
    """A pipe would never end, and a link may lead anywhere."""
    priced.chat(chat(text="log"))
    priced.settled()
    log = priced.paths.activity_log
    log.unlink()
    elsewhere = priced.directory / "elsewhere"
    elsewhere.write_bytes(b"not ours\n")
    os.mkfifo(log) if kind == "pipe" else log.symlink_to(elsewhere)
    document = audit(priced)
    assert (document["log_lines_unreadable"], document["remarks"]) == (
        0,
        ["There is no activity log: what was refused or given from the record is not counted."],
    )


def test_log_line_of_no_year_is_one_that_cannot_be_read(priced: Rig) -> None:
    """Its time has no place in any calendar."""
    priced.chat(chat(text="log"))
    priced.settled()
    lines = [{"at": at, "what": "replayed"} for at in ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59")]
    priced.paths.activity_log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert audit(priced)["log_lines_unreadable"] == 2


def test_ledger_without_a_call_costs_nothing(priced: Rig) -> None:
    """And says that there is nothing, in every form."""
    document = audit(priced)
    assert (document["totals"]["known"], document["rows"], document["remarks"]) == (
        "0",
        [],
        ["There is nothing on record yet."],
    )
    done = command(priced, "audit")
    assert done.stdout.startswith("Known: $0.00. Nothing is unknown.")


def test_files_are_private_new_and_whole(priced: Rig, tmp_path: Path) -> None:
    """Names and amounts are nobody else's business, and a file that is there is not written over."""
    priced.chat(chat(text="files"))
    priced.chat(chat("=HYPERLINK(1)", "files"))
    priced.settled()
    html, csv = tmp_path / "audit.html", tmp_path / "audit.csv"
    options = ("--by", "model", "--html", str(html), "--csv", str(csv))
    done = command(priced, "audit", "--config", str(tmp_path / "prices.toml"), *options)
    assert done.returncode == 0
    assert [stat.S_IMODE(path.stat().st_mode) for path in (html, csv)] == [0o600, 0o600]
    assert html.read_text().startswith("<!doctype html>")
    assert "\n'=HYPERLINK(1)," in csv.read_text()
    again = command(priced, "audit", *options)
    assert (again.returncode, "is there already" in again.stderr, "--force" in again.stderr) == (2, True, True)
    assert command(priced, "audit", *options, "--force").returncode == 0
    assert {path.name for path in tmp_path.iterdir() if "audit" in path.name} == {"audit.html", "audit.csv"}
    on_stdout = command(priced, "audit", "--by", "model", "--csv", "-")
    assert on_stdout.stdout.startswith("model,calls,attempts,log_refused,")


def test_page_is_drawn_where_there_is_no_home(priced: Rig, tmp_path: Path) -> None:
    """A service has none; what draws keeps a cache there, and says nothing of it."""
    arguments = ("audit", "--state-dir", str(priced.state_dir), "--html", str(tmp_path / "page.html"))
    environment = {**os.environ, "HOME": "/proc/none"}
    done = subprocess.run(
        [sys.executable, "-m", "proxy", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, f"sendonce: wrote {tmp_path / 'page.html'}\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--since", "yesterday"), "--since 'yesterday' is no date"),
        (("--since", "2026-11-30", "--until", "2026-11-29"), "is not before --until"),
        (("--json", "--csv", "-"), "both want stdout"),
        (("--csv", "same", "--html", "same"), "--csv and --html both name same"),
        (("--html", "/nowhere/at/all.html"), "--html /nowhere/at/all.html cannot be written"),
        (("--csv", "/proc/audit.csv"), "--csv /proc/audit.csv cannot be written"),
        (("--html", "/tmp"), "--html /tmp cannot be written"),
    ],
)
def test_option_that_cannot_be_meant_is_a_sentence(priced: Rig, options: tuple[str, ...], said: str) -> None:
    """It names the option and the remedy; exit code 2."""
    done = command(priced, "audit", *options)
    assert (done.returncode, said in done.stderr, done.stderr.count("\n")) == (2, True, 1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('price_provider = "opneai"', "The setting upstreams.openai.price_provider is wrong: genai-prices"),
        ('price_provider = ""', "The setting upstreams.openai.price_provider is wrong"),
        ('price_as = { "synthetic*" = "gpt-99" }', "The setting upstreams.openai.price_as is wrong: 'synthetic*'"),
        ("price_as = 1", "The setting upstreams.openai.price_as is wrong"),
    ],
)
def test_price_setting_that_names_nothing_is_noticed(priced: Rig, tmp_path: Path, line: str, said: str) -> None:
    """Where a price is needed: the proxy itself starts without the price list."""
    config = tmp_path / "wrong.toml"
    config.write_text(f"[upstreams.openai]\n{line}\n")
    done = command(priced, "audit", "--config", str(config))
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_audit_of_a_directory_without_a_ledger_is_a_sentence(tmp_path: Path) -> None:
    """And makes none."""
    done = sendonce("audit", "--state-dir", str(tmp_path / "none"))
    assert (done.returncode, "There is no ledger" in done.stderr) == (4, True)
    assert not (tmp_path / "none").exists()


def test_audit_reads_on_after_the_proxy_died_and_bodies_were_erased(priced: Rig) -> None:
    """What was counted stays counted: usage stands in events, not in bodies."""
    answer = priced.chat(chat(text="erased"))
    ask_in_vain(priced, chat("synthetic/reset=mid", "cut"), KEY)
    priced.settled()
    assert command(priced, "prune", "--older-than", "0", "--by", "ada", "--reason", "test").returncode == 0
    assert priced.proxy_process is not None
    priced.proxy_process.kill()
    until(lambda: not priced.status()["running"])
    document = audit(priced)
    assert Decimal(document["totals"]["known"]) == cost_of(answer)
    assert len(document["unknown"]) == 1
