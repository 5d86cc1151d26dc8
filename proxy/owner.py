"""Who owns a state dir, and what only its owner may do: asked of the living one, else done under its lock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

from ledger.epochs import Lock, StateDir
from ledger.errors import PoisonedError, StateDirError
from ledger.ids import CallId
from ledger.recovery import Acceptance, Recovered
from proxy import wiring
from proxy.control import LASTING, OPERATIONS, OWNER_LIMIT_S, OwnerUnreachableError, ask_owner
from proxy.reconcile.operator import DecisionRefusedError, Ruling
from proxy.settings import Settings
from proxy.settling import as_asked

LOOK_AGAIN_S: Final = 0.1
LOOKS_FOR_OWNER: Final = 50  # five seconds: who died is replaced in a fraction of one, on a busy machine in one or two


class NotFoundError(Exception):
    """What was asked for is not in the ledger. Exit code 2."""


async def alive_calls(state_dir: StateDir) -> dict[str, Any] | None:
    """What the living owner says of itself; None where none answers."""
    try:
        _, answer = await ask_owner(state_dir.control_socket, "GET", "/alive")
    except OwnerUnreachableError:
        return None
    return answer


def alive_in(owner: dict[str, Any] | None, call: CallId) -> bool | None:
    return None if owner is None else call in owner["alive"]


async def settle(settings: Settings, rulings: Mapping[CallId, Ruling]) -> dict[CallId, str]:
    """All of them or none. Raises DecisionRefusedError; each sentence says where its decision leads."""
    decided: dict[CallId, str] = (await ask(settings, "settle", as_asked(rulings)))["decided"]
    return decided


Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


async def ask(settings: Settings, operation: str, asked: dict[str, Any]) -> dict[str, Any]:
    """One of `control.OPERATIONS`. Raises DecisionRefusedError, and what `asking` raises; asks again where the owner died of it."""
    while True:
        with suppress(OwnerUnreachableError):
            async with asking(settings) as owner:
                return await owner(operation, asked)


@asynccontextmanager
async def asking(settings: Settings) -> AsyncIterator[Ask]:
    """Without a living owner: takes the lock and recovers first, so salvage precedes whatever is asked.

    Raises NotFoundError, PoisonedError, OwnerUnreachableError where the owner dies meanwhile, and what a start raises.
    """
    state_dir = wiring.state_dir_of(settings)
    if not state_dir.ledger.exists():
        raise NotFoundError(f"There is no ledger in {state_dir.root}. Name its --state-dir.")
    if (lock := await lock_unless_owned(state_dir)) is None:
        yield partial(_through_owner, state_dir)
        return
    async with wiring.running(settings, state_dir, lock, wiring.recover(settings, state_dir)) as services:
        yield lambda operation, asked: OPERATIONS[operation](services, asked)


async def _through_owner(state_dir: StateDir, operation: str, asked: dict[str, Any]) -> dict[str, Any]:
    limit_s = None if operation in LASTING else OWNER_LIMIT_S
    _, answer = await ask_owner(state_dir.control_socket, "POST", f"/{operation}", asked, limit_s)
    if "poisoned" in answer:
        raise PoisonedError(answer["poisoned"])
    if "refused" in answer:
        raise DecisionRefusedError(answer["refused"])
    return answer


async def lock_unless_owned(state_dir: StateDir) -> Lock | None:
    """The lock; None where an owner answers, who is to be asked. One that is being replaced is waited for. Raises StateDirError."""
    for _ in range(LOOKS_FOR_OWNER):
        if await alive_calls(state_dir) is not None:
            return None
        state_dir.prepare()
        with suppress(StateDirError):
            return state_dir.lock()
        await asyncio.sleep(LOOK_AGAIN_S)
    return state_dir.lock()


async def recover(settings: Settings, acceptance: Acceptance) -> Recovered:
    """Raises StartRefusedError. Opens an epoch that carries the acceptance, and closes it."""
    state_dir = wiring.state_dir_of(settings)
    state_dir.prepare()
    lock = state_dir.lock()
    recovered = wiring.recover(settings, state_dir, acceptance)
    async with wiring.running(settings, state_dir, lock, recovered):
        return recovered
