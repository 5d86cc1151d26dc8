"""Which calls a command means, and the files it is given for them."""

from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ledger.ids import CallId
from ledger.reader import open_reader
from ledger.stages import Stage
from proxy import wiring
from proxy.interpreter import dialect_of
from proxy.moments import moment_ms
from proxy.owner import NotFoundError, alive_calls
from proxy.preserve import PARSED_LIMIT_BYTES
from proxy.reconcile.answers import recovered
from proxy.reconcile.operator import DecisionRefusedError, Ruling
from proxy.settings import Settings, SettingsError

WHERE: Final = ("upstream", "since", "until")


@dataclass(frozen=True, slots=True)
class Selected:
    """`left_out`: calls that the conditions hold for, too, and that want a decision of their own: parked ones, damaged ones."""

    calls: list[CallId]
    left_out: list[CallId]


async def selected(settings: Settings, where: list[str]) -> Selected:
    """The unresolved calls that all conditions hold for, none in flight. Raises SettingsError, BadMomentError, NotFoundError."""
    asked = dict(_condition(part) for part in where)
    since_ms = moment_ms(asked["since"], "--where since") if "since" in asked else 0
    until_ms = moment_ms(asked["until"], "--where until") if "until" in asked else None
    state_dir = wiring.state_dir_of(settings)
    alive = frozenset(((await alive_calls(state_dir)) or {}).get("alive", ()))
    found = Selected([], [])
    async with open_reader(state_dir.ledger) as reader, aclosing(reader.unresolved()) as calls:
        async for call in calls:
            in_time = since_ms <= call.created_at_ms and (until_ms is None or call.created_at_ms < until_ms)
            if in_time and asked.get("upstream") in (None, call.upstream) and call.call not in alive:
                wants_its_own = call.decision is not None or call.stage is Stage.CORRUPTION
                (found.left_out if wants_its_own else found.calls).append(call.call)
    if not found.calls:
        raise NotFoundError(f"No undecided call in {state_dir.root} is --where {' --where '.join(where)}.")
    return found


def _condition(part: str) -> tuple[str, str]:
    key, equals, value = part.partition("=")
    if not equals or key not in WHERE or not value:
        raise SettingsError(
            f"--where {part!r} is no condition. Give one of {', '.join(f'{name}=…' for name in WHERE)}."
        )
    return key, value


def read_answer(file: Path) -> bytes:
    """Raises SettingsError where it cannot be read, or is too large to be looked at."""
    try:
        data = file.read_bytes() if file.stat().st_size <= PARSED_LIMIT_BYTES else None
    except OSError as error:
        raise SettingsError(
            f"--response {file} cannot be read ({error.strerror}). Name a file with the answer."
        ) from error
    if data is None:
        raise SettingsError(
            f"--response {file} is larger than {PARSED_LIMIT_BYTES} bytes, which nobody can check. Decide without it."
        )
    return data


async def answered(settings: Settings, call_id: CallId, ruling: Ruling, data: bytes, where: str) -> Ruling:
    """The ruling with the answer that was found `where`. Raises DecisionRefusedError where it is none to this call."""
    async with open_reader(wiring.state_dir_of(settings).ledger) as reader:
        call = await reader.call(call_id)
    if call is None:
        raise DecisionRefusedError(f"There is no call {call_id}. `sendonce calls` lists them.")
    dialect, traits = dialect_of(settings, call)
    return replace(ruling, recovered=recovered(data, dialect, traits, where))
