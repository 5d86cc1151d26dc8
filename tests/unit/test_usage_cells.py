"""Which cells may have counted an attempt: by its names, its tier, its time; and whose export it cannot be."""

from dataclasses import replace

import pytest

from ledger.stages import Effect
from proxy.endpoints import Family
from proxy.reconcile.usage_cells import Placement, Scope, place, role_of
from proxy.reconcile.usage_exports import UnusableExportError
from proxy.reconcile.usage_windows import Role
from tests.harness.usage_worlds import DAY, HOUR, export_of, own, result

MIDDLE = DAY + HOUR // 2
ANSWER = own(1, "gpt-4o", "answer", MIDDLE, MIDDLE + 1000, (10, 0, 5))
UNKNOWN = own(2, "gpt-4o", "unknown", MIDDLE, 0, (10, 0, 5))


def placed(*attempts: object, rows: list[dict[str, object]] | None = None, scope: Scope | None = None) -> Placement:
    rows = [result("gpt-4o", 1, 10, 0, 5)] if rows is None else rows
    buckets = [
        {
            "start_time": (DAY + at * HOUR) // 1000,
            "end_time": (DAY + (at + 1) * HOUR) // 1000,
            "results": rows if at == 0 else [],
        }
        for at in range(3)
    ]
    pages = {"data": buckets, "has_more": False}
    return place(list(attempts), export_of(pages), scope or Scope(), Family.OPENAI)  # type: ignore[arg-type]


def candidates(placement: Placement, number: int) -> list[str]:
    return [str(key) for one in placement.placed if one.attempt.call == f"call_{number:04}" for key in one.candidates]


def test_alias_is_what_own_answers_call_it() -> None:
    """Asked for by one name, answered by another."""
    dated = replace(ANSWER, model="gpt-4o-2024-08-06")
    rows = [result("gpt-4o-2024-08-06", 1, 10, 0, 5)]
    assert candidates(placed(dated, UNKNOWN, rows=rows), 2) == ["gpt-4o-2024-08-06 key_1"]


def test_model_without_any_answer_may_stand_anywhere() -> None:
    """And a row that nobody else explains may be its."""
    placement = placed(ANSWER, replace(UNKNOWN, model="o9", asked_model="o9"))
    (one,) = [one for one in placement.placed if one.role is Role.UNKNOWN]
    assert (one.guessed, placement.foreign) == (True, ())
    rows = [result("gpt-4o", 1, 10, 0, 5), result("o9-2026", 1, 10, 0, 5)]
    placement = placed(ANSWER, replace(UNKNOWN, model="o9", asked_model="o9"), rows=rows)
    assert (placement.foreign, placement.unsure) == ((), ("o9-2026",))


def test_tier_of_answers_is_the_tier_of_the_unknown() -> None:
    """Where all answers to that model had one; else it may stand in each."""
    rows = [result("gpt-4o", 1, 10, 0, 5) | {"service_tier": tier} for tier in ("default", "flex")]
    told = replace(ANSWER, service_tier="default")
    assert candidates(placed(told, UNKNOWN, rows=rows), 2) == ["gpt-4o key_1 default"]
    assert len(candidates(placed(ANSWER, UNKNOWN, rows=rows), 2)) == 2


def test_several_keys_are_one_cell_each_only_where_one_is_named() -> None:
    """Which key an attempt used is not on record in the export's words."""
    rows = [result("gpt-4o", 1, 10, 0, 5) | {"api_key_id": key} for key in ("key_1", "key_2")]
    assert placed(ANSWER, rows=rows).api_key_ids == ("key_1", "key_2")
    named = placed(ANSWER, rows=rows, scope=Scope(api_key_ids=frozenset({"key_2"})))
    assert [str(window.key) for window in named.windows] == ["gpt-4o key_2"]
    with pytest.raises(UnusableExportError, match="no row of the key key_3"):
        placed(ANSWER, rows=rows, scope=Scope(api_key_ids=frozenset({"key_3"})))


def test_batches_rows_hold_no_request_of_ours() -> None:
    """What is answered at once was no batch."""
    rows = [result("gpt-4o", 1, 10, 0, 5), result("gpt-4o", 1, 10, 0, 5) | {"batch": True}]
    assert candidates(placed(ANSWER, UNKNOWN, rows=rows), 2) == ["gpt-4o key_1"]


def test_attempt_that_reaches_over_the_end_leaves_its_window_open() -> None:
    """Part of what it may be counted in is not in the export."""
    late = own(3, "gpt-4o", "unknown", DAY + 3 * HOUR - 1000, 0, (10, 0, 5))
    windows = placed(ANSWER, late).windows
    assert [(window.start_ms, window.closed) for window in windows] == [(DAY, True), (DAY + 2 * HOUR, False)]


def test_unknown_across_a_boundary_joins_its_buckets() -> None:
    """It lies whole in one window, so that it is counted once."""
    across = own(3, "gpt-4o", "unknown", DAY + HOUR - 1000, 0, (10, 0, 5))
    (window,) = placed(ANSWER, across).windows
    assert (window.start_ms, window.end_ms, window.closed) == (DAY, DAY + 2 * HOUR, True)


@pytest.mark.parametrize(("number", "spans"), [(1, 2), (7, 1)])
def test_answers_across_a_boundary_are_possible_on_both_sides_while_they_are_few(number: int, spans: int) -> None:
    """Many make one window of the two: to try each on both sides would take too long."""
    across = [own(3 + at, "gpt-4o", "answer", DAY + HOUR - 1000, DAY + HOUR + 1000, (10, 0, 5)) for at in range(number)]
    windows = placed(ANSWER, *across).windows
    assert [len(window.placed) for window in windows] == ([number + 1, number] if spans == 2 else [number + 1])
    assert [len(window.answers) for window in windows] == ([1, 0] if spans == 2 else [number + 1])


def test_call_in_flight_may_end_at_any_time() -> None:
    """So it is a possibility in every window from its start on, and decided in none."""
    placement = placed(ANSWER, UNKNOWN, scope=Scope(alive=frozenset({"call_0002"})))
    assert [one.floats for one in placement.placed] == [False, True]


ROLES = [
    (ANSWER, Role.ANSWER),
    (UNKNOWN, Role.UNKNOWN),
    (replace(UNKNOWN, effect=Effect.HAPPENED, ended="partial", status=200), Role.UNKNOWN),
    (replace(UNKNOWN, effect=Effect.HAPPENED, decision="served"), Role.UNKNOWN),
    (replace(UNKNOWN, effect=Effect.ABSENT, decision="not_served"), Role.UNKNOWN),
    (replace(UNKNOWN, effect=Effect.HAPPENED, decision="served", ended="whole", status=502), Role.UNKNOWN),
    (replace(UNKNOWN, effect=Effect.HAPPENED, decision="served", ended="whole", status=200), Role.UNKNOWN),
    (replace(UNKNOWN, effect=Effect.ABSENT, decision="not_served", ended="whole", status=502), Role.UNKNOWN),
    (replace(ANSWER, effect=Effect.ANSWERED, decision="accept_duplicate", status=500, is_answered=False), Role.UNKNOWN),
    (replace(ANSWER, decision="served"), Role.ANSWER),
    (replace(UNKNOWN, effect=Effect.ABSENT, decision="not_served", ended="not_sent"), None),
    (replace(UNKNOWN, decision="accept_duplicate"), Role.UNKNOWN),
    (replace(UNKNOWN, decision="parked"), Role.UNKNOWN),
    (replace(UNKNOWN, effect=Effect.ABSENT, ended="not_sent"), None),
    (replace(UNKNOWN, ended="whole", status=502), Role.UNKNOWN),
    (replace(ANSWER, effect=Effect.ANSWERED, status=500), Role.FAILED),
    (replace(ANSWER, effect=Effect.ABSENT, status=429), Role.REFUSED),
    (replace(ANSWER, background=True), Role.JOB),
]


@pytest.mark.parametrize(("attempt", "role"), ROLES)
def test_role_follows_from_what_is_on_record(attempt: object, role: Role | None) -> None:
    """A decision that accepts or parks says nothing about what happened."""
    assert role_of(attempt) is role  # type: ignore[arg-type]


def test_export_of_another_time_or_organisation_is_refused() -> None:
    """Both ranges, or both lists of models, are said."""
    with pytest.raises(UnusableExportError, match="share no moment"):
        placed(replace(ANSWER, started_at_ms=1_000_000_000_000))
    with pytest.raises(UnusableExportError, match="none in common"):
        placed(ANSWER, rows=[result("o9", 1, 1, 1, 1)])
