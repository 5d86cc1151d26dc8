"""Look-ups, asked: one GET after another with the operator's own key. No other way out of here exists but one, the cancelling.

What was found is decided on and recorded by `settling`, like any other decision.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from ssl import create_default_context
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from ledger.calls import CallState
from ledger.events import AttemptObserved, CallManifest, Decision
from ledger.reader import Reader
from ledger.stages import Effect
from proxy import clock
from proxy.codings import UndecodableError, decoded
from proxy.credentials import credential, variable_of, with_recorded
from proxy.dialects.base import envelope_error, parsed, parsed_object
from proxy.headers import RawHeaders
from proxy.injection import RECORDED_PREFIX
from proxy.interpreter import dialect_of
from proxy.kept import kept
from proxy.keys import caller_fingerprint
from proxy.manifest import as_headers
from proxy.preserve import PARSED_LIMIT_BYTES
from proxy.reconcile.answers import FETCHED, recovered
from proxy.reconcile.batch_lookups import BY_LIST
from proxy.reconcile.lookups import (
    BY_ID,
    NOTHING,
    TAG,
    Asking,
    Cancel,
    Get,
    Known,
    LookedUp,
    Mechanism,
    Pause,
    Reply,
    look,
)
from proxy.reconcile.operator import DecisionRefusedError, Ruling
from proxy.settings import Settings
from proxy.upstream_settings import UpstreamSettings

MECHANISMS: Final = (*BY_ID, *BY_LIST)
INJECTED_TAG: Final = f"{RECORDED_PREFIX}metadata.{TAG}"
REPLY_LIMIT_S: Final = 60  # of one GET; the rest of a stream that still runs comes with `--wait`
LOOKED_AT: Final = 10_000  # of the newest calls, for what others created; batches are few
# Whose the request was, and which interface it spoke: a look-up in another project finds nothing.
_RECORDED: Final = frozenset(
    {b"openai-organization", b"openai-project", b"openai-beta", b"anthropic-version", b"anthropic-beta"}
)
_CANCEL: Final = re.compile(r"/responses/resp_[A-Za-z0-9_-]+")


class LookupFailedError(Exception):
    """The provider did not let itself be asked. Nothing was recorded. Exit code 6."""


@dataclass(frozen=True, slots=True)
class How:
    """`wait_s`: how long to ask again while the provider is still at it."""

    cancels: bool
    settle_s: float
    wait_s: float


async def known_of(settings: Settings, reader: Reader, call: CallState, how: How) -> Known:
    """What is on record of the call's newest attempt. Raises DecisionRefusedError where there is nothing to look up."""
    manifest = _looked_up(settings, call)
    assert call.attempt is not None
    ids, partial = await _came(settings, reader, call)
    parts = urlsplit(manifest.url)
    tag = dict(manifest.injected).get(INJECTED_TAG)
    return Known(
        call=call.call,
        target=parts.path + (f"?{parts.query}" if parts.query else ""),
        request=parsed_object(await kept(reader, manifest.body) or b""),
        stream=manifest.stream,
        ids=ids,
        partial=partial,
        started_s=(call.attempt.started_at_ms or call.created_at_ms) / 1000,
        tag=tag if tag == call.call else None,  # recorded bytes that were sent again bear the tag of the call before
        lists_all=call.upstream == "openai" and not settings.upstreams[call.upstream].gateway,
        asked_s=clock.now_ms() / 1000,
        settle_s=how.settle_s,
        cancels=how.cancels,
    )


async def among_others(reader: Reader, call: CallState, known: Known) -> Known:
    """With what else is on record that may explain an entry of a list: ids that others have, and calls that may have made the like."""
    equals, others = 0, set()
    assert call.manifest is not None
    for done in await reader.newest(LOOKED_AT):
        attempt, manifest = done.attempt, done.manifest
        if done.call == call.call or attempt is None or manifest is None or not _is_alike(manifest, call.manifest):
            continue
        if attempt.interpreted is not None and attempt.interpreted.provider_ids.get("id"):
            others |= set(attempt.interpreted.provider_ids.values())
        elif not attempt.proven_absent and manifest.body.digest == call.manifest.body.digest:
            equals += 1  # decided or not: what it made is not known
    return replace(known, others=frozenset(others), equals=equals)


def _looked_up(settings: Settings, call: CallState) -> CallManifest:
    """What was sent, where there is something to look up. Raises DecisionRefusedError."""
    upstream, manifest = settings.upstreams.get(call.upstream), call.manifest
    may_be_decided_again = call.decision is not None and call.superseded_by is None
    if manifest is None and call.unresolved:
        raise DecisionRefusedError(
            f"{call.call} is known from its receipt only, and nothing of its request is: there is nothing to look it up by."
        )
    if manifest is None or call.attempt is None or not (call.unresolved or may_be_decided_again):
        raise DecisionRefusedError(
            f"{call.call} is {call.stage} and its effect is {call.effect}; its next operation is {call.next_operation}, which needs "
            "no look-up."
        )
    if upstream is None or not upstream.holds(manifest.url):
        raise DecisionRefusedError(
            f"{call.call} was sent to {manifest.url}, where {call.upstream} no longer points. Give the settings it was sent with."
        )
    return manifest


def _is_alike(one: CallManifest, other: CallManifest) -> bool:
    """The same request line: what its answer names, it made. The answer to a cancelling names what another one made."""
    return (one.method, one.url) == (other.method, other.url)


async def _came(settings: Settings, reader: Reader, call: CallState) -> tuple[dict[str, str], bytes]:
    """The provider's ids, of the head and of what came of the body; and what came, decoded."""
    assert call.attempt is not None
    acknowledged, observed = call.attempt.acknowledged, call.attempt.observed
    ids = dict(acknowledged.provider_ids) if acknowledged else {}
    data = await kept(reader, observed.body) if observed else None
    if observed is None or data is None:
        return ids, b""
    dialect, traits = dialect_of(settings, call)
    reading = dialect.interpret(observed.status or 0, as_headers(observed.headers), data, traits)
    return {**ids, **reading.provider_ids}, _decoded(observed, data)


def _decoded(observed: AttemptObserved, data: bytes) -> bytes:
    try:
        return decoded(as_headers(observed.headers), data)
    except UndecodableError:
        return b""


def mechanism_for(known: Known) -> Mechanism | None:
    return next((each for each in MECHANISMS if each.applies(known)), None)


async def ask(
    settings: Settings, secret: bytes, call: CallState, known: Known, mechanism: Mechanism, how: How
) -> LookedUp:
    """Asks, and while the provider is still at it asks again, for `how.wait_s`. Raises LookupFailedError, and SettingsError without a key."""
    upstream = settings.upstreams[call.upstream]
    assert call.manifest is not None
    key = credential(call.upstream, upstream, os.environ)
    headers = with_recorded(key, as_headers(call.manifest.headers), _RECORDED)
    caller = caller_fingerprint(secret, key, "", upstream.caller.identity)
    known = replace(known, same_credential=caller.exact == call.caller_exact)
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + how.wait_s
    async with _session(upstream, max(how.wait_s, REPLY_LIMIT_S)) as session:
        while True:
            found = await _walk(session, upstream, call.upstream, headers, look(mechanism, known))
            is_at_it = found.result == "matches" and not found.settles
            if not is_at_it or loop.time() >= deadline_s:
                return found
            await asyncio.sleep(min(POLL_S, how.wait_s))


POLL_S: Final = 2  # a background response takes seconds to minutes


async def _walk(
    session: aiohttp.ClientSession, upstream: UpstreamSettings, name: str, headers: RawHeaders, asking: Asking
) -> LookedUp:
    reply = None
    while True:
        try:
            step = asking.send(reply) if reply is not None else next(asking)
        except StopIteration as ended:
            found: LookedUp = ended.value
            return found
        match step:
            case Get(target):
                reply = await _request(session, "GET", upstream, target, headers, name)
            case Cancel(response) if _CANCEL.search(response):
                reply = await _request(session, "POST", upstream, f"{response}/cancel", headers, name)
            case Cancel(response):
                raise LookupFailedError(f"{response} is no response that could be cancelled.")
            case Pause(seconds):
                await asyncio.sleep(seconds)
                reply = NOTHING


async def _request(
    session: aiohttp.ClientSession, method: str, upstream: UpstreamSettings, target: str, headers: RawHeaders, name: str
) -> Reply:
    """Raises LookupFailedError where the key may not ask, or nothing comes back."""
    parts = urlsplit(upstream.base_url)
    url = URL(f"{parts.scheme}://{parts.netloc}{target}", encoded=True)
    egress = upstream.egress_proxy.get_secret_value() if upstream.egress_proxy else None
    sent = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in headers]
    try:
        async with session.request(method, url, headers=sent, allow_redirects=False, proxy=egress) as response:
            body = await _limited(response)
            reply = Reply(response.status, response.raw_headers, body)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise LookupFailedError(f"{name} could not be asked ({type(error).__name__}). Try again later.") from error
    if reply.status in (401, 403):
        said = envelope_error(parsed(body)) or f"{reply.status}"
        raise LookupFailedError(
            f"{name} does not let the key in {variable_of(name, upstream)} look this up ({reply.status} {said}). Give one of the "
            "project that made the request, with the permission to read."
        )
    return reply


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > PARSED_LIMIT_BYTES:
            raise LookupFailedError(f"The answer is larger than {PARSED_LIMIT_BYTES} bytes, which nobody reads whole.")
    return bytes(body)


@asynccontextmanager
async def _session(upstream: UpstreamSettings, limit_s: float) -> AsyncIterator[aiohttp.ClientSession]:
    ssl = create_default_context(cafile=upstream.ca_file) if upstream.ca_file else True
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=ssl),
        timeout=aiohttp.ClientTimeout(total=limit_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        headers={"Accept-Encoding": "identity", "User-Agent": "sendonce"},
    ) as session:
        yield session


def ruling(
    settings: Settings, call: CallState, mechanism: Mechanism, found: LookedUp, by: str, succeeds: int | None
) -> Ruling:
    """What a result that settles decides. Raises DecisionRefusedError where its answer is none to this call."""
    dialect, traits = dialect_of(settings, call)
    answer = None
    if found.answer is not None:
        answer = recovered(
            found.answer.body, dialect, traits, f"What {mechanism.name} found", found.answer.headers, FETCHED
        )
    decision: Decision = "served" if found.result == "matches" else "not_served"
    if decision == "not_served" and call.effect is not Effect.UNKNOWN:
        raise DecisionRefusedError(
            f"{found.says} But the provider had begun to answer {call.call}, so it did accept it. Look at it yourself."
        )
    return Ruling(
        decision, found.says, by, succeeds, mechanism.name, found.result, found.evidence, answer, call.last_seq
    )
