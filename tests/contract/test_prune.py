"""Erasing bodies on a real ledger: what goes, what stays, what a race or SIGKILL leaves. The verifier agrees each time."""

import itertools
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from ledger import bodies, queries, retention
from ledger.codec import digest_of
from ledger.epochs import StateDir
from ledger.errors import ConflictError, IllegalTransitionError
from ledger.events import BodyErased
from ledger.operations import Append, Entry
from ledger.reader import open_reader
from ledger.verifier import Verdict
from proxy import control, evidence, pruning
from proxy.control import StagingError
from tests.harness import prunes
from tests.harness.ledgers import NOW_MS
from tests.harness.prunes import (
    ANSWERS,
    BILLED,
    CANARY,
    CUT,
    ERASABLE,
    LOST,
    NEXT_TURN,
    REFUSED,
    REQUESTS,
    SKIPPED,
    Past,
    past_in,
    prune_process,
    silent,
)

SIGKILLED: Final = -9
PASSINGS_LIMIT: Final = 20
# Each is passed at least so often by one prune with small pages, whoever dies at the last of them.
POINTS: Final = {"before-commit": 5, "after-commit": 5, "prune-erased": 1, "prune-swept": 2}
ENDS: Final = dict.fromkeys(ERASABLE, ("closed", "happened", "none")) | {
    REFUSED: ("completed", "absent", "start_call"),
    prunes.FAILED: ("superseded", "answered", "none"),
    prunes.UNREACHED: ("superseded", "absent", "none"),
    CUT: ("superseded", "happened", "none"),
    LOST: ("effect_unknown", "unknown", "reconcile_effect"),
    NEXT_TURN: ("effect_unknown", "unknown", "reconcile_effect"),
    BILLED: ("completed", "answered", "start_call"),
    prunes.MINTED: ("completed", "happened", "none"),
}


@pytest.fixture
async def state_dir(tmp_path: Path) -> StateDir:
    return await prunes.make(tmp_path / "state")


@pytest.fixture
async def past(tmp_path: Path) -> AsyncIterator[Past]:
    """Its writer lives."""
    async with past_in(prunes.ledgers.state_dir_in(tmp_path / "state")) as past:
        await past.happen()
        yield past


def ledger_of(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


def kept_bodies() -> set[str]:
    """What must be there in the end: all that a skipped call keeps."""
    kept = [REQUESTS[call] for call in SKIPPED] + [ANSWERS[call] for call in SKIPPED if call in ANSWERS]
    return {digest_of(body) for body in kept}


def stored(ledger: Path) -> tuple[set[str], set[str]]:
    """Bodies and chunks by digest."""
    with closing(sqlite3.connect(ledger)) as db:
        chunks = {digest.hex() for (digest,) in db.execute("SELECT digest FROM chunk")}
        return {digest for (digest,) in db.execute("SELECT digest FROM body")}, chunks


def chunks_of(*contents: bytes) -> set[str]:
    return {digest.hex() for body in contents for digest in bodies.pack(body).order}


def tombstones(ledger: Path) -> list[tuple[str, str, str]]:
    with closing(sqlite3.connect(ledger)) as db:
        records = [json.loads(record) for (record,) in db.execute("SELECT record FROM event ORDER BY seq")]
    erased = [record for record in records if record["kind"] == "body.erased"]
    return sorted((record["call"], record["data"]["which"], record["data"]["digest"]) for record in erased)


async def rows(state_dir: StateDir) -> dict[str, tuple[str, str, str]]:
    async with open_reader(state_dir.ledger) as reader:
        states = await reader.newest(100)
    return {state.call: (str(state.stage), str(state.effect), str(state.next_operation)) for state in states}


async def assert_sound(state_dir: StateDir) -> None:
    report = await evidence.verify(state_dir, None, silent)
    assert (report.verdict, report.findings) == (Verdict.OK, ())


async def assert_pruned(state_dir: StateDir) -> None:
    """The one end that every way leads to."""
    kept, chunks = stored(state_dir.ledger)
    assert kept == kept_bodies()
    assert chunks == chunks_of(*(REQUESTS[call] for call in SKIPPED), ANSWERS[BILLED])
    expected = [(call, "request", digest_of(REQUESTS[call])) for call in ERASABLE]
    expected += [(call, "response", digest_of(ANSWERS[call])) for call in ERASABLE if call in ANSWERS]
    assert tombstones(state_dir.ledger) == sorted(expected)
    assert await rows(state_dir) == ENDS
    await assert_sound(state_dir)


async def test_prune_erases_what_is_proven_and_keeps_what_others_need(state_dir: StateDir) -> None:
    """Stages, shared bodies, shared chunks, unkept bodies; the index rebuilt from events is the same."""
    await assert_sound(state_dir)
    done = prune_process(state_dir, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["calls"], document["tombstones"], document["skipped"]) == (10, 19, 3)
    assert document["oldest_skipped"] == LOST
    assert document["kept_elsewhere"] == 1  # LOST keeps what SAME_ANSWER asked
    await assert_pruned(state_dir)
    with closing(sqlite3.connect(state_dir.ledger, isolation_level=None)) as db:
        before = db.execute(queries.ALL_INDEX_ROWS).fetchall()
        queries.rebuild_index(db)
        assert db.execute(queries.ALL_INDEX_ROWS).fetchall() == before


async def test_unresolved_call_keeps_its_bytes_readable(state_dir: StateDir) -> None:
    """Whole, although an erased call had the same chunks."""
    assert prune_process(state_dir).returncode == 0
    async with open_reader(state_dir.ledger) as reader:
        for call in (LOST, NEXT_TURN):
            digest = bodies.pack(REQUESTS[call]).digest
            assert b"".join([piece async for piece in reader.body(digest)]) == REQUESTS[call]


async def test_erased_bytes_are_gone_from_the_files(state_dir: StateDir) -> None:
    """Overwritten, not only unlinked: nothing of them can be found."""
    files = [state_dir.ledger, state_dir.wal]
    needle = CANARY[1000:1064]
    assert any(needle in path.read_bytes() for path in files if path.exists())
    assert prune_process(state_dir).returncode == 0
    assert not any(needle in path.read_bytes() for path in files if path.exists())


async def test_dry_run_says_the_same_and_changes_nothing(state_dir: StateDir) -> None:
    """Without the lock: nothing is recovered either."""
    before = {path.name: path.read_bytes() for path in (state_dir.ledger, *state_dir.receipts.iterdir())}
    foreseen = json.loads(prune_process(state_dir, "--dry-run", "--json").stdout)
    assert {path.name: path.read_bytes() for path in (state_dir.ledger, *state_dir.receipts.iterdir())} == before
    done = json.loads(prune_process(state_dir, "--json").stdout)
    for name in ("completed_through", "dry_run", "free_bytes"):
        del foreseen[name], done[name]
    assert foreseen == done
    again = json.loads(prune_process(state_dir, "--json").stdout)
    assert (again["calls"], again["bodies"], again["chunks"], again["skipped"]) == (0, 0, 0, 3)


@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("point", POINTS)
async def test_prune_killed_anywhere_leaves_a_sound_ledger_and_goes_on(point: str, step: int, tmp_path: Path) -> None:
    """SIGKILL at every passing of the point (by default every other one), until a prune gets through; then once more to the same end."""
    for passing in range(1, PASSINGS_LIMIT, step):
        state_dir = await prunes.make(tmp_path / str(passing))
        done = prune_process(state_dir, failpoints=f"{point}=kill@{passing}")
        await assert_sound(state_dir)
        assert done.returncode in (0, SIGKILLED), done.stderr
        if done.returncode == 0:
            break
        assert prune_process(state_dir).returncode == 0
        await assert_pruned(state_dir)
    assert (done.returncode, passing > POINTS[point]) == (0, True)
    await assert_pruned(state_dir)


# --- races: what comes between a count and what was planned by it ------------------------------------------------------------


def counted(plan: retention.Plan) -> retention.Page:
    plan.count(silent)
    page = plan.page()
    assert page is not None
    return page


async def test_body_named_since_the_count_is_spared(past: Past, tmp_path: Path) -> None:
    """A new call with the same request: the tombstone stands, the bytes stay for it, and its chunks too."""
    with retention.plan(ledger_of(tmp_path), NOW_MS) as plan:
        page = counted(plan)
        await past.writer.append(prunes.request_again(50, CANARY))
        erased = (await past.writer.append(page.append("retention", "ada"))).erased
        assert erased is not None
        assert erased.bodies == len(page.bodies) - 1
        plan.done(page)
        await prunes.prune(past.writer, plan)
    assert await read(past, CANARY) == CANARY


async def read(past: Past, body: bytes) -> bytes:
    return b"".join([piece async for piece in past.reader.body(bodies.pack(body).digest)])


async def test_chunk_named_since_the_count_is_spared(past: Past, tmp_path: Path) -> None:
    """Loose when it was counted; a body that uses it came before the batch did."""
    with retention.plan(ledger_of(tmp_path), NOW_MS) as plan:
        await past.writer.append(counted(plan).append("retention", "ada"))
        plan.count(silent)
        found, _ = plan.find_loose(silent)
        batch = plan.batch()
        assert batch is not None
        await past.writer.append(prunes.request_again(50, CANARY))
        erased = (await past.writer.append(batch)).erased
        assert erased is not None
        assert erased.chunks == found - len(chunks_of(CANARY)) > 0
        plan.count(silent)
        assert plan.batch() is None or chunks_of(CANARY).isdisjoint(
            chunk.hex() for chunk in plan.batch().erasure.chunks
        )  # type: ignore[union-attr]
    assert await read(past, CANARY) == CANARY


async def test_chunks_are_not_swept_while_a_body_is_staged(past: Past, tmp_path: Path) -> None:
    """They may be its own; once its event stands they are spared by that, and what nobody named goes."""
    staged = b"".join(prunes.random.Random("staged").randbytes(1000) for _ in range(300))
    packer = bodies.Packer(staged[at : at + 8000] for at in range(0, len(staged), 8000))
    with retention.plan(ledger_of(tmp_path), 0) as plan:
        async with past.writer.staged(packer, 0):
            plan.count(silent)
            assert plan.page() is None
            plan.find_loose(silent)
            batch = plan.batch()
            assert batch is not None
            with pytest.raises(StagingError):
                await control.erase(past.writer, batch)
    assert (await control.erase(past.writer, batch)).chunks == len(batch.erasure.chunks)  # type: ignore[union-attr]


@pytest.mark.parametrize(("staged_for", "left"), [(2, None), (4, pruning.LEFT)])
async def test_sweep_waits_anew_for_a_quiet_moment_before_each_batch(
    staged_for: int, left: str | None, past: Past, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they take longer than it waits for one; where none comes at all, it says why it stopped."""
    monkeypatch.setattr(retention, "BATCH_CHUNKS", 5)
    monkeypatch.setattr(pruning, "STAGING_POLL_S", 0.001)
    monkeypatch.setattr(pruning, "STAGING_LIMIT_S", 0.003)
    busy = itertools.cycle((*[True] * staged_for, False))

    async def eraser(op: Append) -> Any:
        if next(busy):
            raise StagingError
        return await control.erase(past.writer, op)

    tally = pruning._Tally()
    with retention.plan(ledger_of(tmp_path), NOW_MS) as plan:
        await past.writer.append(counted(plan).append("retention", "ada"))
        await pruning._sweep(plan, eraser, tally, silent)
        assert (tally.left, plan.batch() is None) == (left, left is None)
    assert (tally.erased.chunks > 2 * retention.BATCH_CHUNKS) is (left is None)


async def test_second_prune_beside_one_conflicts_and_erases_nothing_twice(past: Past, tmp_path: Path) -> None:
    """Each body gets one tombstone; the slower one counts again and finds nothing left."""
    with retention.plan(ledger_of(tmp_path), NOW_MS) as plan, retention.plan(ledger_of(tmp_path), NOW_MS) as other:
        page, same = counted(plan), counted(other)
        await past.writer.append(page.append("retention", "ada"))
        before = tombstones(ledger_of(tmp_path))
        with pytest.raises(ConflictError, match="were erased since"):
            await past.writer.append(same.append("retention", "bob"))
        assert tombstones(ledger_of(tmp_path)) == before
        again = counted(other)
        assert (again.tombstones, again.bodies) == ((), ())


async def test_count_that_is_too_old_conflicts(past: Past, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer reads again only so many events; beyond them it is counted anew. So is a count of another ledger."""
    with retention.plan(ledger_of(tmp_path), NOW_MS) as plan:
        page = counted(plan)
        await past.writer.append(prunes.request_again(50, CANARY))
        monkeypatch.setattr(retention, "OUTRUN_EVENTS", 1)
        with pytest.raises(ConflictError, match="2 events were written"):
            await past.writer.append(page.append("retention", "ada"))
        from_the_future = Append((), erasure=retention.Erasure(10_000, page.append("", "").erasure.bodies))  # type: ignore[union-attr]
        with pytest.raises(ConflictError, match="events were written"):
            await past.writer.append(from_the_future)
    assert stored(ledger_of(tmp_path))[0] >= {digest_of(CANARY)}


@pytest.mark.parametrize("call", SKIPPED)
async def test_tombstone_of_a_call_that_is_not_proven_is_refused_and_changes_nothing(
    call: Any, past: Past, tmp_path: Path
) -> None:
    """With everything that stands in the same append."""
    with retention.plan(ledger_of(tmp_path), NOW_MS) as plan:
        page = counted(plan)
        before = stored(ledger_of(tmp_path)), tombstones(ledger_of(tmp_path))
        legal = page.append("retention", "ada")
        forged = Entry(call, None, BodyErased(digest_of(REQUESTS[call]), "request", "retention", "ada"))
        with pytest.raises(IllegalTransitionError):
            await past.writer.append(Append((*legal.entries, forged), erasure=legal.erasure))
        assert (stored(ledger_of(tmp_path)), tombstones(ledger_of(tmp_path))) == before


@pytest.mark.usefixtures("past")
async def test_only_calls_completed_by_then_are_erased(tmp_path: Path) -> None:
    """The age of a call is that of its last evidence: of its completion, where it has one."""
    with retention.plan(ledger_of(tmp_path), prunes.LONG_AGO_MS - 1) as plan:
        plan.count(silent)
        assert plan.page() is None
    with retention.plan(ledger_of(tmp_path), prunes.LONG_AGO_MS) as plan:
        assert counted(plan).calls == len(ERASABLE)


async def test_age_of_a_continued_call_is_its_own(past: Past, tmp_path: Path) -> None:
    """The call that continues it is as new as can be, and keeps what it needs itself: the same question."""
    past.at_ms = NOW_MS
    await past.send(prunes.LATER, LOST, **prunes.accepting(LOST, "on_unknown"))
    with retention.plan(ledger_of(tmp_path), prunes.LONG_AGO_MS) as plan:
        page = counted(plan)
        assert {call for call, _, _ in page.tombstones} == {*ERASABLE, LOST}
        assert {call for call, _ in page.skipped} == set(SKIPPED) - {LOST}
        await past.writer.append(page.append("retention", "ada"))
    assert await read(past, REQUESTS[LOST]) == REQUESTS[LOST]


async def test_observation_behind_an_erasure_is_legal_and_erased_by_the_next_prune(tmp_path: Path) -> None:
    """No proxy writes one (a flight that is alive is never superseded); if one did, nothing would contradict it."""
    state_dir = prunes.ledgers.state_dir_in(tmp_path / "state")
    async with past_in(state_dir) as past:
        await past.happen()
        await past.send(prunes.LATER, LOST, **prunes.accepting(LOST, "on_unknown"))
        await past.answer(prunes.LATER, 200, "happened")
        with retention.plan(ledger_of(tmp_path), NOW_MS) as plan:
            await prunes.prune(past.writer, plan)
        await past.observe(LOST, "partial", 200, b"at last")
        assert await read(past, b"at last") == b"at last"
    await assert_sound(state_dir)
    assert prune_process(state_dir).returncode == 0
    assert stored(state_dir.ledger)[0].isdisjoint({digest_of(b"at last"), digest_of(REQUESTS[LOST])})
    assert (await rows(state_dir))[LOST] == ("superseded", "happened", "none")
    await assert_sound(state_dir)
