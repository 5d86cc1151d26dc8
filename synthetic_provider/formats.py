"""The table of formats: which endpoint answers in which way, and where its model is named. Pure.

Gemini names the model in the path, the others in the body. google-genai writes a model name into the path as it stands,
`/`, `=` and `,` included (a space as %20), so `synthetic/hold=5,cut=3` reaches us whole; quoted characters are read too.
On Vertex it takes the name before the first `/` for the publisher: `publishers/synthetic/models/hold=5,cut=3` names the
same model, as Vertex names `anthropic/claude`.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import unquote

from synthetic_provider import (
    anthropic_wire,
    batches_wire,
    gemini_wire,
    openai_files_wire,
    openai_wire,
    responses_wire,
)
from synthetic_provider.wire import Ask, Format, JsonObject


def _echo(ask: Ask) -> JsonObject:
    return {
        "object": "echo",
        "method": ask.method,
        "path": ask.path,
        "body_bytes": ask.body_bytes,
        "receipt": ask.receipt,
    }


ECHO = Format("echo", "x-request-id", _echo, openai_wire.error)


@dataclass(frozen=True, slots=True)
class Row:
    method: str
    path: str  # without the query; what begins with ":" is a method of a Gemini model
    format: Format
    header: str | None = None  # only where a header of this name came; tells apart what real providers tell by host
    query: str | None = None  # only where the query has this parameter


@dataclass(frozen=True, slots=True)
class Endpoint:
    format: Format
    model: str | None  # as the path names it


# The first row that matches answers; what matches none is echoed.
ROWS = (
    Row("POST", "/v1/chat/completions", openai_wire.CHAT),
    Row("POST", "/api/v1/chat/completions", openai_wire.OPENROUTER_CHAT),
    Row("POST", "/v1/responses", responses_wire.RESPONSES),
    Row("POST", "/v1/responses/input_tokens", responses_wire.INPUT_TOKENS),
    Row("POST", "/v1/embeddings", openai_wire.EMBEDDINGS),
    Row("POST", "/v1/moderations", openai_files_wire.MODERATIONS),
    Row("POST", "/v1/files", openai_files_wire.FILES),
    Row("POST", "/v1/uploads", openai_files_wire.UPLOADS),
    Row("POST", "/v1/audio/transcriptions", openai_files_wire.TRANSCRIPTIONS),
    Row("POST", "/v1/audio/speech", openai_files_wire.SPEECH),
    Row("POST", "/v1/messages", anthropic_wire.MESSAGES),
    Row("POST", "/v1/messages/count_tokens", anthropic_wire.COUNT_TOKENS),
    Row("POST", "/v1/batches", batches_wire.BATCHES),
    Row("POST", "/v1/messages/batches", batches_wire.MESSAGE_BATCHES),
    Row("POST", ":generateContent", gemini_wire.GENERATE),
    Row("POST", ":streamGenerateContent", gemini_wire.STREAM, query="alt=sse"),
    Row("POST", ":streamGenerateContent", gemini_wire.ARRAY),
    Row("POST", ":countTokens", gemini_wire.COUNT_TOKENS),
    Row("POST", ":embedContent", gemini_wire.EMBED),
    Row("POST", ":batchEmbedContents", gemini_wire.BATCH_EMBED),
    Row("GET", "/v1/models", anthropic_wire.MODELS, header="anthropic-version"),
    Row("GET", "/v1/models", openai_wire.MODELS),
)

# litellm leaves the version out.
_OF_GEMINI_MODEL = re.compile(
    r"(?:/v1[a-z0-9]*)?/(?:projects/[^/]+/locations/[^/]+/)?(?:publishers/(?P<publisher>[^/]+)/)?"
    r"models/(?P<model>.+)(?P<verb>:[A-Za-z]+)"
)


def endpoint_of(method: str, target: str, header_names: Collection[str]) -> Endpoint:
    path, _, query = target.partition("?")
    of_model = _OF_GEMINI_MODEL.fullmatch(unquote(path))
    place = path if of_model is None else of_model["verb"]
    for row in ROWS:
        if (
            (row.method, row.path) == (method, place)
            and (row.header is None or row.header in header_names)
            and (row.query is None or row.query in query.split("&"))
        ):
            return Endpoint(row.format, None if of_model is None else _gemini_model(of_model))
    return Endpoint(ECHO, None)


def _gemini_model(found: re.Match[str]) -> str:
    publisher = found["publisher"]
    return found["model"] if publisher in (None, "google") else f"{publisher}/{found['model']}"
