"""What somebody who does not trust us is given: inspections on record, the bundle, and the independent verifier's verdict."""

import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ledger import bundle, verifier
from ledger.bundle import BundleError, Exported, Given
from ledger.epochs import StateDir
from ledger.reader import Reader, open_reader
from ledger.receipts import segments
from proxy import clock
from proxy.owner import alive_calls, alive_in
from proxy.views import call_detail, call_row, head_row

ROOM_FACTOR: Final = 4  # of the ledger's files: events once more in the plain, and what `calls` and `show` say of them
EXPORTS_LIMIT: Final = 5  # a start or a stop beside it ends within milliseconds
Progress = Callable[[int, int], None]


async def recorded(
    reader: Reader, beside: Reader, owner: dict[str, Any] | None
) -> AsyncGenerator[dict[str, Any], None]:
    """What `calls` and `show` say of every call, as lines of a bundle's inspections. `reader` is in a snapshot.

    `beside` is not: it sees the ledger's newest event right after, so that a reading which wrote would give itself away.
    """
    head = head_row(await reader.head())
    known = await reader.all_calls()

    async def line(what: str, document: dict[str, Any], **more: int) -> dict[str, Any]:
        after = None if owner else head_row(await beside.head())
        return {"what": what, "head": head, "head_after": after, **more, "document": document}

    for call in known:
        state = await reader.call(call)
        assert state is not None
        yield await line("calls", call_row(state, alive_in(owner, call)), of=len(known))
    for call in known:
        state = await reader.call(call)
        assert state is not None
        yield await line("show", call_detail(state, alive_in(owner, call), await reader.events(call)))


async def inspections(state_dir: StateDir) -> list[dict[str, Any]]:
    """All of it at this moment."""
    owner = await alive_calls(state_dir)
    async with open_reader(state_dir.ledger) as reader, open_reader(state_dir.ledger) as beside, reader.snapshot():
        return [line async for line in recorded(reader, beside, owner)]


async def head(state_dir: StateDir) -> dict[str, Any] | None:
    async with open_reader(state_dir.ledger) as reader:
        return head_row(await reader.head())


async def export(
    state_dir: StateDir,
    directory: Path,
    progress: Progress,
    provider_receipts: Path | None = None,
    earlier_inspections: Path | None = None,
) -> Exported:
    """Beside a living proxy or without one; appends nothing. Raises BundleError and what an unreadable ledger raises.

    Without an owner nothing may be written meanwhile, and the bundle says so. If something was, a proxy was just starting, or
    ending: then it is done again.
    """
    directory = _outside(state_dir, directory)
    async with open_reader(state_dir.ledger) as reader, open_reader(state_dir.ledger) as beside:
        for _ in range(EXPORTS_LIMIT):
            owner = await alive_calls(state_dir)
            lines = recorded(reader, beside, owner)
            given = Given(clock.now_ms(), owner is not None, lines, provider_receipts, earlier_inspections)
            made = await bundle.export(reader, state_dir.receipts, directory, given, progress)
            if owner is not None or await beside.head() == made.head:
                return made
            shutil.rmtree(directory)
            directory.mkdir(mode=0o700)
    raise BundleError(
        f"The ledger in {state_dir.root} keeps changing and nobody answers for it. Try again in a moment."
    )


def _outside(state_dir: StateDir, directory: Path) -> Path:
    if directory.absolute().is_relative_to(state_dir.root):
        raise BundleError(f"{directory} is inside the state directory. Name one outside it.")
    return bundle.new_directory(directory)


async def verify(
    state_dir: StateDir, work_dir: Path | None, progress: Progress, provider_receipts: Path | None = None
) -> verifier.Report:
    """Exports into a directory of its own, has the verifier read that, and removes it."""
    async with open_reader(state_dir.ledger) as reader:
        bodies = await reader.bodies_bytes()
    files = [state_dir.ledger, state_dir.wal]
    ledger = sum(path.stat().st_size for path in files if path.exists())
    needed = bodies + ROOM_FACTOR * ledger + sum(path.stat().st_size for path in segments(state_dir.receipts))
    with _room(work_dir, needed) as directory:
        await export(state_dir, directory, progress, provider_receipts)
        return verifier.verify(directory)


@contextmanager
def _room(work_dir: Path | None, needed_bytes: int) -> Iterator[Path]:
    parent = work_dir or Path(tempfile.gettempdir())
    try:
        free = shutil.disk_usage(parent).free
    except OSError as error:
        raise BundleError(
            f"{parent} cannot be used ({error.strerror}). Name another directory with --work-dir."
        ) from error
    if free < needed_bytes:
        raise BundleError(
            f"What is written out to be checked may take {needed_bytes // 2**20} MiB, and "
            f"{parent} has {free // 2**20} MiB free. Name a directory with more room with --work-dir."
        )
    with tempfile.TemporaryDirectory(prefix="sendonce-verify-", dir=parent) as directory:
        yield Path(directory)
