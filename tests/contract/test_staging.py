"""Large bodies go into the ledger ahead of their event, in batches; on a full disk they do not go at all."""

import io
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from blake3 import blake3

from ledger.bodies import INLINE_LIMIT_BYTES, STAGE_BYTES, pack, packer_of
from ledger.errors import NoRoomError
from ledger.ids import Key
from ledger.reader import open_reader
from ledger.reserve import Reserve
from ledger.writer import CHECKPOINT_BYTES, Writer
from proxy.endpoints import EndpointClass
from proxy.preserve import Preserver
from tests.harness.ledgers import NOW_MS, REQUESTED, call_id, claim_op, start, state_dir_in


@dataclass
class Noise:
    """A source of so many bytes that do not repeat."""

    size: int

    def read_at(self, offset: int, size: int) -> bytes:
        return os.urandom(min(size, self.size - offset))


async def test_staged_body_is_read_back_whole(tmp_path: Path) -> None:
    """Several batches, the same chunk in more than one of them, and what the event names afterwards."""
    state_dir, half = state_dir_in(tmp_path), os.urandom(3 * STAGE_BYTES)
    recovered = start(state_dir)
    writer = Writer(recovered.store, recovered.receipts, state_dir.wal, lambda: NOW_MS)
    async with writer.staged(packer_of(io.BytesIO(half + half)), 2 * len(half)) as packed:
        await writer.append(replace(claim_op(), bodies=(packed,)))
    await writer.close()
    async with open_reader(state_dir.ledger) as reader:
        whole = b"".join([piece async for piece in reader.body(packed.digest)])
    assert (whole, packed.digest) == (half + half, blake3(half + half).hexdigest())


async def test_full_disk_keeps_no_large_body_and_leaves_the_log_ahead_of_the_file(tmp_path: Path) -> None:
    """Room is what commits need: nothing is staged, and a checkpoint, which copies pages into the file, waits."""
    state_dir, full = state_dir_in(tmp_path), Reserve(tmp_path / "reserve", 1)
    full._low = 2**62
    recovered = start(state_dir)
    writer = Writer(recovered.store, recovered.receipts, state_dir.wal, lambda: NOW_MS, full)
    before = state_dir.ledger.stat().st_size
    with pytest.raises(NoRoomError):
        async with writer.staged(packer_of(io.BytesIO(os.urandom(STAGE_BYTES))), STAGE_BYTES):
            pass
    assert writer.staging == 0  # what was staged of it may be swept
    for number in range(2 * CHECKPOINT_BYTES // STAGE_BYTES):
        claim = claim_op(call_id(number + 1), replace(REQUESTED, key=Key(f"k{number}")))
        await writer.append(replace(claim, bodies=(pack(os.urandom(STAGE_BYTES)),)))
    assert state_dir.wal.stat().st_size > CHECKPOINT_BYTES
    assert state_dir.ledger.stat().st_size == before
    full._low = 0
    await writer.append(claim_op(call_id(1000), replace(REQUESTED, key=Key("last"))))
    await writer.close()
    assert state_dir.ledger.stat().st_size > CHECKPOINT_BYTES


@pytest.mark.parametrize(("size", "staging"), [(1, 0), (INLINE_LIMIT_BYTES + 1, 0), (STAGE_BYTES + 1, 1)])
async def test_only_a_body_that_is_stored_ahead_holds_up_a_sweep(size: int, staging: int, tmp_path: Path) -> None:
    """Until its event is appended; a small one comes with its event."""
    state_dir = state_dir_in(tmp_path)
    recovered = start(state_dir)
    writer = Writer(recovered.store, recovered.receipts, state_dir.wal, lambda: NOW_MS)
    preserver = Preserver(writer, 100 * STAGE_BYTES)
    async with AsyncExitStack() as staged:
        body, packed = await preserver.preserved(Noise(size), EndpointClass.GENERATE, staged)
        assert (writer.staging, body.size, len(packed)) == (staging, size, 1)
    assert writer.staging == 0
    await writer.close()
