"""Commands that decide, killed at a failpoint; and calls to decide about."""

import asyncio
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ledger.events import AttemptInterpreted
from ledger.ids import CallId
from ledger.operations import Append, Entry
from proxy import wiring
from proxy.settings import load
from tests.harness.crashes import CHAT_PATH, held
from tests.harness.processes import ROOT, Rig, chat

HELD: Final = "synthetic/hold=forever,times=1"
WHY: Final = ("--reason", "the provider's log")


def killed_at(rig: Rig, failpoint: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`sendonce ARGUMENTS` as a process of its own, which dies where it passes the point; there must be no living owner."""
    environment = {**os.environ, "SENDONCE_FAILPOINTS": failpoint, "OPENAI_API_KEY": "sk-test-caller"}
    return subprocess.run(
        [sys.executable, "-m", "proxy", *arguments, "--state-dir", str(rig.state_dir)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def left_unknown(rig: Rig, *texts: str) -> list[str]:
    """Calls that the provider held when the proxy was killed, in this order; no owner lives."""
    with ExitStack() as stack:
        for text in texts:
            stack.enter_context(held(rig, CHAT_PATH, chat(HELD, text)))
        assert rig.proxy_process is not None
        rig.proxy_process.kill()
    return [row["call_id"] for row in reversed(rig.calls())]


def answer_file(rig: Rig, directory: Path) -> Path:
    """What the provider answers to such a request, asked past the proxy."""
    path = directory / "answer.json"
    path.write_bytes(rig.post("/v1/chat/completions", chat(text="past the proxy"), port=rig.provider_process.port).body)
    return path


def read_by_version_1(rig: Rig, call: str) -> None:
    """Reads what is preserved of a new call, but as version 1: its append goes through the store like any other."""

    async def read() -> None:
        settings = load(None, {"state_dir": rig.state_dir})
        state_dir = wiring.state_dir_of(settings)
        state_dir.prepare()
        async with wiring.running(
            settings, state_dir, state_dir.lock(), wiring.recover(settings, state_dir)
        ) as services:
            state = await services.reader.call(CallId(call))
            assert state is not None
            assert state.attempt is not None
            assert state.attempt.interpreted is not None
            old = AttemptInterpreted(1, state.attempt.interpreted.outcome, state.attempt.interpreted.effect)
            await services.writer.append(Append((Entry(CallId(call), 1, old),)))

    asyncio.run(read())
