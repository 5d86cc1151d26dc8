"""What the outside world has seen of a proxy, read from the bytes on its sockets: a request begun, an answer ended. Pure."""

import re
from dataclasses import dataclass, field
from typing import Final

from tests.harness.syscalls import Sent

_REQUEST: Final = re.compile(rb"(?:POST|PUT|PATCH|DELETE) /")
_REQUEST_ID: Final = re.compile(rb"\r\nX-Client-Request-Id: (call_[0-9a-f]+)\r\n")
_TERMINAL: Final = re.compile(rb"^(?:data: \[DONE\]|event: message_stop)\r?\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Begun:
    """The first byte of the call's request is on its way to the provider."""

    call: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A client has seen the end of the call's answer: of its framing (`is_whole`), or its terminal event."""

    call: str
    status: int
    body: bytes
    is_whole: bool


Mark = Begun | Ended


@dataclass(slots=True)
class _Answer:
    """One answer on its way to a client, as far as it was written."""

    status: int
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)
    chunk_left: int = 0
    is_whole: bool = False
    has_ended: bool = False  # terminal event or framing was seen, and told

    def take(self, buffer: bytearray) -> None:
        """Takes what belongs to it."""
        if (declared := self.headers.get("content-length")) is not None:
            self._take_bytes(buffer, int(declared) - len(self.body))
            self.is_whole = len(self.body) == int(declared)
            return
        while buffer and not self.is_whole:
            if self.chunk_left:
                self.chunk_left -= self._take_bytes(buffer, self.chunk_left)
                continue
            line, found, _ = bytes(buffer.removeprefix(b"\r\n")).partition(b"\r\n")
            if not found:
                return
            del buffer[: buffer.index(line) + len(line) + 2]
            self.chunk_left = int(line, 16)
            if self.chunk_left == 0 and buffer.startswith(b"\r\n"):
                del buffer[:2]
                self.is_whole = True

    def _take_bytes(self, buffer: bytearray, most: int) -> int:
        piece = buffer[:most]
        del buffer[:most]
        self.body += piece
        return len(piece)


@dataclass(slots=True)
class Wire:
    """Reassembles each connection. Of answers without a call (safe requests) and of refusals it tells nothing."""

    provider_port: int
    proxy_port: int
    _buffers: dict[str, bytearray] = field(default_factory=dict)
    _answers: dict[str, _Answer] = field(default_factory=dict)

    def see(self, sent: Sent) -> list[Mark]:
        local, _, remote = sent.connection.partition("->")
        if remote.endswith(f":{self.provider_port}"):
            return _begun(sent.data)
        if local.endswith(f":{self.proxy_port}"):
            return self._answered(sent)
        return []

    def _answered(self, sent: Sent) -> list[Mark]:
        marks: list[Mark] = []
        buffer = self._buffers.setdefault(sent.connection, bytearray())
        if sent.data.startswith(b"HTTP/1.1 "):  # an answer that was broken off has no end; this is the next one
            buffer.clear()
            self._answers.pop(sent.connection, None)
        buffer += sent.data
        while buffer:
            answer = self._answers.get(sent.connection)
            if answer is None:
                head, found, _ = bytes(buffer).partition(b"\r\n\r\n")
                if not found:
                    break
                del buffer[: len(head) + 4]
                answer = self._answers[sent.connection] = _answer(head)
            before = len(buffer)
            answer.take(buffer)
            marks += _ends(answer)
            if answer.is_whole:
                del self._answers[sent.connection]
            elif len(buffer) == before:
                break
        return marks


def _begun(data: bytes) -> list[Mark]:
    if not _REQUEST.match(data):  # a piece of a body
        return []
    found = _REQUEST_ID.search(data)
    if found is None:
        raise AssertionError(f"a request without sendonce's request id left for the provider: {data[:200]!r}")
    return [Begun(found[1].decode())]


def _answer(head: bytes) -> _Answer:
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return _Answer(int(first.split()[1]), headers)


def _ends(answer: _Answer) -> list[Mark]:
    call = answer.headers.get("sendonce-call")
    if call is None or answer.headers.get("sendonce-disposition") == "refused":
        return []
    is_terminal = not answer.has_ended and _TERMINAL.search(answer.body) is not None
    if not (answer.is_whole or is_terminal):
        return []
    answer.has_ended = True
    return [Ended(call, answer.status, bytes(answer.body), answer.is_whole)]
