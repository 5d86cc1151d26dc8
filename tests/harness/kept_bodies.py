"""Bodies as the ledger gives them back, in pieces: what was sent and answered, held against what both ends saw."""

import asyncio
from collections.abc import Callable, Iterable

from blake3 import blake3

from ledger.errors import UnreadableRecordError
from ledger.ids import Digest
from ledger.reader import open_reader
from tests.harness.processes import Rig


def digest_of_pieces(pieces: Iterable[bytes]) -> str:
    whole = blake3()
    for piece in pieces:
        whole.update(piece)
    return whole.hexdigest()


def read_back(rig: Rig, digest: str, take: Callable[[bytes], object]) -> None:
    """Gives `take` the body's pieces in order. Raises UnreadableRecordError where it is not kept."""

    async def read() -> None:
        async with open_reader(rig.paths.ledger) as reader:
            async for piece in reader.body(Digest(digest)):
                take(piece)

    asyncio.run(read())


def is_kept(rig: Rig, digest: str) -> bool:
    """Whole, with every chunk."""
    whole = blake3()
    try:
        read_back(rig, digest, whole.update)
    except UnreadableRecordError:
        return False
    return whole.hexdigest() == digest
