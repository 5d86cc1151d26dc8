"""The endpoint table: research/providers.md section 7, row by row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.endpoints import EndpointClass, Family, classify, provider_path

SAFE, GENERATE, BILLED = EndpointClass.SAFE, EndpointClass.GENERATE, EndpointClass.STATELESS_BILLED
JOB, STATE, IDEMPOTENT = EndpointClass.JOB, EndpointClass.STATE, EndpointClass.IDEMPOTENT
MINT = EndpointClass.CREDENTIAL_MINT


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v1/models", SAFE),
        ("HEAD", "/", SAFE),
        ("OPTIONS", "/v1/chat/completions", SAFE),
        ("GET", "/v1/responses/resp_1?stream=true", SAFE),
        ("GET", "/v1/responses", GENERATE),
        ("GET", "/v1/realtime?model=x", GENERATE),
        ("GET", "/v1/environments/e1/work/poll", GENERATE),
        ("HEAD", "/v1/environments/e1/work/poll", GENERATE),
        ("GET", "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent", GENERATE),
        ("POST", "/v1/messages/count_tokens", SAFE),
        ("POST", "/v1/messages/count_tokens?beta=true", SAFE),
        ("POST", "/v1/messages/count_tokens/", GENERATE),
        ("POST", "/v1/responses/input_tokens", SAFE),
        ("POST", "/v1beta/models/gemini-3:countTokens", SAFE),
        ("POST", "/v1/chat/completions", GENERATE),
        ("POST", "/openai/v1/chat/completions", GENERATE),
        ("POST", "/api/v1/chat/completions", GENERATE),
        ("POST", "/openai/deployments/d/chat/completions?api-version=1", GENERATE),
        ("POST", "/openai/deployments/d/embeddings", BILLED),
        ("POST", "/v1/responses", GENERATE),
        ("POST", "/v1/messages?beta=true", GENERATE),
        ("POST", "/v1beta/models/gemini-3:streamGenerateContent?alt=sse", GENERATE),
        ("POST", "/v1beta/interactions", GENERATE),
        ("POST", "/v1/embeddings", BILLED),
        ("POST", "/v2/rerank", BILLED),
        ("POST", "/v1/moderations", BILLED),
        ("POST", "/v1/audio/transcriptions", BILLED),
        ("POST", "/v1/images/edits", BILLED),
        ("POST", "/v1beta/models/e:batchEmbedContents", BILLED),
        ("POST", "/v1/vector_stores/vs_1/search", BILLED),
        ("POST", "/v1/batches", JOB),
        ("POST", "/v1/messages/batches", JOB),
        ("POST", "/v1/fine_tuning/jobs", JOB),
        ("POST", "/v1/videos", JOB),
        ("POST", "/v1beta/models/veo:predictLongRunning", JOB),
        ("POST", "/v1/files", STATE),
        ("POST", "/upload/v1beta/files", STATE),
        ("POST", "/v1/threads", STATE),
        ("POST", "/v1/threads/t/runs", GENERATE),
        ("POST", "/v1beta/cachedContents", STATE),
        ("DELETE", "/v1/responses/resp_1", IDEMPOTENT),
        ("POST", "/v1/responses/resp_1/cancel", IDEMPOTENT),
        ("POST", "/v1beta/batches/b:cancel", IDEMPOTENT),
        ("POST", "/v1/chat/completions/chatcmpl-1", IDEMPOTENT),
        ("POST", "/v1/realtime/client_secrets", MINT),
        ("POST", "/v1alpha/auth_tokens", MINT),
        ("POST", "/v1/organization/projects/p/api_keys", MINT),
        ("POST", "/v1/something/new", GENERATE),
        ("PUT", "/v1/models", GENERATE),
        ("get", "/v1/models", GENERATE),
        ("BREW", "/", GENERATE),
    ],
)
def test_known_endpoint_gets_its_class(method: str, path: str, expected: EndpointClass) -> None:
    """Each row of the table, and what looks almost like one."""
    assert classify(method, path) is expected


@given(st.text(), st.text())
def test_unknown_method_is_never_safe(method: str, path: str) -> None:
    """Only plain reads and listed POSTs pass without a ledger; anything else is effectful."""
    if method not in {"GET", "HEAD", "OPTIONS"}:
        assert classify(method, path) is not SAFE


@pytest.mark.parametrize(
    ("family", "given_path", "expected"),
    [
        (Family.ANTHROPIC, "/messages", "/v1/messages"),
        (Family.ANTHROPIC, "/v1/messages?beta=true", "/v1/messages?beta=true"),
        (Family.ANTHROPIC, "/v1/v1/messages?beta=true", "/v1/messages?beta=true"),
        (Family.ANTHROPIC, "/v1/v1x/messages", "/v1/v1x/messages"),
        (Family.ANTHROPIC, "/", "/"),
        (Family.ANTHROPIC, "", "/"),
        (Family.OPENAI, "/chat/completions", "/v1/chat/completions"),
        (Family.OPENAI, "/v1/responses?x=%2F&y=%7e", "/v1/responses?x=%2F&y=%7e"),
        (Family.OPENAI, "/v1beta1", "/v1beta1"),
        (Family.OPENAI, "/v1ish/x", "/v1/v1ish/x"),
        (Family.OPENAI, "/openai/deployments/d/chat/completions", "/openai/deployments/d/chat/completions"),
        (Family.GEMINI, "/models/g:generateContent", "/v1beta/models/g:generateContent"),
        (Family.GEMINI, "/v1/models", "/v1/models"),
        (
            Family.GEMINI,
            "/v1beta/models/g:streamGenerateContent?alt=sse",
            "/v1beta/models/g:streamGenerateContent?alt=sse",
        ),
        (Family.GEMINI, "/upload/v1beta/files", "/upload/v1beta/files"),
        (Family.GENERIC, "/anything/v9?q", "/anything/v9?q"),
        (Family.GENERIC, "", "/"),
    ],
)
def test_client_path_becomes_provider_path(family: Family, given_path: str, expected: str) -> None:
    """All base URLs that clients are configured with reach the one path of the provider (clients.md section 6)."""
    assert provider_path(family, given_path) == expected
