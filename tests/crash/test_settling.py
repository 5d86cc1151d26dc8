"""Decisions killed at every passing of every point: all of them are on record or none is, and the same command converges."""

import itertools
import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.harness.crashes import CHAT_PATH, held
from tests.harness.looked_up import AT_ONCE, configured, fetched, generating, usage_pages
from tests.harness.processes import Rig, chat, provider_in, until
from tests.harness.provider_records import usage_lines
from tests.harness.settlements import HELD, WHY, answer_file, killed_at, left_unknown

SIGKILLED: Final = -9
PASSINGS_LIMIT: Final = 20
POINTS: Final = ("before-bundle", "after-bundle", "before-commit", "after-commit", "after-interpreted")


def kills(by_default: dict[str, tuple[str, ...]]) -> list[Any]:
    """Every kind at every point; in the default run those that are named, in `make slow` all."""
    return [
        pytest.param(kind, point, marks=() if point in points else pytest.mark.slow)
        for kind, points in by_default.items()
        for point in POINTS
    ]


@pytest.mark.parametrize(
    ("kind", "point"),
    kills({"many": ("before-commit",), "with an answer": ("after-bundle",)}),
)
def test_decision_killed_anywhere_is_all_or_nothing(tmp_path: Path, point: str, kind: str) -> None:
    """Before the append nothing of any call; behind it all of every call; and nothing was sent by it."""
    with provider_in(tmp_path) as provider:
        answer = answer_file(provider, tmp_path)
        for passing in itertools.count(1):
            assert passing < PASSINGS_LIMIT
            rig = Rig(provider.directory, provider.provider_process, state_name=f"state-{passing}")
            texts = [f"{passing} {number}" for number in range(3 if kind == "many" else 1)]
            rig.start()
            calls = left_unknown(rig, *texts)
            what = ("--not-served",) if kind == "many" else ("--served", "--response", str(answer))
            about = ("reconcile", *calls, *what, *WHY)
            sent = len(rig.provider_receipts())
            try:
                done = killed_at(rig, f"{point}=kill@{passing}", *about)
                if done.returncode != SIGKILLED:
                    assert done.returncode == 0, done.stderr
                    break
                decisions = {row["decision"] for row in rig.calls()}
                assert len(decisions) == 1, "some are decided and some are not"
                again = killed_at(rig, "", *about)
                assert again.returncode == 0, again.stderr
                assert {row["decision"] for row in rig.calls()} == {"not_served" if kind == "many" else "served"}
                assert len(rig.provider_receipts()) == sent
                assert rig.command("verify").returncode == 0
                rig.start()
                expected = "forwarded" if kind == "many" else "replayed"
                assert [rig.chat(chat(HELD, text)).disposition for text in texts] == [expected] * len(texts)
            finally:
                rig.leave()
        assert passing > 1 or (point, kind) == ("after-interpreted", "many")  # which has nothing to interpret


def asked(model: str, text: str) -> bytes:
    """Of so many tokens that what is left in an export for two of them can only be both."""
    document = {"model": f"synthetic/as={model},in=30,out=7,hold=0.3", "max_completion_tokens": 10}
    return json.dumps(document | {"messages": [{"role": "user", "content": text}]}).encode()


@pytest.mark.parametrize(("kind", "point"), kills({"import": ("before-commit",)}))
def test_import_killed_anywhere_is_all_or_nothing(tmp_path: Path, kind: str, point: str) -> None:
    """What an export proves of several calls is recorded of all of them or of none; the same command converges."""
    for passing in itertools.count(1):
        assert passing < PASSINGS_LIMIT
        directory = tmp_path / str(passing)
        directory.mkdir()
        with configured(directory) as rig:
            rig.start()
            own = [rig.chat(asked(model, f"{number}")).status for model in ("a", "b") for number in range(3)]
            assert own == [200] * 6
            with held(rig, CHAT_PATH, asked("a", "one")), held(rig, CHAT_PATH, asked("a", "two")):
                assert rig.proxy_process is not None
                rig.proxy_process.kill()
            until(lambda: len(usage_lines(rig.receipts_file)) == 8)
            file = fetched(directory / "usage.json", usage_pages(rig))
            about = ("usage", str(file), "--upstream", "openai", *AT_ONCE, "--decide", *WHY)
            config = ("--config", str(directory / "sendonce.toml"))
            done = killed_at(rig, f"{point}=kill@{passing}", *about, *config)
            decisions = [row["decision"] for row in rig.calls() if row["stage"] != "completed"]
            assert len(decisions) == 2
            assert len(set(decisions)) == 1, "one is decided and one is not"
            if done.returncode != SIGKILLED:
                assert (done.returncode, set(decisions)) == (0, {"served"}), (kind, done.stderr)
                break
            again = killed_at(rig, "", *about, *config)
            assert again.returncode == 0, again.stderr
            assert [row["decision"] for row in rig.calls()].count("served") == 2
            assert len(generating(rig)) == 8
            assert rig.command("verify").returncode == 0
    assert passing > 1 or point == "after-interpreted"  # an export brings no answer
