"""Two hundred calls and twelve crashes: what the audit says of the money, against the provider's own account of it.

The provider's usage lines are the truth: what it served and billed, also where our record only knows that it was sent.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest

from synthetic_provider.prices import total
from synthetic_provider.usage import UsageRecord
from tests.harness.crashes import CUT, held
from tests.harness.figures import noted
from tests.harness.looked_up import AT_ONCE, configured, fetched, operator, usage_pages
from tests.harness.processes import Rig
from tests.harness.provider_records import usage_lines

CHAT: Final = "/openai/v1/chat/completions"
# Model and tier; the last one has no crash, so what the provider counts can be learnt from it.
CELLS: Final = (
    ("gpt-4o-mini", "default"),
    ("gpt-4o", "default"),
    ("gpt-4.1-mini", "default"),
    ("o4-mini", "default"),
    ("o4-mini", "flex"),
)
TOKENS: Final = (
    (300, 830),
    (420, 700),
    (540, 910),
    (380, 760),
    (460, 640),
)  # that one answer of the cell takes and makes
LIMIT: Final = 1000  # output tokens that every request allows; the provider makes fewer
# Requests of each of the first four cells before each crash, and of the last one, which are tried twice: 12 * (10 + 2 * 3) + 12 = 204
# calls. Cells of one size could change their places in an export unnoticed, so nothing would be proven by it.
PLAIN: Final = (4, 3, 2, 1)
FAILING: Final = 3
HOLD: Final = "hold=0.4"  # long enough that a kill comes in between
# The cell of each kill, and whether the provider had got the request by then: in the fourth cell nobody can say which of the two.
KILLS: Final = (*((0, True),) * 4, *((1, True),) * 4, *((2, False),) * 2, (3, True), (3, False))
Pages = list[dict[str, Any]]
CENT: Final = Decimal("0.01")


def asked(cell: int, text: str, error: str = "") -> bytes:
    """A request whose answer is of this model and tier, and takes as many tokens as real ones of its size."""
    (model, tier), (taken, made) = CELLS[cell], TOKENS[cell]
    return json.dumps(
        {
            "model": f"synthetic/as={model},tier={tier},in={taken},out={made},{HOLD}{error}",
            "max_completion_tokens": LIMIT,
            "messages": [{"role": "user", "content": f"{text} " + "please summarise the following words " * 30}],
        }
    ).encode()


def observed(number: int) -> list[bytes]:
    """The requests between two crashes. Those of the last cell fail at first, once each: so errors, too, are seen to be counted or not."""
    plain = [asked(cell, f"{number} {n}") for cell, count in enumerate(PLAIN) for n in range(count)]
    failing = [asked(4, f"{number} {n}", f",status={(429, 500)[n % 2]},times=1") for n in range(FAILING)]
    return [*plain, *failing]


@dataclass
class Bill:
    """What was asked, and what the provider says of it."""

    rig: Rig
    directory: Path
    unknown: dict[str, bool] = field(default_factory=dict)  # call -> was it served

    def usage(self, pages: Pages, *more: str) -> "tuple[int, dict[str, Any], str]":
        path = fetched(self.directory / "usage.json", pages)
        done = operator(self.rig, "usage", str(path), "--upstream", "openai", *AT_ONCE, *more, "--json")
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr

    def audit(self) -> dict[str, Any]:
        done = operator(self.rig, "audit", "--json")
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document


@pytest.fixture
def bill(tmp_path: Path) -> Iterator[Bill]:
    names = {f"synthetic/as={model},*": model for model, _ in CELLS}
    with configured(tmp_path, price_as=names) as rig:
        made = Bill(rig, tmp_path)
        rig.start()
        for number, (cell, is_served) in enumerate(KILLS):
            before = len(rig.calls())
            with ThreadPoolExecutor(16) as pool:
                bodies = observed(number)
                answers = list(pool.map(lambda body: rig.chat(body).status, bodies))
                again = [rig.chat(body).status for body in bodies[-FAILING:]]
            assert (answers, again) == ([200] * sum(PLAIN) + [429, 500, 429], [200] * FAILING)
            rig.settled()
            body = asked(cell, f"killed {number}")
            if is_served:
                with held(rig, CHAT, body):
                    rig.restart()
            else:
                rig.restart("after-sent-receipt=kill")
                with pytest.raises(CUT):
                    rig.chat(body)
                rig.restart()
            assert len(rig.calls()) == before + len(bodies) + FAILING + 1
            made.unknown[rig.calls()[0]["call_id"]] = is_served
        yield made


def billed(bill: Bill, digests: set[str]) -> Decimal:
    """By the provider's own lines and its own prices, for the requests with these bodies."""
    of_receipt = {line["n"]: line["body_blake3"] for line in bill.rig.provider_receipts()}
    lines = [line for line in usage_lines(bill.rig.receipts_file) if of_receipt.get(line["n"]) in digests]
    return sum((total(UsageRecord(**line)) for line in lines), Decimal(0))


def digests_of(bill: Bill, *, unknown: bool) -> set[str]:
    return {row["body_blake3"] for row in bill.rig.calls() if (row["call_id"] in bill.unknown) == unknown}


def check_known_spend_and_its_range(bill: Bill) -> None:
    """The range holds the truth, is printed, and is at most three times the truth: every request sent an output limit."""
    totals = bill.audit()["totals"]
    assert totals["calls"] == 204
    known, truth = Decimal(totals["known"]), billed(bill, digests_of(bill, unknown=False))
    assert known.quantize(CENT) == truth.quantize(CENT)
    assert known == truth
    assert truth > CENT
    extra, possible = totals["possible_extra"], billed(bill, digests_of(bill, unknown=True))
    assert Decimal(extra["lower"]) <= possible <= Decimal(extra["upper"]) <= 3 * possible
    assert Decimal(extra["width"]) == Decimal(extra["upper"]) - Decimal(extra["lower"])
    ratio = Decimal(extra["upper"]) / possible
    noted(
        what="bill",
        calls=totals["calls"],
        known=str(known),
        upper=extra["upper"],
        truth=str(possible),
        ratio=f"{ratio:.2f}",
    )


NUMBERS: Final = ("input_tokens", "output_tokens", "num_model_requests", "input_uncached_tokens")


def copied(pages: Pages) -> tuple[Pages, list[dict[str, Any]], list[dict[str, Any]]]:
    """The pages, their buckets and their rows, to be damaged."""
    again: Pages = json.loads(json.dumps(pages))
    buckets = [bucket for page in again for bucket in page["data"]]
    return again, buckets, [row for bucket in buckets for row in bucket["results"]]


def damaged_rows(pages: Pages) -> Iterator[tuple[str, Pages]]:
    """Numbers that changed places, a row that lacks, a row that stands twice."""
    count = len(copied(pages)[2])
    for place in range(count):
        again, _, rows = copied(pages)
        other = rows[(place + 1) % count]
        for name in NUMBERS:
            rows[place][name], other[name] = other.get(name), rows[place].get(name)
        if again != pages:
            yield f"numbers of row {place} and the next changed places", again
        again, buckets, rows = copied(pages)
        bucket = next(each for each in buckets if any(row is rows[place] for row in each["results"]))
        bucket["results"] = [row for row in bucket["results"] if row is not rows[place]]
        yield f"row {place} dropped", again
        again, buckets, rows = copied(pages)
        bucket = next(each for each in buckets if any(row is rows[place] for row in each["results"]))
        bucket["results"].append(dict(rows[place]))
        yield f"row {place} doubled", again


def damaged_buckets(pages: Pages) -> Iterator[tuple[str, Pages]]:
    """A bucket that lacks, one that stands twice, all in reverse, half of it."""
    for place, bucket in enumerate(copied(pages)[1]):
        again, buckets, _ = copied(pages)
        again[0]["data"].remove(buckets[place])
        if bucket["results"]:
            yield f"bucket {place} dropped", again
        again, buckets, _ = copied(pages)
        again[0]["data"].insert(place, buckets[place])
        yield f"bucket {place} doubled", again
    again, _, _ = copied(pages)
    again[0]["data"].reverse()
    yield "buckets in reverse", again
    again, _, _ = copied(pages)
    again[0] |= {"has_more": True, "next_page": "page_2"}
    yield "half of it", again


def check_damaged_export_settles_nothing(bill: Bill) -> None:
    """Shuffled, dropped, doubled, half: an alarm or an error that names the place, and no verdict."""
    pages = usage_pages(bill.rig)
    seen = 0
    for what, damaged in (*damaged_rows(pages), *damaged_buckets(pages)):
        code, document, said = bill.usage(damaged, "--decide", "--reason", "must not be")
        assert code in (2, 6), what
        assert said or document["alarms"], what
        seen += 1
    assert seen > 20
    noted(what="damaged exports", settled=0, of=seen)
    assert {row["decision"] for row in bill.rig.calls()} == {None}


def check_whole_export_settles_what_it_proves(bill: Bill) -> None:
    """At least ten of the twelve, each as the provider's account has it; again, it finds nothing more to decide."""
    code, document, said = bill.usage(usage_pages(bill.rig), "--decide", "--reason", "usage of today")
    assert code == 0, (said, document)
    decided = {row["call_id"]: row["decision"] for row in bill.rig.calls() if row["decision"]}
    assert len(decided) >= 10
    assert decided == {call: "served" if bill.unknown[call] else "not_served" for call in decided}
    assert bill.rig.command("verify").returncode == 0
    _, again, _ = bill.usage(usage_pages(bill.rig), "--decide", "--reason", "usage of today")
    assert not again.get("alarms")
    assert {row["call_id"]: row["decision"] for row in bill.rig.calls() if row["decision"]} == decided


def check_audit_beside_the_export_and_its_page(bill: Bill) -> None:
    """What own answers account for matches to the cent, what unknowns can have used is said to be so; the page loads nothing."""
    fetched(bill.directory / "usage.json", usage_pages(bill.rig))
    page = bill.directory / "audit.html"
    about = ("audit", "--by", "model", "--export", str(bill.directory / "usage.json"), "--upstream", "openai")
    done = operator(bill.rig, *about, "--html", str(page), "--force", "--json")
    assert done.returncode == 0, done.stderr
    states = {
        line["cell"]: line["state"] for line in json.loads(done.stdout)["comparison"] if line["export"]["requests"]
    }
    assert states["o4-mini flex"] == "matched"
    assert set(states.values()) <= {"matched", "unknown"}
    text = page.read_text()
    assert "Beside the provider" in text
    assert "<script" not in text.lower()
    assert re.findall(r"""(?:src|href)=["'](?!#)|url\((?!#)|@import""", text) == []


def test_bill_of_two_hundred_calls_and_twelve_crashes_adds_up(bill: Bill) -> None:
    """One history, four questions: what it cost, what a damaged export proves, a whole one, and how the two compare."""
    check_known_spend_and_its_range(bill)
    check_damaged_export_settles_nothing(bill)
    check_whole_export_settles_what_it_proves(bill)
    check_audit_beside_the_export_and_its_page(bill)
