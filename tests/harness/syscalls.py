"""strace of a process -> what it did to one directory and to its sockets, typed and in the order in which it counts.

Bytes count when their call begins, a sync when it returns: the reading least kind to the process. Every call that can change
a file is traced; one that touches the directory and that no rule here understands is an error, never ignored.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

import pytest

DATA_CALLS: Final = ("write", "writev", "pwrite64", "pwritev", "pwritev2", "sendto", "sendmsg", "sendmmsg", "sendfile",
                     "splice", "copy_file_range")  # fmt: skip
SYNC_CALLS: Final = ("fsync", "fdatasync")
DESCRIPTOR_CALLS: Final = (*DATA_CALLS, *SYNC_CALLS, "ftruncate", "fallocate")
PATH_CALLS: Final = ("open", "creat", "truncate", "rename", "unlink", "mkdir", "rmdir", "link", "symlink")
AT_CALLS: Final = ("openat", "renameat", "renameat2", "unlinkat", "mkdirat", "linkat", "symlinkat")
STRING_LIMIT_BYTES: Final = 64 * 1024 * 1024  # strace would cut longer data; far above any single write
# What io_uring does is invisible here. libuv falls back to plain calls where the kernel has none.
STRACE: Final = (
    "strace", "-D", "-f", "-yy", "-xx", "-s", str(STRING_LIMIT_BYTES), "--seccomp-bpf", "-e", "signal=kill",
    "-e", "trace=" + ",".join((*DESCRIPTOR_CALLS, *PATH_CALLS, *AT_CALLS, "io_uring_setup")),
    "-e", "inject=io_uring_setup:error=ENOSYS",
)  # fmt: skip
# Becomes strace, which runs as a grandchild (-D): so the child is the proxy itself, and exit codes and signals are its own.
BECOME: Final = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
# SQLite's shared memory is rebuilt at each open; the lock, the socket and the activity log are no witnesses.
IGNORED: Final = ("-shm", "/ledger.lock", "/control.sock", "/activity.log")
KEEP_SIZE: Final = "FALLOC_FL_KEEP_SIZE"


@dataclass(frozen=True, slots=True)
class Create:
    """A name comes to be, in a directory whose sync makes it durable."""

    path: str
    is_directory: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """`extends`: it reached beyond the file's size, so it set a new one."""

    path: str
    offset: int
    data: bytes
    extends: bool


@dataclass(frozen=True, slots=True)
class Resize:
    """To exactly this size; with `only_grow` (fallocate) never to a smaller one."""

    path: str
    size: int
    only_grow: bool = False


@dataclass(frozen=True, slots=True)
class Rename:
    path: str
    new: str


@dataclass(frozen=True, slots=True)
class Unlink:
    path: str


@dataclass(frozen=True, slots=True)
class Sync:
    """Of a file, its data and size; of a directory, its names."""

    path: str


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes to a TCP peer. `connection` is `local->remote`; a number that is used again is another one after its close."""

    connection: str
    data: bytes


FileOperation = Create | Write | Resize | Rename | Unlink | Sync
Operation = FileOperation | Sent


class UnreadableTraceError(Exception):
    """The trace holds a call that this reader cannot turn into an operation: teach it, or the proof has a hole."""


def why_not() -> str | None:
    """Why no process can be traced here; None where it can."""
    if shutil.which("strace") is None:
        return "strace is not installed: apt-get install strace"
    tried = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-e", "trace=open", "true"], capture_output=True, check=False
    )
    if tried.returncode != 0:
        return f"ptrace is not permitted here ({tried.stderr.decode().strip()[:200]}); apt-get install strace alone is not enough"
    return None


def require_strace() -> None:
    """Skips where nothing can be traced, and says so loudly; fails where a run is to prove something."""
    if (reason := why_not()) is not None:
        says = f"NOTHING IS PROVEN HERE BY SYSTEM CALLS: {reason}"
        pytest.fail(says) if os.environ.get("CI") else pytest.skip(says)


# --- lines of strace -------------------------------------------------------------------------------------------------

_WHOLE: Final = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+|\?)(.*)", re.DOTALL)
_BEGUN: Final = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>", re.DOTALL)
_RESUMED: Final = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_STRING: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_DESCRIPTOR: Final = re.compile(r"(\d+|AT_FDCWD)<((?:->|[^>])*)>")
_AT: Final = re.compile(r'(?:\d+|AT_FDCWD)<((?:->|[^>])*)>, "((?:\\x[0-9a-f]{2})*)"')
_ESCAPED: Final = re.compile(r"(?:\\x[0-9a-f]{2})+")


@dataclass(frozen=True, slots=True)
class _Call:
    begun: int  # the line it began on, and the one it returned on
    returned: int
    name: str
    arguments: str
    result: int
    target: str  # what strace shows behind its result


def _calls(trace: Path) -> Iterator[_Call]:
    """Calls that returned without an error."""
    pending: dict[str, tuple[int, str]] = {}
    with trace.open(errors="replace") as lines:
        for number, raw in enumerate(lines):
            line, begun = raw.rstrip("\n"), number
            if match := _BEGUN.fullmatch(line):
                pending[match[1]] = number, f"{match[1]} {match[2]}({match[3]}"
                continue
            if match := _RESUMED.fullmatch(line):
                if match[1] not in pending:
                    continue
                begun, head = pending.pop(match[1])
                line = head + match[3]
            if (match := _WHOLE.fullmatch(line)) and match[4] != "?" and int(match[4]) >= 0:
                yield _Call(begun, number, match[2], match[3], int(match[4]), match[5])


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


def _text(shown: str) -> str:
    return _ESCAPED.sub(lambda match: _bytes(match[0]).decode("utf-8", "surrogateescape"), shown)


def _strings(arguments: str) -> list[bytes]:
    found = _STRING.findall(arguments)
    if any(cut for _, cut in found):
        raise UnreadableTraceError(f"strace cut a string: raise STRING_LIMIT_BYTES above {STRING_LIMIT_BYTES}.")
    return [_bytes(text) for text, _ in found]


def _last_number(arguments: str) -> int:
    return int(arguments.rsplit(", ", 1)[1])


def _paths(call: _Call) -> list[str]:
    """Absolute. Raises UnreadableTraceError for one that is relative to a directory strace does not name."""
    if call.name in AT_CALLS:
        named = [(_text(directory), _bytes(name)) for directory, name in _AT.findall(call.arguments)]
    else:
        named = [("", name) for name in _strings(call.arguments)]
    paths = [str(PurePosixPath(directory, name.decode("utf-8", "surrogateescape"))) for directory, name in named]
    if not all(path.startswith("/") for path in paths):
        raise UnreadableTraceError(f"{call.name} names {paths}: relative to what?")
    return paths


def _no_rule(call: _Call) -> UnreadableTraceError:
    return UnreadableTraceError(f"No rule here says what {call.name}({_text(call.arguments[:300])}) does to a file.")


# --- calls -> operations ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reader:
    """Follows descriptors, since a plain write names no offset. Nothing traced here seeks or duplicates one."""

    root: str
    sizes: dict[str, int]  # of every file there is
    offsets: dict[int, int | None] = field(default_factory=dict)  # by descriptor; None appends

    def read(self, call: _Call) -> list[Operation]:
        if call.name == "io_uring_setup":
            raise UnreadableTraceError("The process uses io_uring, whose work no trace of calls shows.")
        if call.name not in DESCRIPTOR_CALLS:
            return self._on_names(call, _paths(call))
        shown = _DESCRIPTOR.match(call.arguments)
        target = _text(shown[2]) if shown else ""
        data = b"".join(_strings(call.arguments))[: call.result] if call.name in DATA_CALLS else b""
        if target.startswith("TCP"):
            return [Sent(target[target.index("[") + 1 : -1], data)]
        if shown is None or not self._counts(target):
            return []
        return [self._on_file(call, target, int(shown[1]), data)]

    def _on_names(self, call: _Call, paths: list[str]) -> list[Operation]:
        if not any(map(self._counts, paths)):
            return []
        path = paths[0]
        match call.name:
            case "open" | "openat" | "creat":
                return self._opened(call, path)
            case "truncate":
                return [self._resized(path, _last_number(call.arguments))]
            case "rename" | "renameat" if all(map(self._counts, paths)):
                self.sizes[paths[1]] = self.sizes.pop(path)
                return [Rename(path, paths[1])]
            case "unlink" | "unlinkat":
                self.sizes.pop(path, None)
                return [Unlink(path)]
            case "mkdir" | "mkdirat":
                return [Create(path, is_directory=True)]
            case _:
                raise _no_rule(call)

    def _opened(self, call: _Call, path: str) -> list[Operation]:
        self.offsets[call.result] = None if "O_APPEND" in call.arguments else 0
        if "O_CREAT" in call.arguments and path not in self.sizes:
            self.sizes[path] = 0
            return [Create(path)]
        if "O_TRUNC" in call.arguments and self.sizes.get(path):
            return [self._resized(path, 0)]
        return []

    def _on_file(self, call: _Call, path: str, descriptor: int, data: bytes) -> Operation:
        match call.name:
            case "write" | "writev" | "pwrite64":
                return self._written(call, path, descriptor, data)
            case "fsync" | "fdatasync":
                return Sync(path)
            case "ftruncate":
                return self._resized(path, _last_number(call.arguments))
            case "fallocate" if KEEP_SIZE not in call.arguments:
                offset, length = map(int, call.arguments.rsplit(", ", 2)[1:])
                return self._resized(path, offset + length, only_grow=True)
            case _:
                raise _no_rule(call)

    def _resized(self, path: str, size: int, *, only_grow: bool = False) -> Resize:
        self.sizes[path] = max(size, self.sizes.get(path, 0)) if only_grow else size
        return Resize(path, size, only_grow)

    def _written(self, call: _Call, path: str, descriptor: int, data: bytes) -> Write:
        if call.name == "pwrite64":
            offset = _last_number(call.arguments)
        else:
            position = self.offsets[descriptor]
            offset = self.sizes.get(path, 0) if position is None else position
            if position is not None:
                self.offsets[descriptor] = position + len(data)
        size = self.sizes.get(path, 0)
        self.sizes[path] = max(size, offset + len(data))
        return Write(path, offset, data, extends=offset + len(data) > size)

    def _counts(self, path: str) -> bool:
        """The parent too: whether the directory itself survives is decided there."""
        inside = path in (self.root, str(PurePosixPath(self.root).parent)) or path.startswith(self.root + "/")
        return inside and not path.endswith(IGNORED)


def operations(trace: Path, root: Path, before: dict[str, bytes]) -> list[Operation]:
    """What the traced process did below `root` and to its sockets. `before`: the files that stood there already."""
    reader = _Reader(str(root), {path: len(content) for path, content in before.items()})
    placed = []
    for call in sorted(_calls(trace), key=lambda call: call.begun):
        counts_at = call.returned if call.name in SYNC_CALLS else call.begun
        placed += [(counts_at, call.begun, operation) for operation in reader.read(call)]
    placed.sort(key=lambda each: each[:2])
    written: dict[str, int] = {}
    for counts_at, begun, operation in placed:
        if isinstance(operation, Write):
            written[operation.path] = counts_at
        elif isinstance(operation, Sync) and written.get(operation.path, -1) > begun:
            raise UnreadableTraceError(
                f"{operation.path} was written while it was being synced: the sync may not cover that."
            )
    return [operation for _, _, operation in placed]
