"""Who calls, and what names their intention: caller, scope, idempotency key, canonical body (semantics.md section 1).

Every digest is a blake3 keyed with the ledger's secret over length-prefixed parts under a purpose, so that nothing
here can be recomputed without the state dir and no two kinds of digest can be mistaken for each other.
"""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import unquote_plus, unquote_to_bytes

from blake3 import blake3

from proxy.clients import ClientProfile
from proxy.headers import RawHeaders, find_all
from proxy.multipart import Part
from proxy.request_body import RequestBody
from proxy.target import CREDENTIAL_PARAMETERS

EXPLICIT_KEY_LIMIT_BYTES = 255  # it stands in an index and in every row that names the call
CANONICAL_JSON_LIMIT_BYTES = 33_554_432  # 32 MiB, Anthropic's limit for a message; parsing takes several times its size
CANONICAL_JSON_LIMIT_COMMAS = (
    300_000  # each may stand for a value of its own, which takes sixty bytes and the interpreter's lock
)
CANONICAL_JSON_DEPTH_LIMIT = 64  # far above any tool schema, far below the interpreter's recursion limit


class CredentialKind(StrEnum):
    API_KEY = "api_key"
    BEARER = "bearer"
    SIGV4 = "sigv4"
    CONFIGURED = "configured"  # a header that the configuration names says who it is
    UNKNOWN = "unknown"  # a scheme we know nothing about, or cookies: the whole value
    ANONYMOUS = "anonymous"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends. `exact` binds replay and attach (I9); `fingerprint` is the stable identity that scopes are made of."""

    fingerprint: str  # hex
    exact: str  # hex
    kind: CredentialKind
    rotating: bool  # the credential is replaced by time; the caller's unresolved calls lose protection when it is


@dataclass(frozen=True, slots=True)
class Identity:
    """Where an upstream's configuration says that the stable identity of a caller is; header names in lower case."""

    header: bytes | None = None
    bearer_claim: str | None = None
    account_header: bytes | None = None


CREDENTIAL: Final = Identity()  # the credential is the identity


@dataclass(frozen=True, slots=True)
class KeyFault:
    """Why an explicit key cannot be used; `code` and `sentence` are the refusal's."""

    sentence: str
    code: str = "bad_key"


@dataclass(frozen=True, slots=True)
class _Credential:
    kind: CredentialKind
    value: bytes  # what identifies it: the whole secret; of SigV4 the access key id, for its signature is always new


Canonical = bytes | RequestBody  # a body without a canonical form of its own stands for itself, however large


def _keyed(secret: bytes, purpose: str, *parts: Canonical) -> str:
    digest = blake3(key=secret)
    for part in (purpose.encode(), *parts):
        size, pieces = (len(part), (part,)) if isinstance(part, bytes) else (part.size, part.pieces())
        digest.update(size.to_bytes(8, "big"))
        for piece in pieces:
            digest.update(piece)
    return digest.hexdigest()


# --- caller ---

_SIGV4 = re.compile(rb"AWS4-[A-Z0-9-]+\s+(?:.*[,\s])?Credential=([^/,\s]+)", re.DOTALL)
_BEARER = re.compile(rb"bearer\s+(.*)", re.IGNORECASE | re.DOTALL)

# Starts of credentials that live for minutes to days: JWTs, Google OAuth access tokens, Anthropic OAuth tokens
# (Claude subscriptions), AWS STS access key ids. Source: the vendors' published token formats.
_ROTATING = (b"eyJ", b"ya29.", b"sk-ant-oat", b"ASIA")


def _api_key(value: bytes) -> _Credential:
    return _Credential(CredentialKind.API_KEY, value)


def _authorization(value: bytes) -> _Credential:
    if found := _SIGV4.match(value):
        return _Credential(CredentialKind.SIGV4, found[1])
    if found := _BEARER.fullmatch(value):
        return _Credential(CredentialKind.BEARER, found[1])
    return _Credential(CredentialKind.UNKNOWN, value)


def _access_key(value: bytes) -> _Credential:
    return _Credential(CredentialKind.SIGV4, value.partition(b"/")[0])


_SECRET_WORDS = re.compile(
    rb"key|token|auth|secret|passw|credential|signature"
)  # xi-api-key, private-token, x-rapidapi-key, …

_Read = Callable[[bytes], _Credential]
_HEADERS: tuple[tuple[bytes, _Read], ...] = (
    (b"x-api-key", _api_key),
    (b"api-key", _api_key),
    (b"x-goog-api-key", _api_key),
    (b"ocp-apim-subscription-key", _api_key),
    (b"authorization", _authorization),
)
_CREDENTIALS = frozenset({b"cookie", *(name for name, _ in _HEADERS)})
# Every parameter that recording removes counts here, or two callers would look the same; `key` is Gemini's.
_PARAMETERS: dict[str, _Read] = {
    **dict.fromkeys(CREDENTIAL_PARAMETERS, _api_key),
    "x-amz-credential": _access_key,
    "x-goog-credential": _access_key,
}
_SIGNATURES = frozenset(
    {"x-amz-signature", "x-goog-signature"}
)  # another on every request; the credential is beside it


def is_credential(name: bytes) -> bool:
    """A header that says who asks, by its lower-case name, and nothing about what is asked."""
    return name in _CREDENTIALS


def caller_fingerprint(secret: bytes, headers: RawHeaders, query: str, identity: Identity = CREDENTIAL) -> Caller:
    """The caller of a request with this query (without `?`).

    All credentials of a request count together: two users behind one placeholder API key are told apart by their tokens. A
    configured header stands for all of them, a claim or an account header for the bearer token; without it the token counts.
    """
    credentials = _credentials(headers, query)
    named = [value for value in find_all(headers, identity.header) if value] if identity.header else []
    exact = [*_parts(credentials), *named]
    stable = [_stable(credential, headers, identity) for credential in credentials]
    kind = credentials[0].kind if credentials else CredentialKind.ANONYMOUS
    return Caller(
        fingerprint=_keyed(secret, "caller", *([b"header", *named] if named else _parts(stable))),
        exact=_keyed(secret, "credential", *exact),
        kind=CredentialKind.CONFIGURED if named else kind,
        rotating=not named and any(credential.value.startswith(_ROTATING) for credential in stable),
    )


def _credentials(headers: RawHeaders, query: str) -> list[_Credential]:
    credentials = [read(value) for name, read in _HEADERS for value in find_all(headers, name) if value]
    for parameter in re.split("[&;]", query):
        raw_name, _, value = parameter.partition("=")
        name = unquote_plus(raw_name).strip().lower()
        if value and name in _PARAMETERS and name not in _SIGNATURES:
            credentials.append(_PARAMETERS[name](unquote_to_bytes(value)))
    if not credentials:  # a provider that nobody here knows has a header of its own for it
        credentials = [
            _Credential(CredentialKind.UNKNOWN, name.lower() + b"=" + value)
            for name, value in headers
            if _may_be_secret(name)
        ]
    if not credentials:  # beside a credential cookies are the CDN's, and change at its will
        credentials = [_Credential(CredentialKind.UNKNOWN, value) for value in find_all(headers, b"cookie")]
    return credentials


def _may_be_secret(name: bytes) -> bool:
    lower = name.lower()
    return bool(_SECRET_WORDS.search(lower)) and lower != b"idempotency-key" and not lower.startswith(b"sendonce-")


def _parts(credentials: list[_Credential]) -> list[bytes]:
    return [part for credential in credentials for part in (credential.kind.encode(), credential.value)]


def _stable(credential: _Credential, headers: RawHeaders, identity: Identity) -> _Credential:
    """What of a bearer token stays when it is renewed. NUL, which no header holds, keeps the two kinds of value apart."""
    if credential.kind is not CredentialKind.BEARER:
        return credential
    if identity.account_header and (account := b"\0".join(find_all(headers, identity.account_header))):
        return _Credential(CredentialKind.BEARER, b"\0account\0" + account)
    if identity.bearer_claim and (claim := _claim(credential.value, identity.bearer_claim)):
        return _Credential(CredentialKind.BEARER, b"\0claim\0" + claim)
    return credential


def _claim(token: bytes, name: str) -> bytes | None:
    """A claim of a JWT (RFC 7519) as JSON. Its signature is the provider's to check: here it only tells callers apart."""
    try:
        payload = token.split(b".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
        return json.dumps(claims[name], sort_keys=True).encode() if claims.get(name) else None
    except (ValueError, LookupError, AttributeError, RecursionError):
        return None


# --- canonical body ---


class _NotCanonicalError(Exception):
    """The body has no canonical form of its own; its raw bytes stand for it."""


class _Number(str):
    """A JSON number as it was written: 1.0 is not 1, and no precision is lost."""

    __slots__ = ()


def canonical_body(
    body: RequestBody,
    document: bytes | None,
    form: list[Part] | None,
    profile: ClientProfile,
    *,
    across_starts: bool = False,
) -> Canonical:
    """What stands for the body in keys and comparisons; only ever hashed, never sent. Never raises.

    `document`: its bytes, if it is parsed as JSON (`is_read`). `form`: its parts, if it is a multipart form: without the boundary, which SDKs make anew on each try.
    `across_starts`: without what is new at each start of the client (semantics section 9).
    """
    if form is not None:
        return b"multipart\n" + json.dumps([(part.head, part.digest) for part in form]).encode("ascii")
    try:
        if document is not None:
            return _canonical_json(document, profile, across_starts=across_starts)
    except (_NotCanonicalError, ValueError, RecursionError):
        pass
    return body


def is_read(body: RequestBody, kind: bytes) -> bool:
    """Is it parsed as JSON, as far as its type and its size tell?"""
    if body.size > CANONICAL_JSON_LIMIT_BYTES or not (not kind or kind.endswith((b"/json", b"+json"))):
        return False
    return sum(piece.count(b",") for piece in body.pieces()) <= CANONICAL_JSON_LIMIT_COMMAS


def _canonical_json(body: bytes, profile: ClientProfile, *, across_starts: bool) -> bytes:
    # Decoded here, and strictly: json.loads on bytes would let UTF-16 and encoded surrogates pass for the same text.
    document = json.loads(
        body.decode(),
        object_pairs_hook=_distinct_names,
        parse_int=_Number,
        parse_float=_Number,
        parse_constant=_refuse_constant,
    )
    if isinstance(document, dict):
        document = profile.intention(document)
        if across_starts:
            document = profile.without_start_ids(document)
    return _written(document).encode("ascii")


def _distinct_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise _NotCanonicalError("which of two equal names counts is the provider's choice")
    return document


def _refuse_constant(text: str) -> None:
    raise _NotCanonicalError(f"{text} is not JSON")


_scalar = json.JSONEncoder().encode  # one encoder for all: json.dumps looks at its options for every string


def _written(value: object, depth_left: int = CANONICAL_JSON_DEPTH_LIMIT) -> str:
    """The JSON text; json.dumps cannot write a number as it was written."""
    if isinstance(value, _Number):
        return value
    if not isinstance(value, dict | list):
        return _scalar(value)
    if not depth_left:
        raise _NotCanonicalError(f"deeper than {CANONICAL_JSON_DEPTH_LIMIT}")
    if isinstance(value, list):
        return "[" + ",".join([_written(item, depth_left - 1) for item in value]) + "]"
    return "{" + ",".join([f"{_scalar(name)}:{_written(value[name], depth_left - 1)}" for name in sorted(value)]) + "}"


# --- scope and key ---

# One credential can act for several organisations and projects, which pay and see apart.
_ACCOUNT_HEADERS = (b"openai-organization", b"openai-project", b"x-goog-user-project")
_KEY = re.compile(rb"[\x21-\x7e\x80-\xff]+")


def scope(caller: Caller, upstream: str, run: str | None = None) -> str:
    """Where keys are compared. Upstream and run names hold no `/`."""
    return "/".join((upstream, caller.fingerprint, *((run,) if run is not None else ())))


def explicit_key(headers: RawHeaders) -> str | KeyFault | None:
    """The client's own `Idempotency-Key`, byte for byte as latin-1; None where there is none."""
    values = find_all(headers, b"idempotency-key")
    if not values:
        return None
    if len(values) > 1:
        return KeyFault("The header Idempotency-Key was sent more than once; send it once.")
    if not values[0]:
        return KeyFault("The header Idempotency-Key is empty; send a key or leave the header out.")
    if len(values[0]) > EXPLICIT_KEY_LIMIT_BYTES:
        return KeyFault(
            f"The header Idempotency-Key has {len(values[0])} bytes; send at most {EXPLICIT_KEY_LIMIT_BYTES}."
        )
    if not _KEY.fullmatch(values[0]):
        return KeyFault(
            "The header Idempotency-Key holds a space or a control character; send visible characters only."
        )
    return values[0].decode("latin-1")


def derive_key(
    secret: bytes, dialect: str, method: str, path_and_query: str, headers: RawHeaders, canonical: Canonical
) -> str:
    """The key of a request that names none. `path_and_query` is the provider's, without credential parameters."""
    parts = (dialect.encode(), method.encode(), path_and_query.encode(), *_account(headers), canonical)
    return _keyed(secret, "derived-key", *parts)


def lineage(secret: bytes, profile: ClientProfile, headers: RawHeaders) -> str | None:
    """What the client's tries of one thing have in common, as it can be recorded."""
    named = profile.lineage(headers)
    return _keyed(secret, "lineage", profile.name.encode(), *_account(headers), named) if named else None


def _account(headers: RawHeaders) -> list[bytes]:
    return [b"\0".join(find_all(headers, name)) for name in _ACCOUNT_HEADERS]


def canonical_digest(secret: bytes, method: str, path_and_query: str, canonical: Canonical) -> str:
    """What is compared under an explicit key: another digest is `drift` or `key_reused`."""
    return _keyed(secret, "request", method.encode(), path_and_query.encode(), canonical)
