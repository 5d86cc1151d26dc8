"""Content codings: the recorded bytes stay encoded, readings decode them, with a limit."""

import gzip
import tracemalloc
import zlib
from collections import deque

import brotli
import pytest
import zstandard

from ledger.stages import Effect
from proxy import codings
from proxy.dialects.anthropic_messages import AnthropicMessages
from proxy.dialects.base import Outcome, TerminalEvidence
from tests.harness.streams import MESSAGE_STREAM

MESSAGES = AnthropicMessages()
STREAM = (b"Content-Type", b"text/event-stream")


def raw_deflate(body: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-15)
    return deflater.compress(body) + deflater.flush()


ENCODED = {
    b"gzip": gzip.compress(MESSAGE_STREAM, mtime=0),
    b"x-gzip, identity": gzip.compress(MESSAGE_STREAM[:100], mtime=0) + gzip.compress(MESSAGE_STREAM[100:]),
    b"deflate": zlib.compress(MESSAGE_STREAM),
    b"Deflate": raw_deflate(MESSAGE_STREAM),
    b"zstd": zstandard.compress(MESSAGE_STREAM),
    b"gzip, zstd": zstandard.compress(gzip.compress(MESSAGE_STREAM, mtime=0)),
}


@pytest.mark.parametrize(("coding", "body"), ENCODED.items())
def test_encoded_stream_is_read(coding: bytes, body: bytes) -> None:
    """The bytes stay the provider's; only the reading decodes them."""
    headers = (STREAM, (b"Content-Encoding", coding))
    assert codings.decoded(headers, body) == MESSAGE_STREAM
    assert MESSAGES.interpret(200, headers, body) == MESSAGES.interpret(200, (STREAM,), MESSAGE_STREAM)


@pytest.mark.parametrize(("coding", "body"), ENCODED.items())
def test_cut_encoded_stream_is_incomplete(coding: bytes, body: bytes) -> None:
    """What could be decoded of it counts, its end does not."""
    headers = (STREAM, (b"Content-Encoding", coding))
    assert MESSAGES.evidence(200, headers, body[: len(body) // 2]) is TerminalEvidence.LACKING
    assert MESSAGES.interpret(200, headers, body[: len(body) // 2]).outcome in {Outcome.INCOMPLETE, Outcome.EMPTY}


@pytest.mark.parametrize(
    ("coding", "bomb"),
    [
        (b"gzip", gzip.compress(bytes(codings.DECODED_BODY_LIMIT_BYTES + 1))),
        (b"zstd", zstandard.compress(bytes(codings.DECODED_BODY_LIMIT_BYTES + 1))),
    ],
)
def test_decompression_bomb_is_judged_by_status(coding: bytes, bomb: bytes) -> None:
    """A small body must not fill the memory."""
    headers = ((b"request-id", b"req_1"), (b"content-encoding", coding))
    with pytest.raises(codings.UndecodableError):
        codings.decoded(headers, bomb)
    reading = MESSAGES.interpret(200, headers, bomb)
    assert (reading.outcome, reading.effect) == (Outcome.UNINTERPRETABLE, Effect.HAPPENED)
    assert reading.provider_ids == {"request-id": "req_1"}


@pytest.mark.parametrize(
    ("coding", "bomb"),
    [
        (b"gzip", gzip.compress(bytes(10**9 // 4))),
        (b"deflate", zlib.compress(bytes(10**9 // 4))),
        (b"br", brotli.compress(bytes(10**9 // 4))),
        (b"zstd", zstandard.compress(bytes(10**9 // 4))),
    ],
)
def test_bomb_in_a_stream_is_damage_before_it_fills_the_memory(coding: bytes, bomb: bytes) -> None:
    """Piece by piece as it comes: nothing more of it is released, and no piece becomes more than a few megabytes."""
    decode = codings.decoder(((b"content-encoding", coding),))
    tracemalloc.start()
    try:
        with pytest.raises(codings.UndecodableError):
            deque(decode(bomb[at : at + 65536]) for at in range(0, len(bomb), 65536))
        assert tracemalloc.get_traced_memory()[1] < 8 * codings.DECODED_PIECE_LIMIT_BYTES
    finally:
        tracemalloc.stop()
