"""Bodies as content-defined chunks: what an agent sends again each turn is stored once (FORMAT.md section 4).

Pure CPU without a connection: `pack` runs before the writer, in a thread above INLINE_LIMIT_BYTES, so that the writing
thread only inserts (`queries.keep_body`), in the transaction of the event that names the body. A body above STAGE_BYTES
is staged: a `Packer` hands out its chunks in batches, each a transaction of its own ahead of that event.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, BinaryIO, Final, Protocol

import zstandard
from blake3 import blake3
from pyfastcdc import FastCDC

from ledger.errors import UnreadableRecordError
from ledger.ids import Digest

# below it a thread hop costs more than the work; also the smallest body worth cutting
INLINE_LIMIT_BYTES: Final = 8 * 1024
MAX_CHUNK_BYTES: Final = 64 * 1024
DIGEST_BYTES: Final = 32
READ_BYTES: Final = 256 * 1024
# of chunks held in memory and in one transaction: others wait for it some milliseconds
STAGE_BYTES: Final = 1024 * 1024
_CUTTER: Final = FastCDC(avg_size=8192, min_size=2048, max_size=MAX_CHUNK_BYTES)
_ZSTD_LEVEL: Final = 3  # measured: 49 times smaller than raw on an agent's conversation, 0.23 ms a request


class Source(Protocol):
    """Bytes that lie in memory or in a file: a spool, a request body."""

    @property
    def size(self) -> int: ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Fewer than `size` bytes only at the end."""


class _Stream(io.RawIOBase):
    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source, self._offset = source, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.read_at(self._offset, len(buffer))
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)


def stream_of(source: Source) -> BinaryIO:
    """For whoever reads files; each has an offset of its own."""
    return io.BufferedReader(_Stream(source), READ_BYTES)


@dataclass(frozen=True, slots=True)
class Packed:
    """A body ready to be stored: the chunk digests in order, and each distinct chunk once, compressed.

    `staged`: its chunks are stored already, and `chunks` is empty.
    """

    digest: Digest
    size: int
    order: tuple[bytes, ...]
    chunks: tuple[tuple[bytes, bytes], ...]
    staged: bool = False


class Packer:
    """A body of any size, packed in bounded memory: `batch` until it gives nothing, each batch stored; then `packed`."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        """CPU only: the pieces become the chunks as they are."""
        self._pieces = iter(pieces)
        self._compress = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress  # not thread-safe: one batch at a time
        self._whole, self._size = blake3(), 0
        self._order: list[bytes] = []
        self._seen: set[bytes] = set()

    def batch(self, limit_bytes: float = STAGE_BYTES) -> tuple[tuple[bytes, bytes], ...]:
        """The next chunks that this body had not before; of at most `limit_bytes` and one chunk."""
        chunks, taken = [], 0
        for piece in self._pieces:
            digest = blake3(piece).digest()
            self._order.append(digest)
            self._whole.update(piece)
            self._size += len(piece)
            if digest not in self._seen:
                self._seen.add(digest)
                frame = self._compress(piece)  # it takes the room of `piece`, however short it is: copy it
                chunks.append((digest, bytes(memoryview(frame))))
                taken += len(piece)
                if taken >= limit_bytes:
                    break
        return tuple(chunks)

    def packed(self, chunks: tuple[tuple[bytes, bytes], ...] = ()) -> Packed:
        """`chunks`: those that are not stored yet."""
        return Packed(Digest(self._whole.hexdigest()), self._size, tuple(self._order), chunks, staged=not chunks)


def pack(body: bytes) -> Packed:
    """In memory; CPU only."""
    whole = len(body) <= INLINE_LIMIT_BYTES
    return _in_one(Packer((body,) if whole else (bytes(chunk.data) for chunk in _CUTTER.cut_buf(body))))


def pack_stream(stream: BinaryIO) -> Packed:
    """From a file of at most STAGE_BYTES."""
    return _in_one(packer_of(stream))


def packer_of(stream: BinaryIO) -> Packer:
    """From a file of any size."""
    return Packer(bytes(chunk.data) for chunk in _CUTTER.cut_stream(stream))


def digest_of(stream: BinaryIO) -> tuple[Digest, int]:
    """Digest and size in bytes of what is counted and not kept."""
    whole, size = blake3(), 0
    while piece := stream.read(READ_BYTES):
        whole.update(piece)
        size += len(piece)
    return Digest(whole.hexdigest()), size


def _in_one(packer: Packer) -> Packed:
    return packer.packed(packer.batch(inf))


def chunk_digests(chunks: bytes) -> Iterator[bytes]:
    return (chunks[at : at + DIGEST_BYTES] for at in range(0, len(chunks), DIGEST_BYTES))


def plain(digest: bytes, frame: bytes) -> bytes:
    """One chunk's bytes. Raises UnreadableRecordError if they are not what the digest says."""
    try:
        # A damaged frame may claim any size, and the decompressor would allocate it.
        if zstandard.frame_content_size(frame) > MAX_CHUNK_BYTES:
            raise UnreadableRecordError(f"the chunk {digest.hex()} claims to be larger than any chunk")
        data = zstandard.ZstdDecompressor().decompress(frame, max_output_size=MAX_CHUNK_BYTES)
    except zstandard.ZstdError as error:
        raise UnreadableRecordError(f"the chunk {digest.hex()} cannot be decompressed: {error}") from error
    if blake3(data).digest() != digest:
        raise UnreadableRecordError(f"the chunk {digest.hex()} does not hold the bytes its digest names")
    return data
