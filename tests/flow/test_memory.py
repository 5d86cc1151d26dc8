"""Memory grows neither with a body nor with readers that do not read (I12): VmHWM of the proxy's processes, from /proc."""

import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest

from tests.harness.connections import read_to_end, read_until, request_bytes, status_of
from tests.harness.crashes import CHAT_PATH
from tests.harness.neighbours import beside, process_of
from tests.harness.processes import ANSWER_LIMIT_S, Rig, chat, peak_bytes, until

MIB: Final = 1024 * 1024
GROWTH_LIMIT_BYTES: Final = 64 * MIB
LARGE, LARGEST = 50_000_000, 200_000_000
READERS, MOST_READERS = 100, 500
WARM_UPS: Final = 2
READ_A_READER: Final = 1_000_000
RECEIVE_BUFFER_BYTES: Final = 4096  # the kernel's least, about: what a client does not read stays with the proxy
SMALL_READ_BYTES: Final = 64 * 1024
END: Final = b"data: [DONE]\n\n\r\n0\r\n\r\n"
PART: Final = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
PART_END: Final = b"\r\n--b--\r\n"

slow = pytest.mark.slow


@pytest.fixture
def warm(shared: Rig) -> Iterator[tuple[Rig, int]]:
    """A proxy that has answered each kind of request once, and its peak since."""
    with beside(shared) as made:
        for number in range(WARM_UPS):
            assert made.chat(chat(text=f"warm up {number}", stream=bool(number))).status == 200
        made.settled()
        yield made, peak_bytes(process_of(made).child.pid)


def assert_no_growth(warm: tuple[Rig, int]) -> None:
    rig, before = warm
    grown = peak_bytes(process_of(rig).child.pid) - before
    print(f"grown by {grown / MIB:.1f} MiB")
    assert grown < GROWTH_LIMIT_BYTES


def reader(rig: Rig, text: str, size: int, chunks: int) -> socket.socket:
    """Asks for a stream of `size` bytes, and reads nothing yet."""
    client = socket.socket()
    client.settimeout(2 * ANSWER_LIMIT_S)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    client.connect(("127.0.0.1", rig.port))
    body = chat(f"synthetic/size={size},chunks={chunks}", text, stream=True)
    client.sendall(request_bytes(CHAT_PATH, body, {"Connection": "close"}))
    return client


def assert_drains(client: socket.socket, size: int) -> None:
    """The rest comes, whole."""
    count, last = 0, b""
    while piece := client.recv(MIB):
        count, last = count + len(piece), (last + piece)[-len(END) :]
    assert last == END
    assert count > size


def spooled_bytes(rig: Rig) -> int:
    """Of the one answer that somebody still reads."""
    return sum(path.stat().st_size for path in rig.paths.spool.glob("*.body"))


def completed_calls(rig: Rig) -> int:
    """Counted by the file alone: projecting hundreds of calls again and again would compete with the proxy."""
    with closing(sqlite3.connect(f"file:{rig.paths.ledger}?mode=ro", uri=True)) as ledger:
        counted = "SELECT count(*) FROM event WHERE json_extract(record, '$.kind') = 'call.completed'"
        return int(ledger.execute(counted).fetchone()[0])


@pytest.mark.parametrize("size", [LARGE, pytest.param(LARGEST, marks=slow)])
def test_upload_takes_no_memory(warm: tuple[Rig, int], tmp_path: Path, size: int) -> None:
    """It goes through a file; nothing in it compresses or comes twice."""
    path = tmp_path / "form"
    with path.open("wb") as form:
        form.write(PART)
        form.writelines(os.urandom(MIB) for _ in range(0, size, MIB))
        form.write(PART_END)
    about = {"Content-Type": "multipart/form-data; boundary=b", "Connection": "close"}
    head = request_bytes("/openai/v1/files", b"", about)
    head = head.replace(b"Content-Length: 0", b"Content-Length: %d" % path.stat().st_size)
    with closing(socket.create_connection(("127.0.0.1", warm[0].port), 2 * ANSWER_LIMIT_S)) as client:
        client.sendall(head)
        with path.open("rb") as form:
            client.sendfile(form)
        assert status_of(read_to_end(client)) == 200
    assert_no_growth(warm)


@pytest.mark.parametrize("size", [LARGE, pytest.param(LARGEST, marks=slow)])
def test_stream_to_a_slow_reader_takes_no_memory(warm: tuple[Rig, int], size: int) -> None:
    """It reads a little whenever the answer has grown by more, so that the spool runs far ahead of it; then the rest."""
    rig, step = warm[0], size // 20
    with closing(reader(rig, "slow", size, size // 10_000)) as client:
        read_until(client, b"receipt")
        for target in range(step, size, step):
            until(lambda target=target: spooled_bytes(rig) >= target)
            assert client.recv(SMALL_READ_BYTES)
        assert_drains(client, size - 2 * MIB)
    assert_no_growth(warm)


@pytest.mark.parametrize("readers", [READERS, pytest.param(MOST_READERS, marks=slow)])
def test_readers_that_wait_take_no_memory(warm: tuple[Rig, int], readers: int) -> None:
    """Each reads the first bytes of its own answer, then nothing before all answers are in: only then they drain."""
    rig = warm[0]
    with ExitStack() as opened:
        clients = [
            opened.enter_context(closing(reader(rig, f"slow {number}", READ_A_READER, 100)))
            for number in range(readers)
        ]
        for client in clients:
            read_until(client, b"receipt")
        until(lambda: completed_calls(rig) == readers + WARM_UPS)
        for client in clients:
            assert_drains(client, READ_A_READER // 2)
    assert_no_growth(warm)
