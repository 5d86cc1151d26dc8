"""Retries told in other words: a client that got the beginning of an answer repeats it in its conversation when it asks again.

Its body, and so its derived key, is another one, and its intention is the same. It is recognised by content: the same lineage,
the same request as an earlier one whose answer is not known to have arrived whole, and then nothing but parts of that answer
(items of a Responses stream, content blocks of a message) and the words in which this client says what happened. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from proxy.dialects import anthropic_messages, openai_responses

# Written by clients onto what they repeat, or moved by them as the conversation grows; no part of what is asked.
_ANNOTATIONS: Final = frozenset({"cache_control", "internal_chat_message_metadata_passthrough"})
# Claude Code 2.1.332, measured (tests/golden/claude_code.json): the user message after the blocks that it repeats.
_CUT_OFF: Final = "<system-reminder>\nYour response above was cut off mid-stream."


@dataclass(frozen=True, slots=True)
class Retelling:
    """`repeated`: of what a conversation grew by, the parts of an answer that it repeats, from their first one on, for each
    time that the answer broke off; None where it is anything else.
    """

    conversation: str  # the field of the body that holds it
    repeated: Callable[[list[Any]], list[list[Any]] | None]
    parts: Callable[[bytes], list[Any]]  # of a decoded stream, cut or not: what of it came whole
    after: Callable[[bytes, int], bytes]  # the stream for a client that has so many of its parts


def told(retelling: Retelling, earlier: dict[str, Any], later: dict[str, Any], parts: list[Any]) -> int | None:
    """How many of the `parts` of the answer to `earlier` are repeated by `later`, which else asks the same; None: it does not."""
    try:
        return _told(retelling, _plain(earlier), _plain(later), parts)
    except RecursionError:
        return None


def may_tell(retelling: Retelling, document: dict[str, Any]) -> bool:
    """Whether it can be such a retry at all, by its own words: comparing takes earlier requests and answers from the record."""
    conversation = document.get(retelling.conversation)
    if not isinstance(conversation, list) or not conversation:
        return False
    try:
        return retelling.repeated(_plain(conversation[-1:])) is not None
    except RecursionError:
        return False


def _told(retelling: Retelling, earlier: dict[str, Any], later: dict[str, Any], parts: list[Any]) -> int | None:
    before, now = earlier.pop(retelling.conversation, None), later.pop(retelling.conversation, None)
    if not isinstance(before, list) or not isinstance(now, list) or earlier != later or now[: len(before)] != before:
        return None
    repeated = retelling.repeated(now[len(before) :])
    if repeated is None or not all(len(run) <= len(parts) and all(map(_repeats, run, parts)) for run in repeated):
        return None
    return max(map(len, repeated), default=0)


def _plain(value: Any) -> Any:
    """Without annotations, and text content in its long form: Claude Code writes either, as its cache marks move."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {name: _plain(item) for name, item in value.items() if name not in _ANNOTATIONS}
    if "role" in plain and isinstance(plain.get("content"), str):
        plain["content"] = [{"type": "text", "text": plain["content"]}]
    return plain


def _repeats(told_part: Any, part: Any) -> bool:
    """Clients leave out fields of what they repeat, write null for others, give an id to what has none, and change nothing."""
    if isinstance(told_part, dict):
        return isinstance(part, dict) and all(
            _repeats(value, part[name]) if name in part else value is None or name == "id"
            for name, value in told_part.items()
        )
    if isinstance(told_part, list):
        return isinstance(part, list) and len(told_part) == len(part) and all(map(_repeats, told_part, part))
    return bool(told_part == part)


def _codex_repeated(grown: list[Any]) -> list[list[Any]] | None:
    """Items as they came, over several breaks one after another. With a tool's output behind them the answer was acted on, and this is what follows from it."""
    made_here = {"user", "developer", "system"}
    are_items = all(
        isinstance(item, dict)
        and not str(item.get("type", "")).endswith("_output")
        and item.get("role") not in made_here
        for item in grown
    )
    return [grown] if are_items else None


def _claude_code_repeated(grown: list[Any]) -> list[list[Any]] | None:
    """For each break the blocks that came whole, as a message of the assistant, if there were any; then the reminder."""
    runs: list[list[Any]] = []
    while grown:
        match grown:
            case [{"role": "assistant", "content": list(blocks)}, *rest]:
                runs.append(blocks)
            case rest:
                runs.append([])
        match rest:
            case [{"role": "user", "content": [{"text": str(remark)}]}, *grown] if remark.startswith(_CUT_OFF):
                continue
            case _:
                return None
    return runs


CODEX_RETELLS: Final = Retelling(
    "input", _codex_repeated, parts=openai_responses.items_of, after=openai_responses.after_items
)
# It takes the answer from its beginning, as it would take another one: its blocks have no ids.
CLAUDE_CODE_RETELLS: Final = Retelling(
    "messages", _claude_code_repeated, parts=anthropic_messages.blocks_of, after=lambda stream, _: stream
)
