"""What is on record of a request that could not even be read."""

from aiohttp import web

from ledger.errors import ConflictError, PoisonedError
from ledger.events import CallPreparationFailed, CallRequested
from ledger.ids import Key, new_call_id
from ledger.operations import Append, Entry, Expect
from ledger.stages import Effect
from proxy import clock, manifest
from proxy.endpoints import EndpointClass, classify
from proxy.front import BadBody
from proxy.keys import KeyFault, explicit_key
from proxy.services import Services


async def record_preparation_failure(services: Services, request: web.BaseRequest, own: BadBody) -> None:
    """A bad request leaves no events, unless an explicit key names the call: then its failure is on record."""
    key = explicit_key(request.raw_headers)
    if own.route is None or key is None or isinstance(key, KeyFault):
        return
    scope, caller = manifest.scope_and_caller(services.secret, own.route, request.raw_headers)
    history = await services.reader.history(scope, Key(key))
    newest = max(history.calls, key=lambda state: (state.occurrence, state.generation), default=None)
    if newest is not None and (newest.manifest is not None or newest.effect is not Effect.ABSENT):
        return  # what stands says more than a failed preparation could, and drift is measured against it
    endpoint_class = classify(request.method, own.route.provider_target, own.route.upstream.family)
    if endpoint_class is EndpointClass.SAFE:
        return
    call = new_call_id(clock.now_ms(), clock.entropy())
    requested = CallRequested(
        scope=scope,
        key=Key(key),
        key_source="explicit",
        occurrence=newest.occurrence if newest else 1,
        generation=newest.generation + 1 if newest else 1,
        epoch=services.epoch,
        upstream=own.route.name,
        endpoint_class=endpoint_class,
        dialect="generic",
        caller=caller.fingerprint,
        caller_exact=caller.exact,
        caller_kind=caller.kind,
        caller_rotates=caller.rotating,
        why_new="resumed" if newest else "first",
        continues=newest.call if newest else None,
    )
    failed = CallPreparationFailed(own.code, own.text or own.code)
    entries = (Entry(call, None, requested), Entry(call, None, failed))
    try:
        await services.writer.append(Append(entries, (Expect(scope, Key(key), history.head),)))
    except ConflictError:
        return  # another request under this key was first, and says more
    except PoisonedError:
        return  # the answer that follows was due without the record, and the process is ending
