"""`sendonce reinterpret`: what a newer version reads in preserved bytes, beside what older ones read. No provider is needed."""

from typing import Any, Final

from ledger.calls import CallState
from ledger.ids import CallId
from proxy.reconcile.operator import DecisionRefusedError
from proxy.services import Services

PAGE_CALLS: Final = 256  # in one turn of the owner: others have theirs between the answers it reads again


async def reinterpret(services: Services, asked: dict[str, Any]) -> dict[str, Any]:
    """The calls that are named, else the page `after` a call. Gives how many were looked at and read anew, and where the page ended."""
    if asked["calls"]:
        states = [await _found(services, CallId(call)) for call in asked["calls"]]
    else:
        states = await services.reader.calls_after(asked["after"], PAGE_CALLS)
    added = [state.call for state in states if await services.interpreter.reinterpret(state)]
    return {"looked_at": len(states), "added": added, "last": states[-1].call if states else None}


async def _found(services: Services, call: CallId) -> CallState:
    state = await services.reader.call(call)
    if state is None:
        raise DecisionRefusedError(f"There is no call {call}. `sendonce calls` lists them.")
    return state
