"""Which dialect an endpoint speaks."""

from proxy.dialects.anthropic_messages import AnthropicMessages
from proxy.dialects.base import Dialect
from proxy.dialects.generic import Generic
from proxy.dialects.openai_chat import OpenAIChat
from proxy.endpoints import Family

_GENERIC: Dialect = Generic()

# (family, end of the provider's path); the end, because Azure and Groq have prefixes of their own.
_DIALECTS: tuple[tuple[Family, str, Dialect], ...] = (
    (Family.OPENAI, "/chat/completions", OpenAIChat()),
    (Family.ANTHROPIC, "/v1/messages", AnthropicMessages()),
)


def select(family: Family, path: str) -> Dialect:
    """The dialect of a provider path (query allowed); `generic` where none is known."""
    bare = path.partition("?")[0]
    for of_family, end, dialect in _DIALECTS:
        if family is of_family and bare.endswith(end):
            return dialect
    return _GENERIC
