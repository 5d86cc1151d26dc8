"""The table of look-ups and exports: what can be asked after the fact, and who may ask."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

import orjson

from synthetic_provider import anthropic_wire, exports, exports_anthropic, lookups_wire, openai_wire
from synthetic_provider.asked import Asked, Events, Lines, RefusedError, Told
from synthetic_provider.script import Step, resumed, told
from synthetic_provider.usage import credential_of
from synthetic_provider.wire import JsonObject


class Family(StrEnum):
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    OPENROUTER = "openrouter"


@dataclass(frozen=True, slots=True)
class Lookup:
    method: str
    path: re.Pattern[str]  # its groups are the names that `answer` takes
    answer: Callable[..., Told]
    family: Family = Family.OPENAI
    admin: bool = False


def _path(text: str) -> re.Pattern[str]:
    """`*` stands for an id."""
    return re.compile(re.escape(text).replace(r"\*", "([^/]+)"))


def _of_anthropic(path: str, answer: Callable[..., Told], *, admin: bool = False) -> Lookup:
    return Lookup("GET", _path(path), answer, Family.ANTHROPIC, admin)


LOOKUPS = (
    Lookup("GET", _path("/v1/responses/*"), lookups_wire.response),
    Lookup("POST", _path("/v1/responses/*/cancel"), lookups_wire.cancelled_response),
    Lookup("GET", _path("/v1/chat/completions"), lookups_wire.chats),
    Lookup("GET", _path("/v1/chat/completions/*"), lookups_wire.chat),
    Lookup("GET", _path("/api/v1/generation"), lookups_wire.generation, Family.OPENROUTER),
    Lookup("GET", _path("/v1/batches"), lookups_wire.batches),
    Lookup("GET", _path("/v1/batches/*"), lookups_wire.batch),
    Lookup("POST", _path("/v1/batches/*/cancel"), lookups_wire.cancelled_batch),
    Lookup("GET", _path("/v1/organization/usage/completions"), exports.completions, admin=True),
    Lookup("GET", _path("/v1/organization/usage/embeddings"), exports.embeddings, admin=True),
    Lookup("GET", _path("/v1/organization/costs"), exports.costs, admin=True),
    _of_anthropic("/v1/messages/batches", lookups_wire.message_batches),
    _of_anthropic("/v1/messages/batches/*", lookups_wire.message_batch),
    _of_anthropic("/v1/messages/batches/*/results", lookups_wire.message_batch_results),
    _of_anthropic("/v1/organizations/usage_report/messages", exports_anthropic.usage_report, admin=True),
    _of_anthropic("/v1/organizations/cost_report", exports_anthropic.cost_report, admin=True),
)

_REQUEST_ID = {Family.OPENAI: "x-request-id", Family.ANTHROPIC: "request-id"}
_ADMIN_KEYS = {Family.OPENAI: "sk-admin-", Family.ANTHROPIC: "sk-ant-admin"}
WITHOUT_PERMISSION = "no-permission"  # a key that contains it may generate, but look nothing up


def looked_up(asked: Asked) -> Iterator[Step] | None:
    """The script of the answer; None where the request looks nothing up."""
    for lookup in LOOKUPS:
        found = lookup.path.fullmatch(asked.path) if lookup.method == asked.request.method else None
        if found is not None:
            return _answered(asked, lookup, tuple(map(unquote, found.groups())))
    return None


def _answered(asked: Asked, lookup: Lookup, names: tuple[str, ...]) -> Iterator[Step]:
    receipt, named = asked.receipt.n, _REQUEST_ID.get(lookup.family)
    request_id = f"req_{receipt:024d}"
    headers = {"content-type": "application/json", **({named: request_id} if named else {})}
    try:
        _authorise(asked, lookup)
        answer = lookup.answer(asked, *names)
    except RefusedError as refused:
        envelope = _envelope(lookup.family, refused.status, str(refused), request_id)
        return told(receipt, refused.status, headers, orjson.dumps(envelope))
    match answer:
        case Lines(lines):
            headers["content-type"] = "application/x-jsonl"
            return told(receipt, 200, headers, b"".join(orjson.dumps(line) + b"\n" for line in lines))
        case Events(parts):
            headers |= {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
            return resumed(receipt, headers, parts)
        case _:
            return told(receipt, 200, headers, orjson.dumps(answer))


def _authorise(asked: Asked, lookup: Lookup) -> None:
    credential = credential_of(asked.request)
    if not credential:
        raise RefusedError(401, "No credential came with the request: send the provider's key header.")
    if WITHOUT_PERMISSION in credential:
        raise RefusedError(403, "This key has no permission for this endpoint.")
    if lookup.admin and not credential.startswith(_ADMIN_KEYS[lookup.family]):
        raise RefusedError(403, f"This endpoint wants an admin key, {_ADMIN_KEYS[lookup.family]}….")


def _envelope(family: Family, status: int, message: str, request_id: str) -> Mapping[str, object] | JsonObject:
    match family:
        case Family.ANTHROPIC:
            return anthropic_wire.envelope(request_id, status, message)
        case Family.OPENROUTER:
            return openai_wire.openrouter_envelope(status, message)
        case Family.OPENAI:
            code = "invalid_api_key" if status == 401 else None
            return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
