"""A report in words and as data: its headline, what its numbers are not, rows for JSON, CSV and people. Pure."""

import csv
import io
import shlex
from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR
from typing import Any, Final

from ledger.stages import NextOperation
from proxy.audit.bounds import Presumption
from proxy.audit.money import dollars, plain, shown, spread
from proxy.audit.prices import version
from proxy.audit.report import Report, Row
from proxy.audit.spend import Category, Item
from proxy.views import instant

NONE: Final = "-"
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # with these a spreadsheet takes a text for a formula

# What every number is, and is not. Shown with each report, so that it can be read without this program's documents.
ASSUMPTIONS: Final = (
    (
        "Known is what the providers themselves stated (tokens), times the prices of a price list of the day of the call. It is no invoice: "
        "discounts, credits, taxes and commitments are not in it."
    ),
    (
        "An upper bound holds if a tokenizer makes at most one token of a byte, if a provider keeps the request's limit of its output "
        "(Gemini's limit counts its thinking too: reported, not documented), and if the price list has the right price and context window."
    ),
    "Where a request names no service tier, the standard price is taken. An account whose default is a faster tier pays more.",
    (
        "Not in any number: tools that the provider runs, except the web searches that Anthropic counts; what is kept for rent (files, "
        "caches); audio and images that Gemini counts among its input, which are priced as text."
    ),
    (
        "Not paid because of sendonce is an estimate: as much as the first answer cost, for every answer from the record and once for every call "
        "that was refused because its first try may have been served. It is counted from the activity log, which is no witness."
    ),
    "A decision of an operator moves an attempt to another line. It does not prove what the provider bills.",
)


def headline(report: Report) -> str:
    row = report.totals
    said = f"Not paid because of sendonce: {spread(row.not_spent)}."
    lines = f"Known: {dollars(row.known)}. {_unknown(row)} {said}"
    if row.counts[Category.UNKNOWN_MODEL]:
        lines += f" {row.counts[Category.UNKNOWN_MODEL]} answered attempts have no price and are in none of these."
    return lines


def _unknown(row: Row) -> str:
    """What the attempts may have cost of which nobody knows what became of them, or how much of them was served."""
    count, cost = row.counts[Category.UNKNOWN], row.cost(Category.UNKNOWN)
    if not count:
        return "Nothing is unknown."
    about, it = _what_is_unknown(count - row.decided_served, row.decided_served)
    if cost.unbounded == count:
        return f"{about} is unknown, and nothing bounds what {it} may have cost."
    low, high = dollars(cost.lower, ROUND_FLOOR), dollars(cost.upper, ROUND_CEILING)
    beside = f", and {cost.unbounded} of them have no upper bound" if cost.unbounded else ""
    return f"{about} is unknown, and may have cost between {low} and {high} more{beside}."


def _what_is_unknown(unknown: int, decided: int) -> tuple[str, str]:
    """As the beginning of a sentence, and as a word later in it."""

    def attempts(count: int) -> str:
        return "1 attempt" if count == 1 else f"{count} attempts"

    if not decided:
        return f"What became of {attempts(unknown)}", "that"
    served = f"{attempts(decided)} decided as served"
    if not unknown:
        return f"How much was served of {served}", "that"
    return f"What became of {attempts(unknown)}, and how much was served of {served},", "all that"


def remarks(report: Report) -> list[str]:
    """What about this report in particular has to be known to read it."""
    found = []
    if not report.totals.attempts and not report.totals.calls:
        found.append(
            "There is nothing on record in this range." if report.first_call_ms else "There is nothing on record yet."
        )
    reach, first = report.reach, report.first_call_ms
    if reach.is_missing and first is not None:
        found.append("There is no activity log: what was refused or given from the record is not counted.")
    elif reach.is_cut and first is not None and (reach.since_ms is None or reach.since_ms > first):
        found.append(
            f"The activity log was rotated and reaches back to {instant(reach.since_ms)}, the record to {instant(first)}: what was "
            "refused or given from the record before that is not counted."
        )
    if report.reach.unreadable:
        found.append(f"{report.reach.unreadable} lines of the activity log cannot be read.")
    if running := report.totals.counts[Category.IN_FLIGHT]:
        found.append(f"{running} attempts are in flight and not in the sums.")
    return found


# --- data ---


def document(report: Report, state_dir: str, options: str) -> dict[str, Any]:
    """The stable fields of `audit --json`. `options`: what a printed command must end with. Amounts are strings: exact decimals, in US dollars."""
    ask = report.ask
    return {
        "state_dir": state_dir,
        "currency": "USD",
        "price_list": f"genai-prices {version()}",
        "by": ask.by,
        "bucket": ask.bucket,
        "since": instant(ask.since_ms),
        "until": instant(ask.until_ms),
        "upstream": ask.upstream,
        "run": ask.run,
        "headline": headline(report),
        "remarks": remarks(report),
        "assumptions": list(ASSUMPTIONS),
        "log_reaches_back_to": instant(report.reach.since_ms),
        "log_lines_unreadable": report.reach.unreadable,
        "totals": fields_of(report.totals),
        "rows": [{"group": name, **fields_of(row)} for name, row in report.groups.items()],
        "unknown": [item_row(item, options) for item in report.listed[Category.UNKNOWN]],
        "possibly_billed_failures": [
            item_row(item, options) for item in report.listed[Category.POSSIBLY_BILLED_FAILURE]
        ],
        "unstated": [item_row(item, options) for item in report.listed[Category.UNSTATED]],
        "unpriced": [item_row(item, options) for item in report.listed[Category.UNKNOWN_MODEL]],
    }


def fields_of(row: Row) -> dict[str, Any]:
    """`log_…`: counted from the activity log, which is no witness."""
    return {
        "calls": row.calls,
        "attempts": row.attempts,
        "log_refused": row.refused,
        "log_replayed": row.replayed,
        "log_attached": row.attached,
        "log_duplicates_avoided": row.avoided,
        "log_not_spent": row.not_spent.row(),
        "known": plain(row.known),
        "possible_extra": row.cost(Category.UNKNOWN).row(),
        "possibly_billed_failures": row.cost(Category.POSSIBLY_BILLED_FAILURE).row(),
        "unstated": row.cost(Category.UNSTATED).row(),
        "without_price": row.counts[Category.UNKNOWN_MODEL],
        "accepted_duplicates": row.accepted_duplicates,
        "attempts_by_category": {category.value: row.counts[category] for category in Category},
    }


def item_row(item: Item, options: str) -> dict[str, Any]:
    attempt = item.attempt
    return {
        "attempt": attempt.attempt,
        "call_id": attempt.call,
        "started_at": instant(attempt.started_at_ms),
        "upstream": attempt.upstream,
        "model": attempt.model,
        "run": attempt.run,
        "ended": attempt.ended,
        "status": attempt.status,
        "effect": attempt.effect,
        "decision": attempt.decision,
        "tokens_in": attempt.tokens.input if attempt.tokens else None,
        "tokens_out": attempt.tokens.output if attempt.tokens else None,
        "cost": None if item.category is Category.UNKNOWN_MODEL else item.cost.row(),
        "priced_as": item.priced_as,
        "reason": item.reason,
        "presumption": presumption_row(item.presumption),
        "settle": settling(item, options),
    }


def presumption_row(presumption: Presumption | None) -> dict[str, str] | None:
    if presumption is None:
        return None
    return {"billed": presumption.billed, "mark": presumption.mark, "source": presumption.source}


def presumed(item: Item) -> str:
    """In words: what is presumed of the bill, and how well that is known."""
    if item.presumption is None or item.presumption.billed == "undetermined":
        return "undetermined"
    return f"presumed {item.presumption.billed.replace('_', ' ')} ({item.presumption.mark})"


def settling(item: Item, options: str) -> str | None:
    """The command that settles it; None where nothing is open, or another call carries it on."""
    attempt = item.attempt
    if attempt.superseded or (
        attempt.next_operation is not NextOperation.RECONCILE_EFFECT and attempt.decision != "parked"
    ):
        return None
    succeeds = f" --succeeds {attempt.decision_seq}" if attempt.decision_seq is not None else ""
    return f'sendonce reconcile {shlex.quote(attempt.call)}{options}{succeeds} --reason "…" --park  # or --served, --not-served, --accept-duplicate'


# --- rows for people and spreadsheets ---

COLUMNS: Final = (
    "calls",
    "attempts",
    "refused (log)",
    "replayed (log)",
    "attached (log)",
    "known",
    "possible extra",
    "possibly billed failures",
    "usage not stated",
    "no price",
    "not paid (log)",
)


def cells(row: Row) -> list[str]:
    """As `COLUMNS` names them."""

    def between(category: Category) -> str:
        return spread(row.cost(category)) if row.counts[category] else NONE

    return [
        *(str(count) for count in (row.calls, row.attempts, row.refused, row.replayed, row.attached)),
        dollars(row.known),
        between(Category.UNKNOWN),
        between(Category.POSSIBLY_BILLED_FAILURE),
        between(Category.UNSTATED),
        str(row.counts[Category.UNKNOWN_MODEL] or NONE),
        spread(row.not_spent) if row.avoided else NONE,
    ]


def csv_text(report: Report) -> str:
    """One line a group, exact amounts; nested fields joined with dots. No cell is taken for a formula."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    flat = dict(_flat("", fields_of(Row())))
    writer.writerow([report.ask.by.value, *flat])
    for name, row in report.groups.items():
        values = dict(_flat("", fields_of(row)))
        writer.writerow([harmless(name), *("" if value is None else str(value) for value in values.values())])
    return file.getvalue()


def harmless(name: str) -> str:
    text = shown(name)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _flat(prefix: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value
