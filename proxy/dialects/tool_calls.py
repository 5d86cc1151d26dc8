"""The tool calls of an answer, as facts: what a client was given to run."""

import json
from collections.abc import Iterable
from itertools import islice
from typing import Final

from blake3 import blake3

from ledger.events import ToolCall
from ledger.ids import Digest
from proxy.dialects.base import ID_LIMIT_BYTES, parsed, text

TOOL_CALLS_LIMIT: Final = 256  # of one answer, kept in its event; seen: below 20

Named = tuple[object, object, object]  # id, name, arguments: JSON text, any text, or the JSON itself


def tool_calls(found: Iterable[Named], *, ended: bool = True) -> tuple[ToolCall, ...]:
    """Those that are whole, in order. In an answer that did not end, only JSON shows that it is all there."""
    return tuple(islice((call for one in found if (call := _call(*one, ended)) is not None), TOOL_CALLS_LIMIT))


def _call(call_id: object, name: object, arguments: object, ended: bool) -> ToolCall | None:
    named, shown, given = text(name), text(call_id), text(arguments)
    document = arguments if given is None else parsed(given.encode())
    broken_off = document is None and (not ended or (given or "").lstrip()[:1] in ("{", "["))
    if not named or broken_off:
        return None
    canonical = given or ""
    if document is not None:
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    kept = shown if shown and len(shown) <= ID_LIMIT_BYTES else None
    return ToolCall(kept, named[:ID_LIMIT_BYTES], Digest(blake3(canonical.encode()).hexdigest()))
