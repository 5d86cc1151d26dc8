"""The answers that the proxy itself gives: semantics.md section 7 as data.

No one status stops every client at once with our text shown, so the status depends on the column (measured:
research/clients.md section 2). One body serves all: each dialect finds its own error envelope in it, and it is
problem+json beside. The same facts always give the same bytes. docs/codes.md explains every code to users.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from proxy.codes import CODES, Code, Group
from proxy.endpoints import Family
from proxy.headers import RawHeaders

RETRY_AFTER_S = 1  # long enough for a pause of ours, shorter than any SDK's limit for obeying it


class Column(StrEnum):
    """The columns of the table."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    OTHERS = "others"


@dataclass(frozen=True, slots=True)
class GroupRow:
    """`error_type` is OpenAI's and Anthropic's word, `rpc_status` Google's."""

    statuses: Mapping[Column, int]
    should_retry: bool
    has_retry_after: bool
    error_type: str
    rpc_status: str


def _everywhere(status: int) -> dict[Column, int]:
    return dict.fromkeys(Column, status)


# OpenAI 400: the only status that Codex shows and does not retry. Anthropic 424: on 400 and 422 Claude Code sends other
# bodies at once, on 404 it re-asks without streaming. Gemini 424: one try in every client.
_FINAL_STATUSES = {Column.OPENAI: 400, Column.ANTHROPIC: 424, Column.GEMINI: 424, Column.OTHERS: 409}

GROUPS = {
    Group.FINAL: GroupRow(_FINAL_STATUSES, False, False, "invalid_request_error", "FAILED_PRECONDITION"),
    Group.KEY_REUSED: GroupRow(
        {**_FINAL_STATUSES, Column.OTHERS: 422}, False, False, "invalid_request_error", "FAILED_PRECONDITION"
    ),
    Group.IN_PROGRESS: GroupRow(_everywhere(409), True, True, "api_error", "ABORTED"),
    Group.NOT_SENT: GroupRow(_everywhere(503), True, True, "api_error", "UNAVAILABLE"),
    Group.LOST: GroupRow(_everywhere(502), True, False, "api_error", "UNAVAILABLE"),
    Group.BAD_REQUEST: GroupRow(_everywhere(400), False, False, "invalid_request_error", "INVALID_ARGUMENT"),
}


@dataclass(frozen=True, slots=True)
class OwnAnswer:
    """An answer by the proxy itself, whole and small."""

    status: int
    headers: RawHeaders
    body: bytes


def column(family: Family) -> Column:
    """The column of an upstream. By family, not by endpoint: one SDK talks to all endpoints of a family."""
    return Column.OTHERS if family is Family.GENERIC else Column(family.value)


def sentence(code: Code, *, call: str | None = None, attempt: str | None = None, since: str | None = None) -> str:
    """The code's plain sentence about these facts; a fact that is not known is said to be unknown."""
    known = {"call": call or "CALL", "attempt": attempt or "ATTEMPT", "since": since or "an unknown time"}
    return CODES[code].sentence.format(**known)


def cut_answer(*, accepts: bool) -> Code:
    """What a client hears within a stream that broke off: what the same request would get next."""
    return Code.UPSTREAM_LOST if accepts else Code.EFFECT_HAPPENED


def lost_answer(*, accepts: bool) -> Code:
    """What a client hears whose request was sent and lost before the head: what the same request would get next."""
    return Code.UPSTREAM_LOST if accepts else Code.EFFECT_UNKNOWN


def render(
    code: Code,
    to: Column,
    text: str | None = None,
    *,
    call: str | None = None,
    attempt: str | None = None,
    since: str | None = None,
    next_operation: str | None = None,
    options: str = "",
) -> OwnAnswer:
    """The answer for a code. `text` replaces the table's sentence, `options` end its command (to find the state dir)."""
    row, group = CODES[code], GROUPS[CODES[code].group]
    status = row.status or group.statuses[to]
    text = text or sentence(code, call=call, attempt=attempt, since=since)
    remedy = None
    if row.remedy is not None and (call is not None or "{" not in row.remedy):
        remedy = row.remedy.format(call=call, options=options)
    document: dict[str, object] = {
        "error": {
            # Most clients show nothing but this message, so it says how to settle it too.
            "message": text if remedy is None else f"{text} Next step: {remedy}",
            "type": group.error_type,
            # Google's code is the status; everyone else's is a word.
            "code": status if to is Column.GEMINI else code.value,
            "param": None,
            "status": group.rpc_status,
        },
        "type": "error",
        "title": row.title,
        "status": status,
        "detail": text,
        "code": code.value,
    }
    optional = {"call": call, "attempt": attempt, "since": since, "next_operation": next_operation}
    optional["remedy"] = remedy
    document |= {name: value for name, value in optional.items() if value is not None}
    body = json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
    headers = [
        (b"Content-Type", b"application/json"),
        (b"Content-Length", str(len(body)).encode()),
        (b"x-should-retry", b"true" if group.should_retry else b"false"),
    ]
    if group.has_retry_after:
        headers.append((b"Retry-After", str(RETRY_AFTER_S).encode()))
    return OwnAnswer(status, tuple(headers), body)
