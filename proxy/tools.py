"""The tool calls that an answer gave its client to run: whether it can have got them, and whether a result came back.

"No result seen" is not "not run": a client may have run a tool and died. What decides is a local fact: a tool call whose last byte
never went to the client cannot have run from this answer.
"""

from typing import Any, Final, Literal

from ledger.calls import CallState
from ledger.events import ToolCall
from ledger.ids import CallId
from ledger.reader import Reader
from proxy import clients
from proxy.dialects import registry
from proxy.dialects.base import Dialect, is_event_stream
from proxy.kept import kept
from proxy.manifest import as_headers

RESULTS_LOOKED_AT: Final = 64  # later requests of the same caller: an agent brings a result with its next one, or soon
Relayed = Literal["yes", "no", "unknown"]


async def tool_rows(reader: Reader, call: CallState) -> list[dict[str, Any]]:
    """One row for each tool call of the newest attempt's answer, in order."""
    found = await _tool_calls(reader, call)
    if not found:
        return []
    seen = await _results(reader, call, {tool.id for tool in found if tool.id is not None})
    relayed = _relayed(call)
    return [
        {
            "id": tool.id,
            "name": tool.name,
            "arguments_blake3": tool.arguments,
            "relayed": relayed,
            "result_in": seen.get(tool.id) if tool.id else None,
        }
        for tool in found
    ]


async def _tool_calls(reader: Reader, call: CallState) -> tuple[ToolCall, ...]:
    """As interpreted; of an answer that broke off, those that are whole in what came of it."""
    attempt = call.attempt
    if attempt is None or attempt.observed is None:
        return ()
    if attempt.interpreted is not None:
        return attempt.interpreted.tool_calls
    observed = attempt.observed
    data = await kept(reader, observed.body)
    if data is None:
        return ()
    return _dialect(call).interpret(observed.status or 0, as_headers(observed.headers), data).tool_calls


def _relayed(call: CallState) -> Relayed:
    """Did the client get the answer up to its last tool call?"""
    observed = call.attempt.observed if call.attempt else None
    if observed is None or observed.observation == "response":
        return "yes" if call.delivered else "unknown"
    headers = as_headers(call.manifest.headers) if call.manifest else ()
    # A document is of no use without its last byte, and that is held until all of it is on record (I2).
    waits = not is_event_stream(as_headers(observed.headers)) or clients.recognise(headers).acts_on_items
    return "no" if waits else "unknown"


async def _results(reader: Reader, call: CallState, ids: set[str]) -> dict[str, CallId]:
    """Tool call -> the first later request that brings its result."""
    seen: dict[str, CallId] = {}
    for later in await reader.later_in_scope(call.scope, call.call, RESULTS_LOOKED_AT):
        body = await kept(reader, later.manifest.body if later.manifest else None) or b""
        for name in _dialect(call).tool_results(body) & ids:
            seen.setdefault(name, later.call)
    return seen


def _dialect(call: CallState) -> Dialect:
    return registry.named(call.requested.dialect if call.requested else "")
