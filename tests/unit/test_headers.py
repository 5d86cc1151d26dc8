"""Which headers travel, which are kept, which are never kept."""

import pytest

from proxy.headers import (
    REQUEST_STORED,
    RESPONSE_STORED,
    AllowList,
    as_text,
    end_to_end,
    find,
    find_all,
    media_type,
    stored,
)

CREDENTIAL_HEADERS = frozenset({
    b"authorization", b"proxy-authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"x-amz-security-token",
    b"x-goog-iam-authorization-token", b"ocp-apim-subscription-key", b"cookie", b"set-cookie",
})  # fmt: skip


def test_end_to_end_keeps_order_case_duplicates_and_bytes() -> None:
    """What is not dropped is untouched, raw bytes included."""
    raw = ((b"X-B", b"2"), (b"x-a", b"\xff"), (b"X-B", b"3"), (b"Authorization", b"Bearer k"))
    assert end_to_end(raw) == raw


def test_end_to_end_drops_hop_by_hop_framing_and_own_headers() -> None:
    """Each side makes framing, Host and Expect anew; own headers never reach the provider."""
    names = (b"Host", b"TE", b"Trailer", b"Transfer-Encoding", b"Content-Length", b"Expect", b"Upgrade", b"Keep-Alive")
    raw = tuple((name, b"x") for name in (*names, b"Sendonce-Task", b"SENDONCE-ACCEPT"))
    assert end_to_end((*raw, (b"X", b"1"))) == ((b"X", b"1"),)


def test_end_to_end_drops_what_any_connection_header_lists() -> None:
    """Two Connection headers, mixed case and spaces: all listed names stay here."""
    raw = (
        (b"Connection", b"close, X-One"),
        (b"X-ONE", b"1"),
        (b"connection", b" x-two"),
        (b"X-Two", b"2"),
        (b"Y", b"3"),
    )
    assert end_to_end(raw) == ((b"Y", b"3"),)


@pytest.mark.parametrize("allowed", [REQUEST_STORED, RESPONSE_STORED])
def test_stored_never_keeps_a_credential(allowed: AllowList) -> None:
    """I8: no spelling of a credential header passes either allow-list."""
    raw = tuple((spelled, b"canary") for name in CREDENTIAL_HEADERS for spelled in (name, name.upper(), name.title()))
    assert stored(raw, allowed) == ()


def test_stored_keeps_known_names_and_prefixes_as_spelled() -> None:
    """An unknown header is not kept, whatever it holds."""
    kept = ((b"Content-Type", b"a/b"), (b"X-Stainless-Retry-Count", b"1"), (b"X-Claude-Code-Session-Id", b"s"))
    assert stored((*kept, (b"X-Secret-Sauce", b"canary")), REQUEST_STORED) == kept
    limits = ((b"Anthropic-RateLimit-Tokens-Limit", b"1"), (b"X-RateLimit-Reset-Requests", b"6m0s"), (b"cf-ray", b"r"))
    assert stored((*limits, (b"Set-Cookie", b"canary")), RESPONSE_STORED) == limits


def test_find_and_find_all_ignore_case() -> None:
    """Lookup is by lower-case name; the first value and all values."""
    raw = ((b"X-A", b"1"), (b"x-a", b"2"))
    assert find(raw, b"x-a") == b"1"
    assert find(raw, b"x-b") is None
    assert find_all(raw, b"x-a") == (b"1", b"2")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(b"application/json", b"application/json"), (b" Text/Event-Stream ; charset=utf-8", b"text/event-stream")],
)
def test_media_type_drops_parameters_and_case(value: bytes, expected: bytes) -> None:
    """Parameters and spelling do not make another type."""
    assert media_type(((b"Content-Type", value),)) == expected


def test_media_type_without_header_is_empty() -> None:
    """No Content-Type, no guess."""
    assert media_type(()) == b""


def test_as_text_with_undecodable_bytes_raises() -> None:
    """Bytes that aiohttp would drop in silence are refused."""
    assert as_text(((b"X", "ü".encode()),)) == [("X", "ü")]
    with pytest.raises(UnicodeDecodeError):
        as_text(((b"X", b"\xff"),))
