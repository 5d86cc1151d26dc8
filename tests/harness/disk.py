"""A disk that forgets: what is durable, what is only pending, and every state a crash may leave. Pure.

Data are durable after a sync of their file, names after a sync of their directory. Until then each write may be there or not,
whole or by sectors, in any order; names of one journal come in order, so some prefix of the pending ones is there.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from tests.harness.syscalls import Create, FileOperation, Rename, Resize, Sync, Unlink, Write

RANDOM_STATES: Final = 2  # at each point; what the systematic ones miss, over thousands of points
SECTOR_BYTES: Final = 512  # what a drive writes whole; SQLite and FORMAT.md section 6 rely on no more

EVEN: Final = 0.5  # the odds of one sector

DataOperation = Write | Resize
Files = dict[str, bytearray]  # by path


@dataclass(frozen=True, slots=True)
class Slice:
    """Which bytes of a file's n-th operation reached the disk; None: to its end."""

    operation: int
    start: int = 0
    stop: int | None = None


@dataclass(eq=False, slots=True)
class File:
    """`durable` holds the first `synced` operations, `pending` the ones after."""

    number: int
    durable: bytearray = field(default_factory=bytearray)
    synced: int = 0
    pending: list[DataOperation] = field(default_factory=list)
    changed: bool = False  # since damage to it was last enumerated

    def sync(self) -> None:
        for operation in self.pending:
            _apply(self.durable, operation)
        self.synced += len(self.pending)
        self.pending.clear()

    def whole(self, count: int | None = None) -> list[Slice]:
        return [Slice(number) for number in range(len(self.pending) if count is None else count)]

    def content(self, kept: list[Slice]) -> bytearray:
        """To be read before the disk moves on: what is durable is not copied."""
        if not kept:
            return self.durable
        data = bytearray(self.durable)
        for piece in kept:
            _apply(data, self.pending[piece.operation], piece.start, piece.stop)
        return data

    def identity(self, kept: list[Slice]) -> tuple[object, ...]:
        """Equal for equal content, also across a sync that made it durable."""
        count = 0
        while count < len(kept) and kept[count] == Slice(count):
            count += 1
        rest = ((self.synced + piece.operation, piece.start, piece.stop) for piece in kept[count:])
        return (self.number, self.synced + count, *rest)


def _apply(data: bytearray, operation: DataOperation, start: int = 0, stop: int | None = None) -> None:
    """A write that reached no further than the size its process saw does not set a size: where that is lost, so is it."""
    if isinstance(operation, Write):
        piece, at = operation.data[start:stop], operation.offset + start
        if not operation.extends:
            piece = piece[: max(0, len(data) - at)]
        elif len(data) < at:
            data.extend(bytes(at - len(data)))
        data[at : at + len(piece)] = piece
    elif operation.size < len(data):
        if not operation.only_grow:
            del data[operation.size :]
    else:
        data.extend(bytes(operation.size - len(data)))


@dataclass(frozen=True, slots=True)
class State:
    """One state a crash may leave. `identity` is equal for equal states; read what `build` gives before the disk moves on."""

    name: str
    identity: tuple[object, ...]
    build: Callable[[], Files]


Pick = Callable[[File], list[Slice]]
Names = dict[str, File]
NameOperation = Create | Rename | Unlink


class Disk:
    """Follows the operations of a trace."""

    def __init__(self, before: dict[str, bytes]) -> None:
        """What stood there before the trace is durable."""
        self._numbers = 0
        self._durable: Names = {path: self._file(content) for path, content in before.items()}
        self._live: Names = dict(self._durable)
        self._pending: list[tuple[NameOperation, File]] = []
        self._directories: set[str] = set()  # that the trace created: what is in them goes with their name

    def apply(self, operation: FileOperation) -> None:
        match operation:
            case Create(path, is_directory):
                self._live[path] = self._file(b"")
                self._pending.append((operation, self._live[path]))
                if is_directory:
                    self._directories.add(path)
            case Rename(path, new):
                self._live[new] = self._live.pop(path)
                self._pending.append((operation, self._live[new]))
            case Unlink(path):
                if (file := self._live.pop(path, None)) is not None:
                    self._pending.append((operation, file))
            case Write(path) | Resize(path):
                if (file := self._live.get(path)) is not None:  # else nobody can read it after a crash
                    file.pending.append(operation)
                    file.changed = True
            case Sync(path):
                if (file := self._live.get(path)) is not None:
                    file.sync()
                self._sync_names(path)

    def more_is_owed(self) -> None:
        """Somebody outside saw something: damage done before matters anew."""
        for file in self._live.values():
            file.changed = bool(file.pending)

    def _file(self, content: bytes) -> File:
        self._numbers += 1
        return File(self._numbers, bytearray(content))

    def _sync_names(self, directory: str) -> None:
        kept = []
        for operation, file in self._pending:
            name = operation.new if isinstance(operation, Rename) else operation.path
            if str(PurePosixPath(name).parent) == directory:
                _name(self._durable, operation, file)
            else:
                kept.append((operation, file))
        self._pending = kept

    def _state(self, name: str, names_kept: int, pick: Pick) -> State:
        names = dict(self._durable)
        for operation, file in self._pending[:names_kept]:
            _name(names, operation, file)
        lost = self._directories - names.keys()
        kept = {
            path: (file, pick(file))
            for path, file in names.items()
            if path not in self._directories and not any(path.startswith(f"{directory}/") for directory in lost)
        }
        identity = tuple((path, file.identity(slices)) for path, (file, slices) in sorted(kept.items()))
        return State(name, identity, lambda: {path: file.content(slices) for path, (file, slices) in kept.items()})

    # --- the states ------------------------------------------------------------------------------------------------

    def plain_states(self, *, all_names: bool) -> Iterator[State]:
        """All or nothing of the data that are pending; with all pending names, or with no, one, all but one, and all."""
        total = len(self._pending)
        for count in sorted({0, min(1, total), max(0, total - 1), total} if all_names else {total}):
            yield self._state(f"all pending data, {count} of {total} pending names", count, File.whole)
            yield self._state(f"no pending data, {count} of {total} pending names", count, _nothing)

    def damaged_states(self, rng: random.Random, variants: int) -> Iterator[State]:
        """For each file that changed since the last time: only it, a prefix, one write lost or torn. Then random sectors.

        `variants` bounds the writes looked at in one file; the oldest and the newest are always among them.
        """
        total = len(self._pending)
        for path, file in list(self._live.items()):
            if not file.changed:
                continue
            file.changed = False
            name = PurePosixPath(path).name
            yield self._state(f"of all pending data only {name}", total, _instead(file, file.whole(), _nothing))
            for number in _sample(len(file.pending), variants, rng):
                for what, kept in _damage(file, number):
                    yield self._state(f"{name}: pending write {number} {what}", total, _instead(file, kept, File.whole))
        for _ in range(RANDOM_STATES):
            yield self._state("random sectors", rng.randint(0, total), _randomly(rng))


def _name(names: Names, operation: NameOperation, file: File) -> None:
    match operation:
        case Create(path):
            names[path] = file
        case Rename(path, new):
            names.pop(path, None)
            names[new] = file
        case Unlink(path):
            names.pop(path, None)


def _nothing(_: File) -> list[Slice]:
    return []


def _instead(file: File, kept: list[Slice], others: Pick) -> Pick:
    return lambda each: kept if each is file else others(each)


def _sample(count: int, variants: int, rng: random.Random) -> list[int]:
    if count <= variants:
        return list(range(count))
    return sorted({0, count - 1, *rng.sample(range(count), variants - 2)})


def _damage(file: File, number: int) -> Iterator[tuple[str, list[Slice]]]:
    """What may become of one pending write with all before it whole: missing or torn, with and without the later ones."""
    before, behind = file.whole(number), file.whole()[number + 1 :]
    yield "and later ones lost", before
    yield "lost", [*before, *behind]
    operation = file.pending[number]
    if not isinstance(operation, Write):
        return
    size = len(operation.data)
    first, last = -operation.offset % SECTOR_BYTES or SECTOR_BYTES, size - (operation.offset + size) % SECTOR_BYTES
    for cut in sorted({first, last, size - 1}):
        if 0 < cut < size:
            yield f"cut at byte {cut} and later ones lost", [*before, Slice(number, 0, cut)]
            yield f"cut at byte {cut}", [*before, Slice(number, 0, cut), *behind]
            if (operation.offset + cut) % SECTOR_BYTES == 0:
                yield f"without its first {cut} bytes", [*before, Slice(number, cut), *behind]


def _randomly(rng: random.Random) -> Pick:
    chosen: dict[int, list[Slice]] = {}

    def pick(file: File) -> list[Slice]:
        if file.number not in chosen:
            chosen[file.number] = _random_sectors(file, rng)
        return chosen[file.number]

    return pick


def _random_sectors(file: File, rng: random.Random) -> list[Slice]:
    """Sectors of the file, wherever the writes began."""
    kept = []
    for number, operation in enumerate(file.pending):
        if isinstance(operation, Write):
            edges = range(-(operation.offset % SECTOR_BYTES), len(operation.data), SECTOR_BYTES)
            kept += [Slice(number, max(0, at), at + SECTOR_BYTES) for at in edges if rng.random() < EVEN]
        elif rng.random() < EVEN:
            kept.append(Slice(number))
    return kept
