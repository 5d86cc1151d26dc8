"""The audit as people see it in a terminal."""

from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.audit import wording
from proxy.audit.money import shown, spread
from proxy.audit.report import Report
from proxy.audit.spend import Category, Item

SHOWN: Final = 10  # attempts of one kind: a screen's worth; --json has them all
# The narrowest terminal that shows a column; the others always stand there.
_WIDE: Final = {
    "attempts": 100,
    "attached (log)": 200,
    "refused (log)": 160,
    "replayed (log)": 160,
    "no price": 140,
    "usage not stated": 140,
    "possibly billed failures": 120,
}
_TITLES: Final = {
    Category.UNKNOWN: "Unknown: what the provider did, or how much of it",
    Category.POSSIBLY_BILLED_FAILURE: "Failures that may have been billed",
    Category.UNSTATED: "Served, and the usage is not stated",
    Category.UNKNOWN_MODEL: "Served, and nobody knows the price",
}


def audit(console: Console, report: Report, options: str) -> None:
    console.print(wording.headline(report), markup=False, style="bold")
    for remark in wording.remarks(report):
        console.print(remark, markup=False)
    if report.groups:
        console.print(_table(console, report))
    for category, title in _TITLES.items():
        if items := report.listed[category]:
            _items(console, title, items, options)
    console.print(
        "(log): counted from the activity log, which is rotated and is no witness. What the numbers are not: docs/audit.md"
    )


def _table(console: Console, report: Report) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(report.ask.by.value, no_wrap=True, overflow="ellipsis")
    columns = [index for index, name in enumerate(wording.COLUMNS) if console.width >= _WIDE.get(name, 0)]
    for index in columns:
        table.add_column(wording.COLUMNS[index], justify="right")
    for name, row in report.groups.items():
        cells = wording.cells(row)
        table.add_row(Text(shown(name)), *(cells[index] for index in columns))
    if len(report.groups) > 1:
        cells = wording.cells(report.totals)
        table.add_row("all", *(cells[index] for index in columns), style="bold")
    return table


def _items(console: Console, title: str, items: tuple[Item, ...], options: str) -> None:
    console.print(f"\n{title} ({len(items)})", markup=False)
    for item in items[:SHOWN]:
        row = wording.item_row(item, options)
        cost = "" if item.category is Category.UNKNOWN_MODEL else f"{spread(item.cost)}  "
        about = f"{shown(row['attempt'])}  {row['started_at'] or ''}  {shown(row['model'] or '')}  {cost}{item.reason}"
        console.print(f"  {about}", markup=False)
        if item.category is not Category.UNKNOWN_MODEL:
            console.print(f"    bill: {wording.presumed(item)}", markup=False)
        if row["settle"]:
            console.print(f"    {row['settle']}", markup=False)
    if len(items) > SHOWN:
        console.print(f"  and {len(items) - SHOWN} more; --json has them all")
