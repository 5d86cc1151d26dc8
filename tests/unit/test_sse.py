"""How far bytes may be released before the commit, and how events are read."""

import time
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.sse import UNDECIDED_LIMIT_BYTES, DecodedEventHold, Event, EventHold, Hold, Item, LastByteHold, events

BLANKS = (b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\n")
CONTENTS = (
    b"data: a",
    b"event: delta\ndata: {}",
    b": ping",
    b"data: not the end [DONE]",
    b"event: x\r\ndata: 1\rdata: 2",
)
TERMINALS = (b"data: [DONE]", b"event: message_stop\ndata: {}")


def is_terminal(event: bytes) -> bool:
    return event.startswith((b"data: [DONE]", b"event: message_stop"))


def feed_all(hold: Hold, pieces: list[bytes]) -> list[int]:
    return [hold.feed(piece) for piece in pieces]


def split(body: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    return [body[start:end] for start, end in pairwise(at)]


cut_lists = st.lists(st.integers(0, 10_000), max_size=40)
content = st.lists(st.builds(bytes.__add__, st.sampled_from(CONTENTS), st.sampled_from(BLANKS)), max_size=12).map(
    b"".join
)


@given(
    content, st.sampled_from(TERMINALS), st.sampled_from(BLANKS), st.sampled_from([b"", b"data: late\n\n"]), cut_lists
)
def test_any_split_never_releases_into_the_terminal_event(
    before: bytes, terminal: bytes, blank: bytes, after: bytes, cuts: list[int]
) -> None:
    """However a stream is cut into pieces: not the terminal event, not the last byte, never backwards, and the event is seen."""
    body = before + terminal + blank + after
    hold = EventHold(is_terminal)
    released = feed_all(hold, split(body, cuts))
    assert max(released) <= len(before) < len(body)
    assert released == sorted(released)
    assert hold.terminal_seen


@given(content, cut_lists)
def test_any_split_releases_all_whole_events(body: bytes, cuts: list[int]) -> None:
    """Content is not delayed: what ends with a blank line is out, give or take the newline of a split line end."""
    hold = EventHold(is_terminal)
    released = max([0, *feed_all(hold, split(body, cuts))])
    assert len(body) - 1 <= released <= len(body) or not body
    assert not hold.terminal_seen


@pytest.mark.parametrize("blank", BLANKS)
def test_event_split_at_every_byte_is_released_only_when_whole(blank: bytes) -> None:
    """A client never sees half an event."""
    first = b"data: one" + blank
    hold = EventHold(is_terminal)
    released = feed_all(hold, [bytes([byte]) for byte in first])
    assert released[: len(first) - 2] == [0] * (len(first) - 2)
    assert released[-1] >= len(first) - 1


@given(st.binary(max_size=400), cut_lists)
def test_last_byte_hold_keeps_exactly_the_last_byte(body: bytes, cuts: list[int]) -> None:
    """Everything but the last byte so far, after every piece."""
    hold, seen = LastByteHold(), 0
    for piece in split(body, cuts):
        seen += len(piece)
        assert hold.feed(piece) == max(0, seen - 1)


def test_long_event_flows_and_keeps_its_blank_line_until_more_comes() -> None:
    """An event above the limit is content; it was judged by its beginning, so its very end still waits."""
    hold = EventHold(is_terminal)
    long = b"data: " + b"x" * (3 * UNDECIDED_LIMIT_BYTES)
    assert 0 < hold.feed(long) < len(long)
    assert hold.feed(b"\n\n") == len(long)
    assert hold.feed(b"data: [DONE]\n\n") == len(long) + 2
    assert hold.terminal_seen


@pytest.mark.parametrize("blank", BLANKS)
@pytest.mark.parametrize("size", [1, 2, 3, 50_000])
def test_long_last_event_keeps_its_blank_line_in_any_split(blank: bytes, size: int) -> None:
    """The rest of a split line end is not the next event: a client that reads lines does not see the line end."""
    long = b"data: " + b"x" * (UNDECIDED_LIMIT_BYTES + 10)
    hold, pieces = EventHold(is_terminal), [blank[at : at + size] for at in range(0, len(blank), size)]
    assert max(feed_all(hold, [long, *pieces])) == len(long)
    assert hold.feed(b": ping\n\n") == len(long + blank + b": ping\n\n")


def test_long_terminal_event_is_held_from_its_start() -> None:
    """`response.completed` carries the whole response: its first bytes decide, and its blank line says that it came whole."""
    hold = EventHold(is_terminal)
    assert hold.feed(b"data: a\n\n") == 9
    assert max(feed_all(hold, [b"event: message_stop\ndata: ", *[b"y" * 30_000] * 5, b"\n"])) == 9
    assert (hold.held, hold.terminal_seen, hold.awaits_end) == (True, False, True)
    assert hold.feed(b"\n") == 9
    assert (hold.held, hold.terminal_seen, hold.awaits_end) == (True, True, False)


def test_long_event_that_was_looked_at_in_part_is_told() -> None:
    """Its end was not seen, so what it says behind its beginning is not known; a short one after it is."""
    hold = EventHold(is_terminal)
    feed_all(hold, [b"data: ", b"x" * 100_000])
    assert hold.overlooks
    hold.feed(b"\n\n")
    assert hold.overlooks
    hold.feed(b"data: short\n\n")
    assert not hold.overlooks


def test_long_event_keeps_memory_bounded() -> None:
    """I12: what is kept of an endless event is a few bytes."""
    hold = EventHold(is_terminal)
    feed_all(hold, [b"data: ", *[b"x" * 50_000] * 40])
    assert len(hold._event) < 2 * UNDECIDED_LIMIT_BYTES


def test_many_small_pieces_take_linear_time() -> None:
    """An event that comes byte by byte is searched once, not once a byte: twice the bytes, about twice the time."""

    def seconds(size: int) -> float:
        hold, start = EventHold(is_terminal), time.perf_counter()
        for _ in range(size):
            hold.feed(b"x")
        return time.perf_counter() - start

    small, large = (min(seconds(size) for _ in range(3)) for size in (8_000, 64_000))
    assert large < 8 * 4 * small


# --- items ---

ITEM, TOOL, DELTA, END = b"event: item\n\n", b"event: tool\n\n", b"data: a\n\n", b"data: [DONE]\n\n"
LONG_ITEM = b"event: item\ndata: " + b"x" * (2 * UNDECIDED_LIMIT_BYTES) + b"\n\n"


def item_of(event: bytes) -> Item | None:
    if event.startswith(b"event: tool"):
        return Item.TOOL
    return Item.OTHER if event.startswith(b"event: item") else None


def served(hold: Hold, pieces: list[bytes]) -> list[tuple[int, int]]:
    """What left without the spool's sync and with it, after every piece, as the forwarder asks for it."""
    return [(released, max(released, hold.sync_to)) for released in (hold.feed(piece) for piece in pieces)]


def test_item_leaves_after_a_sync_and_a_tool_does_not_leave() -> None:
    """Order is kept: what follows an item waits with it, what follows a tool waits for the commit."""
    hold = EventHold(is_terminal, item_of)
    assert served(hold, [DELTA + ITEM + DELTA, DELTA]) == [(9, 31), (40, 40)]
    assert served(hold, [DELTA + TOOL + DELTA, ITEM, END]) == [(49, 49), (49, 49), (49, 49)]
    assert (hold.held, hold.terminal_seen) == (True, False)
    assert served(EventHold(is_terminal), [ITEM + TOOL]) == [(26, 26)]


def test_item_and_tool_in_one_piece_leave_up_to_the_tool() -> None:
    """The sync covers what stands before the tool, and the end of the answer holds as a tool does."""
    assert served(EventHold(is_terminal, item_of), [ITEM + DELTA + TOOL, b"", DELTA]) == [(0, 22), (22, 22), (22, 22)]
    assert served(EventHold(is_terminal, item_of), [ITEM + END]) == [(0, 13)]


def test_long_item_leaves_as_a_whole_after_a_sync() -> None:
    """Its beginning tells what it is; none of it leaves before all of it is durable."""
    body = DELTA + LONG_ITEM + DELTA
    hold = EventHold(is_terminal, item_of)
    seen = served(hold, split(body, list(range(0, len(body), 10_000))))
    assert {released for released, _ in seen if released < len(body)} <= {0, len(DELTA), len(DELTA + LONG_ITEM)}
    assert seen[-1] == (len(DELTA), len(body))


@given(
    st.lists(st.sampled_from([ITEM, DELTA, DELTA, LONG_ITEM]), max_size=6),
    st.sampled_from([TOOL, TOOL.rstrip() + b"\ndata: " + b"y" * (2 * UNDECIDED_LIMIT_BYTES) + b"\n\n", END]),
    st.lists(st.sampled_from([ITEM, DELTA, TOOL, END]), max_size=3),
    cut_lists,
    st.booleans(),
)
def test_any_split_keeps_items_for_the_sync_and_tools_for_the_commit(
    before: list[bytes], held: bytes, after: list[bytes], cuts: list[int], bytewise: bool
) -> None:
    """Nothing of a tool leaves; no byte of an item leaves unsynced, in any split of the stream, and nothing is lost before."""
    body = b"".join([*before, held, *after])
    starts = [sum(map(len, before[:index])) for index in range(len(before) + 1)]
    hold, synced = EventHold(is_terminal, item_of), 0
    for released, with_sync in served(hold, split(body, list(range(len(body) % 400)) if bytewise else cuts)):
        assert synced <= released <= with_sync <= starts[-1]
        for start, event in zip(starts, before, strict=False):
            if event in {ITEM, LONG_ITEM} and released > start:
                assert synced >= start + len(event)
        synced = with_sync
    assert hold.held
    assert synced == starts[-1]


def test_encoded_stream_holds_items_by_whole_pieces() -> None:
    """Raw offsets say nothing of events, so a piece that completes an item waits with all it holds, a tool's for the commit."""
    compressor = zlib.compressobj()
    pieces = [
        compressor.compress(plain) + compressor.flush(zlib.Z_SYNC_FLUSH)
        for plain in (DELTA, ITEM + DELTA, DELTA, ITEM + TOOL, DELTA)
    ]
    ends = [sum(map(len, pieces[: index + 1])) for index in range(len(pieces))]
    hold = DecodedEventHold(is_terminal, zlib.decompressobj().decompress, item_of)
    expected = [(ends[0], ends[0]), (ends[0], ends[1]), (ends[2], ends[2]), (ends[2], ends[2]), (ends[2], ends[2])]
    assert served(hold, pieces) == expected
    assert (hold.held, hold.terminal_seen) == (True, False)
    assert DecodedEventHold(is_terminal, None, item_of).held


def test_events_follow_the_standard() -> None:
    """Names, joined data lines, comments, one stripped space, all line ends, and no event without its blank line."""
    body = b'\xef\xbb\xbfevent: a\r\ndata: 1\r\ndata:  2\r\n\r\n: ping\n\nid: 7\rdata\r\rdata: {"x": 1}\n\nevent: b\n\ndata: cut\n'
    assert list(events(body)) == [Event(b"a", b"1\n 2"), Event(b"", b""), Event(b"", b'{"x": 1}')]


@given(st.lists(st.sampled_from(CONTENTS[:2] + TERMINALS), max_size=8), st.sampled_from(BLANKS))
def test_events_of_a_body_are_as_many_as_were_written(written: list[bytes], blank: bytes) -> None:
    """No event is merged with its neighbour or split."""
    assert len(list(events(b"".join(event + blank for event in written)))) == len(written)
