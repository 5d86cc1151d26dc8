"""The reserve as a file; what it does on a disk that runs full is tests/flow/test_full_disk.py."""

from pathlib import Path

from ledger.reserve import Reserve

SIZE = 256 * 1024


def test_reserve_takes_its_room_for_the_owner_alone(tmp_path: Path) -> None:
    """Allocated, not sparse; 0600; taken at the first look."""
    reserve = Reserve(tmp_path / "reserve", SIZE)
    assert not (tmp_path / "reserve").exists()
    assert reserve.look()
    about = (tmp_path / "reserve").stat()
    assert about.st_blocks * 512 >= SIZE
    assert about.st_mode & 0o777 == 0o600


def test_reserve_of_the_process_before_stands(tmp_path: Path) -> None:
    """It needs no second room, so a disk that could not give it again does not refuse requests."""
    Reserve(tmp_path / "reserve", SIZE).look()
    inode = (tmp_path / "reserve").stat().st_ino
    assert Reserve(tmp_path / "reserve", SIZE).look()
    assert (tmp_path / "reserve").stat().st_ino == inode


def test_disk_without_room_for_it_admits_nothing(tmp_path: Path) -> None:
    """A reserve larger than what is free is never taken, and nothing is left behind."""
    reserve = Reserve(tmp_path / "reserve", SIZE)
    reserve._size = reserve._low = 2**62
    assert not reserve.look()
    assert not (tmp_path / "reserve").exists()
