"""Realistic event streams of the providers, and the small parts to build others from."""

import json
from typing import Any

DONE = b"data: [DONE]\n\n"


def chunk(*choices: dict[str, Any], **more: Any) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5.5", "usage": None}
    return b"data: " + json.dumps(head | {"choices": choices} | more).encode() + b"\n\n"


def delta(index: int = 0, finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"index": index, "delta": fields, "logprobs": None, "finish_reason": finish_reason}


def call(index: int, arguments: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": arguments, **fields.pop("function", {})}, **fields}


USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 4, "x": None},
}
CHAT_STREAM = (
    chunk(delta(role="assistant", content="", refusal=None), obfuscation="abc")
    + b": OPENROUTER PROCESSING\n\n"
    + chunk(delta(content="Hel"))
    + chunk(delta(1, role="assistant", content="Bye"))
    + chunk(delta(content="lo"))
    + chunk(delta(finish_reason="stop"), delta(1, finish_reason="length"))
    + chunk(usage=USAGE)
    + DONE
)
TOOL_STREAM = (
    chunk(delta(role="assistant", content=None))
    + chunk(delta(tool_calls=[call(0, "", id="call_a", type="function", function={"name": "f"})]))
    + chunk(delta(tool_calls=[call(0, '{"x"')]))
    + chunk(delta(tool_calls=[call(1, "", id="call_b", type="function", function={"name": "g"})]))
    + chunk(delta(tool_calls=[call(0, ": 1}"), call(1, "{}")]))
    + chunk(delta(finish_reason="tool_calls"))
    + DONE
)


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + json.dumps({"type": kind, **fields}).encode() + b"\n\n"


START = event(
    "message_start",
    message={
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "output_tokens": 1,
            "cache_read_input_tokens": 7,
            "cache_creation": {"ephemeral_1h_input_tokens": 2, "ephemeral_5m_input_tokens": 0},
        },
    },
)
BLOCKS = (
    event("content_block_start", index=0, content_block={"type": "thinking", "thinking": "", "signature": ""})
    + event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "Hm"})
    + event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "m"})
    + event("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "c2ln"})
    + event("content_block_stop", index=0)
    + event("ping")
    + event("content_block_start", index=1, content_block={"type": "text", "text": ""})
    + event("content_block_delta", index=1, delta={"type": "text_delta", "text": "say message_"})
    + event("content_block_delta", index=1, delta={"type": "text_delta", "text": "stop"})
    + event("content_block_stop", index=1)
    + event(
        "content_block_start", index=2, content_block={"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    )
    + event("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": ""})
    + event(
        "content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": '{"n": 123456789012345678'}
    )
    + event("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": "901234}"})
    + event("content_block_stop", index=2)
    + event(
        "content_block_start", index=3, content_block={"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}}
    )
    + event("content_block_stop", index=3)
)
STOPPED = event(
    "message_delta",
    delta={"stop_reason": "tool_use", "stop_sequence": None},
    usage={"output_tokens": 42, "input_tokens": None},
)
STOP = event("message_stop")
MESSAGE_STREAM = START + BLOCKS + STOPPED + STOP
OVERLOADED = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
