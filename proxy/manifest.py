"""Raw request -> `CallRequest`: everything that admission decides on and the ledger records. Pure; CPU grows with the body."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from ledger.events import Body, CallManifest, CallRequested, CallResumed, KeySource, Pairs, PassServed, ServedBy
from ledger.ids import CallId, Digest, Head, Key, Scope
from proxy import clients, keys, retelling
from proxy.clients import ClientProfile
from proxy.decisions import Ask, Forward
from proxy.dialects import registry
from proxy.dialects.base import Dialect, RequestFacts, parsed_object
from proxy.endpoints import EndpointClass, by_body, provider_path
from proxy.headers import MEANS_NOTHING, REQUEST_STORED, RawHeaders, end_to_end, find, media_type, stored
from proxy.multipart import Part, form_of
from proxy.request_body import RequestBody
from proxy.target import without_credentials
from proxy.upstream_settings import UpstreamSettings

# Semantics section 8: digests a client may name; they are stripped before forwarding and enter the manifest.
CONTEXT_HEADERS: Final = (
    b"sendonce-task",
    b"sendonce-compilation",
    b"sendonce-context-package",
    b"sendonce-rendered-context",
)
REQUEST_ID_HEADER: Final = b"X-Client-Request-Id"  # OpenAI's support can look it up, research/providers.md section 2


@dataclass(frozen=True, slots=True)
class OpenPass:
    """One start of a run, as its newest `pass.opened` says. `continues`: what is new is sent even beside something unknown."""

    run: str
    number: int
    token_digest: str
    continues: bool


@dataclass(frozen=True, slots=True)
class Route:
    """Which upstream, and what follows its prefix in the target."""

    name: str
    upstream: UpstreamSettings
    rest: str
    within: OpenPass | None = None  # the pass of a run that its base URL names

    @property
    def provider_target(self) -> str:
        return provider_path(self.upstream.family, self.rest, urlsplit(self.upstream.base_url).path)


@dataclass(frozen=True, slots=True)
class Retold:
    """The call whose answer a retry repeats the beginning of, and how many whole parts of it."""

    call: CallId
    parts: int


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One admitted request, with its exact bytes and what they mean."""

    route: Route
    dialect: Dialect
    endpoint_class: EndpointClass
    method: str
    url: str
    recorded_url: str
    headers: RawHeaders
    body: RequestBody
    scope: Scope
    key: Key
    key_source: KeySource
    caller: keys.Caller
    facts: RequestFacts
    intent_digest: Digest
    client: ClientProfile
    lineage: str | None
    certain_retry: bool
    may_retell: bool  # by its own words it may repeat what its client got of an answer
    accepts_attempt: str | None
    context: Mapping[str, str]
    retells: Retold | None = None
    added: Pairs = ()  # to its body, by the upstream's injection level

    def as_retold(self, call: CallId, manifest: CallManifest, key: Key, parts: int) -> "CallRequest":
        """The same request, known for a retry of `call`, whose key and intention are its own."""
        intent, retold = manifest.intent_digest, Retold(call, parts)
        return replace(self, key=key, intent_digest=intent, certain_retry=True, retells=retold)

    @property
    def pass_number(self) -> int | None:
        return self.route.within.number if self.route.within else None

    @property
    def ask(self) -> Ask:
        return Ask(
            self.key_source,
            self.intent_digest,
            self.body.digest,
            self.recorded_url,
            self.caller.exact,
            self.certain_retry,
            self.accepts_attempt,
            self.context,
            retells=self.retells.call if self.retells else None,
            in_pass=self.route.within is not None,
            asks_once=self.client.asks_once and self.lineage is not None,
        )


def scope_and_caller(secret: bytes, route: Route, headers: RawHeaders) -> tuple[Scope, keys.Caller]:
    query = route.provider_target.partition("?")[2]
    caller = keys.caller_fingerprint(secret, headers, query, route.upstream.caller.identity)
    return Scope(keys.scope(caller, route.name, route.within.run if route.within else None)), caller


def read(
    secret: bytes,
    route: Route,
    endpoint_class: EndpointClass,
    method: str,
    headers: RawHeaders,
    body: RequestBody,
    explicit: str | None,
) -> CallRequest:
    """Total: whatever the body holds, there is a canonical form and a key."""
    target = route.provider_target
    dialect = registry.select(route.upstream.family, target)
    profile = clients.recognise(headers)
    scope, caller = scope_and_caller(secret, route, headers)
    recorded = without_credentials(target)
    kind = media_type(headers)
    form = form_of(body.pieces(), find(headers, b"content-type") or b"")
    document = body.whole() if form is None and keys.is_read(body, kind) else None
    canonical = keys.canonical_body(body, document, form, profile, across_starts=route.within is not None)
    intent = keys.canonical_digest(secret, method, recorded, canonical)
    derived = None if explicit else keys.derive_key(secret, dialect.name, method, recorded, headers, canonical)
    facts = _facts(dialect, target, document, form)
    accepts = find(headers, b"sendonce-accept")
    context = {name.decode(): value.decode("latin-1") for name in CONTEXT_HEADERS if (value := find(headers, name))}
    return CallRequest(
        route=route,
        dialect=dialect,
        endpoint_class=by_body(endpoint_class, background=facts.background),
        method=method,
        url=route.upstream.base_url + target,
        recorded_url=route.upstream.base_url + recorded,
        headers=end_to_end(headers),
        body=body,
        scope=scope,
        key=Key(explicit or derived or ""),
        key_source="explicit" if explicit else "derived",
        caller=caller,
        facts=facts,
        intent_digest=Digest(intent),
        client=profile,
        lineage=keys.lineage(secret, profile, headers),
        certain_retry=profile.certain_retry(headers),
        may_retell=not explicit and _may_retell(profile, document),
        accepts_attempt=accepts.decode("latin-1").strip() if accepts else None,
        context=context,
    )


def _may_retell(profile: ClientProfile, document: bytes | None) -> bool:
    if profile.retells is None or document is None:
        return False
    return retelling.may_tell(profile.retells, parsed_object(document))


def _facts(dialect: Dialect, target: str, document: bytes | None, form: list[Part] | None) -> RequestFacts:
    """Uploads and transcriptions name their model in a field of a form."""
    if form is None:
        return dialect.read_request(target, document) if document is not None else RequestFacts()
    fields = {part.field: part.text for part in reversed(form) if part.field and part.text}
    model = fields.get("model")
    return RequestFacts(
        model=model.decode("utf-8", "replace") if model else None, stream=fields.get("stream") == b"true"
    )


def injected(request: CallRequest, call: CallId) -> RawHeaders:
    """What sendonce adds: by default a request id, only where the client named none."""
    if find(request.headers, REQUEST_ID_HEADER.lower()) is not None:
        return ()
    return ((REQUEST_ID_HEADER, call.encode()),)


def requested(request: CallRequest, plan: Forward, epoch: int) -> CallRequested:
    return CallRequested(
        scope=request.scope,
        key=request.key,
        key_source=request.key_source,
        occurrence=plan.occurrence,
        generation=plan.generation,
        epoch=epoch,
        upstream=request.route.name,
        endpoint_class=request.endpoint_class,
        dialect=request.dialect.name,
        caller=request.caller.fingerprint,
        caller_exact=request.caller.exact,
        caller_kind=request.caller.kind,
        caller_rotates=request.caller.rotating,
        client=request.client.name,
        lineage=request.lineage,
        why_new=plan.why_new,
        continues=plan.continues.call if plan.continues else None,
        accepts_attempt=plan.accepts_attempt,
        authority=plan.authority,
        evidence={**plan.evidence, **({"retells": asdict(request.retells)} if request.retells else {})},
    )


def manifest(request: CallRequest, added: RawHeaders, body: Body) -> CallManifest:
    return CallManifest(
        method=request.method,
        url=request.recorded_url,
        headers=as_pairs(stored(request.headers, REQUEST_STORED)),
        body=body,
        intent_digest=request.intent_digest,
        model=request.facts.model,
        stream=request.facts.stream,
        max_output_tokens=request.facts.max_output_tokens,
        injected=as_pairs(added) + request.added,
        context=dict(request.context),
        unrecorded=headers_left_out(request.headers),
    )


def headers_left_out(headers: RawHeaders) -> tuple[str, ...]:
    """Names of what travels on and is not recorded, but for credentials and what says nothing about the request."""
    names = {name.lower() for name, _ in headers if name not in REQUEST_STORED}
    return tuple(
        sorted(name.decode("latin-1") for name in names if name not in MEANS_NOTHING and not keys.is_credential(name))
    )


def resumed(request: CallRequest, plan: Forward, head: Head) -> CallResumed | None:
    """For a continuation of a recorded manifest: what was compared, what differs and is allowed, the head relied on.

    Bodies are compared as they are sent: what an injection level adds makes them differ, or the tag of the call before.
    """
    if plan.continues is None or plan.continues.manifest is None:
        return None
    differs = plan.continues.manifest.body.digest != request.body.digest
    differences = (*(["body"] if differs else []), *(each for each in plan.differences if each != "body"))
    compared = ("method", "url", "canonical_body", "body", "context")
    return CallResumed(plan.continues.call, compared, differences, head.seq, head.chain)


def served(request: CallRequest, disposition: ServedBy) -> PassServed | None:
    """Within a run: that its pass was given the call."""
    within = request.route.within
    return PassServed(within.run, within.number, disposition) if within else None


def as_pairs(headers: RawHeaders) -> Pairs:
    """Header bytes as text, latin-1: every byte survives."""
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)


def reason_recorded(reason: str) -> str:
    """A reason phrase as aiohttp reads it (UTF-8, other bytes escaped), as it can be recorded: latin-1 like every head byte."""
    return reason.encode("utf-8", "surrogateescape").decode("latin-1")


def reason_on_wire(recorded: str) -> str:
    return recorded.encode("latin-1").decode("utf-8", "surrogateescape")


def as_headers(pairs: Pairs) -> RawHeaders:
    return tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs)
