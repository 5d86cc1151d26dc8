"""What a request may become at its provider: whatever is not known to be harmless counts as more than its bytes."""

import json
from typing import Any

import pytest

from proxy.audit.asking import ALLOWANCE_TOKENS, asking
from tests.harness.bills import body

URL = "https://example.com/a.png"
INLINE = "data:image/png;base64,AAAA"


def said(*parts: Any) -> list[Any]:
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "f", "parameters": {"properties": {"url": {"type": "string"}}}},
                }
            ]
        },
        {"tools": [{"name": "f", "input_schema": {"type": "object"}}], "cache_control": {"type": "ephemeral"}},
        {
            "input": [
                {"type": "reasoning", "encrypted_content": "AAAA", "summary": []},
                {"type": "function_call", "arguments": "{}"},
            ]
        },
        {"messages": said({"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}})},
        {"messages": said({"type": "tool_use", "name": "f", "id": "1", "input": {"url": URL, "type": "image"}})},
        {"contents": [{"parts": [{"functionCall": {"name": "f", "args": {"file_id": "x"}}}, {"text": "x"}]}]},
        {"previous_response_id": None, "metadata": {"file_id": "mine"}},
    ],
)
def test_request_that_holds_all_it_says_is_bounded_by_its_bytes(fields: dict[str, Any]) -> None:
    """Tool schemas, calls of tools and the client's own notes may name URLs: nobody fetches them."""
    found = asking(body(**fields))
    assert (found.beyond, found.media, found.loops) == (None, None, None)
    assert found.input_tokens == len(body(**fields)) + ALLOWANCE_TOKENS


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"cachedContent": "cachedContents/1"},
        {"container": "c_1"},
        {"thread": {"type": "continue"}},
        {"prompt": {"id": "pmpt_1"}},
        {"a_field_of_tomorrow": 1},
        {"messages": said({"type": "image_url", "image_url": {"url": URL}})},
        {"messages": said({"type": "input_image", "image_url": URL})},
        {"messages": said({"type": "image", "source": {"type": "url", "url": URL}})},
        {"messages": said({"type": "document", "source": {"type": "file", "file_id": "file_1"}})},
        {
            "messages": said(
                {"type": "tool_result", "content": [{"type": "image", "source": {"type": "url", "url": URL}}]}
            )
        },
        {"messages": said({"type": "web_search_tool_result", "content": []})},
        {"messages": said({"type": "a_part_of_tomorrow"})},
        {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"contents": [{"parts": [{"fileData": {"fileUri": URL}}]}]},
    ],
)
def test_request_that_names_something_kept_elsewhere_is_not(fields: dict[str, Any]) -> None:
    """Its input may be as long as the model can take, however short the request is."""
    assert asking(body(**fields)).beyond is not None


@pytest.mark.parametrize("data", [b"", b"[1]", b"\xff", b"--boundary\r\n", b'{"a":' * 5000])
def test_body_that_is_no_json_object_bounds_nothing(data: bytes) -> None:
    """A form, a truncated body, nonsense: never an error, never a bound."""
    assert asking(data).beyond == "the body is no JSON object"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": INLINE}},
        {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
    ],
)
def test_image_in_the_request_is_not_counted_by_its_bytes(part: dict[str, Any]) -> None:
    """A tiny file can be a picture of a thousand tokens; the same bytes again are the same tokens, though."""
    found = asking(body(messages=said(part)))
    assert (found.beyond, found.media is not None) == (None, True)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "function", "name": "f"}, {"type": "code_interpreter", "container": {"type": "auto"}}]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 2}]},
        {"tools": [{"googleSearch": {}}]},
        {"tools": [{"type": "mcp", "server_url": URL}]},
        {"mcp_servers": [{"url": URL}]},
        {"web_search_options": {"a": 1}},
        {"models": ["a", "b"]},
        {"tools": ["nonsense"]},
        {"prompt": {"id": "pmpt_1"}},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}, {"type": "compact_20260112"}]}},
        {"context_management": [{"type": "compaction", "compact_threshold": 1000}]},
        {"context_management": {"edits": ["nonsense"]}},
    ],
)
def test_tool_that_the_provider_runs_bounds_nothing(fields: dict[str, Any]) -> None:
    """Each round has an input of its own, and nobody counts the rounds beforehand."""
    assert asking(body(**fields)).loops is not None


def test_context_that_is_only_cleared_is_one_request() -> None:
    """Claude Code asks for that in each of its requests; nothing is summed up by a model."""
    found = asking(body(context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}))
    assert (found.loops, found.beyond) == (None, "the request has the field context_management")


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"n": 2, "best_of": 5}, 5),
        ({"generationConfig": {"candidateCount": 4}}, 4),
        ({"prompt": ["a", "b"], "n": 2}, 4),
        ({"prompt": [1, 2, 3]}, 1),
        ({"n": "many"}, 1),
        ({"n": -1}, 1),
        ({"n": True}, 1),
    ],
)
def test_several_answers_multiply_the_output(fields: dict[str, Any], answers: int) -> None:
    """Each may use up the limit."""
    assert asking(body(**fields)).answers == answers


def test_request_says_its_tier_its_cache_and_its_prediction() -> None:
    """What makes it dearer."""
    given = body(
        service_tier="priority",
        prediction={"type": "content", "content": "x"},
        tools=[{"type": "bash_20250124", "name": "bash"}],
    )
    found = asking(given)
    assert (found.tier, found.more_output_tokens, found.hour_cache) == ("priority", len(given), False)
    assert found.allowance_tokens > ALLOWANCE_TOKENS
    assert asking(
        body(system=[{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}])
    ).hour_cache


def test_deep_nesting_is_read_to_its_end() -> None:
    """Whoever nests a URL deep enough must not get a small bound for it."""
    nested: Any = {"type": "image_url", "image_url": {"url": URL}}
    for _ in range(400):
        nested = [nested]
    assert asking(json.dumps({"messages": nested}).encode()).beyond is not None
