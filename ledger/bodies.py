"""Bodies as content-defined chunks: what an agent sends again each turn is stored once (FORMAT.md section 4).

Pure CPU without a connection: `pack` runs before the writer, in a thread above INLINE_LIMIT_BYTES, so that the writing
thread only inserts (`queries.keep_body`), in the transaction of the event that names the body.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

import zstandard
from blake3 import blake3
from pyfastcdc import FastCDC

from ledger.errors import UnreadableRecordError
from ledger.ids import Digest

INLINE_LIMIT_BYTES: Final = (
    8 * 1024
)  # below it a thread hop costs more than the work; also the smallest body worth cutting
MAX_CHUNK_BYTES: Final = 64 * 1024
DIGEST_BYTES: Final = 32
_CUTTER: Final = FastCDC(avg_size=8192, min_size=2048, max_size=MAX_CHUNK_BYTES)
_ZSTD_LEVEL: Final = 3  # measured: 49 times smaller than raw on an agent's conversation, 0.23 ms a request


@dataclass(frozen=True, slots=True)
class Packed:
    """A body ready to be stored: the chunk digests in order, and each distinct chunk once, compressed."""

    digest: Digest
    size: int
    order: tuple[bytes, ...]
    chunks: tuple[tuple[bytes, bytes], ...]


def pack(body: bytes) -> Packed:
    """In memory; CPU only."""
    whole = len(body) <= INLINE_LIMIT_BYTES
    return _pack((body,) if whole else (bytes(chunk.data) for chunk in _CUTTER.cut_buf(body)))


def pack_stream(stream: BinaryIO) -> Packed:
    """From a file, in pieces: only compressed frames are held in memory."""
    return _pack(bytes(chunk.data) for chunk in _CUTTER.cut_stream(stream))


def _pack(pieces: Iterable[bytes]) -> Packed:
    compress = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress  # one per call: it is not thread-safe
    whole = blake3()
    size = 0
    order: list[bytes] = []
    chunks: dict[bytes, bytes] = {}
    for piece in pieces:
        digest = blake3(piece).digest()
        order.append(digest)
        if digest not in chunks:
            chunks[digest] = compress(piece)
        whole.update(piece)
        size += len(piece)
    return Packed(Digest(whole.hexdigest()), size, tuple(order), tuple(chunks.items()))


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
