"""What an endpoint does at the provider, and the provider's own path for the path a client used. Data, with sources.

The patterns are matched against the path without its version prefix. They match whole paths only: a path that is merely
similar to a harmless one is unknown, and an unknown path is taken for the most dangerous class.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import unquote


class EndpointClass(StrEnum):
    """Which settings and defaults of semantics.md section 4 apply."""

    SAFE = "safe"  # passes through, no ledger
    GENERATE = "generate"
    STATELESS_BILLED = "stateless_billed"
    JOB = "job"
    STATE = "state"
    IDEMPOTENT = "idempotent"
    CREDENTIAL_MINT = "credential_mint"  # the answer's body is never kept (I8)


class Family(StrEnum):
    """Whose paths and envelopes an upstream speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    GENERIC = "generic"


_HARMLESS = frozenset({EndpointClass.SAFE, EndpointClass.STATELESS_BILLED, EndpointClass.IDEMPOTENT})


@dataclass(frozen=True, slots=True)
class _Row:
    endpoint_class: EndpointClass
    methods: frozenset[str]
    paths: re.Pattern[str]


_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_POST = frozenset({"POST"})
_ID = "[^/:]+"


def _row(endpoint_class: EndpointClass, methods: set[str] | frozenset[str], *paths: str) -> _Row:
    return _Row(endpoint_class, frozenset(methods), re.compile("|".join(paths).replace("{id}", _ID)))


# First match wins. The source of every path is research/providers.md section 7, which names the SDK or document behind it;
# what comes from another place says so.
_TABLE = (
    # GETs with an effect: a WebSocket bills per event, Anthropic's work poll leases the work it returns. No list of
    # interactions is known, so a GET of all of them is their WebSocket.
    _row(
        EndpointClass.GENERATE,
        {"GET", "HEAD"},
        r"/realtime",
        r"/responses",
        r"/interactions",
        r"/live(?:/.*)?",
        r"/environments/{id}/work/poll",
        r".*BidiGenerateContent.*",
    ),
    _row(EndpointClass.SAFE, _READS, r".*"),
    # Read-only POSTs.
    _row(
        EndpointClass.SAFE,
        _POST,
        r"/messages/count_tokens",
        r"/responses/input_tokens",
        r"/(?:models|tunedModels|endpoints)/{id}:(?:countTokens|computeTokens)",
        r"/models/count-tokens:rawPredict",  # Claude at Vertex: anthropic 2.14 lib/vertex
        r"/models/{id}:fetchPredictOperation",  # a poll: providers.md section 2
        r"/model/{id}/count-tokens",
        r"/fine_tuning/alpha/graders/validate",
        r"/fine-tunes/(?:estimate-price|preview)",
        r"/observability/(?:[^:]*/)?(?:search|aggregate)",
    ),
    _row(
        EndpointClass.CREDENTIAL_MINT,
        _POST,
        r"/realtime/(?:client_secrets|sessions|transcription_sessions|translations/client_secrets)",
        r"/realtimeapi/sessions",  # Azure's older name (not looked up)
        r"/chatkit/sessions",
        r"/auth_tokens",
        r"/organization/(?:.*/)?(?:admin_api_keys|api_keys|service_accounts)",
        r"/(?:auth/)?keys(?:/code)?",  # OpenRouter: openrouter 1.3.84
        r"/oauth/token",  # the same
        r".*/rotate_{id}",
        r".*/tunnels/{id}/reveal_token",
    ),
    # DELETE and cancel end in the same state however often they arrive. A POST to one object writes the same values again:
    # openai 3.57 resources, `update` and `modify`. Not to a conversation: at Mistral that continues it.
    _row(EndpointClass.IDEMPOTENT, {"DELETE"}, r".*"),
    _row(
        EndpointClass.IDEMPOTENT,
        _POST,
        r"/.+/cancel",
        r"/.+:cancel",
        r"/chat/completions/{id}",
        r"/(?:assistants|vector_stores|evals|webhook_endpoints)/{id}",
        r"/threads/(?!runs$){id}",
        r"/threads/{id}/(?:messages|runs)/{id}",
        r"/vector_stores/{id}/files/{id}",
    ),
    _row(
        EndpointClass.JOB,
        _POST,
        r"/batches",
        r"/messages/batches",
        r"/fine_tuning/jobs",
        r"/videos(?:/(?:edits|extensions|characters))?",
        r"/videos/{id}/remix",
        r"/models/{id}:(?:batchGenerateContent|asyncBatchEmbedContent|predictLongRunning)",
        r"/(?:tuningJobs|batchPredictionJobs|tunedModels)",  # google-genai 3.6.1 tunings.py, batches.py
        r"/async-invoke",
        r"/model-invocation-job",
        r"/embed-jobs",
        r"/batch/jobs",
    ),
    _row(
        EndpointClass.STATELESS_BILLED,
        _POST,
        r"/embeddings",
        r"/embed",
        r"/rerank",
        r"/moderations",
        r"/audio/(?:speech|transcriptions|translations)",
        r"/images/(?:generations|edits|variations)",
        r"/ocr",
        r"/parse",
        r"/fim/completions",
        r"/decisions",
        r"/vector_stores/{id}/search",
        r"/fine_tuning/alpha/graders/run",
        r"/models/{id}:(?:embedContent|batchEmbedContents|predict)",
        r"/guardrail/{id}/version/{id}/apply",
    ),
    # What is not listed gets this class too; the row says what is known to belong here.
    _row(
        EndpointClass.GENERATE,
        _POST,
        r"/chat(?:/completions)?",  # Cohere's is /v2/chat
        r"/completions",
        r"/complete",
        r"/responses(?:/compact)?",
        r"/messages",
        r"/threads/runs",
        r"/threads/{id}/runs(?:/{id}/submit_tool_outputs)?",
        r"/agents/(?:completions|sessions(?:/{id}/events)?)",
        r"/sessions/{id}/events",
        r"/deployments/{id}/run",
        r"/dreams",
        r"/evals/{id}/runs",
        r"/live/sessions(?:/.*)?",
        r"/realtime/calls(?:/.*)?",  # its media bypasses the proxy: the effect is outside of what can be seen here
        r"/interactions",
        r"/triggers(?:/.*)?",
        r"/(?:models|tunedModels|endpoints)/{id}:(?:generateContent|streamGenerateContent|rawPredict|streamRawPredict)",
        r"/model/[^/]+/(?:invoke|invoke-with-response-stream|converse|converse-stream)",
        r"/conversations/{id}/restart",  # Mistral: mistralai 3.7
        r"/presets/{id}/(?:chat/completions|responses|messages)",
        r"/images",  # OpenRouter's
    ),
    # OpenAI's conversations are state, Mistral's generate. One path, one class: both have the same defaults.
    _row(
        EndpointClass.STATE,
        _POST,
        r"/(?:files|uploads|containers|conversations|vector_stores|assistants|threads)(?:/.*)?",
        r"/(?:cachedContents|skills|voices|audio/voices|webhook_endpoints|webhooks)(?:/.*)?",
        r"/upload(?:/v\d+(?:beta)?)?/files",
        r"/organizations?/.*",
    ),
)

_VERSION = re.compile(r"/v\d+(?:(?:alpha|beta)\d*)?(?=[/?]|$)")
# Prefixes before the version: Groq and Azure `/openai`, OpenRouter `/api`; Azure names a deployment instead of a version.
_VENDOR_PREFIX = re.compile(r"/openai/deployments/[^/]+|/(?:openai|api)(?=/)")
# And behind it: Vertex names whose project and whose model it is; Google serves OpenAI's paths below two of its own.
_PLACE = re.compile(r"(?:/projects/[^/]+/locations/[^/]+)?(?:/publishers/[^/]+|/endpoints/openapi|/openai)?(?=/)")


def classify(method: str, path: str, family: Family = Family.OPENAI) -> EndpointClass:
    """The class of a provider path, whose query is not looked at.

    An unknown path with a method that is no plain read is effectful under the strictest defaults: `generate`. So is whatever the
    table calls harmless or cheap where nobody knows whose paths these are.
    """
    bare = _bare(path.partition("?")[0])
    if _is_mint(method, bare):
        return EndpointClass.CREDENTIAL_MINT
    found = next((row.endpoint_class for row in _TABLE if method in row.methods and row.paths.fullmatch(bare)), None)
    if found is None or (family is Family.GENERIC and method == "POST" and found in _HARMLESS):
        return EndpointClass.GENERATE
    return found


def _bare(path: str) -> str:
    """Without vendor's prefix, version and place."""
    for prefix in (_VENDOR_PREFIX, _VERSION, _PLACE):
        found = prefix.match(path)
        path = path[found.end() :] if found else path
    return path


def _is_mint(method: str, bare: str) -> bool:
    """However it is spelled: a body with a secret in it that is not kept costs nothing but a replay."""
    spelled = re.sub("/+", "/", unquote(bare)).rstrip("/")
    rows = (row for row in _TABLE if row.endpoint_class is EndpointClass.CREDENTIAL_MINT and method in row.methods)
    return any(row.paths.fullmatch(_bare(spelled)) for row in rows)


def by_body(endpoint_class: EndpointClass, *, background: bool) -> EndpointClass:
    """The class once the body is read: a response or an interaction that runs on by itself is a job."""
    return EndpointClass.JOB if background and endpoint_class is EndpointClass.GENERATE else endpoint_class


@dataclass(frozen=True, slots=True)
class _PathRule:
    version: str  # put in front of a path that names none; empty: paths stay as they are
    unversioned: frozenset[str] = frozenset()  # first segments that carry their version elsewhere
    repeats: bool = False  # whether a doubled version is one too many
    versions: Mapping[str, str] = field(default_factory=dict)  # by first segment, where it is another one


# research/clients.md section 6: the AI SDK's Anthropic base includes /v1, the Anthropic SDK's does not, and one
# environment variable feeds both; litellm's Gemini path names no version, google-genai-py's says /v1. `api` is Ollama's own
# API and OpenRouter's prefix. Claude at Vertex: anthropic 2.14 lib/vertex has /v1 in its base URL and none in its paths.
_PATH_RULES = {
    Family.OPENAI: _PathRule("/v1", unversioned=frozenset({"openai", "api"})),
    Family.ANTHROPIC: _PathRule("/v1", repeats=True),
    Family.GEMINI: _PathRule("/v1beta", unversioned=frozenset({"upload", "download"}), versions={"projects": "/v1"}),
    Family.GENERIC: _PathRule(""),
}


def provider_path(family: Family, raw_path: str, base_path: str = "") -> str:
    """The path and query to ask the provider for, given what followed the upstream's prefix; no other byte changes.

    `base_path` is the path of the upstream's base URL. A client that repeats it means it once: groq's SDK says
    /openai/v1/…, an OpenAI SDK with a base URL of its own says /v1/….
    """
    rule = _PATH_RULES[family]
    if not raw_path.startswith("/"):
        raw_path = "/" + raw_path
    if base_path and rule.version and raw_path.startswith(base_path + "/"):
        raw_path = raw_path[len(base_path) :]
    path = raw_path.partition("?")[0]
    first_segment = path.split("/")[1]
    if not rule.version or path == "/" or first_segment in rule.unversioned:
        return raw_path
    if not _VERSION.match(path):
        return rule.versions.get(first_segment, rule.version) + raw_path
    doubled = rule.version * 2
    while rule.repeats and (path == doubled or path.startswith(doubled + "/")):
        raw_path, path = raw_path[len(rule.version) :], path[len(rule.version) :]
    return raw_path
