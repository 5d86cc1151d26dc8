"""Decisions killed at every passing of every point: all of them are on record or none is, and the same command converges."""

import itertools
from pathlib import Path
from typing import Final

import pytest

from tests.harness.processes import Rig, chat, provider_in
from tests.harness.settlements import HELD, WHY, answer_file, killed_at, left_unknown

SIGKILLED: Final = -9
PASSINGS_LIMIT: Final = 20
POINTS: Final = ("before-bundle", "after-bundle", "before-commit", "after-commit", "after-interpreted")


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", ["many", "with an answer"])
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
