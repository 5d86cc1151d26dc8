"""`sendonce lookup`: ask the provider what became of calls whose effect is unknown. No request is sent again by it."""

from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from ledger.ids import CallId
from ledger.reader import open_reader
from proxy import looking, owner, wiring
from proxy.console import (
    EXIT_DECISION,
    EXIT_USAGE,
    ByOption,
    ConfigOption,
    JsonOption,
    StateDirOption,
    decider,
    errors,
    fail,
    out,
    print_json,
    run,
)
from proxy.looking import MECHANISMS, How, LookupFailedError
from proxy.reconcile.batch_lookups import BY_LIST
from proxy.reconcile.lookups import SETTLE_S, LookedUp
from proxy.reconcile.operator import DecisionRefusedError
from proxy.settings import Settings, SettingsError, load

app = typer.Typer()
SHOWN: Final = ("name", "needs", "hit", "miss", "retention", "source")


@app.command()
def lookup(
    calls: Annotated[list[str] | None, typer.Argument(metavar="[CALL]...")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All unresolved calls that can be looked up.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is found; record nothing.")] = False,
    wait_s: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, max=86400, help="Ask again while the provider is at it."),
    ] = 0,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End a background response that still runs; what it did may be billed.")
    ] = False,
    settle_s: Annotated[
        float,
        typer.Option("--settle-s", min=SETTLE_S, max=3600, help="Between two lists that must agree that it is absent."),
    ] = SETTLE_S,
    succeeds: Annotated[int | None, typer.Option(help="The seq of the decision that this one replaces.")] = None,
    mechanisms: Annotated[bool, typer.Option("--list", help="Which ways there are, and what each can prove.")] = False,
    by: ByOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the provider, with your own key from the environment, what became of calls; record what that settles."""
    if mechanisms:
        _list(as_json=as_json)
        return
    if bool(calls) == every:
        fail("Name calls, or --all. `sendonce status` lists the unresolved ones.", EXIT_USAGE)
    if succeeds is not None and (every or len(calls or ()) > 1):
        fail("--succeeds is the decision about one call: name that call.", EXIT_USAGE)
    settings, by = load(config, {"state_dir": state_dir}), decider("look-up", by)
    rows = run(_look_up(settings, calls or [], How(cancel, settle_s, wait_s), by, succeeds, dry_run=dry_run))
    if as_json:
        print_json(rows)
    for row in () if as_json else rows:
        sentence = f"{row['call']}: {row['says']}" + (f" {row['decided']}" if row["decided"] else "")
        (errors if row["error"] else out).print(sentence, markup=False)
    if not rows and not as_json:
        out.print("No unresolved call can be looked up.")
    if any(row["error"] for row in rows):
        raise typer.Exit(EXIT_DECISION)


async def _look_up(
    settings: Settings, named: list[str], how: How, by: str, succeeds: int | None, *, dry_run: bool
) -> list[dict[str, Any]]:
    """A row for each call. What keeps one from being looked up, or decided, is its own row's error."""
    state_dir = wiring.state_dir_of(settings)
    await owner.settle(settings, {})  # where nobody serves: a start, which salvages what a dead process had received
    alive = frozenset(((await owner.alive_calls(state_dir)) or {}).get("alive", ()))
    found = [CallId(call) for call in named] or await _unresolved(state_dir.ledger)
    rows = []
    for number, call in enumerate(found, 1):
        with errors.status(f"looking up {number} of {len(found)}"):
            try:
                row = await _one(settings, call, how, by, succeeds, dry_run=dry_run, is_alive=call in alive)
            except (DecisionRefusedError, LookupFailedError, SettingsError) as error:
                row = {**_row(call, None, LookedUp("unreadable", str(error)), None), "error": str(error)}
        if named or row["mechanism"] or row["error"]:
            rows.append(row)
    return rows


async def _unresolved(ledger: Path) -> list[CallId]:
    async with open_reader(ledger) as reader, aclosing(reader.unresolved()) as states:
        return [state.call async for state in states if state.manifest is not None and state.decision is None]


async def _one(
    settings: Settings, call_id: CallId, how: How, by: str, succeeds: int | None, *, dry_run: bool, is_alive: bool
) -> dict[str, Any]:
    state_dir = wiring.state_dir_of(settings)
    if is_alive:
        raise DecisionRefusedError(f"{call_id} is in flight. Wait for its answer; there is nothing to look up yet.")
    async with open_reader(state_dir.ledger) as reader:
        call = await reader.call(call_id)
        if call is None:
            raise DecisionRefusedError(f"There is no call {call_id}. `sendonce calls` lists them.")
        known = await looking.known_of(settings, reader, call, how)
        mechanism = looking.mechanism_for(known)
        if mechanism in BY_LIST:
            known = await looking.among_others(reader, call, known)
    if mechanism is None:
        says = f"No look-up is known for {known.path}. Settle it by an export (sendonce usage) or a decision (sendonce reconcile)."
        return _row(call_id, None, LookedUp("absent_inconclusive", says), None)
    found = await looking.ask(settings, state_dir.secret(), call, known, mechanism, how)
    decided = None
    if found.settles and not dry_run:
        ruling = looking.ruling(settings, call, mechanism, found, by, succeeds)
        decided = (await owner.settle(settings, {call_id: ruling}))[call_id]
    return _row(call_id, mechanism.name, found, decided)


def _row(call: CallId, mechanism: str | None, found: LookedUp, decided: str | None) -> dict[str, Any]:
    return {
        "call": call,
        "mechanism": mechanism,
        "result": found.result,
        "settles": found.settles,
        "says": found.says,
        "evidence": dict(found.evidence),
        "decided": decided,
        "error": None,
    }


def _list(*, as_json: bool) -> None:
    rows = [{name: value for name, value in asdict(each).items() if name in SHOWN} for each in MECHANISMS]
    if as_json:
        print_json(rows)
        return
    table = Table(*SHOWN[:-1])
    for row in rows:
        table.add_row(*(row[name] for name in SHOWN[:-1]))
    out.print(table)
