"""One small ledger's life, written by hand, in which every claim of the verifier has something to look at.

Its calls: LOST is known from its receipt only · ANSWERED went well · SAMPLE is a second occurrence of its key, its response
erased · CUT was never answered, and an operator accepted a second effect, so AGAIN continues it · UNKEPT had a body over the
limit.
"""

from pathlib import Path

from tests.verifier.bundles import History, call_id, digest_of, write

LOST, ANSWERED, SAMPLE, CUT, AGAIN, UNKEPT = map(call_id, range(1, 7))
REQUESTS = {call: f"please {call}".encode() for call in (LOST, CUT, UNKEPT)}
REQUESTS |= {ANSWERED: b"please", SAMPLE: b"please", AGAIN: REQUESTS[CUT]}
RESPONSES = {call: f"there {call}".encode() for call in (ANSWERED, SAMPLE, AGAIN, UNKEPT)}
OPERATOR = {"kind": "operator", "name": "ann", "config_digest": None}


def good_bundle(directory: Path) -> History:
    """Write the bundle to an absent or empty directory."""
    history = History()
    lose_an_attempt(history)
    answer_two(history)
    cut_and_continue(history)
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
    started = {"stage": "effect_unknown", "effect": "unknown", "delivered": [], "outcome": None}
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
    history.claim(UNKEPT, "unkept", 3, REQUESTS[UNKEPT])
    history.start(UNKEPT, 3, REQUESTS[UNKEPT])
    history.answer(UNKEPT, RESPONSES[UNKEPT], kept=False)


def close(history: History) -> None:
    history.event("epoch.closed", epoch=3, by="self")
    row = history.row(AGAIN, REQUESTS[AGAIN])
    history.say("show", history.show(row, epoch=3, response_blake3=digest_of(RESPONSES[AGAIN])))
    cut = {"stage": "superseded", "effect": "unknown", "delivered": [], "outcome": None, "alive": None}
    history.say("show", history.show(
        history.row(CUT, REQUESTS[CUT], **cut, decision="accept_duplicate", superseded_by=AGAIN),
        **dict.fromkeys(("acknowledged_status", "observation", "source", "status", "effect")),
    ))  # fmt: skip
    history.parts.inspections[-1]["head_after"] = None
    history.index(LOST, None, is_open=1)
    history.index(ANSWERED, 2)
    history.index(SAMPLE, 2, is_open=1)
    history.index(CUT, 2)
    history.index(AGAIN, 3)
    history.index(UNKEPT, 3)
    history.parts.about["receipts_through"] = history.head["seq"]
    requested = {"method": "POST", "path": "/v1/chat", "complete": True, "idempotency_key": None}
    history.parts.provider = [
        {**requested, "body_blake3": digest_of(REQUESTS[call]), "client_request_id": call, "noted": "more"}
        for call in (ANSWERED, SAMPLE, AGAIN, UNKEPT)
    ]
    history.parts.provider[0]["idempotency_key"] = "key"
    history.parts.provider.append({"method": "GET", "path": "/v1/models", "body_blake3": None, "complete": True})
    history.parts.provider.append({**requested, "body_blake3": None, "complete": False})
