"""The audit as one page for a browser: no script, nothing loaded from anywhere, readable on a phone, on paper and in the dark."""

import io
from collections.abc import Mapping, Sequence
from decimal import Decimal
from importlib.resources import files
from itertools import islice
from typing import Any, Final

import matplotlib as mpl
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from proxy.audit import wording
from proxy.audit.money import dollars, shown, spread
from proxy.audit.prices import version
from proxy.audit.report import Report, Row
from proxy.audit.spend import Category, Item
from proxy.views import instant

LISTED: Final = 200  # attempts of one kind on the page; --json has them all
BARS_OVER_TIME: Final = 120  # the newest; more would be thinner than a line
BARS_BY_MODEL: Final = 12
LABELS_OVER_TIME: Final = 6  # as wide as minutes are
WIDTH_IN: Final = 8.0
TIME_HEIGHT_IN: Final = 2.8
BAR_HEIGHT_IN: Final = 0.34
LABEL_CHARS: Final = 28  # of a model beside its bar
INK: Final = "#7a828e"  # of text and axes: read on white and on black
KNOWN, POSSIBLE = "#2f7fd3", "#e0a030"
# Fixed where matplotlib would take what the machine has: the same report gives the same bytes.
_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar sign is no formula, and a model's name is anybody's
    "font.family": ["sans-serif"],
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

Comparison = Sequence[Mapping[str, Any]]


def page(report: Report, options: str, comparison: Comparison = ()) -> str:
    """`comparison`: lines with status, window, model, own, export, note; the section is left out where there are none."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["shown"] = shown
    template = environment.from_string(files("proxy.audit").joinpath("page.html.j2").read_text())
    ask, row = report.ask, report.totals
    return template.render(
        headline=wording.headline(report),
        remarks=wording.remarks(report),
        ask=ask,
        since=instant(ask.since_ms),
        until=instant(ask.until_ms),
        cards=_cards(row),
        charts=[chart for chart in (_over_time(report), _by_model(report)) if chart is not None],
        columns=wording.COLUMNS,
        rows=[(name, wording.cells(group)) for name, group in report.groups.items()],
        totals=wording.cells(row),
        lists=[_listed(title, report.listed[category], options) for category, title in _TITLES.items()],
        unpriced=_unpriced(report.listed[Category.UNKNOWN_MODEL]),
        assumptions=wording.ASSUMPTIONS,
        comparison=list(comparison),
        price_list=f"genai-prices {version()}",
    )


_TITLES: Final = {
    Category.UNKNOWN: "Unknown: what the provider did, or how much of it",
    Category.POSSIBLY_BILLED_FAILURE: "Failures that may have been billed",
    Category.UNSTATED: "Served, and the usage is not stated",
}


def _cards(row: Row) -> list[tuple[str, str, str]]:
    counts = row.counts
    return [
        ("Known", dollars(row.known), f"{counts[Category.KNOWN]} of {row.attempts} attempts"),
        ("Possible extra", spread(row.cost(Category.UNKNOWN)), f"{counts[Category.UNKNOWN]} unknown attempts"),
        (
            "Possibly billed failures",
            spread(row.cost(Category.POSSIBLY_BILLED_FAILURE)),
            f"{counts[Category.POSSIBLY_BILLED_FAILURE]} attempts",
        ),
        ("Usage not stated", spread(row.cost(Category.UNSTATED)), f"{counts[Category.UNSTATED]} attempts"),
        ("Not paid (log)", spread(row.not_spent), f"{row.avoided} duplicates avoided"),
        ("Accepted duplicates", str(row.accepted_duplicates), "attempts followed by another, as somebody allowed"),
    ]


def _listed(title: str, items: tuple[Item, ...], options: str) -> dict[str, Any]:
    rows = [
        wording.item_row(item, options) | {"between": spread(item.cost), "presumed": wording.presumed(item)}
        for item in islice(items, LISTED)
    ]
    return {"title": title, "count": len(items), "rows": rows, "more": len(items) - len(rows)}


def _unpriced(items: tuple[Item, ...]) -> list[dict[str, Any]]:
    """By what is said of them: one line a model rather than one an attempt."""
    found: dict[tuple[str, str, str], list[Item]] = {}
    for item in items:
        found.setdefault((item.attempt.upstream, item.attempt.model or "", item.reason), []).append(item)
    return [
        {
            "upstream": upstream,
            "model": model,
            "reason": reason,
            "attempts": len(of_model),
            "tokens_in": sum(item.attempt.tokens.input for item in of_model if item.attempt.tokens),
            "tokens_out": sum(item.attempt.tokens.output for item in of_model if item.attempt.tokens),
        }
        for (upstream, model, reason), of_model in found.items()
    ]


# --- charts ---


def _over_time(report: Report) -> dict[str, Any] | None:
    rows = list(report.over_time.items())[-BARS_OVER_TIME:]
    if not any(_amounts(row) for _, row in rows):
        return None
    with mpl.rc_context({**_STYLE, "svg.hashsalt": "time"}):
        figure = Figure(figsize=(WIDTH_IN, TIME_HEIGHT_IN), layout="constrained")
        axes = figure.add_subplot()
        places = range(len(rows))
        known, possible = _series(rows)
        axes.bar(places, known, color=KNOWN, width=0.7, label="known")
        axes.bar(places, possible, bottom=known, color=POSSIBLE, width=0.7, label="possible extra, at most")
        step = -(-len(rows) // LABELS_OVER_TIME)
        axes.set_xticks(list(places)[::step], [name for name, _ in rows][::step])
        axes.set_xlim(-0.6, max(len(rows), 6) - 0.4)
        axes.yaxis.set_major_formatter(_MONEY)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 1.18), ncols=2)
        svg = _svg(figure)
    cut = len(report.over_time) - len(rows)
    return {
        "title": "Spend over time",
        "svg": svg,
        "note": f"The newest {len(rows)}; {cut} earlier ones are in the table." if cut else "",
    }


def _by_model(report: Report) -> dict[str, Any] | None:
    rows = [(name, row) for name, row in report.by_model.items() if _amounts(row)]
    rows.sort(key=lambda pair: pair[1].at_most, reverse=True)
    if not rows:
        return None
    chosen = rows[:BARS_BY_MODEL][::-1]
    with mpl.rc_context({**_STYLE, "svg.hashsalt": "model"}):
        figure = Figure(figsize=(WIDTH_IN, 0.7 + BAR_HEIGHT_IN * max(len(chosen), 2)), layout="constrained")
        axes: Axes = figure.add_subplot()
        places = range(len(chosen))
        known, possible = _series(chosen)
        axes.barh(places, known, color=KNOWN, height=0.6)
        axes.barh(places, possible, left=known, color=POSSIBLE, height=0.6)
        axes.set_yticks(list(places), [_label(name) for name, _ in chosen])
        axes.set_ylim(-0.6, max(len(chosen), 2) - 0.4)
        axes.xaxis.set_major_formatter(_MONEY)
        svg = _svg(figure)
    more = len(rows) - len(chosen)
    return {"title": "Spend by model", "svg": svg, "note": f"The {len(chosen)} largest of {len(rows)}." if more else ""}


_MONEY: Final = FuncFormatter(lambda value, _: dollars(Decimal(str(round(value, 9)))))


def _amounts(row: Row) -> bool:
    return bool(row.at_most)


def _series(rows: list[tuple[str, Row]]) -> tuple[list[float], list[float]]:
    """Known, and what the unknown ones may add at most as far as they have an upper bound: as drawn, not as counted."""
    return [float(row.known) for _, row in rows], [float(row.cost(Category.UNKNOWN).upper) for _, row in rows]


def _label(name: str) -> str:
    text = shown(name)
    return text if len(text) <= LABEL_CHARS else text[: LABEL_CHARS - 1] + "…"


def _svg(figure: Figure) -> Markup:
    """Without the XML declaration and the date. Its texts are escaped by matplotlib."""
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    drawn = file.getvalue()
    return Markup(drawn[drawn.index("<svg") :])  # noqa: S704 - drawn here; names in it went through matplotlib's escaping
