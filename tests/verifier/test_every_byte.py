"""Every byte of a small state dir flipped, every file cut at every size: noticed, or harmless for a reason that is checked.

Two pasts: *closed*, everything is in `ledger.db`; *killed*, the WAL holds a call that was sent and never answered. Files are changed in place, so that they stay the files they were: it is not their identity that tells. Whatever
a change of the WAL or the receipts does, a call that was sent never reads as not sent, not even to a start.
"""

import asyncio
import gc
import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from ledger import verifier
from ledger.codec import digest_of
from ledger.epochs import StateDir
from ledger.errors import LedgerError
from ledger.ids import CallId
from ledger.stages import Effect
from proxy import evidence
from tests.harness.crash_states import scratch
from tests.harness.crashes import held
from tests.harness.figures import noted
from tests.harness.ledgers import started
from tests.harness.processes import chat, rig

CHAT_PATH: Final = "/openai/v1/chat/completions"
RECEIPTS: Final = "receipts/000001.jsonl"
FILES: Final = {"closed": ("ledger.db", RECEIPTS), "killed": ("ledger.db", "ledger.db-wal", RECEIPTS)}
TABLES: Final = ("event", "chunk", "body", "meta", "call_index", "pass_index", "sqlite_schema")
STRIDE: Final = 509  # default run: every 509th place (a prime, so that no structure of the files hides from it)
LINES_STRIDE: Final = 13  # of the receipt log's own lines
CHUNKS: Final = 8  # slow run: so many tests share the places

UNNOTICED_AT_START: Final = "; a start would read the call as not sent"

Verdict = str


@dataclass
class Original:
    """The files as they were left, and what SQLite read from them."""

    paths: StateDir
    work: Path
    sent: CallId
    files: dict[str, bytes]
    known: dict[str, Verdict] = field(
        default_factory=dict
    )  # what the ledger reads as -> verdict: the same rows are judged alike

    def __post_init__(self) -> None:
        self.reads, self.events = self.read()

    def restore(self) -> None:
        """In place: same inode, same birth."""
        for name, content in self.files.items():
            self.put(name, content)
        root = self.paths.root
        for path in (root / "ledger.db-shm", root / "ledger.db-wal", *self.paths.spool.iterdir()):
            if path.name not in self.files:
                path.unlink(missing_ok=True)

    def put(self, name: str, content: bytes) -> None:
        with (self.paths.root / name).open("r+b" if (self.paths.root / name).exists() else "xb") as file:
            file.write(content)
            file.truncate()

    def read(self) -> tuple[str, list[Any]]:
        """A digest of all that SQLite reads from a copy of the files, or its complaint; and the events."""
        for path in self.work.glob("ledger.db*"):
            path.unlink()
        for path in (self.paths.ledger, self.paths.wal):
            if path.exists():
                shutil.copyfile(path, self.work / path.name)
        try:
            with closing(sqlite3.connect(f"file:{self.work / 'ledger.db'}?mode=ro", uri=True)) as db:
                pragmas = [
                    db.execute(f"PRAGMA {name}").fetchall()
                    for name in ("integrity_check", "application_id", "user_version")
                ]
                rows = {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}
        except (sqlite3.Error, UnicodeDecodeError) as error:
            return f"complaint: {error}", []
        return digest_of(repr((pragmas, rows)).encode()), rows["event"]

    def judge(self) -> Verdict:
        """Of the files as they are now. Raises AssertionError if they pass for sound and are not harmless."""
        if (receipts := self._receipts()) != self.files[RECEIPTS]:
            return self._judge_log(receipts)
        reads, events = self.read()
        if reads == self.reads:
            return self._judge_equal()
        if reads not in self.known:
            self.known[reads] = self._judge(events)
        return self.known[reads]

    def _judge_equal(self) -> Verdict:
        """Every row reads as before; and what only a writer meets in the pages does it no harm either."""
        refused, is_absent = self._start()
        assert not is_absent, "what was sent reads as not sent"
        if refused is not None:
            return f"start: {refused}"
        reads, _ = self.read()
        assert not reads.startswith("complaint"), reads
        return "harmless: every row reads as before, and a start writes on"

    def _judge(self, events: list[Any]) -> Verdict:
        found = verified(self.paths, self.work / "bundle")
        refused, is_absent = self._start()
        if found != "OK":
            return f"verify: {found}{UNNOTICED_AT_START if is_absent else ''}"
        if refused is not None:
            return f"start: {refused}"
        assert not is_absent, "what was sent reads as not sent"
        assert events == self.events[: len(events)], "it passes for sound, and it is no earlier state of itself"
        return "harmless: an earlier state of itself, from which nothing that was sent is missing"

    def _judge_log(self, changed: bytes) -> Verdict:
        """Of a changed receipt log. After a start that nothing stopped: what was changed for good?"""
        refused, is_absent = self._start()
        if refused is not None:
            return f"start: {refused}"
        after = self._receipts()
        self.restore()
        self.put(RECEIPTS, changed)
        if (found := verified(self.paths, self.work / "bundle")) != "OK":
            return f"verify: {found}{UNNOTICED_AT_START if is_absent else ''}"
        assert not is_absent, "what was sent reads as not sent"
        before, now = (content.rstrip(b"\0").split(b"\n") for content in (self.files[RECEIPTS], after))
        if now == before:
            return "harmless: the padding or the last newline, mended"
        assert now[:-2] == before[:-2], "more than the last line of the receipt log is another one"
        was, is_now = json.loads(before[-2]), json.loads(now[-2])
        assert was | {"at": is_now["at"]} == is_now, "the last receipt says something else"
        return "harmless: the time of day of the last receipt, which is for people"

    def _receipts(self) -> bytes:
        return (self.paths.root / RECEIPTS).read_bytes()

    def _start(self) -> tuple[str | None, bool]:
        """Starts on it, in place. Why that is refused, or None; and whether the call that was sent reads as not sent then."""
        try:
            with started(self.paths) as recovered:
                state = recovered.store.state(self.sent)
        except (LedgerError, sqlite3.Error) as error:
            return type(error).__name__, False
        return None, state is None or state.effect is Effect.ABSENT


def verified(paths: StateDir, bundle: Path) -> str:
    """The verdict, or why there was nothing to verify."""
    shutil.rmtree(bundle, ignore_errors=True)
    try:
        asyncio.run(evidence.export(paths, bundle, lambda _done, _of: None))
    except (LedgerError, sqlite3.Error) as error:
        complaint = type(error).__name__
    else:
        return str(verifier.verify(bundle).verdict)
    gc.collect()  # a cursor in the error's traceback keeps its connection open, and that remembers the files as they were
    return complaint


@contextmanager
def original_in(directory: Path, past: str) -> Iterator[Original]:
    """A real past: answered and closed; for `killed` then asked, and killed."""
    with rig(directory) as running:
        assert running.chat(chat(text="first")).status == 200
        running.settled()
        assert running.proxy_process is not None
        running.proxy_process.stop()
        if past == "killed":
            running.start()
            with held(running, CHAT_PATH, chat("synthetic/hold=forever")):
                running.proxy_process.kill()
        sent = CallId(running.calls()[0]["call_id"])
    work = directory / "work"
    work.mkdir()
    running.paths.control_socket.unlink(missing_ok=True)
    yield Original(running.paths, work, sent, {name: (running.state_dir / name).read_bytes() for name in FILES[past]})


@pytest.fixture(scope="module")
def originals() -> Iterator[dict[str, Original]]:
    with ExitStack() as stack:
        yield {past: stack.enter_context(original_in(stack.enter_context(scratch()), past)) for past in FILES}


def flipped(content: bytes, at: int) -> bytes:
    """One bit, another one at each place."""
    return content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]


def cut(content: bytes, at: int) -> bytes:
    return content[:at]


CHANGES: Final[dict[str, Callable[[bytes, int], bytes]]] = {"flipped": flipped, "cut": cut}


def judge_places(original: Original, name: str, change: str, places: Iterable[int]) -> Counter[str]:
    """How many places had which verdict. Raises AssertionError naming the first place that is neither noticed nor harmless."""
    verdicts: Counter[str] = Counter()
    content = original.files[name]
    for at in places:
        original.restore()
        original.put(name, CHANGES[change](content, at))
        try:
            verdicts[original.judge()] += 1
        except AssertionError as error:
            raise AssertionError(f"{name} {change} at byte {at}: {error}") from error
    return verdicts


EVERY: Final = [(past, name, change) for past, names in FILES.items() for name in names for change in CHANGES]


@pytest.mark.xdist_group("every-byte")
@pytest.mark.parametrize(("past", "name", "change"), EVERY)
def test_change_at_sampled_places_is_noticed_or_harmless(
    past: str, name: str, change: str, originals: dict[str, Original]
) -> None:
    """Every 509th place, and every 13th of the receipt log's lines."""
    original = originals[past]
    places = set(range(0, len(original.files[name]), STRIDE))
    lines = len(original.files[name].rstrip(b"\0")) if name == RECEIPTS else 0
    verdicts = judge_places(original, name, change, sorted(places | set(range(0, lines, LINES_STRIDE))))
    check(name, verdicts)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize(("past", "name", "change"), EVERY)
def test_change_at_every_place_is_noticed_or_harmless(
    past: str, name: str, change: str, chunk: int, originals: dict[str, Original]
) -> None:
    """All of them, in parts; the verdicts are figures for docs/proof.md."""
    original = originals[past]
    verdicts = judge_places(original, name, change, range(chunk, len(original.files[name]), CHUNKS))
    noted(what="every byte", past=past, file=name, change=change, chunk=chunk, verdicts=dict(verdicts))
    check(name, verdicts)


def check(name: str, verdicts: Counter[str]) -> None:
    """Something was noticed; and a start is deceived by damage to SQLite's own pages at most, which nothing but reading all finds."""
    assert any(not verdict.startswith("harmless") for verdict in verdicts), verdicts
    assert name == "ledger.db" or not any(verdict.endswith(UNNOTICED_AT_START) for verdict in verdicts), verdicts
