"""A forward proxy between the proxy and a provider: CONNECT and the absolute form, and what passed."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_ABSOLUTE = re.compile(rb"(\w+) http://([^/]+):(\d+)(/.*)", re.DOTALL)
_CONNECT = re.compile(rb"(CONNECT) ([^ ]+):(\d+) ")
_LOGIN = re.compile(rb"Proxy-Authorization: [^\r]*\r\n")  # a forward proxy keeps it to itself


@dataclass
class Egress:
    """`heads` are the requests as they came in, before any tunnel."""

    heads: list[bytes] = field(default_factory=list)
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        with suppress(OSError):  # the listener was closed: the test is over
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._tunnel, args=(client,), daemon=True).start()

    def _tunnel(self, client: socket.socket) -> None:
        with client:
            got = b""
            while b"\r\n\r\n" not in got:
                got += client.recv(65536)
            self.heads.append(got)
            found = _CONNECT.match(got) or _ABSOLUTE.match(_LOGIN.sub(b"", got))
            assert found is not None, got
            _, host, port, *rest = found.groups()
            with socket.create_connection((host.decode(), int(port))) as provider:
                if rest:
                    provider.sendall(found[1] + b" " + rest[0])
                else:
                    client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                back = threading.Thread(target=_pump, args=(provider, client), daemon=True)
                back.start()
                _pump(client, provider)
                back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def egress() -> Iterator[Egress]:
    made = Egress()
    threading.Thread(target=made.serve, daemon=True).start()
    try:
        yield made
    finally:
        made.listener.shutdown(socket.SHUT_RDWR)
        made.listener.close()
