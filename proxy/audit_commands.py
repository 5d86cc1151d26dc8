"""The command `audit`: what the calls cost, what a crash may have cost, and what was not paid because of sendonce. It only reads."""

import logging
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from proxy import tables, usage_lines, usage_reading, wiring
from proxy.audit import gathering, terminal, wording
from proxy.audit.prices import BadPriceSourceError
from proxy.audit.report import Ask, Bucket, By, Report
from proxy.console import EXIT_USAGE, ConfigOption, JsonOption, StateDirOption, errors, fail, out, print_json, run
from proxy.moments import moment_ms
from proxy.reconcile.usage_cells import Scope
from proxy.reconcile.usage_comparison import Line
from proxy.reconcile.usage_csv import KEYS
from proxy.settings import command_options, load

STDOUT = Path("-")

app = typer.Typer()

_MOMENT = "A date or a moment, in UTC where it names no zone: 2026-11-30, 2026-11-30T12:00."
CsvOption = Annotated[Path | None, typer.Option("--csv", help="Write the rows to this new file; - is stdout.")]
HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", help="Write one page for a browser to this new file: no script, nothing loaded."),
]


@app.command()
def audit(
    *,
    by: Annotated[By, typer.Option(help="What a row is.")] = By.TIME,
    bucket: Annotated[Bucket, typer.Option(help="How long a row of --by time is.")] = Bucket.DAY,
    since: Annotated[str | None, typer.Option(help=_MOMENT)] = None,
    until: Annotated[str | None, typer.Option(help="As --since; not in the range any more.")] = None,
    upstream: Annotated[str | None, typer.Option(help="Only of this upstream.")] = None,
    run_id: Annotated[str | None, typer.Option("--run", help="Only of this run.")] = None,
    export: Annotated[
        list[Path] | None,
        typer.Option("--export", metavar="FILE", help="Compare with this usage or cost export. Repeatable; see usage."),
    ] = None,
    mapping: Annotated[
        list[str] | None, typer.Option("--map", metavar="KEY=COLUMN", help="For an --export that is a CSV. Repeatable.")
    ] = None,
    api_key_id: Annotated[
        list[str] | None, typer.Option(help="A key, as the --export names it, that only sendonce uses. Repeatable.")
    ] = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """What did the calls cost, what may a crash have cost, what was not paid because of sendonce?"""
    if as_json and csv == STDOUT:
        fail("--json and --csv - both want stdout. Name a file for --csv.", EXIT_USAGE)
    if csv is not None and csv == html:
        fail(f"--csv and --html both name {csv}. Give each a file of its own.", EXIT_USAGE)
    ask = Ask(by, bucket, _moment("--since", since), _moment("--until", until), upstream, run_id)
    if ask.since_ms is not None and ask.until_ms is not None and ask.since_ms >= ask.until_ms:
        fail(f"--since {since} is not before --until {until}. There is nothing between them.", EXIT_USAGE)
    given = (("--csv", csv if csv != STDOUT else None), ("--html", html))
    files = [(option, path) for option, path in given if path is not None]
    for option, path in files:
        _check_new(option, path, force=force)
    settings = load(config, {"state_dir": state_dir})
    paths = wiring.state_dir_of(settings)
    try:
        with tables.steps_progress(errors) as progress:
            report = run(gathering.audit(settings, paths, ask, progress))
            lines: tuple[Line, ...] = ()
            if export:
                columns = usage_reading.columns_of(mapping or (), KEYS)
                asked = usage_reading.Ask(
                    tuple(export), (), upstream, columns, Scope(api_key_ids=frozenset(api_key_id or ()))
                )
                lines = run(usage_reading.compared(settings, paths, asked, progress, report.costs)).lines
    except BadPriceSourceError as error:
        fail(str(error), EXIT_USAGE)
    options = command_options(paths.root)
    if html is not None:
        _write("--html", html, _page(report, options, lines), force=force)
    if csv is not None and csv != STDOUT:
        _write("--csv", csv, wording.csv_text(report).encode(), force=force)
    _say(report, lines, paths.root, csv_on_stdout=csv == STDOUT, as_json=as_json)
    for _, path in files:
        errors.print(f"sendonce: wrote {path}", markup=False)


def _say(report: Report, lines: Sequence[Line], root: Path, *, csv_on_stdout: bool, as_json: bool) -> None:
    if csv_on_stdout:
        sys.stdout.write(wording.csv_text(report))
    elif as_json:
        document = wording.document(report, str(root), command_options(root))
        print_json({**document, "comparison": [usage_lines.row(line) for line in lines]})
    else:
        terminal.audit(out, report, command_options(root))
        usage_lines.show(out, lines)


def _page(report: Report, options: str, lines: Sequence[Line]) -> bytes:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it complains of homes that it cannot write its cache to
    from proxy.audit import page  # noqa: PLC0415 - what draws takes half a second to read

    return page.page(report, options, usage_lines.page_rows(lines)).encode()


def _moment(option: str, text: str | None) -> int | None:
    return None if text is None else moment_ms(text, option)


def _check_new(option: str, path: Path, *, force: bool) -> None:
    """Before anything is read: a long audit should not end with a file that cannot be written."""
    if path.is_dir() or not path.parent.is_dir():
        fail(f"{option} {path} cannot be written. Name a file in a directory that is there.", EXIT_USAGE)
    if path.exists() and not force:
        fail(f"{option} {path} is there already. Name a new file, or give --force to write over it.", EXIT_USAGE)


def _write(option: str, path: Path, data: bytes, *, force: bool) -> None:
    """All of it or nothing, and for nobody else to read: names and amounts are private."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if force:
                beside.replace(path)
            else:
                path.hardlink_to(beside)
        finally:
            beside.unlink(missing_ok=True)
    except FileExistsError:
        fail(f"{option} {path} is there already. Name a new file, or give --force to write over it.", EXIT_USAGE)
    except OSError as error:
        fail(
            f"{option} {path} cannot be written ({error.strerror}). Name a file in a directory that is there.",
            EXIT_USAGE,
        )
