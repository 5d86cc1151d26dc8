"""Memory does not grow with a body, nor with readers that do not read (I12): VmHWM of the proxy's processes, from /proc."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest

from tests.harness.connections import read_to_end, read_until, request_bytes
from tests.harness.neighbours import beside, process_of
from tests.harness.processes import Rig, chat, until

MIB: Final = 1024 * 1024
GROWTH_LIMIT_BYTES: Final = 64 * MIB
CHAT, FILES = "/openai/v1/chat/completions", "/openai/v1/files"
SMALLEST_RECEIVE_BUFFER_BYTES: Final = 4096  # the kernel doubles it; what a client does not read stays with the proxy
DONE: Final = b"data: [DONE]\n\n\r\n0\r\n\r\n"


def peak_bytes(pid: int) -> int:
    """The most that this process and its children ever had in memory at once, each for itself."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found[1]) * 1024 + sum(peak_bytes(int(child)) for child in children)


class Measured:
    """A warm proxy. `growth_bytes` is what its peak has gained since it was warm."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self._pid = rig, process_of(rig).child.pid
        for stream in (False, True):
            assert rig.chat(chat(text=f"warm up {stream}", stream=stream)).status == 200
        rig.settled()
        self._warm_bytes = peak_bytes(self._pid)

    @property
    def growth_bytes(self) -> int:
        return peak_bytes(self._pid) - self._warm_bytes


@pytest.fixture
def measured(shared: Rig) -> Iterator[Measured]:
    with beside(shared) as made:
        yield Measured(made)


def reader_that_waits(rig: Rig, text: str, size: int, chunks: int) -> socket.socket:
    """Asks for a stream of `size` bytes and has read its first ones."""
    client = socket.socket()
    client.settimeout(60)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALLEST_RECEIVE_BUFFER_BYTES)
    client.connect(("127.0.0.1", rig.port))
    body = chat(f"synthetic/size={size},chunks={chunks}", text, stream=True)
    client.sendall(request_bytes(CHAT, body, {"Connection": "close"}))
    return client


def drained(client: socket.socket) -> tuple[int, bytes]:
    """How many bytes still came, and the last of them."""
    count, last = 0, b""
    while piece := client.recv(MIB):
        count, last = count + len(piece), (last + piece)[-64:]
    return count, last


def spooled_bytes(rig: Rig) -> int:
    return sum(path.stat().st_size for path in rig.paths.spool.glob("*.body"))


@pytest.mark.parametrize("size", [50_000_000, 200_000_000])
def test_upload_takes_no_memory(measured: Measured, tmp_path: Path, size: int) -> None:
    import time
    t=time.time()
    path = tmp_path / "upload"
    boundary = "b" * 24
    with path.open("wb") as file:
        file.write(f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\nContent-Type: application/octet-stream\r\n\r\n'.encode())
        for _ in range(0, size, MIB):
            file.write(os.urandom(MIB))
        file.write(f"\r\n--{boundary}--\r\n".encode())
    head = request_bytes(FILES, b"", {"Content-Type": f"multipart/form-data; boundary={boundary}", "Connection": "close"})
    head = head.replace(b"Content-Length: 0", f"Content-Length: {path.stat().st_size}".encode())
    with closing(socket.create_connection(("127.0.0.1", measured.rig.port), 60)) as client, path.open("rb") as file:
        client.sendall(head)
        client.sendfile(file)
        got = read_to_end(client)
    assert got.startswith(b"HTTP/1.1 200"), got[:300]
    print("upload", size, measured.growth_bytes / MIB, time.time()-t)


@pytest.mark.parametrize("size", [50_000_000, 200_000_000])
def test_stream_to_slow_reader(measured: Measured, size: int) -> None:
    import time
    t=time.time()
    rig = measured.rig
    with closing(reader_that_waits(rig, "slow", size, 20000)) as client:
        read_until(client, b"receipt")
        until(lambda: spooled_bytes(rig) > size)
        print("spooled", measured.growth_bytes / MIB, time.time()-t)
        count, last = drained(client)
    print("stream", size, count, last[-30:], measured.growth_bytes / MIB, time.time()-t)


@pytest.mark.parametrize("readers", [100, 500])
def test_many(measured: Measured, readers: int) -> None:
    import time
    t=time.time()
    rig = measured.rig
    with ExitStack() as opened:
        clients = [opened.enter_context(closing(reader_that_waits(rig, f"slow {n}", 1_000_000, 100))) for n in range(readers)]
        for client in clients:
            read_until(client, b"receipt")
        print("heads", measured.growth_bytes / MIB, time.time()-t)
        until(lambda: rig.status()["stages"].get("completed", 0) == readers + 2)
        print("completed", measured.growth_bytes / MIB, time.time()-t)
        for client in clients:
            count, last = drained(client)
            assert last.endswith(DONE)
    print("many", readers, measured.growth_bytes / MIB, time.time()-t)
