"""What a client and an operator know of each request, and how many provider receipts that allows: the oracle, in plain words.

It never asks our ledger what happened. A permit is given where somebody knowingly wants the provider to work once more;
the provider's own receipts of a body may never outnumber its permits. What the ledger says is audited at the end, beside
those receipts, by the independent verifier.
"""

import asyncio
import http.client
import json
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from ledger import verifier
from ledger.events import Decision
from ledger.ids import CallId
from ledger.verifier import Verdict
from proxy import evidence, owner
from proxy.reconcile.operator import Ruling
from proxy.settings import load
from tests.harness.crashes import CHAT_PATH, begin, digest_of, read_until_cut, receipts_of, until
from tests.harness.processes import Answer, Rig

RETRY: Final = {"x-stainless-lang": "python", "x-stainless-retry-count": "1"}
EFFECT_CODES: Final = frozenset({"effect_unknown", "effect_happened"})
# The provider's answers name their receipt: in the text, an error's message, a gateway's page.
_RECEIPT: Final = re.compile(rb"\breceipt (\d+)")


class Fate(StrEnum):
    """What the last request of an intention came to, as its client or the operator saw it."""

    NEW = "never asked"
    WHOLE = "answered, and the client has it"
    ABSENT = "rejected by a whole 4xx, which proves that nothing was done"
    SERVER_ERROR = "failed by the provider's own word, which `after_server_error = accept` lets a client try again"
    LEFT = "the client went away while the proxy lived on and read the answer"
    HELD = "the provider has it and will never answer"
    INTERRUPTED = "the proxy was killed at some moment of it: perhaps sent, perhaps not, perhaps even answered"
    UNRESOLVED = "sent, and the client was told of a cut, a loss or a refusal"
    SERVED = "decided: served, the answer is lost"
    SETTLED = "decided: not served, or a duplicate is accepted"
    PARKED = "decided: set aside"


@dataclass(frozen=True, slots=True)
class Rule:
    """What one more request may cause. Refused: with one of `codes`, and always if `must`."""

    permits: int
    codes: frozenset[str] = frozenset()
    must: bool = False


ANSWERED_AGAIN: Final = Rule(0)
SENT: Final = Rule(1)
# Its permit was given when it was first sent, so whatever comes now was paid for, or is not sent.
DEPENDS: Final = Rule(0, EFFECT_CODES)
LOST: Final = Rule(0, frozenset({"response_lost"}), must=True)
UNDECIDED: Final = Rule(0, EFFECT_CODES, must=True)
ASIDE: Final = Rule(0, frozenset({"parked"}), must=True)
# Fate -> for the same intention again (an explicit key, or a retry's mark); for an unmarked request without a key, which
# after an answer that was received, or is known to be lost, is another sample that its client wants.
RULES: Final = {
    Fate.NEW: (SENT, SENT),
    Fate.WHOLE: (ANSWERED_AGAIN, SENT),
    Fate.ABSENT: (SENT, SENT),
    Fate.SERVER_ERROR: (SENT, SENT),
    Fate.LEFT: (ANSWERED_AGAIN, ANSWERED_AGAIN),
    Fate.INTERRUPTED: (DEPENDS, DEPENDS),
    Fate.UNRESOLVED: (UNDECIDED, UNDECIDED),
    Fate.SERVED: (LOST, SENT),
    Fate.SETTLED: (SENT, SENT),
    Fate.PARKED: (ASIDE, ASIDE),
}
AFTER_REFUSAL: Final = {"parked": Fate.PARKED, **dict.fromkeys(EFFECT_CODES, Fate.UNRESOLVED)}
AFTER_DECISION: Final[dict[Decision, Fate]] = {
    "served": Fate.SERVED,
    "not_served": Fate.SETTLED,
    "accept_duplicate": Fate.SETTLED,
    "parked": Fate.PARKED,
}


@dataclass(slots=True)
class Intention:
    """One body, unlike any other, with or without a key of its own."""

    body: bytes
    key: str | None
    fate: Fate = Fate.NEW
    permits: int = 0
    was_served: bool = False  # an occurrence was decided so: its retry stays refused, whatever came after it
    spent: str | None = None  # the attempt that a caller accepted, while no other sample followed
    open: http.client.HTTPConnection | None = None  # of a held request

    def rule(self, *, again: bool) -> Rule:
        rule = RULES[self.fate][0 if again or self.key else 1]
        if again and self.key is None and self.was_served and not rule.must:
            return replace(rule, codes=rule.codes | LOST.codes)
        return rule

    def headers(self, *, again: bool) -> dict[str, str]:
        return ({"Idempotency-Key": self.key} if self.key else {}) | (RETRY if again else {})

    def permit(self, rule: Rule, *, again: bool) -> None:
        self.permits += rule.permits
        if not (again or self.key) and self.fate in (Fate.WHOLE, Fate.SERVED):
            self.spent = None


@dataclass(slots=True)
class World:
    """The processes, what was asked of them, and the answers by the provider receipt that they name."""

    rig: Rig
    intentions: list[Intention] = field(default_factory=list)
    answers: dict[int, bytes] = field(default_factory=dict)

    def new(self, body: bytes, *, explicit: bool) -> Intention:
        key = f"key-{len(self.intentions)}" if explicit else None
        self.intentions.append(Intention(body, key))
        return self.intentions[-1]

    def of_fate(self, *fates: Fate) -> list[Intention]:
        return [intention for intention in self.intentions if intention.fate in fates]

    # --- asking ----------------------------------------------------------------------------------------------------

    def ask(self, intention: Intention, *, again: bool = False) -> None:
        """One request on a connection of its own, to its end."""
        rule = intention.rule(again=again)
        intention.permit(rule, again=again)
        self._exchange(intention, rule, intention.headers(again=again))

    def accept(self, intention: Intention) -> None:
        """The caller takes the refusal's word for the attempt, and with it the risk of a second effect: one permit."""
        refusal = self._exchange(intention, UNDECIDED, intention.headers(again=False))
        assert refusal is not None
        intention.spent = refusal.json["attempt"]
        intention.permits += SENT.permits
        self._exchange(intention, SENT, intention.headers(again=False) | {"Sendonce-Accept": str(intention.spent)})

    def accept_again(self, intention: Intention) -> None:
        """An acceptance is used once: said again, it is the same intention again."""
        rule = RULES[intention.fate][0]
        intention.permit(rule, again=True)
        self._exchange(intention, rule, intention.headers(again=False) | {"Sendonce-Accept": str(intention.spent)})

    def _exchange(self, intention: Intention, rule: Rule, headers: dict[str, str]) -> Answer | None:
        """Checks what came against the rule, and notes what the intention has come to."""
        before = self._recorded() if rule.codes else None
        receipts = len(self.rig.provider_receipts())
        with closing(begin(self.rig, CHAT_PATH, intention.body, headers)) as connection:
            answer, _ = read_until_cut(connection)
        if answer is not None and answer.disposition == "refused":
            assert answer.code in rule.codes, (intention, rule, answer)
            assert len(self.rig.provider_receipts()) == receipts
            assert self._recorded() == before, "a refusal left an event"
            intention.permits -= rule.permits  # unused
            intention.fate = AFTER_REFUSAL.get(answer.code, intention.fate)
            return answer
        assert not rule.must, (intention, rule, answer)
        if answer is not None and answer.disposition in ("replayed", "attached"):
            intention.permits -= rule.permits
        intention.fate = Fate.UNRESOLVED if answer is None else self._read(intention, answer)
        return answer

    def _read(self, intention: Intention, answer: Answer) -> Fate:
        """A whole answer: byte for byte the provider's, and always the same one for the same receipt."""
        if answer.headers.get("content-type") == "application/json" and answer.json.get("code") in EFFECT_CODES:
            return Fate.UNRESOLVED  # ours: the upstream connection broke before its head
        named = _RECEIPT.search(answer.body)
        assert named is not None, answer
        number = int(named[1])
        assert number in [receipt["n"] for receipt in receipts_of(self.rig, intention.body)], answer
        assert self.answers.setdefault(number, answer.body) == answer.body
        if answer.status == 502:
            return Fate.UNRESOLVED  # a gateway's page says nothing of what happened behind it
        if 400 <= answer.status < 500:
            return Fate.ABSENT
        in_band = b'data: {"error"' in answer.body
        assert in_band or answer.status >= 500 or _is_complete(answer), answer
        return Fate.SERVER_ERROR if in_band or answer.status >= 500 else Fate.WHOLE

    def _recorded(self) -> int:
        """How many events there are, but for deliveries: those come when the proxy notices that an earlier client has gone."""
        self._quiet()
        with closing(sqlite3.connect(f"file:{self.rig.paths.ledger}?mode=ro", uri=True)) as ledger:
            statement = "SELECT count(*) FROM event WHERE json_extract(record, '$.kind') <> 'call.delivered'"
            return int(ledger.execute(statement).fetchone()[0])

    def _quiet(self) -> None:
        """Until nothing is in flight but what the provider holds, and nothing more is written."""
        held, seen = len(self.of_fate(Fate.HELD)), ""

        def still() -> bool:
            nonlocal seen
            status = self.rig.status()
            before, seen = seen, str(status["head"])
            return len(status["in_flight"] or ()) <= held and seen == before

        until(still)

    # --- leaving and dying -----------------------------------------------------------------------------------------

    def send(self, intention: Intention, *, receipt: bool) -> http.client.HTTPConnection:
        """A request whose answer is not waited for; `receipt`: only until the provider has it."""
        before = len(receipts_of(self.rig, intention.body))
        intention.permit(intention.rule(again=False), again=False)
        connection = begin(self.rig, CHAT_PATH, intention.body, intention.headers(again=False))
        if receipt:
            until(lambda: len(receipts_of(self.rig, intention.body)) > before)
        return connection

    def kill(self) -> None:
        """SIGKILL, and a new proxy over the same state dir."""
        assert self.rig.proxy_process is not None
        self.rig.proxy_process.kill()
        self._died(self.of_fate(Fate.LEFT))

    def stop(self) -> None:
        """SIGTERM, twice where the first would wait for what never comes; and a new proxy."""
        process, held = self.rig.proxy_process, self.of_fate(Fate.HELD)
        assert process is not None
        self._quiet()  # so that only the held ones are cut
        if held:
            process.child.terminate()
            until(lambda: not self.rig.status()["admitting"])
        assert process.stop() == 0
        self._died([])

    def _died(self, perhaps: list[Intention]) -> None:
        for intention in perhaps:
            intention.fate = Fate.INTERRUPTED
        held = self.of_fate(Fate.HELD)
        for intention in held:
            intention.fate = Fate.UNRESOLVED
            self.let_go(intention)
        self.rig.start()
        for intention in held:
            self.ask(intention)  # refused, until somebody decides

    @staticmethod
    def let_go(intention: Intention) -> None:
        if intention.open is not None:
            intention.open.close()
            intention.open = None

    # --- deciding, and the books -----------------------------------------------------------------------------------

    def decide(self, intention: Intention, decision: Decision) -> None:
        """`sendonce reconcile` about the newest call of the body, succeeding the decision before it."""
        self._quiet()  # a decision relies on the call's head: a delivery at the same moment would refuse it
        digest = digest_of(intention.body)
        call = CallId(next(row["call_id"] for row in self.rig.calls() if row["body_blake3"] == digest))
        earlier = self.rig.show(call)["decisions"]
        ruling = Ruling(decision, f"decision {len(earlier) + 1}", "ada", earlier[-1]["seq"] if earlier else None)
        asyncio.run(owner.settle(load(None, {"state_dir": self.rig.state_dir}), {call: ruling}))
        intention.fate = AFTER_DECISION[decision]
        intention.was_served |= intention.fate is Fate.SERVED

    def check_receipts(self) -> None:
        """Never more effects than were permitted, and none that nobody asked for."""
        receipts = [receipt["body_blake3"] for receipt in self.rig.provider_receipts()]
        assert set(receipts) <= {digest_of(intention.body) for intention in self.intentions}
        for intention in self.intentions:
            assert receipts.count(digest_of(intention.body)) <= intention.permits, intention

    def check_records(self) -> None:
        """With no owner left: what would be exported now contradicts neither itself nor the provider's receipts."""
        paths, receipts = self.rig.paths, self.rig.receipts_file
        report = asyncio.run(evidence.verify(paths, self.rig.directory, lambda _done, _of: None, receipts))
        assert report.verdict is Verdict.OK, verifier.render(report)


def _is_complete(answer: Answer) -> bool:
    """By the dialect: a stream's terminal event, or an object that can be read."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        return answer.body.endswith(b"data: [DONE]\n\n")
    return bool(json.loads(answer.body)["choices"])


def cut_off(connection: http.client.HTTPConnection, mark: bytes) -> None:
    """The client reads up to `mark`, of a stream, and goes."""
    with closing(connection):
        if mark:
            response = connection.getresponse()
            with response:
                got = b""
                while mark not in got:
                    piece = response.read1(65536)
                    if not piece:
                        raise ConnectionError(f"ended before {mark!r}: {got!r}")
                    got += piece
