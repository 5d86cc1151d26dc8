"""Runs: which passes were opened, what each was given and what was delivered to it (FORMAT.md, section 9)."""

from collections.abc import Iterator

from ledger.verifier.bundle import PASSES, Bundle, objects
from ledger.verifier.calls import Call
from ledger.verifier.fold import Ledger
from ledger.verifier.records import PASS_ROW, Event, shaped
from ledger.verifier.report import Check, Sweep

# A call that breaks one of these is corrupt from there on.
PASS_CORRUPTING = {"pass_not_open", "pass_missing", "pass_not_given", "disposition_differs", "occurrence_skipped"}
NO_HEAD = (0, "0" * 64)  # what the first event of a ledger would name
CLAIMED = {"forwarded", "resumed"}  # only a claim gives a call so


def openings(ledger: Ledger, event: Event, _: Call | None) -> list[str]:
    data = event.data
    head = (data["head_seq"], data["head_chain"])
    known = ledger.link(head[0]) == head[1] or (head == NO_HEAD and ledger.length == 0)
    follows = data["number"] == ledger.newest_pass(data["run"]) + 1
    return [*([] if known else ["head_unknown"]), *([] if follows else ["pass_out_of_order"])]


def givings(ledger: Ledger, event: Event, call: Call | None) -> list[str]:
    """A call that is not there, or of no run, has no pass at all."""
    run, number = event.data["run"], event.data["number"]
    if call is None or call.identity is None or call.run != run or ledger.newest_pass(run) != number:
        return ["pass_not_open"]
    scope, key, occurrence = call.group
    between = range(ledger.position(call, number) + 1, occurrence)  # they may be lost with a tail
    in_order = call.group in ledger.unrefused or not any((scope, key, one) in ledger.groups for one in between)
    names = [] if in_order else ["occurrence_skipped"]
    claims = call.why_new is not None and not call.passes
    if claims and not ends_claim(ledger, call):
        names.append("pass_missing")
    came = {"resumed" if call.why_new == "resumed" else "forwarded"} if claims else {"attached", "replayed"}
    return names if event.data["disposition"] in came else [*names, "disposition_differs"]


def starts(ledger: Ledger, _: Event, call: Call | None) -> list[str]:
    given = call.served_pass if call is not None else None
    closed = call is not None and given is not None and given != ledger.newest_pass(call.run)
    return ["pass_not_open"] if closed else []


def ends_claim(ledger: Ledger, call: Call) -> bool:
    """Is the event before the last one of the call's claim but this? A transaction's events stand behind each other."""
    continued = ledger.calls.get(call.continues) if call.continues else None
    resumes = continued is not None and continued.asks is not None
    before = ledger.newest
    return (
        before is not None
        and before.call == call.call_id
        and before.kind == ("call.resumed" if resumes else "call.manifest")
    )


def deliveries(_: Ledger, event: Event, call: Call | None) -> list[str]:
    """What could not be prepared was given to no pass: the proxy itself told its client."""
    number = event.data["pass_number"]
    if call is None or (call.run is not None and call.evidence == "preparation_failed"):
        return []
    right = number in call.passes if call.run is not None else number is None
    return [] if right else ["pass_not_given"]


def unclaimed(_: Bundle, ledger: Ledger) -> Iterator[tuple[str, list[str]]]:
    """Also of a call that never went on. One that is given after its claim is found where it is given."""
    for call in ledger.calls.values():
        if call.run is not None and call.asks is not None:
            yield call.call_id, [] if call.passes else ["pass_missing"]


def pass_rows(bundle: Bundle, ledger: Ledger) -> Iterator[tuple[str, list[str]]]:
    expected = [(run, *opened) for run in sorted(ledger.passes) for opened in sorted(ledger.passes[run])]
    seen = 0
    for place, row in objects(bundle, PASSES):
        shaped(row, PASS_ROW, place)
        right = seen < len(expected) and expected[seen] == (row["run"], row["number"], row["opened_seq"])
        yield place, [] if right else ["passes_differ"]
        seen += 1
    if seen < len(expected):
        yield f"{PASSES} ends early", ["passes_differ"]


PASS_CHECKS = (
    Check(
        "passes_are_in_order",
        "the passes of every run are opened with numbers from 1 without gaps, on a head that is there",
        "passes",
        frozenset({"pass.opened"}),
        openings,
    ),
    Check(
        "passes_are_given_in_order",
        "every call is given to the newest pass of its own run, and a pass gets the occurrences of a key in order",
        "calls given",
        frozenset({"pass.served"}),
        givings,
    ),
    Check(
        "closed_passes_start_nothing",
        "no attempt of a run's call starts once a newer pass was opened that was not given it",
        "starts",
        frozenset({"attempt.started"}),
        starts,
    ),
    Check(
        "deliveries_name_their_pass",
        "every delivery of a run's call names a pass that was given it, any other names none",
        "deliveries",
        frozenset({"call.delivered"}),
        deliveries,
    ),
)
PASS_SWEEPS = (
    Sweep("every_claim_of_a_run_was_given", "every claimed call of a run was given to a pass", "calls", unclaimed),
    Sweep("passes_are_rebuilt_equal", "every row of the passes is what the events give", "rows", pass_rows),
)
