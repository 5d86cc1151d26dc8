"""Records: every kind round-trips, the chain covers every byte, and what cannot be read or written says so."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import orjson
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.codec import chained, decode, encode
from ledger.errors import UnreadableRecordError, UnrecordableEventError
from ledger.events import KINDS, Body, Event
from ledger.ids import NO_CHAIN, Digest
from ledger.operations import Entry
from tests.harness.ledgers import FIRST, MANIFEST, NAMED, PATHS, Ledger, ledger_in

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=20)
JSON = st.recursive(TEXT | INT64 | st.booleans() | st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=5)
BODY = st.builds(Body, size=INT64)
# What the types alone do not say: integers have 64 bits, mappings are dicts.
OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: INT64,
    int | None: st.none() | INT64,
    Body: BODY,
    Body | None: st.none() | BODY,
    Mapping[str, str]: st.dictionaries(TEXT, TEXT, max_size=3),
    Mapping[str, int]: st.dictionaries(TEXT, INT64, max_size=3),
    Mapping[str, int] | None: st.none() | st.dictionaries(TEXT, INT64, max_size=3),
    Mapping[str, Any]: st.dictionaries(TEXT, JSON, max_size=3),
}


def events_of(kind: str) -> st.SearchStrategy[Event]:
    hints = get_type_hints(KINDS[kind])
    fields = {
        name: OF_TYPE.get(hint, st.from_type(hint)) for name, hint in hints.items() if name not in {"kind", "version"}
    }
    return st.builds(KINDS[kind], **fields)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_kind_round_trips(kind: str, data: st.DataObject) -> None:
    """What was recorded is what is read, and writing it again gives the same bytes."""
    event = data.draw(events_of(kind))
    seq, at, attempt = data.draw(st.tuples(st.integers(1, 2**53), INT64, st.none() | st.integers(1, 9)))
    record = encode(seq, at, FIRST, attempt, event)
    read = decode(record, NO_CHAIN)
    assert (read.seq, read.at_ms, read.call, read.attempt, read.event) == (seq, at, FIRST, attempt, event)
    assert encode(read.seq, read.at_ms, read.call, read.attempt, read.event) == record
    assert b"\n" not in record


def test_record_has_the_fields_of_format_md_in_order() -> None:
    """The bytes are the format: the chain and the verifier depend on them."""
    record = encode(7, 5, FIRST, 2, NAMED["attempt.started"])
    expected = b'{"seq":7,"at":5,"kind":"attempt.started","v":1,"call":"%s","attempt":2,"data":{"epoch":1}}'
    assert record == expected % FIRST.encode()
    assert list(orjson.loads(record)) == ["seq", "at", "kind", "v", "call", "attempt", "data"]


def test_format_md_names_every_kind() -> None:
    """The page that the verifier is written from lists what the code writes."""
    page = (Path(__file__).parents[2] / "ledger" / "FORMAT.md").read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in page] == []


GOOD = orjson.loads(encode(1, 1, FIRST, None, MANIFEST))
UNREADABLE: list[tuple[str, bytes]] = [
    ("a newer kind", orjson.dumps(GOOD | {"kind": "call.teleported"})),
    ("a newer version", orjson.dumps(GOOD | {"v": 2})),
    ("a missing field", orjson.dumps({name: value for name, value in GOOD.items() if name != "attempt"})),
    ("data of another kind", orjson.dumps(GOOD | {"data": {"reason": "x"}})),
    ("a wrong type", orjson.dumps(GOOD | {"data": GOOD["data"] | {"stream": "maybe"}})),
    ("no data", orjson.dumps(GOOD | {"data": None})),
    ("a version that is no number", orjson.dumps(GOOD | {"v": "1"})),
    ("a list", b"[1,2]"),
    ("no JSON", b"{"),
    ("nothing", b""),
]


@pytest.mark.parametrize(("_what", "record"), UNREADABLE, ids=[what for what, _ in UNREADABLE])
def test_unreadable_record_raises(_what: str, record: bytes) -> None:
    """Never a KeyError, and never a guess."""
    with pytest.raises(UnreadableRecordError):
        decode(record, NO_CHAIN)


@pytest.mark.parametrize("value", [2**64, "\ud800"])
def test_value_that_fits_no_record_is_refused_before_anything_is_written(value: Any, tmp_path: Path) -> None:
    """A client's huge `max_tokens` or a provider's lone surrogate is that operation's fault and changes nothing."""
    with ledger_in(tmp_path) as ledger:
        ledger.claim()
        before = ledger.snapshot()
        with pytest.raises(UnrecordableEventError, match=FIRST):
            ledger.append(Entry(FIRST, None, replace(MANIFEST, model=value)))
        assert ledger.snapshot() == before


def first_broken_link(rows: list[tuple[int, bytes, str]]) -> int | None:
    """FORMAT.md section 3, written again: the seq at which the chain breaks."""
    previous = "0" * 64
    for number, (seq, record, chain) in enumerate(rows, start=1):
        expected = blake3(previous.encode() + record).hexdigest()
        if (seq, chain) != (number, expected):
            return number
        previous = chain
    return None


def stored(ledger: Ledger) -> list[tuple[int, bytes, str]]:
    rows = ledger.store._db.execute("SELECT seq, record, chain FROM event ORDER BY seq")
    return [(seq, record.encode(), chain) for seq, record, chain in rows]


def test_flipping_any_byte_of_a_record_breaks_the_chain(tmp_path: Path) -> None:
    """Recomputed independently: each byte of each record, a swap and a gap are all found where they are."""
    with ledger_in(tmp_path) as ledger:
        for name in max(PATHS.values(), key=len):
            ledger.step(name)
        rows = stored(ledger)
    assert first_broken_link(rows) is None
    for place, (seq, record, chain) in enumerate(rows):
        for at in range(len(record)):
            flipped = record[:at] + bytes([record[at] ^ 1]) + record[at + 1 :]
            assert first_broken_link([*rows[:place], (seq, flipped, chain), *rows[place + 1 :]]) == place + 1
        assert first_broken_link([*rows[:place], *rows[place + 1 :], rows[place]]) is not None or place == len(rows) - 1
    assert first_broken_link(rows[1:]) == 1


def test_link_is_blake3_of_the_link_before_and_the_record() -> None:
    """As FORMAT.md says it, computed by hand."""
    previous = Digest("ab" * 32)
    assert chained(previous, b"record") == blake3(b"ab" * 32 + b"record").hexdigest()
