"""What a killed process leaves of a response."""

import os
import resource
import signal
import stat
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.spool import Spool, names, remove, salvage

HEAD = b'{"attempt":"a1","status":200}'
PIECES = [b"hello ", b"", b"w" * 5_000, b"orld"]
BODY = b"".join(PIECES)


def write(directory: Path, name: str = "a1", pieces: list[bytes] = PIECES) -> None:
    spool = Spool(directory, name)
    spool.head(HEAD)
    for piece in pieces:
        spool.append(piece)
    spool.close()


def salvaged_bytes(directory: Path, name: str = "a1") -> bytes | None:
    found = salvage(directory, name)
    return None if found is None else found.body_path.read_bytes()[: found.size]


def test_whole_spool_is_salvaged_whole_and_again(tmp_path: Path) -> None:
    """Reading changes nothing, so it can be repeated."""
    write(tmp_path)
    first = salvage(tmp_path, "a1")
    assert first is not None
    assert (first.head, first.size) == (HEAD, len(BODY))
    assert salvage(tmp_path, "a1") == first
    assert salvaged_bytes(tmp_path) == BODY


def test_index_lines_are_offset_and_running_crc(tmp_path: Path) -> None:
    """The format, byte for byte: it is read by another process, perhaps by another version."""
    write(tmp_path, pieces=[b"123456789", b"0"])
    head = b"%08x %b\n" % (zlib.crc32(HEAD), HEAD)
    assert (tmp_path / "a1.index").read_bytes() == head + b"9 cbf43926\n10 261daee5\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_truncated_or_flipped_files_salvage_only_a_true_prefix(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever is cut off or flipped in the body or in the index, nothing false is salvaged."""
    remove(tmp_path, "a1")
    write(tmp_path)
    path = tmp_path / data.draw(st.sampled_from(["a1.body", "a1.index"]))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    found = salvaged_bytes(tmp_path)
    assert found in {None, b"", BODY[:6], BODY[:5_006], BODY}


@pytest.mark.parametrize("index", [b"", b'{"attempt":', HEAD])
def test_torn_head_salvages_nothing(tmp_path: Path, index: bytes) -> None:
    """Without a head nobody can say whose bytes these are."""
    write(tmp_path)
    (tmp_path / "a1.index").write_bytes(index)
    assert salvage(tmp_path, "a1") is None


@pytest.mark.parametrize(
    "tail", [b"50", b"5010 ", b"5010 00000000", b"9999 00000000\n", b"\x00" * 40, b"3 00000000\n", b"x\n"]
)
def test_torn_tail_of_the_index_is_ignored(tmp_path: Path, tail: bytes) -> None:
    """A last line that is torn, false or does not advance ends the salvage before it."""
    write(tmp_path)
    with (tmp_path / "a1.index").open("ab") as index:
        index.write(tail)
    assert salvaged_bytes(tmp_path) == BODY


def test_killed_writer_leaves_all_that_was_appended(tmp_path: Path) -> None:
    """SIGKILL right after an append: every byte of it is there."""
    if (child := os.fork()) == 0:
        try:
            spool = Spool(tmp_path, "killed")
            spool.head(HEAD)
            spool.append(BODY)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert salvaged_bytes(tmp_path, "killed") == BODY


def test_full_disk_propagates_and_counts_nothing(tmp_path: Path) -> None:
    """A write that fails half way raises, and neither `size` nor a salvage counts its bytes."""
    spool = Spool(tmp_path, "a1")
    spool.head(HEAD)
    spool.append(b"kept")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, old[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            spool.append(b"x" * 2_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, ignored)
    assert spool.size == 4
    assert salvaged_bytes(tmp_path) == b"kept"
    spool.append(b" on")
    spool.close()
    assert salvaged_bytes(tmp_path) == b"kept on"


def test_files_are_private_and_a_name_is_used_once(tmp_path: Path) -> None:
    """0600, and never continued: a second spool of one name raises and changes nothing."""
    write(tmp_path)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    second = Spool(tmp_path, "a1")
    with pytest.raises(FileExistsError):
        second.head(HEAD)
    second.close()
    assert salvaged_bytes(tmp_path) == BODY


@pytest.mark.parametrize("head", [b"", b"two\nlines"])
def test_head_that_is_not_one_line_is_refused(tmp_path: Path, head: bytes) -> None:
    """The index is read line by line."""
    spool = Spool(tmp_path, "a1")
    with pytest.raises(ValueError, match="one line"):
        spool.head(head)
    spool.close()


def test_body_before_head_or_second_head_is_refused(tmp_path: Path) -> None:
    """The order of the index is its meaning."""
    spool = Spool(tmp_path, "a1")
    with pytest.raises(ValueError, match="no head yet"):
        spool.append(b"x")
    spool.head(HEAD)
    with pytest.raises(ValueError, match="written once"):
        spool.head(HEAD)
    spool.close()


def test_names_lists_halves_and_remove_is_repeatable(tmp_path: Path) -> None:
    """Recovery finds what a crash left within `remove`, and may remove it again."""
    write(tmp_path, "b")
    write(tmp_path, "a.1")
    (tmp_path / "b.index").unlink()
    assert names(tmp_path) == ["a.1", "b"]
    assert salvage(tmp_path, "b") is None
    for name in ("a.1", "b", "b"):
        remove(tmp_path, name)
    assert names(tmp_path) == []


def test_removed_spool_stays_readable_until_closed(tmp_path: Path) -> None:
    """Readers in flight do not notice that the files are gone."""
    spool = Spool(tmp_path, "a1")
    spool.head(HEAD)
    spool.append(b"hello")
    spool.remove()
    assert spool.read_at(1, 3) == b"ell"
    assert spool.size == 5
    spool.close()
    spool.close()
    assert spool.closed
