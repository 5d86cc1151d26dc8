"""Lives and deaths of a state dir by a child process, and what a start then makes of it."""

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import orjson

from ledger.ids import CallId
from ledger.projection import CallState
from tests.harness.ledgers import FIRST, Ended, run_child, started, state_dir_in

KILLED = -signal.SIGKILL
WITNESSES_DISAGREE, STATE_DIR = 5, 4


def kinds(root: Path) -> list[str]:
    """The kinds of all events, read by a connection that cannot write."""
    with closing(sqlite3.connect(f"file:{root / 'ledger.db'}?mode=ro", uri=True)) as db:
        return [orjson.loads(record)["kind"] for (record,) in db.execute("SELECT record FROM event ORDER BY seq")]


def crash(root: Path, *commands: str, failpoints: str = "") -> None:
    state_dir_in(root)
    ended = run_child(root, "start", *commands, failpoints=failpoints)
    assert ended.code == KILLED, ended.stderr


def tidy(root: Path, *commands: str) -> None:
    state_dir_in(root)
    ended = run_child(root, "start", *commands, "close")
    assert ended.code == 0, ended.stderr


def state_after_start(root: Path, call: CallId = FIRST) -> CallState:
    with started(state_dir_in(root)) as recovered:
        state = recovered.store.state(call)
    assert state is not None
    return state


def refused(root: Path, exit_code: int = WITNESSES_DISAGREE) -> str:
    """The start is refused, twice the same, and the ledger holds what it held."""
    before = kinds(root) if (root / "ledger.db").stat().st_size else []
    state_dir_in(root)
    ended: list[Ended] = [run_child(root, "start") for _ in range(2)]
    assert [each.code for each in ended] == [exit_code] * 2, ended
    assert ended[0].answers == ended[1].answers
    assert kinds(root) == before
    return str(ended[0].answers[0]["refused"])
