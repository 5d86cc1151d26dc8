"""Agents that are killed in the middle of a run, with the proxy, and started again: the provider's receipts count what was paid."""

from pathlib import Path

import pytest

from tests.harness.agent_runs import (
    agent,
    counts,
    kill_both,
    passes,
    run_whole,
    settle_all,
    started,
)
from tests.harness.processes import rig, until

REFUSED = "sendonce does not send it again"
HELD = "synthetic/hold=forever,times={}"
NOTHING = {"sent": 0, "replayed": 0, "attached": 0, "refused": 0, "diverged": 0}


@pytest.mark.parametrize("client", ["openai", "anthropic"])
def test_agent_killed_three_times_in_its_third_call_pays_for_the_others_once(tmp_path: Path, client: str) -> None:
    """Calls one and two are never sent again; the third is refused until somebody rules, and then sent once for that ruling."""
    kills = 3
    script = [(HELD.format(kills) if number == 3 else "synthetic", f"step {number}", 1) for number in range(1, 6)]
    with rig(tmp_path) as made:
        accepted = 0
        for killed in range(1, kills + 1):
            with started(made, "nightly", agent(client, script)) as running:
                until(lambda killed=killed: len(made.provider_receipts()) == 2 + killed)  # type: ignore[misc]
                kill_both(made, running)
            made.start()
            refused = run_whole(made, "nightly", agent(client, script))
            assert (refused.code, REFUSED in refused.err, len(refused.answers)) == (1, True, 2), refused
            assert len(made.provider_receipts()) == 2 + killed
            accepted += settle_all(made)
        whole = run_whole(made, "nightly", agent(client, script))
        assert (whole.code, len(whole.answers)) == (0, 5), whole
        assert accepted == kills
        assert len(made.provider_receipts()) == 5 + accepted
        rows = [counts(row) for row in passes(made, "nightly")]
        assert rows[0] == NOTHING | {"sent": 3}
        assert rows[1] == NOTHING | {"replayed": 2, "refused": 1}
        assert rows[-1] == NOTHING | {"sent": 3, "replayed": 2}
        again = run_whole(made, "nightly", agent(client, script))
        assert again.answers == whole.answers
        assert len(made.provider_receipts()) == 5 + accepted


# Best of three, a call that its SDK retries, best of three again. Each has its provider receipts in a life without kills.
ROUNDS = [("synthetic", "ideas", 3), ("synthetic/status=429,times=1", "pick one", 1), ("synthetic", "improve it", 3)]
RECEIPTS = [3, 2, 3]


@pytest.mark.parametrize("killed_in", range(len(ROUNDS)))
def test_sampling_agent_killed_in_any_round_counts_right(tmp_path: Path, killed_in: int) -> None:
    """The round that it died in is unknown, sample by sample; rounds before it are replayed, samples to their own occurrences."""
    samples = ROUNDS[killed_in][2]
    script = [
        (
            f"{model}{'/' if model == 'synthetic' else ','}hold=forever"
            + ("" if "times" in model else f",times={samples}"),
            *rest,
        )
        if number == killed_in
        else (model, *rest)
        for number, (model, *rest) in enumerate(ROUNDS)
    ]
    rest = sum(RECEIPTS[killed_in:]) - ("times" in ROUNDS[killed_in][0])  # its fault is over with the first receipt
    before, all_before = sum(RECEIPTS[:killed_in]), sum(entry[2] for entry in ROUNDS[:killed_in])
    with rig(tmp_path) as made:
        with started(made, "best", agent("openai", script)) as running:
            until(lambda: len(made.provider_receipts()) == before + samples)
            kill_both(made, running)
        made.start()
        refused = run_whole(made, "best", agent("openai", script))
        assert (refused.code, REFUSED in refused.err) == (1, True), refused
        assert len(made.provider_receipts()) == before + samples
        assert settle_all(made) == samples
        whole = run_whole(made, "best", agent("openai", script))
        assert (whole.code, len(set(whole.answers)), len(whole.answers)) == (0, 7, 7), whole
        again = run_whole(made, "best", agent("openai", script))
        assert (sorted(again.answers), len(made.provider_receipts())) == (
            sorted(whole.answers),
            before + samples + rest,
        )
        first, second, third, fourth = (counts(row) for row in passes(made, "best"))
    assert first == NOTHING | {"sent": before + samples}
    assert (second["sent"], second["replayed"], second["diverged"]) == (0, all_before, 0)
    assert second["refused"] >= 1
    assert third == NOTHING | {"sent": rest, "replayed": all_before}
    assert fourth == NOTHING | {"replayed": 7}


def test_agent_with_a_clock_in_its_prompt_is_told_why_it_is_refused(tmp_path: Path) -> None:
    """Its new start asks another question: while the old one is unknown, that is not paid for in silence."""
    script = [("synthetic", "step 1", 1), ("synthetic/hold=forever,times=1", "it is {clock}", 1)]
    with rig(tmp_path) as made:
        with started(made, "clock", agent("openai", script)) as running:
            until(lambda: len(made.provider_receipts()) == 2)
            kill_both(made, running)
        made.start()
        refused = run_whole(made, "clock", agent("openai", script))
        assert refused.code == 1
        assert "no earlier start of the run made it" in refused.err
        assert "a clock" in refused.err
        assert "--on-divergence continue" in refused.err
        assert len(made.provider_receipts()) == 2
        assert counts(passes(made, "clock")[-1]) == NOTHING | {"replayed": 1, "diverged": 1}
        on = run_whole(
            made,
            "clock",
            agent("openai", [script[0], ("synthetic", "it is {clock}", 1)]),
            "--on-divergence",
            "continue",
        )
        assert (on.code, len(made.provider_receipts())) == (0, 3)


@pytest.mark.parametrize("point", ["after-pass-opened", "after-pass-served"])
def test_proxy_killed_where_a_pass_commits_loses_nothing(tmp_path: Path, point: str) -> None:
    """The next start of the same agent gets every answer from the record, in the next pass."""
    script = [("synthetic", f"step {number}", 1) for number in range(3)]
    with rig(tmp_path) as made:
        whole = run_whole(made, "points", agent("openai", script))
        for passing in range(1, 5):
            made.restart(f"{point}=kill@{passing}")
            died = run_whole(made, "points", agent("openai", script))
            if died.code == 0:
                break
        else:
            raise AssertionError("the failpoint never stopped firing")
        assert passing == (2 if point == "after-pass-opened" else 4)
        assert died.answers == whole.answers
        assert len(made.provider_receipts()) == 3


def test_run_over_a_restored_ledger_says_so_and_pays_for_nothing_twice(tmp_path: Path) -> None:
    """The receipts know what the backup does not: after the operator's word those calls are unknown, and refused."""
    script = [("synthetic", f"step {number}", 1) for number in range(3)]
    with rig(tmp_path) as made:
        run_whole(made, "restored", agent("openai", script[:1]))
        assert made.proxy_process is not None
        made.proxy_process.stop()
        backup = made.paths.ledger.read_bytes()
        made.start()
        run_whole(made, "restored", agent("openai", script))
        made.proxy_process.stop()
        made.paths.ledger.write_bytes(backup)
        accepted = made.command("recover", "--accept-lost-tail", "--reason", "restored from the backup")
        assert accepted.returncode == 0, accepted.stderr
        made.start()
        refused = run_whole(made, "restored", agent("openai", script))
        assert (refused.code, len(refused.answers), REFUSED in refused.err) == (1, 1, True), refused
        assert "ledger_head_changed" in refused.err
        assert len(made.provider_receipts()) == 3
