"""The ledger's SQL in one place, for the writing store (sqlite3) and the readers (aiosqlite), and the index over calls.

Each reading is one statement, so it is one consistent snapshot without a transaction.
"""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from importlib.resources import files
from typing import Any, Final

from ledger.bodies import Packed
from ledger.calls import CallState
from ledger.codec import decode
from ledger.errors import StateDirError, UnreadableRecordError
from ledger.events import EpochOpened, Event, PassOpened, Recorded
from ledger.ids import CallId, Digest
from ledger.ladder import IN_FLIGHT, UNFINISHED
from ledger.projection import project

FORMAT: Final = 1
INDEXES: Final = ("call_index", "pass_index")
APPLICATION_ID: Final = 0x53454E44  # "SEND", so that file(1) and doctor know whose database it is
RESTORE: Final = "Restore a backup, then sendonce recover."
NEWEST_OCCURRENCES: Final = 8  # finished ones an admission still looks at: a late retry's answer is among the newest
UNRESOLVED_RUN_CALLS: Final = 512  # of one run, read at once; there may be more pages
OPEN_LINEAGE_CALLS: Final = 512  # of one session of an agent: its sub-agents in flight, and what failed in it

NEWEST_EVENT: Final = "SELECT seq, chain FROM event ORDER BY seq DESC LIMIT 1"
EVENTS_OF_LEDGER: Final = "SELECT record, chain FROM event WHERE call_id IS NULL ORDER BY seq"
EVENTS_OF_CALL: Final = "SELECT record, chain FROM event WHERE call_id = ? ORDER BY seq"
ALL_EVENTS: Final = "SELECT record, chain, call_id FROM event ORDER BY seq"
COUNT_EVENTS: Final = "SELECT count(*) FROM event"
# Told apart by text first: a record need not be parsed for it, and few are needed.
NEWEST_STARTS: Final = """SELECT record, chain FROM event WHERE instr(record, '"attempt.started"') ORDER BY seq DESC"""
EVENT_AT: Final = "SELECT record, chain FROM event WHERE seq = ?"
LAST_OCCURRENCE: Final = "SELECT coalesce(max(occurrence), 0) FROM call_index WHERE scope = ? AND key = ?"
GENERATION_BEFORE: Final = """
    SELECT call_id FROM call_index WHERE scope = ? AND key = ? AND occurrence = ? AND generation < ?
    ORDER BY generation DESC LIMIT 1"""
META: Final = "SELECT value FROM meta WHERE name = ?"
KEY_HEAD: Final = """
    SELECT seq, chain FROM event WHERE seq = (SELECT max(last_seq) FROM call_index WHERE scope = ? AND key = ?)"""
# Every generation of each open occurrence and of the newest finished ones, with the highest occurrence there ever was.
# Newest by what was last written of it, and by when it began: erasing an old answer writes of it once more.
HISTORY_OF_KEY: Final = """
    WITH touched(occurrence) AS (
      SELECT occurrence FROM call_index WHERE scope = ?1 AND key = ?2 AND is_open = 1
      UNION SELECT occurrence FROM (
        SELECT occurrence FROM call_index WHERE scope = ?1 AND key = ?2 ORDER BY last_seq DESC LIMIT ?3)
      UNION SELECT occurrence FROM (
        SELECT occurrence FROM call_index WHERE scope = ?1 AND key = ?2 ORDER BY occurrence DESC LIMIT ?3))
    SELECT e.record, e.chain, c.call_id, c.last_seq,
      (SELECT max(occurrence) FROM call_index WHERE scope = ?1 AND key = ?2)
    FROM call_index c LEFT JOIN event e ON e.call_id = c.call_id
    WHERE c.scope = ?1 AND c.key = ?2 AND c.occurrence IN touched ORDER BY e.seq"""
# The same for a pass of a run: the open and the newest occurrences that it was given, and the one that comes next. The key's
# newest call stands there too, for the head.
HISTORY_IN_PASS: Final = """
    WITH touched(occurrence) AS (
      SELECT occurrence FROM call_index WHERE scope = ?1 AND key = ?2 AND served_pass = ?4 AND is_open = 1
      UNION SELECT occurrence FROM (
        SELECT occurrence FROM call_index WHERE scope = ?1 AND key = ?2 AND served_pass = ?4
        ORDER BY last_seq DESC LIMIT ?3)
      UNION SELECT occurrence FROM (
        SELECT occurrence FROM call_index WHERE scope = ?1 AND key = ?2 ORDER BY last_seq DESC LIMIT 1)
      UNION SELECT coalesce(max(occurrence), 0) + 1 FROM call_index WHERE scope = ?1 AND key = ?2 AND served_pass = ?4)
    SELECT e.record, e.chain, c.call_id, c.last_seq,
      (SELECT max(occurrence) FROM call_index WHERE scope = ?1 AND key = ?2),
      (SELECT coalesce(max(occurrence), 0) FROM call_index WHERE scope = ?1 AND key = ?2 AND served_pass = ?4)
    FROM call_index c LEFT JOIN event e ON e.call_id = c.call_id
    WHERE c.scope = ?1 AND c.key = ?2 AND c.occurrence IN touched ORDER BY e.seq"""
_OF_RUN: Final = """
    SELECT e.record, e.chain, c.call_id, c.last_seq FROM call_index c LEFT JOIN event e ON e.call_id = c.call_id
    WHERE (c.scope, c.key, c.occurrence) IN touched ORDER BY e.seq"""
UNRESOLVED_OF_RUN: Final = f"""
    WITH touched AS (SELECT scope, key, occurrence FROM call_index
      WHERE run = ?1 AND is_unresolved = 1 AND coalesce(served_pass, 0) < ?2 AND call_id > ?3
      ORDER BY call_id LIMIT ?4) {_OF_RUN}"""
# What one caller asked after a call, oldest first.
LATER_IN_SCOPE: Final = f"""
    WITH touched AS (SELECT scope, key, occurrence FROM call_index
      WHERE scope = ?1 AND call_id > ?2 ORDER BY call_id LIMIT ?3) {_OF_RUN}"""
# All that are unresolved, in pages.
UNRESOLVED: Final = f"""
    WITH touched AS (SELECT scope, key, occurrence FROM call_index
      WHERE is_unresolved = 1 AND call_id > ?1 ORDER BY call_id LIMIT ?2) {_OF_RUN}"""
# What a pass was given of one scope and is not over, newest first.
OPEN_IN_PASS: Final = f"""
    WITH touched AS (SELECT scope, key, occurrence FROM call_index
      WHERE scope = ?1 AND served_pass = ?2 AND is_open = 1 ORDER BY call_id DESC LIMIT ?3) {_OF_RUN}"""
CALLS_OF_RUN: Final = f"WITH touched AS (SELECT scope, key, occurrence FROM call_index WHERE run = ?1) {_OF_RUN}"
# Told apart by text first: of a run's calls few are jobs, and few callers are known by a short-lived credential only.
JOBS_OF_RUN: Final = f"""
    WITH touched AS (SELECT c.scope, c.key, c.occurrence FROM call_index c JOIN event e ON e.call_id = c.call_id
      WHERE c.run = ?1 AND instr(e.record, '"endpoint_class":"job"')) {_OF_RUN}"""
ROTATING_OF_RUN: Final = """
    SELECT c.call_id FROM call_index c JOIN event e ON e.call_id = c.call_id
    WHERE c.run = ?1 AND instr(e.record, '"caller_rotates":true') ORDER BY c.call_id DESC LIMIT 1"""
NEWEST_PASS: Final = """
    SELECT e.record, e.chain FROM pass_index p JOIN event e ON e.seq = p.opened_seq
    WHERE p.run = ? ORDER BY p.number DESC LIMIT 1"""
PASSES_OF_RUN: Final = """
    SELECT e.record, e.chain FROM pass_index p JOIN event e ON e.seq = p.opened_seq WHERE p.run = ? ORDER BY p.number"""
# Of each run: its passes, its calls, those unresolved, and its newest pass. Newest first.
RUNS: Final = """
    WITH newest AS (SELECT run, count(*) AS passes, max(opened_seq) AS seq FROM pass_index GROUP BY run)
    SELECT n.run, n.passes, (SELECT count(*) FROM call_index c WHERE c.run = n.run),
      (SELECT count(*) FROM call_index c WHERE c.run = n.run AND c.is_unresolved = 1), e.record, e.chain
    FROM newest n JOIN event e ON e.seq = n.seq ORDER BY n.seq DESC LIMIT ?"""
NEWEST_PASS_NUMBER: Final = "SELECT coalesce(max(number), 0) FROM pass_index WHERE run = ?"
WRITE_PASS: Final = "INSERT INTO pass_index VALUES(?, ?, ?)"
# The open occurrences of one lineage, newest first, each with every generation.
OPEN_OF_LINEAGE: Final = """
    WITH touched AS (SELECT key, occurrence FROM call_index
      WHERE scope = ?1 AND lineage = ?2 AND is_open = 1 ORDER BY call_id DESC LIMIT ?3)
    SELECT e.record, e.chain, c.call_id, c.last_seq FROM call_index c LEFT JOIN event e ON e.call_id = c.call_id
    WHERE c.scope = ?1 AND (c.key, c.occurrence) IN touched ORDER BY e.seq"""
GENERATIONS_OF_CALL: Final = """
    SELECT e.record, e.chain, c.call_id, c.last_seq FROM call_index a
    JOIN call_index c ON c.scope = a.scope AND c.key = a.key AND c.occurrence = a.occurrence
    LEFT JOIN event e ON e.call_id = c.call_id WHERE a.call_id = ? ORDER BY e.seq"""
# The newest calls, with their occurrence's other generations.
NEWEST_CALLS: Final = """
    WITH newest AS (SELECT scope, key, occurrence FROM call_index
      WHERE (?1 IS NULL OR key = ?1) ORDER BY call_id DESC LIMIT ?2)
    SELECT e.record, e.chain, c.call_id, c.last_seq FROM call_index c LEFT JOIN event e ON e.call_id = c.call_id
    WHERE (c.scope, c.key, c.occurrence) IN newest ORDER BY e.seq"""
# The next calls by id, which is by time, and whether a call is one of them: an occurrence's other generations stand there too.
CALLS_AFTER: Final = """
    WITH page AS (SELECT call_id, scope, key, occurrence FROM call_index WHERE call_id > ?1 ORDER BY call_id LIMIT ?2),
      touched AS (SELECT scope, key, occurrence FROM page)
    SELECT e.record, e.chain, c.call_id, c.last_seq, c.call_id IN (SELECT call_id FROM page)
    FROM call_index c LEFT JOIN event e ON e.call_id = c.call_id
    WHERE (c.scope, c.key, c.occurrence) IN touched ORDER BY e.seq"""
COUNT_CALLS: Final = "SELECT count(*) FROM call_index WHERE (?1 IS NULL OR key = ?1)"
# What a start has to look at: calls the last epoch left in flight, and whatever was observed and never finished.
IN_FLIGHT_OF_EPOCH: Final = "SELECT call_id FROM call_index WHERE is_in_flight = 1 AND epoch = ? ORDER BY call_id"
UNFINISHED_CALLS: Final = "SELECT call_id FROM call_index WHERE is_unfinished = 1 ORDER BY call_id"

ALL_CALLS: Final = "SELECT call_id FROM call_index ORDER BY call_id DESC"
ALL_INDEX_ROWS: Final = "SELECT * FROM call_index ORDER BY call_id"
ALL_PASS_ROWS: Final = "SELECT * FROM pass_index ORDER BY run, number"
ALL_BODIES: Final = "SELECT digest, size FROM body ORDER BY id"
SUM_BODIES: Final = "SELECT coalesce(sum(size), 0) FROM body"
SCHEMA: Final = (
    "SELECT sql, tbl_name IN ('call_index', 'pass_index') FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY sql"
)
FIND_BODY: Final = "SELECT chunks FROM body WHERE digest = ?"
HAS_CHUNK: Final = "SELECT 1 FROM chunk WHERE digest = ?"
ERASE_BODY: Final = "DELETE FROM body WHERE digest = ? RETURNING size"
ERASE_CHUNK: Final = "DELETE FROM chunk WHERE digest = ? RETURNING length(frame)"
# Told apart by text first, as above: which events keep a body, end a call's keeping of it, or complete a call.
KEEPING_AFTER: Final = """
    SELECT record, chain FROM event WHERE seq > ?1 AND seq <= ?2 AND (instr(record, '"kind":"call.manifest"')
      OR instr(record, '"kind":"attempt.observed"') OR instr(record, '"kind":"body.erased"')
      OR instr(record, '"kind":"call.completed"')) ORDER BY seq"""
FIND_CHUNK: Final = "SELECT frame FROM chunk WHERE digest = ?"

WRITE_INDEX: Final = """
    INSERT INTO call_index VALUES(:call_id, :scope, :key, :occurrence, :generation, :epoch, :last_seq, :is_open,
      :is_in_flight, :is_unfinished, :lineage, :run, :served_pass, :is_unresolved)
    ON CONFLICT(call_id) DO UPDATE SET epoch = :epoch, last_seq = :last_seq, is_open = :is_open,
      is_in_flight = :is_in_flight, is_unfinished = :is_unfinished, served_pass = :served_pass, is_unresolved = :is_unresolved"""


def text_of(stored: bytes) -> str:
    """The connections' `text_factory`: what SQLite holds as text is ours, so it is UTF-8. Raises UnreadableRecordError."""
    try:
        return stored.decode()
    except UnicodeDecodeError as error:
        raise UnreadableRecordError(f"a text in the ledger file is not UTF-8: it is damaged. {RESTORE}") from error


def meta_of(rows: Iterable[Any], name: str) -> str:
    """Raises UnreadableRecordError where it is gone: every ledger has it from its first moment."""
    for row in rows:
        return str(row[0])
    raise UnreadableRecordError(f"the ledger file has lost its {name}: it is damaged. {RESTORE}")


def read_events(rows: Iterable[Any]) -> list[Recorded]:
    """Rows of (record, chain, …) as events. Raises UnreadableRecordError."""
    return [decode(row[0], Digest(row[1])) for row in rows]


def read_calls(rows: Iterable[Any]) -> list[Recorded]:
    """Rows of (record, chain, call, its last seq, …) as events, every one of each call. Raises UnreadableRecordError.

    A flipped bit in SQLite's own index of events hides some from it without a word, and what lacks its attempt reads as
    never sent. So the two tables are held against each other wherever a call is read.
    """
    events: list[Recorded] = []
    last: dict[str, int] = {}
    for record, chain, call, last_seq, *_ in rows:
        last.setdefault(call, last_seq)
        if record is not None:
            events.append(decode(record, Digest(chain)))
    for event in events:
        if event.call is not None and event.seq == last.get(event.call):
            del last[event.call]
    if last:
        raise UnreadableRecordError(
            f"events of {', '.join(sorted(last))} cannot be found: the ledger file is damaged. {RESTORE}"
        )
    return events


def ledger_events(db: sqlite3.Connection) -> list[Event]:
    """Epochs and passes: the events that belong to no call."""
    return [recorded.event for recorded in read_events(db.execute(EVENTS_OF_LEDGER))]


def epochs_of(events: Iterable[Event]) -> dict[int, str]:
    return {event.epoch: event.protocol for event in events if isinstance(event, EpochOpened)}


def create_or_check(db: sqlite3.Connection, ledger_id: str, path: str) -> None:
    """An empty file becomes a ledger of this format; any other must be one. Raises StateDirError."""
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables == 0:
        about = f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT};"
        db.executescript(f"BEGIN IMMEDIATE; {_sql('schema.sql')} {_sql('call_index.sql')} {about}")
        db.execute("INSERT INTO meta(name, value) VALUES('ledger_id', ?)", (ledger_id,))
        db.execute("COMMIT")
        return
    (application,), (version,) = (
        db.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    if application != APPLICATION_ID:
        raise StateDirError(
            f"{path} is a database of another program. Point --state-dir at a directory of sendonce's own."
        )
    if version != FORMAT:
        raise StateDirError(
            f"{path} has format {version}; this sendonce reads {FORMAT}. Use the version that wrote it."
        )
    found = db.execute(SCHEMA).fetchall()
    if found != schema() and beside_index(found) == beside_index(schema()):
        rebuild_index(db)  # it is the index of an earlier version, or somebody's: it is computed, never converted
    elif found != schema():
        raise StateDirError(
            f"{path} has other tables, indexes or triggers than format {FORMAT}. Take away what was added, or: {RESTORE}"
        )


@cache
def schema() -> list[tuple[str, int]]:
    """What SCHEMA reads from a sound ledger: without its triggers nothing keeps events from being changed."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_sql("schema.sql") + _sql("call_index.sql"))
        return db.execute(SCHEMA).fetchall()


def beside_index(rows: list[tuple[str, int]]) -> list[str]:
    return [sql for sql, is_index in rows if not is_index]


def write_index(db: sqlite3.Connection, state: CallState) -> None:
    """The call's row, from its state alone."""
    row = {
        "call_id": state.call,
        "scope": state.scope,
        "key": state.key,
        "occurrence": state.occurrence,
        "generation": state.generation,
        "epoch": state.attempt.epoch if state.attempt else state.requested.epoch if state.requested else None,
        "last_seq": state.last_seq,
        "is_open": not state.finished,
        "is_in_flight": state.superseded_by is None and state.evidence in IN_FLIGHT,
        "is_unfinished": state.superseded_by is None and state.evidence in UNFINISHED,
        "lineage": state.requested.lineage if state.requested else None,
        "run": state.run,
        "served_pass": state.served_pass,
        "is_unresolved": state.unresolved,
    }
    db.execute(WRITE_INDEX, row)


def rebuild_index(db: sqlite3.Connection) -> None:
    """Drop the indexes and compute them again from all events; one transaction, on the writing connection."""
    db.execute("BEGIN IMMEDIATE")
    for table in INDEXES:
        db.execute(f"DROP TABLE IF EXISTS {table}")
    for statement in _sql("call_index.sql").split(";\n"):
        db.execute(statement)
    events = read_events(db.execute(ALL_EVENTS))
    for state in project(events, {}).values():
        write_index(db, state)
    for recorded in events:
        if isinstance(recorded.event, PassOpened):
            db.execute(WRITE_PASS, (recorded.event.run, recorded.event.number, recorded.seq))
    db.execute("COMMIT")


def state_of(db: sqlite3.Connection, call: CallId, epochs: dict[int, str]) -> CallState | None:
    """One call's state, projected together with the other generations of its occurrence."""
    return project(read_calls(db.execute(GENERATIONS_OF_CALL, (call,))), epochs).get(call)


def _sql(name: str) -> str:
    return files("ledger.sql").joinpath(name).read_text()


def keep_chunks(db: sqlite3.Connection, chunks: Iterable[tuple[bytes, bytes]]) -> None:
    db.executemany("INSERT OR IGNORE INTO chunk(digest, frame) VALUES(?, ?)", chunks)


def keep_body(db: sqlite3.Connection, packed: Packed) -> None:
    """Inside the writer's transaction. What is stored already is not stored again. Raises ValueError where a staged chunk is gone."""
    keep_chunks(db, packed.chunks)
    if packed.staged and not all(db.execute(HAS_CHUNK, (digest,)).fetchone() for digest in packed.order):
        raise ValueError(f"a chunk of the staged body {packed.digest} is not stored")
    db.execute(
        "INSERT OR IGNORE INTO body(digest, size, chunks) VALUES(?, ?, ?)",
        (packed.digest, packed.size, b"".join(packed.order)),
    )
