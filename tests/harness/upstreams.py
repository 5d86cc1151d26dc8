"""An upstream that answers with bytes written in the test and keeps every request as it stood on the wire."""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

CLOSE = b""  # an empty piece at the end of a reply: close the connection after it


@dataclass
class RawUpstream:
    """`replies` by request target: the raw bytes of the answer. A reply that ends in CLOSE closes the connection."""

    replies: Mapping[str, tuple[bytes, ...]]
    requests: list[bytes] = field(default_factory=list)
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        with suppress(OSError):  # the listener was closed: the test is over
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while (request := _read_request(connection)) is not None:
                self.requests.append(request)
                pieces = self.replies[request.split(b" ")[1].decode()]
                for piece in pieces:
                    connection.sendall(piece)
                if pieces[-1] == CLOSE:
                    return


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
def raw_upstream(replies: Mapping[str, tuple[bytes, ...]]) -> Iterator[RawUpstream]:
    upstream = RawUpstream(replies)
    threading.Thread(target=upstream.serve, daemon=True).start()
    try:
        yield upstream
    finally:
        upstream.listener.shutdown(socket.SHUT_RDWR)
        upstream.listener.close()
