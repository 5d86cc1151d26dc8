"""Reading, beside the writer and after its death: aiosqlite over a read-only URI. A reader appends nothing, ever.

`mode=ro` matters: a plain connection would checkpoint and delete the WAL when it closes.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiosqlite

from ledger import bodies, queries
from ledger.calls import CallState
from ledger.claims import KeyHistory
from ledger.errors import StateDirError, UnreadableRecordError
from ledger.events import PassOpened, Recorded
from ledger.ids import CallId, Digest, Head, Key, Scope
from ledger.projection import project

WHOLE: Final = slice(None)


class Reader:
    """One read-only connection; its statements run one after another in aiosqlite's thread."""

    def __init__(self, db: aiosqlite.Connection, epochs: dict[int, str]) -> None:
        self._db, self._epochs = db, epochs

    async def history(self, scope: Scope, key: Key) -> KeyHistory:
        """One statement, one snapshot."""
        return await self._history(queries.HISTORY_OF_KEY, (scope, key, queries.NEWEST_OCCURRENCES))

    async def history_in_pass(self, scope: Scope, key: Key, number: int) -> KeyHistory:
        """As `history`, for a request of this pass of its run; one statement, one snapshot."""
        return await self._history(queries.HISTORY_IN_PASS, (scope, key, queries.NEWEST_OCCURRENCES, number))

    async def _history(self, statement: str, about: tuple[Any, ...]) -> KeyHistory:
        """Behind a call's columns its rows have the key's last occurrence and, in a pass, the position."""
        rows = list(await self._db.execute_fetchall(statement, about))
        if not rows:
            return KeyHistory((), None, 0)
        events = queries.read_calls(rows)
        calls = project(events, self._epochs)
        return KeyHistory(tuple(calls.values()), Head(events[-1].seq, events[-1].chain), *rows[0][4:])

    async def newest_pass(self, run: str) -> PassOpened | None:
        opened = await self._passes(queries.NEWEST_PASS, run)
        return opened[0][1] if opened else None

    async def passes(self, run: str) -> list[tuple[int, PassOpened]]:
        """Every pass of the run and when it was opened (milliseconds since 1970), oldest first."""
        return await self._passes(queries.PASSES_OF_RUN, run)

    async def _passes(self, statement: str, run: str) -> list[tuple[int, PassOpened]]:
        recorded = queries.read_events(await self._db.execute_fetchall(statement, (run,)))
        return [(one.at_ms, one.event) for one in recorded if isinstance(one.event, PassOpened)]

    async def runs(self, limit: int) -> list[tuple[str, int, int, int, int]]:
        """Each run, newest first: its name, how many passes and calls, how many unresolved, when its newest pass was opened."""
        rows = await self._db.execute_fetchall(queries.RUNS, (limit,))
        return [(*row[:4], queries.read_events([row[4:]])[0].at_ms) for row in rows]

    async def unresolved_of_run(self, run: str, before_pass: int) -> AsyncGenerator[CallState, None]:
        """The run's calls that are `unresolved` and were last given to an earlier pass than this, oldest first."""
        last, limit = "", queries.UNRESOLVED_RUN_CALLS
        while states := await self._newest_of(queries.UNRESOLVED_OF_RUN, (run, before_pass, last, limit)):
            for state in states:
                yield state
            last = states[-1].call

    async def calls_after(self, after: str, limit: int) -> list[CallState]:
        """The next `limit` calls by their ids, oldest first; superseded ones too. One statement, one snapshot."""
        rows = list(await self._db.execute_fetchall(queries.CALLS_AFTER, (after, limit)))
        states = project(queries.read_calls(rows), self._epochs)
        return [states[CallId(call)] for call in sorted({row[2] for row in rows if row[4]})]

    async def later_in_scope(self, scope: Scope, after: CallId, limit: int) -> list[CallState]:
        """What the same caller asked next, oldest first."""
        states = await self._newest_of(queries.LATER_IN_SCOPE, (scope, after, limit))
        return [state for state in states if state.call > after]

    async def unresolved(self) -> AsyncGenerator[CallState, None]:
        """All calls that are `unresolved`, oldest first."""
        last, limit = "", queries.UNRESOLVED_RUN_CALLS
        while states := await self._newest_of(queries.UNRESOLVED, (last, limit)):
            for state in states:
                if state.unresolved:  # and not another occurrence's other generation
                    yield state
            last = states[-1].call

    async def open_in_pass(self, scope: Scope, number: int) -> list[CallState]:
        """What this pass was given of one caller and is not over, newest first; at most OPEN_LINEAGE_CALLS."""
        return (await self._newest_of(queries.OPEN_IN_PASS, (scope, number, queries.OPEN_LINEAGE_CALLS)))[::-1]

    async def rotating_of_run(self, run: str) -> CallId | None:
        """The run's newest call whose caller is known by a short-lived credential only. Reads every event of the run."""
        rows = list(await self._db.execute_fetchall(queries.ROTATING_OF_RUN, (run,)))
        return CallId(rows[0][0]) if rows else None

    async def jobs_of_run(self, run: str) -> list[CallState]:
        """The run's calls that go on at the provider when they are answered. Reads every event of the run."""
        return await self._newest_of(queries.JOBS_OF_RUN, (run,))

    async def calls_of_run(self, run: str) -> list[tuple[CallState, list[Recorded]]]:
        """Every call of the run with its events, oldest first."""
        events = queries.read_calls(await self._db.execute_fetchall(queries.CALLS_OF_RUN, (run,)))
        states = project(events, self._epochs)
        of_call: dict[CallId, list[Recorded]] = {call: [] for call in states}
        for recorded in events:
            if recorded.call is not None:
                of_call[recorded.call].append(recorded)
        return [(states[call], of_call[call]) for call in sorted(states)]

    async def _newest_of(self, statement: str, about: tuple[Any, ...]) -> list[CallState]:
        rows = await self._db.execute_fetchall(statement, about)
        calls = project(queries.read_calls(rows), self._epochs).values()
        return sorted((state for state in calls if state.superseded_by is None), key=lambda state: state.call)

    async def lineage(self, scope: Scope, lineage: str) -> list[CallState]:
        """The newest call of each occurrence of this lineage that is not over, newest first."""
        limit = queries.OPEN_LINEAGE_CALLS
        return (await self._newest_of(queries.OPEN_OF_LINEAGE, (scope, lineage, limit)))[::-1]

    async def call(self, call: CallId) -> CallState | None:
        rows = await self._db.execute_fetchall(queries.GENERATIONS_OF_CALL, (call,))
        return project(queries.read_calls(rows), self._epochs).get(call)

    async def events(self, call: CallId) -> list[Recorded]:
        rows = await self._db.execute_fetchall(queries.EVENTS_OF_CALL, (call,))
        return queries.read_events(rows)

    async def newest(self, limit: int, key: Key | None = None) -> list[CallState]:
        """Newest first."""
        rows = await self._db.execute_fetchall(queries.NEWEST_CALLS, (key, limit))
        calls = project(queries.read_calls(rows), self._epochs)
        return sorted(calls.values(), key=lambda state: state.call, reverse=True)

    async def oldest_first(self, page_calls: int) -> AsyncGenerator[list[CallState], None]:
        """All calls, page by page, so that memory does not grow with the ledger. Each page is of one moment, and of its own."""
        last = ""
        while page := await self.calls_after(last, page_calls):
            yield page
            last = page[-1].call

    async def counts(self, key: Key | None = None) -> tuple[int, int]:
        """Calls (of the key), and events in the whole ledger."""
        (calls,) = await self._db.execute_fetchall(queries.COUNT_CALLS, (key,))
        (events,) = await self._db.execute_fetchall(queries.COUNT_EVENTS)
        return calls[0], events[0]

    async def head(self) -> Head | None:
        rows = list(await self._db.execute_fetchall(queries.NEWEST_EVENT))
        return Head(rows[0][0], Digest(rows[0][1])) if rows else None

    async def ledger_events(self) -> list[Recorded]:
        rows = await self._db.execute_fetchall(queries.EVENTS_OF_LEDGER)
        return queries.read_events(rows)

    async def body(self, digest: Digest, part: slice = WHOLE) -> AsyncGenerator[bytes, None]:
        """The body's chunks, all or a part of them, each checked against its digest. Raises UnreadableRecordError where one is missing."""
        rows = list(await self._db.execute_fetchall(queries.FIND_BODY, (digest,)))
        if not rows:
            raise UnreadableRecordError(f"the body {digest} is not kept")
        for chunk in list(bodies.chunk_digests(rows[0][0]))[part]:
            found = list(await self._db.execute_fetchall(queries.FIND_CHUNK, (chunk,)))
            if not found:
                raise UnreadableRecordError(f"the body {digest} lacks its chunk {chunk.hex()}")
            yield bodies.plain(chunk, found[0][0])

    async def bodies(self) -> list[tuple[Digest, int]]:
        """Every body that is kept, and its size in bytes."""
        rows = await self._db.execute_fetchall(queries.ALL_BODIES)
        return [(Digest(row[0]), row[1]) for row in rows]

    async def bodies_bytes(self) -> int:
        """What all kept bodies take when they are written out."""
        (row,) = await self._db.execute_fetchall(queries.SUM_BODIES)
        return int(row[0])

    async def integrity(self) -> str:
        """SQLite's own check of its file, and ours of its schema: "ok" or what is wrong. Reads everything."""
        rows = list(await self._db.execute_fetchall("PRAGMA integrity_check"))
        schema = [tuple(row) for row in await self._db.execute_fetchall(queries.SCHEMA)]
        (version,) = await self._db.execute_fetchall("PRAGMA user_version")
        if version[0] != queries.FORMAT:
            return f"its format is {version[0]}, this sendonce reads {queries.FORMAT}"
        if rows[0][0] != "ok" or schema == queries.schema():
            return str(rows[0][0])
        await self.check_index()
        return "its schema is another one"

    async def check_index(self) -> None:
        """Raises StateDirError where only the index is another version's: it is no damage, and computed anew by the next start."""
        schema = [tuple(row) for row in await self._db.execute_fetchall(queries.SCHEMA)]
        if schema != queries.schema() and queries.beside_index(schema) == queries.beside_index(queries.schema()):
            raise StateDirError(
                "The index of the ledger is another version's. Start the proxy once: it computes the index anew, and nothing else changes."
            )

    async def all_events(self) -> AsyncGenerator[tuple[str, str, CallId | None], None]:
        """(record, chain, the column call_id) in order, for whoever checks them."""
        async with self._db.execute(queries.ALL_EVENTS) as cursor:
            async for row in cursor:
                yield row[0], row[1], row[2]

    async def all_calls(self) -> list[CallId]:
        """Newest first."""
        return [CallId(row[0]) for row in await self._db.execute_fetchall(queries.ALL_CALLS)]

    def index_rows(self) -> AsyncGenerator[dict[str, Any], None]:
        """The index as it is stored, column by name, ordered by call."""
        return self._rows(queries.ALL_INDEX_ROWS)

    def pass_rows(self) -> AsyncGenerator[dict[str, Any], None]:
        """The index over passes as it is stored, column by name, ordered by run and number."""
        return self._rows(queries.ALL_PASS_ROWS)

    async def _rows(self, statement: str) -> AsyncGenerator[dict[str, Any], None]:
        async with self._db.execute(statement) as cursor:
            names = [column[0] for column in cursor.description]
            async for row in cursor:
                yield dict(zip(names, row, strict=True))

    async def meta(self, name: str) -> str:
        return queries.meta_of(await self._db.execute_fetchall(queries.META, (name,)), name)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        """Everything read inside is of one moment. The writer goes on; its WAL only cannot start over meanwhile."""
        await self._db.execute("BEGIN")
        try:
            yield
        finally:
            await self._db.execute("ROLLBACK")


@asynccontextmanager
async def open_reader(ledger: Path) -> AsyncIterator[Reader]:
    """Raises StateDirError where there is no ledger yet."""
    if not ledger.is_file():  # noqa: ASYNC240 - one stat, before anything is served
        raise StateDirError(f"There is no ledger at {ledger}. Start the proxy once, or name its --state-dir.")
    async with aiosqlite.connect(f"file:{quote(str(ledger))}?mode=ro", uri=True) as db:
        db.text_factory = queries.text_of
        try:
            rows = await db.execute_fetchall(queries.EVENTS_OF_LEDGER)
        except UnicodeDecodeError as error:  # of SQLite's own message, which quotes a schema that is damaged
            raise UnreadableRecordError(f"the schema of {ledger} is damaged. {queries.RESTORE}") from error
        events = queries.read_events(rows)
        yield Reader(db, queries.epochs_of(recorded.event for recorded in events))
