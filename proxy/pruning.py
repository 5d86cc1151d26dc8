"""`sendonce prune`: bodies of calls that were completed or continued long ago are erased; keys, digests and events stay.

What may go is counted here, in the process of whoever asked (`ledger/retention.py`). It is taken away by the owner: the
living one, asked page by page over its control socket, else this process under the lock, after recovery. A page is one
transaction, so admissions go on in between; what is written meanwhile makes a page conflict, and it is counted again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

from ledger import retention
from ledger.epochs import StateDir
from ledger.errors import ConflictError
from ledger.failpoints import passed
from ledger.ids import CallId
from ledger.operations import Append, Erased
from ledger.retention import Plan, Progress
from proxy import control, wiring
from proxy.control import OwnerUnreachableError, StagingError
from proxy.moments import moment_ms
from proxy.owner import NotFoundError, lock_unless_owned
from proxy.reconcile.operator import DecisionRefusedError
from proxy.settings import Settings
from proxy.views import instant

CONFLICTS_LIMIT: Final = 20  # of one page in a row: each is 1000 events written while one page was on its way
STAGING_LIMIT_S: Final = 10.0  # for a large body to be stored; the next prune sweeps what this one leaves
STAGING_POLL_S: Final = 0.1
DAYS_LIMIT: Final = 36500  # a century: more is a slip of the keyboard
LEFT: Final = "The chunks were left where they are: the proxy is storing a large body, which may need some. The next prune takes them."

Eraser = Callable[[Append], Awaitable[Erased]]


class BadAgeError(Exception):
    """No age that bodies can have; the message names the option and the remedy. Exit code 2."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Erase the bodies of calls that were completed, or continued, and are no younger; why and by whom goes on record."""

    through_ms: int
    why: str
    by: str
    dry_run: bool = False


@dataclass(slots=True)
class _Tally:
    calls: int = 0
    tombstones: int = 0
    erased: Erased = field(default_factory=Erased)
    skipped: int = 0
    oldest: tuple[int, CallId] | None = None
    left: str | None = None

    def add(self, page: retention.Page, erased: Erased) -> None:
        self.calls += page.calls
        self.tombstones += len(page.tombstones)
        self.took(erased)
        self.skipped += len(page.skipped)
        oldest = [(began_ms, call) for call, began_ms in page.skipped] + ([self.oldest] if self.oldest else [])
        self.oldest = min(oldest, default=None)

    def took(self, erased: Erased) -> None:
        before = self.erased
        self.erased = Erased(
            before.bodies + erased.bodies,
            before.body_bytes + erased.body_bytes,
            before.chunks + erased.chunks,
            before.chunk_bytes + erased.chunk_bytes,
        )


def through_ms(older_than_days: int | None, before: str | None, retention_days: int, now_ms: int) -> int:
    """The newest moment that is old enough. Raises BadAgeError."""
    if older_than_days is not None and before is not None:
        raise BadAgeError("--older-than and --before say the same in two ways. Give one of them.")
    if before is None:
        days = retention_days if older_than_days is None else older_than_days
        if not 0 <= days <= DAYS_LIMIT:
            raise BadAgeError(
                f"--older-than is {days}. Give days from 0, which is all that is complete, to {DAYS_LIMIT}."
            )
        return now_ms - int(timedelta(days=days).total_seconds() * 1000)
    at_ms = moment_ms(before, "--before")
    if at_ms > now_ms:
        raise BadAgeError(f"--before {before} is in the future. To erase all that is complete, give --older-than 0.")
    return at_ms - 1


async def prune(settings: Settings, ask: Ask, progress: Progress) -> dict[str, Any]:
    """What was done, or in a dry run would be. Raises DecisionRefusedError where it had to stop; run again, it goes on."""
    state_dir = wiring.state_dir_of(settings)
    if not state_dir.ledger.exists():
        raise NotFoundError(f"There is no ledger in {state_dir.root}. Name its --state-dir.")
    tally = _Tally()
    if ask.dry_run:
        with retention.plan(state_dir.ledger, ask.through_ms) as plan:
            _pretend(plan, tally, progress)
            return _document(state_dir, ask, tally, plan)
    async with _eraser(settings, state_dir) as eraser:
        with retention.plan(state_dir.ledger, ask.through_ms) as plan:
            await _erase(plan, ask, eraser, tally, progress)
            passed("prune-erased")
            await _sweep(plan, eraser, tally, progress)
            return _document(state_dir, ask, tally, plan)


def _pretend(plan: Plan, tally: _Tally, progress: Progress) -> None:
    plan.count(progress)
    total, done = plan.old_calls(), 0
    while (page := plan.page()) is not None:
        tally.add(page, page.erased)
        plan.pretend(page)
        done += page.looked_at
        progress("calls", done, total)
    chunks, size = plan.find_loose(progress)
    tally.took(Erased(chunks=chunks, chunk_bytes=size))


async def _erase(plan: Plan, ask: Ask, eraser: Eraser, tally: _Tally, progress: Progress) -> None:
    plan.count(progress)
    total, done, conflicts = plan.old_calls(), 0, 0
    while (page := plan.page()) is not None:
        try:
            erased = await eraser(page.append(ask.why, ask.by)) if page.tombstones else Erased()
        except ConflictError as conflict:
            conflicts = _again(conflicts, conflict)
        else:
            conflicts = 0
            tally.add(page, erased)
            plan.done(page)
            done += page.looked_at
            progress("calls", done, total)
        plan.count(_silent)


async def _sweep(plan: Plan, eraser: Eraser, tally: _Tally, progress: Progress) -> None:
    total, _ = plan.find_loose(progress)
    conflicts, waited_s = 0, 0.0
    while True:
        plan.count(_silent)  # spares what was named since
        if (batch := plan.batch()) is None:
            return
        try:
            tally.took(await eraser(batch))
        except ConflictError as conflict:
            conflicts = _again(conflicts, conflict)
        except StagingError:
            if waited_s >= STAGING_LIMIT_S:
                tally.left = LEFT
                return
            await asyncio.sleep(STAGING_POLL_S)
            waited_s += STAGING_POLL_S
        else:
            conflicts, waited_s = 0, 0.0
            plan.swept(batch)
            progress("chunks", tally.erased.chunks, total)
            passed("prune-swept")


def _again(conflicts: int, conflict: ConflictError) -> int:
    if conflicts >= CONFLICTS_LIMIT:
        raise DecisionRefusedError(
            f"Too much happens to the ledger ({conflict}). What was erased so far stays erased; run it again later."
        )
    return conflicts + 1


def _silent(*_: object) -> None:
    """Counting the few events since the last page is no step that anybody watches."""


@asynccontextmanager
async def _eraser(settings: Settings, state_dir: StateDir) -> AsyncIterator[Eraser]:
    """Through the living owner; without one: takes the lock and recovers first, so that nothing unfinished is skipped."""
    if (lock := await lock_unless_owned(state_dir)) is None:
        yield partial(_through_owner, state_dir)
        return
    async with wiring.running(settings, state_dir, lock, wiring.recover(settings, state_dir)) as services:
        yield partial(control.erase, services.writer)


async def _through_owner(state_dir: StateDir, op: Append) -> Erased:
    try:
        return await control.ask_to_erase(state_dir.control_socket, op)
    except OwnerUnreachableError as error:
        raise DecisionRefusedError(
            f"The proxy ended while bodies were erased ({error}). What is done is done; run it again for the rest."
        ) from error


def _document(state_dir: StateDir, ask: Ask, tally: _Tally, plan: Plan) -> dict[str, Any]:
    began_ms, oldest = tally.oldest or (None, None)
    return {
        "state_dir": str(state_dir.root),
        "dry_run": ask.dry_run,
        "completed_through": instant(ask.through_ms),
        "reason": ask.why,
        "by": ask.by,
        "calls": tally.calls,
        "tombstones": tally.tombstones,
        **asdict(tally.erased),
        "kept_elsewhere": plan.kept_elsewhere(),
        "skipped": tally.skipped,
        "oldest_skipped": oldest,
        "oldest_skipped_at": instant(began_ms),
        "free_bytes": plan.free_bytes(),
        "left": tally.left,
    }
