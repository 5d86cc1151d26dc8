"""A decision to forward becomes a flight: a call that is alive in this process, before its claim is queued."""

import asyncio
from dataclasses import replace
from typing import Final

from ledger.ids import CallId, Head, new_call_id
from ledger.spool import Spool
from proxy import clock
from proxy.decisions import Forward, Policy
from proxy.headers import RawHeaders, find, media_type
from proxy.inflight import Recording
from proxy.injection import INJECTED_LIMIT_BYTES, injected
from proxy.liveness import Flight
from proxy.manifest import CallRequest
from proxy.request_body import RequestBody
from proxy.services import Services

_ABOUT_THE_BYTES: Final = (b"content-encoding", b"content-md5", b"digest", b"content-digest", b"signature")


def take_off(services: Services, asked: CallRequest, plan: Forward, head: Head | None, policy: Policy) -> Flight:
    """Await its `claimed`, which raises ConflictError when another append was first."""
    call = new_call_id(clock.now_ms(), clock.entropy())
    spool, claimed = Spool(services.state_dir.spool, call), asyncio.get_running_loop().create_future()
    flight = Flight(call, _tagged(services, asked, call), spool, Recording(spool), claimed)
    services.registry.enter(flight)
    flight.task = services.spawn(_fly(services, flight, plan, head, policy))
    return flight


async def _fly(services: Services, flight: Flight, plan: Forward, head: Head | None, policy: Policy) -> None:
    try:
        await services.forwarder.forward(flight, plan, head, policy)
    finally:
        services.registry.leave(flight)


def _tagged(services: Services, asked: CallRequest, call: CallId) -> CallRequest:
    """By the upstream's injection level. Key and intention stay those of what the client sent."""
    upstream = asked.route.upstream
    if not upstream.injection or asked.body.size > INJECTED_LIMIT_BYTES or not _is_plain_json(asked.headers):
        return asked
    path = asked.route.provider_target.partition("?")[0]
    made = injected(upstream.injection, upstream.family, path, asked.body.whole(), call)
    if made is None:
        return asked
    data, pairs = made
    body = RequestBody(services.state_dir.spool, services.memory)
    try:
        body.append(data)
    except OSError:  # no room for a second body: it goes as it came, and its manifest says that nothing was added
        return asked
    return replace(asked, body=body, added=pairs)


def _is_plain_json(headers: RawHeaders) -> bool:
    """And nobody vouches for its very bytes."""
    return media_type(headers) == b"application/json" and all(find(headers, name) is None for name in _ABOUT_THE_BYTES)
