"""What an audit says: claims, findings, a verdict and how they are printed."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

PLACES_SHOWN = 3  # enough to start looking; more would bury the other findings


class Verdict(StrEnum):
    OK = "OK"
    CONTRADICTION = "CONTRADICTION"
    TAMPERED = "TAMPERED"
    TRUNCATED = "TRUNCATED"
    UNREADABLE = "UNREADABLE"


C, TA, TR, U = Verdict.CONTRADICTION, Verdict.TAMPERED, Verdict.TRUNCATED, Verdict.UNREADABLE
DECIDES = (U, TA, TR, C)  # of several findings, the first of these classes is the verdict
EXIT_CODES = {Verdict.OK: 0, C: 10, TA: 11, TR: 12, U: 13}
REMEDIES = {
    Verdict.OK: "Everything in the bundle agrees; keep it as it is.",
    C: "The bundle is intact but contradicts itself; keep it, and have a person follow the places above.",
    TA: "Something was changed after it was written; obtain the bundle again from its owner and compare the two.",
    TR: "Something behind the end is missing; ask the owner for a complete bundle, or for the backup that holds the rest.",
    U: "The bundle could not be read; export it again, or use a verifier that knows its format.",
}

# Every finding there is, in the order of printing: name, class, sentence.
FINDINGS: dict[str, tuple[Verdict, str]] = {
    "unreadable": (U, "the bundle cannot be read"),
    "file_damaged": (TA, "a file has not the size or the digest that bundle.json lists"),
    "file_unlisted": (TA, "a file stands in the bundle that bundle.json does not list"),
    "event_chain_broken": (TA, "an event's link is not the digest of the link before and its record"),
    "receipt_chain_broken": (TA, "a receipt's `prev` is not the digest of the line before"),
    "padding_damaged": (TA, "what follows a segment's lines is neither zero bytes nor a tear that a crash explains"),
    "body_swapped": (TA, "a body's file holds the bytes of another recorded body"),
    "body_damaged": (TA, "a body's file holds bytes of another digest"),
    "body_unreadable": (TA, "the owner could not read a body that is kept"),
    "events_truncated": (TR, "the events end before an event that the bundle's head or a receipt names"),
    "receipts_truncated": (TR, "the receipt log ends before a line that an epoch or an answered attempt needs"),
    "segment_cut": (TR, "a receipt segment is no whole number of 64 KiB blocks"),
    "inspections_missing": (TR, "the last inspections are not one list of all calls and one show of each"),
    "seq_gap": (C, "an event's seq is not the one before plus 1"),
    "bundle_head_differs": (C, "the bundle's head, or receipts_through, is not what the events end with"),
    "ledger_id_differs": (C, "an epoch or the bundle names another ledger"),
    "epoch_out_of_order": (C, "an epoch is opened or closed out of turn"),
    "epoch_marker_missing": (C, "an epoch was opened without the protocol marker, or an attempt started without it"),
    "epoch_not_open": (C, "an event names an epoch that is not open at that time"),
    "receipt_position_differs": (C, "the receipt log does not hold the line that an epoch names"),
    "order_illegal": (C, "an event stands where the ladder does not allow it"),
    "claim_illegal": (C, "a call.requested does not continue what its occurrence, generation and why_new say"),
    "second_attempt_unaccepted": (
        C,
        "an occurrence is claimed again though its effect is not absent and nobody accepted",
    ),
    "authority_forged": (C, "a claim continues a call that nobody may, or by an authority that it does not have"),
    "occurrence_without_evidence": (C, "a further occurrence of a key records no evidence that it is a new one"),
    "effects_exceed_acceptances": (C, "more attempts may have had an effect than one plus the recorded acceptances"),
    "decision_forged": (C, "a decision lacks its observation, or names a head or a decision the ledger does not hold"),
    "head_unknown": (C, "a resumption or a pass names a head that the ledger does not hold"),
    "resumed_digest_differs": (C, "a call resumes another one whose manifest asks for something else"),
    "resumption_missing": (C, "a call continues one with a manifest, yet its attempt starts without call.resumed"),
    "status_differs": (C, "an observation has another status than its attempt's acknowledgement"),
    "outcome_differs": (C, "a completed call has another outcome than its newest interpretation"),
    "body_withheld": (C, "a body was not kept, though its call mints no credential and it is not large"),
    "effect_unproven": (C, "an interpretation reads an effect off a status that does not prove it"),
    "release_before_observation": (C, "an answer was delivered before its attempt was observed"),
    "pass_out_of_order": (C, "a pass of a run is not opened with the number behind that of the pass before"),
    "pass_not_open": (C, "a call is given to a pass that is not the newest one of its own run"),
    "pass_missing": (C, "a call of a run is claimed without the pass.served that ends the claim"),
    "pass_not_given": (C, "a call is delivered to a pass that was not given it, or to one outside of its run"),
    "disposition_differs": (C, "a pass.served tells another disposition than its call came to the pass by"),
    "occurrence_skipped": (C, "a pass is given an occurrence of a key before the one that comes first"),
    "erasure_illegal": (C, "an erasure names a body that its call does not have"),
    "credential_recorded": (C, "a credential stands in recorded headers or in a recorded URL"),
    "attempt_lost": (C, "a sent receipt's attempt.started is not in the ledger"),
    "receipt_repeated": (C, "an attempt has a second sent receipt"),
    "receipt_foreign": (C, "a receipt names another ledger, an unknown call, or an event that is not its own"),
    "receipt_out_of_place": (C, "a receipt's seq does not rise, or an epoch parts it otherwise than its event"),
    "not_sent_but_receipted": (C, "an attempt that was proven not sent at a start has a sent receipt"),
    "receipt_digest_differs": (C, "a receipt's digest is not that of the body it witnesses"),
    "receipt_missing": (C, "an attempt that was answered, or not proven unsent at the next start, has no sent receipt"),
    "receipt_gap": (C, "a receipt's number is not the one before plus 1, or a segment does not begin with its line"),
    "witness_without_receipt": (C, "an attempt.witnessed names a receipt that is not its own"),
    "witness_unaccepted": (C, "an attempt.witnessed stands behind no acceptance of a loss that its receipt precedes"),
    "observation_moved": (C, "a received receipt's event is the observation of another call or attempt"),
    "provider_receipt_uncovered": (C, "the provider received more requests than attempts were started for them"),
    "body_missing": (C, "a kept body that an event names is not in the bundle"),
    "body_size_differs": (C, "a body has not the size that an event gives it"),
    "body_unnamed": (C, "a body is in the bundle that no event names"),
    "erased_body_exists": (C, "the bytes of an erased body are still there"),
    "interpretation_without_bytes": (C, "an interpretation reads an observation whose bytes were never kept"),
    "inspection_from_future": (C, "the program said something that only later events could have told"),
    "inspection_differs": (C, "the program said something that the events at that time do not tell"),
    "inspections_stale": (C, "the last inspections were not all read at the bundle's head, or not compared after"),
    "inspection_head_differs": (C, "an inspection names a head with another link than the ledger's"),
    "inspection_list_broken": (C, "a list of calls is not of one head, in order, and as long as it says"),
    "inspection_appended": (C, "the ledger was longer after a reading or a refusal than before"),
    "index_differs": (C, "index.jsonl is not what the events give"),
    "passes_differ": (C, "passes.jsonl is not what the events give"),
}


@dataclass(frozen=True, slots=True)
class Claim:
    name: str
    sentence: str
    unit: str  # what is counted, in the plural


@dataclass(frozen=True, slots=True)
class Check(Claim):
    """A claim about single records: `examine` is given what is known so far and one record, and names what is wrong."""

    kinds: frozenset[str] | None  # null: all
    examine: Callable[..., Iterable[str]]


@dataclass(frozen=True, slots=True)
class Sweep(Claim):
    """A claim about the whole: `sweep` yields every thing it looks at, its place and the names of what is wrong."""

    sweep: Callable[..., Iterator[tuple[str, list[str]]]]


@dataclass(frozen=True, slots=True)
class Tally:
    name: str
    sentence: str
    unit: str
    count: int
    ok: bool


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    verdict: Verdict
    count: int
    places: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Report:
    claims: tuple[Tally, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        found = {finding.verdict for finding in self.findings}
        return next((verdict for verdict in DECIDES if verdict in found), Verdict.OK)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


@dataclass(slots=True)
class Notebook:
    """Counts what was looked at and keeps what was found, claim by claim."""

    counts: dict[str, int] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    found: dict[str, tuple[int, list[str]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stopped: str | None = None  # why reading stopped, a sentence

    def look(self, claim: str, place: str, names: Iterable[str] = ()) -> None:
        self.counts[claim] = self.counts.get(claim, 0) + 1
        for name in names:
            self.find(claim, place, name)

    def find(self, claim: str, place: str, name: str) -> None:
        self.broken.add(claim)
        count, places = self.found.setdefault(name, (0, []))
        if len(places) < PLACES_SHOWN and place not in places:
            places.append(place)
        self.found[name] = (count + 1, places)

    def examine(self, check: Check, place: str, *facts: Any) -> None:
        self.look(check.name, place, check.examine(*facts))

    def run(self, sweep: Sweep, *facts: Any) -> None:
        for place, names in sweep.sweep(*facts):
            self.look(sweep.name, place, names)

    def stop(self, claim: str, why: str) -> None:
        self.stopped = why
        self.find(claim, why, "unreadable")

    def report(self, claims: Iterable[Claim]) -> Report:
        """Claims that reading never reached are counted 0 and not called ok once it stopped."""
        tallies = [
            Tally(
                claim.name,
                claim.sentence,
                claim.unit,
                count := self.counts.get(claim.name, 0),
                claim.name not in self.broken and (self.stopped is None or count > 0),
            )
            for claim in claims
        ]
        findings = [
            Finding(
                name, verdict, self.found[name][0], tuple(printable(place) for place in self.found[name][1]), sentence
            )
            for name, (verdict, sentence) in FINDINGS.items()
            if name in self.found
        ]
        return Report(tuple(tallies), tuple(findings), tuple(printable(note) for note in self.notes))


def printable(text: str) -> str:
    """A bundle's own words may hold terminal escapes and lone surrogates; neither reaches the reader."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def render(report: Report) -> str:
    lines = [
        f"{'ok ' if claim.ok else 'NOT'} {claim.name}  {claim.sentence}  {claim.count:,} {claim.unit}"
        for claim in report.claims
    ]
    lines += [f"note  {note}" for note in report.notes]
    for finding in report.findings:
        where = "; ".join(finding.places)
        more = ", …" if finding.count > len(finding.places) else ""
        lines.append(f"{finding.verdict}  {finding.name}  {finding.count:,} times: {finding.sentence} ({where}{more})")
    return "\n".join([*lines, REMEDIES[report.verdict], str(report.verdict)])


def as_json(report: Report) -> str:
    document = {
        "verdict": report.verdict,
        "exit_code": report.exit_code,
        "claims": [
            {"name": claim.name, "sentence": claim.sentence, "count": claim.count, "ok": claim.ok}
            for claim in report.claims
        ],
        "findings": [
            {"class" if name == "verdict" else name: value for name, value in asdict(finding).items()}
            for finding in report.findings
        ],
        "notes": list(report.notes),
    }
    return json.dumps(document, ensure_ascii=True, indent=1)
