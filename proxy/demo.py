"""`sendonce demo`: what the proxy promises, shown live. Real processes, real SIGKILLs, effects counted by the provider.

Each case interrupts a proxy, inspects what it left, starts another over the same state dir and asks again. What must be
seen stands in `CASES`, is written to disk before the first process starts, and is compared fact by fact.
"""

import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from subprocess import SubprocessError
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from proxy.demo_phases import (
    GRACE_S,
    Case,
    Inspection,
    PhaseError,
    ask,
    ask_aside,
    evidence_directory,
    run_phase,
    wait_until,
    write_durably,
)

Facts = dict[str, Any]

HELD: Final = "synthetic/hold=600,times=1"  # holds the first request of a body, answers the second at once
SLOW: Final = "synthetic/delay=0.5"  # between head and body: the head's event gets a commit of its own
CASES_AT_ONCE: Final = 2
# What a phase may end in on a proxy that breaks its promises; the case then fails with that sentence.
UNFINISHED: Final = (PhaseError, OSError, HTTPException, SubprocessError, ValueError, KeyError, IndexError)
KILLED: Final = -signal.SIGKILL
NOT_STARTED: Final = "manifest_recorded, absent, start_call"
UNKNOWN: Final = "effect_unknown, unknown, reconcile_effect"
BEGUN: Final = "effect_happened, happened, reconcile_effect"
DONE: Final = "completed, happened, none"


def chat(model: str) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "Say it once."}]}).encode()


# --- the interruptions: each returns what its case adds to the facts -------------------------------------------------------


def at_failpoint(case: Case, point: str, key: str | None) -> Facts:
    """The proxy kills itself with SIGKILL as it passes the point."""
    proxy = case.start_proxy(f"{point}=kill")
    ask(proxy.port, chat("synthetic"), key)
    return {"ended_by": proxy.end()}


def while_provider_holds(case: Case) -> Facts:
    proxy = case.start_proxy()
    ask_aside(proxy.port, chat(HELD), None)
    wait_until("the provider's receipt", lambda: bool(case.receipts()))
    return {"ended_by": proxy.end(signal.SIGKILL)}


def after_observation(case: Case) -> Facts:
    """The provider dies too: whatever follows cannot need it."""
    facts = at_failpoint(case, "after-observed", None)
    assert case.provider is not None
    case.provider.end(signal.SIGKILL)
    return facts


def before_start_is_durable(case: Case) -> Facts:
    """The disk stalls in the commit of attempt.started. Nothing may reach the provider, however long it takes."""
    proxy = case.start_proxy("before-commit=sleep(600)@2")
    recorded = case.head()
    ask_aside(proxy.port, chat("synthetic"), None)
    wait_until("the manifest", lambda: case.head() != recorded)
    time.sleep(GRACE_S)
    return {"ended_by": proxy.end(signal.SIGKILL)}


def before_observation_is_durable(case: Case) -> Facts:
    """The disk stalls in the commit of attempt.observed. The client may see everything but the end."""
    proxy = case.start_proxy("before-commit=sleep(600)@4")
    answer = ask(proxy.port, chat(SLOW), None, end_within_s=GRACE_S)
    return {"ended_by": proxy.end(signal.SIGKILL), "client_saw": answer.text if answer else "nothing"}


# --- the cases, and what must be seen --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spec:
    """One case: how it is interrupted, what is asked again, and every fact that must be measured.

    The counts are [after the kill, after the restart, after the answer].
    """

    name: str
    interrupt: Callable[[Case], Facts]
    body: bytes
    key: str | None
    expected: Facts


# Holds for every case that asks a new proxy again; a case names what differs.
USUAL: Final[Facts] = {
    "ended_by": KILLED,
    "after_kill": NOT_STARTED,
    "after_restart": NOT_STARTED,
    "after_answer": DONE,
    "unrecorded_receipts": 0,  # effects at the provider without a started attempt in the ledger
    "receipts_match_manifest": True,  # every body that reached the provider is the one that was recorded
    "usage_known": True,
    "verdict": "OK",  # the independent verifier's, on a bundle of everything the case left
}

CASES: Final = (
    Spec(
        "resumed",
        partial(at_failpoint, point="after-manifest", key="demo-resumed"),
        chat("synthetic"),
        "demo-resumed",
        USUAL | {"answer": "200 resumed", "call_events": [2, 2, 13], "receipts": [0, 0, 1]},
    ),
    Spec(
        "refused for drift",
        partial(at_failpoint, point="after-manifest", key="demo-drift"),
        chat("synthetic-2"),
        "demo-drift",
        USUAL
        | {"answer": "400 drift", "call_events": [2, 2, 2], "receipts": [0, 0, 0]}
        | {"after_answer": NOT_STARTED, "usage_known": False},
    ),
    Spec(
        "refused for an unknown effect",
        while_provider_holds,
        chat(HELD),
        None,
        USUAL
        | {"after_kill": UNKNOWN, "after_restart": UNKNOWN, "after_answer": UNKNOWN, "usage_known": False}
        | {"answer": "400 effect_unknown", "call_events": [3, 3, 3], "receipts": [1, 1, 1]},
    ),
    Spec(
        "observed, not interpreted",
        after_observation,
        chat("synthetic"),
        None,
        USUAL
        | {"after_kill": "observed, happened, reinterpret", "after_restart": DONE}
        | {"answer": "200 replayed", "call_events": [5, 9, 10], "receipts": [1, 1, 1]},
    ),
    Spec(
        "nothing sent before it is recorded",
        before_start_is_durable,
        chat("synthetic"),
        None,
        USUAL | {"answer": "200 resumed", "call_events": [2, 2, 13], "receipts": [0, 0, 1]},
    ),
    Spec(
        "no end before it is recorded",
        before_observation_is_durable,
        chat(SLOW),
        None,
        USUAL
        | {"client_saw": "200 without its end", "after_kill": BEGUN, "after_restart": DONE}
        | {"answer": "200 replayed", "call_events": [4, 9, 10], "receipts": [1, 1, 1]},
    ),
)

# A copy of the third case's directory, taken after the kill; what restart loops do with it.
NAIVE: Final = "naive restart of a copy"
NAIVE_EXPECTED: Final[Facts] = {
    "after_kill": UNKNOWN,
    "answer": "200 from the provider",
    "call_events": [3, 3],
    "receipts": [1, 2],
    "unrecorded_receipts": 1,
    "identical_bodies": True,
    "same_key": True,
    "verdict": "CONTRADICTION",
}
CLOSING: Final = (
    "What never left was sent once, what may have been served was not sent again, what was answered was not asked again;"
    " only the naive restart paid twice."
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case as it was seen. `fault` is the sentence of a phase that did not come to its end."""

    name: str
    expected: Facts
    seen: Facts
    fault: str | None = None

    @property
    def failures(self) -> list[str]:
        """Each expectation that does not hold, as a sentence."""
        if self.fault is not None:
            return [self.fault]
        names = [*self.expected, *(name for name in self.seen if name not in self.expected)]
        return [
            f"{name} is {self.seen.get(name)!r}, expected {self.expected.get(name)!r}"
            for name in names
            if self.seen.get(name) != self.expected.get(name)
        ]

    def row(self) -> dict[str, Any]:
        return {
            "case": self.name,
            "expected": dict(self.expected),
            "seen": dict(self.seen),
            "failures": self.failures,
            "holds": not self.failures,
        }


# --- running ---------------------------------------------------------------------------------------------------------------


def run(evidence: Path | None, progress: Console) -> list[Outcome]:
    """All cases. With `evidence`, a new or empty directory, everything is kept; else nothing is."""
    with evidence_directory(evidence) as root, progress.status("Starting, killing, counting …") as line:
        write_durably(
            root / "expectations.json", {spec.name: spec.expected for spec in CASES} | {NAIVE: NAIVE_EXPECTED}
        )
        with ThreadPoolExecutor(CASES_AT_ONCE) as pool:
            played = pool.map(lambda numbered: _play(numbered[1], root / f"case-{numbered[0]}"), enumerate(CASES, 1))
            outcomes = []
            for outcome in played:
                outcomes.append(outcome)
                line.update(f"{len(outcomes)} of {len(CASES) + 1} cases: {outcome.name}")
        outcomes.append(_naive_restart(root / "naive"))
        write_durably(root / "table.json", document(outcomes))
        return outcomes


def document(outcomes: list[Outcome]) -> dict[str, Any]:
    holds = not any(outcome.failures for outcome in outcomes)
    return {"cases": [outcome.row() for outcome in outcomes], "holds": holds, "closing": closing(outcomes)}


def closing(outcomes: list[Outcome]) -> str:
    """What follows from it all; else which expectation of which case does not hold, a line each."""
    failed = [f"{outcome.name}: {failure}" for outcome in outcomes for failure in outcome.failures]
    return "\n".join(failed) if failed else CLOSING


def table(console: Console, outcomes: list[Outcome]) -> None:
    drawn = Table(box=None, pad_edge=False)
    for heading in ("case", "call events", "receipts", "expected", "seen", "verdict"):
        drawn.add_column(heading, overflow="fold")
    for outcome in outcomes:
        seen, verdict = outcome.seen, "FAILED" if outcome.failures else "holds"
        counts = [" → ".join(map(str, seen.get(name, "?"))) for name in ("call_events", "receipts")]
        answers = [str(facts.get("answer", "?")) for facts in (outcome.expected, seen)]
        drawn.add_row(outcome.name, *counts, *answers, verdict, style="red" if outcome.failures else None)
    console.print(drawn)
    console.print(
        "Counts after the kill → the restart → the answer. Receipts are the lines of the provider's own file.",
        style="dim",
    )
    console.print(closing(outcomes), markup=False)


def _play(spec: Spec, directory: Path) -> Outcome:
    def measure(case: Case) -> Facts:
        case.start_provider()
        facts = spec.interrupt(case)
        killed = case.inspect()
        if spec.interrupt is while_provider_holds:
            case.copy_to(directory.parent / "naive")
        proxy = case.start_proxy()
        restarted = case.inspect()
        answer = case.ask_again(spec.body, spec.key)
        proxy.end(signal.SIGTERM)
        told = {"answer": answer.text if answer else "none"}
        answered = case.inspect()
        return {**facts, **_facts((killed, restarted, answered)), **told, "verdict": case.verdict()}

    return _outcome(spec.name, spec.expected, directory, measure)


def _facts(inspections: tuple[Inspection, Inspection, Inspection]) -> Facts:
    killed, restarted, answered = inspections
    manifests = {call["body_blake3"] for call in answered.calls}
    return {
        "after_kill": killed.standing,
        "after_restart": restarted.standing,
        "after_answer": answered.standing,
        "call_events": [inspection.call_events for inspection in inspections],
        "receipts": [len(inspection.receipts) for inspection in inspections],
        "unrecorded_receipts": max(inspection.unrecorded_receipts for inspection in inspections),
        "receipts_match_manifest": {receipt["body_blake3"] for receipt in answered.receipts} <= manifests,
        "usage_known": answered.newest["usage"] is not None,
    }


def _naive_restart(directory: Path) -> Outcome:
    """The copy has its own provider, which goes on in the copied receipt file."""

    def measure(case: Case) -> Facts:
        provider = case.start_provider()
        before = case.inspect()
        status = run_phase("naive", str(case.state_dir), before.newest["call_id"], str(provider.port)).strip()
        after = case.inspect()
        return {
            "after_kill": before.standing,
            "answer": f"{status} from the provider",
            "call_events": [before.call_events, after.call_events],
            "receipts": [len(before.receipts), len(after.receipts)],
            "unrecorded_receipts": after.unrecorded_receipts,
            "identical_bodies": len({receipt["body_blake3"] for receipt in after.receipts}) == 1,
            "same_key": len({receipt["idempotency_key"] for receipt in after.receipts}) == 1,
            "verdict": case.verdict(),
        }

    return _outcome(NAIVE, NAIVE_EXPECTED, directory, measure)


def _outcome(name: str, expected: Facts, directory: Path, measure: Callable[[Case], Facts]) -> Outcome:
    case = Case(directory)
    try:
        return Outcome(name, expected, measure(case))
    except UNFINISHED as error:
        return Outcome(name, expected, {}, f"{type(error).__name__}: {error}")
    finally:
        case.close()
