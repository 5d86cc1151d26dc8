"""Stated usage by class, whatever the provider calls it. What is not stated is not zero: `None`.

Sources of the names: research/providers.md section 5; openai 3.57 types, anthropic 2.14 types, google-genai 3.6.1 types.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True, slots=True)
class Tokens:
    """`input` holds `cached`, `cache_write`, `input_audio` and `input_image`; `cache_write` holds `cache_write_1h`; `output` the others."""

    input: int
    output: int
    cached: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    reasoning: int = 0
    input_audio: int = 0
    output_audio: int = 0
    input_image: int = 0
    web_searches: int = 0  # no tokens: calls of a server tool that are billed beside them


# Rounds that the dialect (anthropic_messages) summed up because they stand outside the top level. Those of any other kind are of
# another model, or of an unknown one: then the numbers say not what it cost.
ITERATIONS: Final = "iterations."
COMPACTION: Final = "iterations.compaction"

# class -> the names whose numbers add up to it. The first name of `input` and of `output` must be stated.
_Names = Mapping[str, tuple[str, ...]]
_CHAT: Final[_Names] = {
    "input": ("prompt_tokens",),
    "output": ("completion_tokens",),
    "cached": ("prompt_tokens_details.cached_tokens",),
    "cache_write": ("prompt_tokens_details.cache_write_tokens",),
    "reasoning": ("completion_tokens_details.reasoning_tokens",),
    "input_audio": ("prompt_tokens_details.audio_tokens",),
    "output_audio": ("completion_tokens_details.audio_tokens",),
}
_RESPONSES: Final[_Names] = {
    "input": ("input_tokens",),
    "output": ("output_tokens",),
    "cached": ("input_tokens_details.cached_tokens",),
    "cache_write": ("input_tokens_details.cache_write_tokens",),
    "reasoning": ("output_tokens_details.reasoning_tokens",),
    "input_image": ("input_tokens_details.image_tokens",),
}
_ANTHROPIC: Final[_Names] = {
    "input": (
        "input_tokens",
        "cache_creation_input_tokens",
        "cache_read_input_tokens",
        f"{COMPACTION}.input_tokens",
        f"{COMPACTION}.cache_creation_input_tokens",
        f"{COMPACTION}.cache_read_input_tokens",
    ),
    "output": ("output_tokens", f"{COMPACTION}.output_tokens"),
    "cached": ("cache_read_input_tokens", f"{COMPACTION}.cache_read_input_tokens"),
    "cache_write": ("cache_creation_input_tokens", f"{COMPACTION}.cache_creation_input_tokens"),
    "cache_write_1h": (
        "cache_creation.ephemeral_1h_input_tokens",
        f"{COMPACTION}.cache_creation.ephemeral_1h_input_tokens",
    ),
    "web_searches": ("server_tool_use.web_search_requests",),
}
_GEMINI: Final[_Names] = {
    "input": ("promptTokenCount", "toolUsePromptTokenCount"),
    "output": ("candidatesTokenCount", "thoughtsTokenCount"),
    "cached": ("cachedContentTokenCount",),
    "reasoning": ("thoughtsTokenCount",),
}
_CACHE_PARTS: Final = frozenset(
    {"cache_creation_input_tokens", "cache_read_input_tokens"}
)  # beside `input_tokens`, not in it
_BY_DIALECT: Final[Mapping[str, tuple[_Names, ...]]] = {
    "openai_chat": (_CHAT,),
    "openai_responses": (_RESPONSES,),
    "anthropic_messages": (_ANTHROPIC,),
    "gemini": (_GEMINI,),
    "generic": (_CHAT, _RESPONSES, _GEMINI),
}
# An answer without output (embeddings) says so by a total that is its input.
_TOTALS: Final = ("total_tokens",)


def tokens_of(dialect: str, usage: Mapping[str, int] | None) -> Tokens | None:
    """`usage` under the provider's own dotted names; None where it does not say both input and output."""
    if not usage or any(name.startswith(ITERATIONS) and not name.startswith(f"{COMPACTION}.") for name in usage):
        return None
    if dialect == "generic" and not _CACHE_PARTS.isdisjoint(usage) and (found := _read(_ANTHROPIC, usage)) is not None:
        return found
    return next((found for names in _BY_DIALECT.get(dialect, ()) if (found := _read(names, usage)) is not None), None)


def _read(names: _Names, usage: Mapping[str, int]) -> Tokens | None:
    stated_input, stated_output = names["input"][0], names["output"][0]
    if stated_input not in usage:
        return None
    has_output = stated_output in usage or any(usage.get(total) == usage[stated_input] for total in _TOTALS)
    if not has_output and not any(name in usage for name in names["output"]):
        return None
    found = {each.name: sum(usage.get(name, 0) for name in names.get(each.name, ())) for each in fields(Tokens)}
    return Tokens(**found)
