"""The endpoint table: research/providers.md section 7, row by row."""

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.registry import select
from proxy.endpoints import EndpointClass, Family, by_body, classify, provider_path
from proxy.settings import builtin_upstreams

SAFE, GENERATE, BILLED = EndpointClass.SAFE, EndpointClass.GENERATE, EndpointClass.STATELESS_BILLED
JOB, STATE, IDEMPOTENT = EndpointClass.JOB, EndpointClass.STATE, EndpointClass.IDEMPOTENT
MINT = EndpointClass.CREDENTIAL_MINT


# Every path of providers.md section 7 in the form in which its provider has it, and what looks almost like one.
POSTS = {
    SAFE: """
        /v1/messages/count_tokens /v1/messages/count_tokens?beta=true
        /v1/responses/input_tokens /v1/responses/input_tokens?beta=true /openai/v1/responses/input_tokens
        /v1beta/models/g:countTokens /v1beta1/projects/p/locations/l/publishers/google/models/g:computeTokens
        /v1/projects/p/locations/l/publishers/anthropic/models/count-tokens:rawPredict
        /v1beta1/projects/p/locations/l/publishers/google/models/veo:fetchPredictOperation
        /model/m/count-tokens /v1/fine_tuning/alpha/graders/validate /v1/fine-tunes/estimate-price /v1/fine-tunes/preview
        /v1/observability/logs/search /v1/observability/spans/aggregate
    """,
    BILLED: """
        /v1/embeddings /openai/deployments/d/embeddings?api-version=1 /v2/embed /v2/rerank /v1/rerank /v1/moderations
        /v1/audio/speech /v1/audio/transcriptions /v1/audio/translations /openai/deployments/d/audio/transcriptions
        /v1/images/generations /v1/images/edits /v1/images/variations /v1/ocr /v1/fim/completions /v2/parse /v1/decisions
        /v1beta/models/e:embedContent /v1beta/models/e:batchEmbedContents /v1beta/openai/embeddings
        /v1/projects/p/locations/l/publishers/google/models/i:predict
        /v1/vector_stores/vs/search /v1/fine_tuning/alpha/graders/run /guardrail/g/version/1/apply
    """,
    GENERATE: """
        /v1/chat/completions /openai/v1/chat/completions /api/v1/chat/completions /v1beta/openai/chat/completions
        /openai/deployments/d/chat/completions?api-version=1 /v1/projects/p/locations/l/endpoints/openapi/chat/completions
        /v1/completions /v1/responses /v1/responses?beta=true /openai/responses?api-version=1 /openai/v1/responses
        /v1/responses/compact /v1/threads/runs /v1/threads/t/runs /v1/threads/t/runs/r/submit_tool_outputs
        /v1/agents/sessions /v1/agents/sessions/s/events /v1/evals/e/runs /v1/live/sessions /v1/live/sessions/s/accept
        /v1/messages?beta=true /v1/complete /v1/sessions/s/events /v1/deployments/d/run /v1/dreams
        /v1beta/models/g:generateContent /v1beta/models/g:streamGenerateContent?alt=sse /v1beta/tunedModels/t:generateContent
        /v1beta/interactions /v1beta/triggers
        /v1beta1/projects/p/locations/l/publishers/google/models/g:streamGenerateContent
        /v1/projects/p/locations/l/publishers/anthropic/models/c:rawPredict
        /v1/projects/p/locations/l/publishers/anthropic/models/c:streamRawPredict
        /v1beta1/projects/p/locations/l/endpoints/1:generateContent
        /model/m/invoke /model/m/invoke-with-response-stream /model/anthropic.c-v1:0/converse /model/m/converse-stream
        /v1/agents/completions /v1/conversations/c/restart /v2/chat
        /api/v1/responses /api/v1/messages /api/v1/images /api/v1/presets/p/chat/completions /api/chat
        /v1/realtime/calls /v1/realtime/calls/c/accept
        /v1/something/new /v1/messages/count_tokens/ /v1/observability/logs/search:run
    """,
    JOB: """
        /v1/batches /openai/batches?api-version=1 /v1/messages/batches /v1beta/models/g:batchGenerateContent
        /v1beta/models/g:asyncBatchEmbedContent /v1beta/models/v:predictLongRunning
        /v1beta1/projects/p/locations/l/publishers/google/models/v:predictLongRunning
        /v1beta1/projects/p/locations/l/tuningJobs /v1beta1/projects/p/locations/l/batchPredictionJobs /v1beta/tunedModels
        /v1/fine_tuning/jobs /v1/videos /v1/videos/v/remix /v1/videos/edits /v1/videos/extensions /v1/videos/characters
        /async-invoke /model-invocation-job /v2/batches /v1/embed-jobs /v1/batch/jobs
    """,
    STATE: """
        /v1/files /openai/files /v1/uploads /v1/uploads/u/parts /v1/uploads/u/complete /upload/v1beta/files /v1/containers
        /v1/containers/c/files /v1/conversations /v1/conversations/c /v1/conversations/c/items /v1/vector_stores
        /v1/vector_stores/vs/files /v1/assistants /v1/threads /v1/threads/t/messages /v1beta/cachedContents
        /v1beta1/projects/p/locations/l/cachedContents /v1/skills /v1/skills/s/versions /v1/audio/voices /v1/voices
        /v1/webhook_endpoints /v1/organization/invites /v1/organizations/workspaces
    """,
    IDEMPOTENT: """
        /v1/responses/r/cancel /v1/responses/r/cancel?beta=true /v1/batches/b/cancel /v1/messages/batches/b/cancel
        /v1/threads/t/runs/r/cancel /v1/fine_tuning/jobs/j/cancel /v1beta/batches/b:cancel /v1beta/interactions/i/cancel
        /v1/chat/completions/chatcmpl-1 /v1/assistants/a /v1/threads/t /v1/threads/t/messages/m /v1/threads/t/runs/r
        /v1/vector_stores/vs /v1/vector_stores/vs/files/f /v1/evals/e /v1/webhook_endpoints/w
    """,
    MINT: """
        /v1/realtime/client_secrets /openai/v1/realtime/client_secrets /v1/realtime/sessions
        /v1/realtime/transcription_sessions /v1/realtime/translations/client_secrets /openai/realtimeapi/sessions
        /v1/chatkit/sessions /v1alpha/auth_tokens /v1/organization/admin_api_keys /v1/organization/projects/p/api_keys
        /v1/organization/projects/p/service_accounts /v1/tunnels/t/rotate_token /v1/tunnels/t/reveal_token
        /api/v1/keys /api/v1/auth/keys /api/v1/auth/keys/code
    """,
}


@pytest.mark.parametrize(
    ("path", "expected"), [(path, of_class) for of_class, paths in POSTS.items() for path in paths.split()]
)
def test_known_post_gets_its_class(path: str, expected: EndpointClass) -> None:
    """Row by row; an unknown path is taken for the most dangerous class."""
    assert classify("POST", path) is expected


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v1/models", SAFE),
        ("HEAD", "/", SAFE),
        ("OPTIONS", "/v1/chat/completions", SAFE),
        ("GET", "/v1/responses/resp_1?stream=true", SAFE),
        ("GET", "/v1beta/interactions/i?stream=true", SAFE),
        ("GET", "/v1/agents/sessions/s/events", SAFE),
        ("GET", "/v1/sessions/s/events/stream", SAFE),
        ("GET", "/v1/conversations/c", SAFE),
        ("GET", "/v1/responses", GENERATE),
        ("GET", "/openai/v1/responses", GENERATE),
        ("GET", "/v1/realtime?model=x", GENERATE),
        ("GET", "/openai/realtime?deployment=d", GENERATE),
        ("GET", "/v1/live/sessions", GENERATE),
        ("GET", "/v1beta/interactions", GENERATE),
        ("GET", "/v1/environments/e1/work/poll", GENERATE),
        ("HEAD", "/v1/environments/e1/work/poll", GENERATE),
        ("GET", "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent", GENERATE),
        ("DELETE", "/v1/responses/resp_1", IDEMPOTENT),
        ("DELETE", "/v1beta1/projects/p/locations/l/cachedContents/c", IDEMPOTENT),
        ("PUT", "/v1/models", GENERATE),
        ("PATCH", "/v1/messages/count_tokens", GENERATE),
        ("get", "/v1/models", GENERATE),
        ("BREW", "/", GENERATE),
    ],
)
def test_method_counts_beside_the_path(method: str, path: str, expected: EndpointClass) -> None:
    """Plain reads are safe, but for those with an effect; a method that is unknown is none of them."""
    assert classify(method, path) is expected


def test_background_makes_a_generation_a_job() -> None:
    """Of a class that generates; what the body of any other says changes nothing."""
    assert by_body(GENERATE, background=True) is JOB
    assert by_body(GENERATE, background=False) is GENERATE
    assert all(by_body(of_class, background=True) is of_class for of_class in EndpointClass if of_class is not GENERATE)


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
        (Family.GEMINI, "/projects/p/locations/l/x", "/v1/projects/p/locations/l/x"),
        (Family.GEMINI, "/v1beta1/projects/p/locations/l/x", "/v1beta1/projects/p/locations/l/x"),
        (Family.OPENAI, "/api/chat", "/api/chat"),
        (Family.GENERIC, "/anything/v9?q", "/anything/v9?q"),
        (Family.GENERIC, "", "/"),
    ],
)
def test_client_path_becomes_provider_path(family: Family, given_path: str, expected: str) -> None:
    """All base URLs that clients are configured with reach the one path of the provider (clients.md section 6)."""
    assert provider_path(family, given_path) == expected


GOOGLE = "projects/p/locations/global/publishers"
AZURE = {"base_url": "https://r.openai.azure.com", "family": "openai"}


@pytest.mark.parametrize(
    ("upstream", "client_path", "provider_url", "endpoint_class", "dialect"),
    [
        ("openai", "/v1/chat/completions", "https://api.openai.com/v1/chat/completions", GENERATE, "openai_chat"),
        ("openai", "/v1/responses", "https://api.openai.com/v1/responses", GENERATE, "openai_responses"),
        ("openai", "/responses", "https://api.openai.com/v1/responses", GENERATE, "openai_responses"),
        (
            "anthropic",
            "/v1/messages?beta=true",
            "https://api.anthropic.com/v1/messages",
            GENERATE,
            "anthropic_messages",
        ),
        ("anthropic", "/messages", "https://api.anthropic.com/v1/messages", GENERATE, "anthropic_messages"),
        (
            "gemini",
            "/v1/models/g:generateContent",
            "https://generativelanguage.googleapis.com/v1/models/g:generateContent",
            GENERATE,
            "gemini",
        ),
        (
            "gemini",
            "/models/g:streamGenerateContent?alt=sse",
            "https://generativelanguage.googleapis.com/v1beta/models/g:streamGenerateContent",
            GENERATE,
            "gemini",
        ),
        (
            "vertex",
            f"/v1beta1/{GOOGLE}/google/models/g:generateContent",
            f"https://aiplatform.googleapis.com/v1beta1/{GOOGLE}/google/models/g:generateContent",
            GENERATE,
            "gemini",
        ),
        (
            "vertex",
            f"/{GOOGLE}/anthropic/models/c:streamRawPredict",
            f"https://aiplatform.googleapis.com/v1/{GOOGLE}/anthropic/models/c:streamRawPredict",
            GENERATE,
            "anthropic_messages",
        ),
        ("mistral", "/v1/chat/completions", "https://api.mistral.ai/v1/chat/completions", GENERATE, "openai_chat"),
        ("mistral", "/v1/fim/completions", "https://api.mistral.ai/v1/fim/completions", BILLED, "generic"),
        ("groq", "/v1/chat/completions", "https://api.groq.com/openai/v1/chat/completions", GENERATE, "openai_chat"),
        # What groq's own SDK sends to GROQ_BASE_URL=http://127.0.0.1:8787/groq.
        (
            "groq",
            "/openai/v1/chat/completions",
            "https://api.groq.com/openai/v1/chat/completions",
            GENERATE,
            "openai_chat",
        ),
        ("together", "/v1/chat/completions", "https://api.together.ai/v1/chat/completions", GENERATE, "openai_chat"),
        (
            "openrouter",
            "/v1/chat/completions",
            "https://openrouter.ai/api/v1/chat/completions",
            GENERATE,
            "openai_chat",
        ),
        ("openrouter", "/api/v1/responses", "https://openrouter.ai/api/v1/responses", GENERATE, "openai_responses"),
        ("openrouter", "/v1/messages", "https://openrouter.ai/api/v1/messages", GENERATE, "anthropic_messages"),
        ("openrouter", "/api/v1/keys", "https://openrouter.ai/api/v1/keys", MINT, "generic"),
        ("ollama", "/v1/chat/completions", "http://127.0.0.1:11434/v1/chat/completions", GENERATE, "openai_chat"),
        ("ollama", "/api/embed", "http://127.0.0.1:11434/api/embed", BILLED, "generic"),
        ("vllm", "/v1/responses", "http://127.0.0.1:8000/v1/responses", GENERATE, "openai_responses"),
        (
            "azure",
            "/openai/deployments/d/chat/completions?api-version=1",
            "https://r.openai.azure.com/openai/deployments/d/chat/completions",
            GENERATE,
            "openai_chat",
        ),
        (
            "azure",
            "/openai/v1/responses",
            "https://r.openai.azure.com/openai/v1/responses",
            GENERATE,
            "openai_responses",
        ),
        (
            "azure",
            "/openai/responses?api-version=1",
            "https://r.openai.azure.com/openai/responses",
            GENERATE,
            "openai_responses",
        ),
    ],
)
def test_what_clients_send_reaches_the_provider_path(
    upstream: str, client_path: str, provider_url: str, endpoint_class: EndpointClass, dialect: str
) -> None:
    """Each built-in upstream with what its SDK or documentation says, and Azure as its example configures it."""
    settings = {**builtin_upstreams(), "azure": AZURE}[upstream]
    base_url, family = settings["base_url"], Family(settings["family"])
    target = provider_path(family, client_path, urlsplit(base_url).path)
    assert (base_url + target).partition("?")[0] == provider_url
    assert target.partition("?")[2] == client_path.partition("?")[2]
    assert classify("POST", target) is endpoint_class
    assert select(family, base_url + target).name == select(family, target).name == dialect


def test_every_builtin_upstream_is_in_the_table_above() -> None:
    """A new one comes with what its clients send."""
    (table,) = test_what_clients_send_reaches_the_provider_path.pytestmark
    assert {row[0] for row in table.args[1]} == builtin_upstreams().keys() | {"azure"}


def test_repeated_base_path_is_meant_once_only_where_paths_are_known() -> None:
    """A generic upstream's paths stay as they are, and a longer segment is another one."""
    assert provider_path(Family.GENERIC, "/base/x", "/base") == "/base/x"
    assert provider_path(Family.OPENAI, "/openai/v1/x", "/openai") == "/v1/x"
    assert provider_path(Family.OPENAI, "/openaix/v1", "/openai") == "/v1/openaix/v1"
