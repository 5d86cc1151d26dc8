"""Client profiles: research/clients.md section 1."""

import pytest

from proxy.clients import PROFILES, recognise

STAINLESS = (b"X-Stainless-Lang", b"python")


@pytest.mark.parametrize(
    ("count", "expected"), [(b"0", False), (b"1", True), (b"12", True), (b"", False), (b"-1", False), (b"x", False)]
)
def test_stainless_retry_count_above_zero_is_a_certain_retry(count: bytes, expected: bool) -> None:
    """The SDKs count their own retries in a header; anything but a positive number is no sign."""
    headers = (STAINLESS, (b"X-Stainless-Retry-Count", count))
    profile = recognise(headers)
    assert profile.name == "stainless"
    assert profile.certain_retry(headers) is expected


def test_stainless_without_count_is_no_certain_retry() -> None:
    """An absent count says nothing."""
    assert recognise((STAINLESS,)).certain_retry((STAINLESS,)) is False


def test_unknown_client_is_generic_and_never_certain() -> None:
    """The AI SDK, litellm and google-genai change nothing between tries."""
    headers = ((b"User-Agent", b"ai/6.0.326"), (b"x-stainless-retry-count", b"2"))
    profile = recognise(headers)
    assert profile.name == "generic"
    assert profile.certain_retry(headers) is False


def test_every_profile_ignores_the_form() -> None:
    """Streaming or not is the form of an answer, never another intention."""
    assert all({"stream", "stream_options"} <= profile.ignored_fields for profile in PROFILES)
