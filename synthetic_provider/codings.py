"""Content codings of answers: whole, or event by event so that a coded stream stays a stream. Pure."""

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import brotli
import zstandard

BROTLI_QUALITY = 4  # of 11; the default takes seconds for a megabyte


class Coding(StrEnum):
    """The names are those of the header Content-Encoding."""

    GZIP = "gzip"
    BROTLI = "br"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True)
class Coder:
    """One body's compressor. `flush` makes all of what was put in decodable, `finish` ends the body."""

    compress: Callable[[bytes], bytes]
    flush: Callable[[], bytes]
    finish: Callable[[], bytes]

    def event(self, parts: Iterable[bytes]) -> bytes:
        return b"".join([*map(self.compress, parts), self.flush()])

    def whole(self, parts: Iterable[bytes]) -> bytes:
        return b"".join([*map(self.compress, parts), self.finish()])


def _gzip() -> Coder:
    compressor = zlib.compressobj(wbits=zlib.MAX_WBITS + 16)  # 16: with gzip's header, whose time is zero
    return Coder(compressor.compress, lambda: compressor.flush(zlib.Z_SYNC_FLUSH), compressor.flush)


def _brotli() -> Coder:
    compressor = brotli.Compressor(quality=BROTLI_QUALITY)
    return Coder(compressor.process, compressor.flush, compressor.finish)


def _zstd() -> Coder:
    compressor = zstandard.ZstdCompressor().compressobj()
    return Coder(compressor.compress, lambda: compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK), compressor.flush)


CODERS: Mapping[Coding, Callable[[], Coder]] = {Coding.GZIP: _gzip, Coding.BROTLI: _brotli, Coding.ZSTD: _zstd}
