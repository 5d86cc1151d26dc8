"""OpenAI chat completions, and the many that copy them. Facts: research/providers.md section 5; openai 3.57 types/chat."""

import json
from collections.abc import Iterator
from typing import Any

from proxy.dialects import base
from proxy.dialects.base import Findings, Outcome, Reading, RequestFacts, TerminalEvidence
from proxy.dialects.tool_calls import tool_calls
from proxy.effects import PLAIN, UpstreamTraits
from proxy.endpoints import Family
from proxy.headers import RawHeaders
from proxy.sse import Item

VERSION = 2

_DONE = b"[DONE]"


class OpenAIChat:
    name = "openai_chat"
    version = VERSION
    ends_by_type = True
    family = Family.OPENAI

    def read_request(self, target: str, body: bytes) -> RequestFacts:  # noqa: ARG002 - the protocol's name
        request = base.parsed_object(body)
        limit = base.positive(request.get("max_completion_tokens"))
        return RequestFacts(
            model=base.text(request.get("model")),
            stream=request.get("stream") is True,
            max_output_tokens=base.positive(request.get("max_tokens")) if limit is None else limit,
        )

    def is_terminal(self, event: bytes) -> bool:
        # Asked of every event of every stream: look before parsing.
        return (_DONE in event or b'"error"' in event) and _has_end(event)

    def item_done(self, event: bytes) -> Item | None:  # noqa: ARG002 - the protocol's name
        return None

    def evidence(
        self, status: int, headers: RawHeaders, body: bytes, traits: UpstreamTraits = PLAIN
    ) -> TerminalEvidence:
        return base.evidence(status, headers, body, traits, _has_end)

    def interpret(self, status: int, headers: RawHeaders, body: bytes, traits: UpstreamTraits = PLAIN) -> Reading:
        return base.read_whole(VERSION, _findings, status, headers, body, traits)

    def tool_results(self, body: bytes) -> frozenset[str]:
        messages = base.objects(base.parsed_object(body).get("messages"))
        return base.ids(message.get("tool_call_id") for message in messages if message.get("role") == "tool")

    def error_event(self, code: str, sentence: str) -> bytes:
        # research/clients.md section 5: raised with our text by every client, if there is no `event:` line.
        error = {"message": sentence, "type": "invalid_request_error", "code": code, "param": None}
        return b"data: " + json.dumps({"error": error}).encode("ascii") + b"\n\n"

    def sse_to_json(self, body: bytes) -> bytes | None:
        return base.rendered(_completion, body)


def _has_end(stream: bytes) -> bool:
    return any(_ends(item.data) for item in base.stream_events(stream))


def _ends(data: bytes) -> bool:
    return data.strip().startswith(_DONE) or (b'"error"' in data and bool(base.parsed_object(data).get("error")))


# --- reading ---


def _findings(data: bytes, is_stream: bool) -> Findings:
    """One loop for both forms: a completion is a stream of one chunk whose end is its own."""
    documents = list(base.data_objects(data)) if is_stream else [base.parsed_object(data)]
    usage: dict[str, int] = {}
    ids: dict[str, str] = {}
    finish_reason = model = error = tier = None
    has_choices = False
    for document in documents:
        usage |= base.flat_usage(document.get("usage"))
        ids |= base.body_ids(id=document.get("id"))
        model = base.text(document.get("model")) or model
        tier = base.text(document.get("service_tier")) or tier
        if document.get("error"):
            error = base.envelope_error(document) or "error"
        for choice in document.get("choices") or ():
            has_choices = True
            finish_reason = base.text(choice.get("finish_reason")) or finish_reason
    if error is not None:
        outcome = Outcome.IN_BAND_ERROR
    elif is_stream and not any(item.data.strip().startswith(_DONE) for item in base.stream_events(data)):
        outcome = Outcome.INCOMPLETE if documents else Outcome.EMPTY
    elif has_choices:
        outcome = Outcome.SUCCEEDED
    else:
        outcome = Outcome.UNINTERPRETABLE if data and not is_stream and not documents[0] else Outcome.EMPTY
    return Findings(
        outcome=outcome,
        finish_reason=finish_reason,
        usage=usage or None,
        provider_ids=ids,
        model=model,
        error=error,
        service_tier=tier,
        tool_calls=tool_calls(_calls(documents), ended=outcome is not Outcome.INCOMPLETE),
    )


def _calls(documents: list[dict[str, Any]]) -> Iterator[tuple[object, object, object]]:
    """Of each choice; in a stream put together from its fragments. The first fragment has id and name."""
    calls: dict[tuple[object, object], dict[str, Any]] = {}
    for document in documents:
        for choice in base.objects(document.get("choices")):
            said = choice.get("message") or choice.get("delta")
            said = said if isinstance(said, dict) else {}
            legacy = said.get("function_call")  # it has no id
            listed = base.objects(said.get("tool_calls")) + (
                [{"function": legacy, "index": "legacy"}] if legacy else []
            )
            for place, part in enumerate(listed):
                about = part.get("function") or part.get("custom")
                about = about if isinstance(about, dict) else {}
                call = calls.setdefault((str(choice.get("index")), str(part.get("index", place))), {"arguments": ""})
                call["id"] = part.get("id") or call.get("id")
                call["name"] = about.get("name") or call.get("name")
                call["arguments"] += base.text(about.get("arguments")) or base.text(about.get("input")) or ""
    yield from ((call["id"], call["name"], call["arguments"]) for call in calls.values())


# --- stream to JSON ---

# What is known of a chunk, by how it adds up. A field that is not known makes the rendering inexact, hence impossible.
_CHUNK_LAST = ("id", "created", "model", "service_tier", "system_fingerprint", "usage", "moderation", "provider")
_CHUNK_IGNORED = frozenset({"object", "choices", "obfuscation"})  # obfuscation pads stream chunks only
_CHOICE_LAST = ("finish_reason", "native_finish_reason")
_DELTA_JOINED_TEXT = ("content", "refusal", "reasoning_content", "reasoning")
_DELTA_JOINED_LISTS = ("annotations",)


def _completion(body: bytes) -> dict[str, Any]:
    completion: dict[str, Any] = {"id": None, "object": "chat.completion", "created": None, "model": None}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in _chunks(body):
        _only_known(chunk, *_CHUNK_LAST, *_CHUNK_IGNORED)
        completion |= {name: chunk[name] for name in _CHUNK_LAST if chunk.get(name) is not None}
        for part in chunk.get("choices") or ():
            _add_choice(choices.setdefault(part["index"], _empty_choice(part["index"])), part)
    if not choices or any(choice["finish_reason"] is None for choice in choices.values()):
        raise base.InexactError("a choice did not finish")
    completion["choices"] = [_finished(choices[index]) for index in sorted(choices)]
    return completion


def _chunks(body: bytes) -> Iterator[dict[str, Any]]:
    for event in base.stream_events(body):
        if event.data.strip() == _DONE:
            return
        chunk = json.loads(event.data)
        if chunk.get("error"):
            raise base.InexactError("an error is no completion")
        yield chunk
    raise base.InexactError("no terminal event")


def _only_known(document: dict[str, Any], *names: str) -> None:
    if unknown := [name for name, value in document.items() if value is not None and name not in names]:
        raise base.InexactError(f"unknown fields {unknown}")


def _empty_choice(index: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": None, "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": None}


def _add_choice(choice: dict[str, Any], part: dict[str, Any]) -> None:
    _only_known(part, "index", "delta", "logprobs", *_CHOICE_LAST)
    choice |= {name: part[name] for name in _CHOICE_LAST if part.get(name) is not None}
    if logprobs := part.get("logprobs"):
        choice["logprobs"] = _joined_lists(choice["logprobs"] or {}, logprobs, ("content", "refusal"))
    delta, message = part.get("delta") or {}, choice["message"]
    _only_known(delta, "role", "tool_calls", "function_call", *_DELTA_JOINED_TEXT, *_DELTA_JOINED_LISTS)
    message["role"] = delta.get("role") or message["role"]
    for name in _DELTA_JOINED_TEXT:
        if delta.get(name) is not None:
            message[name] = (message.get(name) or "") + delta[name]
    _joined_lists(message, {name: delta.get(name) for name in _DELTA_JOINED_LISTS}, _DELTA_JOINED_LISTS)
    for fragment in delta.get("tool_calls") or ():
        calls = message.setdefault("tool_calls", {})
        _add_call(calls.setdefault(fragment["index"], {}), {k: v for k, v in fragment.items() if k != "index"})
    if delta.get("function_call"):
        _add_call(message.setdefault("function_call", {}), delta["function_call"])


def _joined_lists(into: dict[str, Any], part: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    _only_known(part, *names)
    for name in names:
        if part.get(name) is not None:
            into[name] = (into.get(name) or []) + part[name]
    return into


def _add_call(call: dict[str, Any], fragment: dict[str, Any]) -> None:
    """Add a fragment of a tool call: its input grows, whatever else it says must stay the same."""
    for name, value in fragment.items():
        if value is None:
            continue
        if name in ("function", "custom"):
            _add_call(call.setdefault(name, {}), value)
        elif name in ("arguments", "input"):
            call[name] = call.get(name, "") + value
        elif name not in ("id", "type", "name") or call.setdefault(name, value) != value:
            raise base.InexactError(f"the tool call's {name} is unknown or changed")


def _finished(choice: dict[str, Any]) -> dict[str, Any]:
    calls = choice["message"].get("tool_calls")
    if calls is not None:
        choice["message"]["tool_calls"] = [calls[index] for index in sorted(calls)]
    return choice
