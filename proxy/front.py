"""The front door: what is answered before, or instead of, a decision. Guard, routing, own endpoints, body, safe requests."""

import hmac
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from aiohttp import web

from proxy import keys, refusals
from proxy.codes import Code
from proxy.endpoints import EndpointClass, classify
from proxy.headers import RawHeaders, as_text, end_to_end, find
from proxy.inflight import Head
from proxy.manifest import CallRequest, Route
from proxy.refusals import Column, OwnAnswer
from proxy.request_body import RequestBody
from proxy.server import BodyBroke, BodyTooLarge, WireResponse, answer, read_body
from proxy.services import Services
from proxy.target import target_fault
from proxy.upstream import Answer, AttemptFailed

OWN_PREFIX: Final = "/_sendonce/"
RUN_PREFIX: Final = "/run/"  # /run/RUN/PASS/UPSTREAM/…
HEALTH: Final = OWN_PREFIX + "health"
REFUSED: Final = (b"Sendonce-Disposition", b"refused")


class DoorAnswer(Exception):  # noqa: N818 - an answer of our own, raised to where it is written
    """`close` where the request's body was not read to its end: then the connection cannot go on."""

    def __init__(self, code: Code, text: str | None = None, *, route: Route | None = None, close: bool = False) -> None:
        super().__init__(text or code)
        self.code, self.text, self.route, self.close = code, text, route, close


class BadBody(DoorAnswer):
    """The body broke off or is too large; an explicit key still names the call, so that goes on record."""


@dataclass(frozen=True, slots=True)
class Entered:
    """A request that passed the door, with its whole body."""

    route: Route
    endpoint_class: EndpointClass
    method: str
    headers: RawHeaders
    body: RequestBody
    explicit: str | None


class FrontDoor:
    """Stateless but for the count of admitted requests."""

    def __init__(self, services: Services) -> None:
        self._services, self._settings = services, services.settings
        self._admitted = 0

    async def enter(self, request: web.BaseRequest) -> Entered | web.StreamResponse:
        """A request to decide on, or the answer to one that needs no decision. Raises DoorAnswer."""
        await _earlier_answers_left(request)
        method, target, headers = request.method, request.raw_path, request.raw_headers
        version = (request.version.major, request.version.minor)
        if (fault := target_fault(method, target, version, headers)) is not None:
            raise DoorAnswer(Code(fault.code), fault.sentence, close=True)
        self._check_token(target, headers)
        if target.startswith(OWN_PREFIX):
            return await self._own_endpoint(request, target)
        route = await self._route(target)
        if self._services.poisoned:
            raise DoorAnswer(Code.CANNOT_RECORD, route=route, close=True)
        if self._services.draining:
            raise DoorAnswer(Code.DRAINING, route=route, close=True)
        explicit = _checked_headers(headers, route)
        endpoint_class = classify(method, route.provider_target, route.upstream.family)
        body = await self._body(request, route)
        if endpoint_class is EndpointClass.SAFE:
            return await self._pass_through(request, route, body)
        return Entered(route, endpoint_class, method, headers, body, explicit)

    def _check_token(self, target: str, headers: RawHeaders) -> None:
        """Whoever reaches the port could spend the money of keys that clients leave here; health is nobody's secret."""
        expected = self._settings.caller_token
        if expected is None or target == HEALTH or target.startswith(RUN_PREFIX):  # a pass is a token of its own
            return
        if not hmac.compare_digest(find(headers, b"sendonce-token") or b"", expected.get_secret_value().encode()):
            raise DoorAnswer(Code.TOKEN_REQUIRED, close=True)

    @contextmanager
    def admitted(self, asked: CallRequest) -> Iterator[None]:
        """Counts it among those being decided or answered. Beyond the limit its first try is owed: nothing was recorded."""
        if self._admitted >= self._settings.limits.admitted_requests:
            self.owe(asked)
            raise DoorAnswer(Code.OVERLOADED, route=asked.route)
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    def owe(self, asked: CallRequest) -> None:
        """An explicit key names its try by itself, and a certain retry is no first try; any other is remembered."""
        if asked.key_source == "derived" and not asked.certain_retry:
            self._services.registry.owe(asked.scope, asked.key)

    async def answer(self, request: web.BaseRequest, own: DoorAnswer) -> WireResponse:
        route = own.route
        column = refusals.column(route.upstream.family) if route else Column.OTHERS
        self._services.activity.refused(route.name if route else "-", own.code, **of_pass(route))
        rendered = refusals.render(own.code, column, own.text)
        return await answer(request, rendered, (REFUSED,), close=own.close)

    async def _route(self, target: str) -> Route:
        path, mark, query = target.partition("?")
        if not path.startswith(RUN_PREFIX):
            return self._upstream_route(path[1:], mark + query)
        run, _, rest = path.removeprefix(RUN_PREFIX).partition("/")
        segment, _, rest = rest.partition("/")
        within = await self._services.passes.named(run, segment)
        if within is None and self._settings.caller_token is not None:
            raise DoorAnswer(Code.STALE_PASS, close=True)  # whoever guesses at passes learns of no upstream
        route = self._upstream_route(rest, mark + query)
        if within is None:
            raise DoorAnswer(Code.STALE_PASS, route=route, close=True)
        return replace(route, within=within)

    def _upstream_route(self, path: str, query: str) -> Route:
        name, slash, rest = path.partition("/")
        if name not in self._settings.upstreams:
            known = ", ".join(f"/{name}/…" for name in sorted(self._settings.upstreams))
            raise DoorAnswer(
                Code.UNKNOWN_UPSTREAM,
                f"There is no upstream {name[:64]!r} here. Send to one of {known}, or add it with --upstream.",
                close=True,
            )
        return Route(name, self._settings.upstreams[name], slash + rest + query)

    async def _body(self, request: web.BaseRequest, route: Route) -> RequestBody:
        limits, idle_s = self._settings.limits, self._settings.timeouts.client_body_idle_s
        body = RequestBody(self._services.state_dir.spool, self._services.memory)
        try:
            await read_body(request, body, limit_bytes=limits.body_bytes, idle_timeout_s=idle_s)
        except BodyTooLarge as error:
            text = f"The request body is larger than limits.body_bytes = {limits.body_bytes}. Send less, or raise the limit."
            raise BadBody(Code.BODY_TOO_LARGE, text, route=route, close=True) from error
        except BodyBroke as error:
            raise BadBody(Code.BAD_FRAMING, error.sentence, route=route, close=True) from error
        except OSError as error:
            raise DoorAnswer(Code.CANNOT_RECORD, route=route, close=True) from error
        return body

    async def _own_endpoint(self, request: web.BaseRequest, target: str) -> WireResponse:
        services = self._services
        if target == HEALTH:
            admits = services.admits
            state = (
                "admitting"
                if admits
                else "draining"
                if services.draining and not services.poisoned
                else "cannot_record"
            )
            body = b'{"status":"%b","epoch":%d}' % (state.encode(), services.epoch)
            return await _plain(request, 200 if admits else 503, b"application/json", body)
        if target == OWN_PREFIX + "metrics":
            return await _plain(
                request, 200, b"text/plain; version=0.0.4; charset=utf-8", services.activity.exposition()
            )
        raise DoorAnswer(Code.BAD_TARGET, "Own endpoints are /_sendonce/health and /_sendonce/metrics.", close=True)

    async def _pass_through(self, request: web.BaseRequest, route: Route, body: RequestBody) -> WireResponse:
        """A safe request: no ledger, no hold, and still sent at most once by us."""
        url = route.upstream.base_url + route.provider_target
        response = WireResponse(request)
        try:
            upstream = await self._services.outbound.session(route.name).send(
                request.method, url, end_to_end(request.raw_headers), body, _no_barrier
            )
        except AttemptFailed as failure:
            raise DoorAnswer(*_unanswered(route, failure), route=route) from failure
        try:
            await _copy(upstream, response)
        except ConnectionError:
            response.client_gone = True
        except AttemptFailed:
            pass  # the unclean end below tells the client
        finally:
            upstream.close()
        if not response.whole:
            response.break_off()
        self._services.activity.answered(route.name, "passed")
        return response


async def _earlier_answers_left(request: web.BaseRequest) -> None:
    """Who pipelines requests and takes no answer gets no more of them: small answers would pile up in memory, undrained."""
    try:
        await request.writer.drain()
    except ConnectionError as error:
        raise DoorAnswer(Code.BAD_FRAMING, close=True) from error  # nobody is there to read it


def of_pass(route: Route | None) -> dict[str, Any]:
    """What a line of the activity log says of a run, for the counts of its passes."""
    within = route.within if route else None
    return {"run": within.run, "pass": within.number} if within else {}


def _checked_headers(headers: RawHeaders, route: Route) -> str | None:
    """The explicit key, if any. Raises DoorAnswer for what could not be forwarded byte for byte, or names no intention."""
    try:
        as_text(end_to_end(headers))
    except UnicodeDecodeError as error:
        text = "A header value is neither ASCII nor UTF-8, so it could not be forwarded unchanged. Encode it."
        raise DoorAnswer(Code.BAD_FRAMING, text, route=route, close=True) from error
    explicit = keys.explicit_key(headers)
    if isinstance(explicit, keys.KeyFault):
        raise DoorAnswer(Code.BAD_KEY, explicit.sentence, route=route, close=True)
    return explicit


def _unanswered(route: Route, failure: AttemptFailed) -> tuple[Code, str]:
    if failure.kind == "not_sent":
        return Code.UPSTREAM_UNREACHABLE, f"{route.name} could not be reached: {failure.proof}. Try again shortly."
    return Code.UPSTREAM_LOST, f"{route.name} did not answer. The request only reads, so it is safe to repeat."


async def _copy(upstream: Answer, response: WireResponse) -> None:
    head = Head(
        upstream.status, upstream.reason, upstream.headers, upstream.length, bodyless=upstream.framing == "none"
    )
    await response.begin(head)
    async with aclosing(upstream.body()) as pieces:
        async for data in pieces:
            await response.send(data)
    await response.end()


async def _no_barrier() -> None:
    """Nothing has to be durable before a safe request leaves."""


async def _plain(request: web.BaseRequest, status: int, content_type: bytes, body: bytes) -> WireResponse:
    return await answer(request, OwnAnswer(status, ((b"Content-Type", content_type),), body))
