"""Content codings: a whole body at once, with a bound, or piece by piece as it arrives. Pure."""

import zlib
from collections.abc import Callable, Iterator
from typing import Final

import brotli
import zstandard

from proxy.headers import RawHeaders, find

# An answer of a model is kilobytes, with images tens of megabytes; beyond this a small body is a decompression bomb.
DECODED_BODY_LIMIT_BYTES: Final = 16 * 1024 * 1024


class UndecodableError(ValueError):
    """The content coding is not known here, or the body grows beyond DECODED_BODY_LIMIT_BYTES."""


def decoded(headers: RawHeaders, body: bytes) -> bytes:
    """The body without its content codings. Of a cut or damaged body: what could be decoded."""
    for coding in reversed((find(headers, b"content-encoding") or b"").lower().split(b",")):
        body = _decode_one(coding.strip(), body)
        if len(body) > DECODED_BODY_LIMIT_BYTES:
            raise UndecodableError(f"the body decodes to more than {DECODED_BODY_LIMIT_BYTES} bytes")
    return body


def _decode_one(coding: bytes, body: bytes) -> bytes:
    if coding in (b"", b"identity"):
        return body
    if coding in (b"gzip", b"x-gzip"):
        return b"".join(_inflated(body, zlib.MAX_WBITS | 16))
    if coding == b"deflate":  # RFC 9110: with a zlib header; some servers send none
        return b"".join(_inflated(body, zlib.MAX_WBITS)) or b"".join(_inflated(body, -zlib.MAX_WBITS))
    if coding == b"zstd":
        return b"".join(_zstd_pieces(body))
    if coding == b"br":
        return _brotli(body)
    raise UndecodableError(f"content coding {coding.decode('latin-1')} is not known")


def _inflated(body: bytes, window_bits: int) -> Iterator[bytes]:
    room = DECODED_BODY_LIMIT_BYTES + 1
    while body and room > 0:  # a gzip body may have several members
        inflater = zlib.decompressobj(window_bits)
        try:
            piece = inflater.decompress(body, room)
        except zlib.error:
            return
        yield piece
        room -= len(piece)
        body = inflater.unused_data


def _zstd_pieces(body: bytes) -> Iterator[bytes]:
    room = DECODED_BODY_LIMIT_BYTES + 1
    reader = zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True)
    try:
        while room > 0 and (piece := reader.read(min(room, zstandard.DECOMPRESSION_RECOMMENDED_OUTPUT_SIZE))):
            yield piece
            room -= len(piece)
    except zstandard.ZstdError:
        return


def _brotli(body: bytes) -> bytes:
    """Without a damaged tail's bytes: brotli gives out nothing of a piece in which it finds damage."""
    try:
        return bytes(brotli.Decompressor().process(body, output_buffer_limit=DECODED_BODY_LIMIT_BYTES + 1))
    except brotli.error:
        return b""


# --- piece by piece ---

DECODED_PIECE_LIMIT_BYTES: Final = 4 * 1024 * 1024  # of 64 KiB of a stream; real ones grow some twenty times
ZSTD_SLICE_BYTES: Final = 64  # its decompressor has no limit of its own: four bytes may stand for 128 KiB

Decoder = Callable[[bytes], bytes]


def decoder(headers: RawHeaders) -> Decoder:
    """Gives what each piece adds to the plain text. Raises UndecodableError for a coding that is not known here.

    The decoder itself raises UndecodableError where the bytes are damaged, or a piece grows beyond DECODED_PIECE_LIMIT_BYTES.
    """
    steps = [
        _step(coding.strip()) for coding in reversed((find(headers, b"content-encoding") or b"").lower().split(b","))
    ]

    def decode(data: bytes) -> bytes:
        try:
            for step in steps:
                data = step(data)
        except (zlib.error, zstandard.ZstdError, brotli.error) as error:
            raise UndecodableError("the body is damaged") from error
        return data

    return decode


def _gzip_members() -> Decoder:
    """A gzip body may have several members, and a piece may end one and begin the next."""
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def decode(data: bytes) -> bytes:
        nonlocal inflater
        plain = _bounded(inflater, data)
        while inflater.eof and inflater.unused_data:
            data, inflater = inflater.unused_data, zlib.decompressobj(zlib.MAX_WBITS | 16)
            plain += _bounded(inflater, data)
        return plain

    return decode


def _within_limit(plain: bytes | bytearray) -> bytes:
    if len(plain) > DECODED_PIECE_LIMIT_BYTES:
        raise UndecodableError(f"a piece decodes to more than {DECODED_PIECE_LIMIT_BYTES} bytes")
    return bytes(plain)


def _bounded(inflater: "zlib._Decompress", data: bytes) -> bytes:
    return _within_limit(inflater.decompress(data, DECODED_PIECE_LIMIT_BYTES + 1))


def _zstd_slices(decompress: Callable[[bytes], bytes]) -> Decoder:
    def decode(data: bytes) -> bytes:
        plain = bytearray()
        for at in range(0, len(data), ZSTD_SLICE_BYTES):
            plain += decompress(data[at : at + ZSTD_SLICE_BYTES])
            _within_limit(plain)
        return bytes(plain)

    return decode


def _step(coding: bytes) -> Decoder:
    match coding:
        case b"" | b"identity":
            return lambda data: data
        case b"gzip" | b"x-gzip":
            return _gzip_members()
        case b"deflate":
            inflater = zlib.decompressobj(zlib.MAX_WBITS)
            return lambda data: _bounded(inflater, data)
        case b"zstd":
            return _zstd_slices(zstandard.ZstdDecompressor().decompressobj().decompress)
        case b"br":
            process = brotli.Decompressor().process
            return lambda data: _within_limit(process(data, output_buffer_limit=DECODED_PIECE_LIMIT_BYTES + 1))
        case _:
            raise UndecodableError(f"content coding {coding.decode('latin-1')} is not known")
