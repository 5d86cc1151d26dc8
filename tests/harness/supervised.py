"""Proxies behind their supervisor: who serves at the moment, and what becomes of it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.harness.processes import Process, Rig, children_of, until

LISTENS: Final = r"listens on http://[^ ]*:(\d+)"


def kill_serving(rig: Rig) -> int:
    """SIGKILL; the number of the child that follows it, which may still recover."""
    before = rig.serving_pid
    os.kill(before, signal.SIGKILL)
    return next_serving(rig, before)


def next_serving(rig: Rig, before: int) -> int:
    assert rig.proxy_process is not None
    pid = rig.proxy_process.child.pid
    return until(lambda: next((child for child in children_of(pid) if child != before), 0))


def is_gone(pid: int) -> bool:
    """It runs no more; a zombie has let go of everything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return True


def start_supervised(rig: Rig, *arguments: str, **environment: str) -> Process:
    rig.supervised, rig.environment = True, environment
    return rig.start("", *arguments)


@contextmanager
def with_own_state(provided: Rig, name: str) -> Iterator[Rig]:
    """For a proxy that a test starts itself, over a state dir of its own and the same provider."""
    made = Rig(provided.directory, provided.provider_process, state_name=name)
    try:
        yield made
    finally:
        made.leave()
