"""The commands about runs: `run`, `env`, `runs`."""

import secrets
import shlex
from pathlib import Path
from typing import Annotated, Final

import orjson
import typer

from ledger.events import OnDivergence
from proxy import clock, environment, running, runs, tables, wiring
from proxy.console import EXIT_USAGE, ConfigOption, JsonOption, StateDirOption, errors, fail, out, print_json, run
from proxy.owner import NotFoundError
from proxy.passes import checked_run
from proxy.settings import command_options, load, upstream_overrides
from proxy.views import instant

app = typer.Typer()
NEW_ID_BYTES: Final = 3  # beside the day: two runs of one day get the same id once in millions

UpstreamOption = Annotated[
    list[str] | None, typer.Option(help="NAME=BASE_URL, repeatable; for a proxy that is started for the command.")
]
DivergenceOption = Annotated[
    OnDivergence,
    typer.Option(
        help="What becomes of a request that no earlier start made while one of theirs is unknown: refuse, or continue and send it."
    ),
]


@app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run_(
    command: Annotated[list[str], typer.Argument(help="Behind --: the program and its arguments, unmodified.")],
    run_id: Annotated[
        str | None, typer.Option("--id", help="Names the run; the same id again continues it. Default: a new one.")
    ] = None,
    on_divergence: DivergenceOption = "refuse",
    report: Annotated[
        Path | None, typer.Option(help="Write what `runs RUN --json` says at the end to this file.")
    ] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    upstream: UpstreamOption = None,
) -> None:
    """Start a program so that starting it again continues it: what is answered on record is not paid for again."""
    name = checked_run(_new_id() if run_id is None else run_id)
    running.checked_command(command)
    if report is not None:
        _check_writable(report)
    overrides = {"state_dir": state_dir, "upstreams": upstream_overrides(upstream or []) or None}
    settings = load(config, overrides)
    paths = wiring.state_dir_of(settings)
    arguments = ["--state-dir", str(paths.root), *(("--config", str(config)) if config else ())]
    arguments += [word for pair in upstream or () for word in ("--upstream", pair)]
    with running.proxy_for(paths, arguments, settings.timeouts.stop_s) as owner:
        owner.variables(owner.url)  # one that points elsewhere is said before anything is opened
        opened = running.open_pass(paths, name, on_divergence)
        _say_opened(opened, command_options(paths.root))
        variables = owner.variables(opened.base)
        code = running.run_command(environment.with_codex_option(command, opened.base), variables)
        document = run(runs.run_detail(paths, name))
    row = next(row for row in document["passes"] if row["pass"] == opened.number)
    errors.print(f"sendonce: {tables.pass_sentence(name, row)}", markup=False)
    if document["gates"]:
        errors.print(
            f"sendonce: what may stand in the way of the next start ({len(document['gates'])}): "
            f"sendonce runs {name}{command_options(paths.root)}",
            markup=False,
        )
    if report is not None:
        report.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    raise typer.Exit(code)


@app.command()
def env(
    run_id: Annotated[
        str | None, typer.Option("--id", help="Open a new pass of this run; its base URLs are printed.")
    ] = None,
    on_divergence: DivergenceOption = "refuse",
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the variables that point every SDK at the running proxy, for a shell: eval "$(sendonce env)"."""
    paths = wiring.state_dir_of(load(config, {"state_dir": state_dir}))
    if run_id is not None:
        checked_run(run_id)
    if (owner := running.owner_of(paths)) is None or owner.draining:
        raise NotFoundError(f"No proxy runs over {paths.root}. Start it: sendonce serve{command_options(paths.root)}")
    base, variables = owner.url, owner.variables(owner.url)
    if run_id is not None:
        opened = running.open_pass(paths, run_id, on_divergence)
        _say_opened(opened, command_options(paths.root))
        base, variables = opened.base, owner.variables(opened.base)
    if as_json:
        print_json(variables | {"codex": ["-c", environment.codex_option(base)]})
        return
    for name, value in variables.items():
        out.print(f"export {name}={shlex.quote(value)}", markup=False)
    out.print(f"# codex -c {shlex.quote(environment.codex_option(base))} …", markup=False)


@app.command("runs")
def runs_(
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN]", help="One run with its passes.")] = None,
    state_dir: StateDirOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many of the newest runs.")] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Runs and their passes: what each sent, got from the record, was refused, and what stands in the way of the next."""
    paths = wiring.state_dir_of(load(None, {"state_dir": state_dir}))
    if run_id is None:
        rows = run(runs.runs(paths, limit))
        print_json(rows) if as_json else tables.runs(out, rows)
        return
    document = run(runs.run_detail(paths, run_id))
    print_json(document) if as_json else tables.run_detail(out, document)


def _check_writable(report: Path) -> None:
    try:
        report.open("ab").close()
    except OSError as error:
        fail(
            f"--report {report} cannot be written ({error.strerror}). Name a file in a directory that is there.",
            EXIT_USAGE,
        )


def _new_id() -> str:
    day = (instant(clock.now_ms()) or "")[:10]
    return f"{day}-{secrets.token_hex(NEW_ID_BYTES)}"


def _say_opened(opened: running.Pass, options: str) -> None:
    closed = f"; it closes pass {opened.earlier}, opened at {instant(opened.earlier_at_ms)}" if opened.earlier else ""
    errors.print(f"sendonce: run {opened.run}, pass {opened.number}{closed}", markup=False)
    for gate in opened.gates:
        errors.print(f"sendonce: {gate['code']}: {gate['sentence']}", markup=False)
    if opened.gates:
        errors.print(
            f"sendonce: look at them, and settle what you can: sendonce runs {opened.run}{options}", markup=False
        )
