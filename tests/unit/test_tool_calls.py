"""The tool calls of an answer, in every dialect and form: id, name, and one digest for one meaning; what broke off is none."""

import json
from typing import Any

import pytest
from blake3 import blake3

from ledger.events import ToolCall
from ledger.ids import Digest
from proxy.dialects.anthropic_messages import AnthropicMessages
from proxy.dialects.base import Dialect
from proxy.dialects.gemini import Gemini
from proxy.dialects.generic import Generic
from proxy.dialects.openai_chat import OpenAIChat
from proxy.dialects.openai_responses import OpenAIResponses
from proxy.dialects.tool_calls import TOOL_CALLS_LIMIT, tool_calls

JSON = ((b"content-type", b"application/json"),)
SSE = ((b"content-type", b"text/event-stream"),)
ARGUMENTS = {"b": 1, "a": "x"}
CALL = ToolCall("call_1", "look", Digest(blake3(b'{"a":"x","b":1}').hexdigest()))


def events(*documents: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in documents)


def fragment(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": more["name"]} if "name" in more else {})}
    call = {"index": index, "function": function, **({"id": more["id"]} if "id" in more else {})}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}


CHAT = {"function": {"name": "look", "arguments": '{"b": 1, "a": "x"}'}, "id": "call_1", "type": "function"}
ITEM = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"b":1,"a":"x"}'}
BLOCK = {"type": "tool_use", "id": "call_1", "name": "look", "input": ARGUMENTS}
START = {"type": "message_start", "message": {"type": "message", "content": []}}
BLOCK_STARTS = {"type": "content_block_start", "index": 0, "content_block": {**BLOCK, "input": {}}}


def delta(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text}}


WHOLE: list[tuple[Dialect, Any, bytes]] = [
    (OpenAIChat(), JSON, json.dumps({"choices": [{"index": 0, "message": {"tool_calls": [CHAT]}}]}).encode()),
    (
        OpenAIChat(),
        SSE,
        events(fragment(0, '{"b": 1,', id="call_1", name="look"), fragment(0, ' "a": "x"}')) + b"data: [DONE]\n\n",
    ),
    (OpenAIResponses(), JSON, json.dumps({"object": "response", "status": "completed", "output": [ITEM]}).encode()),
    (
        OpenAIResponses(),
        SSE,
        events(
            {"type": "response.output_item.done", "item": ITEM},
            {"type": "response.completed", "response": {"object": "response", "status": "completed", "output": [ITEM]}},
        ),
    ),
    (AnthropicMessages(), JSON, json.dumps({"type": "message", "content": [BLOCK]}).encode()),
    (
        AnthropicMessages(),
        SSE,
        events(
            START, BLOCK_STARTS, delta('{"b": 1, "a"'), delta(': "x"}'),
            {"type": "content_block_stop", "index": 0}, {"type": "message_stop"},
        ),
    ),
    (
        Gemini(),
        JSON,
        json.dumps(
            {"candidates": [{"content": {"parts": [{"functionCall": {"id": "call_1", "name": "look", "args": ARGUMENTS}}]}, "finishReason": "STOP"}]}
        ).encode(),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "headers", "body"), WHOLE, ids=lambda each: getattr(each, "name", None))
def test_tool_call_is_read_in_every_dialect_and_form(dialect: Dialect, headers: Any, body: bytes) -> None:
    """The same call, however it is written."""
    assert dialect.interpret(200, headers, body).tool_calls == (CALL,)


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (OpenAIChat(), events(fragment(0, '{"b": 1,', id="call_1", name="look"))),
        (OpenAIChat(), events(fragment(0, "", id="call_1", name="look"))),
        (OpenAIResponses(), events({"type": "response.output_item.added", "item": {**ITEM, "arguments": ""}})),
        (AnthropicMessages(), events(START, BLOCK_STARTS, delta('{"b": 1'))),
        (Generic(), events({"tool_calls": [CHAT]})),
    ],
)
def test_tool_call_that_broke_off_is_none(dialect: Dialect, body: bytes) -> None:
    """It could not be run from what came."""
    assert dialect.interpret(200, SSE, body).tool_calls == ()


def test_two_tool_calls_of_a_cut_stream_are_told_apart() -> None:
    """The first is whole, the second is not."""
    stream = events(fragment(0, "{}", id="a", name="one"), fragment(1, '{"x"', id="b", name="two"))
    assert [call.id for call in OpenAIChat().interpret(200, SSE, stream).tool_calls] == ["a"]


@pytest.mark.parametrize(
    ("dialect", "request_body", "ids"),
    [
        (OpenAIChat(), {"messages": [{"role": "tool", "tool_call_id": "a"}, {"role": "user"}, "x"]}, {"a"}),
        (OpenAIResponses(), {"input": [{"type": "function_call_output", "call_id": "a"}, {"type": "message"}]}, {"a"}),
        (OpenAIResponses(), {"input": "words"}, set()),
        (
            AnthropicMessages(),
            {"messages": [{"content": [{"type": "tool_result", "tool_use_id": "a"}]}, {"content": "x"}]},
            {"a"},
        ),
        (
            Gemini(),
            {"contents": [{"parts": [{"functionResponse": {"id": "a", "name": "look"}}, {"text": "x"}]}]},
            {"a"},
        ),
        (Generic(), {"messages": [{"role": "tool", "tool_call_id": "a"}]}, set()),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_results_of_a_request_name_their_calls(dialect: Dialect, request_body: Any, ids: set[str]) -> None:
    """By the id that the answer gave the call."""
    assert dialect.tool_results(json.dumps(request_body).encode()) == ids
    assert dialect.tool_results(b"no json") == frozenset()


def test_hostile_tool_calls_stay_small_and_readable() -> None:
    """Names without text, ids without end, more of them than anybody runs: an event holds what it can."""
    found = tool_calls([(7, None, {}), ("x" * 1000, "n" * 1000, "{"), ("\ud800", "a", "text"), *[("i", "n", {})] * 999])
    assert len(found) == TOOL_CALLS_LIMIT
    assert (found[0].id, found[0].name) == ("?", "a")
