"""The answers that the proxy itself gives: semantics.md section 7 as data.

No one status stops every client at once with our text shown, so the status depends on the column (measured:
research/clients.md section 2). One body serves all: each dialect finds its own error envelope in it, and it is
problem+json beside. The same facts always give the same bytes. docs/codes.md explains every code to users.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from proxy.endpoints import Family
from proxy.headers import RawHeaders

RETRY_AFTER_S = 1  # long enough for a pause of ours, shorter than any SDK's limit for obeying it


class Column(StrEnum):
    """The columns of the table."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    OTHERS = "others"


class Group(StrEnum):
    """Codes that a client has to treat alike."""

    FINAL = "final"  # a retry cannot mend it
    KEY_REUSED = "key_reused"
    IN_PROGRESS = "in_progress"
    NOT_SENT = "not_sent"  # proven not sent: trying again is right
    LOST = "lost"  # sent and lost, and a setting accepts a second effect
    BAD_REQUEST = "bad_request"


class Code(StrEnum):
    """Stable: clients and dashboards may rely on them. Texts may change."""

    EFFECT_UNKNOWN = "effect_unknown"
    EFFECT_HAPPENED = "effect_happened"
    PROTOCOL_MARKER_INVALID = "protocol_marker_invalid"
    DRIFT = "drift"
    PARKED = "parked"
    RESPONSE_LOST = "response_lost"
    RESPONSE_ERASED = "response_erased"
    FORM_DIFFERS = "form_differs"
    CALLER_CHANGED = "caller_changed"
    STALE_PASS = "stale_pass"  # noqa: S105 - a code
    RUN_DIVERGED = "run_diverged"
    CORRUPTION = "corruption"
    REDIRECT_REFUSED = "redirect_refused"
    KEY_REUSED = "key_reused"
    IN_PROGRESS = "in_progress"
    CANNOT_RECORD = "cannot_record"
    DRAINING = "draining"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    OVERLOADED = "overloaded"
    UPSTREAM_LOST = "upstream_lost"
    UNKNOWN_UPSTREAM = "unknown_upstream"
    BODY_TOO_LARGE = "body_too_large"
    BAD_TARGET = "bad_target"
    BAD_KEY = "bad_key"
    BAD_FRAMING = "bad_framing"
    UPGRADE_UNSUPPORTED = "upgrade_unsupported"


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
class CodeRow:
    """`sentence` and `remedy` have {placeholders}, see `sentence()`; `status` overrides the group's in all columns."""

    group: Group
    title: str
    sentence: str
    remedy: str | None = None
    status: int | None = None


# A shell takes it as it is; parking is the decision that does the least.
_RECONCILE = 'sendonce reconcile {call}{options} --reason "…" --park  # or --served, --not-served, --accept-duplicate'
_ACCEPT = " To accept a possible duplicate, send it again with the header Sendonce-Accept: {attempt}."

CODES = {
    Code.EFFECT_UNKNOWN: CodeRow(
        Group.FINAL,
        "Whether the provider served it is unknown",
        "This request was sent at {since}, and whether the provider served it is unknown, so sendonce does not send it again."
        + _ACCEPT,
        _RECONCILE,
    ),
    Code.EFFECT_HAPPENED: CodeRow(
        Group.FINAL,
        "The provider began to serve it, and its answer is incomplete",
        "This request was sent at {since} and the provider began to answer it, but the answer broke off, so sendonce does not"
        " send it again." + _ACCEPT,
        _RECONCILE,
    ),
    Code.PROTOCOL_MARKER_INVALID: CodeRow(
        Group.FINAL,
        "The record does not prove that it was not sent",
        "sendonce did not send this request again: an identical one was recorded at {since} by an epoch that does not"
        " follow started-before-send/1, so a missing attempt proves nothing. To have it served, use a new key.",
        "sendonce show {call}{options}",
    ),
    Code.DRIFT: CodeRow(
        Group.FINAL,
        "The request changed under its key",
        "sendonce did not send this request: the one recorded under the same key at {since} is different,"
        " and was not sent yet. Repeat that one unchanged, or use a new key.",
        "sendonce show {call}{options}",
    ),
    Code.PARKED: CodeRow(
        Group.FINAL,
        "Set aside by a decision",
        "sendonce did not send this request: an operator set an identical one, sent at {since}, aside.",
        "sendonce show {call}{options}",
    ),
    Code.RESPONSE_LOST: CodeRow(
        Group.FINAL,
        "Served, and the answer is not kept",
        "sendonce did not send this request again: the provider served an identical one sent at {since},"
        " and its answer is not kept. To have it served anew, use a new key.",
        "sendonce show {call}{options}",
    ),
    Code.RESPONSE_ERASED: CodeRow(
        Group.FINAL,
        "Served, and the answer was erased",
        "sendonce did not send this request again: the provider served an identical one sent at {since},"
        " and its answer was erased. To have it served anew, use a new key.",
        "sendonce show {call}{options}",
    ),
    Code.FORM_DIFFERS: CodeRow(
        Group.FINAL,
        "The answer is kept in another form",
        "sendonce did not send this request again: the provider's answer to an identical one, sent at {since},"
        " is kept in another form (streamed or not). Ask for it in the form of the first request.",
        "sendonce show {call}{options}",
    ),
    Code.CALLER_CHANGED: CodeRow(
        Group.FINAL,
        "Another credential",
        "sendonce did not hand out this answer: the identical request at {since} was sent with another credential."
        " Send it with that credential.",
        "sendonce show {call}{options}",
    ),
    Code.STALE_PASS: CodeRow(
        Group.FINAL,
        "A newer start of the run exists",
        "sendonce did not send this request: it belongs to an earlier start of its run. Stop the old program.",
    ),
    Code.RUN_DIVERGED: CodeRow(
        Group.FINAL,
        "The run took another way",
        "sendonce did not send this request: the run asks for something new while the effect of a request"
        " sent at {since} is unknown.",
        _RECONCILE,
    ),
    Code.CORRUPTION: CodeRow(
        Group.FINAL,
        "The records contradict each other",
        "sendonce did not send this request: its records of an identical one contradict each other."
        " A person must look at them first.",
        "sendonce show {call}{options}",
    ),
    Code.REDIRECT_REFUSED: CodeRow(
        Group.FINAL,
        "The provider redirected",
        "The provider answered with a redirect, which sendonce neither follows nor passes on: the request could be"
        " served twice. Correct the upstream's base URL.",
    ),
    Code.KEY_REUSED: CodeRow(
        Group.KEY_REUSED,
        "The key names another request",
        "sendonce did not send this request: its Idempotency-Key was used at {since} for a different request,"
        " which was sent. Use a new key for a new request.",
        "sendonce show {call}{options}",
    ),
    Code.IN_PROGRESS: CodeRow(
        Group.IN_PROGRESS,
        "An identical request is in flight",
        "sendonce did not send this request again: an identical one is being served since {since}. Try again shortly.",
    ),
    Code.CANNOT_RECORD: CodeRow(
        Group.NOT_SENT,
        "The ledger cannot be written",
        "sendonce did not send this request: it cannot record, and what it cannot record it does not send."
        " Try again once the operator has mended the state dir.",
        "sendonce status",
    ),
    Code.DRAINING: CodeRow(
        Group.NOT_SENT,
        "Shutting down",
        "sendonce did not send this request: it is shutting down. Try again shortly.",
    ),
    Code.UPSTREAM_UNREACHABLE: CodeRow(
        Group.NOT_SENT,
        "The provider cannot be reached",
        "sendonce could not connect to the upstream; nothing of the request was sent. Try again shortly.",
    ),
    Code.OVERLOADED: CodeRow(
        Group.NOT_SENT,
        "Too many requests wait",
        "sendonce did not send this request: too many others wait to be recorded. Try again shortly.",
    ),
    Code.UPSTREAM_LOST: CodeRow(
        Group.LOST,
        "The connection was lost",
        "The connection to the provider was lost after the request was sent; whether it was served is unknown."
        " By a setting, sendonce will send it again if you ask again.",
    ),
    Code.UNKNOWN_UPSTREAM: CodeRow(
        Group.BAD_REQUEST,
        "No such upstream",
        "The first part of the path names no upstream. Start the path with a configured name, such as /openai.",
        status=404,
    ),
    Code.BODY_TOO_LARGE: CodeRow(
        Group.BAD_REQUEST,
        "The body is too large",
        "The request body is larger than the body limit of this proxy. Send a smaller one or raise the limit.",
        status=413,
    ),
    Code.BAD_TARGET: CodeRow(
        Group.BAD_REQUEST,
        "The request target cannot be forwarded",
        "The request target or method cannot be forwarded unambiguously. Send a plain path without dot segments.",
    ),
    Code.BAD_KEY: CodeRow(
        Group.BAD_REQUEST,
        "The Idempotency-Key cannot be used",
        "The header Idempotency-Key cannot be used. Send it once, with 1 to 255 visible characters.",
    ),
    Code.BAD_FRAMING: CodeRow(
        Group.BAD_REQUEST,
        "The request's framing is not acceptable",
        "The request's framing is ambiguous or broke off. Send HTTP/1.1 with one Content-Length.",
    ),
    Code.UPGRADE_UNSUPPORTED: CodeRow(
        Group.BAD_REQUEST,
        "Upgrades are not supported",
        "This proxy does not upgrade connections. Use plain HTTP.",
        status=426,
    ),
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
