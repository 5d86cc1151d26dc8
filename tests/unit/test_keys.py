"""Caller, scope and key: semantics.md section 1."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from proxy import keys
from proxy.clients import recognise
from proxy.headers import RawHeaders
from proxy.keys import CREDENTIAL, Caller, CredentialKind, Identity, KeyFault

SECRET = b"s" * 32


def caller(*headers: tuple[bytes, bytes], query: str = "", identity: Identity = CREDENTIAL) -> Caller:
    return keys.caller_fingerprint(SECRET, headers, query, identity)


def jwt(claims: object) -> tuple[bytes, bytes]:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
    return (b"authorization", b"Bearer eyJhbGciOiJub25lIn0." + payload + b".sig")


# --- caller ---


@pytest.mark.parametrize(
    ("headers", "query", "kind", "rotating"),
    [
        (((b"X-Api-Key", b"sk-1"),), "", CredentialKind.API_KEY, False),
        (((b"api-key", b"k"),), "", CredentialKind.API_KEY, False),
        (((b"x-goog-api-key", b"k"),), "", CredentialKind.API_KEY, False),
        ((), "alt=sse&key=k", CredentialKind.API_KEY, False),
        (((b"authorization", b"Bearer sk-1"),), "", CredentialKind.BEARER, False),
        (((b"authorization", b"bearer eyJhbGciOi.x.y"),), "", CredentialKind.BEARER, True),
        (((b"authorization", b"Bearer ya29.a0"),), "", CredentialKind.BEARER, True),
        (
            ((b"authorization", b"AWS4-HMAC-SHA256 Credential=AKID/d/r/s/aws4_request"),),
            "",
            CredentialKind.SIGV4,
            False,
        ),
        (
            ((b"authorization", b"AWS4-HMAC-SHA256 Credential=ASIA1/d/r/s/aws4_request"),),
            "",
            CredentialKind.SIGV4,
            True,
        ),
        (((b"authorization", b"Basic dTpw"),), "", CredentialKind.UNKNOWN, False),
        (((b"cookie", b"session=1"),), "", CredentialKind.UNKNOWN, False),
        ((), "", CredentialKind.ANONYMOUS, False),
    ],
)
def test_credential_gives_its_kind(headers: RawHeaders, query: str, kind: CredentialKind, rotating: bool) -> None:
    """Each kind of credential, and whether it will be replaced by time."""
    found = caller(*headers, query=query)
    assert (found.kind, found.rotating) == (kind, rotating)


def test_same_api_key_is_the_same_caller_wherever_it_stands() -> None:
    """Header name, position and encoding in the query do not change who calls."""
    expected = caller((b"x-goog-api-key", b"a/b"))
    assert caller((b"X-GOOG-API-KEY", b"a/b")) == expected
    assert caller(query="key=a%2Fb") == expected
    assert caller(query="x=1&%6Bey=a/b") == expected


def test_other_credential_is_another_caller() -> None:
    """Another key, another secret of the ledger, or a token behind a shared placeholder key tell callers apart."""
    one = caller((b"x-api-key", b"dummy"), (b"authorization", b"Bearer 1"))
    assert one.fingerprint != caller((b"x-api-key", b"dummy"), (b"authorization", b"Bearer 2")).fingerprint
    assert one.exact != caller((b"x-api-key", b"dummy"), (b"authorization", b"Bearer 2")).exact
    assert caller(query="access_token=1").exact != caller(query="access_token=2").exact
    assert caller((b"cookie", b"a")).exact != caller((b"cookie", b"b")).exact
    other_ledger = keys.caller_fingerprint(b"t" * 32, ((b"x-api-key", b"k"),), "")
    assert caller((b"x-api-key", b"k")).fingerprint != other_ledger.fingerprint


def test_changing_cookie_beside_a_credential_keeps_the_caller() -> None:
    """SDKs send back the CDN's cookie from the second request on; it is still the same caller."""
    assert caller((b"x-api-key", b"k"), (b"cookie", b"__cf_bm=1")) == caller((b"x-api-key", b"k"))


def test_sigv4_signature_does_not_change_the_caller() -> None:
    """The signature is new on each request; the access key id stays, in the header as in the query."""
    start = b"AWS4-HMAC-SHA256 Credential=AKID/20261129/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature="
    first = caller((b"authorization", start + b"aa"))
    assert first == caller((b"authorization", start + b"bb"))
    assert first == caller(query="X-Amz-Credential=AKID%2F20261129%2Fus&X-Amz-Signature=cc")


def test_fingerprint_does_not_hold_the_secret() -> None:
    """Only hex digests leave the function (I8)."""
    found = caller((b"x-api-key", b"sk-secret"))
    assert "sk-secret" not in repr(found)
    assert len(bytes.fromhex(found.fingerprint)) == len(bytes.fromhex(found.exact)) == 32


@pytest.mark.parametrize(
    "name",
    [
        b"xi-api-key",
        b"X-Key",
        b"x-auth-token",
        b"Private-Token",
        b"x-rapidapi-key",
        b"apikey",
        b"token",
        b"X-Signature",
    ],
)
def test_credential_that_nobody_knows_is_told_apart(name: bytes) -> None:
    """An API of its own has a header of its own: two secrets in it are two callers, and neither is anonymous."""
    one, other = caller((name, b"secret-1")), caller((name, b"secret-2"))
    assert (one.kind, one.exact != other.exact) == (CredentialKind.UNKNOWN, True)
    assert caller((b"idempotency-key", b"1"), (b"sendonce-token", b"2")).kind is CredentialKind.ANONYMOUS


def test_configured_header_says_who_calls() -> None:
    """It stands for the credential in the fingerprint, never in what answers are bound to; without it the credential counts."""
    by, key, other = Identity(header=b"x-user"), (b"x-api-key", b"sk-1"), (b"x-api-key", b"sk-2")
    ann, bob, plain = ((b"X-User", b"ann"), key), ((b"X-User", b"bob"), key), (key,)
    found = [caller(*headers, identity=by) for headers in (ann, bob, plain)]
    assert len({each.fingerprint for each in found}) == len({each.exact for each in found}) == 3
    assert (found[0].kind, found[2]) == (CredentialKind.CONFIGURED, caller(key))
    moved = caller((b"X-User", b"ann"), other, identity=by)
    assert (moved.fingerprint, moved.exact != found[0].exact) == (found[0].fingerprint, True)


@pytest.mark.parametrize("subject", ["ann", 7, ["a", "b"]])
def test_claim_of_a_renewed_token_is_the_same_caller(subject: object) -> None:
    """The token changes, its subject stays; what answers are bound to changes with the token."""
    by = Identity(bearer_claim="sub")
    first, renewed = (caller(jwt({"sub": subject, "iat": at}), identity=by) for at in (1, 2))
    assert (first.fingerprint, first.rotating) == (renewed.fingerprint, False)
    assert first.exact != renewed.exact
    assert caller(jwt({"sub": "somebody else"}), identity=by).fingerprint != first.fingerprint


@pytest.mark.parametrize(
    "header",
    [
        jwt({"iat": 1}),
        jwt([]),
        jwt({"sub": ""}),
        (b"authorization", b"Bearer ey.!.x"),
        (b"authorization", b"Bearer sk-1"),
    ],
)
def test_token_without_the_claim_is_a_caller_of_its_own(header: tuple[bytes, bytes]) -> None:
    """As if nothing were configured: the whole token counts."""
    assert caller(header, identity=Identity(bearer_claim="sub")) == caller(header)


def test_account_beside_a_renewed_token_is_the_same_caller() -> None:
    """And a token that is what a claim or an account would be written as is none of them."""
    by, account = Identity(account_header=b"chatgpt-account-id"), (b"ChatGPT-Account-Id", b"acc")
    first, renewed = (caller(jwt({"iat": at}), account, identity=by) for at in (1, 2))
    assert (first.fingerprint, first.rotating) == (renewed.fingerprint, False)
    assert caller((b"authorization", b"Bearer account acc")).fingerprint != first.fingerprint


def test_scope_tells_caller_upstream_and_run_apart() -> None:
    """A key means something only inside one (caller, upstream, run)."""
    one, two = caller((b"x-api-key", b"1")), caller((b"x-api-key", b"2"))
    scopes = {
        keys.scope(one, "openai"),
        keys.scope(two, "openai"),
        keys.scope(one, "groq"),
        keys.scope(one, "openai", "r"),
    }
    assert len(scopes) == 4


# --- explicit key ---


@pytest.mark.parametrize("value", [b"k", b"a" * 255, b'"quoted-8e03978e"', b"\xc3\xa9"])
def test_usable_explicit_key_is_taken_as_it_is(value: bytes) -> None:
    """Byte for byte, whatever its syntax."""
    assert keys.explicit_key(((b"Idempotency-Key", value),)) == value.decode("latin-1")


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([b""], "empty"),
        ([b"a" * 256], "256 bytes"),
        ([b"a", b"a"], "more than once"),
        ([b"a b"], "space"),
        ([b"a\x00"], "control"),
        ([b"a\n"], "control"),
    ],
)
def test_unusable_explicit_key_is_a_fault(values: list[bytes], word: str) -> None:
    """The sentence names the header and what is wrong with it."""
    fault = keys.explicit_key(tuple((b"idempotency-key", value) for value in values))
    assert isinstance(fault, KeyFault)
    assert fault.code == "bad_key"
    assert "Idempotency-Key" in fault.sentence
    assert word in fault.sentence


def test_no_explicit_key_is_none() -> None:
    """Stock clients send none."""
    assert keys.explicit_key(((b"x", b"y"),)) is None


# --- derived key ---


def derived(**changes: Any) -> str:
    arguments: dict[str, Any] = {
        "secret": SECRET,
        "dialect": "openai_chat",
        "method": "POST",
        "path_and_query": "/v1/chat/completions",
        "headers": ((b"OpenAI-Project", b"p"),),
        "canonical": b"{}",
    }
    return keys.derive_key(**(arguments | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"secret": b"t" * 32},
        {"dialect": "generic"},
        {"method": "PUT"},
        {"path_and_query": "/v1/chat/completions?x"},
        {"headers": ()},
        {"headers": ((b"openai-organization", b"p"),)},
        {"canonical": b"{ }"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_each_part_changes_the_derived_key(changes: Mapping[str, Any]) -> None:
    """Every part that makes another intention makes another key."""
    assert derived(**changes) != derived()


def test_other_headers_do_not_change_the_derived_key() -> None:
    """Retry counts, time-outs and betas vary between tries of one intention."""
    assert derived(headers=((b"x-stainless-retry-count", b"2"), (b"openai-project", b"p"))) == derived()


def test_canonical_digest_compares_method_path_and_body() -> None:
    """What an explicit key may not be reused for."""
    one = keys.canonical_digest(SECRET, "POST", "/a", b"b")
    assert one == keys.canonical_digest(SECRET, "POST", "/a", b"b")
    others = {
        keys.canonical_digest(SECRET, *parts)
        for parts in [("PUT", "/a", b"b"), ("POST", "/ab", b""), ("POST", "/a", b"")]
    }
    assert one not in others
    assert len(others) == 3


def test_lineage_is_of_one_account_and_one_client() -> None:
    """A turn's id says nothing to another project, nor to another kind of client."""
    turn = (b"x-codex-turn-metadata", b'{"turn_id": "t"}')
    session = (b"x-claude-code-session-id", b"t")
    asked: list[RawHeaders] = [(turn,), (turn, (b"OpenAI-Project", b"p")), (session,)]
    lineages = [keys.lineage(SECRET, recognise(headers), headers) for headers in asked]
    assert len(set(lineages)) == len(asked)
    assert keys.lineage(SECRET, recognise(()), ()) is None
