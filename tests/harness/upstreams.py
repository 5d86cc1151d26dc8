"""An upstream that answers with bytes written in the test and keeps every request as it stood on the wire."""

import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto

CLOSE = b""  # an empty piece at the end of a reply: close the connection after it


class Act(Enum):
    """What is done between the pieces of a reply."""

    RESET = auto()  # the connection ends with RST
    HOLD = auto()  # nothing goes on until `released` is set


Piece = bytes | float | Act  # a number is a pause in seconds


@dataclass
class RawUpstream:
    """`replies` by request target: the raw bytes of the answer. A reply that ends in CLOSE closes the connection.

    `requests` stand as they came, `connections` counts where they came in, `done` has the pieces that left.
    """

    replies: Mapping[str, tuple[Piece, ...]]
    tls: ssl.SSLContext | None = None
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    done: list[Piece] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        with suppress(OSError):  # the listener was closed: the test is over
            while True:
                connection, _ = self.listener.accept()
                self.connections += 1
                threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, plain: socket.socket) -> None:
        with plain, suppress(OSError):
            connection = self.tls.wrap_socket(plain, server_side=True) if self.tls else plain
            with connection:
                while (request := _read_request(connection)) is not None:
                    self.requests.append(request)
                    pieces = self.replies[request.split(b" ")[1].decode()]
                    for piece in pieces:
                        self._act(connection, piece)
                        self.done.append(piece)
                    if pieces[-1] in (CLOSE, Act.RESET):
                        return

    def _act(self, connection: socket.socket, piece: Piece) -> None:
        match piece:
            case bytes():
                connection.sendall(piece)
            case float():
                time.sleep(piece)
            case Act.HOLD:
                self.released.wait()
            case Act.RESET:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _read_request(connection: socket.socket) -> bytes | None:
    got = b""
    while b"\r\n\r\n" not in got:
        piece = connection.recv(65536)
        if not piece:
            return None
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    missing = int(lengths[0] if lengths else b"0") - len(body)
    while missing > 0:
        piece = connection.recv(min(missing, 65536))
        if not piece:
            return None
        got, missing = got + piece, missing - len(piece)
    return got


@contextmanager
def raw_upstream(replies: Mapping[str, tuple[Piece, ...]], tls: ssl.SSLContext | None = None) -> Iterator[RawUpstream]:
    upstream = RawUpstream(replies, tls)
    threading.Thread(target=upstream.serve, daemon=True).start()
    try:
        yield upstream
    finally:
        upstream.released.set()
        upstream.listener.shutdown(socket.SHUT_RDWR)
        upstream.listener.close()
