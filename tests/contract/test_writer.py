"""The one writer: group commit, one winner per head, receipts in order, and poison that never hangs anybody."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ledger.codec import digest_of
from ledger.errors import (
    ClaimLostError,
    ConflictError,
    IllegalTransitionError,
    PoisonedError,
    UnrecordableEventError,
)
from ledger.events import AttemptStarted
from ledger.ids import Key
from ledger.operations import Append, Appended, Entry
from ledger.reader import open_reader
from ledger.receipts import read_since
from ledger.writer import BATCH_LIMIT, Writer
from tests.harness.ledgers import (
    FIRST,
    KEY,
    MANIFEST,
    NOW_MS,
    REQUESTED,
    SCOPE,
    call_id,
    claim_op,
    observed_op,
    run_child,
    start,
    started,
    started_op,
    state_dir_in,
)

TASKS = 50


@asynccontextmanager
async def writer_in(root: Path) -> AsyncIterator[Writer]:
    state_dir = state_dir_in(root)
    recovered = start(state_dir)
    writer = Writer(recovered.store, recovered.receipts, state_dir.wal, lambda: NOW_MS)
    try:
        yield writer
    finally:
        await writer.close()


async def test_many_claims_of_one_key_make_one_call(tmp_path: Path) -> None:
    """Fifty tasks read the same head: one wins, the others are told to read again, one call is recorded."""
    async with writer_in(tmp_path) as writer:

        async def claim(number: int) -> Appended:
            return await writer.append(claim_op(call_id(number)))

        outcomes = await asyncio.gather(*(claim(number) for number in range(TASKS)), return_exceptions=True)
        assert sum(isinstance(outcome, Appended) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == TASKS - 1
        async with open_reader(tmp_path / "ledger.db") as reader:
            history = await reader.history(SCOPE, KEY)
    assert len(history.calls) == 1
    assert history.last_occurrence == 1


async def test_claims_of_many_keys_are_all_recorded_in_order(tmp_path: Path) -> None:
    """More than one batch: sequence numbers follow the order of the calls to `append`, without gaps."""
    operations = [
        claim_op(call_id(number), replace(REQUESTED, key=Key(f"key {number}"))) for number in range(BATCH_LIMIT * 2 + 5)
    ]
    async with writer_in(tmp_path) as writer:
        outcomes = await asyncio.gather(*map(writer.append, operations))
    assert [item.seq for done in outcomes for item in done.recorded] == list(range(2, 2 + 2 * len(operations)))


BROKEN: list[tuple[Append, type[Exception]]] = [
    (Append((Entry(FIRST, None, MANIFEST), Entry(FIRST, None, MANIFEST))), IllegalTransitionError),
    (Append((Entry(FIRST, 2, AttemptStarted(1)),)), ClaimLostError),
    (claim_op(call_id(7)), ConflictError),
    (claim_op(call_id(8), replace(REQUESTED, key=Key("new"), generation=2)), IllegalTransitionError),
    (Append((Entry(FIRST, None, replace(MANIFEST, max_output_tokens=10**30)),)), UnrecordableEventError),
]


@pytest.mark.parametrize(("broken", "error"), BROKEN)
async def test_failing_operation_leaves_its_batch_alone(broken: Append, error: type[Exception], tmp_path: Path) -> None:
    """Handed over in one go, so in one group commit: the neighbours are durable, the writer lives on."""
    async with writer_in(tmp_path) as writer:
        neighbours = [claim_op(call_id(number), replace(REQUESTED, key=Key(f"k{number}"))) for number in range(20, 25)]
        operations = [claim_op(), neighbours[0], broken, *neighbours[1:], started_op()]
        outcomes = await asyncio.gather(*map(writer.append, operations), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Appended, Appended, error, *[Appended] * 5]
        assert not writer.poisoned.done()
        async with open_reader(tmp_path / "ledger.db") as reader:
            assert await reader.counts() == (6, 1 + 2 * 6 + 1)


async def test_receipts_witness_their_events(tmp_path: Path) -> None:
    """A `sent` and a `received` line, each naming the event it stands beside by its chain link."""
    async with writer_in(tmp_path) as writer:
        await writer.append(claim_op())
        sent = await writer.append(started_op())
        received = await writer.append(observed_op())
    lines = [line.row for line in read_since(tmp_path / "receipts", 2)]
    assert [line["kind"] for line in lines] == ["sent", "received"]
    for line, done in zip(lines, (sent, received), strict=True):
        assert (line["seq"], line["chain"]) == (done.recorded[-1].seq, done.recorded[-1].chain)
        assert (line["call"], line["attempt"], line["scope"], line["key"]) == (FIRST, 1, SCOPE, KEY)
        assert (line["occurrence"], line["generation"], line["upstream"]) == (1, 1, "openai")
        assert line["digest"] == digest_of(b"a body")


async def test_failed_operation_leaves_no_receipt(tmp_path: Path) -> None:
    """A start that lost its claim was not sent, so nothing may say that it was."""
    async with writer_in(tmp_path) as writer:
        await writer.append(claim_op())
        await writer.append(started_op())
        with pytest.raises(ClaimLostError):
            await writer.append(started_op(attempt=2))
    assert len(list(read_since(tmp_path / "receipts", 1))) == 2


async def test_cancelled_waiter_does_not_undo_its_operation(tmp_path: Path) -> None:
    """The client went away while its claim was queued: the claim stands."""
    async with writer_in(tmp_path) as writer:
        future = writer.append(claim_op())
        future.cancel()
        await writer.append(started_op())
        async with open_reader(tmp_path / "ledger.db") as reader:
            assert await reader.call(FIRST) is not None


async def test_post_of_an_illegal_fact_is_dropped_silently(tmp_path: Path) -> None:
    """Nobody waits for it; the ladder moved on; the writer lives on."""
    async with writer_in(tmp_path) as writer:
        done = await asyncio.wait([writer.post(observed_op())])
        assert isinstance(next(iter(done[0])).exception(), IllegalTransitionError)
        await writer.append(claim_op())


async def test_closing_finishes_what_is_queued_and_refuses_what_comes_later(tmp_path: Path) -> None:
    """Nothing handed over before is lost, nothing after it waits for ever, and the WAL is folded into the file."""
    async with writer_in(tmp_path) as writer:
        operations = [claim_op(call_id(number), replace(REQUESTED, key=Key(f"k{number}"))) for number in range(600)]
        futures = [writer.append(op) for op in operations]
        await asyncio.wait_for(writer.close(), 20)
        assert len(await asyncio.gather(*futures)) == 600
        with pytest.raises(PoisonedError, match="closed"):
            await asyncio.wait_for(asyncio.shield(writer.append(claim_op())), 5)
        assert not (tmp_path / "ledger.db-wal").exists()
    with started(state_dir_in(tmp_path)) as recovered:
        assert recovered.store.head.seq == 1 + 2 * 600 + 2


POISONS = [
    ("before-commit=eio@3", "Errno 5"),
    ("before-commit=enospc@3", "Errno 28"),
    ("after-commit=eio@3", "Errno 5"),
    ("before-receipt-sync=eio", "Errno 5"),
    ("after-sent-receipt=eio", "Errno 5"),
]


@pytest.mark.parametrize(("failpoint", "error"), POISONS)
def test_failed_commit_or_sync_poisons_everybody(failpoint: str, error: str, tmp_path: Path) -> None:
    """Every waiter of the batch, every later append and every one after `close` is told; `close` returns."""
    state_dir_in(tmp_path)
    # claim is the writer's first commit; the burst of operations and one start follows in one or two.
    ended = run_child(tmp_path, "start", "claim:1", "claim:2", "burst:5", failpoints=failpoint)
    assert ended.code == 0, ended.stderr
    answer = ended.answers[-1]
    assert error.split()[1] in answer["poisoned"]
    assert answer["outcomes"][-3:] == [True, True, True]  # the start whose receipt failed, and all that came later


def test_operations_of_a_poisoned_batch_are_unknown_not_undone(tmp_path: Path) -> None:
    """After a commit that was not confirmed, the start finds what is on disk and calls it unknown."""
    state_dir_in(tmp_path)
    ended = run_child(tmp_path, "start", "claim:1", "burst:0", failpoints="before-receipt-sync=eio")
    assert ended.answers[-1]["outcomes"] == [True, True, True]
    with started(state_dir_in(tmp_path)) as recovered:
        state = recovered.store.state(call_id(1))
    assert state is not None
    assert [attempt.number for attempt in state.attempts] == [1]


async def test_store_that_breaks_underneath_poisons(tmp_path: Path) -> None:
    """Any error that is not the operation's own makes durability unknown: here the disk's file handle is gone."""
    state_dir = state_dir_in(tmp_path)
    recovered = start(state_dir)
    writer = Writer(recovered.store, recovered.receipts, state_dir.wal, lambda: NOW_MS)
    await writer.append(claim_op())
    recovered.receipts.close()
    with pytest.raises(PoisonedError):
        await writer.append(started_op())
    assert isinstance(await asyncio.wait_for(writer.poisoned, 5), OSError)
    with pytest.raises(PoisonedError):
        await writer.append(claim_op(call_id(2), replace(REQUESTED, key=Key("k"))))
    await asyncio.wait_for(writer.close(), 5)
    recovered.store.close()


@pytest.mark.parametrize("kind", ["sent", "received"])
async def test_sent_receipt_is_synced_and_received_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    """The log's descriptor becomes /dev/null: it takes every write and no fdatasync, so what waits for the sync fails."""
    state_dir = state_dir_in(tmp_path)
    recovered = start(state_dir)
    writer = Writer(recovered.store, recovered.receipts, state_dir.wal, lambda: NOW_MS)
    await writer.append(claim_op())
    await writer.append(started_op())
    await writer.append(claim_op(call_id(2), replace(REQUESTED, key=Key("k"))))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, recovered.receipts._fd)
    os.close(nowhere)
    if kind == "received":
        await writer.append(observed_op())
    else:
        with pytest.raises(PoisonedError):
            await writer.append(started_op(call_id(2)))
    assert isinstance(
        await asyncio.wait_for(writer.poisoned, 5), OSError
    )  # `received` is synced too, before the next write
    await asyncio.wait_for(writer.close(), 5)
    recovered.store.close()
    recovered.receipts.close()
