"""What a new start of a run may be refused by: facts of the record, as reasons for programs. They stop no start.

The agent replays what is recorded and meets a gate only where its own request does; whoever starts it can see them first.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ledger.calls import CallState
from ledger.events import EpochOpened, PassOpened
from ledger.ids import CallId
from ledger.ladder import Evidence
from ledger.reader import Reader
from ledger.stages import Effect, Stage

STILL_RUNNING: Final = frozenset({"queued", "in_progress"})  # OpenAI's words for a background response that is not over


class GateCode(StrEnum):
    """Stable, like the codes of refusals (docs/codes.md)."""

    UNRESOLVED = "unresolved"  # whether the provider served this call is unknown
    BACKGROUND_RUNNING = "background_running"  # its answer said that the provider goes on with it
    CALLER_ROTATES = (
        "caller_rotates"  # callers known by a short-lived credential: when it has changed, all is asked anew
    )
    CORRUPTION = "corruption"  # the records of this call contradict each other
    LEDGER_HEAD_CHANGED = (
        "ledger_head_changed"  # since the last pass the ledger was restored or lost its end, and that was accepted
    )


@dataclass(frozen=True, slots=True)
class Gate:
    """One reason. `call` names whose it is; of the whole ledger's it is None."""

    code: GateCode
    sentence: str
    call: CallId | None = None


def counted(gates: Sequence[Gate]) -> Mapping[str, int]:
    return dict(Counter(gate.code.value for gate in gates))


async def gates_of(reader: Reader, run: str, passes: Sequence[tuple[int, PassOpened]]) -> tuple[Gate, ...]:
    """Reads only, and of a run's calls all that are jobs."""
    following = passes[-1][1].number + 1 if passes else 1
    async with aclosing(reader.unresolved_of_run(run, following)) as unresolved:
        gates = [_of_unresolved(state) async for state in unresolved]
    gates += [_of_job(state) for state in await reader.jobs_of_run(run) if _goes_on(state)]
    if (call := await reader.rotating_of_run(run)) is not None:
        sentence = f"The caller of {call} is known by a short-lived credential only: with another one the run asks for everything anew."
        gates.append(Gate(GateCode.CALLER_ROTATES, sentence, call))
    if passes:
        accepted = [
            one.event
            for one in await reader.ledger_events()
            if isinstance(one.event, EpochOpened) and one.event.accepted and one.seq > passes[-1][1].head_seq
        ]
        gates += [_of_restored(epoch) for epoch in accepted]
    return tuple(gates)


def _of_unresolved(state: CallState) -> Gate:
    if state.stage is Stage.CORRUPTION:
        return Gate(GateCode.CORRUPTION, f"The records of {state.call} contradict each other.", state.call)
    known = "parked" if state.evidence is Evidence.PARKED else state.stage
    return Gate(GateCode.UNRESOLVED, f"Whether the provider served {state.call} is unknown: {known}.", state.call)


def _goes_on(state: CallState) -> bool:
    reading = state.attempt.interpreted if state.attempt else None
    return state.effect is Effect.HAPPENED and reading is not None and reading.finish_reason in STILL_RUNNING


def _of_job(state: CallState) -> Gate:
    sentence = f"The response that {state.call} began in the background was still running when it was last heard of."
    return Gate(GateCode.BACKGROUND_RUNNING, sentence, state.call)


def _of_restored(epoch: EpochOpened) -> Gate:
    sentence = (
        f"Epoch {epoch.epoch} accepted that the ledger is another one than its witnesses know ({epoch.accepted}): "
        "what the run recorded before may be missing."
    )
    return Gate(GateCode.LEDGER_HEAD_CHANGED, sentence)
