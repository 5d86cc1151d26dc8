"""The state dir: who owns it, whose it is, and which file its ledger is."""

import ctypes
import errno
import fcntl
import os
import secrets
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3

from ledger.errors import StateDirError

SECRET_BYTES: Final = 32
# sun_path of sockaddr_un, less its final zero
SOCKET_PATH_LIMIT_BYTES: Final = 103 if sys.platform == "darwin" else 107
PROBED_S: Final = 0.02  # `is_owned` holds the lock for microseconds: who meets that tries once more
SECRET_CONTEXT: Final = b"sendonce secret check"


@dataclass(frozen=True, slots=True)
class StateDir:
    """The paths of FORMAT.md under one root."""

    root: Path
    receipts: Path

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.db"

    @property
    def wal(self) -> Path:
        return self.root / "ledger.db-wal"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def reserve(self) -> Path:
        return self.root / "reserve"

    @property
    def control_socket(self) -> Path:
        return self.root / "control.sock"

    @property
    def activity_log(self) -> Path:
        return self.root / "activity.log"

    @property
    def owner_lock(self) -> Path:
        return self.root / "ledger.lock"

    @property
    def users_lock(self) -> Path:
        """Shared by every `sendonce run` for as long as it uses the owner; exclusive: nobody does, and nobody may begin to."""
        return self.root / "users.lock"

    @property
    def starts_lock(self) -> Path:
        """Held by the `sendonce run` that looks for an owner and starts one where there is none."""
        return self.root / "starts.lock"

    def prepare(self) -> None:
        """Creates what is missing, 0700, durably, and refuses what others may read. Raises StateDirError."""
        os.umask(0o077)
        if len(os.fsencode(self.control_socket)) > SOCKET_PATH_LIMIT_BYTES:
            raise StateDirError(
                f"The path {self.control_socket} is longer than the {SOCKET_PATH_LIMIT_BYTES} bytes a socket may have. "
                "Choose a shorter --state-dir."
            )
        for directory in (self.root, self.spool, self.receipts):
            self._prepare(directory)

    def prepare_root(self) -> None:
        """As `prepare`, no more than the locks of runs need, and without its umask: a command inherits that. Raises StateDirError."""
        self._prepare(self.root)

    def _prepare(self, directory: Path) -> None:
        # Before there is a ledger, a start that died may have made a directory whose name no disk knows yet.
        to_sync = [each for each in (directory, *directory.parents) if not each.exists()]
        if not to_sync and not self.ledger.exists():
            to_sync = [directory]
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for each in to_sync:
                sync_directory(each.parent)
        except OSError as error:
            raise StateDirError(
                f"The state directory {directory} cannot be created ({error.strerror}). Name another with --state-dir."
            ) from error
        _check_private(directory)

    def lock(self) -> "Lock":
        """Takes the exclusive lock, which its holder keeps to the last write. Raises StateDirError."""
        fd = _opened(self.owner_lock)
        try:
            if not _flocked(fd, fcntl.LOCK_EX | fcntl.LOCK_NB):
                time.sleep(PROBED_S)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise
            raise StateDirError(
                f"The state directory {self.root} belongs to a running sendonce (process {self.owner_named()}). "
                "Stop that one, or give this one another --state-dir."
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return Lock(fd)

    def is_owned(self) -> bool:
        """Somebody holds the lock: it serves, starts, ends, or decides."""
        try:
            fd = os.open(self.owner_lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            return not _flocked(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(fd)

    def owner_named(self) -> str:
        """The process id that the last owner left for people."""
        return self.owner_lock.read_text(errors="replace").strip() or "unknown"

    def use(self) -> "Lock | None":
        """A share in the owner's use; None while one ends because nobody used it."""
        return _taken(self.users_lock, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def unused(self) -> "Lock | None":
        """Nobody uses the owner, and nobody can while this is held. None: somebody does, or there is no state dir yet."""
        try:
            return _taken(self.users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None

    def turn(self, *, wait: bool) -> "Lock | None":
        """To look for an owner, and to start or end one; None: another one has it, and this one does not wait."""
        return _taken(self.starts_lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

    def secret(self) -> bytes:
        """The ledger's 32 random bytes; made durable before they are first used. Raises StateDirError."""
        path = self.root / "secret"
        if not path.exists():
            if self.ledger.exists():
                raise StateDirError(
                    f"{path} is missing, so no recorded key could be recognised again. Restore it from where it was "
                    "kept; without it, start with an empty --state-dir."
                )
            _write_durably(path, secrets.token_bytes(SECRET_BYTES))
        _check_private(path)
        secret = path.read_bytes()
        if len(secret) != SECRET_BYTES:
            raise StateDirError(
                f"{path} holds {len(secret)} bytes instead of {SECRET_BYTES}. Restore it from where it was kept."
            )
        return secret


@dataclass(frozen=True, slots=True)
class Lock:
    """Holds the flock as long as its descriptor is open; a dead process holds nothing, a stopped one still does."""

    fd: int

    def release(self) -> None:
        os.close(self.fd)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _flocked(fd: int, how: int) -> bool:
    """False where somebody else's lock stands against it."""
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        return False
    return True


def _taken(path: Path, how: int) -> Lock | None:
    fd = _opened(path)
    if _flocked(fd, how):
        return Lock(fd)
    os.close(fd)
    return None


def secret_check(secret: bytes) -> str:
    """Tells in the ledger which secret it goes with, without telling the secret."""
    return blake3(SECRET_CONTEXT, key=secret).hexdigest(16)


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A copy or a restored backup has another one. Birth time where the file system knows it."""

    inode: int
    birth_ns: int | None


def file_identity(path: Path) -> FileIdentity:
    return FileIdentity(path.stat().st_ino, _birth_ns(path))


class _Statx(ctypes.Structure):
    """struct statx of linux/stat.h up to stx_btime; the rest is padding (256 bytes in all)."""

    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("blksize", ctypes.c_uint32),
        ("attributes", ctypes.c_uint64),
        ("nlink_to_mode", ctypes.c_uint32 * 4),
        ("ino_to_attributes_mask", ctypes.c_uint64 * 4),
        ("atime", ctypes.c_int64 * 2),
        ("birth_s", ctypes.c_int64),
        ("birth_ns", ctypes.c_uint32),
        ("padding", ctypes.c_uint8 * 160),
    )


_AT_FDCWD: Final = -100
_STATX_BTIME: Final = 0x800


def _birth_ns(path: Path) -> int | None:
    """os.stat has no birth time on Linux before Python 3.15."""
    if sys.platform == "darwin":
        return int(path.stat().st_birthtime * 1e9)
    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    buffer = _Statx()
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, ctypes.byref(buffer)) != 0:
        return None
    if not buffer.mask & _STATX_BTIME:
        return None
    return int(buffer.birth_s) * 1_000_000_000 + int(buffer.birth_ns)


def _check_private(path: Path) -> None:
    about = path.stat()
    if about.st_uid != os.geteuid():
        raise StateDirError(f"{path} belongs to another user (uid {about.st_uid}). Use a --state-dir of your own.")
    if stat.S_IMODE(about.st_mode) & 0o077:
        raise StateDirError(
            f"{path} can be read by others (mode {stat.S_IMODE(about.st_mode):04o}). Run: chmod go-rwx {path}"
        )


def _write_durably(path: Path, data: bytes) -> None:
    """Under another name first, so that a crash leaves either nothing or the whole file."""
    unfinished = path.with_suffix(".new")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    unfinished.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Its names are durable when this returns: a file whose name is lost is lost with its bytes intact. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
