"""The real agents, Claude Code and Codex, from npm: a fresh HOME, placeholder keys, and a network that holds nothing but `lo`.

`python -m tests.harness.agents` installs them beforehand, where the tests themselves have no network to install from.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from synthetic_provider.filler import pieces
from synthetic_provider.wire import part_texts
from tests.harness.npm import installation, installed
from tests.harness.processes import ROOT, Rig, rig
from tests.harness.sent_answers import ask_of

PROJECT: Final = ROOT / "tests" / "clients" / "agents"
AGENT_LIMIT_S: Final = 60  # both double their pauses between tries, up to some 9 s

# Versions whose behaviour after a broken stream differs.
CLAUDE_CODE: Final = {
    "2.1.197": "node_modules/claude-code-2.1.197/cli-wrapper.cjs",
    "2.1.332": "node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs",
}
CODEX: Final = "node_modules/@openai/codex/bin/codex.js"

_NEW_NETWORK: Final = 0x4000_0000  # CLONE_NEWNET of <linux/sched.h>; os.unshare exists from Python 3.12 on


# --- the network -----------------------------------------------------------------------------------------------------


@contextmanager
def loopback_only() -> Iterator[None]:
    """A network of its own, `lo` and nothing else, for the calling thread and for each thread and process that it starts."""
    if sys.platform != "linux":
        pytest.skip("NOT RUN: agents run in a network namespace, which only Linux has.")
    if shutil.which("ip") is None:
        pytest.skip("NOT RUN: the program 'ip' is missing. Install iproute2.")
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(_NEW_NETWORK) != 0:
            pytest.skip(
                f"NOT RUN: no network namespace ({os.strerror(ctypes.get_errno())}). Run as root, or: python -m "
                "tests.harness.agents && unshare --map-root-user --net .venv/bin/pytest -m agents"
            )
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            assert [name for _, name in socket.if_nameindex()] == ["lo"]
            yield
        finally:
            back = libc.setns(before, _NEW_NETWORK)
            assert back == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(before)


@contextmanager
def rig_for_agents(directory: Path) -> Iterator[Rig]:
    """A provider and a running proxy that an agent can reach; it reaches nothing else. Skips where the agents cannot be had."""
    installed(PROJECT)  # before the network is gone
    with loopback_only(), rig(directory) as made:
        yield made


# --- the programs ----------------------------------------------------------------------------------------------------


# --- one run of an agent ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """What a person or a script sees of it."""

    code: int
    out: str
    err: str


def told_by(receipt: dict[str, Any]) -> str:
    """What either agent prints of the provider's answer with this receipt: its last message or block."""
    return b"".join(pieces(part_texts(ask_of(receipt))[-1].encode())).decode().strip()


@dataclass(frozen=True)
class Agent:
    """An agent at work on one prompt."""

    child: subprocess.Popen[str]

    def ended(self) -> Ended:
        """Waits until it stops by itself."""
        out, err = self.child.communicate(timeout=AGENT_LIMIT_S)
        return Ended(self.child.returncode, out, err)


@contextmanager
def claude_code(version: str, home: Path, base_url: str, model: str) -> Iterator[Agent]:
    """`claude -p`; `base_url` ends in the name of the upstream."""
    environment = {
        "ANTHROPIC_API_KEY": "sk-ant-placeholder",
        "ANTHROPIC_BASE_URL": base_url,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    with _started([CLAUDE_CODE[version], "-p", "say hi", "--model", model], home, environment) as agent:
        yield agent


@contextmanager
def codex(home: Path, base_url: str, model: str) -> Iterator[Agent]:
    """`codex exec`; `base_url` ends in `/v1`."""
    # Without its analytics it ends when it is done; with them it tries to reach them for five seconds more.
    settings = ["-c", f'openai_base_url="{base_url}"', "-c", "analytics.enabled=false"]
    arguments = [
        CODEX,
        "exec",
        "--skip-git-repo-check",
        "--sandbox",
        "read-only",
        "--model",
        model,
        *settings,
        "say hi",
    ]
    with _started(arguments, home, {"CODEX_API_KEY": "sk-placeholder"}) as agent:
        yield agent


@contextmanager
def _started(arguments: list[str], home: Path, environment: dict[str, str]) -> Iterator[Agent]:
    """An entry point of the installed packages. Nothing of this process's environment but PATH, nothing of it left behind."""
    entry, *rest = arguments
    work = home / "work"
    work.mkdir(parents=True, exist_ok=True)
    child = subprocess.Popen(
        ["node", str(installed(PROJECT) / entry), *rest],
        cwd=work,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # the entry point starts the program proper: they are killed together
    )
    with child:
        try:
            yield Agent(child)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(installation(PROJECT)[1] or None)
