"""Every code of an answer by the proxy itself: semantics.md section 7 as data. docs/codes.md explains them to users."""

from dataclasses import dataclass
from enum import StrEnum


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
    TOKEN_REQUIRED = "token_required"  # noqa: S105 - a code


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
        "sendonce did not send this request: no earlier start of the run made it, and the effect of one that they sent at {since} is"
        " unknown. It may be that one in other words: a clock, a random id or another tool result in its prompt makes a new request of"
        " it. Settle that one, or start the run with --on-divergence continue.",
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
    Code.TOKEN_REQUIRED: CodeRow(
        Group.BAD_REQUEST,
        "A token of this proxy is required",
        "sendonce did not send this request: it asks every client for its token. Send it as the header Sendonce-Token.",
        status=401,
    ),
}
