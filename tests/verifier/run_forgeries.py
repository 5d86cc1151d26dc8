"""Forgeries about runs: passes opened out of turn, calls given to passes that are not theirs, deliveries counted elsewhere."""

from pathlib import Path
from typing import Any

from ledger.verifier import Verdict
from tests.verifier.bundles import ZEROS, Line, Parts
from tests.verifier.forgeries import at, copy, forges
from tests.verifier.run_story import HELD, RAN, RESUMED, STOPPED, TWICE
from tests.verifier.story import AGAIN


def said_at_the_end(parts: Parts, call: str) -> list[dict[str, Any]]:
    """The last rows of this call: of the list and of its show."""
    ending = parts.inspections[-2 * len(parts.index) :]
    return [said["document"] for said in ending if said["document"]["call_id"] == call]


def index_of(parts: Parts, call: str) -> dict[str, Any]:
    return next(row for row in parts.index if row["call_id"] == call)


def give(parts: Parts, call: str, number: int, run: str = "nightly") -> None:
    """A pass.served as the last event of all."""
    line = copy(at(parts, "pass.served", TWICE, 1))
    line.record |= {"call": call, "data": {"run": run, "number": number, "disposition": "replayed"}}
    parts.events.append(Line(line.record))


@forges("pass_not_open")
def give_to_a_stale_pass(parts: Parts, _: Path) -> None:
    at(parts, "pass.served", TWICE, 1).record["data"]["number"] = 1


@forges("pass_not_open")
def give_to_a_pass_that_was_never_opened(parts: Parts, _: Path) -> None:
    at(parts, "pass.served", TWICE, 1).record["data"]["number"] = 3


@forges("pass_not_open")
def give_to_a_pass_before_it_is_opened(parts: Parts, _: Path) -> None:
    line = at(parts, "pass.served", RAN, 1)
    parts.events.remove(line)
    parts.events.insert(parts.events.index(at(parts, "pass.opened", nth=1)), line)


@forges("pass_not_open")
def give_to_another_run(parts: Parts, _: Path) -> None:
    """Which is there, and whose newest pass that is."""
    opened = copy(at(parts, "pass.opened"))
    opened.record["data"] |= {"run": "weekly"}
    parts.events.insert(parts.events.index(at(parts, "pass.opened")) + 1, Line(opened.record))
    at(parts, "pass.served", RAN).record["data"]["run"] = "weekly"


@forges("pass_not_open")
def give_a_call_of_no_run(parts: Parts, _: Path) -> None:
    give(parts, AGAIN, 2)


@forges("pass_out_of_order")
def skip_a_pass(parts: Parts, _: Path) -> None:
    """Everything else speaks of pass 3 then."""
    renumber(parts, 3)


@forges("pass_out_of_order")
def open_a_pass_twice(parts: Parts, _: Path) -> None:
    renumber(parts, 1)


def renumber(parts: Parts, number: int) -> None:
    for line in parts.events[parts.events.index(at(parts, "pass.opened", nth=1)) :]:
        data = line.record["data"]
        names = {"pass.opened": "number", "pass.served": "number", "call.delivered": "pass_number"}
        name = names.get(line.record["kind"])
        if name is not None and data[name] == 2:
            data[name] = number
    parts.passes[1]["number"] = number
    for row in parts.index:
        row["served_pass"] = number if row["served_pass"] == 2 else row["served_pass"]


@forges("head_unknown")
def open_a_pass_on_an_unknown_head(parts: Parts, _: Path) -> None:
    at(parts, "pass.opened", nth=1).record["data"]["head_chain"] = "a" * 64


@forges("head_unknown")
def open_a_pass_on_no_head(parts: Parts, _: Path) -> None:
    """There were events."""
    at(parts, "pass.opened").record["data"] |= {"head_seq": 0, "head_chain": ZEROS}


@forges("occurrence_skipped")
def skip_an_occurrence_in_a_pass(parts: Parts, _: Path) -> None:
    parts.events.remove(at(parts, "pass.served", RAN, 1))
    parts.events.remove(at(parts, "call.delivered", RAN, 1))


@forges("occurrence_skipped")
def give_occurrences_the_other_way_round(parts: Parts, _: Path) -> None:
    first, second = at(parts, "pass.served", RAN, 1), at(parts, "pass.served", TWICE, 1)
    parts.events.remove(second)
    parts.events.insert(parts.events.index(first), second)


@forges("pass_missing")
def claim_without_a_pass(parts: Parts, _: Path) -> None:
    parts.events.remove(at(parts, "pass.served", HELD))


@forges("pass_missing")
def give_up_without_a_pass(parts: Parts, _: Path) -> None:
    parts.events.remove(at(parts, "pass.served", STOPPED))


@forges("pass_missing", Verdict.TRUNCATED)
def claim_and_do_nothing_more_without_a_pass(parts: Parts, _: Path) -> None:
    """Nothing follows the claim, so only the whole tells. (Nobody was shown the call either.)"""
    kinds = ("call.requested", "call.manifest")
    claim = [copy(at(parts, kind, TWICE)) for kind in kinds]
    for line in claim:
        line.record["call"] = "call_" + "f" * 28
    claim[0].record["data"] |= {"occurrence": 3}
    parts.events += [Line(line.record) for line in claim]


@forges("pass_missing")
def give_after_the_claim(parts: Parts, _: Path) -> None:
    """In a transaction of its own, though before anything was sent."""
    served = at(parts, "pass.served", HELD)
    parts.events.remove(served)
    between = copy(at(parts, "call.delivered", RAN))
    between.record["data"]["how"] = "no"
    place = parts.events.index(at(parts, "attempt.started", HELD))
    parts.events[place:place] = [Line(between.record), served]


@forges("pass_missing")
def give_before_the_claim_is_whole(parts: Parts, _: Path) -> None:
    served, resumed = at(parts, "pass.served", RESUMED), at(parts, "call.resumed", RESUMED)
    parts.events.remove(served)
    parts.events.insert(parts.events.index(resumed), served)


@forges("disposition_differs")
def call_a_resumption_forwarded(parts: Parts, _: Path) -> None:
    at(parts, "pass.served", RESUMED).record["data"]["disposition"] = "forwarded"


@forges("disposition_differs")
def call_a_replay_forwarded(parts: Parts, _: Path) -> None:
    """As if it had been sent for this pass."""
    at(parts, "pass.served", RAN, 1).record["data"]["disposition"] = "forwarded"


@forges("disposition_differs")
def call_a_claim_replayed(parts: Parts, _: Path) -> None:
    at(parts, "pass.served", RAN).record["data"]["disposition"] = "replayed"


@forges("pass_not_given")
def deliver_to_a_pass_that_was_given_nothing(parts: Parts, _: Path) -> None:
    """The first pass never had the resumed call."""
    at(parts, "call.delivered", RESUMED).record["data"]["pass_number"] = 1


@forges("pass_not_given")
def deliver_a_runs_call_to_no_pass(parts: Parts, _: Path) -> None:
    at(parts, "call.delivered", HELD).record["data"]["pass_number"] = None


@forges("pass_not_given")
def deliver_to_a_pass_outside_of_runs(parts: Parts, _: Path) -> None:
    at(parts, "call.delivered", AGAIN).record["data"]["pass_number"] = 2


@forges("inspection_differs")
def count_a_delivery_to_an_earlier_pass(parts: Parts, _: Path) -> None:
    """The rows say that this pass has the answer, and the index that the call is over."""
    for row in said_at_the_end(parts, HELD):
        row["delivered"] = ["fin"]


@forges("index_differs")
def close_what_an_earlier_pass_was_delivered(parts: Parts, _: Path) -> None:
    index_of(parts, HELD)["is_open"] = 0


@forges("inspection_differs")
def deliver_to_the_wrong_pass(parts: Parts, _: Path) -> None:
    """Both passes were given the call, so the event is legal: it is the rows that it contradicts."""
    at(parts, "call.delivered", HELD).record["data"]["pass_number"] = 2


@forges("inspection_differs")
def say_another_pass(parts: Parts, _: Path) -> None:
    said_at_the_end(parts, RAN)[1]["pass"] = 1


@forges("inspection_differs")
def say_nothing_of_the_run(parts: Parts, _: Path) -> None:
    """A row may leave it out only where there is none."""
    del said_at_the_end(parts, RAN)[1]["run"]


@forges("index_differs")
def index_another_pass(parts: Parts, _: Path) -> None:
    index_of(parts, RAN)["served_pass"] = 1


@forges("index_differs")
def index_no_run(parts: Parts, _: Path) -> None:
    index_of(parts, RAN)["run"] = None


@forges("index_differs")
def index_a_resolved_call_as_unresolved(parts: Parts, _: Path) -> None:
    index_of(parts, HELD)["is_unresolved"] = 1


@forges("index_differs")
def index_an_unresolved_call_as_resolved(parts: Parts, _: Path) -> None:
    parts.index[0]["is_unresolved"] = 0


@forges("passes_differ")
def leave_out_a_pass(parts: Parts, _: Path) -> None:
    del parts.passes[1]


@forges("passes_differ")
def leave_out_an_earlier_pass(parts: Parts, _: Path) -> None:
    del parts.passes[0]


@forges("passes_differ")
def list_a_pass_that_was_never_opened(parts: Parts, _: Path) -> None:
    parts.passes.append({"run": "nightly", "number": 3, "opened_seq": 1})


@forges("passes_differ")
def list_a_pass_as_opened_elsewhere(parts: Parts, _: Path) -> None:
    parts.passes[0]["opened_seq"] += 1
