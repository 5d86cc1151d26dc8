"""A world around the real `decide`: clients with intents, their sockets, one key's ledger, a provider, crashes, operators.

What is real: the decision, the ledger's projection and its claim rule. What is modelled, in plain words: when a socket looks
open, when an answer counts as delivered, what of all this a crash takes away. What the world counts (`sends`, intents,
acceptances, who has read what) is the truth that no proxy knows, and the laws in `claims_laws` are about it.

Left out, for no proxy can know it: a FIN later than `duplicate_settle_ms`, or, of a client whose request was overtaken or had to
wait, later than the proxy's next look at it; a client that dies between its kernel's acknowledgement of a stream's last event
and its own reading of it; deliveries that a crash came before.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ledger.calls import CallState
from ledger.claims import claim_fault
from ledger.events import CallDelivered, Decision, DeliveredHow
from ledger.ids import CallId, attempt_id
from ledger.ladder import NEXT
from ledger.stages import Effect
from proxy.decisions import Ask, Attach, Forward, Live, Now, Policy, Refuse, Replay, Verdict, Wait
from tests.harness.histories import STARTED, Past, Step, completed, observed, requested_by
from tests.harness.ledgers import DIGEST, NOW_MS

Decide = Callable[..., Verdict]


class Phase(StrEnum):
    """How far a flight is."""

    CLAIMED = "claimed"
    STARTED = "started"
    SENT = "sent"
    OBSERVED = "observed"


@dataclass(frozen=True)
class Outcome:
    """What becomes of what was sent: its observation and reading, what the client gets, which setting rules a same request."""

    steps: tuple[Step, ...]  # after attempt.started
    concluding: tuple[Step, ...] = ()
    client: str = "error"  # good, error, or cut
    possible: bool = True  # could it have been served?
    setting: str | None = None  # unresolved under this one


def _concluded(effect: Effect, status: int, *, client: str = "error", setting: str | None = None) -> Outcome:
    steps = completed(effect, status)[len(STARTED) :]
    return Outcome(steps[:1], steps[1:], client, effect is not Effect.ABSENT, setting)


OUTCOMES: Final = {
    "good": _concluded(Effect.HAPPENED, 200, client="good"),
    "rejected": _concluded(Effect.ABSENT, 429),
    "server error": _concluded(Effect.ANSWERED, 500, setting="after_server_error"),
    "gateway error": _concluded(Effect.UNKNOWN, 502, setting="after_gateway_error"),
    "lost": Outcome(("attempt.observed:lost",), setting="on_unknown"),
    "cut": Outcome((observed("partial"),), client="cut", setting="after_cut_stream"),
}
NOT_SENT: Final = Outcome(("attempt.observed:not_sent",), possible=False)
ABANDONED: Final = Outcome(("call.abandoned",), possible=False)


@dataclass(eq=False)
class Intent:
    """One answer that somebody wants. Whatever is asked for it again is a retry."""

    asks: "list[Try]" = field(default_factory=list)
    satisfied: bool = False


@dataclass(eq=False)
class Try:
    """One request and its socket, as the client, the kernels and the proxy see it."""

    intent: Intent
    marked: bool
    born: int
    accepts: str | None = None
    on_its_way: bool = False  # it has not come to the proxy yet, and later ones may overtake it
    wait: Wait | None = None
    settled: bool = False
    waited: bool = False
    call: CallId | None = None
    disposition: str = "forwarded"
    written: str | None = None  # the end that the proxy wrote: good, error
    arrived: bool = False  # that end is in the client's kernel
    read: bool = False
    closed_at: int | None = None  # by the client
    reset: bool = False
    gone: bool = False  # the proxy's kernel knows
    over: bool = False  # so does the proxy, or the connection carries another request

    @property
    def open(self) -> bool:
        """As the proxy's kernel sees it."""
        return not self.gone and not self.over

    def left_before(self, moment: int) -> bool:
        return self.over or (self.closed_at is not None and self.closed_at < moment)

    def how(self) -> DeliveredHow:
        if not self.arrived:
            return "no"
        if not self.reset:
            return "fin"
        return "acked" if self.written == "good stream" else "no"


@dataclass
class World:
    """All there is about one derived key."""

    decide: Decide
    policy: Policy
    streams: bool
    late_retry_ms: int
    samples_for_the_gone: bool = False  # does the proxy make a new occurrence for a client that is known to have left?
    past: Past = field(default_factory=Past)
    intents: list[Intent] = field(default_factory=list)
    flights: dict[CallId, Phase] = field(default_factory=dict)
    ends: dict[CallId, Outcome] = field(default_factory=dict)  # of calls that were sent, or tried to
    remembered: set[CallId] = field(default_factory=set)  # delivered, in this process's memory
    undurable: list[tuple[CallId, CallDelivered]] = field(default_factory=list)
    owed: int = 0
    moment: int = 0
    sends: set[tuple[CallId, int]] = field(default_factory=set)  # attempts that could have been served
    acceptances: int = 0
    readers: dict[CallId, list[Intent]] = field(default_factory=dict)
    on_verdict: "Callable[[World, Try, Verdict], None]" = lambda *_: None  # the laws: asked before it is applied

    @property
    def tries(self) -> list[Try]:
        return [each for intent in self.intents for each in intent.asks]

    def claimants(self, call: CallId) -> list[Try]:
        return [each for each in self.tries if each.call == call and not each.over]

    @property
    def newest(self) -> list[CallState]:
        return [state for state in self.past.calls.values() if state.superseded_by is None]

    def live(self) -> Mapping[CallId, Live]:
        return {
            call: Live(
                alive=call in self.flights,
                claimed=any(each.open for each in self.claimants(call)),
                delivered=call in self.remembered or any(each.arrived for each in self.claimants(call)),
            )
            for call in self.past.calls
        }

    # --- clients -------------------------------------------------------------------------------------------------------

    def ask(
        self, intent: Intent, *, marked: bool, accepts: str | None = None, on: Try | None = None, slow: bool = False
    ) -> None:
        """`on`: a connection that the client has kept, and whose answer it has read. `slow`: it comes later (`come`)."""
        self.moment += 1
        if on is not None:
            self._end(on, "next_request" if on.arrived else "no")
            on.closed_at = self.moment
        made = Try(intent, marked, self.moment, accepts, on_its_way=slow)
        intent.asks.append(made)
        if not slow:
            self.admit(made)

    def come(self, each: Try) -> None:
        """With its FIN right behind it where its client has left."""
        self.moment += 1
        each.born, each.on_its_way, each.gone = self.moment, False, each.closed_at is not None
        self.admit(each)

    def turn_away(self, intent: Intent) -> None:
        """503, proven not sent, before anything was recorded."""
        self.moment += 1
        self.owed += 1
        intent.asks.append(Try(intent, marked=False, born=self.moment, written="error", arrived=True, read=True))

    def close(self, each: Try, *, reset: bool) -> None:
        """FIN, or RST, which unread bytes make of it. The proxy's kernel learns of a FIN later."""
        self.moment += 1
        each.closed_at, each.reset = self.moment, reset or (each.arrived and not each.read)
        if each.reset:
            each.gone = True
            self.notice(each)
            if each.how() == "no" and each.call is not None:  # by the contract nobody has read it
                self.readers[each.call] = [
                    reader for reader in self.readers.get(each.call, []) if reader is not each.intent
                ]

    def read(self, each: Try) -> None:
        each.read = True
        if each.written in ("good", "good stream") and each.call is not None:
            each.intent.satisfied = True
            self.readers.setdefault(each.call, []).append(each.intent)

    # --- sockets -------------------------------------------------------------------------------------------------------

    def notice(self, each: Try) -> None:
        self._end(each, each.how())

    def _end(self, each: Try, how: DeliveredHow) -> None:
        each.gone = each.over = True
        if each.call is not None:
            if how != "no":
                self.remembered.add(each.call)
            self.undurable.append((each.call, CallDelivered(how, each.disposition)))

    def catch_up(self) -> None:
        """The ledger has every delivery that was noticed, but for calls that had sent nothing yet."""
        for call, event in self.undurable:
            if event.kind in NEXT[self.past.calls[call].evidence]:
                self.past.step(call, event)
        self.undurable.clear()

    # --- the proxy -----------------------------------------------------------------------------------------------------

    def admit(self, each: Try) -> None:
        """Until it is served, refused or has to wait."""
        each.wait, history = None, self.past.history
        now = Now(
            NOW_MS + len(self.past.records), self.late_retry_ms, settled=each.settled, waited_for_close=each.waited,
            owed_first_try=self.owed > 0,
        )  # fmt: skip
        ask = Ask("derived", DIGEST, DIGEST, "http://up/v1/x", "exact", each.marked, each.accepts)
        verdict = self.decide(ask, history, self.live(), self.policy, now)
        if each.gone and not self.samples_for_the_gone and getattr(verdict, "why_new", None) == "second_sample":
            return
        self.on_verdict(self, each, verdict)
        match verdict:
            case Forward():
                self._forward(each, verdict)
            case Attach(call):
                each.call, each.disposition = call, "attached"
                if self.flights[call] is Phase.OBSERVED:
                    self._write(each, self.ends[call])
            case Replay(state):
                each.call, each.disposition = state.call, "replayed"
                self._write(each, OUTCOMES["good"])
            case Refuse():
                each.written = "error"
            case Wait():
                each.wait = verdict

    def wait_is_over(self, each: Try) -> None:
        """All FINs sent before this request have come; a call's bookkeeping is done; a socket was closed, or none for too long."""
        assert each.wait is not None
        each.gone = each.gone or each.closed_at is not None
        match each.wait.until:
            case "settled":
                each.settled = True
                for other in self.tries:
                    if other.left_before(each.born) and not other.on_its_way:
                        other.gone = True
            case "finished":
                for call in each.wait.calls:
                    if self.flights.get(call) is Phase.OBSERVED:
                        self.conclude(call)
            case "closed":
                each.waited = not self.wait_has_ended(each)
        self.admit(each)

    def wait_has_ended(self, each: Try) -> bool:
        """One of the calls that it waits for is claimed by no socket, or alive no more."""
        assert each.wait is not None
        return not all(any(other.open for other in self.claimants(call)) for call in each.wait.calls)

    def _forward(self, each: Try, plan: Forward) -> None:
        earlier, self.owed = plan.continues, max(0, self.owed - 1)
        about = {
            "why_new": plan.why_new, "continues": earlier.call if earlier else None,
            "accepts_attempt": plan.accepts_attempt, "authority": plan.authority, "evidence": plan.evidence,
        }  # fmt: skip
        requested = requested_by(self.past, plan.occurrence, plan.generation, **about)
        fault = claim_fault(requested, earlier, self.past.history.last_occurrence)
        assert fault is None, fault
        self.acceptances += plan.authority is not None
        each.call = self.past.call("call.manifest", occurrence=plan.occurrence, generation=plan.generation, **about)
        self.flights[each.call] = Phase.CLAIMED

    def start(self, call: CallId) -> None:
        self.past.step(call, "attempt.started")
        self.flights[call] = Phase.STARTED

    def send(self, call: CallId) -> None:
        self.flights[call] = Phase.SENT
        self.sends.add((call, 1))

    def observe(self, call: CallId, outcome: Outcome) -> None:
        for step in outcome.steps:
            self.past.step(call, step)
        if not outcome.possible:
            self.sends.discard((call, 1))
        self.flights[call], self.ends[call] = Phase.OBSERVED, outcome
        for each in self.claimants(call):
            self._write(each, outcome)
        if not outcome.concluding:
            self.conclude(call)

    def conclude(self, call: CallId) -> None:
        """Its bookkeeping, and the last of the flight."""
        for step in self.ends[call].concluding:
            self.past.step(call, step)
        del self.flights[call]

    def _write(self, each: Try, outcome: Outcome) -> None:
        if outcome.client == "cut":  # the proxy breaks the connection off
            each.closed_at, each.read = self.moment, True
            self._end(each, "no")
        else:
            each.written = "good stream" if outcome.client == "good" and self.streams else outcome.client

    def crash(self) -> None:
        """SIGKILL and a new process: memory and sockets are gone, and recovery does what it can prove."""
        self.moment += 1
        self.undurable.clear()
        self.remembered.clear()
        self.owed = 0
        for each in self.tries:
            each.wait, each.on_its_way, each.gone, each.over = None, False, True, True
            each.closed_at = each.closed_at or self.moment
        for call, phase in list(self.flights.items()):
            match phase:
                case Phase.STARTED:  # its `sent` receipt is missing
                    self.past.step(call, "attempt.observed:not_sent")
                case Phase.SENT:
                    self.ends[call] = OUTCOMES["lost"]
                case Phase.OBSERVED:
                    self.conclude(call)
        self.flights.clear()
        self.readers = {call: who for call, who in self.readers.items() if self.past.calls[call].delivered}

    def rule(self, state: CallState, decision: Decision) -> None:
        """An operator's word about a call that is not alive. `served` ends the intent: who asks again wants another answer."""
        self.acceptances += decision == "served"
        self.past.step(state.call, f"reconcile.decided:{decision}")


def accepted_attempt(state: CallState) -> str:
    assert state.attempt is not None
    return attempt_id(state.call, state.attempt.number)
