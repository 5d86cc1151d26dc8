"""Client profiles: how a client is recognised, how it says "this is a retry", what it changes between tries and starts. One table.

Measured on the wire, research/clients.md sections 1 and 3; the transcripts in tests/golden hold every row to it. What a profile
does not know about a client costs only precision: an unrecognised retry is treated as unmarked and judged by its socket and
its delivery.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.headers import RawHeaders, find
from proxy.retelling import CLAUDE_CODE_RETELLS, CODEX_RETELLS, Retelling

# Whether an answer comes as a stream is its form, not its intention: clients re-ask a broken stream without it.
FORM_FIELDS: Final = frozenset({"stream", "stream_options"})
NUMBER_LIMIT_DIGITS: Final = 9  # of a count of tokens; a longer one is above every limit here


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """`certain_retry` is true only for a sign that the client puts on a retry and on nothing else."""

    name: str
    recognised: Callable[[RawHeaders], bool]
    certain_retry: Callable[[RawHeaders], bool] = lambda _: False
    acts_on_items: bool = False  # on an item of a stream, before the stream's end
    ignored_fields: frozenset[str] = FORM_FIELDS  # top-level JSON fields that are left out of the key
    ignored_above: Mapping[str, int] = field(default_factory=dict)  # the same for numbers, only above this
    start_ids: tuple[str, ...] = ()  # paths of what is new at each start of the client; `*` is every item of a list
    lineage: Callable[[RawHeaders], bytes | None] = lambda _: None  # what its tries of one thing have in common
    asks_once: bool = False  # within one lineage: the same request again is its retry as long as the first is open
    retells: Retelling | None = None  # how a retry repeats what it got of an answer that broke off

    def intention(self, document: dict[str, Any]) -> dict[str, Any]:
        """Without what the client changes between tries of one intention."""
        return {
            name: value
            for name, value in document.items()
            if name not in self.ignored_fields and not _is_above(value, self.ignored_above.get(name))
        }

    def without_start_ids(self, document: dict[str, Any]) -> dict[str, Any]:
        """What two starts of the client over the same work have in common."""
        for path in self.start_ids:
            document = _without(document, path.split("."))
        return document


def _is_above(value: object, limit: int | None) -> bool:
    """`value`: a number, or one as it was written."""
    written = str(value)
    return (
        limit is not None
        and written.isascii()
        and written.isdigit()
        and (len(written) > NUMBER_LIMIT_DIGITS or int(written) > limit)
    )


def _without(value: Any, path: list[str]) -> Any:
    name, *rest = path
    if name == "*":
        return [_without(item, rest) for item in value] if isinstance(value, list) else value
    if not isinstance(value, dict) or name not in value:
        return value
    if rest:
        return {**value, name: _without(value[name], rest)}
    return {other: kept for other, kept in value.items() if other != name}


# --- signs ---


def _stainless_retry(headers: RawHeaders) -> bool:
    count = find(headers, b"x-stainless-retry-count") or b""
    return count.isdigit() and int(count[:NUMBER_LIMIT_DIGITS]) > 0


def _has(name: bytes) -> Callable[[RawHeaders], bool]:
    return lambda headers: find(headers, name) is not None


def _starts(name: bytes, *starts: bytes) -> Callable[[RawHeaders], bool]:
    return lambda headers: (find(headers, name) or b"").startswith(starts)


def _codex(headers: RawHeaders) -> bool:
    return _has(b"x-codex-turn-metadata")(headers) or _starts(b"originator", b"codex")(headers)


def _codex_turn(headers: RawHeaders) -> bytes | None:
    """Its x-client-request-id is the thread's and says nothing of a request."""
    try:
        turn = json.loads(find(headers, b"x-codex-turn-metadata") or b"")["turn_id"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return turn.encode() if isinstance(turn, str) and turn else None


_CLAUDE_CODE_SESSION: Final = b"x-claude-code-session-id"

# First match wins, the most particular client first.
PROFILES: Final = (
    # Runs a tool at its `output_item.done`, and repeats an item that it has got in the input of its next request. Between the
    # tries of one stream the order of names changes.
    ClientProfile(
        name="codex",
        recognised=_codex,
        acts_on_items=True,
        start_ids=(
            "prompt_cache_key",
            "client_metadata",
            "input.*.id",
            "input.*.internal_chat_message_metadata_passthrough",
        ),
        lineage=_codex_turn,
        asks_once=True,
        retells=CODEX_RETELLS,
    ),
    # Claude Code and the Agent SDK send x-stainless headers, too, with a count that was always 0. After a broken stream it asks
    # without `stream`, and with less than its default of output; a probe or a warm-up has `max_tokens` of a few.
    ClientProfile(
        name="claude_code",
        recognised=_has(_CLAUDE_CODE_SESSION),
        certain_retry=_stainless_retry,
        ignored_above={"max_tokens": 4096},
        start_ids=("metadata.user_id",),
        lineage=lambda headers: find(headers, _CLAUDE_CODE_SESSION),
        retells=CLAUDE_CODE_RETELLS,
    ),
    # openai and anthropic SDKs, py and js, and all that is built on them: the count is the only thing that changes.
    ClientProfile(name="stainless", recognised=_has(b"x-stainless-lang"), certain_retry=_stainless_retry),
    # These change nothing at all between tries, and say nothing. Their names are for whoever reads the record.
    ClientProfile(name="ai_sdk", recognised=_starts(b"user-agent", b"ai-sdk/", b"ai/")),
    ClientProfile(name="google_genai", recognised=_starts(b"x-goog-api-client", b"google-genai-sdk/")),
    ClientProfile(name="litellm", recognised=_starts(b"user-agent", b"litellm/")),
    ClientProfile(name="generic", recognised=lambda _: True),
)


def recognise(headers: RawHeaders) -> ClientProfile:
    """The profile of the client that sent these headers; there always is one."""
    return next(profile for profile in PROFILES if profile.recognised(headers))
