"""What the program told people, compared with what the events up to that head tell."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ledger.verifier.bundle import (
    INDEX,
    INSPECTION_LIMIT_BYTES,
    INSPECTIONS,
    Bundle,
    Unreadable,
    head_of,
    lines,
    objects,
    opened,
    parsed,
)
from ledger.verifier.calls import Call, told_digest
from ledger.verifier.fold import Ledger
from ledger.verifier.records import EVENTS, INDEX_ROW, INSPECTION, LISTED, MAY_LACK, ROW_MAY_LACK, Event, shaped
from ledger.verifier.report import Claim, Notebook, Sweep

MANIFEST_MAY_LACK = MAY_LACK["call.manifest"]
PENDING_LIMIT = 1_000  # rows that differ and wait for a later head that explains them; the rest is named at once

TRUE = Claim(
    "rows_tell_what_events_tell", "every row the program showed is what the events up to its head tell", "rows"
)
SILENT = Claim(
    "reading_appends_nothing", "no inspection and no refusal appended an event, and their heads are here", "inspections"
)
SHOWN = Claim("every_call_is_shown", "the last lines are a list of all calls and a show of each, at the head", "calls")
LISTS = Claim("lists_are_whole", "every list of calls has every call there was at its head, newest first", "lines")
DECISION = (*EVENTS["reconcile.decided"], "seq")
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
class Ending:
    """The last lines, as far as they are one list of calls and one `show` of each."""

    shown: dict[str, bool] = field(default_factory=dict)  # of each call that was listed
    owed: int = 0  # how many of them were not shown yet
    vouched: bool = True  # every one of them was read at the bundle's head, and compared after

    def take(self, said: dict[str, Any], *, begins: bool, vouched: bool) -> None:
        call_id = said["document"].get("call_id")
        shows_next = said["what"] == "show" and self.shown.get(call_id) is False
        if begins or not (said["what"] == "calls" or shows_next):
            self.shown, self.owed, self.vouched = {}, 0, True
        if said["what"] == "calls" or shows_next:
            self.shown[call_id] = shows_next
            self.owed += -1 if shows_next else 1
        self.vouched = self.vouched and vouched

    def lacks(self, call_id: str) -> list[str]:
        if self.owed or call_id not in self.shown:
            return ["inspections_missing"]
        return [] if self.vouched else ["inspections_stale"]


@dataclass(slots=True)
class Said:
    """Inspections wait for their heads; rows that differ wait for a later head that would explain them."""

    bundle: Bundle
    ledger: Ledger
    notebook: Notebook
    waiting: list[Inspection] = field(default_factory=list)  # the earliest head last
    pending: dict[str, list[tuple[str, dict[str, Any]]]] = field(default_factory=dict)
    pending_count: int = 0
    ending: Ending = field(default_factory=Ending)

    def announce(self) -> None:
        """Read the file once before the events, to know the heads to stop at and what stands at the end."""
        listing, place = Listing(), INSPECTIONS
        for place, offset, line in lines(self.bundle, INSPECTIONS, INSPECTION_LIMIT_BYTES):
            said = inspection_of(line, place)
            head, after = head_of(said["head"], f"{place}: head"), head_of(said["head_after"], f"{place}: head_after")
            if self.waiting and self.waiting[-1].head == head:
                head = self.waiting[-1].head  # held once: most lines stand at one head
            self.waiting.append(Inspection(place, offset, len(line), head))
            if after is not None or said["what"] == "refusal":
                self.notebook.look(SILENT.name, place, [] if after == head else ["inspection_appended"])
            self.notebook.look(LISTS.name, place, [] if listing.take(said, head) else ["inspection_list_broken"])
            begins = said["what"] == "calls" and listing.left == said["of"] - 1
            vouched = head == self.bundle.head and (after == head or (after is None and self.bundle.owner))
            self.ending.take(said, begins=begins, vouched=vouched)
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
            wrong = None if tells(call, row) else self.await_explanation(place, row)
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
            if tells(call, row):
                self.notebook.find(TRUE.name, place, "inspection_from_future")
                self.pending_count -= 1
            else:
                still.append((place, row))
        if still:
            self.pending[call.call_id] = still

    def close(self) -> None:
        """The events have ended: what nothing explained differs, and a head that never came was of the future."""
        self.judge_ending()
        for place, _ in (entry for entries in self.pending.values() for entry in entries):
            self.notebook.find(TRUE.name, place, "inspection_differs")
        vouched_seq = self.bundle.head[0] if self.bundle.head else 0
        for inspection in reversed(self.waiting):
            cut = self.ledger.length < inspection.seq <= vouched_seq
            self.notebook.find(SILENT.name, inspection.place, "events_truncated" if cut else "inspection_from_future")

    def judge_ending(self) -> None:
        newest = self.ledger.newest
        if self.bundle.head != ((newest.seq, newest.link) if newest else None):
            return  # the events do not end at the head, which is a finding; what stands there is not known
        for call_id in self.ledger.calls:
            self.notebook.look(SHOWN.name, call_id, self.ending.lacks(call_id))


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


def tells(call: Call, row: dict[str, Any]) -> bool:
    alive = row.get("alive", "")
    if not (alive is None or isinstance(alive, bool)) or not agree({**ROW_MAY_LACK, **row}, call.row(alive)):
        return False
    if "attempt_rows" not in row:
        return True
    return (
        agree(row["head"], {"seq": call.last_seq, "chain": call.last_link})
        and lists(row["events"], ("seq", "kind", "attempt"), call.told.get("events"))
        and same(row["unresolved"], row["duplicate_effect_risk"])
        and (call.corrupt or tells_inputs(call, row))
    )


def tells_inputs(call: Call, row: dict[str, Any]) -> bool:
    manifest = call.told.get("manifest")
    return (
        (told_digest(b"", {**MANIFEST_MAY_LACK, **row["manifest"]}) if row["manifest"] is not None else None)
        == manifest
        and lists(row["decisions"], DECISION, call.told.get("decisions"))
        and all_agree(row["attempt_rows"], call.attempt_rows())
    )


def lists(said: object, names: Iterable[str], told: bytes | None) -> bool:
    """Is it a list of objects whose named fields are, one after the other, what was told?"""
    digest = None
    for row in said if isinstance(said, list) else [None]:
        if not isinstance(row, dict):
            return False
        digest = told_digest(digest or b"", {name: row[name] for name in names if name in row})
    return digest == told


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
