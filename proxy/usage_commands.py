"""`sendonce usage`: a provider's usage export against the record, and what it proves about attempts of unknown effect."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ledger.ids import CallId
from proxy import owner, tables, usage_lines, usage_reading, wiring
from proxy.console import (
    EXIT_DECISION,
    ByOption,
    ConfigOption,
    JsonOption,
    StateDirOption,
    decider,
    errors,
    out,
    print_json,
    run,
)
from proxy.reconcile.usage_cells import DEFAULT_LONGEST_S, DEFAULT_SKEW_S, Scope
from proxy.reconcile.usage_csv import KEYS
from proxy.reconcile.usage_verdicts import Report, rulings
from proxy.reconcile.usage_windows import instant
from proxy.settings import Settings, SettingsError, load
from proxy.usage_reading import Ask, Compared

app = typer.Typer()


@app.command()
def usage(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Pages as the provider gave them, or a CSV.")],
    *,
    again: Annotated[
        list[Path] | None, typer.Option("--again", metavar="FILE", help="The same, fetched later. Repeatable.")
    ] = None,
    upstream: Annotated[str | None, typer.Option(help="Whose export it is, as on record.")] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="KEY=COLUMN", help=f"For a CSV. Keys: {', '.join(KEYS)}. Repeatable."),
    ] = None,
    api_key_id: Annotated[
        list[str] | None, typer.Option(help="A key, as the export names it, that only sendonce uses. Repeatable.")
    ] = None,
    longest_s: Annotated[
        float, typer.Option(min=0, max=604_800, help="How long the provider may have worked on what has no end.")
    ] = DEFAULT_LONGEST_S,
    skew_s: Annotated[
        float, typer.Option(min=0, max=86_400, help="How far the two clocks may differ.")
    ] = DEFAULT_SKEW_S,
    settled: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="Instead of --again: why the numbers are final. Goes on record."),
    ] = None,
    decide: Annotated[
        bool, typer.Option("--decide", help="Record the verdicts; without it nothing is written.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Goes on record, word for word.")] = "",
    by: ByOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold a usage export against the record, and prove what it can about calls of unknown effect."""
    if decide:
        by = decider(reason, by)
    elif reason or by:
        raise SettingsError(
            "--reason and --by say why and who decides, and without --decide nobody does. Add --decide."
        )
    if settled is not None and not settled.strip():
        raise SettingsError("--settled is empty. Say why the numbers are final, for whoever reads the record.")
    settings = load(config, {"state_dir": state_dir})
    scope = Scope(int(skew_s * 1000), int(longest_s * 1000), frozenset(api_key_id or ()))
    columns = usage_reading.columns_of(mapping or (), KEYS)
    ask = Ask(tuple(files), tuple(again or ()), upstream, columns, scope, settled)
    with tables.steps_progress(errors) as progress:
        found, decided = run(_usage(settings, ask, progress, reason, by if decide else None))
    command = _command(ask, mapping or [], state_dir, config)
    document = _document(found, decided, command)
    if as_json:
        print_json(document)
    else:
        _show(out, found, document)
    if decide and not decided and found.report is not None and not found.report.final:
        raise typer.Exit(EXIT_DECISION)


async def _usage(
    settings: Settings, ask: Ask, progress: usage_reading.Progress, reason: str, by: str | None
) -> tuple[Compared, Mapping[CallId, str]]:
    """`by`: who decides; None: nobody does, and nothing is written."""
    if by is not None:
        await owner.settle(
            settings, {}
        )  # where nobody serves: a start, which salvages what a dead process had received
    found = await usage_reading.compared(settings, wiring.state_dir_of(settings), ask, progress)
    if by is None or found.report is None:
        return found, {}
    decisions = rulings(found.report, reason, by)
    return found, await owner.settle(settings, decisions) if decisions else {}


def _command(ask: Ask, mapping: list[str], state_dir: Path | None, config: Path | None) -> str:
    """What records it, to be copied."""
    words = ["sendonce", "usage", *map(str, ask.files)]
    words += [word for path in ask.again for word in ("--again", str(path))]
    words += [word for pair in mapping for word in ("--map", pair)]
    words += [word for key in sorted(ask.scope.api_key_ids) for word in ("--api-key-id", key)]
    options: list[tuple[str, object]] = [
        ("--upstream", ask.upstream),
        ("--settled", ask.settled),
        ("--longest-s", ask.scope.longest_ms / 1000 if ask.scope.longest_ms != DEFAULT_LONGEST_S * 1000 else None),
        ("--skew-s", ask.scope.skew_ms / 1000 if ask.scope.skew_ms != DEFAULT_SKEW_S * 1000 else None),
        ("--config", config),
        ("--state-dir", state_dir),
    ]
    words += [word for name, value in options if value is not None for word in (name, str(value))]
    return f'{shlex.join(words)} --decide --reason "…"'


def _document(found: Compared, decided: Mapping[CallId, str], command: str) -> dict[str, Any]:
    export, report = found.export, found.report
    return {
        "upstream": found.upstream,
        "export": {
            "source": export.source,
            "kind": export.kind,
            "start": instant(export.start_ms),
            "end": instant(export.end_ms),
            "rows": len(export.cells),
            "files": dict(export.files),
        },
        "preconditions": [asdict(one) for one in report.preconditions] if report else [],
        "hypotheses": [str(one) for one in report.algebra.hypotheses] if report else [],
        "alarms": list(report.alarms) if report else [],
        "final": report.final if report else False,
        "verdicts": _verdicts(report) if report else [],
        "lines": [usage_lines.row(line) for line in found.lines],
        "decided": dict(decided),
        "command": command if report and not decided and any(one.settles for one in report.findings) else None,
    }


def _verdicts(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "attempt": one.placed.attempt.attempt,
            "call_id": one.placed.attempt.call,
            "verdict": one.verdict.value,
            "settles": one.settles,
            "why": one.why,
        }
        for one in report.findings
    ]


def _show(console: Console, found: Compared, document: dict[str, Any]) -> None:
    about = document["export"]
    console.print(
        f"{about['source']} {about['kind']}, {about['start']} to {about['end']}, {about['rows']} rows, against {found.upstream}",
        markup=False,
    )
    usage_lines.show(console, found.lines)
    for alarm in document["alarms"]:
        console.print(f"ALARM  {alarm}", style="red", markup=False)
    for one in document["preconditions"]:
        console.print(f"{one['name']:<11}{one['holds']:<10} {one['says']}", markup=False)
    would = "" if document["final"] else "would be "
    for one in document["verdicts"]:
        console.print(f"{one['attempt']}: {would}{one['verdict']}: {one['why']}", markup=False)
    if found.report is not None and not document["verdicts"]:
        console.print("No attempt on record of this upstream is both unknown and undecided.")
    for sentence in document["decided"].values():
        console.print(sentence, markup=False)
    if document["command"]:
        console.print(
            f"Record it: {document['command']}"
            if document["final"]
            else f"Once settled (--again FILE, or --settled REASON): {document['command']}",
            markup=False,
        )
