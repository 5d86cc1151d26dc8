"""What does not show in a cell's own equation: other tiers, other versions, other statuses, other upstreams of the same account."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from proxy.audit.attempts import OwnAttempt
from proxy.endpoints import Family
from proxy.reconcile.usage_algebra import Verdict
from proxy.reconcile.usage_cells import Scope, place
from proxy.reconcile.usage_exports import Export
from proxy.reconcile.usage_pages import read_exports
from proxy.reconcile.usage_verdicts import Fetched, Report, judge
from tests.harness.usage_worlds import DAY, FETCHED, HOUR, SCOPE, export_of, own, result, verdicts

Rows = dict[int, list[dict[str, Any]]]  # by hour
X, Y = "call_0010.1", "call_0011.1"
UNDECIDED, SERVED, NOT_BILLED = Verdict.UNDECIDED, Verdict.SERVED, Verdict.NOT_BILLED


def one(number: int, kind: str, hour: int, asked: str = "gpt-4o", **about: Any) -> OwnAttempt:
    """In the middle of an hour: 100 tokens in and 50 out, or as the answer `about` has it."""
    start, tokens = DAY + hour * HOUR + HOUR // 2, about.pop("tokens_in", 100)
    made = own(number, asked, kind, start, start + 1000, (tokens, 0, 50))
    return replace(made, **about)


def row(model: str, requests: int, tokens_in: int, tokens_out: int, tier: str | None = None) -> dict[str, Any]:
    return result(model, requests, tokens_in, 0, tokens_out) | {"service_tier": tier}


def judged(
    attempts: Sequence[OwnAttempt], export: Export, scope: Scope = SCOPE, near: Sequence[OwnAttempt] = ()
) -> Report:
    report = judge(place(attempts, export, scope, Family.OPENAI, near), Fetched(FETCHED, None, "said"))
    assert report.alarms == ()
    return report


def pages(rows: Rows) -> Export:
    buckets = [
        {
            "start_time": (DAY + at * HOUR) // 1000,
            "end_time": (DAY + (at + 1) * HOUR) // 1000,
            "results": rows.get(at, []),
        }
        for at in range(6)
    ]
    return export_of({"data": buckets, "has_more": False})


def counts(requests: dict[int, int]) -> Export:
    """A console's CSV that says requests, and nothing of tokens."""

    def moment(hour: int) -> str:
        return datetime.fromtimestamp((DAY + hour * HOUR) / 1000, UTC).isoformat()

    lines = ["start,end,model,requests", *(f"{moment(at)},{moment(at + 1)},gpt-4o,{n}" for at, n in requests.items())]
    return read_exports([("console.csv", "\n".join(lines).encode())], {name: name for name in lines[0].split(",")})


TIERS = [
    *(one(hour, "answer", hour, service_tier="default", model="gpt-4o") for hour in (1, 2)),
    *(one(4 + hour, "answer", hour, "alias", service_tier="flex", model="gpt-4o", tokens_in=5000) for hour in (1, 2)),
]
QUIET = [row("gpt-4o", 1, 100, 50, "default"), row("gpt-4o", 1, 5000, 50, "flex")]


@pytest.mark.parametrize("is_read", [True, False])
def test_what_was_served_at_another_tier_proves_nothing_of_who_stands_there(*, is_read: bool) -> None:
    """X asked for flex, which no answer to its model had, and was served; Y never arrived. Whether X's request can be read or not."""
    asked = [one(10, "unknown", 2), one(11, "unknown", 2, "alias")]
    scope = replace(SCOPE, asked_tier=lambda each: "flex" if is_read and each.attempt == X else None)
    rows = {1: QUIET, 2: [QUIET[0], row("gpt-4o", 2, 5070, 90, "flex")]}
    report = judged([*TIERS, *asked], pages(rows), scope)
    assert verdicts(report) == {X: UNDECIDED, Y: UNDECIDED}
    (named,) = [each for each in report.preconditions if each.name == "named"]
    assert "2 attempts without an answer asked for 2 names; 2 of them may stand in a cell of another" in named.says


def test_new_version_of_a_model_proves_nothing_of_who_asked_for_it_by_name() -> None:
    """X asked for the name, which moved on to that version in this hour; Y asked for the version, and never arrived."""
    old, new = "gpt-4o-2024-05-13", "gpt-4o-2024-08-06"
    attempts = [
        *(one(hour, "answer", hour, model=old) for hour in (1, 2)),
        *(one(4 + hour, "answer", hour, new, tokens_in=5000) for hour in (1, 2)),
        one(10, "unknown", 2),
        one(11, "unknown", 2, new),
    ]
    quiet = [row(old, 1, 100, 50), row(new, 1, 5000, 50)]
    report = judged(attempts, pages({1: quiet, 2: [quiet[0], row(new, 2, 5070, 90)]}))
    assert verdicts(report) == {X: UNDECIDED, Y: UNDECIDED}
    assert f"1 other attempts, such as {X}, may have been counted here too" in report.findings[1].why


@pytest.mark.parametrize(
    ("flex", "verdict"), [((1, 5000, 50), NOT_BILLED), ((2, 5070, 90), UNDECIDED)], ids=["empty", "taken"]
)
def test_not_billed_needs_every_tier_to_hold_nothing_of_it(flex: tuple[int, int, int], verdict: Verdict) -> None:
    """Nothing is left at its own tier; at the other one it may be what is left, where somebody else may have used it too."""
    other = [one(11, "unknown", 2, "alias")] if verdict is UNDECIDED else []
    rows = {1: QUIET, 2: [QUIET[0], row("gpt-4o", *flex, "flex")]}
    assert verdicts(judged([*TIERS, one(10, "unknown", 2), *other], pages(rows)))[X] is verdict


def test_one_unknown_alone_is_still_decided_beside_other_tiers() -> None:
    """The cells that it might have strayed to hold nothing that is left."""
    rows = {1: QUIET, 2: [row("gpt-4o", 2, 170, 90, "default"), QUIET[1]]}
    assert verdicts(judged([*TIERS, one(10, "unknown", 2)], pages(rows))) == {X: SERVED}


def test_error_billed_at_another_tier_is_no_proof_of_an_unknown_there() -> None:
    """Nothing shows that failures are not billed, and a failed request may have named a tier that its like never had."""
    failed = one(3, "failed", 2)
    rows = {1: QUIET, 2: [QUIET[0], row("gpt-4o", 2, 5070, 90, "flex")]}
    assert verdicts(judged([*TIERS, failed, one(11, "unknown", 2, "alias")], pages(rows))) == {Y: UNDECIDED}
    told = replace(failed, service_tier="default")
    assert verdicts(judged([*TIERS, told, one(11, "unknown", 2, "alias")], pages(rows))) == {Y: SERVED}


def test_error_counted_at_another_tier_is_no_proof_that_nobody_stands_here() -> None:
    """Refusals are counted: the second request of the cell is the unknown one, and its refusal is counted at the other tier."""

    def only_counted(requests: int, tier: str) -> dict[str, Any]:
        said = row("gpt-4o", requests, 0, 0, tier)
        return {name: value for name, value in said.items() if not name.endswith("_tokens")}

    refused = [one(3, "refused", 1), one(9, "refused", 2)]
    told = one(10, "unknown", 2, service_tier="default")  # by an answer that broke off
    rows = {
        1: [only_counted(2, "default"), only_counted(1, "flex")],
        2: [only_counted(2, "default"), only_counted(2, "flex")],
    }
    report = judged([*TIERS, *refused, told, one(11, "unknown", 2, "alias")], pages(rows))
    assert verdicts(report) == {X: UNDECIDED, Y: UNDECIDED}
    assert "may have been counted" in report.findings[0].why


@pytest.mark.parametrize(("kind", "seen", "other"), [("refused", 400, 429), ("failed", 500, 503)])
def test_status_that_no_clean_cell_has_leaves_a_request_count_open(kind: str, seen: int, other: int) -> None:
    """One is counted, and the other is not: the second request of the hour is the unknown one, which was served."""
    answers = [one(hour, "answer", hour) for hour in (1, 3, 4)]
    errors = [one(5 + hour, kind, hour, status=seen) for hour in (1, 4)]
    about = [*answers, *errors, one(10, "unknown", 3)]
    export = counts({1: 2, 3: 2, 4: 2})
    assert verdicts(judged([*about, one(9, kind, 3, status=other)], export)) == {X: UNDECIDED}
    assert verdicts(judged([*about, one(9, kind, 3, status=seen)], export)) == {X: NOT_BILLED}


def test_request_counted_without_tokens_is_not_said_to_be_not_counted() -> None:
    """The export says tokens, none is left; but of the two requests one may be the unknown one, and not the error of that status."""
    answers = [one(hour, "answer", hour) for hour in (1, 3)]
    about = [*answers, one(5, "refused", 1, status=400), one(9, "refused", 3, status=429), one(10, "unknown", 3)]
    rows = {1: [row("gpt-4o", 2, 100, 50)], 3: [row("gpt-4o", 2, 100, 50)]}
    assert verdicts(judged(about, pages(rows))) == {X: UNDECIDED}


def test_request_count_alone_proves_nobody_served() -> None:
    """That refusals of one status are not counted says nothing of the status that the unknown one may have got."""
    answers = [one(hour, "answer", hour) for hour in (1, 3)]
    errors = [one(number, kind, 1) for number, kind in enumerate(("refused", "failed") * 3, 20)]
    about = [*answers, *errors, one(10, "unknown", 3)]
    assert verdicts(judged([*about, one(4, "answer", 1)], counts({1: 2, 3: 2}))) == {X: UNDECIDED}
    assert verdicts(judged(about, counts({1: 1, 3: 1}))) == {X: NOT_BILLED}


def test_what_an_upstream_of_the_same_account_was_answered_is_no_proof() -> None:
    """Its answer is just what is left; where it had other traffic at another time, it changes nothing."""
    attempts = [*(one(hour, "answer", hour) for hour in (1, 3)), one(10, "unknown", 3)]
    rows = {1: [row("gpt-4o", 1, 100, 50)], 3: [row("gpt-4o", 2, 170, 90)]}
    for hour, verdict in ((3, UNDECIDED), (5, SERVED)):
        near = one(20, "answer", hour, upstream="eu", tokens_in=70)
        report = judged(attempts, pages(rows), near=[near])
        assert verdicts(report) == {X: verdict}
        assert any("Of eu, which may have the same account, 1 attempts" in each.says for each in report.preconditions)
