"""What an upstream's `injection` level adds to a request's body, so that the call can be looked up without a byte of its answer.

Level 0 adds nothing to a body. Level 1 tags what the provider keeps anyway: batches, and chat completions with `store: true`.
Level 2 also has chat completions stored whose client says nothing about it, which changes what the provider keeps. Pure.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from ledger.events import Pairs
from ledger.ids import CallId
from proxy.endpoints import Family
from proxy.reconcile.lookups import TAG

INJECTED_LIMIT_BYTES: Final = (
    1024 * 1024
)  # a larger body is left as it is: parsing it would stall every stream on the loop
METADATA_LIMIT: Final = 16  # pairs, openai/openai-openapi@f85dbe2 Metadata
RECORDED_PREFIX: Final = "body."  # of names in `call.manifest.injected` that are no headers

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Member:
    """Where a value stands in the text of its object, and what it is."""

    start: int
    end: int
    value: Any


def injected(level: int, family: Family, path: str, body: bytes, call: CallId) -> tuple[bytes, Pairs] | None:
    """The body with what is added, every other byte as it was, and what is recorded of it; None: nothing is added."""
    is_chat, is_batch = path.endswith("/chat/completions"), path.endswith("/batches")
    if not level or family is not Family.OPENAI or not (is_chat or is_batch) or len(body) > INJECTED_LIMIT_BYTES:
        return None
    try:
        text = body.decode()
        members = _members(text)
    except (ValueError, RecursionError):
        return None
    stores = members["store"].value if "store" in members else None
    if (tagged := _with_tag(text, members.get("metadata"), call)) is None:
        return None
    if is_batch or stores is True:
        return _with(text, members, {"metadata": tagged}), ((f"{RECORDED_PREFIX}metadata.{TAG}", call),)
    if level < 2 or stores is not None:  # `store: false` is the client's word about what may be kept
        return None
    pairs = ((f"{RECORDED_PREFIX}store", "true"), (f"{RECORDED_PREFIX}metadata.{TAG}", call))
    return _with(text, members, {"store": "true", "metadata": tagged}), pairs


def _with_tag(text: str, metadata: _Member | None, call: CallId) -> str | None:
    """The text of the metadata with the tag in front; None where there is no room for it, or another one's."""
    pair = f'"{TAG}":"{call}"'
    if metadata is None or metadata.value is None:
        return "{" + pair + "}"
    if not isinstance(metadata.value, dict) or TAG in metadata.value or len(metadata.value) >= METADATA_LIMIT:
        return None
    return "{" + pair + ("," if metadata.value else "") + text[metadata.start + 1 : metadata.end]


def _with(text: str, members: dict[str, _Member], values: dict[str, str]) -> bytes:
    """The object with these values instead of its own, or in front of its members; the rest of its text as it was."""
    there = {name: members[name] for name in values if name in members}
    for name in sorted(there, key=lambda name: -there[name].start):
        text = text[: there[name].start] + values[name] + text[there[name].end :]
    new = ",".join(f'"{name}":{value}' for name, value in values.items() if name not in there)
    at = text.index("{") + 1
    return (text[:at] + new + ("," if new and members else "") + text[at:]).encode()


def _members(text: str) -> dict[str, _Member]:
    """The members of the one object that `text` is. Raises ValueError where it is none, or names a member twice."""
    members: dict[str, _Member] = {}
    at = _after(text, _after(text, 0), "{")
    while text[at : at + 1] != "}":
        if members:
            at = _after(text, at, ",")
        name, at = _DECODER.raw_decode(text, at)
        at = _after(text, _after(text, at), ":")
        value, end = _DECODER.raw_decode(text, at)
        if not isinstance(name, str) or name in members:
            raise ValueError(f"the member {name!r} is no single one")
        members[name] = _Member(at, end, value)
        at = _after(text, end)
    if _after(text, at, "}") != len(text):
        raise ValueError("something follows the object")
    return members


def _after(text: str, at: int, mark: str = "") -> int:
    """Behind the mark and the space that follows it. Raises ValueError where another thing stands there."""
    if not text.startswith(mark, at):
        raise ValueError(f"{mark} is missing")
    found = _SPACE.match(text, at + len(mark))
    assert found is not None
    return found.end()
