"""Claude Code itself, both versions whose behaviour differs, through the proxy: what it costs when something breaks."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.harness.agents import CLAUDE_CODE, claude_code, rig_for_agents, told_by
from tests.harness.neighbours import process_of, until_stopped
from tests.harness.processes import Rig, until
from tests.harness.relay import relaying
from tests.harness.sdks import restart_on_the_same_port

pytestmark = [pytest.mark.agents, pytest.mark.timeout(300), pytest.mark.parametrize("version", CLAUDE_CODE)]

REFUSED: Final = "sendonce does not send it again"
# Where a stream breaks decides what comes next. With a whole block in hand 2.1.332 repeats it in another request, and 2.1.197
# asks no more.
IN_THE_FIRST_BLOCK: Final = "synthetic/interval=0.2,chunks=6"
IN_THE_SECOND_BLOCK: Final = "synthetic/interval=0.2,chunks=6,parts=3"
BY_ITSELF: Final = ("2.1.197", IN_THE_SECOND_BLOCK)
CUT: Final = "Connection closed mid-response"
PLACES: Final = pytest.mark.parametrize("model", [IN_THE_FIRST_BLOCK, IN_THE_SECOND_BLOCK], ids=["first", "second"])


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Rig]:
    with rig_for_agents(tmp_path) as made:
        yield made


def base_url(port: int) -> str:
    return f"http://127.0.0.1:{port}/anthropic"


def test_prompt_is_answered_and_sent_once(running: Rig, tmp_path: Path, version: str) -> None:
    """The provider's answer stands on its stdout."""
    with claude_code(version, tmp_path / "home", base_url(running.port), "synthetic") as agent:
        ended = agent.ended()
    (receipt,) = running.provider_receipts()
    assert (ended.code, told_by(receipt) in ended.out) == (0, True), ended
    assert [row["effect"] for row in running.calls()] == ["happened"]


def test_prompt_started_twice_is_sent_twice(running: Rig, tmp_path: Path, version: str) -> None:
    """A second start is a second intention, in the same home and folder too."""
    for number in (1, 2):
        with claude_code(version, tmp_path / "home", base_url(running.port), "synthetic") as agent:
            ended = agent.ended()
        receipts = running.provider_receipts()
        assert (len(receipts), told_by(receipts[-1]) in ended.out) == (number, True), ended


def test_provider_error_is_retried_by_its_own_retry(running: Rig, tmp_path: Path, version: str) -> None:
    """529 proves nothing was billed: its retry is sent, and answered."""
    with claude_code(version, tmp_path / "home", base_url(running.port), "synthetic/status=529,times=1") as agent:
        ended = agent.ended()
    _, second = running.provider_receipts()
    assert (ended.code, told_by(second) in ended.out) == (0, True), ended


@PLACES
def test_provider_cut_mid_stream_stops_it_with_our_sentence(
    running: Rig, tmp_path: Path, version: str, model: str
) -> None:
    """It asks again in some form or other, is refused, and shows why."""
    with claude_code(version, tmp_path / "home", base_url(running.port), f"{model},cut=4") as agent:
        ended = agent.ended()
    assert (ended.code, REFUSED in ended.out) == (1, True), ended
    assert len(running.provider_receipts()) == 1


def test_proxy_killed_while_the_provider_holds_stops_it_and_nothing_is_sent_again(
    running: Rig, tmp_path: Path, version: str
) -> None:
    """Not a byte of the answer came, and nobody knows whether there is one."""
    port = running.port
    with claude_code(version, tmp_path / "home", base_url(port), "synthetic/hold=forever") as agent:
        until(running.provider_receipts)
        restart_on_the_same_port(running, port)
        ended = agent.ended()
    assert (ended.code, REFUSED in ended.out) == (1, True), ended
    assert len(running.provider_receipts()) == 1


@PLACES
def test_proxy_killed_mid_stream_stops_it_and_nothing_is_sent_again(
    running: Rig, tmp_path: Path, version: str, model: str
) -> None:
    """Its retries meet the next proxy over the same state dir."""
    running.restart("mid-stream=kill@5")
    port = running.port
    with claude_code(version, tmp_path / "home", base_url(port), model) as agent:
        process_of(running).wait()
        restart_on_the_same_port(running, port)
        ended = agent.ended()
    assert (ended.code, (CUT if (version, model) == BY_ITSELF else REFUSED) in ended.out) == (1, True), ended
    assert len(running.provider_receipts()) == 1


def test_proxy_killed_with_the_whole_answer_sends_nothing_again(running: Rig, tmp_path: Path, version: str) -> None:
    """It has all but the last event, or is given it again. 2.1.197, with a whole block in hand, may call that an error."""
    running.restart("before-observed=kill")
    port = running.port
    with claude_code(version, tmp_path / "home", base_url(port), "synthetic") as agent:
        process_of(running).wait()
        restart_on_the_same_port(running, port)
        ended = agent.ended()
    (receipt,) = running.provider_receipts()
    assert told_by(receipt) in ended.out or (version == "2.1.197" and CUT in ended.out), ended


@PLACES
def test_connection_cut_mid_stream_its_retry_gets_the_first_answer(
    running: Rig, tmp_path: Path, version: str, model: str
) -> None:
    """The provider goes on, so there is an answer to give."""
    running.restart("mid-stream=stop@5")
    with (
        relaying(running.port) as relay,
        claude_code(version, tmp_path / "home", base_url(relay.port), model) as agent,
    ):
        stopped = until_stopped(running)
        relay.cut()
        os.kill(stopped, signal.SIGCONT)
        ended = agent.ended()
    (receipt,) = running.provider_receipts()
    expected = (1, CUT) if (version, model) == BY_ITSELF else (0, told_by(receipt))
    assert (ended.code, expected[1] in ended.out) == (expected[0], True), ended
