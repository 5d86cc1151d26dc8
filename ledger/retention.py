"""Body retention: which bodies nobody needs any more, and taking away their bytes. Digests and tombstones stay (I7).

Three steps, each made of small appends, so that the writer is never held up for long and a crash leaves a sound ledger:

1. A `Plan` counts, in one pass over the events, which call keeps which body. It reads beside the writer, in the process of
   whoever asked, and counts on disk (SQLite's temporary tables), however many calls there are.
2. A page of calls at a time gets its `body.erased` events. In the same transaction go the rows of the bodies that no other
   call keeps: so the tombstone is durable when the body is gone, and an erased body is never there.
3. Chunks are shared by bodies, so the chunks of no body at all are looked for last, and go in batches of their own.

Nothing is remembered between runs: who runs it again after a crash counts again, and finds what is left to do.

What is written while a plan is made, or between its pages, is safe by two rules. `named_since`, in the writer's thread: what
an event names that the plan has not counted stays. For chunks that no event names *yet*, because their body is being
staged: a batch of chunks is handed to the writer only while nothing is staged (`control.erase`), and a staging that
begins later inserts every chunk it needs again (INSERT OR IGNORE) in operations that the writer gets after that batch.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from ledger import queries
from ledger.bodies import chunk_digests
from ledger.errors import ConflictError
from ledger.events import AttemptObserved, Body, BodyErased, CallCompleted, CallManifest, Recorded
from ledger.ids import CallId, Digest
from ledger.operations import Append, Entry, Erased, Erasure

PAGE_BODIES: Final = 50  # tombstones in one append: some 20 ms during which admissions wait
PAGE_CALLS: Final = 50  # looked at for one page: each is projected from its events
BATCH_CHUNKS: Final = 100  # in one append, for the same reason: their pages are overwritten
COUNTED_EVENTS: Final = 5000  # read in one snapshot while counting, so that the WAL can start over in between
OUTRUN_EVENTS: Final = 1000  # after what was counted, which the writer reads again: some 20 ms

# `kept`: what a call keeps now. `seen`: when a call began, and its last evidence: how old it is. `gone`: bodies that
# a dry run pretends to take away. `shared`: erased for one call and still kept by another. `named`, `loose`: chunks of bodies, of none.
_TABLES: Final = """
    PRAGMA temp_store = FILE;
    CREATE TEMP TABLE kept(call TEXT, which TEXT, digest TEXT, PRIMARY KEY(call, which, digest)) WITHOUT ROWID;
    CREATE INDEX temp.kept_by_digest ON kept(digest, call);
    CREATE TEMP TABLE seen(call TEXT PRIMARY KEY, began_ms INTEGER, last_ms INTEGER) WITHOUT ROWID;
    CREATE TEMP TABLE gone(digest TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TEMP TABLE shared(digest TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TEMP TABLE named(digest BLOB PRIMARY KEY) WITHOUT ROWID;
    CREATE TEMP TABLE loose(digest BLOB PRIMARY KEY, bytes INTEGER) WITHOUT ROWID;"""
_SEEN: Final = "INSERT INTO seen VALUES(?1, ?2, ?2) ON CONFLICT DO UPDATE SET last_ms = ?2"
_OLD: Final = """
    SELECT call, began_ms FROM seen WHERE call > ?1 AND last_ms <= ?2
      AND EXISTS (SELECT 1 FROM kept WHERE kept.call = seen.call) ORDER BY call LIMIT ?3"""
_COUNT_OLD: Final = """
    SELECT count(*) FROM seen WHERE last_ms <= ?
      AND EXISTS (SELECT 1 FROM kept WHERE kept.call = seen.call)"""
_KEPT_OF: Final = "SELECT which, digest FROM kept WHERE call = ? ORDER BY which, digest"
_KEEPERS: Final = "SELECT call FROM kept WHERE digest = ?"
_BODY_CHUNKS: Final = "SELECT chunks FROM body WHERE digest NOT IN (SELECT digest FROM gone)"
_FIND_LOOSE: Final = """
    INSERT INTO loose SELECT digest, length(frame) FROM chunk WHERE digest NOT IN (SELECT digest FROM named)"""
_LOOSE: Final = "SELECT digest, bytes FROM loose ORDER BY digest LIMIT ?"

Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, how much there is


def kept_body(recorded: Recorded) -> tuple[str, Body] | None:
    """Which body the event keeps. One that was counted and not kept has no bytes, so it never gets a tombstone either."""
    match recorded.event:
        case CallManifest(body=body) if body.kept:
            return "request", body
        case AttemptObserved(body=Body() as body) if body.kept:
            return "response", body
        case _:
            return None


# --- the writer's side: inside its transaction ---------------------------------------------------------------------------


def named_since(db: sqlite3.Connection, counted_through: int) -> frozenset[Digest]:
    """The bodies that later events keep. Raises ConflictError where the count is too old, or somebody else erases too."""
    newest = db.execute(queries.NEWEST_EVENT).fetchone()
    later = (newest[0] if newest else 0) - counted_through
    if not 0 <= later <= OUTRUN_EVENTS:
        raise ConflictError(f"{later} events were written since what is kept was counted")
    events = queries.read_events(db.execute(queries.KEEPING_AFTER, (counted_through, counted_through + later)))
    if any(isinstance(recorded.event, BodyErased) for recorded in events):
        raise ConflictError("bodies were erased since what is kept was counted")
    return frozenset(kept[1].digest for recorded in events if (kept := kept_body(recorded)) is not None)


def erase(db: sqlite3.Connection, erasure: Erasure, named: frozenset[Digest]) -> Erased:
    """Takes away what of it is not named. Gone already is fine."""
    sizes = _removed(db, queries.ERASE_BODY, (digest for digest in erasure.bodies if digest not in named))
    spared = {chunk for digest in named for chunk in _chunks_of(db, digest)} if erasure.chunks else set()
    frames = _removed(db, queries.ERASE_CHUNK, (chunk for chunk in erasure.chunks if chunk not in spared))
    return Erased(len(sizes), sum(sizes), len(frames), sum(frames))


def _removed(db: sqlite3.Connection, statement: str, digests: Iterable[str | bytes]) -> list[int]:
    return [size for digest in digests for (size,) in db.execute(statement, (digest,)).fetchall()]


def _chunks_of(db: sqlite3.Connection, digest: Digest) -> Iterator[bytes]:
    row = db.execute(queries.FIND_BODY, (digest,)).fetchone()
    return chunk_digests(row[0]) if row else iter(())


# --- the plan: beside the writer -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Page:
    """The next calls, in order. `shared`: bodies whose bytes stay for now, because another call keeps them too."""

    tombstones: tuple[tuple[CallId, str, Digest], ...]
    bodies: tuple[tuple[Digest, int], ...]
    skipped: tuple[
        tuple[CallId, int], ...
    ]  # nobody continues them, and what became of them is not proven; when they began
    looked_at: int
    last: CallId
    counted_through: int

    @property
    def shared(self) -> frozenset[Digest]:
        return frozenset(digest for _, _, digest in self.tombstones).difference(digest for digest, _ in self.bodies)

    @property
    def calls(self) -> int:
        return len({call for call, _, _ in self.tombstones})

    @property
    def erased(self) -> Erased:
        """What it takes away, if nothing comes between."""
        return Erased(bodies=len(self.bodies), body_bytes=sum(size for _, size in self.bodies))

    def append(self, why: str, by: str) -> Append:
        entries = tuple(
            Entry(call, None, BodyErased(digest, which, why, by))  # type: ignore[arg-type]
            for call, which, digest in self.tombstones
        )
        return Append(entries, erasure=Erasure(self.counted_through, tuple(digest for digest, _ in self.bodies)))


class Plan:
    """What may go of the calls whose last evidence (manifest, observation, completion) is of up to `through_ms`."""

    def __init__(self, db: sqlite3.Connection, through_ms: int) -> None:
        self._db, self._through_ms = db, through_ms
        self._counted, self._after = 0, CallId("")
        self._sweeping = False
        db.executescript(_TABLES)

    def count(self, progress: Progress) -> None:
        """Every event that was not counted yet: all of them at first, then what came since."""
        (newest,) = self._db.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()
        while self._counted < newest:
            progress("events", self._counted, newest)
            with _snapshot(self._db):
                upto = min(self._counted + COUNTED_EVENTS, newest)
                for recorded in queries.read_events(self._db.execute(queries.KEEPING_AFTER, (self._counted, upto))):
                    self._count(recorded)
            self._counted = upto

    def _count(self, recorded: Recorded) -> None:
        if (kept := kept_body(recorded)) is not None:
            which, body = kept
            self._db.execute("INSERT OR IGNORE INTO kept VALUES(?, ?, ?)", (recorded.call, which, body.digest))
            if self._sweeping:
                self._spare(body.digest)
        match recorded.event:
            case BodyErased(digest=digest, which=which):
                self._forget(recorded.call or CallId(""), which, digest)
            case CallManifest() | AttemptObserved() | CallCompleted():
                self._db.execute(_SEEN, (recorded.call, recorded.at_ms))
            case _:
                pass

    def _forget(self, call: CallId, which: str, digest: Digest) -> None:
        self._db.execute("DELETE FROM kept WHERE call = ? AND which = ? AND digest = ?", (call, which, digest))

    def _spare(self, digest: Digest) -> None:
        self._db.executemany("DELETE FROM loose WHERE digest = ?", [(each,) for each in _chunks_of(self._db, digest)])

    def old_calls(self) -> int:
        """How many calls the pages go through; known once all is counted."""
        return int(self._db.execute(_COUNT_OLD, (self._through_ms,)).fetchone()[0])

    def page(self) -> Page | None:
        """The calls after those that are done with; None at the end."""
        epochs = queries.epochs_of(queries.ledger_events(self._db))
        rows = self._db.execute(_OLD, (self._after, self._through_ms, PAGE_CALLS)).fetchall()
        tombstones: list[tuple[CallId, str, Digest]] = []
        skipped = []
        last, looked_at = self._after, 0
        for name, began_ms in rows:
            call = CallId(name)
            kept = self._db.execute(_KEPT_OF, (call,)).fetchall()
            if tombstones and len(tombstones) + len(kept) > PAGE_BODIES:
                break
            state = queries.state_of(self._db, call, epochs)
            if state is not None and state.is_erasable:
                tombstones += ((call, which, Digest(digest)) for which, digest in kept)
            else:
                skipped.append((call, began_ms))
            last, looked_at = call, looked_at + 1
        if not rows:
            return None
        bodies = tuple(self._let_go(tombstones))
        return Page(tuple(tombstones), bodies, tuple(skipped), looked_at, last, self._counted)

    def _let_go(self, tombstones: list[tuple[CallId, str, Digest]]) -> Iterator[tuple[Digest, int]]:
        """Those of the bodies that nobody keeps besides these calls, and their sizes."""
        calls = {call for call, _, _ in tombstones}
        for digest in dict.fromkeys(digest for _, _, digest in tombstones):
            if any(call not in calls for (call,) in self._db.execute(_KEEPERS, (digest,))):
                continue
            for (size,) in self._db.execute("SELECT size FROM body WHERE digest = ?", (digest,)):
                yield digest, size

    def done(self, page: Page) -> None:
        """Go on behind it. That its bodies are gone, the next count reads in its events."""
        self._db.executemany("INSERT OR IGNORE INTO shared VALUES(?)", [(digest,) for digest in page.shared])
        self._db.executemany("DELETE FROM shared WHERE digest = ?", [(digest,) for digest, _ in page.bodies])
        self._after = page.last

    def kept_elsewhere(self) -> int:
        """How many bodies have tombstones of this prune and stay, because a call that it leaves alone keeps them too."""
        return int(self._db.execute("SELECT count(*) FROM shared").fetchone()[0])

    def pretend(self, page: Page) -> None:
        """For a dry run, where no event says so."""
        with _snapshot(self._db):
            for call, which, digest in page.tombstones:
                self._forget(call, which, digest)
            self._db.executemany("INSERT OR IGNORE INTO gone VALUES(?)", [(digest,) for digest, _ in page.bodies])
        self.done(page)

    def find_loose(self, progress: Progress) -> tuple[int, int]:
        """Chunks that belong to no body, and what they take in the file; after the last page."""
        (bodies,) = self._db.execute("SELECT count(*) FROM body").fetchone()
        with _snapshot(self._db):
            for done, (chunks,) in enumerate(self._db.execute(_BODY_CHUNKS)):
                progress("bodies", done, bodies)
                self._db.executemany(
                    "INSERT OR IGNORE INTO named VALUES(?)", [(each,) for each in set(chunk_digests(chunks))]
                )
            self._db.execute(_FIND_LOOSE)
        self._sweeping = True
        count, size = self._db.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM loose").fetchone()
        return count, size

    def batch(self) -> Append | None:
        """The next chunks to take away."""
        rows = self._db.execute(_LOOSE, (BATCH_CHUNKS,)).fetchall()
        return Append((), erasure=Erasure(self._counted, chunks=tuple(digest for digest, _ in rows))) if rows else None

    def swept(self, batch: Append) -> None:
        assert batch.erasure is not None
        self._db.executemany("DELETE FROM loose WHERE digest = ?", [(chunk,) for chunk in batch.erasure.chunks])

    def free_bytes(self) -> int:
        """Pages of the file that are used again before it grows."""
        (pages,), (size,) = (self._db.execute(f"PRAGMA {name}").fetchone() for name in ("freelist_count", "page_size"))
        return int(pages * size)


@contextmanager
def _snapshot(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("COMMIT")  # temporary tables only: the ledger is open for reading


@contextmanager
def plan(ledger: Path, through_ms: int) -> Iterator[Plan]:
    """On a connection of its own that can write nothing but its temporary tables."""
    with closing(sqlite3.connect(f"file:{quote(str(ledger))}?mode=ro", uri=True, isolation_level=None)) as db:
        db.text_factory = queries.text_of
        yield Plan(db, through_ms)
