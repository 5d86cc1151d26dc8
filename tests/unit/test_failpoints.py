"""Failpoints act once, at the named passing, in a process of their own; unset they do nothing."""

import os
import signal
import subprocess
import sys

import pytest

from ledger.failpoints import VARIABLE, passed
from tests.harness.ledgers import ROOT

PASSES = """
from ledger.failpoints import passed
for number in range(1, 4):
    try:
        passed("here")
        passed("there")
    except OSError as error:
        print(number, error.errno, flush=True)
    else:
        print(number, flush=True)
"""


def process(rules: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PASSES], cwd=ROOT, env={**os.environ, VARIABLE: rules},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(rules: str) -> tuple[int, list[str], str]:
    with process(rules) as running:
        out, err = running.communicate(timeout=20)
    return running.returncode, out.splitlines(), err


ENDS: list[tuple[str, int, list[str]]] = [
    ("", 0, ["1", "2", "3"]),
    ("elsewhere=kill", 0, ["1", "2", "3"]),
    ("here=kill", -signal.SIGKILL, []),
    ("here=kill@3", -signal.SIGKILL, ["1", "2"]),
    ("here=exit@2", 70, ["1"]),
    ("here=eio@2", 0, ["1", "2 5", "3"]),
    ("here=enospc; there=eio@3;", 0, ["1 28", "2", "3"]),
    ("there=exit@3;here=eio@1", 0, ["1 5", "2", "3"]),
    ("here=sleep(0.01)@2", 0, ["1", "2", "3"]),
]


@pytest.mark.parametrize(("rules", "code", "lines"), ENDS)
def test_rule_acts_at_its_passing_only(rules: str, code: int, lines: list[str]) -> None:
    """`@n` counts passings of that point; before and after, nothing happens."""
    assert ended(rules)[:2] == (code, lines)


def test_stop_stops_until_continued() -> None:
    """SIGSTOP to itself: the process is alive, silent, and goes on."""
    with process("here=stop@2") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "1\n"
        _, status = os.waitpid(running.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        running.send_signal(signal.SIGCONT)
        assert running.communicate(timeout=20)[0].splitlines() == ["2", "3"]


@pytest.mark.parametrize("rules", ["here", "here=melt", "here=kill@x", "Here=kill", "here=kill here=kill"])
def test_unreadable_rule_stops_the_process(rules: str) -> None:
    """A mistyped failpoint must not pass for a survived one."""
    code, lines, err = ended(rules)
    assert (code, lines) == (1, [])
    assert VARIABLE in err


def test_unset_point_does_nothing() -> None:
    """In this very process, which has no rules."""
    assert VARIABLE not in os.environ
    passed("anywhere")
