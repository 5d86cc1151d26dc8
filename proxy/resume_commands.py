"""What goes on from the record: `resume` sends what provably never left, `reinterpret` reads preserved answers anew."""

import os
from typing import Annotated, Any, Final

import typer

from ledger.epochs import StateDir
from ledger.ids import CallId
from ledger.reader import open_reader
from ledger.stages import Effect
from proxy import owner, tables, wiring
from proxy.console import EXIT_DECISION, ConfigOption, JsonOption, StateDirOption, errors, out, print_json, run
from proxy.credentials import credential
from proxy.owner import NotFoundError
from proxy.settings import Settings, load
from proxy.tables import Progressing

app = typer.Typer()
NEXT: Final = {
    Effect.HAPPENED: "Its client gets the answer when it asks again.",
    Effect.ABSENT: "The provider did not serve it, so it can be resumed again: look with sendonce show.",
    Effect.ANSWERED: "The provider answered that it failed: look with sendonce show.",
    Effect.UNKNOWN: "Whether the provider served it is unknown now: look with sendonce show.",
}


@app.command()
def resume(
    call: str,
    *,
    seq: Annotated[
        int | None,
        typer.Option("--head", metavar="SEQ", help="The call's newest event as you saw it; another one refuses."),
    ] = None,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Also without those headers of its client that are not on record.")
    ] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a call that provably never reached the provider, from its recorded bytes, with the key in your environment."""
    settings = load(config, {"state_dir": state_dir})
    with errors.status("waiting for the answer"):
        document = run(_resume(settings, CallId(call), seq, leaves_out=leave_out))
    if as_json:
        print_json(document)
    else:
        sentence = f"{document['call']} was resumed as {document['resumed_as']}: {document['stage']}, its effect is {document['effect']}."
        out.print(f"{sentence} {NEXT[Effect(document['effect'])]}", markup=False)
    if document["effect"] != Effect.HAPPENED:
        raise typer.Exit(EXIT_DECISION)


async def _resume(settings: Settings, call_id: CallId, seq: int | None, *, leaves_out: bool) -> dict[str, Any]:
    async with open_reader(wiring.state_dir_of(settings).ledger) as reader:
        call = await reader.call(call_id)
    if call is None or call.upstream not in settings.upstreams:
        raise NotFoundError(
            f"There is no call {call_id} of an upstream that is configured. `sendonce calls` lists them."
        )
    key = credential(call.upstream, settings.upstreams[call.upstream], os.environ)
    asked = {
        "call": call_id,
        "head": None if seq is None else [seq, call.head_chain if seq == call.last_seq else ""],
        "leaves_out": leaves_out,
        "credential": [(name.decode("latin-1"), value.decode("latin-1")) for name, value in key],
    }
    return await owner.ask(settings, "resume", asked)


@app.command()
def reinterpret(
    calls: Annotated[list[str] | None, typer.Argument(metavar="[CALL]...", help="Default: all.")] = None,
    *,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read preserved answers with this version, beside what older versions read. Nothing is replaced; no provider is asked."""
    settings = load(config, {"state_dir": state_dir})
    with tables.steps_progress(errors) as progress:
        document = run(_reinterpret(settings, calls or [], progress))
    if as_json:
        print_json(document)
        return
    out.print(
        f"{document['looked_at']} calls looked at; {len(document['added'])} answers were read anew.", markup=False
    )


async def _reinterpret(settings: Settings, calls: list[str], progress: Progressing) -> dict[str, Any]:
    total = len(calls) or await _count(wiring.state_dir_of(settings))
    looked_at, after = 0, ""
    added: list[str] = []
    async with owner.asking(settings) as ask:
        while True:
            page = await ask("reinterpret", {"calls": calls, "after": after})
            looked_at, added, after = looked_at + page["looked_at"], [*added, *page["added"]], page["last"]
            progress("calls", looked_at, total)
            if calls or after is None:
                return {"looked_at": looked_at, "added": added}


async def _count(state_dir: StateDir) -> int:
    async with open_reader(state_dir.ledger) as reader:
        return (await reader.counts())[0]
