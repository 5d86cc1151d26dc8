"""Codex itself through the proxy: what it costs when something breaks."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.harness.agents import codex, rig_for_agents, told_by
from tests.harness.neighbours import process_of, until_stopped
from tests.harness.processes import Rig, until
from tests.harness.relay import relaying
from tests.harness.sdks import restart_on_the_same_port

pytestmark = [pytest.mark.agents, pytest.mark.timeout(300)]

REFUSED: Final = "sendonce does not send it again"
# Where a stream breaks makes it another request: Codex repeats each whole item that it has got in its next input.
IN_THE_FIRST_ITEM: Final = "synthetic/interval=0.2,chunks=6"
IN_THE_SECOND_ITEM: Final = "synthetic/interval=0.2,chunks=6,parts=3"
PLACES: Final = pytest.mark.parametrize("model", [IN_THE_FIRST_ITEM, IN_THE_SECOND_ITEM], ids=["first", "second"])


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Rig]:
    with rig_for_agents(tmp_path) as made:
        yield made


def base_url(port: int) -> str:
    return f"http://127.0.0.1:{port}/openai/v1"


def test_prompt_is_answered_and_sent_once(running: Rig, tmp_path: Path) -> None:
    """Its WebSocket is refused with 426, so it asks by HTTP at once."""
    with codex(tmp_path / "home", base_url(running.port), "synthetic") as agent:
        ended = agent.ended()
    (receipt,) = running.provider_receipts()
    assert (ended.code, told_by(receipt) in ended.out) == (0, True), ended
    assert [row["effect"] for row in running.calls()] == ["happened"]
    assert (running.state_dir / "activity.log").read_text().count("upgrade_unsupported") == 1


def test_prompt_started_twice_is_sent_twice(running: Rig, tmp_path: Path) -> None:
    """A second start is a second intention, in the same home and folder too."""
    for number in (1, 2):
        with codex(tmp_path / "home", base_url(running.port), "synthetic") as agent:
            ended = agent.ended()
        receipts = running.provider_receipts()
        assert (len(receipts), told_by(receipts[-1]) in ended.out) == (number, True), ended


def test_provider_error_is_retried_by_its_own_retry(running: Rig, tmp_path: Path) -> None:
    """The provider's own 500 is a setting's to accept, and by default it does."""
    with codex(tmp_path / "home", base_url(running.port), "synthetic/status=500,times=1") as agent:
        ended = agent.ended()
    _, second = running.provider_receipts()
    assert (ended.code, told_by(second) in ended.out) == (0, True), ended


@PLACES
def test_provider_cut_mid_stream_stops_it_with_our_sentence(running: Rig, tmp_path: Path, model: str) -> None:
    """It asks again, is refused, and shows why."""
    with codex(tmp_path / "home", base_url(running.port), f"{model},cut=4") as agent:
        ended = agent.ended()
    assert (ended.code, REFUSED in ended.err) == (1, True), ended
    assert len(running.provider_receipts()) == 1


def test_proxy_killed_while_the_provider_holds_stops_it_and_nothing_is_sent_again(running: Rig, tmp_path: Path) -> None:
    """Not a byte of the answer came, and nobody knows whether there is one."""
    port = running.port
    with codex(tmp_path / "home", base_url(port), "synthetic/hold=forever") as agent:
        until(running.provider_receipts)
        restart_on_the_same_port(running, port)
        ended = agent.ended()
    assert (ended.code, REFUSED in ended.err) == (1, True), ended
    assert len(running.provider_receipts()) == 1


@PLACES
def test_proxy_killed_mid_stream_stops_it_and_nothing_is_sent_again(running: Rig, tmp_path: Path, model: str) -> None:
    """Its retries meet the next proxy over the same state dir."""
    running.restart("mid-stream=kill@5")
    port = running.port
    with codex(tmp_path / "home", base_url(port), model) as agent:
        process_of(running).wait()
        restart_on_the_same_port(running, port)
        ended = agent.ended()
    assert (ended.code, REFUSED in ended.err) == (1, True), ended
    assert len(running.provider_receipts()) == 1


def test_proxy_killed_with_the_whole_answer_its_retry_gets_it(running: Rig, tmp_path: Path) -> None:
    """It may have the message, and has no end; the next proxy finds both in the spool."""
    running.restart("before-observed=kill")
    port = running.port
    with codex(tmp_path / "home", base_url(port), IN_THE_SECOND_ITEM) as agent:
        process_of(running).wait()
        restart_on_the_same_port(running, port)
        ended = agent.ended()
    (receipt,) = running.provider_receipts()
    assert (ended.code, told_by(receipt) in ended.out) == (0, True), ended


@PLACES
def test_connection_cut_mid_stream_its_retry_gets_the_first_answer(running: Rig, tmp_path: Path, model: str) -> None:
    """The provider goes on, so there is an answer to give."""
    running.restart("mid-stream=stop@5")
    with relaying(running.port) as relay, codex(tmp_path / "home", base_url(relay.port), model) as agent:
        stopped = until_stopped(running)
        relay.cut()
        os.kill(stopped, signal.SIGCONT)
        ended = agent.ended()
    (receipt,) = running.provider_receipts()
    assert (ended.code, told_by(receipt) in ended.out) == (0, True), ended
