"""What an endpoint does at the provider, and the provider's own path for the path a client used. Data, with sources.

The patterns are matched against the path without its version prefix. They match whole paths only: a path that is merely
similar to a harmless one is unknown, and an unknown path is taken for the most dangerous class.
"""

import re
from dataclasses import dataclass
from enum import StrEnum


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


# First match wins. Source of every row: research/providers.md section 7, which names the SDK or document behind it.
_TABLE = (
    # GETs with an effect: a WebSocket bills per event, Anthropic's work poll leases the work it returns.
    _row(
        EndpointClass.GENERATE,
        {"GET", "HEAD"},
        r"/realtime",
        r"/responses",
        r"/live(?:/.*)?",
        r"/environments/{id}/work/poll",
        r".*BidiGenerateContent.*",
    ),
    _row(EndpointClass.SAFE, _READS, r".*"),
    _row(
        EndpointClass.SAFE,
        _POST,
        r"/messages/count_tokens",
        r"/responses/input_tokens",
        r"/models/{id}:(?:countTokens|computeTokens)",
        r"/tunedModels/{id}:(?:countTokens|computeTokens)",
        r"/model/{id}/count-tokens",
        r"/fine_tuning/alpha/graders/validate",
        r"/fine-tunes/(?:estimate-price|preview)",
    ),
    _row(
        EndpointClass.CREDENTIAL_MINT,
        _POST,
        r"/realtime/(?:client_secrets|sessions|transcription_sessions|translations/client_secrets)",
        r"/chatkit/sessions",
        r"/auth_tokens",
        r"/organization/(?:.*/)?(?:admin_api_keys|api_keys|service_accounts)",
        r".*/rotate_{id}",
        r".*/tunnels/{id}/reveal_token",
    ),
    # DELETE and cancel end in the same state however often they arrive; POST-as-update writes the same values again.
    _row(EndpointClass.IDEMPOTENT, {"DELETE"}, r".*"),
    _row(EndpointClass.IDEMPOTENT, _POST, r"/.+/cancel", r"/.+:cancel", r"/chat/completions/{id}"),
    _row(
        EndpointClass.JOB,
        _POST,
        r"/batches",
        r"/messages/batches",
        r"/fine_tuning/jobs",
        r"/videos(?:/(?:edits|extensions|characters))?",
        r"/videos/{id}/remix",
        r"/models/{id}:(?:batchGenerateContent|asyncBatchEmbedContent|predictLongRunning)",
        r"(?:/.*)?/tuningJobs",
        r"/tunedModels",
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
    ),
    _row(
        EndpointClass.GENERATE,
        _POST,
        r"/chat/completions",
        r"/completions",
        r"/complete",
        r"/responses(?:/compact)?",
        r"/messages",
        r"/threads/runs",
        r"/threads/{id}/runs(?:/{id}/submit_tool_outputs)?",
        r"/agents/sessions(?:/{id}/events)?",
        r"/sessions/{id}/events",
        r"/evals/{id}/runs",
        r"/interactions",
        r"/(?:models|tunedModels)/{id}:(?:generateContent|streamGenerateContent)",
    ),
    _row(
        EndpointClass.STATE,
        _POST,
        r"/(?:files|uploads|containers|conversations|vector_stores|assistants|threads)(?:/.*)?",
        r"/(?:cachedContents|skills|voices|audio/voices|webhook_endpoints|webhooks)(?:/.*)?",
        r"/upload(?:/v\d+(?:beta)?)?/files",
        r"/organization/.*",
    ),
)

_VERSION = re.compile(r"/v\d+(?:(?:alpha|beta)\d*)?(?=[/?]|$)")
# Prefixes before the version: Groq and Azure `/openai`, OpenRouter `/api`; Azure names a deployment instead of a version.
_VENDOR_PREFIX = re.compile(r"/openai/deployments/[^/]+|/(?:openai|api)(?=/)")


def classify(method: str, path: str) -> EndpointClass:
    """The class of a provider path, whose query is not looked at.

    An unknown path with a method that is no plain read is effectful under the strictest defaults: `generate`.
    """
    bare = path.partition("?")[0]
    for prefix in (_VENDOR_PREFIX, _VERSION):
        found = prefix.match(bare)
        bare = bare[found.end() :] if found else bare
    for row in _TABLE:
        if method in row.methods and row.paths.fullmatch(bare):
            return row.endpoint_class
    return EndpointClass.GENERATE


@dataclass(frozen=True, slots=True)
class _PathRule:
    version: str  # put in front of a path that names none; empty: paths stay as they are
    unversioned: frozenset[str] = frozenset()  # first segments that carry their version elsewhere
    repeats: bool = False  # whether a doubled version is one too many


# research/clients.md section 6: the AI SDK's Anthropic base includes /v1, the Anthropic SDK's does not, and one
# environment variable feeds both; litellm's Gemini path names no version, google-genai-py's says /v1.
_PATH_RULES = {
    Family.OPENAI: _PathRule("/v1", unversioned=frozenset({"openai"})),
    Family.ANTHROPIC: _PathRule("/v1", repeats=True),
    Family.GEMINI: _PathRule("/v1beta", unversioned=frozenset({"upload", "download"})),
    Family.GENERIC: _PathRule(""),
}


def provider_path(family: Family, raw_path: str) -> str:
    """The path and query to ask the provider for, given what followed the upstream's prefix; no other byte changes."""
    rule = _PATH_RULES[family]
    if not raw_path.startswith("/"):
        raw_path = "/" + raw_path
    path = raw_path.partition("?")[0]
    if not rule.version or path == "/" or path.split("/")[1] in rule.unversioned:
        return raw_path
    if not _VERSION.match(path):
        return rule.version + raw_path
    doubled = rule.version * 2
    while rule.repeats and (path == doubled or path.startswith(doubled + "/")):
        raw_path, path = raw_path[len(rule.version) :], path[len(rule.version) :]
    return raw_path
