"""Who owns a state dir, whose it is, and which file its ledger is."""

import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from ledger.epochs import SECRET_BYTES, StateDir, file_identity, secret_check
from ledger.errors import StateDirError
from tests.harness.ledgers import child, locked, state_dir_in


def checked(state_dir: StateDir) -> None:
    state_dir.prepare()
    state_dir.secret()


def test_prepared_directories_and_files_are_private(tmp_path: Path) -> None:
    """0700 for directories, 0600 for files, whatever the umask was."""
    os.umask(0)
    state_dir = state_dir_in(tmp_path / "a" / "state")
    state_dir.secret()
    with locked(state_dir):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (state_dir.root, *state_dir.root.iterdir())}
    assert modes == {"state": 0o700, "spool": 0o700, "receipts": 0o700, "secret": 0o600, "ledger.lock": 0o600}


@pytest.mark.parametrize("name", ["", "spool", "receipts", "secret"])
@pytest.mark.parametrize("mode", [0o040, 0o020, 0o010, 0o004, 0o001])
def test_too_open_mode_is_refused(name: str, mode: int, tmp_path: Path) -> None:
    """Any right of others, on any of them; the message names the remedy."""
    state_dir = state_dir_in(tmp_path / "state")
    state_dir.secret()
    path = state_dir.root / name
    path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)
    with pytest.raises(StateDirError, match=f"chmod go-rwx {path}"):
        checked(state_dir)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("name", ["", "receipts", "secret"])
def test_foreign_owner_is_refused(name: str, tmp_path: Path) -> None:
    """Somebody else's directory or secret is not ours to write beside."""
    state_dir = state_dir_in(tmp_path / "state")
    state_dir.secret()
    os.chown(state_dir.root / name, 12345, -1)
    with pytest.raises(StateDirError, match="uid 12345"):
        checked(state_dir)


def test_state_dir_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A file in its place is named with the remedy."""
    (tmp_path / "file").touch()
    with pytest.raises(StateDirError, match="--state-dir"):
        state_dir_in(tmp_path / "file" / "state")


def test_secret_is_made_once(tmp_path: Path) -> None:
    """Random, whole, and the same ever after; a leftover of an unfinished one is no secret."""
    state_dir = state_dir_in(tmp_path)
    (tmp_path / "secret.new").write_bytes(b"half")
    secret = state_dir.secret()
    assert len(secret) == SECRET_BYTES
    assert state_dir.secret() == secret != state_dir_in(tmp_path / "other").secret()
    assert secret.hex() not in secret_check(secret)


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * (SECRET_BYTES + 1)])
def test_secret_of_a_wrong_size_is_refused(damage: bytes, tmp_path: Path) -> None:
    """A cut secret would give other keys to the same requests."""
    state_dir = state_dir_in(tmp_path)
    state_dir.secret()
    (tmp_path / "secret").write_bytes(damage)
    with pytest.raises(StateDirError, match="Restore it"):
        state_dir.secret()


def test_missing_secret_beside_a_ledger_is_refused(tmp_path: Path) -> None:
    """A new secret would recognise no recorded key: everything would be sent again."""
    state_dir = state_dir_in(tmp_path)
    state_dir.ledger.touch()
    with pytest.raises(StateDirError, match="is missing"):
        state_dir.secret()
    assert not (tmp_path / "secret").exists()


def test_second_process_is_refused_and_told_who_owns_it(tmp_path: Path) -> None:
    """Running or stopped, the owner owns; killed, it frees at once."""
    state_dir = state_dir_in(tmp_path)
    with child(tmp_path, "lock", "wait") as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline().strip() == str(owner.pid)
        with pytest.raises(StateDirError, match=f"process {owner.pid}"):
            state_dir.lock()
        owner.send_signal(signal.SIGSTOP)
        os.waitpid(owner.pid, os.WUNTRACED)
        with pytest.raises(StateDirError, match=f"process {owner.pid}"):
            state_dir.lock()
        owner.kill()
        owner.wait()
    with locked(state_dir):
        assert (tmp_path / "ledger.lock").read_text() == f"{os.getpid()}\n"


def test_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    """Also in the same process, whose second descriptor is refused like another's."""
    state_dir = state_dir_in(tmp_path)
    with locked(state_dir), pytest.raises(StateDirError, match=str(os.getpid())):
        state_dir.lock()
    with locked(state_dir):
        pass


def test_file_identity_tells_a_copy_from_the_file(tmp_path: Path) -> None:
    """Writing and renaming keep it, a copy has another; the birth time tells a reused inode."""
    path = tmp_path / "ledger.db"
    path.write_bytes(b"x")
    identity = file_identity(path)
    path.write_bytes(b"longer")
    shutil.copy2(path, tmp_path / "copy")
    assert file_identity(tmp_path / "copy") != identity
    assert file_identity(path.rename(tmp_path / "renamed")) == identity
    assert identity.birth_ns is None or identity.birth_ns > 1_600_000_000 * 10**9


def test_lock_of_the_users_is_shared_and_exclusive_only_without_them(tmp_path: Path) -> None:
    """Whoever ends because nobody uses it keeps everybody from beginning to."""
    state_dir = StateDir(tmp_path / "state", tmp_path / "state" / "receipts")
    assert state_dir.unused() is None  # there is no state dir, so nobody can say
    state_dir.prepare_root()
    one, two = state_dir.use(), state_dir.use()
    assert one is not None
    assert two is not None
    one.release()
    assert state_dir.unused() is None
    two.release()
    alone = state_dir.unused()
    assert alone is not None
    assert state_dir.use() is None
    alone.release()
    assert state_dir.use() is not None


def test_owned_state_dir_is_told_from_a_free_one(tmp_path: Path) -> None:
    """And the look leaves nothing that would keep the next owner out."""
    state_dir = StateDir(tmp_path / "state", tmp_path / "state" / "receipts")
    assert not state_dir.is_owned()
    state_dir.prepare_root()
    with locked(state_dir):
        assert state_dir.is_owned()
    assert not state_dir.is_owned()
    with locked(state_dir):
        pass
