"""OpenAI Responses. Facts: research/providers.md section 5; openai 3.57 types/responses; what Codex reads: clients.md section 3."""

import json
import re
from dataclasses import replace
from typing import Any, Final

from proxy.codes import Code
from proxy.dialects import base
from proxy.dialects.base import Findings, Outcome, Reading, RequestFacts, TerminalEvidence
from proxy.dialects.tool_calls import tool_calls
from proxy.effects import PLAIN, UpstreamTraits
from proxy.endpoints import Family
from proxy.headers import RawHeaders
from proxy.sse import Event, Item

VERSION = 2

_RESPONSE_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_ENDS: Final = _RESPONSE_ENDS | {"error"}
_END_WORDS: Final = tuple(kind.encode() for kind in sorted(_ENDS))
_ITEM_DONE: Final = "response.output_item.done"
# Items that leave nothing for the client to run: words, and calls that the provider runs itself (providers.md section 8).
# Every other item, a new one too, is taken for a tool call.
_ITEMS_NOT_RUN: Final = frozenset({
    "message", "reasoning", "compaction", "web_search_call", "file_search_call", "code_interpreter_call",
    "image_generation_call", "mcp_call", "mcp_list_tools",
})  # fmt: skip

# A long event's beginning does not parse. Inside of a string the quotes would be escaped.
_TYPE_IN: Final = re.compile(rb'"type"\s*:\s*"(response\.[a-z_.]+)"')
_ITEM_TYPE_IN: Final = re.compile(rb'"item"\s*:\s*\{.*?"type"\s*:\s*"([a-z_]+)"', re.DOTALL)

# The proxy does not count events: its own one gets a number above any that came before, within 32 bits for strict parsers.
_LAST_SEQUENCE_NUMBER: Final = 2**31 - 1


class OpenAIResponses:
    name = "openai_responses"
    version = VERSION
    ends_by_type = True
    family = Family.OPENAI

    def read_request(self, target: str, body: bytes) -> RequestFacts:  # noqa: ARG002 - the protocol's name
        request = base.parsed_object(body)
        return RequestFacts(
            model=base.text(request.get("model")),
            stream=request.get("stream") is True,
            max_output_tokens=base.positive(request.get("max_output_tokens")),
            background=request.get("background") is True,
        )

    def is_terminal(self, event: bytes) -> bool:
        # Asked of every event of every stream: look before parsing.
        return _may_end(event) and any(
            not _ENDS.isdisjoint(_kinds(item, base.parsed_object(item.data))) for item in base.stream_events(event)
        )

    def item_done(self, event: bytes) -> Item | None:
        if _ITEM_DONE.encode() not in event and b'"response.' in event:
            return None  # it names its type, and that is another one
        for item in base.stream_events(event):
            document = base.parsed_object(item.data)
            kinds = _kinds(item, document)
            if _ITEM_DONE in kinds or (not kinds and item.data.startswith(b"{")):
                return Item.OTHER if _item_type(item, document) in _ITEMS_NOT_RUN else Item.TOOL
        return None

    def evidence(
        self, status: int, headers: RawHeaders, body: bytes, traits: UpstreamTraits = PLAIN
    ) -> TerminalEvidence:
        return base.evidence(status, headers, body, traits, _has_end)

    def interpret(self, status: int, headers: RawHeaders, body: bytes, traits: UpstreamTraits = PLAIN) -> Reading:
        return base.read_whole(VERSION, _findings, status, headers, body, traits)

    def tool_results(self, body: bytes) -> frozenset[str]:
        items = base.objects(base.parsed_object(body).get("input"))
        return base.ids(item.get("call_id") for item in items if str(item.get("type")).endswith("_output"))

    def error_event(self, code: str, sentence: str) -> bytes:
        """Codex, pydantic-ai and the AI SDK stop at once at `invalid_prompt` and show the sentence (clients.md section 7). Where a
        setting accepts a second effect they may ask again, as after any `server_error`.
        """
        word = "server_error" if code == Code.UPSTREAM_LOST else "invalid_prompt"
        error = {"code": word, "message": sentence, "type": code, "param": None}
        document = {
            "type": "response.failed",
            "sequence_number": _LAST_SEQUENCE_NUMBER,
            "response": _FAILED_RESPONSE | {"error": error},
        }
        return b"event: response.failed\ndata: " + json.dumps(document).encode("ascii") + b"\n\n"

    def sse_to_json(self, body: bytes) -> bytes | None:
        return base.rendered(_response, body)


# Every field that openai's type requires; no id, for there is no such response to be fetched or continued.
_FAILED_RESPONSE: Final[dict[str, Any]] = {
    "id": "",
    "object": "response",
    "created_at": 0,
    "status": "failed",
    "incomplete_details": None,
    "instructions": None,
    "metadata": None,
    "model": "",
    "output": [],
    "parallel_tool_calls": False,
    "tool_choice": "auto",
    "tools": [],
    "usage": None,
}


# --- events ---


def _may_end(event: bytes) -> bool:
    return any(word in event for word in _END_WORDS)


def _kinds(event: Event, document: dict[str, Any]) -> set[str]:
    """What an event calls itself. Without a document (a long event's beginning): by its name, else by the first type in it."""
    kinds = {event.name.decode("latin-1")} - {""}
    if document:
        kinds.add(base.text(document.get("type")) or "")
        if document.get("error"):  # Azure and gateways wrap the error, with or without a type
            kinds.add("error")
    elif not kinds and (found := _TYPE_IN.search(event.data)):
        kinds.add(found[1].decode())
    return kinds


def _item_type(event: Event, document: dict[str, Any]) -> str | None:
    if document:
        item = document.get("item")
        return base.text(item.get("type")) if isinstance(item, dict) else None
    found = _ITEM_TYPE_IN.search(event.data)
    return found[1].decode() if found else None


def _has_end(stream: bytes) -> bool:
    """An end counts when its whole document is there: `response.completed` repeats the answer and may be cut in the middle."""
    candidates = (event for event in base.stream_events(stream) if _may_end(event.data))
    return any(
        document and not _ENDS.isdisjoint(_kinds(event, document))
        for event in candidates
        for document in (base.parsed_object(event.data),)
    )


# --- reading ---


def _findings(data: bytes, is_stream: bool) -> Findings:
    return _stream_findings(data) if is_stream else _response_findings(base.parsed_object(data), data)


def _response_findings(response: dict[str, Any], data: bytes) -> Findings:
    error = base.envelope_error(response)
    if error is None and response.get("object") != "response":
        return Findings(outcome=Outcome.UNINTERPRETABLE if data else Outcome.EMPTY)
    return _answer(response, error, base.objects(response.get("output")), has_output=bool(response.get("output")))


def _stream_findings(data: bytes) -> Findings:
    response: dict[str, Any] = {}
    error = None
    has_documents = has_end = False
    done: list[dict[str, Any]] = []
    for document in base.data_objects(data):
        has_documents = True
        kind = base.text(document.get("type"))
        done += base.objects([document.get("item")]) if kind == _ITEM_DONE else []
        if isinstance(document.get("response"), dict):
            response |= document["response"]  # each one is the whole response so far
        if kind in _RESPONSE_ENDS:
            has_end = True
        if kind == "error" or document.get("error"):
            error = base.envelope_error(document) or base.envelope_error({"error": document}) or "error"
    if not has_end and error is None:
        # A `response.created` says that it is in progress, which is no reason to finish.
        answer = _answer(response | {"status": None, "incomplete_details": None}, None, done, has_output=True)
        return replace(answer, outcome=Outcome.INCOMPLETE if has_documents else Outcome.EMPTY)
    items = base.objects(response.get("output")) or done
    return _answer(response, error or base.envelope_error(response), items, has_output=bool(done or items))


def _answer(response: dict[str, Any], error: str | None, items: list[dict[str, Any]], *, has_output: bool) -> Findings:
    """`failed` is the provider's own word for an answer that it could not give; `incomplete` is an answer with its reason."""
    status = base.text(response.get("status"))
    if error is not None or status == "failed":
        outcome, error = Outcome.IN_BAND_ERROR, error or "failed"
    else:
        outcome = Outcome.EMPTY if status == "completed" and not has_output else Outcome.SUCCEEDED
    details = response.get("incomplete_details")
    reason = base.text(details.get("reason")) if isinstance(details, dict) else None
    return Findings(
        outcome=outcome,
        finish_reason=reason or status,
        usage=base.flat_usage(response.get("usage")) or None,
        provider_ids=base.body_ids(id=response.get("id")),
        model=base.text(response.get("model")),
        error=error,
        service_tier=base.text(response.get("service_tier")),
        tool_calls=tool_calls(map(_call, (item for item in items if item.get("type") not in _ITEMS_NOT_RUN))),
    )


def _call(item: dict[str, Any]) -> tuple[object, object, object]:
    """Its result names the call's `call_id`, not the item's own id (providers.md section 8). A call without a name has its type's."""
    arguments = next((item[name] for name in ("arguments", "input", "action") if item.get(name) is not None), "")
    return item.get("call_id") or item.get("id"), item.get("name") or item.get("type"), arguments


# --- stream to JSON ---


def _response(body: bytes) -> dict[str, Any]:
    """The terminal event's `response` and the non-stream answer are one type (openai types/responses/response.py).

    Some servers leave its output out; then what the items said is not in it, and it is not that answer.
    """
    done: dict[int, dict[str, Any]] = {}
    for event in base.stream_events(body):
        document = json.loads(event.data)
        kind = document["type"]
        if kind == _ITEM_DONE:
            done[document["output_index"]] = document["item"]
        elif kind in {"response.completed", "response.incomplete"}:
            response: dict[str, Any] = document["response"]
            if response["object"] != "response" or "response." + response["status"] != kind:
                raise base.InexactError("the response contradicts its event")
            if _names(response["output"]) != _names([done[index] for index in sorted(done)]):
                raise base.InexactError("the response is without its items")
            return response
        elif kind in _ENDS:
            raise base.InexactError("an error is no response")
    raise base.InexactError("no terminal event")


# --- a stream that broke off ---


def items_of(stream: bytes) -> list[Any]:
    """The items that a client has whole when it has got so much of a decoded stream, in the order in which they came."""
    return [document.get("item") for document in base.data_objects(stream) if document.get("type") == _ITEM_DONE]


def after_items(stream: bytes, count: int) -> bytes:
    """The decoded stream for a client that has `count` of its items: given twice, they would stand twice in its next request,
    with one id.
    """
    done = [document for document in base.data_objects(stream) if document.get("type") == _ITEM_DONE]
    given = [document.get("output_index") for document in done[:count]]
    events = base.stream_events(stream)
    left = (event for event in events if base.parsed_object(event.data).get("output_index", _NO_ITEM) not in given)
    return b"".join(event.written() for event in left)


_NO_ITEM: Final = object()


def _names(items: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    return [(item["type"], item.get("id")) for item in items]
