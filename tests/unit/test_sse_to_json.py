"""A stored stream as the JSON that a client without `stream` asks for: exactly, or not at all."""

import json

import anthropic.types
import openai.types.chat
import pytest

from proxy.dialects.anthropic_messages import AnthropicMessages
from proxy.dialects.base import Dialect
from proxy.dialects.generic import Generic
from proxy.dialects.openai_chat import OpenAIChat
from tests.harness.streams import (
    BLOCKS,
    CHAT_STREAM,
    DONE,
    MESSAGE_STREAM,
    OVERLOADED,
    START,
    STOP,
    STOPPED,
    TOOL_STREAM,
    call,
    chunk,
    delta,
    event,
)

CHAT, MESSAGES, GENERIC = OpenAIChat(), AnthropicMessages(), Generic()


def test_chat_stream_becomes_its_completion() -> None:
    """Choices by index, text joined, usage where the stream has it; openai's own type accepts it."""
    rendered = CHAT.sse_to_json(CHAT_STREAM)
    assert rendered is not None
    completion = openai.types.chat.ChatCompletion.model_validate_json(rendered)
    assert [(c.index, c.message.content, c.finish_reason) for c in completion.choices] == [
        (0, "Hello", "stop"),
        (1, "Bye", "length"),
    ]
    assert completion.usage is not None
    assert completion.usage.total_tokens == 12
    assert (completion.id, completion.model, completion.object) == ("chatcmpl-1", "gpt-5.5", "chat.completion")


def test_chat_tool_calls_are_merged_by_index() -> None:
    """Fragments of parallel calls arrive interleaved."""
    rendered = CHAT.sse_to_json(TOOL_STREAM)
    assert rendered is not None
    message = openai.types.chat.ChatCompletion.model_validate_json(rendered).choices[0].message
    assert json.loads(rendered)["choices"][0]["message"]["tool_calls"] == [
        {"function": {"arguments": '{"x": 1}', "name": "f"}, "id": "call_a", "type": "function"},
        {"function": {"arguments": "{}", "name": "g"}, "id": "call_b", "type": "function"},
    ]
    assert message.content is None
    assert message.tool_calls is not None


def test_message_stream_becomes_its_message() -> None:
    """Blocks joined, tool input parsed, usage of both ends; anthropic's own type accepts it."""
    rendered = MESSAGES.sse_to_json(MESSAGE_STREAM)
    assert rendered is not None
    message = anthropic.types.Message.model_validate_json(rendered)
    assert json.loads(rendered)["content"] == [
        {"type": "thinking", "thinking": "Hmm", "signature": "c2ln"},
        {"type": "text", "text": "say message_stop"},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"n": 123456789012345678901234}},
        {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
    ]
    assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("tool_use", 10, 42)
    as_json = MESSAGES.interpret(200, ((b"content-type", b"application/json"),), rendered)
    as_stream = MESSAGES.interpret(200, ((b"content-type", b"text/event-stream"),), MESSAGE_STREAM)
    assert as_json == as_stream


@pytest.mark.parametrize(
    ("dialect", "stream"),
    [
        (CHAT, CHAT_STREAM.removesuffix(DONE)),
        (CHAT, DONE),
        (CHAT, chunk(delta(content="x")) + DONE),
        (CHAT, chunk(delta(content="x"), error={"message": "m"}) + DONE),
        (CHAT, chunk(delta(audio={"data": ""})) + chunk(delta(finish_reason="stop")) + DONE),
        (CHAT, chunk(delta(content="x", finish_reason="stop"), novel=1) + DONE),
        (CHAT, TOOL_STREAM.replace(DONE, chunk(delta(tool_calls=[call(0, id="other")])) + DONE)),
        (CHAT, b"data: not json\n\n" + DONE),
        (MESSAGES, START + BLOCKS + STOPPED),
        (MESSAGES, START + BLOCKS + STOP),
        (MESSAGES, BLOCKS + STOPPED + STOP),
        (MESSAGES, START + OVERLOADED + STOPPED + STOP),
        (MESSAGES, START + event("novel") + STOPPED + STOP),
        (MESSAGES, MESSAGE_STREAM.replace(b"signature_delta", b"novel_delta")),
        (MESSAGES, MESSAGE_STREAM.replace(b"901234}", b"901234")),
        (
            MESSAGES,
            START + event("content_block_start", index=1, content_block={"type": "text", "text": ""}) + STOPPED + STOP,
        ),
        (GENERIC, CHAT_STREAM),
    ],
)
def test_inexact_stream_is_not_rendered(dialect: Dialect, stream: bytes) -> None:
    """Rather a refusal than an answer that the provider would not have given."""
    assert dialect.sse_to_json(stream) is None
