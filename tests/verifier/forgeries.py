"""Forgeries, at least one for each finding of meaning: chains and inventory are made anew, so only it (and what follows from it) gives them away."""

import json
from collections.abc import Callable
from pathlib import Path

from ledger.verifier import Verdict
from tests.verifier.bundles import LEDGER, Line, Parts, digest_of, settle
from tests.verifier.story import AGAIN, ANSWERED, CUT, LOST, REQUESTS, RESPONSES, SAMPLE, UNKEPT, UNSENT

Forgery = Callable[[Parts, Path], None]
FORGERIES: dict[str, tuple[str, Verdict, Forgery]] = {}  # by the forgery's name: finding, verdict, forgery


def forges(name: str, verdict: Verdict = Verdict.CONTRADICTION) -> Callable[[Forgery], Forgery]:
    def enter(forgery: Forgery) -> Forgery:
        FORGERIES[forgery.__name__] = (name, verdict, forgery)
        return forgery

    return enter


def at(parts: Parts, kind: str, call: str | None = None, nth: int = 0) -> Line:
    found = [line for line in parts.events if line.record["kind"] == kind and call in (None, line.record["call"])]
    return found[nth]


def receipt(parts: Parts, kind: str, call: str) -> tuple[list[Line], Line]:
    """The first such receipt, and the segment it stands in."""
    for lines in parts.segments.values():
        for line in lines:
            if line.record["kind"] == kind and line.record.get("call") == call:
                return lines, line
    raise LookupError(call)


def copy(line: Line) -> Line:
    return Line(json.loads(json.dumps(line.record)))


def body(directory: Path, data: bytes) -> Path:
    return directory / "bodies" / digest_of(data)


@forges("attempt_lost")
def drop_the_attempt(parts: Parts, _: Path) -> None:
    parts.events.remove(at(parts, "attempt.started", CUT))


@forges("receipt_repeated")
def repeat_a_receipt(parts: Parts, _: Path) -> None:
    lines, line = receipt(parts, "sent", AGAIN)
    lines.append(copy(line))


@forges("receipt_foreign")
def name_another_ledger(parts: Parts, _: Path) -> None:
    parts.segments["receipts/000002.jsonl"][0].record["ledger"] = "ledger-2"


@forges("inspection_from_future")
def move_an_inspection_back(parts: Parts, _: Path) -> None:
    parts.inspections[2]["head"] = parts.inspections[2]["head_after"] = parts.inspections[1]["head"]


@forges("inspection_differs")
def say_something_else(parts: Parts, _: Path) -> None:
    parts.inspections[2]["document"]["effect"] = "absent"


@forges("inspection_list_broken")
def leave_a_call_out(parts: Parts, _: Path) -> None:
    del parts.inspections[3]


@forges("inspection_head_differs")
def name_another_head(parts: Parts, _: Path) -> None:
    parts.inspections[0]["head"]["chain"] = parts.inspections[0]["head_after"]["chain"] = "0" * 64


@forges("inspection_appended")
def append_while_refusing(parts: Parts, _: Path) -> None:
    parts.inspections[0]["head_after"] = parts.inspections[2]["head"]


@forges("order_illegal")
def complete_before_interpreting(parts: Parts, _: Path) -> None:
    line = at(parts, "call.completed", AGAIN)
    parts.events.remove(line)
    parts.events.insert(parts.events.index(at(parts, "attempt.interpreted", AGAIN)), line)


@forges("observation_moved")
def give_an_observation_to_another_call(parts: Parts, _: Path) -> None:
    at(parts, "attempt.observed", AGAIN).record["call"] = ANSWERED


@forges("decision_forged")
def decide_without_observing(parts: Parts, _: Path) -> None:
    parts.events.remove(at(parts, "reconcile.observed", CUT))


@forges("interpretation_without_bytes")
def drop_an_interpreted_body(_: Parts, directory: Path) -> None:
    body(directory, RESPONSES[AGAIN]).unlink()


@forges("release_before_observation")
def deliver_early(parts: Parts, _: Path) -> None:
    line = at(parts, "call.delivered", AGAIN)
    parts.events.remove(line)
    parts.events.insert(parts.events.index(at(parts, "attempt.observed", AGAIN)), line)


@forges("second_attempt_unaccepted")
def drop_the_acceptance(parts: Parts, _: Path) -> None:
    at(parts, "call.requested", AGAIN).record["data"]["accepts_attempt"] = None


@forges("effects_exceed_acceptances")
def start_twice(parts: Parts, _: Path) -> None:
    line = copy(at(parts, "attempt.started", UNKEPT))
    line.record["attempt"] = 2
    parts.events.insert(parts.events.index(at(parts, "attempt.acknowledged", UNKEPT)), line)


@forges("occurrence_without_evidence")
def drop_the_evidence(parts: Parts, _: Path) -> None:
    at(parts, "call.requested", SAMPLE).record["data"]["evidence"] = None


@forges("claim_illegal")
def skip_an_occurrence(parts: Parts, _: Path) -> None:
    at(parts, "call.requested", SAMPLE).record["data"]["occurrence"] = 3


@forges("resumed_digest_differs")
def resume_with_another_method(parts: Parts, _: Path) -> None:
    at(parts, "call.manifest", AGAIN).record["data"]["method"] = "PUT"


@forges("resumption_missing")
def drop_the_resumption(parts: Parts, _: Path) -> None:
    parts.events.remove(at(parts, "call.resumed", AGAIN))


@forges("head_unknown")
def resume_on_an_unknown_head(parts: Parts, _: Path) -> None:
    at(parts, "call.resumed", AGAIN).record["data"]["head_seq"] = 1


@forges("erased_body_exists")
def bring_an_erased_body_back(_: Parts, directory: Path) -> None:
    body(directory, RESPONSES[SAMPLE]).write_bytes(RESPONSES[SAMPLE])


@forges("epoch_marker_missing")
def open_an_epoch_unmarked(parts: Parts, _: Path) -> None:
    at(parts, "epoch.opened", nth=2).record["data"]["protocol"] = "none"


@forges("epoch_out_of_order")
def leave_an_epoch_open(parts: Parts, _: Path) -> None:
    parts.events.remove(at(parts, "epoch.closed", nth=1))


@forges("epoch_not_open")
def start_in_a_dead_epoch(parts: Parts, _: Path) -> None:
    at(parts, "attempt.started", AGAIN).record["data"]["epoch"] = 2


@forges("ledger_id_differs")
def open_an_epoch_of_another_ledger(parts: Parts, _: Path) -> None:
    at(parts, "epoch.opened", nth=2).record["data"]["ledger_id"] = LEDGER + "2"


@forges("erasure_illegal")
def erase_a_body_of_another_call(parts: Parts, _: Path) -> None:
    at(parts, "body.erased").record["data"]["digest"] = digest_of(RESPONSES[AGAIN])


@forges("credential_recorded")
def record_a_credential(parts: Parts, _: Path) -> None:
    at(parts, "call.manifest", AGAIN).record["data"]["url"] += "?key=abc"


@forges("receipt_digest_differs")
def witness_another_body(parts: Parts, _: Path) -> None:
    receipt(parts, "sent", AGAIN)[1].record["digest"] = "a" * 64


@forges("receipt_missing")
def drop_a_receipt(parts: Parts, _: Path) -> None:
    lines, line = receipt(parts, "sent", AGAIN)
    lines.remove(line)


@forges("receipt_gap")
def begin_a_segment_twice(parts: Parts, _: Path) -> None:
    lines = parts.segments["receipts/000002.jsonl"]
    lines.append(copy(lines[0]))


@forges("receipt_position_differs")
def name_another_position(parts: Parts, _: Path) -> None:
    at(parts, "epoch.opened", nth=2).record["data"]["receipts_chain"] = "a" * 64


@forges("receipts_truncated", Verdict.TRUNCATED)
def drop_the_last_segment(parts: Parts, directory: Path) -> None:
    (directory / "receipts" / "000002.jsonl").unlink()
    del parts.segments["receipts/000002.jsonl"]


@forges("witness_without_receipt")
def drop_the_lost_attempts_receipt(parts: Parts, _: Path) -> None:
    lines, line = receipt(parts, "sent", LOST)
    lines.remove(line)


@forges("provider_receipt_uncovered")
def receive_once_more(parts: Parts, _: Path) -> None:
    assert parts.provider is not None
    parts.provider.append(parts.provider[3])


@forges("body_missing")
def drop_a_request(_: Parts, directory: Path) -> None:
    body(directory, REQUESTS[UNKEPT]).unlink()


@forges("body_size_differs")
def record_another_size(parts: Parts, _: Path) -> None:
    at(parts, "call.manifest", UNKEPT).record["data"]["body"]["size"] += 1


@forges("body_unnamed")
def add_a_body(_: Parts, directory: Path) -> None:
    body(directory, b"nobody's").write_bytes(b"nobody's")


@forges("body_swapped", Verdict.TAMPERED)
def swap_a_body(_: Parts, directory: Path) -> None:
    body(directory, RESPONSES[AGAIN]).write_bytes(RESPONSES[ANSWERED])


@forges("body_damaged", Verdict.TAMPERED)
def damage_a_body(_: Parts, directory: Path) -> None:
    body(directory, RESPONSES[AGAIN]).write_bytes(b"else")


@forges("body_unreadable", Verdict.TAMPERED)
def list_a_body_as_unreadable(parts: Parts, directory: Path) -> None:
    body(directory, RESPONSES[AGAIN]).unlink()
    parts.about["unreadable"] = {digest_of(RESPONSES[AGAIN]): "A chunk is damaged."}


@forges("index_differs")
def change_an_index_row(parts: Parts, _: Path) -> None:
    parts.index[1]["is_open"] = 1


@forges("receipt_out_of_place")
def exchange_two_receipts(parts: Parts, _: Path) -> None:
    lines, line = receipt(parts, "sent", AGAIN)
    lines.remove(line)
    lines.append(line)


@forges("receipt_out_of_place")
def part_the_log_too_early(parts: Parts, _: Path) -> None:
    epoch = at(parts, "epoch.opened", nth=2).record["data"]
    lines = [line for path in sorted(parts.segments) for line in parts.segments[path]]
    epoch["receipts_count"] -= 1
    epoch["receipts_chain"] = lines[epoch["receipts_count"] - 1].link


@forges("not_sent_but_receipted")
def receive_a_receipt_behind_the_next_position(parts: Parts, _: Path) -> None:
    witness_the_unsent(parts)


@forges("not_sent_but_receipted")
def receive_a_receipt_before_the_next_position(parts: Parts, _: Path) -> None:
    """All else agrees, and no provider wrote down what it received."""
    parts.provider = None
    witness_the_unsent(parts)
    epoch = at(parts, "epoch.opened", nth=3).record["data"]
    line = receipt(parts, "sent", UNSENT)[1]
    epoch["receipts_count"], epoch["receipts_chain"] = line.record["n"], line.link


def witness_the_unsent(parts: Parts) -> None:
    lines, line = receipt(parts, "sent", AGAIN)
    started = at(parts, "attempt.started", UNSENT)
    head = {"seq": started.record["seq"], "chain": started.link, "digest": digest_of(REQUESTS[UNSENT])}
    whose = {"call": UNSENT, "key": "unsent", "generation": 1}
    lines.insert(lines.index(receipt(parts, "sent", UNKEPT)[1]), Line(copy(line).record | whose | head))
    settle(parts)


@forges("witness_unaccepted")
def accept_no_loss(parts: Parts, _: Path) -> None:
    at(parts, "epoch.opened", nth=1).record["data"]["accepted"] = None


@forges("effect_unproven")
def read_absence_off_an_answer(parts: Parts, _: Path) -> None:
    at(parts, "attempt.interpreted", UNKEPT).record["data"]["effect"] = "absent"


@forges("inspections_missing", Verdict.TRUNCATED)
def leave_out_the_last_list(parts: Parts, _: Path) -> None:
    del parts.inspections[-2 * len(parts.index) :]


@forges("status_differs")
def observe_another_status(parts: Parts, _: Path) -> None:
    at(parts, "attempt.observed", UNKEPT).record["data"]["status"] = 201


@forges("outcome_differs")
def complete_with_another_outcome(parts: Parts, _: Path) -> None:
    at(parts, "call.completed", UNKEPT).record["data"]["outcome"] = "refused"


@forges("body_withheld")
def withhold_a_response(parts: Parts, directory: Path) -> None:
    at(parts, "attempt.observed", AGAIN).record["data"]["body"]["kept"] = False
    body(directory, RESPONSES[AGAIN]).unlink()


@forges("authority_forged")
def let_a_nobody_accept(parts: Parts, _: Path) -> None:
    at(parts, "call.requested", AGAIN).record["data"]["authority"] = {
        "kind": "caller",
        "name": "x",
        "config_digest": None,
    }


@forges("claim_illegal")
def call_a_decision_a_resumption(parts: Parts, _: Path) -> None:
    at(parts, "call.requested", AGAIN).record["data"]["why_new"] = "resumed"


@forges("receipt_missing")
def drop_a_proof_of_absence(parts: Parts, _: Path) -> None:
    parts.events.remove(at(parts, "attempt.observed", UNSENT))
