"""A comparison of an export with the record, line by line: as rows for programs, for people, and for the audit's page."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.reconcile.usage_comparison import Line
from proxy.reconcile.usage_windows import instant

NUMBERS: Final = ("requests", "input_tokens", "output_tokens", "cost")
LINES_SHOWN: Final = 40  # that match; what does not is shown whole


def row(line: Line) -> dict[str, Any]:
    document = asdict(line) | {"start": instant(line.start_ms), "end": instant(line.end_ms)}
    for side in ("own", "export"):
        document[side] = {
            name: None if value is None else str(value) if name == "cost" else value
            for name, value in document[side].items()
        }
    return document


def page_rows(lines: Iterable[Line]) -> list[dict[str, str]]:
    """As the audit's page has them."""
    return [
        {
            "status": line.state,
            "window": f"{instant(line.start_ms)} to {instant(line.end_ms)}",
            "model": line.cell,
            "own": _words(line, "own"),
            "export": _words(line, "export"),
            "note": line.says,
        }
        for line in lines
    ]


def _words(line: Line, side: str) -> str:
    numbers = getattr(line, side)
    stated = {"requests": "requests", "input_tokens": "in", "output_tokens": "out", "cost": "cost"}
    return ", ".join(
        f"{getattr(numbers, name)} {word}" for name, word in stated.items() if getattr(numbers, name) is not None
    )


def show(console: Console, lines: Sequence[Line]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in (
        "from",
        "to",
        "cell",
        *(f"{name.replace('_tokens', '')} own/export" for name in NUMBERS),
        "unknown",
        "state",
    ):
        table.add_column(heading, no_wrap=True, overflow="ignore")
    matched = [line for line in lines if line.state == "matched"]
    for line in lines:
        if line.state == "matched" and len(matched) > LINES_SHOWN:
            continue
        numbers = [_pair(getattr(line.own, name), getattr(line.export, name)) for name in NUMBERS]
        words = f"{line.state}{': ' if line.says else ''}{line.says}"
        cells = (instant(line.start_ms), instant(line.end_ms), line.cell, *numbers, str(line.unknowns or ""), words)
        table.add_row(*map(Text, cells), style="red" if line.state == "unmatched" else None)
    if table.row_count:
        console.print(table)
    if len(matched) > LINES_SHOWN:
        console.print(f"and {len(matched)} cells that match: --json has them all")


def _pair(own: object, export: object) -> str:
    return (
        "" if own is None and export is None else f"{'?' if own is None else own}/{'?' if export is None else export}"
    )
