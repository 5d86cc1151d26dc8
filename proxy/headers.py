"""Raw header pairs: what travels on, what the ledger may keep, what is a credential. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

RawHeaders = tuple[tuple[bytes, bytes], ...]

OWN_PREFIX: Final = b"sendonce-"

# RFC 9110 section 7.6.1, plus what two neighbours agree between themselves and each side makes anew (framing, Host, Expect).
HOP_BY_HOP: Final = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade", b"content-length", b"expect", b"host",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class AllowList:
    """Lower-case names and prefixes of the headers that the ledger keeps; every other header is left out (I8)."""

    names: frozenset[bytes]
    prefixes: tuple[bytes, ...]

    def __contains__(self, name: bytes) -> bool:
        lower = name.lower()
        return lower in self.names or lower.startswith(self.prefixes)


# research/clients.md section 1 (what SDKs, Claude Code and Codex send), research/providers.md (lineage ids, headers).
REQUEST_STORED: Final = AllowList(
    frozenset({
        b"content-type", b"content-encoding", b"accept", b"accept-encoding", b"user-agent", b"cache-control",
        b"idempotency-key", b"x-request-id", b"x-client-request-id", b"request-id",
        b"anthropic-version", b"anthropic-beta", b"openai-beta", b"openai-organization", b"openai-project",
        b"x-goog-api-client", b"x-goog-user-project", b"x-server-timeout",
        b"x-app", b"x-session-id", b"session-id", b"thread-id", b"session_id", b"conversation_id", b"originator",
        b"x-openai-subagent", b"x-claude-code-session-id", b"x-claude-code-agent-id", b"x-claude-code-parent-agent-id",
        b"x-codex-window-id", b"x-codex-turn-metadata",
    }),
    (b"x-stainless-",),
)  # fmt: skip
# Of a request: where it came from and how it is traced; the same request without them.
MEANS_NOTHING: Final = frozenset({
    b"accept-language", b"dnt", b"origin", b"pragma", b"priority", b"referer", b"sec-fetch-dest", b"sec-fetch-mode", b"sec-fetch-site",
    b"traceparent", b"tracestate", b"baggage", b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto",
    b"x-real-ip",
})  # fmt: skip
RESPONSE_STORED: Final = AllowList(
    frozenset({
        b"content-type", b"content-encoding", b"content-length", b"cache-control", b"date", b"server", b"etag",
        b"retry-after", b"retry-after-ms", b"x-should-retry", b"idempotent-replayed",
        b"x-request-id", b"request-id", b"x-client-request-id", b"cf-ray", b"x-generation-id", b"x-amzn-requestid",
        b"apim-request-id", b"x-ms-request-id", b"x-ms-region",
        b"openai-processing-ms", b"openai-version", b"openai-organization", b"openai-project", b"openai-model",
        b"anthropic-organization-id", b"anthropic-workspace-id",
    }),
    (b"x-ratelimit-", b"anthropic-ratelimit-", b"anthropic-priority-"),
)  # fmt: skip


def end_to_end(raw: RawHeaders) -> RawHeaders:
    """The pairs that travel on, in order, with duplicates, spelled as they came. Own `Sendonce-*` headers stay here."""
    listed = {token.strip().lower() for value in find_all(raw, b"connection") for token in value.split(b",")}
    dropped = HOP_BY_HOP | listed
    return tuple(pair for pair in raw if (name := pair[0].lower()) not in dropped and not name.startswith(OWN_PREFIX))


def stored(raw: RawHeaders, allowed: AllowList) -> RawHeaders:
    """What the ledger keeps of them: `REQUEST_STORED` or `RESPONSE_STORED`, never a deny-list."""
    return tuple(pair for pair in raw if pair[0] in allowed)


def find(raw: RawHeaders, name: bytes) -> bytes | None:
    """The first value of a header, by its lower-case name."""
    return next((value for key, value in raw if key.lower() == name), None)


def find_all(raw: RawHeaders, name: bytes) -> tuple[bytes, ...]:
    """All values of a header, by its lower-case name."""
    return tuple(value for key, value in raw if key.lower() == name)


def media_type(raw: RawHeaders) -> bytes:
    """`application/json`, lower-case and without parameters; empty where no Content-Type is given."""
    return (find(raw, b"content-type") or b"").partition(b";")[0].strip().lower()


def as_text(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """For aiohttp's client, which takes text. A repeated name gets the spelling of its first: aiohttp would drop the first value.

    Raises UnicodeDecodeError where a value is not UTF-8: aiohttp's C serializer would drop such bytes in silence.
    """
    spelled: dict[bytes, str] = {}
    return [(spelled.setdefault(name.lower(), name.decode("ascii")), value.decode("utf-8")) for name, value in raw]
