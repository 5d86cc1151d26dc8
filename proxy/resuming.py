"""`sendonce resume`: an operator has a call continued whose effect is absent, from its recorded bytes.

The way is everybody's: the recorded request, with a credential, is read and decided on as if its client had come again, and
takes off only as the next generation of that very call. So nothing is sent that the admission table would not send.
"""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from ledger.calls import CallState
from ledger.errors import ConflictError, LedgerError
from ledger.events import Body
from ledger.ids import CallId, Digest, Head, Key
from ledger.stages import Effect, Stage
from proxy import manifest
from proxy.decisions import Forward, Live, Policy
from proxy.endpoints import EndpointClass
from proxy.headers import RawHeaders, find
from proxy.injection import RECORDED_PREFIX
from proxy.manifest import CONTEXT_HEADERS, CallRequest, Route, as_headers
from proxy.reconcile.operator import DecisionRefusedError
from proxy.request_body import RequestBody
from proxy.rows import by_stage
from proxy.services import Services
from proxy.settling import DECISIONS_LIMIT, behind_its_head
from proxy.takeoff import take_off


async def resume(services: Services, asked: dict[str, Any]) -> dict[str, Any]:
    """Returns when the new call has ended. Raises DecisionRefusedError, with nothing written or sent, and says what is to be done instead."""
    call_id, relied_on = CallId(asked["call"]), asked["head"]
    credential = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in asked["credential"])
    for _ in range(DECISIONS_LIMIT):
        call, history = await behind_its_head(services.reader, call_id)
        _check_head(call, relied_on)
        _check_stage(call)
        _check_headers(call, leaves_out=asked["leaves_out"])
        request = await _request(services, call, credential)
        alive = services.registry.flight(call_id) is not None
        plan = by_stage(request.ask, call, Live(alive=alive), Policy(after_server_error=False))
        if not isinstance(plan, Forward) or not services.admits:
            raise DecisionRefusedError(_not_now(services, call, plan))
        policy = services.settings.policy(call.upstream, request.endpoint_class)
        flight = take_off(services, request, plan, history.head, policy)
        try:
            await asyncio.shield(flight.claimed)
        except ConflictError:
            continue
        await flight.finished.wait()
        return await _outcome(services, call_id, flight.call)
    raise DecisionRefusedError(f"Too much happens to the key of {call_id}. Look at it again: sendonce show {call_id}")


def _check_head(call: CallState, relied_on: list[Any] | None) -> None:
    """What the operator saw has to be what stands."""
    if relied_on is not None and Head(relied_on[0], Digest(relied_on[1])) != Head(call.last_seq, call.head_chain):
        raise DecisionRefusedError(
            f"Something was recorded of {call.call} since {relied_on[0]}: it stands at {call.last_seq} now. Look at it again: "
            f"sendonce show {call.call}"
        )


def _check_stage(call: CallState) -> None:
    if call.superseded_by is not None:
        raise DecisionRefusedError(f"{call.call} was continued by {call.superseded_by}. Look at that one.")
    if call.run is not None:
        raise DecisionRefusedError(
            f"{call.call} belongs to the run {call.run}: start that again, and it continues. sendonce run --id {call.run} -- COMMAND"
        )
    if call.manifest is None or not call.manifest.body.kept or call.erased:
        raise DecisionRefusedError(
            f"The request of {call.call} is not kept, so it cannot be sent from the record. Its client can send it again."
        )
    if call.effect is not Effect.ABSENT and call.stage is not Stage.SETTLED:
        raise DecisionRefusedError(
            f"{call.call} is {call.stage} and its effect is {call.effect}: it may have been served, so it is not sent again. Its next "
            f"operation is {call.next_operation}."
        )


def _check_headers(call: CallState, *, leaves_out: bool) -> None:
    """Only allow-listed headers are on record (I8). What the others would have meant to the provider, or a gateway, nobody knows."""
    lacking = call.manifest.unrecorded if call.manifest else ()
    if lacking and not leaves_out:
        raise DecisionRefusedError(
            f"The client of {call.call} sent headers that are not on record: {', '.join(lacking)}. If the request means the same without "
            "them, add --leave-out; else have its client send it again."
        )


async def _request(services: Services, call: CallState, credential: RawHeaders) -> CallRequest:
    """The recorded request, read as it was when it came. Raises DecisionRefusedError where anything of it is another now."""
    recorded, requested = call.manifest, call.requested
    assert recorded is not None
    assert requested is not None
    upstream = services.settings.upstreams.get(call.upstream)
    if upstream is None or not upstream.holds(recorded.url):
        raise DecisionRefusedError(
            f"{call.call} was meant for {recorded.url}, where {call.upstream} no longer points. Give the settings it was recorded with."
        )
    body = await _recorded_body(services, recorded.body)
    headers = (
        *(pair for pair in as_headers(recorded.headers) if find(credential, pair[0].lower()) is None),
        *credential,
    )
    context = tuple(
        (name, recorded.context[name.decode()].encode())
        for name in CONTEXT_HEADERS
        if name.decode() in recorded.context
    )
    read = manifest.read(
        services.secret,
        Route(call.upstream, upstream, recorded.url.removeprefix(upstream.base_url)),
        EndpointClass(requested.endpoint_class),
        recorded.method,
        (*headers, *context),
        body,
        call.key if call.key_source == "explicit" else None,
    )
    _check_drift(call, read)
    added = tuple(pair for pair in recorded.injected if pair[0].startswith(RECORDED_PREFIX))
    return replace(
        read,
        key=Key(call.key),
        key_source=requested.key_source,
        intent_digest=recorded.intent_digest,
        lineage=requested.lineage,
        added=added,
    )


async def _recorded_body(services: Services, recorded: Body) -> RequestBody:
    """Raises DecisionRefusedError where the disk has no room for it."""
    body = RequestBody(services.state_dir.spool, services.memory)
    if not recorded.size:
        return body
    try:
        async with aclosing(services.reader.body(recorded.digest)) as pieces:
            async for piece in pieces:
                body.append(piece)
    except OSError as error:
        raise DecisionRefusedError(
            f"The disk has no room for the request ({error.strerror}). Make some first."
        ) from error
    return body


def _check_drift(call: CallState, read: CallRequest) -> None:
    recorded = call.manifest
    assert recorded is not None
    if read.scope != call.scope:
        raise DecisionRefusedError(
            f"The credential is not the one of the caller of {call.call}. Set the variable to the key that its client used."
        )
    now = {
        "body": read.body.digest == recorded.body.digest,
        "url": read.recorded_url == recorded.url,
        "context": dict(read.context) == dict(recorded.context),
        "canonical_body": any(name.startswith(RECORDED_PREFIX) for name, _ in recorded.injected)
        or read.intent_digest == recorded.intent_digest,
    }
    if differing := [name for name, same in now.items() if not same]:
        raise DecisionRefusedError(
            f"The recorded request of {call.call} reads differently now: {', '.join(differing)}. It is not sent; look with sendonce doctor, "
            "and at the version that recorded it."
        )


def _not_now(services: Services, call: CallState, verdict: object) -> str:
    if isinstance(verdict, Forward):
        if services.draining:
            return "The proxy is ending. Resume it once the next one serves."
        return "The disk is too full to record what would be sent. Make some room first."
    return f"{call.call} cannot be continued now ({type(verdict).__name__.lower()}). Look at it again: sendonce show {call.call}"


async def _outcome(services: Services, resumed: CallId, by: CallId) -> dict[str, Any]:
    call = await services.reader.call(by)
    if call is None:
        raise LedgerError(f"{by}, which continued {resumed}, cannot be found")
    effect, operation = call.effect, call.next_operation
    return {"call": resumed, "resumed_as": by, "stage": call.stage, "effect": effect, "next_operation": operation}
