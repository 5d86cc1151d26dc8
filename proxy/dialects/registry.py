"""Which dialect an endpoint speaks."""

import re
from collections.abc import Mapping

from proxy.dialects.anthropic_messages import AnthropicMessages
from proxy.dialects.base import Dialect
from proxy.dialects.gemini import Gemini
from proxy.dialects.generic import Generic
from proxy.dialects.openai_chat import OpenAIChat
from proxy.dialects.openai_responses import OpenAIResponses
from proxy.endpoints import Family

_GENERIC: Dialect = Generic()
_CHAT: Dialect = OpenAIChat()
_MESSAGES: Dialect = AnthropicMessages()

# (family, end of the provider's path, its dialect); the end, because Azure, Groq, OpenRouter and Vertex have prefixes of
# their own, and an upstream may have one too. Sources: research/providers.md section 7; groq 1.7.0, anthropic 2.14
# lib/vertex, google-genai 3.6.1 for the prefixes; Google and Anthropic take OpenAI's chat beside their own wire.
_DIALECTS: tuple[tuple[frozenset[Family], re.Pattern[str], Dialect], ...] = (
    (frozenset({Family.OPENAI, Family.ANTHROPIC, Family.GEMINI}), re.compile(r"/chat/completions$"), _CHAT),
    (frozenset({Family.OPENAI}), re.compile(r"/responses$"), OpenAIResponses()),
    (frozenset({Family.ANTHROPIC, Family.OPENAI}), re.compile(r"/(?:v1|presets/[^/]+)/messages$"), _MESSAGES),
    (frozenset({Family.GEMINI}), re.compile(r"/[^/:]+:(?:g|streamG)enerateContent$"), Gemini()),
    (
        frozenset({Family.GEMINI}),
        re.compile(r"/publishers/anthropic/models/(?!count-tokens:)[^/:]+:(?:r|streamR)awPredict$"),
        _MESSAGES,
    ),
)
_BY_NAME: Mapping[str, Dialect] = {dialect.name: dialect for _, _, dialect in _DIALECTS}


def select(family: Family, path: str) -> Dialect:
    """The dialect of a provider path or URL (query allowed); `generic` where none is known."""
    bare = path.partition("?")[0]
    for families, end, dialect in _DIALECTS:
        if family in families and end.search(bare):
            return dialect
    return _GENERIC


def named(name: str) -> Dialect:
    """As `call.requested` names it; one that this version does not know is read as a generic one."""
    return _BY_NAME.get(name, _GENERIC)
