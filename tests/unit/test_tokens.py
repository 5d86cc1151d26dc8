"""Stated usage by class: what stands beside the top level is added, and what cannot be told leaves the whole unstated."""

import json
from typing import Any, Final

import pytest

from proxy.audit.tokens import Tokens, tokens_of
from proxy.dialects.anthropic_messages import AnthropicMessages
from proxy.dialects.generic import Generic

JSON: Final = ((b"content-type", b"application/json"),)
SSE: Final = ((b"content-type", b"text/event-stream"),)
TOP: Final = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 500,
    "cache_read_input_tokens": 4000,
    "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 300},
    "output_tokens": 50,
}
COMPACTION: Final = {
    "type": "compaction",
    "input_tokens": 2000,
    "cache_creation_input_tokens": 30,
    "cache_read_input_tokens": 100,
    "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
    "output_tokens": 700,
}
MESSAGE: Final = TOP | {"type": "message"}
ALONE: Final = Tokens(4510, 50, cached=4000, cache_write=500, cache_write_1h=300)


def whole(*iterations: Any) -> Tokens | None:
    """Of a message with these iterations."""
    return tokens(TOP | {"iterations": list(iterations)})


def tokens(usage: Any) -> Tokens | None:
    message = {"type": "message", "id": "m", "model": "c", "content": [{"type": "text", "text": "x"}], "usage": usage}
    reading = AnthropicMessages().interpret(200, JSON, json.dumps(message).encode())
    return tokens_of("anthropic_messages", reading.usage)


def streamed(first: Any, last: Any) -> Tokens | None:
    """Of a stream whose first and last events state these."""
    events = [
        {"type": "message_start", "message": {"id": "m", "model": "c", "content": [], "usage": first}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": last},
        {"type": "message_stop"},
    ]
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return tokens_of("anthropic_messages", AnthropicMessages().interpret(200, SSE, body.encode()).usage)


def test_compactions_are_added_to_the_top_level() -> None:
    """They stand outside of it; the rounds of the message itself stand in it, and are not counted twice."""
    assert whole() == whole(MESSAGE, MESSAGE) == tokens(TOP) == tokens(TOP | {"iterations": None}) == ALONE
    assert whole(MESSAGE, COMPACTION, COMPACTION) == Tokens(
        4510 + 2 * 2130, 50 + 2 * 700, cached=4200, cache_write=560, cache_write_1h=340
    )
    assert whole(COMPACTION | {"cache_creation": None}) == Tokens(
        6640, 750, cached=4100, cache_write=530, cache_write_1h=300
    )


@pytest.mark.parametrize(
    "iteration",
    [
        COMPACTION | {"type": "advisor_message", "model": "claude-other"},
        COMPACTION | {"type": "fallback_message", "model": "claude-other"},
        COMPACTION | {"type": "a_kind_of_tomorrow"},
        COMPACTION | {"type": None},
        COMPACTION | {"output_tokens": None},
        COMPACTION | {"input_tokens": -1},
        {"type": "compaction"},
        {},
        "nonsense",
    ],
)
def test_round_that_cannot_be_counted_leaves_the_usage_unstated(iteration: Any) -> None:
    """Of another model, of tomorrow, or without its numbers: the rest is not the whole."""
    assert whole(MESSAGE, iteration) is None
    assert whole(iteration, COMPACTION) is None


def test_list_of_rounds_that_is_none_leaves_the_usage_unstated() -> None:
    """A shape of tomorrow."""
    assert tokens(TOP | {"iterations": {"compaction": COMPACTION}}) is None
    assert tokens(TOP | {"iterations": 2}) is None


def test_last_list_of_a_stream_replaces_the_first() -> None:
    """Cumulative, like all of its usage; one that is left out replaces nothing."""
    first = TOP | {"output_tokens": 1, "iterations": [COMPACTION | {"type": "advisor_message"}]}
    last = {"output_tokens": 50, "iterations": [MESSAGE, COMPACTION]}
    assert streamed(first, last) == whole(COMPACTION)
    assert streamed(TOP | {"iterations": [COMPACTION]}, {"output_tokens": 50}) == whole(COMPACTION)
    assert streamed(TOP, {"output_tokens": 50, "iterations": []}) == ALONE


def test_cache_parts_beside_the_input_are_part_of_it_in_any_dialect() -> None:
    """Anthropic's shape behind an endpoint that nobody reads: 10 fresh tokens and 4,500 of a cache."""
    reading = Generic().interpret(200, JSON, json.dumps({"usage": TOP}).encode())
    assert tokens_of("generic", reading.usage) == ALONE


def test_cache_parts_beside_openais_names_are_in_its_total_already() -> None:
    """As gateways state them: the prompt's tokens hold them."""
    usage = {"prompt_tokens": 4510, "completion_tokens": 50, "cache_read_input_tokens": 4000}
    found = tokens_of("generic", usage)
    assert found is not None
    assert (found.input, found.output) == (4510, 50)
