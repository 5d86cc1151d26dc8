"""Decisions reach the ledger: all of those that are asked for in one append, on the heads they were taken on, or none.

The order: each call is read, its bundle decided (reconcile/operator.py, pure), every bundle appended at once, and what an answer
came back for is interpreted. A crash before the append leaves nothing of it; behind it the next start interprets.
"""

import base64
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from typing import Any, Final

from ledger.calls import CallState
from ledger.claims import KeyHistory
from ledger.errors import ConflictError
from ledger.failpoints import passed
from ledger.ids import CallId
from ledger.operations import Append
from ledger.reader import Reader
from proxy.endpoints import EndpointClass
from proxy.reconcile.operator import OUTCOMES, DecisionRefusedError, Recovered, Ruling, bundle, together
from proxy.services import Services

DECISIONS_LIMIT: Final = 5  # as for admissions: beyond it somebody writes faster than we read
RULINGS_LIMIT: Final = 10_000  # in one append, which every other one waits for: some 0.3 s
ANSWERED: Final = "Its answer is on record: the same request gets it."


class _Bytes:
    """Bytes at hand, read as a body on its way into the ledger is."""

    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)

    def read_at(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


async def settle(services: Services, asked: dict[str, Any]) -> dict[str, Any]:
    """`asked` as `as_asked` made it. Raises DecisionRefusedError with nothing written; gives a sentence for each call."""
    rulings = {CallId(call): _ruling(about) for call, about in asked["rulings"].items()}
    if len(rulings) > RULINGS_LIMIT:
        raise DecisionRefusedError(
            f"{len(rulings)} calls are too many for one decision; the limit is {RULINGS_LIMIT}. Divide them by time."
        )
    for _ in range(DECISIONS_LIMIT):
        try:
            decided = await _append(services, rulings)
        except ConflictError:  # a delivery, perhaps: whether the rulings still apply is asked of what stands now
            continue
        for call, ruling in rulings.items():
            if ruling.recovered is not None:
                await services.interpreter.finish(call)
        return {"decided": {call: _sentence(call, ruling, anew=call in decided) for call, ruling in rulings.items()}}
    raise DecisionRefusedError("Too much happens to the keys of these calls. Look at them again: sendonce calls")


async def _append(services: Services, rulings: Mapping[CallId, Ruling]) -> set[CallId]:
    """The calls that were not decided so already. Raises ConflictError."""
    async with AsyncExitStack() as staging:
        bundles = {call: await _bundle(services, call, ruling, staging) for call, ruling in rulings.items()}
        anew = {call: made for call, made in bundles.items() if made is not None}
        if anew:
            passed("before-bundle")
            await services.writer.append(together(anew.values()))
            passed("after-bundle")
    return set(anew)


async def behind_its_head(reader: Reader, call_id: CallId) -> tuple[CallState, KeyHistory]:
    """The call, read after its key's history: an append on that head conflicts with whatever came in between. Raises DecisionRefusedError."""
    named = await reader.call(call_id)
    if named is None:
        raise DecisionRefusedError(f"There is no call {call_id}. `sendonce calls` lists them.")
    history = await reader.history(named.scope, named.key)
    call = await reader.call(call_id)
    assert call is not None
    return call, history


async def _bundle(services: Services, call_id: CallId, ruling: Ruling, staging: AsyncExitStack) -> Append | None:
    call, history = await behind_its_head(services.reader, call_id)
    alive = services.registry.flight(call_id) is not None
    if ruling.recovered is None or call.requested is None:
        return bundle(call, history, ruling, alive=alive)
    body, packed = await services.preserver.preserved(
        _Bytes(ruling.recovered.data), EndpointClass(call.requested.endpoint_class), staging
    )
    made = bundle(call, history, ruling, alive=alive, body=body)
    return None if made is None else replace(made, bodies=packed)


def _sentence(call: CallId, ruling: Ruling, *, anew: bool) -> str:
    outcome = OUTCOMES[ruling.decision] if ruling.recovered is None else ANSWERED
    return f"{call} is decided: {ruling.decision}. {outcome}" if anew else f"{call} was decided so already. {outcome}"


# --- how it crosses the control socket -----------------------------------------------------------------------------


def as_asked(rulings: Mapping[CallId, Ruling]) -> dict[str, Any]:
    return {"rulings": {call: _document(ruling) for call, ruling in rulings.items()}}


def _document(ruling: Ruling) -> dict[str, Any]:
    document = asdict(ruling)
    if ruling.recovered is not None:
        document["recovered"]["data"] = base64.b64encode(ruling.recovered.data).decode()
    return document


def _ruling(document: dict[str, Any]) -> Ruling:
    about: Mapping[str, Any] | None = document["recovered"]
    recovered = None
    if about is not None:
        headers = tuple((name, value) for name, value in about["headers"])
        recovered = Recovered(about["status"], headers, base64.b64decode(about["data"]))
    return Ruling(**{**document, "recovered": recovered})
