"""`sendonce ARGUMENTS`, each in a process of its own that is forked from one which has read the program already.

Reading the program takes longer than most commands do. What runs is the real `main` with a real exit code and real pipes; that it
starts from nothing, too, is shown by `Rig.command` and by every proxy.
"""

import json
import os
import subprocess
import sys
import threading
from functools import cache
from typing import Final

from tests.harness.processes import ROOT, Rig

# Run by the interpreter that forks: a line of JSON in, a line of JSON out, one command at a time.
_FORKS: Final = """
import json, os, sys, tempfile
from proxy.cli import main
for line in sys.stdin:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            arguments, environment = json.loads(line)
            os.environ.update(environment)
            sys.argv = ["sendonce", *arguments]
            main()
            raise SystemExit
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        said = [out.read().decode(), err.read().decode()]
    print(json.dumps([os.waitstatus_to_exitcode(status), *said]), flush=True)
"""


_ONE_AT_A_TIME: Final = threading.Lock()


@cache
def _forks() -> "subprocess.Popen[str]":
    """One for each test process; it ends when that does, by the end of its stdin."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SENDONCE_")}
    return subprocess.Popen(
        [sys.executable, "-c", _FORKS], cwd=ROOT, env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def sendonce(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Its exit code (negative: the signal) and what it said. Two at once are run one after the other: those take `Rig.command`."""
    with _ONE_AT_A_TIME:
        forks = _forks()
        assert forks.stdin is not None
        assert forks.stdout is not None
        forks.stdin.write(json.dumps([arguments, environment]) + "\n")
        forks.stdin.flush()
        code, out, err = json.loads(forks.stdout.readline())
    return subprocess.CompletedProcess(arguments, code, out, err)


def command(rig: Rig, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """About the rig's state dir."""
    return sendonce(*arguments, "--state-dir", str(rig.state_dir), **environment)
