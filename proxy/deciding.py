"""The commands that put something on record: `reconcile`, `recover`, `prune`. Nothing is sent by any of them."""

from pathlib import Path
from typing import Annotated

import typer

from ledger.events import Decision
from ledger.ids import CallId
from ledger.recovery import Acceptance
from proxy import clock, owner, pruning, tables, wiring
from proxy.console import (
    EXIT_USAGE,
    ByOption,
    ConfigOption,
    JsonOption,
    ReasonOption,
    StateDirOption,
    decider,
    errors,
    fail,
    out,
    print_json,
    run,
)
from proxy.reconcile.operator import Ruling
from proxy.selecting import Selected, answered, read_answer, selected
from proxy.settings import command_options, load

app = typer.Typer()


@app.command()
def reconcile(
    calls: Annotated[list[str] | None, typer.Argument(metavar="[CALL]...")] = None,
    *,
    reason: ReasonOption,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="KEY=VALUE",
            help="Instead of calls: all unresolved ones of upstream=NAME, since=TIME, until=TIME. Repeatable; all must hold.",
        ),
    ] = None,
    served: Annotated[bool, typer.Option("--served", help="The provider served it.")] = False,
    response: Annotated[
        Path | None,
        typer.Option(
            "--response", metavar="FILE", help="With --served: its answer, byte for byte; later tries get it."
        ),
    ] = None,
    not_served: Annotated[
        bool, typer.Option("--not-served", help="It did not: the next same request is sent.")
    ] = False,
    accept_duplicate: Annotated[
        bool, typer.Option("--accept-duplicate", help="A second effect is acceptable.")
    ] = False,
    park: Annotated[bool, typer.Option("--park", help="Leave it alone: refused until another decision.")] = False,
    succeeds: Annotated[int | None, typer.Option(help="The seq of the decision that this one replaces.")] = None,
    by: ByOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide about calls whose effect is unknown: all that are named, or none. It is recorded with its reason; nothing is sent."""
    flags: dict[Decision, bool] = {
        "served": served,
        "not_served": not_served,
        "accept_duplicate": accept_duplicate,
        "parked": park,
    }
    decision = _checked(flags, calls or [], where or [], response, succeeds)
    by = decider(reason, by)
    settings = load(config, {"state_dir": state_dir})
    ruling = Ruling(decision, reason, by, succeeds)
    if response is not None and calls:
        data = read_answer(response)
        ruling = run(answered(settings, CallId(calls[0]), ruling, data, str(response)))
    found = Selected([CallId(call) for call in calls or ()], []) if calls else run(selected(settings, where or []))
    decided = run(owner.settle(settings, dict.fromkeys(found.calls, ruling)))
    if found.left_out:
        errors.print(
            f"sendonce: {len(found.left_out)} more are parked or damaged and want decisions of their own, the first {found.left_out[0]}.",
            markup=False,
        )
    if as_json:
        print_json({"decision": ruling.decision, "calls": decided})
    for sentence in () if as_json else decided.values():
        out.print(sentence, markup=False)


def _checked(
    flags: dict[Decision, bool], calls: list[str], where: list[str], response: Path | None, succeeds: int | None
) -> Decision:
    """The decision; ends with a sentence where it is not clear which, or about which calls."""
    chosen = [decision for decision, given in flags.items() if given]
    if len(chosen) != 1:
        fail("Name one of --served, --not-served, --accept-duplicate, --park.", EXIT_USAGE)
    if bool(calls) == bool(where):
        fail("Name calls, or --where, which finds them. `sendonce status` lists the unresolved ones.", EXIT_USAGE)
    if response is not None and (chosen != ["served"] or len(calls) != 1):
        fail("--response is the answer to one call: name that call, and --served.", EXIT_USAGE)
    if succeeds is not None and len(calls) != 1:
        fail("--succeeds is the decision about one call: name that call.", EXIT_USAGE)
    return chosen[0]


@app.command()
def recover(
    reason: ReasonOption,
    accept_lost_tail: Annotated[
        bool, typer.Option("--accept-lost-tail", help="The receipts know attempts the ledger lost.")
    ] = False,
    accept_copy: Annotated[
        bool, typer.Option("--accept-copy", help="The ledger is a copy or a restored backup.")
    ] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Put on record that the state dir may start although its witnesses disagree. What they prove becomes unknown."""
    if accept_lost_tail == accept_copy:
        fail("Name one of --accept-lost-tail, --accept-copy.", EXIT_USAGE)
    decider(reason, None)
    settings = load(config, {"state_dir": state_dir})
    acceptance = Acceptance("copy" if accept_copy else "lost_tail", reason)
    recovered = run(owner.recover(settings, acceptance))
    out.print(
        f"Recorded in epoch {recovered.epoch}. {len(recovered.witnessed)} attempts were entered from their receipts and are "
        "unknown; their requests are refused until you decide. They are listed by: "
        f"sendonce status{command_options(wiring.state_dir_of(settings).root)}",
        markup=False,
    )


@app.command()
def prune(
    *,
    older_than: Annotated[
        int | None,
        typer.Option(
            "--older-than", metavar="DAYS", help="Completed so long ago. Default: limits.retention_days; 0: all."
        ),
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="DATE", help="Completed before it: 2026-10-31, in UTC.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    reason: ReasonOption = "retention",
    by: ByOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Erase the bodies of calls that were completed long ago. Keys, digests and events stay; unresolved calls are left alone."""
    by = decider(reason, by)
    settings = load(config, {"state_dir": state_dir})
    through_ms = pruning.through_ms(older_than, before, settings.limits.retention_days, clock.now_ms())
    ask = pruning.Ask(through_ms, reason, by, dry_run)
    with tables.steps_progress(errors) as progress:
        document = run(pruning.prune(settings, ask, progress))
    if as_json:
        print_json(document)
    else:
        tables.pruned(out, document)
