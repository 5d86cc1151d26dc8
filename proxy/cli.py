"""The command line. Reads append nothing and work whether the proxy lives or not; decisions go to the living owner.

Exit codes: 0 · 1 the demo failed · 2 usage or configuration · 3 port · 4 state dir · 5 witnesses · 6 a decision does not apply · 70 poisoned;
`verify` also 10 contradiction · 11 tampered · 12 truncated · 13 unreadable.
"""

import os
import signal
import sqlite3
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ledger import verifier
from ledger.bundle import BundleError
from ledger.epochs import StateDir
from ledger.errors import PoisonedError, StartRefusedError, UnreadableRecordError
from ledger.ids import CallId, Key
from ledger.queries import RESTORE
from ledger.stages import Stage
from proxy import (
    audit_commands,
    deciding,
    inspection,
    lookup_commands,
    resume_commands,
    run_commands,
    supervisor,
    systemd,
    tables,
    usage_commands,
    wiring,
)
from proxy import demo as demonstration
from proxy import evidence as evidences
from proxy.console import (
    EXIT_DECISION,
    EXIT_POISONED,
    EXIT_USAGE,
    ConfigOption,
    JsonOption,
    StateDirOption,
    errors,
    fail,
    out,
    print_json,
    run,
)
from proxy.control import OwnerSilentError, OwnerUnreachableError
from proxy.environment import ElsewhereError
from proxy.looking import LookupFailedError
from proxy.moments import BadMomentError
from proxy.owner import NotFoundError
from proxy.passes import BadRunError
from proxy.pruning import BadAgeError
from proxy.reconcile.operator import DecisionRefusedError
from proxy.reconcile.usage_exports import UnusableExportError
from proxy.running import NotRunError
from proxy.settings import Settings, SettingsError, load, upstream_overrides
from proxy.views import head_row

EXIT_DEMO, EXIT_PORT, EXIT_UNREADABLE = 1, 3, 13

# Which errors are sentences, their exit code, and what to add where the error is a library's.
_EXITS: Final[tuple[tuple[tuple[type[Exception], ...], int, str], ...]] = (
    (
        (SettingsError, NotFoundError, BundleError, BadAgeError, BadMomentError, BadRunError, ElsewhereError),
        EXIT_USAGE,
        "",
    ),
    ((NotRunError, UnusableExportError), EXIT_USAGE, ""),
    ((wiring.PortTakenError,), EXIT_PORT, ""),
    ((StartRefusedError,), StartRefusedError.exit_code, ""),
    ((UnreadableRecordError,), StartRefusedError.exit_code, ". Run sendonce doctor to see what else is damaged."),
    ((DecisionRefusedError, OwnerSilentError, LookupFailedError), EXIT_DECISION, ""),
    (
        (OwnerUnreachableError,),
        EXIT_DECISION,
        ". The proxy ended meanwhile; what is done is done. Run it again for the rest.",
    ),
    ((UnicodeError,), EXIT_USAGE, ". An argument or a file is not UTF-8 text."),
    (
        (sqlite3.Error, OSError),
        StartRefusedError.exit_code,
        ". The state directory cannot be used as it is: see to its disk and files.",
    ),
)

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__.splitlines()[0]
)
app.add_typer(deciding.app)
app.add_typer(run_commands.app)
app.add_typer(lookup_commands.app)
app.add_typer(resume_commands.app)
app.add_typer(audit_commands.app)
app.add_typer(usage_commands.app)

ProviderReceiptsOption = Annotated[
    Path | None,
    typer.Option(
        "--provider-receipts",
        help="What the provider wrote down itself: one JSON object a request with method, path, body_blake3, complete.",
    ),
]


def main() -> None:
    """The console script: errors are one sentence on stderr and an exit code, never a traceback."""
    try:
        code = app(standalone_mode=False)  # what typer.Exit carried; None where a command just returned
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_USAGE) from None
    except PoisonedError as poisoned:
        errors.print(f"sendonce: {poisoned}", markup=False)
        os._exit(EXIT_POISONED)  # like a kill: closing SQLite's files now would sync again what could not be synced
    except Exception as error:
        found = next(((exit_code, remedy) for kinds, exit_code, remedy in _EXITS if isinstance(error, kinds)), None)
        if found is not None:
            exit_code, remedy = found
            fail(f"{error}{remedy}", getattr(error, "exit_code", exit_code))
        if isinstance(error, typer.Abort):
            raise SystemExit(130) from None
        show = getattr(error, "format_message", None)  # click's usage errors; click itself is typer's business
        if show is None:
            raise
        if not (sentence := show().replace("Value error, ", "")):  # the help was printed instead
            raise SystemExit(EXIT_USAGE) from None
        fail(sentence, EXIT_USAGE)
    raise SystemExit(code)


def _version(asked: bool) -> None:
    if asked:
        out.print(f"sendonce {metadata.version('sendonce')}", markup=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and exit.")
    ] = False,
) -> None:
    """An HTTP reverse proxy that records before it sends, and refuses rather than guesses after a crash."""
    del version


@app.command()
def serve(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    host: Annotated[
        str | None, typer.Option(help="Beyond loopback only with TLS or --behind-tls-proxy, and a caller token.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Default 8787; 0 takes a free one and prints it.")] = None,
    behind_tls_proxy: Annotated[
        bool | None, typer.Option("--behind-tls-proxy", help="Something in front of --host terminates TLS.")
    ] = None,
    upstream: Annotated[
        list[str] | None, typer.Option(help="NAME=BASE_URL, repeatable; BASE_URL without the version path.")
    ] = None,
    supervised: Annotated[
        bool | None,
        typer.Option(
            "--supervisor/--no-supervisor",
            show_default=False,
            help="Replace the serving process when it dies (the default), or leave that to somebody else.",
        ),
    ] = None,
    lifeline_fd: Annotated[int | None, typer.Option("--lifeline-fd", hidden=True)] = None,
) -> None:
    """Run the proxy."""
    overrides: dict[str, Any] = {
        "state_dir": state_dir,
        "host": host,
        "port": port,
        "behind_tls_proxy": behind_tls_proxy,
        "upstreams": upstream_overrides(upstream or []) or None,
        "supervisor": supervised,
    }
    sockets = systemd.passed_sockets(os.environ)
    for sock in sockets:  # who can reach it is judged by the address that it really has
        overrides["host"], overrides["port"] = sock.getsockname()[:2]
        load(config, overrides)
    settings = load(config, overrides)
    sockets = sockets or (wiring.listen(settings.host, settings.port),)

    def read() -> Settings:
        return load(config, overrides)

    if not settings.supervisor:
        run(wiring.serve(settings, sockets, tables.announce, supervisor.rereads_aloud(read), None, lifeline_fd))
        return
    lock = wiring.owned(settings)  # between two lives, too: no other command may become the owner
    serving = supervisor.hold(settings, sockets, read, lifeline_fd)  # it returns in each child, and only there
    announce = tables.announce if serving.is_first else tables.announce_nothing
    run(wiring.serve(serving.settings, sockets, announce, serving.reread, serving.admits, serving.lifeline_fd, lock))


@app.command()
def status(state_dir: StateDirOption = None, as_json: JsonOption = False) -> None:
    """Is it running, what is in flight, what is unresolved?"""
    document = run(inspection.status(_state_dir(state_dir)))
    _show(document, tables.status, as_json=as_json)


@app.command()
def calls(
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
    stage: Annotated[Stage | None, typer.Option(help="Only calls in this stage.")] = None,
    key: Annotated[str | None, typer.Option(help="Only calls of this idempotency key.")] = None,
    would_refuse: Annotated[
        bool, typer.Option("--would-refuse", help='Only calls that mode "enforce" would have refused.')
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many of the newest calls to look at.")] = 1000,
) -> None:
    """The newest calls, what each is, and what is safe next."""
    found = run(inspection.calls(_state_dir(state_dir), limit, Key(key) if key else None))
    rows = [
        row
        for row in found.rows
        if (stage is None or row["stage"] == stage) and (row["would_refuse"] or not would_refuse)
    ]
    _show(rows, tables.calls, as_json=as_json)
    if found.total > limit:
        errors.print(f"sendonce: the newest {limit} of {found.total} calls; --limit shows more.", markup=False)


@app.command()
def show(call: str, state_dir: StateDirOption = None, as_json: JsonOption = False) -> None:
    """One call: what was attempted, from which inputs, what failed, what is unresolved, what is safe next."""
    document = run(inspection.show(_state_dir(state_dir), CallId(call)))
    _show(document, tables.detail, as_json=as_json)


@app.command()
def doctor(config: ConfigOption = None, state_dir: StateDirOption = None, as_json: JsonOption = False) -> None:
    """Check the installation, the configuration and the state dir; reads everything, changes nothing."""
    settings = load(config, {"state_dir": state_dir})
    findings = run(inspection.doctor(settings, wiring.state_dir_of(settings)))
    _show([finding.row() for finding in findings], tables.findings, as_json=as_json)
    raise typer.Exit(0 if all(finding.ok for finding in findings) else StartRefusedError.exit_code)


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="A new directory; it will hold every body in the plain.")],
    provider_receipts: ProviderReceiptsOption = None,
    inspections: Annotated[
        Path | None, typer.Option(help="Lines of earlier inspections, to be checked against what the ledger says now.")
    ] = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write everything as plain files, for an auditor: python -m ledger.verifier DIRECTORY."""
    with tables.bodies_progress(errors) as progress:
        made = run(evidences.export(_state_dir(state_dir), directory, progress, provider_receipts, inspections))
    document = {
        "directory": str(made.directory),
        "head": head_row(made.head),
        "bodies": made.bodies,
        "unreadable": made.unreadable,
    }
    _show(document, tables.exported, as_json=as_json)


@app.command()
def verify(
    provider_receipts: ProviderReceiptsOption = None,
    work_dir: Annotated[
        Path | None,
        typer.Option(help="Where the bundle may stand while it is checked. Default: the system's folder for such."),
    ] = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have the independent verifier check the state dir, beside a living proxy or without one."""
    paths = _state_dir(state_dir)
    for signum in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C does: what was written out in the plain is removed
        signal.signal(signum, lambda number, _: sys.exit(128 + number))
    try:
        with tables.bodies_progress(errors) as progress:
            report = run(evidences.verify(paths, work_dir, progress, provider_receipts))
    except (UnreadableRecordError, sqlite3.DatabaseError) as error:
        fail(f"UNREADABLE. {str(error).removesuffix(RESTORE).rstrip('. ')}. {RESTORE}", EXIT_UNREADABLE)
    text = verifier.as_json(report) if as_json else verifier.render(report)
    sys.stdout.write(text + "\n")
    raise typer.Exit(report.exit_code)


@app.command()
def demo(
    evidence: Annotated[
        Path | None,
        typer.Option("--evidence", help="Keep everything in this new directory: ledgers, receipts, inspections."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """See it live: proxies are killed, started again and asked again, and the provider counts."""
    outcomes = demonstration.run(evidence, errors)
    if as_json:
        print_json(demonstration.document(outcomes))
    else:
        demonstration.table(out, outcomes)
    raise typer.Exit(EXIT_DEMO if any(outcome.failures for outcome in outcomes) else 0)


def _state_dir(state_dir: Path | None) -> StateDir:
    return wiring.state_dir_of(load(None, {"state_dir": state_dir}))


def _show(document: Any, table: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        table(out, document)
