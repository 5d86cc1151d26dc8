"""One run, started twice, as part of the story: what its first start left, the second walks through.

RAN and TWICE are two occurrences of one key, answered in the first pass and replayed to the second, of which only RAN
arrived · HELD was asked in the first pass; the second was attached to it, and its answer reached the client of the first ·
STOPPED was claimed and given up, and RESUMED continues it in the second pass.
"""

from typing import Any

from tests.verifier.bundles import call_id, digest_of
from tests.verifier.history import History

RUN, SCOPE = "nightly", "openai/caller/nightly"
RAN, TWICE, HELD, STOPPED, RESUMED = map(call_id, range(8, 13))
ASKED = {RAN: b"a turn", TWICE: b"a turn", HELD: b"held", STOPPED: b"stopped", RESUMED: b"stopped"}
ANSWERS = {call: f"there {call}".encode() for call in (RAN, TWICE, HELD, RESUMED)}
EPOCH = 4


def start_twice(history: History) -> None:
    """All in one epoch, which is open."""
    history.open_pass(RUN, 1)
    claim(history, RAN, "turn")
    history.serve(RAN, 1, "forwarded")
    history.start(RAN, EPOCH, ASKED[RAN])
    history.answer(RAN, ANSWERS[RAN], pass_number=1)
    claim(history, TWICE, "turn", occurrence=2, evidence={"delivered": "fin"}, why_new="second_sample")
    history.serve(TWICE, 1, "forwarded")
    history.start(TWICE, EPOCH, ASKED[TWICE])
    history.answer(TWICE, ANSWERS[TWICE], pass_number=1)
    claim(history, STOPPED, "stopped")
    history.serve(STOPPED, 1, "forwarded")
    history.event("call.abandoned", STOPPED, reason="no connection")
    claim(history, HELD, "held")
    history.serve(HELD, 1, "forwarded")
    history.start(HELD, EPOCH, ASKED[HELD])
    history.open_pass(RUN, 2)
    history.serve(RAN, 2, "replayed")
    history.deliver(RAN, "fin", "replayed", 2)
    history.serve(TWICE, 2, "replayed")
    history.deliver(TWICE, "no", "replayed", 2)
    history.serve(HELD, 2, "attached")
    history.answer(HELD, ANSWERS[HELD], pass_number=1)
    resume(history)


def claim(history: History, call: str, key: str, **more: Any) -> None:
    history.claim(call, key, EPOCH, ASKED[call], scope=SCOPE, **more)


def resume(history: History) -> None:
    head = history.head
    claim(history, RESUMED, "stopped", generation=2, continues=STOPPED, why_new="resumed")
    compared = ["method", "intent_digest", "url", "body", "context"]
    named = {"head_seq": head["seq"], "head_chain": head["chain"]}
    history.event("call.resumed", RESUMED, continues=STOPPED, compared=compared, differences=[], **named)
    history.serve(RESUMED, 2, "resumed")
    history.start(RESUMED, EPOCH, ASKED[RESUMED])
    history.answer(RESUMED, ANSWERS[RESUMED], pass_number=2)


def rows(history: History) -> list[dict[str, Any]]:
    """Newest call first."""
    given_up = {"stage": "superseded", "effect": "absent", "attempts": 0, "delivered": [], "outcome": None}
    return [
        history.row(RESUMED, ASKED[RESUMED], **{"pass": 2}),
        history.row(STOPPED, ASKED[STOPPED], **given_up, superseded_by=RESUMED, **{"pass": 1}),
        history.row(HELD, ASKED[HELD], delivered=[], **{"pass": 2}),
        history.row(TWICE, ASKED[TWICE], delivered=["no"], **{"pass": 2}),
        history.row(RAN, ASKED[RAN], **{"pass": 2}),
    ]


def attempts() -> dict[str, dict[str, Any]]:
    return {call: {"epoch": EPOCH, "response_blake3": digest_of(ANSWERS[call])} for call in ANSWERS}


def index(history: History) -> None:
    history.index(RAN, EPOCH, served_pass=2)
    history.index(TWICE, EPOCH, served_pass=2, is_open=1)
    history.index(HELD, EPOCH, served_pass=2, is_open=1)
    history.index(STOPPED, EPOCH, served_pass=1)
    history.index(RESUMED, EPOCH, served_pass=2)


def received() -> list[dict[str, Any]]:
    """What the provider wrote down: no request twice."""
    return [{"body_blake3": digest_of(ASKED[call]), "client_request_id": call} for call in ANSWERS]
