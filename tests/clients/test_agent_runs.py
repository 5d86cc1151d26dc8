"""Claude Code and Codex inside `sendonce run`: five prompts, killed in the third with the proxy, three times in a row."""

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.harness.agent_runs import counts, kill_both, passes, run_whole, settle_all, started
from tests.harness.agents import CLAUDE_CODE, CODEX, PROJECT, rig_for_agents
from tests.harness.npm import installed
from tests.harness.processes import Rig, until

pytestmark = [pytest.mark.agents, pytest.mark.timeout(600)]

KILLS: Final = 3
PROMPTS: Final = 5
HELD: Final = (
    "synthetic/hold=4"  # long enough to be killed in; each start's body is another one, so none can be told apart
)
REFUSED: Final = "sendonce does not send it again"
AGENTS: Final = {
    "claude_code": [CLAUDE_CODE["2.1.332"], "-p", "{prompt}", "--model", "{model}"],
    "codex": [
        CODEX, "exec", "--skip-git-repo-check", "--sandbox", "read-only", "--model", "{model}",
        "-c", "analytics.enabled=false", "{prompt}",
    ],
}  # fmt: skip


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Rig]:
    with rig_for_agents(tmp_path) as made:
        yield made


def script(agent: str, home: Path) -> list[str]:
    """A pipeline of prompts that stops at the first that fails, started in the same folder and with the same home."""
    entry, *words = AGENTS[agent]
    lines = ["set -e", f"cd {shlex.quote(str(home))}"]
    for number in range(1, PROMPTS + 1):
        about = {"prompt": f"say number {number}", "model": HELD if number == 3 else "synthetic"}
        words_now = [word.format(**about) for word in words]
        codex = '-c "openai_base_url=\\"$OPENAI_BASE_URL\\"" ' if agent == "codex" else ""
        first, *rest = words_now
        lines.append(f"node {installed(PROJECT) / entry} {first} {codex}{shlex.join(rest)}")
    return ["bash", "-c", "\n".join(lines)]


def environment_in(home: Path) -> dict[str, str]:
    home.mkdir()
    return {
        "HOME": str(home), "PATH": os.environ["PATH"], "TERM": "dumb", "CODEX_API_KEY": "sk-placeholder",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }  # fmt: skip


@pytest.mark.parametrize("agent", AGENTS)
def test_agent_started_again_is_answered_from_the_record(running: Rig, tmp_path: Path, agent: str) -> None:
    """With nothing but `sendonce run` before it: Codex's own option is put behind its name."""
    environment = environment_in(tmp_path / "home")
    entry, *words = AGENTS[agent]
    command = ["node", str(installed(PROJECT) / entry), *(w.format(prompt="say hi", model="synthetic") for w in words)]
    first, second = (run_whole(running, "again", command, **environment) for _ in range(2))
    assert (first.code, second.code, second.out) == (0, 0, first.out), second
    assert len(running.provider_receipts()) == 1
    assert counts(passes(running, "again")[1])["replayed"] == 1


@pytest.mark.parametrize("agent", AGENTS)
def test_agent_killed_three_times_in_its_third_prompt_pays_for_the_others_once(
    running: Rig, tmp_path: Path, agent: str
) -> None:
    """New sessions, threads and turns at each start: what they have in common is known, and only that is asked of the provider."""
    home = tmp_path / "home"
    environment = environment_in(home)
    command = script(agent, home)
    accepted = 0
    for killed in range(1, KILLS + 1):
        with started(running, "nightly", command, **environment) as made:
            until(lambda killed=killed: len(running.provider_receipts()) >= 2 + killed)  # type: ignore[misc]
            kill_both(running, made)
        running.start()
        refused = run_whole(running, "nightly", command, **environment)
        assert refused.code != 0, refused
        assert REFUSED in refused.out + refused.err, refused
        assert len(running.provider_receipts()) == 2 + killed
        accepted += settle_all(running)
    whole = run_whole(running, "nightly", command, **environment)
    assert (whole.code, accepted) == (0, KILLS), whole
    assert len(running.provider_receipts()) == PROMPTS + accepted
    assert counts(passes(running, "nightly")[-1]) == {
        "sent": 3, "replayed": 2, "attached": 0, "refused": 0, "diverged": 0,
    }, json.dumps(passes(running, "nightly"))  # fmt: skip
