"""The audit itself: inventory, events once in order, then receipts, bodies and everything that leans on them."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blake3 import blake3

from ledger.verifier.bundle import (
    EVENTS,
    INVENTORY,
    PROVIDER,
    Bundle,
    Unreadable,
    is_digest,
    lines,
    objects,
    open_bundle,
    parsed,
)
from ledger.verifier.calls import Call
from ledger.verifier.fold import Ledger
from ledger.verifier.passes import PASS_SWEEPS
from ledger.verifier.receipts import CHAINED, PLACED, RECEIPT_CHECKS, RECEIPT_SWEEPS, WHOLE, forgiven, read_receipts
from ledger.verifier.records import PROVIDER_MAY_LACK, PROVIDER_READS, event_of, shaped
from ledger.verifier.report import Claim, Notebook, Report, Sweep
from ledger.verifier.rules import CORRUPTING, EVENT_CHECKS
from ledger.verifier.said import INDEX_SWEEP, LISTS, SHOWN, SILENT, TRUE, Said

OPENED = Claim("bundle_is_readable", "bundle.json is of a known version and everything can be parsed", "bundles")
LINKED = Claim("events_are_chained", "every event's link is the digest of the link before and its record", "events")
SHAPED = Claim("records_are_known", "every record has a known kind and version and exactly its fields", "records")
NO_EVENT = "0" * 64  # the link before the first event
LINK_CHARS = 64
NO_BODY = blake3(b"").hexdigest()
CALL_ID_START = "call_"
READ_ONLY_METHODS = {"GET", "HEAD", "OPTIONS"}
READ_ONLY_ENDINGS = (
    *("/count_tokens", "/count-tokens", "/input_tokens", ":countTokens", ":computeTokens"),
    *("/graders/validate", "/estimate-price", "/preview"),
)


def read_events(bundle: Bundle, ledger: Ledger, said: Said, notebook: Notebook) -> None:
    previous = NO_EVENT
    for place, _, line in lines(bundle, EVENTS):
        if not line.endswith(b"\n"):
            notebook.look(LINKED.name, place, ["events_truncated"])
            return
        link, record = line[:LINK_CHARS].decode("latin-1"), line[LINK_CHARS + 1 : -1]
        if not is_digest(link) or line[LINK_CHARS : LINK_CHARS + 1] != b" ":
            raise Unreadable(f"{place} does not begin with a link and a space.")
        right = blake3(previous.encode() + record).hexdigest() == link
        notebook.look(LINKED.name, place, [] if right else ["event_chain_broken"])
        previous = link
        event = event_of(parsed(record, place), link, place)
        notebook.look(SHAPED.name, place)
        call = ledger.calls.get(event.call) if event.call else None
        broken = False
        for check in EVENT_CHECKS:
            if check.kinds is None or event.kind in check.kinds:
                names = list(check.examine(ledger, event, call))
                notebook.look(check.name, event.place, names)
                broken = broken or not CORRUPTING.isdisjoint(names)
        ledger.apply(event)
        if broken and event.call:
            ledger.calls[event.call].corrupt = True
        said.follow(event)


def ends_at_head(bundle: Bundle, ledger: Ledger) -> Iterator[tuple[str, list[str]]]:
    place = "bundle.json head"
    last = (ledger.length, ledger.newest.link) if ledger.newest else None
    seq = bundle.head[0] if bundle.head else 0
    if seq > ledger.length:
        yield place, ["events_truncated"]
    else:
        yield place, [] if bundle.head == last else ["bundle_head_differs"]
    through = bundle.receipts_through
    opened_seq = ledger.newest_epoch.seq if ledger.newest_epoch else 0
    # A living owner's newest receipts may be on their way; a start has waited for those before it.
    right = opened_seq <= through <= seq and (bundle.owner or through == seq)
    yield "bundle.json receipts_through", [] if right else ["bundle_head_differs"]


def effects(_: Bundle, ledger: Ledger) -> Iterator[tuple[str, list[str]]]:
    """A witnessed attempt counts on both sides: what had accepted it was lost with it, and its epoch's operator did."""
    possible: Counter[tuple[str, str, int]] = Counter()
    allowed: Counter[tuple[str, str, int]] = Counter()
    for call in ledger.calls.values():
        if call.identity is None:
            continue
        possible[call.group] += sum(attempt.may_have_effect for attempt in call.attempts.values())
        allowed[call.group] += call.further_effects + sum(
            attempt.witness is not None for attempt in call.attempts.values()
        )
    for group, count in possible.items():
        place = f"{ledger.groups[group].call_id} occurrence {group[2]}"
        yield place, [] if count <= 1 + allowed[group] else ["effects_exceed_acceptances"]


def body_files(bundle: Bundle, ledger: Ledger) -> Iterator[tuple[str, list[str]]]:
    for name, (size, digest) in bundle.bodies.items():
        use = ledger.bodies.get(name)
        names = []
        if digest != name:
            names.append("body_swapped" if digest in ledger.bodies or digest in bundle.bodies else "body_damaged")
        elif use is not None and use.sizes != {size}:
            names.append("body_size_differs")
        if use is None:
            names.append("body_unnamed")
        elif not use.live:
            names.append("erased_body_exists")
        yield f"bodies/{name}", names


def kept_bodies(bundle: Bundle, ledger: Ledger) -> Iterator[tuple[str, list[str]]]:
    for digest, use in ledger.bodies.items():
        if digest in bundle.unreadable:
            yield f"{digest}: {bundle.unreadable[digest][:200]}", ["body_unreadable"]
        else:
            yield f"bodies/{digest}", ["body_missing"] if use.live and digest not in bundle.bodies else []
    for digest in bundle.unreadable.keys() - ledger.bodies.keys():
        yield f"{digest} in unreadable", ["body_unreadable"]


def interpretations(bundle: Bundle, ledger: Ledger) -> Iterator[tuple[str, list[str]]]:
    for call in ledger.calls.values():
        for number, attempt in call.attempts.items():
            if not attempt.interpretations:
                continue
            if attempt.response is None:
                readable = attempt.framing == "none"
            else:
                # null: its body was counted and hashed, not kept; 0: it was kept, and erased later.
                live = call.kept.get(("response", attempt.response))
                readable = not live or attempt.response in bundle.bodies or attempt.response in bundle.unreadable
            yield f"{call.call_id}.{number}", [] if readable else ["interpretation_without_bytes"]


Names = Counter[tuple[str, str]]  # of requests, by what the provider could read of them: (field, value)


def names_of(call: Call) -> Iterator[tuple[str, str]]:
    """What tells this call's requests from others, beside their body. A witnessed one's id may have been its client's."""
    yield "client_request_id", call.client_request_id or call.call_id
    if call.identity is not None and call.identity["key_source"] == "explicit":
        yield "idempotency_key", call.identity["key"]


def started_requests(ledger: Ledger) -> tuple[Names, Names]:
    """How many requests the provider may have received whole, and how many at all, by each of their names."""
    whole, begun = Names(), Names()
    for call in ledger.calls.values():
        attempts = call.attempts.values()
        sent = sum(attempt.observation != "not_sent" for attempt in attempts)
        digests = {attempt.witness["request_digest"] for attempt in attempts if attempt.witness}
        for digest in digests if call.request is None and digests else {call.request}:
            whole["body_blake3", digest or NO_BODY] += sent
        for name in names_of(call):
            whole[name] += sent
            begun[name] += sum(not attempt.proven_unsent for attempt in attempts)
    return whole, begun


def provider(bundle: Bundle, ledger: Ledger) -> Iterator[tuple[str, list[str]]]:
    """No name was received more often than attempts with it were started.

    A whole request is known by its body, and by the names that a call here has. Of one that broke off only the names
    tell, and it may be of an attempt that a living proxy saw not sent (some bytes left, the last never). A client request
    id that begins with `call_` is a proxy's: one that no call here has is uncovered. Any other unknown name concludes
    nothing: an explicit key or an id that a client chose cannot be told apart from other traffic of the same account.
    """
    whole, begun = started_requests(ledger)
    received, received_whole = Names(), Names()
    for place, line in objects(bundle, PROVIDER) if PROVIDER in bundle.files else ():
        receipt: dict[str, Any] = {
            name: value for name, value in {**PROVIDER_MAY_LACK, **line}.items() if name in PROVIDER_READS
        }
        shaped(receipt, PROVIDER_READS, place)
        reads_only = receipt["path"].partition("?")[0].endswith(READ_ONLY_ENDINGS)
        if receipt["method"].upper() in READ_ONLY_METHODS or (receipt["method"].upper() == "POST" and reads_only):
            continue
        named = [(name, receipt[name]) for name in PROVIDER_MAY_LACK if (name, receipt[name]) in begun]
        unknown = (receipt["client_request_id"] or "").startswith(CALL_ID_START)
        unknown = unknown and ("client_request_id", receipt["client_request_id"]) not in begun
        received.update(named)
        exceeded = any(received[name] > begun[name] for name in named)
        if receipt["complete"]:
            named.append(("body_blake3", receipt["body_blake3"]))
            received_whole.update(named)
            exceeded = exceeded or any(received_whole[name] > whole[name] for name in named)
        yield place, ["provider_receipt_uncovered"] if exceeded or unknown else []


SWEEPS = (
    Sweep("events_end_at_the_head", "the events end where bundle.json says, and not before", "positions", ends_at_head),
    Sweep(
        "effects_are_accepted",
        "no occurrence may have had more effects than one plus its acceptances",
        "occurrences",
        effects,
    ),
    Sweep(
        "bodies_hold_their_digests", "every body's bytes have its digest, and an event names it", "bodies", body_files
    ),
    Sweep("kept_bodies_are_here", "every kept body is here unless it was erased", "bodies", kept_bodies),
    Sweep("interpretations_read_bytes", "every interpretation read bytes that were kept", "attempts", interpretations),
    Sweep(
        "provider_receipts_are_covered",
        "every request the provider received was started here",
        "provider receipts",
        provider,
    ),
    INDEX_SWEEP,
    *PASS_SWEEPS,
)
CLAIMS: tuple[Claim, ...] = (
    *(OPENED, INVENTORY, LINKED, SHAPED),
    *EVENT_CHECKS,
    *(WHOLE, CHAINED, PLACED),
    *RECEIPT_CHECKS,
    *RECEIPT_SWEEPS,
    *SWEEPS,
    *(TRUE, LISTS, SHOWN, SILENT),
)


def examine(directory: Path, notebook: Notebook) -> None:
    bundle = open_bundle(directory)
    notebook.run(INVENTORY, bundle)
    ledger = Ledger(bundle.ledger_id)
    said = Said(bundle, ledger, notebook)
    said.announce()
    read_events(bundle, ledger, said, notebook)
    said.close()
    log = read_receipts(bundle, ledger, notebook)
    for sweep in RECEIPT_SWEEPS:
        notebook.run(sweep, bundle, ledger, log)
    if log.not_due:
        notebook.notes.append(
            f"{log.not_due} answered attempts lie beyond receipts_through ({bundle.receipts_through}): "
            "whether they have receipts is not checked, as the owner was writing."
        )
    notebook.notes += forgiven(ledger, log)
    if PROVIDER not in bundle.files:
        notebook.notes.append("No provider receipts were given: effects at the provider were not compared.")
    for sweep in SWEEPS:
        notebook.run(sweep, bundle, ledger)
    notebook.look(OPENED.name, str(directory))


def verify(directory: Path) -> Report:
    """Audit a bundle. It raises for nothing that stands in one, changes nothing, and holds no body in memory."""
    notebook = Notebook()
    try:
        examine(directory, notebook)
    except Unreadable as stop:
        notebook.stop(OPENED.name, str(stop))
    except OSError as error:
        notebook.stop(OPENED.name, f"Reading failed: {error.strerror}: {error.filename}.")
    except (MemoryError, RecursionError):
        notebook.stop(OPENED.name, "A document is too large or nested too deeply to be read.")
    return notebook.report(CLAIMS)
