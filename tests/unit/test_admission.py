"""The admission table (semantics section 4), row by row, on states projected from real events."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ledger.events import CallDelivered
from ledger.stages import Effect
from proxy.admission import Ask, Attach, Forward, Live, Now, Policy, Refuse, Replay, Verdict, Wait, decide
from tests.harness.histories import STARTED, Past, Step, completed, observed
from tests.harness.ledgers import DIGEST, NOW_MS, call_id

FIRST = call_id(1)
LATE_RETRY_MS = 120_000
NOW = Now(NOW_MS + 1000, LATE_RETRY_MS)
ASK = Ask("derived", DIGEST, DIGEST, "http://up/v1/x", "exact")
Changes = dict[str, Any]
OTHER_REQUEST: Changes = {"intent_digest": "other"}
OTHER_CREDENTIAL: Changes = {"caller_exact": "another credential"}
OTHER_CONTEXT: Changes = {"context": {"sendonce-task": "other"}}
CERTAIN: Changes = {"certain_retry": True}
ACCEPTS: Changes = {"accepts_attempt": f"{FIRST}.1"}
SETTLED: Changes = {"settled": True}
WAITED: Changes = {"waited_for_close": True}
OWED: Changes = {"owed_first_try": True}
ALIVE, OPEN, ARRIVED = {"alive": True}, {"claimed": True}, {"delivered": True}
EVERYTHING = dict.fromkeys(("on_unknown", "after_server_error", "after_gateway_error", "after_cut_stream"), True)
NOTHING = dict.fromkeys(EVERYTHING, False)


def delivered(how: str) -> Step:
    return CallDelivered(how, "forwarded")  # type: ignore[arg-type]


def of(source: str) -> Changes:
    return {"key_source": source}


def told(verdict: Verdict) -> str:
    match verdict:
        case Forward(occurrence, generation, why, authority=authority):
            by = f" by {authority.kind} {authority.name}" if authority else ""
            return f"forward {why} {occurrence}.{generation}{by}"
        case Attach():
            return "attach"
        case Replay():
            return "replay"
        case Refuse(code):
            return f"refuse {code}"
        case Wait(until):
            return f"wait {until}"


@dataclass(frozen=True)
class Row:
    """One call as it stands, what surrounds it, and the verdicts. None: the row says nothing of that kind of key."""

    name: str
    steps: tuple[Step, ...]
    explicit: str | None
    derived: str | None
    live: dict[str, bool] = field(default_factory=dict)
    ask: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    now: dict[str, Any] = field(default_factory=dict)
    protocol: str = "started-before-send/1"


def same(name: str, steps: tuple[Step, ...], verdict: str, live: dict[str, bool] | None = None, **more: Any) -> Row:
    """Where both kinds of key get the same verdict."""
    return Row(name, steps, verdict, verdict, live or {}, **more)


RESUMED, ANEW = "forward resumed 1.2", "forward second_sample 2.1"
MANIFEST: tuple[Step, ...] = ("call.manifest",)
NOT_SENT: tuple[Step, ...] = (*STARTED, "attempt.observed:not_sent")
LOST: tuple[Step, ...] = (*STARTED, "attempt.observed:lost")
PARTIAL: tuple[Step, ...] = (*STARTED, observed("partial"))
ABORTED: tuple[Step, ...] = (*STARTED, observed("partial", ended_by="client_abort"))
HAPPENED, HAPPENED_UNKEPT = completed(Effect.HAPPENED), completed(Effect.HAPPENED, kept=False)
ABSENT, ANSWERED = completed(Effect.ABSENT, 429), completed(Effect.ANSWERED, 500)
IN_BAND_ERROR = completed(Effect.ANSWERED, 200)
GATEWAY, UNREADABLE_500 = completed(Effect.UNKNOWN, 502), completed(Effect.UNKNOWN, 500)
SERVED, PARKED = (*LOST, "reconcile.decided:served"), (*LOST, "reconcile.decided:parked")
ERASED: tuple[Step, ...] = (*HAPPENED, "body.erased")
CLOSED_ROWS = (("served", SERVED, "response_lost"), ("parked", PARKED, "parked"), ("erased", ERASED, "response_erased"))
UNRESOLVED = (
    ("started", STARTED, "effect_unknown"),
    ("acknowledged with 500", (*STARTED, "attempt.acknowledged"), "effect_unknown"),
    ("lost", LOST, "effect_unknown"),
    ("witnessed", ("attempt.witnessed",), "effect_unknown"),
    ("partial of a 500", (*STARTED, "attempt.observed:partial"), "effect_unknown"),
    ("partial of a 200", PARTIAL, "effect_happened"),
    ("client abort", ABORTED, "effect_happened"),
    ("completed unknown", UNREADABLE_500, "effect_unknown"),
    ("completed by a gateway", GATEWAY, "effect_unknown"),
)
WAITING_TO_BE_SENT: tuple[tuple[str, tuple[Step, ...], str], ...] = (
    ("requested", (), RESUMED),
    ("preparation failed", ("call.preparation_failed",), RESUMED),
    ("manifest", MANIFEST, RESUMED),
    ("abandoned", (*MANIFEST, "call.abandoned"), RESUMED),
    ("not sent", NOT_SENT, RESUMED),
    ("completed absent", ABSENT, RESUMED),
    ("decided not served", (*LOST, "reconcile.decided:not_served"), "forward decision 1.2 by operator ada"),
    ("duplicate accepted", (*LOST, "reconcile.decided:accept_duplicate"), "forward decision 1.2 by operator ada"),
)
UNFINISHED: tuple[tuple[str, tuple[Step, ...]], ...] = tuple(
    (str(HAPPENED[end]), HAPPENED[: end + 1]) for end in range(2, len(HAPPENED) - 1)
)

ROWS = (
    # not sent yet, dead
    *(Row(name, steps, sent, sent) for name, steps, sent in WAITING_TO_BE_SENT),
    *(Row(f"{name}, retry", steps, sent, sent, ask=CERTAIN) for name, steps, sent in WAITING_TO_BE_SENT),
    *(Row(f"{name}, all refused", steps, sent, sent, policy=NOTHING) for name, steps, sent in WAITING_TO_BE_SENT),
    *(Row(f"{name}, its socket open", steps, sent, "wait settled", OPEN) for name, steps, sent in WAITING_TO_BE_SENT),
    *(Row(f"{name}, still open", steps, sent, ANEW, OPEN, now=SETTLED) for name, steps, sent in WAITING_TO_BE_SENT),
    *(
        Row(f"{name}, other context", steps, "refuse drift", "refuse drift", ask=OTHER_CONTEXT)
        for name, steps, _ in WAITING_TO_BE_SENT
        if "call.manifest" in steps
    ),
    # another method, path or canonical body: checked first
    Row("another request, not sent", MANIFEST, "refuse drift", None, ask=OTHER_REQUEST),
    Row("another request, abandoned", (*MANIFEST, "call.abandoned"), "refuse drift", None, ask=OTHER_REQUEST),
    Row("another request, nothing compared", (), RESUMED, None, ask=OTHER_REQUEST),
    Row("another request, in flight", STARTED, "refuse key_reused", None, ALIVE, OTHER_REQUEST),
    Row("another request, unknown", LOST, "refuse key_reused", None, ask=OTHER_REQUEST, policy=EVERYTHING),
    Row("another request, unfinished", (*STARTED, observed("response")), "refuse key_reused", None, ask=OTHER_REQUEST),
    *(Row(f"another request, {n}", steps, "refuse key_reused", None, ask=OTHER_REQUEST) for n, steps, _ in CLOSED_ROWS),
    Row("another request, answered before", HAPPENED, "refuse key_reused", None, ask=OTHER_REQUEST),
    # alive
    Row("alive, socket gone", STARTED, "attach", "attach", ALIVE),
    Row("alive, retry", STARTED, "attach", "attach", ALIVE, CERTAIN),
    Row("alive before its attempt", MANIFEST, "attach", "attach", ALIVE, OTHER_CONTEXT),
    Row("alive, socket open", STARTED, "attach", "wait settled", ALIVE | OPEN),
    Row("alive, socket still open", STARTED, "attach", ANEW, ALIVE | OPEN, now=SETTLED),
    Row("alive, delivered", STARTED, "attach", ANEW, ALIVE | ARRIVED),
    Row("alive, delivered, retry", STARTED, "attach", "attach", ALIVE | ARRIVED, CERTAIN),
    Row("alive, socket open, retry", STARTED, "attach", "wait closed", ALIVE | OPEN, CERTAIN),
    Row("alive, open after the wait, retry", STARTED, "attach", "refuse in_progress", ALIVE | OPEN, CERTAIN, now=WAITED),
    Row("alive, another credential", STARTED, "refuse caller_changed", "refuse caller_changed", ALIVE, OTHER_CREDENTIAL),
    Row("alive, open, other credential", STARTED, None, ANEW, ALIVE | OPEN, OTHER_CREDENTIAL, now=SETTLED),
    # effect unknown or happened, and completed unknown
    *(Row(n, steps, f"refuse {code}", f"refuse {code}") for n, steps, code in UNRESOLVED),
    *(Row(f"{n}, retry", steps, f"refuse {code}", f"refuse {code}", ask=CERTAIN) for n, steps, code in UNRESOLVED),
    *(Row(f"{n}, open", steps, f"refuse {code}", f"refuse {code}", OPEN) for n, steps, code in UNRESOLVED),
    *(Row(f"{n}, owed", steps, f"refuse {code}", f"refuse {code}", now=OWED) for n, steps, code in UNRESOLVED),
    *(
        same(f"{n}, accepted by its caller", steps, "forward decision 1.2 by caller Sendonce-Accept", ask=ACCEPTS)
        for n, steps, _ in UNRESOLVED
    ),
    *(
        same(f"{n}, accepted while open", steps, "forward decision 1.2 by caller Sendonce-Accept", OPEN, ask=ACCEPTS)
        for n, steps, _ in UNRESOLVED
    ),
    same("accepts another attempt", LOST, "refuse effect_unknown", ask={"accepts_attempt": f"{FIRST}.2"}),
    same("no protocol marker", (), "refuse protocol_marker_invalid", policy=EVERYTHING, protocol="other/1"),
    same("manifest, no marker", MANIFEST, "refuse protocol_marker_invalid", ask=CERTAIN, protocol="other/1"),
    # which setting rules
    *(
        same(f"{n} by {setting}", steps, f"forward decision 1.2 by setting {setting}", policy={setting: True})
        for n, steps, setting in (
            ("started", STARTED, "on_unknown"),
            ("lost", LOST, "on_unknown"),
            ("witnessed", ("attempt.witnessed",), "on_unknown"),
            ("unreadable 500", UNREADABLE_500, "on_unknown"),
            ("client abort", ABORTED, "on_unknown"),
            ("partial after a crash", (*STARTED, replace(observed("partial"), source="salvage")), "on_unknown"),
            ("partial", PARTIAL, "after_cut_stream"),
            ("502 page", GATEWAY, "after_gateway_error"),
            ("408", completed(Effect.UNKNOWN, 408), "after_gateway_error"),
            ("522", completed(Effect.UNKNOWN, 522), "after_gateway_error"),
        )
    ),
    *(
        Row(f"{n}, other settings", steps, f"refuse {code}", f"refuse {code}", policy={**EVERYTHING, setting: False})
        for n, steps, setting, code in (
            ("lost", LOST, "on_unknown", "effect_unknown"),
            ("client abort", ABORTED, "on_unknown", "effect_happened"),
            ("partial", PARTIAL, "after_cut_stream", "effect_happened"),
            ("502 page", GATEWAY, "after_gateway_error", "effect_unknown"),
            ("provider's 500", ANSWERED, "after_server_error", "effect_unknown"),
        )
    ),
    # observed … attempt completed
    *(Row(f"unfinished after {n}", steps, "wait finished", "wait finished") for n, steps in UNFINISHED),
    *(Row(f"unfinished, owed {n}", steps, "wait finished", "wait finished", now=OWED) for n, steps in UNFINISHED),
    *(Row(f"unfinished, open {n}", steps, "wait finished", "wait finished", OPEN) for n, steps in UNFINISHED),
    # completed answered
    *(
        same(f"answered {n}", steps, "forward decision 1.2 by setting after_server_error", ask=ask)
        for n, steps in (("500", ANSWERED), ("in band", IN_BAND_ERROR))
        for ask in ({}, CERTAIN, OTHER_CONTEXT)
    ),
    Row("answered, its socket open", ANSWERED, "forward decision 1.2 by setting after_server_error", ANEW, OPEN, now=SETTLED),
    # completed happened
    Row("happened, not delivered", HAPPENED, "replay", "replay"),
    Row("happened, delivery failed", (*HAPPENED, delivered("no")), "replay", "replay"),
    Row("happened, not delivered, retry", HAPPENED, "replay", "replay", ask=CERTAIN),
    Row("happened, not delivered, owed another", HAPPENED, "replay", "replay", now=OWED),
    Row("happened, not delivered, owed another, retry", HAPPENED, "replay", "replay", ask=CERTAIN, now=OWED),
    Row("happened, delivered, owed another, retry", (*HAPPENED, delivered("fin")), "replay", ANEW, ask=CERTAIN, now=OWED),
    Row("happened, socket open, owed another", HAPPENED, "replay", ANEW, OPEN, now=OWED),
    Row("happened, socket open", HAPPENED, "replay", "wait settled", OPEN),
    Row("happened, socket still open", HAPPENED, "replay", ANEW, OPEN, now=SETTLED),
    Row("happened, socket open, retry", HAPPENED, "replay", "wait closed", OPEN, CERTAIN),
    Row("happened, still open, retry", HAPPENED, "replay", "refuse in_progress", OPEN, CERTAIN, now=WAITED),
    Row("happened, arrived unrecorded", HAPPENED, "replay", ANEW, ARRIVED),
    *(Row(f"happened, {how}", (*HAPPENED, delivered(how)), "replay", ANEW) for how in ("fin", "acked", "next_request")),
    *(
        Row(f"happened, {how}, late retry", (*HAPPENED, delivered(how)), "replay", late, ask=CERTAIN)
        for how, late in (("fin", "replay"), ("acked", "replay"), ("next_request", ANEW))
    ),
    Row("happened, fin, too late", (*HAPPENED, delivered("fin")), "replay", ANEW, ask=CERTAIN, now={"late_retry_ms": 10}),
    same("happened, another credential", HAPPENED, "refuse caller_changed", ask=OTHER_CREDENTIAL),
    # completed happened, body not kept
    Row("not kept, not delivered", HAPPENED_UNKEPT, "refuse response_lost", "refuse response_lost"),
    Row("not kept, delivered", (*HAPPENED_UNKEPT, delivered("fin")), "refuse response_lost", ANEW),
    same("not kept, retry", (*HAPPENED_UNKEPT, delivered("fin")), "refuse response_lost", ask=CERTAIN),
    # closed
    *(Row(f"{n}, retry", steps, f"refuse {code}", f"refuse {code}", ask=CERTAIN) for n, steps, code in CLOSED_ROWS),
    Row("decided served", SERVED, "refuse response_lost", ANEW),
    Row("erased", ERASED, "refuse response_erased", ANEW),
    Row("erased, delivered", (*ERASED, delivered("fin")), "refuse response_erased", ANEW),
    Row("erased, socket open", (*ERASED, delivered("fin")), "refuse response_erased", ANEW, OPEN),
    same("erased, late retry", (*ERASED, delivered("fin")), "refuse response_erased", ask=CERTAIN),
    Row("erased, too late", (*ERASED, delivered("fin")), "refuse response_erased", ANEW, ask=CERTAIN, now={"late_retry_ms": 10}),
    Row("erased, absent", (*ABSENT, "body.erased"), RESUMED, RESUMED),
    Row("parked", PARKED, "refuse parked", "refuse parked"),
    Row("parked, owed", PARKED, "refuse parked", "refuse parked", now=OWED),
    Row("parked, all accepted", PARKED, "refuse parked", "refuse parked", ask=ACCEPTS, policy=EVERYTHING),
    # corruption
    Row("corruption", ("call.completed",), "refuse corruption", "refuse corruption"),
    same("corruption, all accepted", (*LOST, "attempt.started"), "refuse corruption", ask=ACCEPTS, policy=EVERYTHING),
)  # fmt: skip


def cases() -> list[Any]:
    return [
        pytest.param(row, source, id=f"{number}-{source}-{row.name}")
        for number, row in enumerate(ROWS)
        for source in ("explicit", "derived")
        if getattr(row, source) is not None
    ]


def verdict_of(row: Row, source: Any, *, observes: bool = False) -> Verdict:
    past = Past(source, row.protocol)
    call = past.call(*row.steps)
    ask, now = replace(ASK, **row.ask, **of(source)), replace(NOW, **row.now)
    policy = replace(Policy(observes=observes), **row.policy)
    return decide(ask, past.history, {call: Live(**row.live)}, policy, now)


@pytest.mark.parametrize(("row", "source"), cases())
def test_row_of_the_table_gives_its_verdict(row: Row, source: Any) -> None:
    """Every row, for both kinds of key."""
    assert told(verdict_of(row, source)) == getattr(row, source)


@pytest.mark.parametrize(("row", "source"), cases())
def test_observing_forwards_what_the_table_refuses(row: Row, source: Any) -> None:
    """`mode = "observe"`: nothing but corruption is refused, the claim says what would have been, and all else stays as it is."""
    expected = row.explicit if source == "explicit" else row.derived
    verdict = verdict_of(row, source, observes=True)
    if expected is None or not expected.startswith("refuse") or expected == "refuse corruption":
        assert expected is None or told(verdict) == expected
        return
    assert isinstance(verdict, Forward)
    assert verdict.evidence["would_refuse"] == expected.removeprefix("refuse ")
    assert (verdict.authority is not None) == (expected in ("refuse effect_unknown", "refuse effect_happened"))


@pytest.mark.parametrize("source", ["explicit", "derived"])
def test_first_request_of_a_key_is_forwarded(source: str) -> None:
    """The row `none`, whatever sign the request carries."""
    for changes in ({}, CERTAIN, ACCEPTS):
        ask = replace(ASK, **changes, **of(source))
        assert told(decide(ask, Past().history, {}, Policy(), NOW)) == "forward first 1.1"


# name, steps of each occurrence, what is live of each, changes of ask and now, verdict
OCCURRENCES: tuple[tuple[str, tuple[tuple[Step, ...], ...], tuple[dict[str, bool], ...], Any, Any, str], ...] = (
    ("oldest waiting to be sent", (MANIFEST, MANIFEST), ({}, {}), {}, {}, "forward resumed 1.2"),
    ("one to send before one to hand over", (HAPPENED, MANIFEST), ({}, {}), {}, {}, "forward resumed 2.2"),
    ("one to hand over before an unknown one", (LOST, HAPPENED), ({}, {}), {}, {}, "replay"),
    ("an unknown one before a new one", (LOST, (*HAPPENED, delivered("fin"))), ({}, {}), {}, {}, "refuse effect_unknown"),
    ("the unclaimed one of two alive", (STARTED, STARTED), (ALIVE | OPEN, ALIVE), {}, {}, "attach"),
    ("both claimed", (STARTED, STARTED), (ALIVE | OPEN, ALIVE | OPEN), {}, SETTLED, "forward second_sample 3.1"),
    ("both claimed, retry", (STARTED, HAPPENED), (ALIVE | OPEN, OPEN), CERTAIN, WAITED, "refuse in_progress"),
    ("claimed and late", (STARTED, (*HAPPENED, delivered("fin"))), (ALIVE | OPEN, {}), CERTAIN, WAITED, "replay"),
    ("late beside an erased one", ((*ERASED, delivered("fin")), (*HAPPENED, delivered("fin"))), ({}, {}), CERTAIN, {}, "replay"),
    ("both delivered", ((*HAPPENED, delivered("fin")),) * 2, ({}, {}), {}, {}, "forward second_sample 3.1"),
    ("corruption anywhere", (HAPPENED, ("call.completed",)), ({}, {}), {}, {}, "refuse corruption"),
    ("owed beside one to send", (MANIFEST, HAPPENED), ({}, {}), {}, OWED, "forward resumed 1.2"),
    ("accepted before anything else", (LOST, MANIFEST), ({}, {}), ACCEPTS, {}, "forward decision 1.2 by caller Sendonce-Accept"),
)  # fmt: skip


@pytest.mark.parametrize("case", OCCURRENCES, ids=[case[0] for case in OCCURRENCES])
def test_several_occurrences_of_a_key_give_the_oldest_unclaimed(case: Any) -> None:
    """Occurrences are a multiset: each has one claimant, and none is collapsed into another."""
    _, walks, lives, asked, at, verdict = case
    past = Past()
    calls = [past.call(*steps, occurrence=number) for number, steps in enumerate(walks, 1)]
    live = {call: Live(**about) for call, about in zip(calls, lives, strict=True)}
    assert told(decide(replace(ASK, **asked), past.history, live, Policy(), replace(NOW, **at))) == verdict
