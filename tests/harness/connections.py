"""Clients below HTTP libraries: raw bytes in and out, kept connections, answers that are read in part."""

import http.client
import json
import re
import selectors
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from blake3 import blake3

from tests.harness.processes import ANSWER_LIMIT_S, Answer, Rig

CALLER = "Bearer sk-test-caller"


def request_bytes(path: str, body: bytes, headers: dict[str, str] | None = None, method: str = "POST") -> bytes:
    """A request as `Rig.post` sends it, byte for byte ours."""
    about = {"Host": "proxy", "Authorization": CALLER, "Content-Type": "application/json", **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in about.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), ANSWER_LIMIT_S) as sock:
        yield sock


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    """All bytes up to at least `mark`; raises where the connection ends before it."""
    got = b""
    while mark not in got:
        piece = sock.recv(65536)
        if not piece:
            raise ConnectionError(f"closed after {got[-300:]!r}, before {mark!r}")
        got += piece
    return got


def read_to_end(sock: socket.socket) -> bytes:
    got = b""
    try:
        while piece := sock.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    return got


def exchange(port: int, data: bytes, *, half_close: bool = False) -> bytes:
    """Raw bytes out; what came back before the connection ended. Ask for `Connection: close`, or be answered so."""
    with connected(port) as sock:
        sock.sendall(data)
        if half_close:
            sock.shutdown(socket.SHUT_WR)
        return read_to_end(sock)


def read_answer(sock: socket.socket) -> Answer:
    response = http.client.HTTPResponse(sock)
    response.begin()
    return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def status_of(raw: bytes) -> int:
    found = re.match(rb"HTTP/1\.[01] (\d{3})", raw)
    assert found is not None, raw[:200]
    return int(found[1])


def dechunked(raw: bytes) -> tuple[bytes, bool]:
    """The body of a raw chunked answer, and whether its end came."""
    rest, body = raw.partition(b"\r\n\r\n")[2], b""
    while found := re.match(rb"([0-9a-f]+)\r\n", rest):
        size, start = int(found[1], 16), found.end()
        if size == 0:
            return body, True
        body += rest[start : start + size]
        rest = rest[start + size + 2 :]
    return body, False


def receipts_of(rig: Rig, body: bytes) -> list[dict[str, Any]]:
    """The provider's receipts of exactly these bytes."""
    digest = blake3(body).hexdigest()
    return [line for line in rig.provider_receipts() if line["body_blake3"] == digest]


def documents(stream: bytes) -> list[Any]:
    """The JSON of an event stream's data lines."""
    lines = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


def readable(sock: socket.socket, within_s: float) -> bool:
    """Has anything come? By poll: select cannot take descriptors above 1,023."""
    with selectors.PollSelector() as asked:
        asked.register(sock, selectors.EVENT_READ)
        return bool(asked.select(within_s))
