"""A world around the real `decide` within one run: an agent with a fixed script, killed and started again, and what its provider saw.

Real are the decision, the projection and the claim rule; modelled are sockets, deliveries, crashes. The agent asks its script in
rounds: each round is one key, asked once or several times at once (samples). It gives up at its first refusal.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ledger.calls import CallState
from ledger.claims import KeyHistory, claim_fault
from ledger.events import CallDelivered, PassServed
from ledger.ids import CallId, Head, Key, Scope
from ledger.ladder import NEXT
from ledger.stages import Effect
from proxy.admission import stands_in_the_way_of_new
from proxy.decisions import Ask, Attach, Forward, Live, Now, Place, Policy, Refuse, Replay, Verdict, Wait
from tests.harness.histories import STARTED, Past, completed, requested_by
from tests.harness.ledgers import DIGEST, NOW_MS

RUN = "nightly"
SCOPE = Scope(f"openai/caller/{RUN}")
Decide = Callable[..., Verdict]
GOOD = completed(Effect.HAPPENED)[len(STARTED) :]


@dataclass(eq=False)
class Socket:
    """One request of the agent. `served`: the call that it was given, if any."""

    key: Key
    number: int
    call: CallId | None = None
    open: bool = True
    delivered: bool = False


@dataclass
class RunWorld:
    """One run over one ledger."""

    decide: Decide
    past: Past = field(default_factory=Past)
    number: int = 0
    sockets: list[Socket] = field(default_factory=list)
    flights: dict[CallId, str] = field(default_factory=dict)  # claimed, started, sent
    sends: int = 0
    acceptances: int = 0
    refused: list[CallState] = field(default_factory=list)
    _projected: tuple[int, dict[CallId, CallState]] = field(default=(0, {}))

    @property
    def calls(self) -> dict[CallId, CallState]:
        if self._projected[0] != len(self.past.records):
            self._projected = len(self.past.records), self.past.calls
        return self._projected[1]

    def open_pass(self) -> None:
        self.number += 1
        self.sockets.clear()

    # --- one request ---------------------------------------------------------------------------------------------------

    def history(self, key: Key) -> KeyHistory:
        calls = tuple(state for state in self.calls.values() if state.key == key)
        head = max((Head(state.last_seq, state.head_chain) for state in calls), default=None, key=lambda one: one.seq)
        last = max((state.occurrence for state in calls), default=0)
        given = (state.occurrence for state in calls if state.served_pass == self.number)
        return KeyHistory(calls, head, last, max(given, default=0))

    def live(self) -> dict[CallId, Live]:
        found = {}
        for call in self.calls:
            holders = [each for each in self.sockets if each.call == call and each.number == self.number]
            found[call] = Live(
                alive=call in self.flights,
                claimed=any(each.open for each in holders),
                delivered=any(each.delivered for each in holders),
            )
        return found

    def ask(self, key: str, *, marked: bool = False, settled: bool = True) -> Socket | Wait | None:
        """What the request gets; None: a refusal."""
        history = self.history(Key(key))
        states = sorted(self.calls.values(), key=lambda state: state.call)
        left = (state for state in states if state.unresolved and (state.served_pass or 0) < self.number)
        unresolved = next((state for state in left if stands_in_the_way_of_new(state, Policy())), None)
        place = Place(self.number, history.position, unresolved)
        now = Now(NOW_MS + len(self.past.records), 10**6, settled=settled, waited_for_close=True)
        asks = Ask("derived", DIGEST, DIGEST, "http://up/v1/x", "exact", marked)
        verdict = self.decide(asks, history, self.live(), Policy(), now, place)
        made = Socket(Key(key), self.number)
        match verdict:
            case Wait():
                return verdict
            case Refuse(call=call):
                self.refused.append(call)
                return None
            case Forward():
                made.call = self._claim(made.key, verdict, history)
            case Attach(call):
                made.call = call
                self._serve(call, "attached")
            case Replay(state):
                made.call = state.call
                self._serve(state.call, "replayed")
        self.sockets.append(made)
        return made

    def _claim(self, key: Key, plan: Forward, history: KeyHistory) -> CallId:
        about: dict[str, Any] = {
            "scope": SCOPE,
            "key": key,
            "why_new": plan.why_new,
            "continues": plan.continues.call if plan.continues else None,
            "accepts_attempt": plan.accepts_attempt,
            "authority": plan.authority,
            "evidence": plan.evidence,
        }
        requested = requested_by(self.past, plan.occurrence, plan.generation, **about)
        fault = claim_fault(requested, plan.continues, history.last_occurrence)
        assert fault is None, fault
        call = self.past.call("call.manifest", occurrence=plan.occurrence, generation=plan.generation, **about)
        self.past.step(call, PassServed(RUN, self.number, "resumed" if plan.resumed else "forwarded"))
        self.flights[call] = "claimed"
        return call

    def _serve(self, call: CallId, disposition: Any) -> None:
        if self.calls[call].served_pass != self.number:
            self.past.step(call, PassServed(RUN, self.number, disposition))

    # --- what happens --------------------------------------------------------------------------------------------------

    def advance(self, call: CallId) -> None:
        """One step towards the answer."""
        match self.flights[call]:
            case "claimed" if self.calls[call].served_pass != self.number:
                del self.flights[call]  # its pass is closed: the ledger lets nothing start
            case "claimed":
                self.past.step(call, "attempt.started")
                self.flights[call] = "started"
            case "started":
                self.sends += 1
                self.flights[call] = "sent"
            case "sent":
                for step in GOOD:
                    self.past.step(call, step)
                del self.flights[call]

    def finish(self, call: CallId) -> None:
        while call in self.flights:
            self.advance(call)

    def deliver(self, socket: Socket) -> None:
        assert socket.call is not None
        self.finish(socket.call)
        socket.delivered, socket.open = True, False
        self.past.step(socket.call, CallDelivered("fin", "forwarded", socket.number))

    def cut(self, socket: Socket) -> None:
        """The client's connection breaks before it has the answer."""
        assert socket.call is not None
        socket.open = False
        if "call.delivered" in self._may_follow(socket.call):
            self.past.step(socket.call, CallDelivered("no", "forwarded", socket.number))

    def crash(self) -> None:
        """The proxy dies: what it had started and not sent is proven so, what it sent is unknown."""
        for call, phase in self.flights.items():
            if phase == "started":
                self.past.step(call, "attempt.observed:not_sent")
        self.flights.clear()
        for each in self.sockets:
            each.open = False

    def settle(self) -> None:
        """An operator rules for every unresolved call that it was not served: true or not, from then on it is his word."""
        for state in list(self.calls.values()):
            if state.superseded_by is None and state.duplicate_effect_risk and state.call not in self.flights:
                self.past.step(state.call, "reconcile.decided:not_served")
                self.acceptances += 1

    def _may_follow(self, call: CallId) -> Any:
        return NEXT[self.calls[call].evidence]


def without_place(decide: Decide) -> Decide:
    """A decision that knows of no run: a new start's requests are samples."""

    def wrong(*about: Any) -> Verdict:
        return decide(*about[:5])

    return wrong


def forgets_its_position(decide: Decide) -> Decide:
    """Every request is the first of its key: samples get one answer."""

    def wrong(asks: Any, history: Any, live: Any, policy: Any, now: Any, place: Any) -> Verdict:
        return decide(asks, replace(history, position=0), live, policy, now, replace(place, position=0))

    return wrong


def sends_beside_the_unknown(decide: Decide) -> Decide:
    """What is new is sent although an earlier pass left something open."""

    def wrong(asks: Any, history: Any, live: Any, policy: Any, now: Any, place: Any) -> Verdict:
        return decide(asks, history, live, policy, now, replace(place, unresolved=None))

    return wrong
