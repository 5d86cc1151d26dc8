"""The table of formats: which endpoint answers in which way. Pure.

OpenAI Responses and Gemini get a module of their own and a row here. Gemini names the model in the path, so its row
will also have to say where the model is read; until then that is the body's `model` for every format.
"""

from collections.abc import Collection
from dataclasses import dataclass

from synthetic_provider import anthropic_wire, openai_wire
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
    path: str  # without the query
    format: Format
    header: str | None = None  # only where a header of this name came; tells apart what real providers tell by host


# The first row that matches answers; what matches none is echoed.
ROWS = (
    Row("POST", "/v1/chat/completions", openai_wire.CHAT),
    Row("POST", "/v1/embeddings", openai_wire.EMBEDDINGS),
    Row("POST", "/v1/messages", anthropic_wire.MESSAGES),
    Row("POST", "/v1/messages/count_tokens", anthropic_wire.COUNT_TOKENS),
    Row("GET", "/v1/models", anthropic_wire.MODELS, header="anthropic-version"),
    Row("GET", "/v1/models", openai_wire.MODELS),
)


def format_of(method: str, target: str, header_names: Collection[str]) -> Format:
    path = target.partition("?")[0]
    for row in ROWS:
        if (row.method, row.path) == (method, path) and (row.header is None or row.header in header_names):
            return row.format
    return ECHO
