"""One small ledger's life, written by hand, in which every claim of the verifier has something to look at.

Its calls: LOST is known from its receipt only · ANSWERED went well · SAMPLE is a second occurrence of its key, its response
erased · CUT was never answered, and an operator accepted a second effect, so AGAIN continues it · UNKEPT minted a credential,
so its response was not kept · UNSENT started, and its process died before anything left. What a run asked for stands in
run_story.py.
"""

from pathlib import Path
from typing import Any

from tests.verifier import run_story
from tests.verifier.bundles import call_id, digest_of, write
from tests.verifier.history import History

LOST, ANSWERED, SAMPLE, CUT, AGAIN, UNKEPT, UNSENT = map(call_id, range(1, 8))
REQUESTS = {call: f"please {call}".encode() for call in (LOST, CUT, UNKEPT, UNSENT)}
REQUESTS |= {ANSWERED: b"please", SAMPLE: b"please", AGAIN: REQUESTS[CUT]}
RESPONSES = {call: f"there {call}".encode() for call in (ANSWERED, SAMPLE, AGAIN, UNKEPT)}
OPERATOR = {"kind": "operator", "name": "ann", "config_digest": None}


def good_bundle(directory: Path) -> History:
    """Write the bundle to an absent or empty directory."""
    history = History()
    lose_an_attempt(history)
    answer_two(history)
    cut_and_continue(history)
    leave_one_unsent(history)
    mint_a_credential(history)
    run_story.start_twice(history)
    close(history)
    (directory / "bodies").mkdir(parents=True)
    for digest, data in history.bodies.items():
        (directory / "bodies" / digest).write_bytes(data)
    write(history.parts, directory)
    return history


def lose_an_attempt(history: History) -> None:
    """A backup was restored: the receipt log knows an attempt that the ledger does not."""
    history.epoch(1)
    history.segment(1)
    identity = history.identify(LOST, "lost")
    digest = digest_of(REQUESTS[LOST])
    history.receipt("sent", LOST, 1, digest, {"seq": 4, "chain": "e" * 64})
    number, _ = history.position
    history.event("epoch.closed", epoch=1, by="successor")
    history.epoch(2, accepted="lost_tail")
    history.event("attempt.witnessed", LOST, 1, **identity, request_digest=digest, receipt=number)
    history.say("refusal", {"status": 424, "code": "effect_unknown"})


def answer_two(history: History) -> None:
    history.claim(ANSWERED, "key", 2, REQUESTS[ANSWERED])
    history.start(ANSWERED, 2, REQUESTS[ANSWERED])
    started: dict[str, Any] = {"stage": "effect_unknown", "effect": "unknown", "delivered": [], "outcome": None}
    row = history.row(ANSWERED, REQUESTS[ANSWERED], **started, alive=True)
    unseen = dict.fromkeys(("acknowledged_status", "observation", "source", "status", "effect"))
    history.say("show", history.show(row, **unseen))
    history.answer(ANSWERED, RESPONSES[ANSWERED])
    history.segment(2)
    history.claim(
        SAMPLE, "key", 2, REQUESTS[SAMPLE], occurrence=2, evidence={"delivered": "fin"}, why_new="second_sample"
    )
    history.start(SAMPLE, 2, REQUESTS[SAMPLE])
    history.answer(SAMPLE, RESPONSES[SAMPLE])
    unknown = {"stage": "effect_unknown", "effect": "unknown", "next_operation": "reconcile_effect"}
    lost = history.row(LOST, None, **unknown, duplicate_effect_risk=True, delivered=[], outcome=None)
    rows = [history.row(call, REQUESTS[call]) for call in (SAMPLE, ANSWERED)]
    for each in (*rows, lost):
        history.say("calls", each, of=3)
    digest = history.body(RESPONSES[SAMPLE])["digest"]
    del history.bodies[digest]
    history.event("body.erased", SAMPLE, None, digest=digest, which="response", why="asked", by="ann")


def cut_and_continue(history: History) -> None:
    history.claim(CUT, "cut", 2, REQUESTS[CUT])
    history.start(CUT, 2, REQUESTS[CUT])
    history.event("epoch.closed", epoch=2, by="successor")
    history.epoch(3)
    history.decide(CUT, "parked")
    history.decide(CUT, "accept_duplicate", succeeds=history.head["seq"])
    head = history.head
    accepted = {"accepts_attempt": f"{CUT}.1", "authority": OPERATOR, "why_new": "decision"}
    history.claim(AGAIN, "cut", 3, REQUESTS[AGAIN], generation=2, continues=CUT, **accepted)
    compared = ["method", "intent_digest", "url", "body", "context"]
    history.event(
        "call.resumed",
        AGAIN,
        continues=CUT,
        compared=compared,
        differences=[],
        head_seq=head["seq"],
        head_chain=head["chain"],
    )
    history.start(AGAIN, 3, REQUESTS[AGAIN])
    history.answer(AGAIN, RESPONSES[AGAIN])


def leave_one_unsent(history: History) -> None:
    """The process died between attempt.started and its receipt; the next start proves that nothing left."""
    history.claim(UNSENT, "unsent", 3, REQUESTS[UNSENT])
    history.event("attempt.started", UNSENT, 1, epoch=3)
    history.event("epoch.closed", epoch=3, by="successor")
    history.event(
        "attempt.observed", UNSENT, 1, observation="not_sent", ended_by="crash", source="salvage", proof="no receipt",
        status=None, reason_phrase=None, headers=None, framing=None, body=None,
    )  # fmt: skip
    history.epoch(4)


def mint_a_credential(history: History) -> None:
    history.claim(UNKEPT, "unkept", 4, REQUESTS[UNKEPT], endpoint_class="credential_mint")
    history.start(UNKEPT, 4, REQUESTS[UNKEPT])
    history.answer(UNKEPT, RESPONSES[UNKEPT], kept=False)


def close(history: History) -> None:
    history.event("epoch.closed", epoch=4, by="self")
    say_at_the_end(history)
    history.index(LOST, None, is_open=1, is_unresolved=1)
    history.index(ANSWERED, 2)
    history.index(SAMPLE, 2)
    history.index(CUT, 2)
    history.index(AGAIN, 3)
    history.index(UNKEPT, 4)
    history.index(UNSENT, 3, is_open=1)
    run_story.index(history)
    history.parts.about["receipts_through"] = history.head["seq"]
    requested = {"method": "POST", "path": "/v1/chat", "complete": True, "idempotency_key": None}
    history.parts.provider = [
        {**requested, "body_blake3": digest_of(REQUESTS[call]), "client_request_id": call, "noted": "more"}
        for call in (ANSWERED, SAMPLE, AGAIN, UNKEPT)
    ]
    history.parts.provider[0]["idempotency_key"] = "key"
    history.parts.provider += [{**requested, **named} for named in run_story.received()]
    nothing = {"body_blake3": digest_of(b"")}
    history.parts.provider.append({"method": "GET", "path": "/v1/models", "complete": True, **nothing})
    history.parts.provider.append({**requested, **nothing, "complete": False, "client_request_id": CUT})
    history.parts.provider.append({**requested, **nothing, "complete": False, "client_request_id": "somebody's own"})


def say_at_the_end(history: History) -> None:
    """What an export asks last: a list of all calls, newest first, and a show of each."""
    unanswered: dict[str, Any] = {"delivered": [], "outcome": None}
    unknown = {**unanswered, "stage": "effect_unknown", "effect": "unknown", "next_operation": "reconcile_effect"}
    unsent = {**unanswered, "stage": "not_sent", "effect": "absent", "next_operation": "start_next_attempt"}
    superseded = {**unanswered, "stage": "superseded", "effect": "unknown", "decision": "accept_duplicate"}
    rows = [
        *run_story.rows(history),
        history.row(UNSENT, REQUESTS[UNSENT], **unsent),
        history.row(UNKEPT, REQUESTS[UNKEPT]),
        history.row(AGAIN, REQUESTS[AGAIN], alive=None),
        history.row(CUT, REQUESTS[CUT], **superseded, superseded_by=AGAIN),
        history.row(SAMPLE, REQUESTS[SAMPLE], stage="closed"),
        history.row(ANSWERED, REQUESTS[ANSWERED]),
        history.row(LOST, None, **unknown, duplicate_effect_risk=True),
    ]
    for row in rows:
        history.say("calls", row, of=len(rows))
    unseen = dict.fromkeys(("acknowledged_status", "observation", "source", "status", "effect"))
    attempts: dict[str, dict[str, Any]] = {call: {"response_blake3": digest_of(RESPONSES[call])} for call in RESPONSES}
    attempts[AGAIN]["epoch"], attempts[UNKEPT]["epoch"] = 3, 4
    attempts |= {CUT: unseen, LOST: unseen | {"epoch": None}}
    attempts[UNSENT] = unseen | {"epoch": 3, "observation": "not_sent", "source": "salvage"}
    attempts |= run_story.attempts()
    for row in rows:
        show = history.show(row, **attempts.get(row["call_id"], {}))
        show["attempt_rows"] = show["attempt_rows"][: row["attempts"]]
        history.say("show", show)
