"""Raw request -> CallRequest: exact bytes, key, scope, what may be recorded and what the client names beside the body."""

import json
from dataclasses import replace

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from ledger.events import Body, CallManifest
from ledger.ids import Digest, Head, new_call_id
from proxy import manifest
from proxy.admission import Forward
from proxy.endpoints import EndpointClass, Family
from proxy.headers import RawHeaders
from proxy.manifest import CallRequest, Route
from proxy.upstream_settings import UpstreamSettings
from tests.harness.histories import STARTED, one
from tests.harness.request_bodies import body_of

SECRET = bytes(32)
ROUTE = Route("openai", UpstreamSettings(base_url="http://up", family=Family.OPENAI), "/v1/chat/completions")
BODY = json.dumps({"model": "m", "messages": [], "stream": True, "max_tokens": 5}).encode()
JSON: RawHeaders = ((b"Content-Type", b"application/json"),)
CALLER: RawHeaders = ((b"Authorization", b"Bearer sk-secret"),)
CALL = new_call_id(1, bytes(8))


def read(
    body: bytes = BODY, headers: RawHeaders = (), *, rest: str = ROUTE.rest, explicit: str | None = None
) -> CallRequest:
    route = Route(ROUTE.name, ROUTE.upstream, rest)
    return manifest.read(
        SECRET, route, EndpointClass.GENERATE, "POST", (*JSON, *CALLER, *headers), body_of(body), explicit
    )


def recorded_of(request: CallRequest, added: RawHeaders = ()) -> CallManifest:
    return manifest.manifest(request, added, Body(request.body.digest, request.body.size))


@given(st.binary(max_size=200))
def test_any_body_is_read_and_kept_as_it_is(body: bytes) -> None:
    """Total: what is no JSON stands for itself; the bytes and their plain digest are what came."""
    request = read(body)
    came = request.body
    assert (came.whole(), came.digest, came.size) == (body, blake3(body).hexdigest(), len(body))
    assert request.key_source == "derived"
    assert len(request.key) == 64


def test_facts_of_the_request_stand_in_the_manifest() -> None:
    """Model, stream, output limit, method, URL, body."""
    recorded = recorded_of(read())
    assert (recorded.method, recorded.url) == ("POST", "http://up/v1/chat/completions")
    assert (recorded.model, recorded.stream, recorded.max_output_tokens) == ("m", True, 5)
    assert recorded.body.digest == blake3(BODY).hexdigest()


def test_credentials_reach_the_provider_and_never_the_record() -> None:
    """Header and query parameter alike (I8)."""
    request = read(rest="/v1/chat/completions?key=sk-query&a=1")
    recorded = recorded_of(request)
    assert request.url.endswith("?key=sk-query&a=1")
    assert (b"Authorization", b"Bearer sk-secret") in request.headers
    assert recorded.url == "http://up/v1/chat/completions?a=1"
    assert "sk-" not in repr(recorded) + repr(manifest.requested(request, Forward(1, 1, "first"), 1))


@pytest.mark.parametrize("change", [{"stream": False}, {"stream_options": {"include_usage": True}}])
def test_form_of_the_answer_is_no_part_of_the_intention(change: dict[str, object]) -> None:
    """Another body, the same key and intent: the recorded bytes differ, and that is an allowed difference."""
    other = read(json.dumps(json.loads(BODY) | change).encode())
    assert other.key == read().key
    assert other.intent_digest == read().intent_digest
    assert other.body.digest != read().body.digest


@pytest.mark.parametrize(
    "other",
    [
        read(json.dumps(json.loads(BODY) | {"model": "n"}).encode()),
        read(rest="/v1/completions"),
        read(rest="/v1/chat/completions?a=1"),
        read(headers=((b"OpenAI-Project", b"p"),)),
    ],
    ids=["body", "path", "query", "project"],
)
def test_another_intention_has_another_key(other: CallRequest) -> None:
    """Body, path, query and who pays are what the key is made of."""
    assert other.key != read().key


def test_explicit_key_is_compared_by_intent_and_travels_on() -> None:
    """The key is the client's; what it names is compared by the keyed digest; the provider sees it too."""
    request = read(headers=((b"Idempotency-Key", b"mine"),), explicit="mine")
    assert (request.key, request.key_source, request.ask.key_source) == ("mine", "explicit", "explicit")
    assert request.intent_digest == read().intent_digest
    assert (b"Idempotency-Key", b"mine") in request.headers


def test_scope_is_the_callers_and_the_upstreams() -> None:
    """Another credential or another upstream is another scope for the same key."""
    mine = read()
    theirs = manifest.scope_and_caller(SECRET, ROUTE, ((b"Authorization", b"Bearer other"),))[0]
    elsewhere = manifest.scope_and_caller(SECRET, replace(ROUTE, name="local"), CALLER)[0]
    assert len({mine.scope, theirs, elsewhere}) == 3
    assert mine.scope.startswith("openai/")


def test_own_headers_are_read_and_stripped() -> None:
    """Context digests enter the manifest, an acceptance the decision; none of them leaves."""
    request = read(headers=((b"Sendonce-Task", b"t"), (b"SENDONCE-Accept", b" call_1.1 "), (b"sendonce-other", b"x")))
    assert request.context == request.ask.context == {"sendonce-task": "t"}
    assert request.accepts_attempt == "call_1.1"
    assert not [name for name, _ in request.headers if name.lower().startswith(b"sendonce")]
    assert recorded_of(request).context == {"sendonce-task": "t"}


def test_request_id_is_added_only_where_there_is_none() -> None:
    """What is added stands in the manifest."""
    added = manifest.injected(read(), CALL)
    assert added == ((b"X-Client-Request-Id", CALL.encode()),)
    assert recorded_of(read(), added).injected == (("X-Client-Request-Id", CALL),)
    assert manifest.injected(read(headers=((b"x-CLIENT-request-id", b"mine"),)), CALL) == ()


def test_continuation_says_what_was_compared_and_on_which_head() -> None:
    """`call.resumed` only where a manifest was recorded; a first call has none."""
    head, earlier = Head(7, Digest("c" * 64)), one(*STARTED, "attempt.observed:not_sent")
    plan = Forward(1, 2, "resumed", earlier, differences=("context",))
    resumed = manifest.resumed(read(), plan, head)
    assert resumed is not None
    assert (resumed.continues, resumed.differences) == (earlier.call, ("body", "context"))
    assert (resumed.head_seq, resumed.head_chain) == (7, "c" * 64)
    assert manifest.resumed(read(), Forward(1, 1, "first"), head) is None
    assert manifest.resumed(read(), Forward(1, 2, "resumed", one()), head) is None


@given(st.lists(st.tuples(st.binary(), st.binary())))
def test_header_bytes_survive_the_record(pairs: list[tuple[bytes, bytes]]) -> None:
    """latin-1 both ways: every byte, in order, with duplicates."""
    assert manifest.as_headers(manifest.as_pairs(tuple(pairs))) == tuple(pairs)
