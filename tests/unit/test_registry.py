"""Which dialect reads an answer: by family and provider path."""

import pytest

from proxy.dialects.registry import select
from proxy.endpoints import Family

VERTEX_CLAUDE = "/v1/projects/p/locations/l/publishers/anthropic/models/claude-x%404:streamRawPredict"


@pytest.mark.parametrize(
    ("family", "path", "name"),
    [
        (Family.OPENAI, "/v1/chat/completions", "openai_chat"),
        (Family.OPENAI, "/openai/deployments/d/chat/completions?api-version=1", "openai_chat"),
        (Family.OPENAI, "/v1/responses", "openai_responses"),
        (Family.OPENAI, "/openai/responses?api-version=1", "openai_responses"),
        (Family.OPENAI, "https://openrouter.ai/api/v1/messages", "anthropic_messages"),
        (Family.OPENAI, "/v1/presets/p/messages", "anthropic_messages"),
        (Family.OPENAI, "/v1/threads/t/messages", "generic"),
        (Family.OPENAI, "/v1/responses/compact", "generic"),
        (Family.OPENAI, "/v1/chat/completions/chatcmpl-1", "generic"),
        (Family.ANTHROPIC, "/v1/messages?beta=true", "anthropic_messages"),
        (Family.ANTHROPIC, "/v1/messages/count_tokens", "generic"),
        (Family.GEMINI, "/v1beta/models/g:generateContent", "gemini"),
        (Family.GEMINI, "/v1beta/tunedModels/g:streamGenerateContent?alt=sse", "gemini"),
        (Family.GEMINI, "/v1beta1/projects/p/locations/l/endpoints/1:generateContent", "gemini"),
        (Family.GEMINI, "/v1beta/models/g:countTokens", "generic"),
        (Family.GEMINI, "/v1beta/models/g:embedContent", "generic"),
        (Family.GEMINI, "/v1beta/openai/chat/completions", "openai_chat"),
        (Family.GEMINI, VERTEX_CLAUDE, "anthropic_messages"),
        (
            Family.GEMINI,
            "/v1/projects/p/locations/l/publishers/anthropic/models/count-tokens:rawPredict",
            "generic",
        ),
        (Family.GENERIC, "/v1/chat/completions", "generic"),
    ],
)
def test_endpoint_selects_its_dialect(family: Family, path: str, name: str) -> None:
    """By family and provider path; generic where none is known."""
    assert select(family, path).name == name
