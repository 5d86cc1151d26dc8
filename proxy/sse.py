"""How much of a response may be released before it is committed, and how an event stream is read. Pure.

A client counts an answer as whole when it has seen its end: the last byte of framing, or in an event stream the terminal event
(several SDKs hang up right after it, before the chunk terminator; research/clients.md section 4). So the hold is an offset
into the recording: readers are served up to it, and the commit lifts it. Some clients act on a single item of the stream before
they have seen its end (Codex runs a tool at its `output_item.done`); for them an item can be held as well.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

UNDECIDED_LIMIT_BYTES: Final = 64 * 1024  # an event this long is judged by its first bytes: memory stays bounded

# Atomic groups: the \r\n of one line end must not be read as two line ends.
_BLANK_LINE: Final = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_LINE_ENDS: Final = b"\r\n"
_OVERLAP_BYTES: Final = 3  # a blank line of at most four bytes may be split at any of them
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Item(StrEnum):
    """What an event completes, for a client that acts on items."""

    TOOL = "tool"  # the client runs it: from here on everything waits for the commit
    OTHER = "other"  # the client repeats it in its next request: it leaves once it is durable in the spool


def no_items(event: bytes) -> Item | None:  # noqa: ARG001 - a classification's argument
    """For every client that acts on the end only."""
    return None


class Hold(Protocol):
    """Fed every piece of a body in order; answers the offset up to which bytes may leave before the commit.

    Where `sync_to` is beyond that answer, bytes up to it may leave as well once the spool holds them durably. Whoever feeds
    does that before the next piece: the next answer counts them as gone.
    """

    @property
    def sync_to(self) -> int: ...

    @property
    def terminal_seen(self) -> bool:
        """The terminal event came, whole."""

    @property
    def is_blind(self) -> bool:
        """It cannot read what it holds, so nothing follows from an end that it did not see."""

    @property
    def overlooks(self) -> bool:
        """The last event is so long that only its beginning was looked at."""

    def feed(self, data: bytes) -> int: ...


class LastByteHold:
    """JSON, binary: everything but the last byte that came."""

    sync_to = 0  # nothing waits for the spool
    terminal_seen, is_blind, overlooks = False, True, True

    def __init__(self) -> None:
        self._seen = 0

    def feed(self, data: bytes) -> int:
        self._seen += len(data)
        return max(self._seen - 1, 0)


class EventHold:
    """Event streams: whole events at once, an event in the making not yet, from the terminal event or a tool on nothing.

    `terminal` and `item` are shown one event, without blank lines before it; above UNDECIDED_LIMIT_BYTES only its beginning.
    `held`: nothing more leaves before the commit. `terminal_seen`: because the terminal event came, whole.
    """

    is_blind = False

    def __init__(self, terminal: Callable[[bytes], bool], item: Callable[[bytes], Item | None] = no_items) -> None:
        self._terminal, self._item = terminal, item
        self._event = bytearray()  # the event in the making; once it is known to be long content, only its last bytes
        self._event_at = 0  # offset of `_event` in the body
        self._searched = 0  # no blank line ends before here: each byte is searched once, however small the pieces
        self._long = self._is_item = False  # of the event in the making
        self._released = 0
        self._syncs = False  # an item ended in this piece: what is whole from it on waits for the spool
        self.sync_to = 0
        self._ending: bytes | None = None  # the last bytes of a terminal event that is longer than what it was known by
        self._overlooked = False
        self.held = self.terminal_seen = False

    @property
    def overlooks(self) -> bool:
        return self._overlooked or self._long

    @property
    def awaits_end(self) -> bool:
        """Nothing more leaves, but whether the terminal event comes whole is still looked for."""
        return self._ending is not None

    def feed(self, data: bytes) -> int:
        self._released, self._syncs = max(self._released, self.sync_to), False
        if self.held or not data:
            self._look_for_end(data)
            return self._released
        if data.strip(_LINE_ENDS) and not self._is_item:
            self._release(self._event_at)  # something follows: a long event before was not the end of the body
        self._event += data
        while blank := _BLANK_LINE.search(self._event, self._searched):
            if not self._long and self._holds(blank.end(), is_whole=True):
                return self._released
            self._event_ends(*blank.span())
        self._searched = max(0, len(self._event) - _OVERLAP_BYTES)
        if not self._long and len(self._event) > UNDECIDED_LIMIT_BYTES:
            if self._holds(UNDECIDED_LIMIT_BYTES, is_whole=False):
                return self._released
            self._long = True
        if self._long:
            self._flow()
        return self._released

    def _look_for_end(self, data: bytes) -> None:
        if self._ending is None:
            return
        self._ending += data
        if _BLANK_LINE.search(self._ending):
            self._ending, self.terminal_seen = None, True
        else:
            self._ending = self._ending[-_OVERLAP_BYTES:]

    def _holds(self, size: int, *, is_whole: bool) -> bool:
        event = bytes(self._event[:size].lstrip(_LINE_ENDS))
        item = self._item(event)
        if self._terminal(event):
            self.held, self.terminal_seen = True, is_whole
            self._ending = None if is_whole else bytes(self._event[-_OVERLAP_BYTES:])
        elif item is Item.TOOL:
            self.held = True
        else:
            self._is_item = item is Item.OTHER
        return self.held

    def _event_ends(self, blank_at: int, end: int) -> None:
        self._drop(end)
        self._syncs = self._syncs or self._is_item
        # The end of a long event was not judged and may be the end of the body: its blank line waits for the next event. Some
        # clients read lines, so no part of it may leave.
        waits = self._long and not self._event and not self._is_item
        self._release(self._event_at - (end - blank_at if waits else 0))
        self._overlooked, self._long, self._is_item = self._long, False, False

    def _flow(self) -> None:
        """A long event is content: everything leaves but what a split blank line may need. A long item leaves as a whole."""
        self._drop(max(0, len(self._event) - _OVERLAP_BYTES))
        if not self._is_item:
            self._release(self._event_at)

    def _drop(self, size: int) -> None:
        del self._event[:size]
        self._event_at += size
        self._searched = 0

    def _release(self, offset: int) -> None:
        if self._syncs:
            self.sync_to = max(self.sync_to, offset)
        else:
            self._released = max(self._released, offset)


class DecodedEventHold:
    """An event stream in a content coding: pieces flow until the one that completes the terminal event in the plain text.

    Raw and plain bytes have no common offsets, so a piece is released, held or left to the spool as a whole. Where the
    coding is not known or the bytes are damaged, nothing more is released before the commit.
    """

    def __init__(
        self,
        terminal: Callable[[bytes], bool],
        decode: Callable[[bytes], bytes] | None,
        item: Callable[[bytes], Item | None] = no_items,
    ) -> None:
        self._plain, self._decode = EventHold(terminal, item), decode
        self._seen = self._released = 0
        self.sync_to = 0

    @property
    def is_blind(self) -> bool:
        return self._decode is None

    @property
    def overlooks(self) -> bool:
        return self._plain.overlooks

    @property
    def held(self) -> bool:
        return self.is_blind or self._plain.held

    @property
    def terminal_seen(self) -> bool:
        return self._plain.terminal_seen

    def feed(self, data: bytes) -> int:
        self._released = max(self._released, self.sync_to)
        self._seen += len(data)
        if self._decode is None or (self._plain.held and not self._plain.awaits_end):
            return self._released
        try:
            released = self._plain.feed(self._decode(data))
        except ValueError:  # damaged
            self._decode = None
            return self._released
        if self._plain.held:
            return self._released
        if self._plain.sync_to > released:
            self.sync_to = self._seen
        else:
            self._released = self._seen
        return self._released


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event: its `event:` field, empty where there is none, and its `data:` lines joined by newlines."""

    name: bytes
    data: bytes

    def written(self) -> bytes:
        name = b"event: " + self.name + b"\n" if self.name else b""
        return name + b"".join(b"data: " + line + b"\n" for line in self.data.split(b"\n")) + b"\n"


def events(body: bytes) -> Iterator[Event]:
    """The events of a body, as the HTML standard dispatches them: an event that its blank line did not end is no event."""
    name = b""
    data: list[bytes] = []
    start = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    for end in _LINE_END.finditer(body, start):
        line = body[start : end.start()]
        start = end.end()
        if not line:
            if data:
                yield Event(name, b"\n".join(data))
            name, data = b"", []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            name = value
        elif field == b"data":
            data.append(value)
