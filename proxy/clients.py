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
    acts_on_items: bool = False  # on an item of a stream, before the stream's end
    ignored_fields: frozenset[str] = FORM_FIELDS  # top-level JSON fields that are left out of the key


def _codex(headers: RawHeaders) -> bool:
    return find(headers, b"x-codex-turn-metadata") is not None or (find(headers, b"originator") or b"").startswith(
        b"codex"
    )


def _stainless_retry(headers: RawHeaders) -> bool:
    count = find(headers, b"x-stainless-retry-count") or b""
    return count.isdigit() and int(count[:9]) > 0


# First match wins, the most particular client first: Claude Code goes on top, for it sends the x-stainless headers too, with
# a retry count that is always 0.
PROFILES = (
    # Runs a tool at its `output_item.done`, and repeats an item that it has got in the input of its next request.
    ClientProfile(name="codex", recognised=_codex, certain_retry=lambda _: False, acts_on_items=True),
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
