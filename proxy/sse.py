"""How much of a response may be released before it is committed, and how an event stream is read. Pure.

A client counts an answer as whole when it has seen its end: the last byte of framing, or in an event stream the terminal event
(several SDKs hang up right after it, before the chunk terminator; research/clients.md section 4). So the hold is an offset
into the recording: readers are served up to it, and the commit lifts it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

UNDECIDED_LIMIT_BYTES: Final = 64 * 1024  # an event this long is judged by its first bytes: memory stays bounded

# Atomic groups: the \r\n of one line end must not be read as two line ends.
_BLANK_LINE: Final = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_OVERLAP_BYTES: Final = 3  # a blank line of at most four bytes may be split at any of them
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Hold(Protocol):
    """Fed every piece of a body in order; answers the offset up to which bytes may leave before the commit."""

    def feed(self, data: bytes) -> int: ...


class LastByteHold:
    """JSON, binary: everything but the last byte that came."""

    def __init__(self) -> None:
        self._seen = 0

    def feed(self, data: bytes) -> int:
        self._seen += len(data)
        return max(self._seen - 1, 0)


class EventHold:
    """Event streams: whole events at once, an event in the making not yet, from the terminal event on nothing.

    `terminal` is shown one event, without blank lines before it; above UNDECIDED_LIMIT_BYTES only its beginning.
    """

    def __init__(self, terminal: Callable[[bytes], bool]) -> None:
        self._terminal = terminal
        self._event = bytearray()  # the event in the making; once it is known to be long content, only its last bytes
        self._event_at = 0  # offset of `_event` in the body
        self._searched = 0  # no blank line ends before here: each byte is searched once, however small the pieces
        self._long = False
        self._released = 0
        self.terminal_seen = False

    def feed(self, data: bytes) -> int:
        if self.terminal_seen or not data:
            return self._released
        self._release(self._event_at)  # bytes follow: a long event before them was not the end of the body
        self._event += data
        while blank := _BLANK_LINE.search(self._event, self._searched):
            if not self._long and self._judge(blank.end()):
                return self._released
            self._event_ends(blank.end())
        self._searched = max(0, len(self._event) - _OVERLAP_BYTES)
        if not self._long and len(self._event) > UNDECIDED_LIMIT_BYTES:
            if self._judge(UNDECIDED_LIMIT_BYTES):
                return self._released
            self._long = True
        if self._long:
            self._flow()
        return self._released

    def _judge(self, size: int) -> bool:
        self.terminal_seen = self._terminal(bytes(self._event[:size].lstrip(b"\r\n")))
        return self.terminal_seen

    def _event_ends(self, size: int) -> None:
        self._drop(size)
        # The end of a long event was not judged and may be the end of the body: its last byte waits for the next event.
        self._release(self._event_at - (self._long and not self._event))
        self._long = False

    def _flow(self) -> None:
        """A long event is content: everything leaves but what a split blank line may need."""
        self._drop(max(0, len(self._event) - _OVERLAP_BYTES))
        self._release(self._event_at)

    def _drop(self, size: int) -> None:
        del self._event[:size]
        self._event_at += size
        self._searched = 0

    def _release(self, offset: int) -> None:
        self._released = max(self._released, offset)


class DecodedEventHold:
    """An event stream in a content coding: pieces flow until the one that completes the terminal event in the plain text.

    Raw and plain bytes have no common offsets, so a piece is released or held as a whole. Where the coding is not known or
    the bytes are damaged, nothing more is released before the commit.
    """

    def __init__(self, terminal: Callable[[bytes], bool], decode: Callable[[bytes], bytes] | None) -> None:
        self._plain, self._decode = EventHold(terminal), decode
        self._seen = self._released = 0

    @property
    def terminal_seen(self) -> bool:
        return self._plain.terminal_seen

    def feed(self, data: bytes) -> int:
        self._seen += len(data)
        if self._decode is None or self._plain.terminal_seen:
            return self._released
        try:
            self._plain.feed(self._decode(data))
        except ValueError:  # damaged
            self._decode = None
            return self._released
        if not self._plain.terminal_seen:
            self._released = self._seen
        return self._released


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event: its `event:` field, empty where there is none, and its `data:` lines joined by newlines."""

    name: bytes
    data: bytes


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
