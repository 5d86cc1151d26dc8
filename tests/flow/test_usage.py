"""`sendonce usage` beside a real proxy that was killed: what an export proves is recorded, and nothing else ever is."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.commands import command as sendonce
from tests.harness.crashes import CHAT_PATH, CUT, events_of, kill_while_held, receipts_of, records_of
from tests.harness.processes import Rig, chat, provider_in, rig
from tests.harness.usage_worlds import result

LARGE, SMALL = "synthetic/as=gpt-4o,in=300,out=40,hold=4", "synthetic/as=gpt-4o-mini,in=100,out=10"
OVER_S = 3600
AROUND_S = 7200  # the one bucket reaches so far to both sides, so that everything lies surely within
ASKED, KEY = chat(LARGE, "the one that was lost"), {"Idempotency-Key": "the-lost-one"}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, str]]:
    """One answer of the large model, two of the small one, and one request that nobody knows about; the proxy lives again."""
    with rig(tmp_path_factory.mktemp("usage")) as made:
        for model, text in ((LARGE, "first"), (SMALL, "second"), (SMALL, "third")):
            made.chat(chat(model, text))
        kill_while_held(made, CHAT_PATH, ASKED, KEY)
        lost = next(row["call_id"] for row in made.calls() if row["stage"] == "effect_unknown")
        yield made, lost


def export(
    path: Path,
    large: tuple[int, int, int],
    small: tuple[int, int, int] = (2, 200, 20),
    *,
    later_s: int = 0,
    soon: bool = False,
) -> str:
    """A page of one bucket around now: requests, input, output of each model. Its file is of an hour from now, when all that the provider
    may have worked on is over, and so much younger; `soon`: of now.
    """
    hour = int(time.time()) // 3600 * 3600
    rows = [result(model, requests, tokens_in, 0, tokens_out) for model, (requests, tokens_in, tokens_out) in
            (("gpt-4o", large), ("gpt-4o-mini", small))]  # fmt: skip
    bucket = {"object": "bucket", "start_time": hour - AROUND_S, "end_time": hour + AROUND_S + 3600, "results": rows}
    path.write_text(json.dumps({"object": "page", "data": [bucket], "has_more": False, "next_page": None}))
    at = time.time() + later_s + (0 if soon else OVER_S)
    os.utime(path, (at, at))
    return str(path)


def usage(made: Rig, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the document, and what was said on stderr."""
    done = sendonce(made, "usage", *arguments, "--json")
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


SERVED, NOT_BILLED = (2, 600, 80), (1, 300, 40)


@pytest.mark.parametrize(("large", "verdict"), [(SERVED, "served"), (NOT_BILLED, "not_billed")])
def test_first_fetch_says_what_would_be_proven_and_writes_nothing(
    killed: tuple[Rig, str], tmp_path: Path, large: tuple[int, int, int], verdict: str
) -> None:
    """The numbers may still grow; the exact command that records it is printed."""
    made, lost = killed
    before = events_of(made)
    code, document, _ = usage(made, export(tmp_path / "one.json", large))
    assert (code, document["alarms"], document["final"]) == (0, [], False)
    (found,) = document["verdicts"]
    assert (found["call_id"], found["verdict"], found["settles"]) == (lost, verdict, True)
    held = {one["name"]: one["holds"] for one in document["preconditions"]}
    assert held == {name: "not shown" if name == "settled" else "yes" for name in held}
    assert "--decide --reason" in document["command"]
    assert events_of(made) == before


def test_decision_on_an_unsettled_export_is_refused(killed: tuple[Rig, str], tmp_path: Path) -> None:
    """Exit code 6, and nothing is recorded."""
    made, lost = killed
    file = export(tmp_path / "one.json", SERVED)
    code, document, _ = usage(made, file, "--decide", "--reason", "the bill")
    assert (code, document["decided"]) == (6, {})
    again = export(tmp_path / "two.json", NOT_BILLED, later_s=3600)
    code, document, _ = usage(made, file, "--again", again, "--decide", "--reason", "the bill")
    assert (code, document["decided"]) == (6, {})
    assert made.show(lost)["stage"] == "effect_unknown"


def test_file_from_before_the_end_of_what_it_counts_decides_nothing(killed: tuple[Rig, str], tmp_path: Path) -> None:
    """The provider may still have worked on it; neither a second fetch nor anybody's word makes that file final."""
    made, lost = killed
    file = export(tmp_path / "one.json", NOT_BILLED, soon=True)
    again = export(tmp_path / "two.json", NOT_BILLED, later_s=3600)
    for more in (("--again", again), ("--settled", "it counts at once")):
        code, document, _ = usage(made, file, *more, "--decide", "--reason", "the bill")
        held = {one["name"]: one["holds"] for one in document["preconditions"]}
        assert (code, document["decided"], document["final"], held["over"]) == (6, {}, False, "no")
    assert made.show(lost)["stage"] == "effect_unknown"


def test_foreign_request_is_an_alarm_that_settles_nothing(killed: tuple[Rig, str], tmp_path: Path) -> None:
    """One more request than the record has, at the other model: then no cell proves anything."""
    made, lost = killed
    files = [export(tmp_path / f"{at}.json", SERVED, (3, 300, 30), later_s=3600 * at) for at in (0, 1)]
    code, document, _ = usage(made, files[0], "--again", files[1], "--decide", "--reason", "the bill")
    assert (code, document["decided"], [one["verdict"] for one in document["verdicts"]]) == (6, {}, ["undecided"])
    assert document["alarms"]
    assert made.show(lost)["stage"] == "effect_unknown"


def test_other_provider_year_and_organisation_are_refused_by_name(killed: tuple[Rig, str], tmp_path: Path) -> None:
    """Exit code 2 and a sentence: such a file says nothing about this record."""
    made, _ = killed
    file = Path(export(tmp_path / "one.json", SERVED))
    old = json.loads(file.read_text())
    old["data"][0] |= {"start_time": 1_600_000_000, "end_time": 1_600_003_600}
    other = json.loads(file.read_text().replace("gpt-4o", "o1"))
    for name, document, words in (("old.json", old, "share no moment"), ("other.json", other, "none in common")):
        (tmp_path / name).write_text(json.dumps(document))
        code, _, said = usage(made, str(tmp_path / name))
        assert (code, words in said) == (2, True)
    code, _, said = usage(made, str(file), "--upstream", "anthropic")
    assert (code, "speaks anthropic" in said) == (2, True)
    code, _, said = usage(made, str(tmp_path / "missing.json"))
    assert (code, "cannot be read" in said) == (2, True)


@pytest.mark.parametrize("is_second", [False, True])
def test_what_is_no_regular_file_is_refused_at_once(
    killed: tuple[Rig, str], tmp_path: Path, *, is_second: bool
) -> None:
    """A pipe that nobody writes into, and a device that never ends."""
    made, _ = killed
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (str(pipe), "/dev/zero"):
        files = (export(tmp_path / "one.json", SERVED), "--again", path) if is_second else (path,)
        code, _, said = usage(made, *files)
        assert (code, f"{path}: it is no regular file" in said) == (2, True)


def test_table_shows_the_lines_the_preconditions_and_the_verdict(killed: tuple[Rig, str], tmp_path: Path) -> None:
    """For people: whether each cell matches, and the equation."""
    made, lost = killed
    said = sendonce(made, "usage", export(tmp_path / "one.json", SERVED)).stdout
    assert "gpt-4o-mini key_1" in said
    assert f"{lost}.1: would be served: gpt-4o key_1" in said
    assert "2 requests, 1 own answers, 1 unknown, input tokens 300 left for it" in said


def test_what_a_person_decided_and_what_a_request_may_do_elsewhere_settle_nothing(tmp_path: Path) -> None:
    """One says that the first was served; by that the second would not have been. Neither the word nor an unread field is evidence."""
    with rig(tmp_path) as made:
        for model, text in ((LARGE, "first"), (SMALL, "second"), (SMALL, "third")):
            made.chat(chat(model, text))
        strange = json.dumps(json.loads(ASKED) | {"a_field_of_tomorrow": 1}).encode()
        kill_while_held(made, CHAT_PATH, strange, {"Idempotency-Key": "the-strange-one"})
        first = next(row["call_id"] for row in made.calls() if row["stage"] == "effect_unknown")
        kill_while_held(made, CHAT_PATH, ASKED, KEY)
        second = next(row["call_id"] for row in made.calls() if row["stage"] == "effect_unknown")
        assert first != second
        _, document, _ = usage(made, export(tmp_path / "none.json", NOT_BILLED))
        found = {one["call_id"]: one for one in document["verdicts"]}
        assert (found[first]["verdict"], found[second]["verdict"]) == ("undecided", "not_billed")
        assert "the request has the field a_field_of_tomorrow" in found[first]["why"]
        word = ("reconcile", first, "--served", "--reason", "I think so", "--by", "ada")
        assert sendonce(made, *word).returncode == 0
        files = [export(tmp_path / f"{at}.json", SERVED, later_s=3600 * at) for at in (0, 1)]
        code, document, _ = usage(made, files[0], "--again", files[1], "--decide", "--reason", "the bill")
        (one,) = document["verdicts"]
        assert (code, document["final"], document["alarms"]) == (0, True, [])
        assert (one["call_id"], one["verdict"], document["decided"]) == (second, "undecided", {})
        assert made.show(second)["stage"] == "effect_unknown"


@pytest.mark.parametrize(
    ("large", "decision", "stage"), [(SERVED, "served", "closed"), (NOT_BILLED, "not_served", "settled")]
)
def test_settled_export_decides_and_a_second_run_agrees(
    tmp_path: Path, large: tuple[int, int, int], decision: str, stage: str
) -> None:
    """With its evidence on record; served: the retry is refused; not billed: it is sent, once."""
    with rig(tmp_path) as made:
        for model, text in ((LARGE, "first"), (SMALL, "second"), (SMALL, "third")):
            made.chat(chat(model, text))
        kill_while_held(made, CHAT_PATH, ASKED, KEY)
        lost = next(row["call_id"] for row in made.calls() if row["stage"] == "effect_unknown")
        files = [export(tmp_path / f"{at}.json", large, later_s=3600 * at) for at in (0, 1)]
        asked = (files[0], "--again", files[1])
        code, document, said = usage(made, *asked, "--decide", "--reason", "the bill of November", "--by", "ada")
        assert (code, list(document["decided"])) == (0, [lost]), said
        assert made.show(lost)["stage"] == stage
        (observed,) = records_of(made, lost, "reconcile.observed")
        (decided,) = records_of(made, lost, "reconcile.decided")
        assert (observed["how"], decided["decision"], decided["reason"]) == (
            "usage_export",
            decision,
            "the bill of November",
        )
        assert observed["result"] == ("matches" if decision == "served" else "absent_conclusive")
        assert set(observed["evidence"]["exports"]) == {files[0]}
        assert observed["evidence"]["preconditions"]["settled"].startswith("yes")
        code, document, _ = usage(made, *asked)
        assert (code, document["alarms"], document["verdicts"]) == (0, [], [])
        answer = made.chat(ASKED, KEY)
        assert (answer.status, len(receipts_of(made, ASKED))) == ((400, 1) if decision == "served" else (200, 2))


@pytest.mark.parametrize("beside", ["family", "other host"])
def test_answer_of_another_upstream_of_the_same_account_is_no_proof(tmp_path: Path, beside: str) -> None:
    """The lost request never arrived; what is left in the export is what the other upstream was answered, by the same provider."""
    with provider_in(tmp_path) as made:
        url = made.provider_url if beside == "family" else made.provider_url.replace("127.0.0.1", "localhost")
        tables = (f'[upstreams.openai]\nbase_url = "{made.provider_url}"', f'[upstreams.eu]\nbase_url = "{url}"')
        config = tmp_path / "sendonce.toml"
        config.write_text("\n".join((*tables, 'family = "openai"', 'key_variable = "OPENAI_API_KEY"')))
        made.arguments += ["--config", str(config)]
        made.start()
        for model, text in ((LARGE, "first"), (SMALL, "second"), (SMALL, "third")):
            made.chat(chat(model, text))
        assert made.post("/eu/v1/chat/completions", chat(LARGE, "of the other")).status == 200
        made.settled()
        made.restart("after-sent-receipt=kill")
        with pytest.raises(CUT):
            made.chat(ASKED, KEY)
        made.restart()
        assert receipts_of(made, ASKED) == []
        about = ("--upstream", "openai", "--config", str(config))
        for large, verdict in ((SERVED, "undecided" if beside == "other host" else "not_billed"), (NOT_BILLED, None)):
            code, document, said = usage(made, export(tmp_path / "one.json", large), *about)
            found = [one["verdict"] for one in document["verdicts"]]
            if verdict is None and beside == "family":  # fewer than all that went to this address
                assert (code, found, len(document["alarms"])) == (0, ["undecided"], 1)
            else:
                assert (code, document["alarms"], found) == (0, [], [verdict or "not_billed"]), said
