"""What the read commands ask. It appends nothing."""

import platform
import sqlite3
import stat
from contextlib import aclosing
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import http_parser

from ledger.calls import CallState
from ledger.codec import chained, decode
from ledger.epochs import FileIdentity, StateDir, file_identity
from ledger.errors import LedgerError
from ledger.events import EpochOpened, PassOpened
from ledger.ids import NO_CHAIN, CallId, Digest, Key
from ledger.queries import RESTORE
from ledger.reader import open_reader
from ledger.receipts import read_segment, segments
from proxy.audit.tokens import tokens_of
from proxy.owner import NotFoundError, alive_calls, alive_in
from proxy.settings import Settings
from proxy.tools import tool_rows
from proxy.views import call_detail, call_row, head_row, instant

UNRESOLVED_LOOKED_AT = 100_000  # calls `status` counts over; beyond it, it says so


ROTATING = (
    "When it changes, the same request comes from another caller and is no longer refused: decide about them first."
)


@dataclass(frozen=True, slots=True)
class Calls:
    """Rows, newest first, and how many calls there are in all."""

    rows: list[dict[str, Any]]
    total: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing `doctor` looked at."""

    what: str
    ok: bool
    says: str

    def row(self) -> dict[str, Any]:
        return asdict(self)


async def calls(state_dir: StateDir, limit: int, key: Key | None) -> Calls:
    owner = await alive_calls(state_dir)
    async with open_reader(state_dir.ledger) as reader:
        states = await reader.newest(limit, key)
        total, _ = await reader.counts(key)
    return Calls([call_row(state, alive_in(owner, state.call)) for state in states], total)


async def show(state_dir: StateDir, call: CallId) -> dict[str, Any]:
    owner = await alive_calls(state_dir)
    async with open_reader(state_dir.ledger) as reader:
        state = await reader.call(call)
        if state is None:
            raise NotFoundError(f"There is no call {call} in {state_dir.root}. `sendonce calls` lists them.")
        detail = call_detail(state, alive_in(owner, call), await reader.events(call))
        tools = await tool_rows(reader, state)
    return {**detail, "tokens": _tokens(state), "tool_calls": tools, "state_dir": str(state_dir.root)}


def _tokens(state: CallState) -> dict[str, int] | None:
    """The stated usage by class, whatever the provider calls it."""
    reading = state.attempt.interpreted if state.attempt else None
    found = tokens_of(state.requested.dialect, reading.usage) if reading and state.requested else None
    return asdict(found) if found else None


async def status(state_dir: StateDir) -> dict[str, Any]:
    owner = await alive_calls(state_dir)
    async with open_reader(state_dir.ledger) as reader:
        total, events = await reader.counts()
        head = await reader.head()
        states = await reader.newest(UNRESOLVED_LOOKED_AT)
        epochs = [recorded for recorded in await reader.ledger_events() if recorded.event.kind == "epoch.opened"]
    alive = set(owner["alive"]) if owner else set()
    stages: dict[str, int] = {}
    for state in states:
        stages[state.stage.value] = stages.get(state.stage.value, 0) + 1
    unresolved = [state for state in states if state.duplicate_effect_risk and state.call not in alive]
    return {
        "state_dir": str(state_dir.root),
        "running": owner is not None,
        "admitting": owner["admitting"] if owner else False,
        "epoch": len(epochs),
        "epoch_opened_at": instant(epochs[-1].at_ms) if epochs else None,
        "calls": total,
        "events": events,
        "head": head_row(head),
        "in_flight": sorted(alive) if owner else None,
        "unresolved": [state.call for state in unresolved],
        "rotating": [state.call for state in unresolved if state.requested and state.requested.caller_rotates],
        "stages": stages,
        "calls_looked_at": len(states),
    }


async def doctor(settings: Settings, state_dir: StateDir) -> list[Finding]:
    """Everything is looked at even when something is wrong; nothing is changed."""
    parser_ok = http_parser.HttpRequestParser.__module__ == "aiohttp._http_parser"
    findings = [
        Finding(
            "python",
            ok=True,
            says=f"sendonce {metadata.version('sendonce')}, {platform.python_version()}, SQLite {sqlite3.sqlite_version}, aiohttp {aiohttp.__version__}",
        ),
        Finding(
            "http parser",
            ok=parser_ok,
            says="aiohttp's C parser" if parser_ok else "the lax pure-Python parser: reinstall aiohttp from a wheel",
        ),
        Finding(
            "upstreams",
            ok=True,
            says=", ".join(f"{name} = {about.base_url}" for name, about in settings.upstreams.items()),
        ),
        _permissions(state_dir),
    ]
    if not state_dir.ledger.exists():
        return [
            *findings,
            Finding("ledger", ok=True, says=f"none yet at {state_dir.ledger}; the first start creates it"),
        ]
    owner = await alive_calls(state_dir)
    says = f"an owner of epoch {owner['epoch']} answers" if owner else "no owner answers; the state dir is at rest"
    return [
        *findings,
        Finding("owner", ok=True, says=says),
        await _callers(state_dir),
        await _identity(state_dir),
        await _ledger(state_dir),
        await _passes(state_dir),
        await _bodies(state_dir),
        _receipts(state_dir),
    ]


async def _callers(state_dir: StateDir) -> Finding:
    try:
        rotating = (await status(state_dir))["rotating"]
    except (LedgerError, sqlite3.DatabaseError):
        return Finding("callers", ok=True, says="not looked at: see the ledger below")
    says = "no unresolved call hangs on a short-lived credential"
    if rotating:
        says = f"{len(rotating)} unresolved calls are known by a short-lived credential only. {ROTATING}"
    return Finding("callers", ok=True, says=says)


def _permissions(state_dir: StateDir) -> Finding:
    paths = [state_dir.root, *state_dir.root.rglob("*")] if state_dir.root.exists() else []
    loose = next((path for path in paths if _is_loose(path)), None)
    if not paths:
        return Finding("permissions", ok=True, says=f"{state_dir.root} does not exist yet; the first start creates it")
    if loose is not None:
        says = f"{loose} can be read by others. Run: chmod -R go-rwx {state_dir.root}"
        return Finding("permissions", ok=False, says=says)
    return Finding("permissions", ok=True, says=f"{state_dir.root} is private")


def _is_loose(path: Path) -> bool:
    try:
        return not path.is_socket() and bool(stat.S_IMODE(path.lstat().st_mode) & 0o077)
    except FileNotFoundError:  # a spool that has just been removed
        return False


async def _identity(state_dir: StateDir) -> Finding:
    """Is this the file that the last epoch was opened on?"""
    async with open_reader(state_dir.ledger) as reader:
        opened = [recorded.event for recorded in await reader.ledger_events()]
    last = next((event for event in reversed(opened) if isinstance(event, EpochOpened)), None)
    if last is not None and FileIdentity(last.file_inode, last.file_birth_ns) != file_identity(state_dir.ledger):
        says = "the ledger file is a copy or a restored backup; a start wants sendonce recover --accept-copy"
        return Finding("identity", ok=False, says=says)
    return Finding("identity", ok=True, says="the ledger is the file its last epoch was opened on")


async def _ledger(state_dir: StateDir) -> Finding:
    """The hash chain over all records, SQLite's own check, and that every record can be read."""
    try:
        async with open_reader(state_dir.ledger) as reader, aclosing(reader.all_events()) as records:
            if (integrity := await reader.integrity()) != "ok":
                return Finding(
                    "ledger",
                    ok=False,
                    says=f"SQLite finds damage: {integrity}. {RESTORE}",
                )
            chain, count = NO_CHAIN, 0
            async for record, link, call in records:
                chain, count = chained(chain, record.encode()), count + 1
                recorded = decode(record, Digest(link))
                if (chain, recorded.seq, recorded.call) != (link, count, call):
                    return Finding(
                        "ledger",
                        ok=False,
                        says=f"event {count} was changed after it was written. {RESTORE}",
                    )
    except (LedgerError, sqlite3.DatabaseError) as error:
        return Finding("ledger", ok=False, says=f"{error}")
    return Finding("ledger", ok=True, says=f"{count} events, chain {chain[:16]}…")


async def _passes(state_dir: StateDir) -> Finding:
    """The index over passes says which start of a run is its newest: it is what the events give, at one moment."""
    try:
        async with open_reader(state_dir.ledger) as reader, reader.snapshot():
            stored = [(row["run"], row["number"], row["opened_seq"]) async for row in reader.pass_rows()]
            recorded = await reader.ledger_events()
    except (LedgerError, sqlite3.DatabaseError) as error:
        return Finding("passes", ok=False, says=f"{error}. {RESTORE}")
    opened = sorted((one.event.run, one.event.number, one.seq) for one in recorded if isinstance(one.event, PassOpened))
    if stored != opened:
        says = (
            f"the index over passes has {len(stored)} rows and is not what the {len(opened)} openings give. {RESTORE}"
        )
        return Finding("passes", ok=False, says=says)
    return Finding("passes", ok=True, says=f"{len(opened)} passes, each as it was opened")


async def _bodies(state_dir: StateDir) -> Finding:
    """Every kept body, chunk by chunk, against its digest; of one moment, since a prune may run beside it."""
    try:
        async with open_reader(state_dir.ledger) as reader, reader.snapshot():
            digests = await reader.bodies()
            for digest, _ in digests:
                async with aclosing(reader.body(digest)) as pieces:
                    async for _ in pieces:
                        pass
    except (LedgerError, sqlite3.DatabaseError) as error:
        return Finding("bodies", ok=False, says=f"{error}. {RESTORE}")
    return Finding("bodies", ok=True, says=f"{len(digests)} bodies, each as its digest says")


def _receipts(state_dir: StateDir) -> Finding:
    try:
        lines = [line for path in segments(state_dir.receipts) for line in read_segment(path)]
    except LedgerError as error:
        return Finding("receipts", ok=False, says=str(error))
    return Finding(
        "receipts", ok=True, says=f"{len(lines)} lines in {len(segments(state_dir.receipts))} segments, unbroken"
    )
