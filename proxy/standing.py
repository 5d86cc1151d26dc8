"""What is on record around one request: its key's history and, within a run, where its pass stands and that it moves on."""

from contextlib import aclosing

from ledger.calls import CallState
from ledger.claims import KeyHistory
from ledger.failpoints import passed
from ledger.operations import Append, Entry, Expect
from proxy.admission import stands_in_the_way_of_new
from proxy.codes import Code
from proxy.decisions import Attach, Place, Policy, Refuse, Replay, Wait
from proxy.endpoints import EndpointClass
from proxy.front import DoorAnswer
from proxy.manifest import CallRequest, OpenPass, served
from proxy.services import Services


class Standing:
    """Call it in the key's turn: what it reads and what it writes belong together."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def of(self, asked: CallRequest) -> tuple[KeyHistory, Place | None]:
        """Raises DoorAnswer where the pass was closed meanwhile."""
        within, reader = asked.route.within, self._services.reader
        if within is None:
            return await reader.history(asked.scope, asked.key), None
        if not await self._services.passes.is_newest(within):
            raise DoorAnswer(Code.STALE_PASS, route=asked.route)
        history = await reader.history_in_pass(asked.scope, asked.key, within.number)
        unresolved = None
        if history.last_occurrence <= history.position:  # no pass asked this before
            unresolved = await self._obstacle(within)
        return history, Place(within.number, history.position, unresolved, within.continues)

    async def _obstacle(self, within: OpenPass) -> CallState | None:
        async with aclosing(self._services.reader.unresolved_of_run(within.run, within.number)) as states:
            async for state in states:
                if stands_in_the_way_of_new(state, self._policy_of(state)):
                    return state
        return None

    async def advance(self, asked: CallRequest, verdict: Attach | Replay | Refuse | Wait, history: KeyHistory) -> None:
        """Within a run: on record, before the answer begins, that the pass was given this call; a refusal gives nothing.

        Raises ConflictError where another append was first, or another start: then decide again.
        """
        match verdict:
            case Attach(call):
                event = served(asked, "attached")
            case Replay(CallState(call=call)):
                event = served(asked, "replayed")
            case _:
                return
        given = next(state for state in history.calls if state.call == call)
        if event is None or given.served_pass == event.number:
            return
        expect = Expect(asked.scope, asked.key, history.head)
        await self._services.writer.append(Append((Entry(call, None, event),), (expect,)))
        passed("after-pass-served")

    def _policy_of(self, state: CallState) -> Policy:
        """By the settings of today; what they no longer name is refused."""
        requested = state.requested
        if requested is None or state.upstream not in self._services.settings.upstreams:
            return Policy()
        return self._services.settings.policy(state.upstream, EndpointClass(requested.endpoint_class))
