"""SIGKILL of the serving process under stock SDKs with their default retries: nothing is changed but the base URL."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.harness.processes import Rig, provider_in, until
from tests.harness.sdks import anthropic_client, openai_client, sdk

SENTENCE: Final = "sendonce does not send it again"
HOLDS: Final = "synthetic/hold=forever"
ENDLESS: Final = "synthetic/chunks=5000,interval=0.1"


@dataclass(frozen=True)
class Sdk:
    """`ask` in either form; `error` is what the SDK raises for an answer that is none."""

    name: str
    ask: Callable[[Rig, str, str, bool], Any]

    @property
    def status_error(self) -> type[Exception]:
        found: type[Exception] = sdk(self.name).APIStatusError
        return found


def _openai(rig: Rig, model: str, prompt: str, stream: bool) -> Any:
    messages = [{"role": "user", "content": prompt}]
    return openai_client(rig).chat.completions.create(model=model, messages=messages, stream=stream)


def _anthropic(rig: Rig, model: str, prompt: str, stream: bool) -> Any:
    messages = [{"role": "user", "content": prompt}]
    return anthropic_client(rig).messages.create(model=model, messages=messages, max_tokens=64, stream=stream)


SDKS: Final = (Sdk("openai", _openai), Sdk("anthropic", _anthropic))
each_sdk = pytest.mark.parametrize("asked", SDKS, ids=[asked.name for asked in SDKS])


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with provider_in(tmp_path_factory.mktemp("restart")) as made:
        made.supervised = True
        made.start()
        yield made


@pytest.fixture
def stopping(held: Rig, tmp_path: Path) -> Iterator[Rig]:
    """Beside `held`: each serving process stops at its first claim, before anything is sent."""
    made = Rig(held.directory, held.provider_process, supervised=True, state_name=tmp_path.name)
    try:
        made.start("after-manifest=stop")
        yield made
    finally:
        made.leave()


def kill_serving(rig: Rig) -> None:
    os.kill(rig.serving_pid, signal.SIGKILL)


def stopped(rig: Rig) -> int:
    """The serving process, once it stands still."""

    def found() -> int:
        with suppress(IndexError, FileNotFoundError):  # none lives at the moment
            pid = rig.serving_pid
            return pid if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T") else 0
        return 0

    return until(found)


@each_sdk
def test_killed_before_the_send_the_call_succeeds_and_nobody_notices(stopping: Rig, asked: Sdk) -> None:
    """The SDK's own retry waits in the backlog and is resumed: one answer, no exception, one provider receipt."""
    receipts = len(stopping.provider_receipts())
    with ThreadPoolExecutor() as pool:
        answer: Future[Any] = pool.submit(asked.ask, stopping, "synthetic", f"before the send, {asked.name}", False)
        os.kill(first := stopped(stopping), signal.SIGKILL)
        until(lambda: (second := stopped(stopping)) != first and os.kill(second, signal.SIGCONT) is None)
        assert answer.result().id
    assert len(stopping.provider_receipts()) == receipts + 1
    assert [row["generation"] for row in stopping.calls()] == [2, 1]


@each_sdk
def test_killed_while_the_provider_holds_the_sdk_raises_our_sentence_once(held: Rig, asked: Sdk) -> None:
    """Its retry is told the truth and stops; the provider has one receipt."""
    known, receipts = len(held.calls()), len(held.provider_receipts())
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(asked.ask, held, HOLDS, f"held, {asked.name}", False)
        until(lambda: len(held.provider_receipts()) > receipts)
        kill_serving(held)
        with pytest.raises(asked.status_error, match=SENTENCE):
            answer.result()
    assert len(held.provider_receipts()) == receipts + 1
    assert [row["stage"] for row in held.calls()[: -known or None]] == ["effect_unknown"]


@each_sdk
def test_killed_in_mid_stream_the_program_gets_one_exception_and_then_our_sentence(held: Rig, asked: Sdk) -> None:
    """No SDK asks again for a stream that began: what breaks is raised to the program, and its next try is told why."""
    receipts = len(held.provider_receipts())
    stream = asked.ask(held, ENDLESS, f"in mid-stream, {asked.name}", True)
    heard = 0
    with pytest.raises(Exception, match=r"(?i)connection|peer closed|incomplete") as broken:  # noqa: PT012 - where it breaks
        for _ in stream:
            heard += 1
            if heard == 3:
                kill_serving(held)
    assert not isinstance(broken.value, AssertionError)
    with pytest.raises(asked.status_error, match=SENTENCE):
        asked.ask(held, ENDLESS, f"in mid-stream, {asked.name}", True)
    assert heard >= 3
    assert len(held.provider_receipts()) == receipts + 1
