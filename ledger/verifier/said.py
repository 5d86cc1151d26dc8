"""What the program told people, compared with what the events up to that head tell."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ledger.verifier.bundle import (
    DOCUMENT_LIMIT_BYTES,
    INDEX,
    INSPECTIONS,
    Bundle,
    Unreadable,
    head_of,
    lines,
    objects,
    opened,
    parsed,
)
from ledger.verifier.calls import Call
from ledger.verifier.fold import Ledger
from ledger.verifier.records import INDEX_ROW, INSPECTION, LISTED, Event, shaped
from ledger.verifier.report import Claim, Notebook, Sweep

PENDING_LIMIT = 1_000  # rows that differ and wait for a later head that explains them; the rest is named at once

TRUE = Claim(
    "rows_tell_what_events_tell", "every row the program showed is what the events up to its head tell", "rows"
)
SILENT = Claim(
    "reading_appends_nothing", "no inspection and no refusal appended an event, and their heads are here", "inspections"
)
LISTS = Claim("lists_are_whole", "every list of calls has every call there was at its head, newest first", "lines")
SHOW_PARTS = ("manifest", "attempt_rows", "unresolved", "decisions", "events", "head")


@dataclass(frozen=True, slots=True)
class Inspection:
    place: str
    offset: int
    size: int
    head: tuple[int, str] | None

    @property
    def seq(self) -> int:
        return self.head[0] if self.head else 0


@dataclass(slots=True)
class Listing:
    """Where in a list of calls the reading is: all its lines stand behind each other."""

    of: int = 0
    left: int = 0
    head: tuple[int, str] | None = None
    previous: str = ""

    def take(self, said: dict[str, Any], head: tuple[int, str] | None) -> bool:
        """Is this line the next of the list, or the first of another after a whole one?"""
        if said["what"] != "calls":
            whole, self.left = self.left == 0, 0
            return whole
        row = (said["of"], head)
        fits = self.left == 0 or (row == (self.of, self.head) and said["document"]["call_id"] < self.previous)
        if self.left == 0 or not fits:
            self.left = said["of"]
        self.left, self.previous = self.left - 1, said["document"]["call_id"]
        self.of, self.head = row
        return fits


@dataclass(slots=True)
class Said:
    """Inspections wait for their heads; rows that differ wait for a later head that would explain them."""

    bundle: Bundle
    ledger: Ledger
    notebook: Notebook
    waiting: list[Inspection] = field(default_factory=list)  # the earliest head last
    pending: dict[str, list[tuple[str, dict[str, Any]]]] = field(default_factory=dict)
    pending_count: int = 0

    def announce(self) -> None:
        """Read the file once before the events, to know the heads to stop at and the calls that a `show` is about."""
        listing, place = Listing(), INSPECTIONS
        for place, offset, line in lines(self.bundle, INSPECTIONS, DOCUMENT_LIMIT_BYTES):
            said = inspection_of(line, place)
            head, after = head_of(said["head"], f"{place}: head"), head_of(said["head_after"], f"{place}: head_after")
            if said["what"] == "show":
                self.ledger.watched[said["document"]["call_id"]] = []
            self.waiting.append(Inspection(place, offset, len(line), head))
            appended = after != head and (after is not None or said["what"] == "refusal")
            self.notebook.look(SILENT.name, place, ["inspection_appended"] if appended else [])
            self.notebook.look(LISTS.name, place, [] if listing.take(said, head) else ["inspection_list_broken"])
        if listing.left:
            self.notebook.find(LISTS.name, f"{place} ends a list early", "inspection_list_broken")
        self.waiting.sort(key=lambda inspection: -inspection.seq)
        self.compare_at_head()

    def follow(self, event: Event) -> None:
        """After each event: compare what was said at this head, and see whether it explains what was said before."""
        self.compare_at_head()
        if self.pending and event.call is not None:
            for call_id in (event.call, self.ledger.calls[event.call].supersedes):
                if call_id in self.pending:
                    self.explain(self.ledger.calls[call_id])

    def compare_at_head(self) -> None:
        while self.waiting and self.waiting[-1].seq == self.ledger.length:
            self.compare(self.waiting.pop())

    def compare(self, inspection: Inspection) -> None:
        if inspection.head and self.ledger.link(inspection.seq) != inspection.head[1]:
            self.notebook.find(SILENT.name, inspection.place, "inspection_head_differs")
            return
        with opened(self.bundle.directory, INSPECTIONS) as file:
            file.seek(inspection.offset)
            said = inspection_of(file.read(inspection.size), inspection.place)
        if said["what"] == "refusal":
            return
        row = said["document"]
        place = f"{inspection.place} {row['call_id']}"
        if said["what"] == "calls":
            whole = said["of"] == len(self.ledger.calls)  # ids fall, so as many as there are are all there are
            self.notebook.look(LISTS.name, place, [] if whole else ["inspection_list_broken"])
        call = self.ledger.calls.get(row["call_id"])
        if call is None:
            wrong: str | None = "inspection_from_future"
        else:
            wrong = None if tells(self.ledger, call, row) else self.await_explanation(place, row)
        self.notebook.look(TRUE.name, place, [wrong] if wrong else [])

    def await_explanation(self, place: str, row: dict[str, Any]) -> str | None:
        if self.pending_count >= PENDING_LIMIT:
            return "inspection_differs"
        self.pending.setdefault(row["call_id"], []).append((place, row))
        self.pending_count += 1
        return None

    def explain(self, call: Call) -> None:
        still = []
        for place, row in self.pending.pop(call.call_id):
            if tells(self.ledger, call, row):
                self.notebook.find(TRUE.name, place, "inspection_from_future")
                self.pending_count -= 1
            else:
                still.append((place, row))
        if still:
            self.pending[call.call_id] = still

    def close(self) -> None:
        """The events have ended: what nothing explained differs, and a head that never came was of the future."""
        for place, _ in (entry for entries in self.pending.values() for entry in entries):
            self.notebook.find(TRUE.name, place, "inspection_differs")
        vouched_seq = self.bundle.head[0] if self.bundle.head else 0
        for inspection in reversed(self.waiting):
            cut = self.ledger.length < inspection.seq <= vouched_seq
            self.notebook.find(SILENT.name, inspection.place, "events_truncated" if cut else "inspection_from_future")


def inspection_of(line: bytes, place: str) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise Unreadable(f"{place} does not end with a newline.")
    said = parsed(line, place)
    shaped(said, LISTED if said.get("what") == "calls" else INSPECTION, place)
    document = said["document"]
    if not isinstance(document, dict):
        raise Unreadable(f"{place}: document is no object.")
    if said["what"] == "refusal":
        if type(document.get("status")) is not int or not isinstance(document.get("code"), str):
            raise Unreadable(f"{place}: the refusal has no status and code.")
        return said
    wanted = ("call_id", *(SHOW_PARTS if said["what"] == "show" else ()))
    if missing := [part for part in wanted if part not in document]:
        raise Unreadable(f"{place}: the document has no {missing[0]}.")
    if not isinstance(document["call_id"], str):
        raise Unreadable(f"{place}: call_id has a wrong type.")
    return said


def same(said: object, derived: object) -> bool:
    """JSON equality: unlike Python's, true is not 1."""
    if isinstance(said, list) and isinstance(derived, list):
        return len(said) == len(derived) and all(map(same, said, derived))
    return type(said) is type(derived) and said == derived


def agree(said: object, derived: dict[str, Any]) -> bool:
    """Every derived field is said so; what else is said is for people."""
    return isinstance(said, dict) and all(name in said and same(said[name], value) for name, value in derived.items())


def tells(ledger: Ledger, call: Call, row: dict[str, Any]) -> bool:
    alive = row.get("alive", "")
    if not (alive is None or isinstance(alive, bool)) or not agree(row, call.row(alive)):
        return False
    if "attempt_rows" not in row or call.call_id not in ledger.watched:
        return True
    return (
        agree(row["head"], {"seq": call.last_seq, "chain": call.last_link})
        and all_agree(row["events"], ledger.watched[call.call_id])
        and (call.corrupt or all_agree(row["attempt_rows"], call.attempt_rows()))
    )


def all_agree(said: object, derived: list[dict[str, Any]]) -> bool:
    return isinstance(said, list) and len(said) == len(derived) and all(map(agree, said, derived))


def index_rows(bundle: Bundle, ledger: Ledger) -> Iterator[tuple[str, list[str]]]:
    previous, seen = "", 0
    for place, row in objects(bundle, INDEX):
        shaped(row, INDEX_ROW, place)
        call = ledger.calls.get(row["call_id"])
        known = call is not None and call.identity is not None and agree(row, call.index_row())
        yield f"{place} {row['call_id']}", [] if known and row["call_id"] > previous else ["index_differs"]
        previous, seen = row["call_id"], seen + 1
    if seen < len(ledger.calls):
        yield f"{INDEX} ends early", ["index_differs"]


INDEX_SWEEP = Sweep("index_is_rebuilt_equal", "every row of the index is what the events give", "rows", index_rows)
