"""What a request lets its provider do that its own bytes do not bound: read elsewhere, loop over tools, answer many times. Pure.

Everything here fails towards "more": what is not known to be harmless counts as reaching beyond the body.
Sources of the names: openai 3.57, anthropic 2.14 and google-genai 3.6.1 types; research/providers.md section 6.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from proxy.audit.money import shown
from proxy.dialects.base import parsed


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Beside the tokens of the body itself: roles and separators, which the body's own JSON outweighs, and what a provider adds where tools
# are given (Anthropic's tool prompt: some hundreds of tokens).
ALLOWANCE_TOKENS: Final = 1024
TYPED_TOOL_TOKENS: Final = (
    1024  # for each tool of the provider's own make that the client runs: its description is not in the body
)

# Fields at the top whose value says all there is. Not in here: whatever names something that is kept elsewhere.
_PLAIN_FIELDS: Final = _words(
    """
    audio background cache_control contents dimensions echo encoding_format frequency_penalty function_call functions generationConfig
    generation_config include inference_geo input instructions labels logit_bias logprobs max_completion_tokens max_output_tokens
    max_tokens max_tool_calls messages metadata min_p modalities model n best_of parallel_tool_calls prediction presence_penalty prompt
    prompt_cache_key prompt_cache_options prompt_cache_retention reasoning reasoning_effort repetition_penalty response_format
    safetySettings safety_identifier safety_settings seed serviceTier service_tier speed stop stop_sequences store stream stream_options
    suffix system systemInstruction system_instruction temperature text thinking output_config toolConfig tool_choice tool_config tools
    top_k top_logprobs top_p truncation user verbosity keep_alive options anthropic_version
    """
)
# Fields that make it several requests, of other models, or of rounds that nobody counts beforehand.
_UNBOUNDED_FIELDS: Final = _words(
    "web_search_options mcp_servers fallbacks models plugins automaticContinuation automatic_continuation"
)
# What the client itself runs: its calls come back in requests of their own. Anything else is run by the provider.
_CLIENT_TOOLS: Final = (
    "function",
    "custom",
    "computer",
    "bash_",
    "text_editor_",
    "memory_",
    "local_shell",
    "apply_patch",
)
_CLIENT_DECLARATIONS: Final = frozenset({"functionDeclarations", "function_declarations"})  # Gemini's
# Parts of a conversation that hold their text, or their sealed bytes, themselves.
_PLAIN_PARTS: Final = _words(
    """
    text input_text output_text refusal message reasoning reasoning_text summary_text thinking redacted_thinking tool_use tool_result
    function function_call function_call_output custom custom_tool_call custom_tool_call_output local_shell_call local_shell_call_output
    shell_call shell_call_output apply_patch_call apply_patch_call_output tool_call
    """
)
# Parts whose bytes are here and whose tokens are not counted by bytes.
_MEDIA_PARTS: Final = frozenset(
    {"image", "image_url", "input_image", "document", "input_audio", "input_file", "file", "video", "video_url"}
)
_INLINE: Final = frozenset({"inlineData", "inline_data"})
_ELSEWHERE: Final = frozenset(
    {"fileData", "file_data", "file_id", "file_ids", "fileId", "audio", "conversation", "container"}
)
# Below these is what the client wrote for itself, or what says nothing of the input.
_NOT_READ: Final = _words(
    "cache_control citations annotations caller action operation args arguments response logprobs metadata status"
)
_ROOTS: Final = _words("messages system input contents systemInstruction system_instruction instructions prompt")


@dataclass(frozen=True, slots=True)
class Asking:
    """One request's body. `beyond`, `media`, `loops`: why its bytes bound nothing, as words that end a sentence; None where they do."""

    input_bytes: int
    beyond: str | None = None  # the input is more than the body
    media: str | None = None  # the input is in the body, in bytes that are no text
    loops: str | None = None  # it may become several requests
    answers: int = 1
    more_output_tokens: int = 0
    allowance_tokens: int = ALLOWANCE_TOKENS
    hour_cache: bool = False
    tier: str | None = None

    @property
    def input_tokens(self) -> int:
        """No tokenizer makes more tokens than bytes: byte-level ones begin with the bytes and only join them."""
        return self.input_bytes + self.allowance_tokens


def asking(body: bytes) -> Asking:
    """`body`: without content codings. Never raises."""
    document = parsed(body)
    if not isinstance(document, dict):
        return Asking(len(body), beyond="the body is no JSON object")
    unknown = sorted(
        shown(name)
        for name in document.keys() - _PLAIN_FIELDS - _UNBOUNDED_FIELDS
        if document[name] not in (None, [], {}, "")
    )
    found = list(_strangers(document))
    beyond = [words for kind, words in found if kind == "beyond"]
    media = [words for kind, words in found if kind == "media"]
    if unknown:
        beyond.insert(0, f"the request has the field {unknown[0]}")
    tools = _tools(document)
    return Asking(
        input_bytes=len(body),
        beyond=beyond[0] if beyond else None,
        media=media[0] if media else None,
        loops=_loops(document, tools),
        answers=_answers(document),
        more_output_tokens=len(body) if document.get("prediction") else 0,  # rejected predictions are billed as output
        allowance_tokens=ALLOWANCE_TOKENS + TYPED_TOOL_TOKENS * sum(_is_typed(tool) for tool in tools),
        hour_cache=b'"1h"' in body,
        tier=_tier(document),
    )


def _strangers(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What in the conversation is more than its text. Not recursive: nesting is whoever sent it's choice."""
    if isinstance(document.get("prompt"), dict):
        yield "beyond", "the request names a stored prompt"
    todo: list[Any] = [document[name] for name in sorted(_ROOTS) if name in document]
    while todo:
        value = todo.pop()
        if isinstance(value, list):
            todo += value
        elif isinstance(value, dict):
            if (found := _stranger(value)) is not None:
                yield found
                continue
            is_call = value.get("type") in ("tool_use", "tool_call", "function_call")
            todo += [
                below for name, below in value.items() if name not in _NOT_READ and not (is_call and name == "input")
            ]


def _stranger(part: dict[str, Any]) -> tuple[str, str] | None:
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MEDIA_PARTS:
        return (
            ("media", f"the request holds a part of type {kind}")
            if _is_inline(part)
            else ("beyond", f"a part of type {kind} is kept elsewhere")
        )
    if isinstance(kind, str) and kind not in _PLAIN_PARTS:
        return "beyond", f"the request has a part of type {shown(kind)}"
    if named := sorted(_ELSEWHERE & {name for name, value in part.items() if value}):
        return "beyond", f"the request names something by {named[0]}"
    if _INLINE & part.keys():
        return "media", "the request holds a part that is no text"
    return None


def _is_inline(part: dict[str, Any]) -> bool:
    """Its bytes are in the body: base64 behind a source, or a data: URL. In doubt they are not."""
    holders = [part, *(value for value in part.values() if isinstance(value, dict))]
    named = [holder.get(name) for holder in holders for name in ("url", "image_url", "file_data")]
    if texts := [text for text in named if isinstance(text, str)]:
        return all(text.startswith("data:") for text in texts)
    return any(isinstance(holder.get("data"), str) for holder in holders)


def _tools(document: dict[str, Any]) -> list[Any]:
    tools = document.get("tools")
    return tools if isinstance(tools, list) else [tools] if tools else []


def _loops(document: dict[str, Any], tools: list[Any]) -> str | None:
    named = sorted(name for name in _UNBOUNDED_FIELDS if document.get(name))
    if named:
        return f"the request has {named[0]}"
    if isinstance(document.get("prompt"), dict):
        return "the request names a stored prompt, which may have tools of its own"
    if _may_be_compacted(document.get("context_management")):
        return "the provider may compact its context, which is a request of its own"
    served = next((tool for tool in tools if not _is_clients(tool)), None)
    if served is None:
        return None
    kind = served.get("type") or next(iter(served), "") if isinstance(served, dict) else served
    return f"the provider itself runs the tool {shown(kind)}"


def _may_be_compacted(management: Any) -> bool:
    """Edits that clear something ask no model (anthropic 2.14 types/beta/beta_context_management_config_param.py). In doubt it may."""
    if not management:
        return False
    edits = management.get("edits") if isinstance(management, dict) else None
    kinds = (
        [edit.get("type") if isinstance(edit, dict) else None for edit in edits] if isinstance(edits, list) else [None]
    )
    return not all(isinstance(kind, str) and kind.startswith("clear_") for kind in kinds)


def _is_clients(tool: Any) -> bool:
    if not isinstance(tool, dict):
        return False
    kind = tool.get("type")
    if kind is None:
        return "name" in tool or tool.keys() <= _CLIENT_DECLARATIONS
    return isinstance(kind, str) and kind.startswith(_CLIENT_TOOLS)


def _is_typed(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") not in (None, "function", "custom")


def _answers(document: dict[str, Any]) -> int:
    """How many answers are asked for: each may use up the whole limit."""
    configs = [document.get(name) for name in ("generationConfig", "generation_config")]
    within = [
        config.get(name)
        for config in configs
        if isinstance(config, dict)
        for name in ("candidateCount", "candidate_count")
    ]
    counts = [
        count for count in (document.get("n"), document.get("best_of"), *within) if type(count) is int and count > 0
    ]
    prompt = document.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and not all(type(one) is int for one in prompt) else 1
    return max(counts, default=1) * prompts


def _tier(document: dict[str, Any]) -> str | None:
    asked = [document.get(name) for name in ("speed", "service_tier", "serviceTier")]
    return next((tier for tier in asked if isinstance(tier, str) and tier), None)
