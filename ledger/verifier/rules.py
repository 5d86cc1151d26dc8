"""What each event must satisfy, given those before it (FORMAT.md, section 9): one function a claim, and their table."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from ledger.verifier.calls import Call, is_legal
from ledger.verifier.fold import Ledger
from ledger.verifier.passes import PASS_CHECKS, PASS_CORRUPTING
from ledger.verifier.records import EVENTS, MARKER, OF_LEDGER, Event
from ledger.verifier.report import Check

# A call that breaks one of these is corrupt from there on.
CORRUPTING = {
    "order_illegal", "claim_illegal", "second_attempt_unaccepted", "occurrence_without_evidence", "decision_forged",
    "head_unknown", "resumed_digest_differs", "resumption_missing", "release_before_observation", "epoch_not_open",
    "epoch_marker_missing", "erasure_illegal", "authority_forged", "status_differs", "outcome_differs", "body_withheld",
    *PASS_CORRUPTING,
}  # fmt: skip
CREDENTIAL_HEADER = re.compile(
    "authorization|cookie|api-key|apikey|secret|signature|credential|password|token$", re.IGNORECASE
)
CREDENTIAL_PARAMETERS = {
    "key", "api_key", "api-key", "apikey", "x-api-key", "x-goog-api-key", "subscription-key", "token", "access_token",
    "id_token", "refresh_token", "auth", "auth_token", "authorization", "sig", "signature", "secret", "client_secret",
    "password", "awsaccesskeyid", "x-amz-signature", "x-amz-credential", "x-amz-security-token", "x-goog-signature",
    "x-goog-credential",
}  # fmt: skip
URL = re.compile(r"\s*[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)  # its group: user info and host
# Which statuses of a response an effect may be read off; `unknown` off any.
SERVED = range(200, 300)
REFUSED = frozenset(range(400, 500))
READ_OFF = {
    "absent": (REFUSED - {408, 409, 425, 499}) | {529, 307, 308},
    "happened": frozenset(SERVED),
    "answered": frozenset(SERVED) | REFUSED | frozenset(range(500, 600)),
}
CLOSING = {"decided_parked", "decided_served"}  # nobody continues what stands decided so
PERMITTING = {"decided_accept_duplicate", "decided_not_served"}  # what an operator's word continues
CALLERS_WORD = "Sendonce-Accept"
SETTINGS = {"on_unknown", "after_server_error", "after_gateway_error", "after_cut_stream", "mode"}
LOWEST_RECORD_LIMIT_BYTES = 1024 * 1024  # a larger body may be beyond what its proxy was told to keep
UNKEPT_ENDPOINT = "credential_mint"  # the one whose bodies are secrets
UNANSWERED = {"preparation_failed", "abandoned"}  # the proxy's own answer ends these, so there is nothing to observe


def numbered(ledger: Ledger, event: Event, _: Call | None) -> list[str]:
    return [] if event.seq == ledger.length + 1 else ["seq_gap"]


def epochs(ledger: Ledger, event: Event, _: Call | None) -> list[str]:
    data = event.data
    if event.kind in {"epoch.configured", "epoch.closed"}:
        return [] if data["epoch"] == ledger.open_epoch else ["epoch_out_of_order"]
    names = []
    if ledger.open_epoch is not None or data["epoch"] != len(ledger.epochs) + 1:
        names.append("epoch_out_of_order")
    if data["protocol"] != MARKER:
        names.append("epoch_marker_missing")
    if data["ledger_id"] != ledger.ledger_id:
        names.append("ledger_id_differs")
    return names


def belongs_to_epoch(ledger: Ledger, event: Event, call: Call | None) -> list[str]:
    if event.kind == "attempt.started" and call is not None and not call.marked:
        return ["epoch_marker_missing"]
    named = {event.data["epoch"], *([call.epoch] if call is not None and call.epoch is not None else [])}
    return [] if named == {ledger.open_epoch} else ["epoch_not_open"]


def ladder(_: Ledger, event: Event, call: Call | None) -> list[str]:
    """A call that is corrupt already is judged no further: one cause, one finding."""
    call = call or Call(event.call or "")
    if call.corrupt or is_legal(call, event):
        return []
    earlier = any(attempt.may_have_effect for attempt in call.attempts.values())
    return ["order_illegal", *(["second_attempt_unaccepted"] if event.kind == "attempt.started" and earlier else [])]


def reason_of(claim: Mapping[str, Any]) -> str:
    """The `why_new` that a claim's other fields make it."""
    if claim["continues"] is None:
        return "first" if claim["occurrence"] == 1 else "second_sample"
    return "resumed" if claim["authority"] is None else "decision"


def claims(ledger: Ledger, event: Event, _: Call | None) -> list[str]:
    data = event.data
    before = ledger.groups.get((data["scope"], data["key"], data["occurrence"]))
    names = [] if data["why_new"] == reason_of(data) else ["claim_illegal"]
    if data["continues"] is None:
        expected = ledger.occurrences.get((data["scope"], data["key"]), 0) + 1
        if (data["generation"], data["occurrence"]) != (1, expected):
            names.append("claim_illegal")
        if data["occurrence"] > 1 and not data["evidence"]:
            names.append("occurrence_without_evidence")
    elif (
        before is None
        or before.identity is None
        or before.call_id != data["continues"]
        or data["generation"] != before.identity["generation"] + 1
    ):
        names.append("claim_illegal")
    if before is not None and before.effect != "absent":
        accepted = data["accepts_attempt"] == f"{before.call_id}.{before.newest}" and data["authority"] is not None
        if not accepted:
            names.append("second_attempt_unaccepted")
    return names


def authorities(ledger: Ledger, event: Event, _: Call | None) -> list[str]:
    """Of a claim that continues a call that is there; another is illegal already."""
    authority = event.data["authority"]
    continued = ledger.calls.get(event.data["continues"] or "")
    if continued is None:
        return []
    if continued.evidence in CLOSING:
        return ["authority_forged"]
    if authority is None:
        return []
    epoch = ledger.epochs.get(ledger.open_epoch or 0)
    holds = {
        "operator": continued.evidence in PERMITTING,
        "caller": authority["name"] == CALLERS_WORD,
        "setting": authority["name"] in SETTINGS
        and epoch is not None
        and authority["config_digest"] in epoch.config_digests,
    }
    return [] if holds[authority["kind"]] else ["authority_forged"]


def decisions(ledger: Ledger, event: Event, call: Call | None) -> list[str]:
    data, before = event.data, ledger.newest
    holds = (
        before is not None
        and before.kind == "reconcile.observed"
        and before.call == event.call
        and ledger.link(data["head_seq"]) == data["head_chain"]
        and data["succeeds"] == (call.decision_seq if call else None)
    )
    return [] if holds else ["decision_forged"]


def resumptions(ledger: Ledger, event: Event, call: Call | None) -> list[str]:
    if event.kind == "attempt.started":
        before = ledger.calls.get(call.continues) if call is not None and call.continues else None
        owed = call is not None and before is not None and before.asks is not None and not call.resumed
        return ["resumption_missing"] if owed else []
    data = event.data
    before = ledger.calls.get(data["continues"])
    names = [] if ledger.link(data["head_seq"]) == data["head_chain"] else ["head_unknown"]
    if (
        call is None
        or call.asks is None
        or before is None
        or before.asks is None
        or call.continues != data["continues"]
    ):
        return [*names, "claim_illegal"]
    differing = {word for word, asked in call.asks.items() if asked != before.asks[word]}
    allowed = set(data["differences"]) & {"url", "body", "context"}
    return [*names, *(["resumed_digest_differs"] if differing - allowed else [])]


def releases(_: Ledger, event: Event, call: Call | None) -> list[str]:
    """A client that leaves early (`no`) was given no end, so it may leave at any time."""
    if event.data["how"] == "no" or (call is not None and call.evidence in UNANSWERED):
        return []
    attempt = call.attempts.get(event.attempt or call.newest) if call is not None else None
    return [] if attempt is not None and attempt.seen else ["release_before_observation"]


def erasures(_: Ledger, event: Event, call: Call | None) -> list[str]:
    body = (event.data["which"], event.data["digest"])
    return [] if call is not None and call.kept.get(body) else ["erasure_illegal"]


def statuses(_: Ledger, event: Event, call: Call | None) -> list[str]:
    """Who saw the head saw its status; a late or recovered observation is of another head."""
    attempt = call.attempts.get(event.attempt or 0) if call is not None else None
    bound = event.data["source"] in ("live", "salvage") and attempt is not None and attempt.acknowledged_seq > 0
    differs = bound and attempt is not None and event.data["status"] != attempt.acknowledged_status
    return ["status_differs"] if differs else []


def outcomes(_: Ledger, event: Event, call: Call | None) -> list[str]:
    """Without any interpretation the ladder does not allow it, which is a finding of its own."""
    attempt = call.attempt if call is not None else None
    told = attempt.outcome if attempt is not None else None
    return [] if told in (None, event.data["outcome"]) else ["outcome_differs"]


def withheld(_: Ledger, event: Event, call: Call | None) -> list[str]:
    """Bytes that were not kept cannot be read again, so only those of one kind may be."""
    body = event.data["body"]
    mints = call is not None and call.endpoint_class == UNKEPT_ENDPOINT
    may = body is None or body["kept"] or mints or body["size"] > LOWEST_RECORD_LIMIT_BYTES
    return [] if may else ["body_withheld"]


def interpretations(_: Ledger, event: Event, call: Call | None) -> list[str]:
    """A necessary condition only: whether the bytes say so, the interpreter judged."""
    attempt = call.attempts.get(event.attempt or 0) if call is not None else None
    effect, status = event.data["effect"], attempt.status if attempt is not None else None
    whole = attempt is not None and attempt.observation == "response"
    proven = effect not in READ_OFF or (status in READ_OFF[effect] and (whole or effect != "absent"))
    return [] if proven else ["effect_unproven"]


def credentials(_: Ledger, event: Event, __: Call | None) -> list[str]:
    """A header's value may be a URL too, a `Location` for one."""
    pairs = [*(event.data["headers"] or []), *event.data.get("injected", [])]
    urls = [value for _, value in pairs if URL.match(value)] + [event.data.get("url", "")]
    recorded = any(CREDENTIAL_HEADER.search(name.strip()) for name, _ in pairs) or any(map(holds_credential, urls))
    return ["credential_recorded"] if recorded else []


def holds_credential(url: str) -> bool:
    authority = URL.match(url)
    query = url.partition("#")[0].partition("?")[2]
    names = {name.strip().lower() for name, _ in parse_qsl(query, keep_blank_values=True)}
    return (authority is not None and "@" in authority[1]) or not names.isdisjoint(CREDENTIAL_PARAMETERS)


EVENT_CHECKS = (
    Check("events_are_numbered", "seq counts from 1 without gaps", "events", None, numbered),
    Check(
        "epochs_are_in_order",
        "epochs open in order under the protocol marker, each closed before the next",
        "epoch events",
        frozenset({"epoch.opened", "epoch.configured", "epoch.closed"}),
        epochs,
    ),
    Check(
        "attempts_belong_to_open_epochs",
        "every call and attempt names the epoch that is open, and no attempt of an unmarked call starts",
        "claims and starts",
        frozenset({"call.requested", "attempt.started"}),
        belongs_to_epoch,
    ),
    Check(
        "claims_are_justified",
        "every claim continues an absent or accepted effect, or shows evidence of a new occurrence",
        "claims",
        frozenset({"call.requested"}),
        claims,
    ),
    Check(
        "continuations_have_authority",
        "every claim that continues a call names who may let it, and none continues what is parked or served",
        "claims",
        frozenset({"call.requested"}),
        authorities,
    ),
    Check(
        "decisions_stand_on_the_ledger",
        "every decision follows its observation and names a head and a decision that are there",
        "decisions",
        frozenset({"reconcile.decided"}),
        decisions,
    ),
    Check(
        "resumed_calls_ask_the_same",
        "every resumed call has the digests of the one it continues, but for recorded differences",
        "resumptions and starts",
        frozenset({"call.resumed", "attempt.started"}),
        resumptions,
    ),
    Check(
        "nothing_is_released_unobserved",
        "every delivery follows its attempt's observation",
        "deliveries",
        frozenset({"call.delivered"}),
        releases,
    ),
    *PASS_CHECKS,
    Check(
        "erasures_name_kept_bodies",
        "every erasure names a kept body of its call",
        "erasures",
        frozenset({"body.erased"}),
        erasures,
    ),
    Check(
        "observations_keep_their_status",
        "every observation of a running attempt has the status that was acknowledged",
        "observations",
        frozenset({"attempt.observed"}),
        statuses,
    ),
    Check(
        "completions_keep_their_outcome",
        "every completed call has the outcome of its newest interpretation",
        "completions",
        frozenset({"call.completed"}),
        outcomes,
    ),
    Check(
        "bodies_are_kept",
        "every body is kept, but for those of calls that mint credentials",
        "manifests and observations",
        frozenset({"call.manifest", "attempt.observed"}),
        withheld,
    ),
    Check(
        "effects_are_read_off_their_status",
        "every interpretation's effect can be read off its observation's status",
        "interpretations",
        frozenset({"attempt.interpreted"}),
        interpretations,
    ),
    Check(
        "no_credential_is_recorded",
        "no credential stands in recorded headers or URLs",
        "heads and manifests",
        frozenset({"call.manifest", "attempt.acknowledged", "attempt.observed"}),
        credentials,
    ),
    Check(
        "events_follow_the_ladder",
        "every event of a call is one that may follow, and names an attempt that it may name",
        "events",
        frozenset(EVENTS) - OF_LEDGER,
        ladder,
    ),
)
