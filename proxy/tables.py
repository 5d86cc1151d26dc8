"""What people see: rich tables of the rows that `--json` gives whole."""

import socket
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.inspection import ROTATING
from proxy.services import Services


def announce(services: Services, sock: socket.socket) -> None:
    """Where it listens, where it records, and the line to set in each SDK."""
    host, port = sock.getsockname()[:2]
    base = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"sendonce listens on {base}, epoch {services.epoch}")
    print(f"state dir {services.state_dir.root}")
    print(f"  OPENAI_BASE_URL={base}/openai/v1")
    print(f"  ANTHROPIC_BASE_URL={base}/anthropic")
    print(f"  others: {', '.join(f'{base}/{name}' for name in services.settings.upstreams)}", flush=True)


def calls(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("call", no_wrap=True)  # to be copied
    for heading in ("created", "upstream", "model", "stage", "effect", "next operation"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        style = "red" if row["duplicate_effect_risk"] else None
        created = (row["created_at"] or "")[:19].replace("T", " ")
        cells = (
            row["call_id"],
            created,
            row["upstream"],
            row["model"] or "",
            row["stage"],
            row["effect"],
            row["next_operation"],
        )
        table.add_row(*(Text(str(cell)) for cell in cells), style=style)  # a model's name may look like markup
    console.print(table if rows else "No calls.")


def status(console: Console, document: dict[str, Any]) -> None:
    console.print(f"state dir   {document['state_dir']}", markup=False)
    console.print(f"running     {'yes' if document['running'] else 'no'}, epoch {document['epoch']}", markup=False)
    console.print(f"calls       {document['calls']}, events {document['events']}", markup=False)
    for stage, count in sorted(document["stages"].items()):
        console.print(f"  {count:>6} {stage}", markup=False)
    if document["unresolved"]:
        console.print(f"unresolved  {len(document['unresolved'])}: an effect may have happened", style="red")
        for call in document["unresolved"][:10]:
            console.print(f"  sendonce show {call}", markup=False)
    if document["rotating"]:
        console.print(
            f"callers     {len(document['rotating'])} of them are known by a short-lived credential only. {ROTATING}"
        )


def detail(console: Console, document: dict[str, Any]) -> None:
    for name in ("call_id", "stage", "effect", "next_operation", "reason", "upstream", "model", "usage", "body_blake3"):
        console.print(f"{name:<16}{document[name]}", markup=False)
    for attempt in document["attempt_rows"]:
        facts = ", ".join(
            f"{name} {value}" for name, value in attempt.items() if value is not None and name != "attempt"
        )
        console.print(f"{attempt['attempt']}: {facts}", markup=False)
    for event in document["events"]:
        console.print(f"{event['seq']:>8}  {event['at']}  {event['kind']}", markup=False)
    if document["next_operation"] == "reconcile_effect":
        flags = "--served|--not-served|--accept-duplicate|--park"
        console.print(f'next: sendonce reconcile {document["call_id"]} {flags} --reason "…"', markup=False)


def findings(console: Console, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        console.print(
            f"{'ok ' if row['ok'] else 'BAD'}  {row['what']:<12} {row['says']}",
            markup=False,
            style=None if row["ok"] else "red",
        )
