"""Client profiles: how a client is recognised, how it says "this is a retry", what it changes between tries. One table.

Measured on the wire, research/clients.md sections 1 and 3. What a profile does not know about a client costs only
precision: an unrecognised retry is treated as unmarked and judged by its socket and its delivery.
"""

from collections.abc import Callable
from dataclasses import dataclass

from proxy.headers import RawHeaders, find

# Whether an answer comes as a stream is its form, not its intention: clients re-ask a broken stream without it.
FORM_FIELDS = frozenset({"stream", "stream_options"})


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """`certain_retry` is true only for a sign that the client puts on a retry and on nothing else."""

    name: str
    recognised: Callable[[RawHeaders], bool]
    certain_retry: Callable[[RawHeaders], bool]
    ignored_fields: frozenset[str] = FORM_FIELDS  # top-level JSON fields that are left out of the key


def _stainless_retry(headers: RawHeaders) -> bool:
    count = find(headers, b"x-stainless-retry-count") or b""
    return count.isdigit() and int(count[:9]) > 0


# First match wins, the most particular client first: Claude Code and Codex go on top, for Claude Code sends the
# x-stainless headers too, with a retry count that is always 0.
PROFILES = (
    # openai and anthropic SDKs, py and js, and all that is built on them: the count is the only thing that changes.
    ClientProfile(
        name="stainless",
        recognised=lambda headers: find(headers, b"x-stainless-lang") is not None,
        certain_retry=_stainless_retry,
    ),
    # AI SDK, litellm, google-genai and everything else: nothing at all changes between tries.
    ClientProfile(name="generic", recognised=lambda _: True, certain_retry=lambda _: False),
)


def recognise(headers: RawHeaders) -> ClientProfile:
    """The profile of the client that sent these headers; there always is one."""
    return next(profile for profile in PROFILES if profile.recognised(headers))
