"""The proxies that `sendonce run` starts itself: who else uses one, and what a start meets that finds one ending."""

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from ledger.errors import StateDirError
from proxy import running as runs
from tests.harness.agent_runs import agent, is_ready, meets, run_whole, started, until_exists
from tests.harness.crashes import CHAT_PATH, begin
from tests.harness.processes import ALONE, SUPERVISED, Rig, chat, provider_in, until

REFUSED = "sendonce does not send it again"
HOWS = pytest.mark.parametrize("how", [SUPERVISED, ALONE], ids=["supervised", "alone"])
SCRIPT = [("synthetic", "step 1", 1)]


def options(made: Rig) -> list[str]:
    return [word for name in ("openai", "anthropic") for word in ("--upstream", f"{name}={made.provider_url}")]


def owner_of(made: Rig) -> int:
    """Who takes signals for it: the serving process, or its supervisor, which holds the lock."""
    return int(made.paths.owner_lock.read_text())


def test_run_without_a_running_proxy_has_one_of_its_own(tmp_path: Path) -> None:
    """It ends with the command, and the next run over the same state dir starts another."""
    with provider_in(tmp_path) as made:
        first = run_whole(made, "alone", agent("openai", SCRIPT), *options(made))
        assert (first.code, made.status()["running"]) == (0, False), first
        second = run_whole(made, "alone", agent("openai", SCRIPT), *options(made))
        assert second.answers == first.answers
        assert len(made.provider_receipts()) == 1


@HOWS
def test_killed_run_is_started_again_at_once_and_waits_for_its_own_proxy(tmp_path: Path, how: dict[str, str]) -> None:
    """That one drains: it is waited for with a sentence, and not used. The answer that it waited for stays unknown, and is refused."""
    with provider_in(tmp_path) as made:
        command, settings = (
            agent("openai", [("synthetic/hold=forever,times=1", "step 1", 1)]),
            {"SENDONCE_TIMEOUTS__STOP_S": "60"},
        )
        with started(made, "killed", command, *options(made), **how, **settings) as first:
            until(made.provider_receipts)
            owner = owner_of(made)
            first.kill()
        with started(made, "killed", command, *options(made), **how, **settings) as second:
            assert second.child.stderr is not None
            assert "is ending or starting" in second.child.stderr.readline()
            os.kill(owner, signal.SIGTERM)  # it drains already: this one is the second, which hurries
            refused = second.ended()
        assert (refused.code, REFUSED in refused.err, len(made.provider_receipts())) == (1, True, 1), refused
        assert (made.status()["epoch"], made.status()["running"]) == (2, False)


def test_proxy_that_was_told_to_stop_is_waited_for_and_not_used(tmp_path: Path) -> None:
    """It answers no new request any more, so the run has one of its own behind it."""
    with provider_in(tmp_path) as made:
        made.environment["SENDONCE_TIMEOUTS__STOP_S"] = "60"
        process, body = made.start(), chat("synthetic/hold=forever,times=1")
        with closing(begin(made, CHAT_PATH, body)):
            made.await_receipt(body)
            process.child.send_signal(signal.SIGTERM)
            until(lambda: (owner := runs.owner_of(made.paths)) is not None and owner.draining)
            command = agent("openai", SCRIPT)
            with started(made, "behind", command, *options(made), **made.environment) as behind:
                assert behind.child.stderr is not None
                assert "is ending or starting" in behind.child.stderr.readline()
                process.child.send_signal(signal.SIGTERM)
                ended = behind.ended()
        assert (ended.code, len(ended.answers), made.status()["epoch"]) == (0, 1, 2), ended


def test_owner_that_neither_ends_nor_serves_is_named(tmp_path: Path) -> None:
    """The wait has a limit; here it is over at once."""
    with provider_in(tmp_path) as made:
        made.paths.prepare_root()
        lock = made.paths.lock()
        with (
            pytest.raises(StateDirError, match=f"process {os.getpid()}"),
            runs.proxy_for(made.paths, [], -runs.GONE_MARGIN_S),
        ):
            raise AssertionError("it was found")
        lock.release()


@HOWS
def test_proxy_of_one_run_lives_on_while_another_uses_it(tmp_path: Path, how: dict[str, str]) -> None:
    """Whose run it was ends without waiting for it; the proxy ends behind the last one."""
    with provider_in(tmp_path) as made:
        end, ask = tmp_path / "end", tmp_path / "ask"
        with started(made, "first", until_exists(end), *options(made), **how) as first:
            is_ready(first)
            with started(made, "second", until_exists(ask, agent("openai", SCRIPT)), *options(made), **how) as second:
                is_ready(second)
                end.touch()
                assert first.ended().code == 0
                third = run_whole(made, "third", ["true"], *options(made), **how)
                assert third.code == 0, third
                ask.touch()
                ended = second.ended()
        assert (ended.code, len(ended.answers)) == (0, 1), ended
        until(lambda: not made.paths.is_owned())
        assert made.status()["epoch"] == 1


@HOWS
def test_two_runs_at_once_without_a_proxy_share_one(tmp_path: Path, how: dict[str, str]) -> None:
    """One starts it and the other finds it: neither fails, and the later pass is the one that is served."""
    with provider_in(tmp_path) as made:
        command = meets(tmp_path / "met", 2)
        with (
            started(made, "both", command, *options(made), **how) as one,
            started(made, "both", command, *options(made), **how) as two,
        ):
            ended = sorted((one.ended(), two.ended()), key=lambda each: each.out)
        assert [(each.code, each.answers) for each in ended] == [(0, [["1", "stale_pass"]]), (0, [["2", None]])], ended
        until(lambda: not made.paths.is_owned())
        assert (made.status()["epoch"], len(made.provider_receipts())) == (1, 1)
