"""What `sendonce runs` shows: runs and their passes, projected from the record; refusals from the activity log, which is no witness."""

from collections import Counter
from typing import Any, Final

from ledger.calls import CallState
from ledger.epochs import StateDir
from ledger.events import PassOpened, PassServed, Recorded
from ledger.reader import open_reader
from proxy.activity import refusals_of
from proxy.codes import Code
from proxy.gates import gates_of
from proxy.owner import NotFoundError, alive_calls, alive_in
from proxy.views import call_row, instant

SENT: Final = frozenset({"forwarded", "resumed"})


async def runs(state_dir: StateDir, limit: int) -> list[dict[str, Any]]:
    """Newest first."""
    async with open_reader(state_dir.ledger) as reader:
        await reader.check_index()
        found = await reader.runs(limit)
    return [
        {"run": run, "passes": passes, "calls": calls, "unresolved": unresolved, "newest_pass_at": instant(at_ms)}
        for run, passes, calls, unresolved, at_ms in found
    ]


async def run_detail(state_dir: StateDir, run: str) -> dict[str, Any]:
    """One run: its passes with their counts, and what the next one may be refused by. Raises NotFoundError."""
    owner = await alive_calls(state_dir)
    async with open_reader(state_dir.ledger) as reader:
        await reader.check_index()
        passes = await reader.passes(run)
        if not passes:
            raise NotFoundError(f"There is no run {run[:128]!r} in {state_dir.root}. `sendonce runs` lists them.")
        calls = await reader.calls_of_run(run)
        gates = await gates_of(reader, run, passes)
    refused = refusals_of(state_dir.activity_log, run)
    return {
        "run": run,
        "state_dir": str(state_dir.root),
        "passes": [_pass_row(at_ms, opened, calls, refused) for at_ms, opened in passes],
        "gates": [
            {
                "code": gate.code,
                "call": gate.call,
                "alive": alive_in(owner, gate.call) if gate.call else None,
                "sentence": gate.sentence,
            }
            for gate in gates
        ],
        "calls": [call_row(state, alive_in(owner, state.call)) for state, _ in calls],
    }


def _pass_row(
    at_ms: int, opened: PassOpened, calls: list[tuple[CallState, list[Recorded]]], refused: Counter[tuple[int, str]]
) -> dict[str, Any]:
    """`sent`: attempts that may have reached the provider. `usage`: what the provider counted for them, summed by its names."""
    given: Counter[str] = Counter()
    usage: Counter[str] = Counter()
    sent = 0
    for state, events in calls:
        served = [
            one.event for one in events if isinstance(one.event, PassServed) and one.event.number == opened.number
        ]
        given.update(event.disposition for event in served)
        if any(event.disposition in SENT for event in served):
            sent += sum(not _is_absent(attempt.observed) for attempt in state.attempts)
            usage.update(_usage(state))
    codes = {code: count for (number, code), count in refused.items() if number == opened.number}
    diverged = codes.pop(Code.RUN_DIVERGED, 0)
    return {
        "pass": opened.number,
        "opened_at": instant(at_ms),
        "on_divergence": opened.on_divergence,
        "gates": dict(opened.gates),
        "sent": sent,
        "replayed": given["replayed"],
        "attached": given["attached"],
        "refused": sum(codes.values()),
        "diverged": diverged,
        "usage": dict(usage),
    }


def _is_absent(observed: Any) -> bool:
    return observed is not None and observed.observation == "not_sent"


def _usage(state: CallState) -> dict[str, int]:
    reading = state.attempt.interpreted if state.attempt else None
    return dict(reading.usage) if reading and reading.usage else {}
