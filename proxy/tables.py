"""What people see: rich tables of the rows that `--json` gives whole."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text

from proxy.inspection import ROTATING
from proxy.services import Services
from proxy.settings import command_options

UNRESOLVED_SHOWN: Final = 10  # a screen's worth


def announce(services: Services) -> None:
    """Where it listens, where it records, and the line to set in each SDK."""
    base = services.url
    print(f"sendonce listens on {base}, epoch {services.epoch}")
    print(f"state dir {services.state_dir.root}")
    print(f"  OPENAI_BASE_URL={base}/openai/v1")
    print(f"  ANTHROPIC_BASE_URL={base}/anthropic")
    print(f"  others: {', '.join(f'{base}/{name}' for name in services.settings.upstreams)}", flush=True)


def announce_nothing(services: Services) -> None:
    """A replacement listens where the first one did."""


# Heading, field, narrowest terminal that shows it. Ids, stages and operations are never folded: they are copied and grepped.
_CALLS_COLUMNS = (
    ("call", "call_id", 0),
    ("created", "created_at", 130),
    ("upstream", "upstream", 130),
    ("model", "model", 100),
    ("stage", "stage", 0),
    ("effect", "effect", 0),
    ("next operation", "next_operation", 0),
)


def calls(console: Console, rows: list[dict[str, Any]]) -> None:
    columns = [(heading, field) for heading, field, narrowest in _CALLS_COLUMNS if console.width >= narrowest]
    if any(row["would_refuse"] for row in rows):
        columns.append(("enforce would refuse", "would_refuse"))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading, _ in columns:
        table.add_column(heading, no_wrap=True, overflow="ellipsis" if heading == "model" else "ignore")
    for row in rows:
        style = "red" if row["duplicate_effect_risk"] else None
        shown = row | {"stage": f"{row['stage']} (erased)"} if row["erased"] else row
        cells = (Text(str(shown[field] or "")[:40]) for _, field in columns)  # a model's name may look like markup
        table.add_row(*cells, style=style)
    console.print(table if rows else "No calls.")


@contextmanager
def bodies_progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar while bodies are written out; nothing where stderr is no terminal."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("bodies", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


Progressing = Callable[[str, int, int], None]  # which step, how much of it is done, of how much


@contextmanager
def steps_progress(console: Console) -> Iterator[Progressing]:
    """A bar for each step of a long command, as they come; nothing where stderr is no terminal."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def step(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=None)
            bar.update(tasks[what], completed=done, total=total)

        yield step


def pruned(console: Console, document: dict[str, Any]) -> None:
    """What was done, in sentences that stay true in a dry run."""
    would = "would be" if document["dry_run"] else "were"
    through = document["completed_through"]
    console.print(
        f"{document['calls']} calls completed or continued through {through}: {document['bodies']} bodies "
        f"({decimal(document['body_bytes'])}) {would} erased. Their keys, digests and events stay.",
        markup=False,
    )
    if shared := document["kept_elsewhere"]:
        console.print(f"{shared} bodies are kept by other calls too: erased for these, their bytes stay for those.")
    console.print(
        f"{document['chunks']} chunks ({decimal(document['chunk_bytes'])} in the file) {would} freed. The file does not shrink: "
        f"its free pages, {decimal(document['free_bytes'])} now, are used again."
    )
    if document["skipped"]:
        console.print(
            f"{document['skipped']} calls as old keep their bodies, which are their evidence: nobody continued them, and it is "
            f"not proven what became of them. The oldest is of {document['oldest_skipped_at']}: "
            f"sendonce show {document['oldest_skipped']}{command_options(Path(document['state_dir']))}",
            markup=False,
        )
    if document["left"]:
        console.print(document["left"], style="red")


def exported(console: Console, document: dict[str, Any]) -> None:
    events = document["head"]["seq"] if document["head"] else 0
    console.print(f"{document['directory']}: {events} events, {document['bodies']} bodies, in the plain.", markup=False)
    for digest, sentence in document["unreadable"].items():
        console.print(f"left out: {digest}: {sentence}", style="red", markup=False)
    console.print(f"Check it with: python -m ledger.verifier {shlex.quote(document['directory'])}", markup=False)


def status(console: Console, document: dict[str, Any]) -> None:
    _say(console, "state dir", document["state_dir"])
    _say(console, "running", f"{'yes' if document['running'] else 'no'}, epoch {document['epoch']}")
    _say(console, "calls", f"{document['calls']}, events {document['events']}")
    for stage, count in sorted(document["stages"].items()):
        _say(console, "", f"{count:>6} {stage}")
    if document["unresolved"]:
        console.print(f"unresolved            {len(document['unresolved'])}: an effect may have happened", style="red")
        for call in document["unresolved"][:UNRESOLVED_SHOWN]:
            _say(console, "", f"sendonce show {call}{command_options(Path(document['state_dir']))}")
        if (more := len(document["unresolved"]) - UNRESOLVED_SHOWN) > 0:
            _say(console, "", f"and {more} more: --json lists all")
    if document["rotating"]:
        _say(
            console,
            "callers",
            f"{len(document['rotating'])} of them are known by a short-lived credential only. {ROTATING}",
        )


TOOL_WORDS = {
    "yes": "its client got it",
    "no": "its client cannot have got it whole, so it cannot have run",
    "unknown": "its client may have got it and run it",
}


def detail(console: Console, document: dict[str, Any]) -> None:
    manifest, options = document["manifest"] or {}, command_options(Path(document["state_dir"]))
    for name in ("call_id", "created_at", "upstream", "stage", "effect", "next_operation", "reason"):
        _say(console, name, document[name])
    request = {"method": manifest.get("method"), "url": manifest.get("url"), "key": document["key"]}
    request |= {name: document[name] for name in ("key_source", "model", "stream", "body_blake3")}
    outcome = {name: document[name] for name in ("outcome", "finish_reason", "superseded_by")}
    outcome["usage"] = ", ".join(f"{name} {count}" for name, count in (document["usage"] or {}).items())
    outcome["delivered"] = ", ".join(document["delivered"])
    for name, value in {**request, **outcome}.items():
        _say(console, name, value)
    for attempt in document["attempt_rows"]:
        for name, value in attempt.items():
            _say(console, name if name == "attempt" else f"  {name}", value)
    for tool in document["tool_calls"]:
        _say(
            console,
            f"tool {tool['name']}",
            TOOL_WORDS[tool["relayed"]] + (f"; its result came in {tool['result_in']}" if tool["result_in"] else ""),
        )
    for decision in document["decisions"]:
        words = f"{decision['decision']} by {decision['authority']['name']} at {decision['at']}: {decision['reason']}"
        _say(console, f"decision {decision['seq']}", words)
    for erasure in document["erasures"]:
        words = f"{erasure['digest']}, by {erasure['by']} at {erasure['at']}: {erasure['why']}"
        _say(console, f"erased {erasure['which']}", words)
    for event in document["events"]:
        _say(console, str(event["seq"]), f"{event['at']}  {event['kind']}")
    _say_what_settles(console, document, options)


def _say_what_settles(console: Console, document: dict[str, Any], options: str) -> None:
    if document["next_operation"] == "reconcile_effect" or (document["stage"] == "closed" and not document["erased"]):
        succeeds = f" --succeeds {document['decisions'][-1]['seq']}" if document["decisions"] else ""
        if document["next_operation"] == "reconcile_effect":
            _say(console, "next", f"sendonce lookup {document['call_id']}{options}  # asks the provider, or")
        command = f"sendonce reconcile {document['call_id']}{options}{succeeds}"
        _say(console, "next", f'{command} --reason "…" --park  # or --served, --not-served, --accept-duplicate')


def pass_sentence(run: str, row: dict[str, Any]) -> str:
    usage = ", ".join(f"{name} {count}" for name, count in row["usage"].items()) or "nothing counted"
    return (
        f"run {run}, pass {row['pass']}: {row['sent']} sent, {row['replayed'] + row['attached']} from the record, "
        f"{row['refused']} refused, {row['diverged']} diverged; spent: {usage}"
    )


def runs(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("run", "passes", "calls", "unresolved", "newest pass"):
        table.add_column(heading, no_wrap=True, overflow="ignore")
    for row in rows:
        cells = (row["run"], row["passes"], row["calls"], row["unresolved"], row["newest_pass_at"])
        table.add_row(*(Text(str(cell)) for cell in cells), style="red" if row["unresolved"] else None)
    console.print(table if rows else "No runs.")


def run_detail(console: Console, document: dict[str, Any]) -> None:
    for row in document["passes"]:
        console.print(f"{row['opened_at']}  {pass_sentence(document['run'], row)}", markup=False)
    console.print("(refusals are counted from the activity log, which is rotated and is no witness)")
    options = command_options(Path(document["state_dir"]))
    for gate in document["gates"]:
        what = "in flight" if gate["alive"] else gate["code"]
        console.print(f"{what}: {gate['sentence']}", style="red", markup=False)
        if gate["call"] is not None and not gate["alive"]:
            _say(console, "next", f"sendonce show {gate['call']}{options}")


def findings(console: Console, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        line = f"{'ok ' if row['ok'] else 'BAD'}  {row['what']:<12} {row['says']}"
        console.print(line, markup=False, style=None if row["ok"] else "red")


def _say(console: Console, name: str, value: object) -> None:
    if value not in (None, ""):
        console.print(f"{name:<22}{value}", markup=False)
