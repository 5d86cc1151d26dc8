"""I2 in a content-encoded event stream: whoever decodes what has come has all of the content, and not the terminal event."""

import gzip
import os
import signal
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import brotli
import pytest
import zstandard

from tests.harness.connections import connected, dechunked, read_to_end, read_until, request_bytes
from tests.harness.neighbours import beside, until_stopped
from tests.harness.processes import ANSWER_LIMIT_S, Rig, chat, message, until
from tests.harness.streams import BLOCKS, CHAT_STREAM, DONE, MESSAGE_STREAM, START, STOP, STOPPED

CHAT, MESSAGES = "/openai/v1/chat/completions", "/anthropic/v1/messages"
BODIES: Final = {CHAT: chat, MESSAGES: message}
# path -> the content events, the terminal event
STREAMS: Final = {CHAT: (CHAT_STREAM.removesuffix(DONE), DONE), MESSAGES: (START + BLOCKS + STOPPED, STOP)}
QUIET_S: Final = 0.3  # what the proxy lets go leaves it within a turn of its loop
both_dialects = pytest.mark.parametrize("path", [CHAT, MESSAGES])

Pieces = tuple[bytes, bytes]  # the encoded content, flushed, and the encoded terminal event with the coding's own end
Decode = Callable[[bytes], bytes]


def _zlib(window_bits: int, content: bytes, end: bytes) -> Pieces:
    squeeze = zlib.compressobj(wbits=window_bits)
    return (
        squeeze.compress(content) + squeeze.flush(zlib.Z_SYNC_FLUSH),
        squeeze.compress(end) + squeeze.flush(),
    )


def _zstd(content: bytes, end: bytes) -> Pieces:
    squeeze = zstandard.ZstdCompressor().compressobj()
    return (
        squeeze.compress(content) + squeeze.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK),
        squeeze.compress(end) + squeeze.flush(),
    )


def _br(content: bytes, end: bytes) -> Pieces:
    squeeze = brotli.Compressor()
    return squeeze.process(content) + squeeze.flush(), squeeze.process(end) + squeeze.finish()


def _gunzip_members(data: bytes) -> bytes:
    """As Node's zlib and urllib3 do: one member after another."""
    plain = b""
    while data:
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        plain += inflater.decompress(data)
        data = inflater.unused_data
    return plain


# name -> Content-Encoding, how a provider makes it, how a client reads what has come so far
CODINGS: Final[dict[str, tuple[str, Callable[[bytes, bytes], Pieces], Decode]]] = {
    "gzip": ("gzip", lambda *parts: _zlib(zlib.MAX_WBITS | 16, *parts), _gunzip_members),
    "gzip-members": ("gzip", lambda *parts: (gzip.compress(parts[0]), gzip.compress(parts[1])), _gunzip_members),
    "deflate": (
        "deflate",
        lambda *parts: _zlib(zlib.MAX_WBITS, *parts),
        lambda data: zlib.decompressobj().decompress(data),
    ),
    "zstd": ("zstd", _zstd, lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
    "br": ("br", _br, lambda data: bytes(brotli.Decompressor().process(data))),
}


def _head(coding: str) -> bytes:
    return (
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        f"Content-Encoding: {coding}\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@contextmanager
def asked(shared: Rig, path: str) -> Iterator[tuple[Rig, socket.socket, socket.socket]]:
    """A streaming request on its way: the proxy, which will stop before it records the answer, its client, its provider."""
    with ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        upstream = f"{path.split('/')[1]}=http://127.0.0.1:{listener.getsockname()[1]}"
        made = opened.enter_context(beside(shared, "--upstream", upstream, failpoints="before-observed=stop"))
        client = opened.enter_context(connected(made.port))
        client.sendall(request_bytes(path, BODIES[path](stream=True), {"Connection": "close"}))
        provider = opened.enter_context(listener.accept()[0])
        read_until(provider, b'"stream": true}')
        yield made, client, provider


def read_until_content(client: socket.socket, decode: Decode, content: bytes) -> bytes:
    """It flows: nobody waits for the commit to read it."""
    raw = b""
    while decode(released(raw)) != content:
        raw += client.recv(65536)
    return raw


def read_all_that_comes(client: socket.socket) -> bytes:
    """Until nothing more comes: the proxy has all that the provider gave it, or is stopped."""
    client.settimeout(QUIET_S)
    raw = b""
    with suppress(TimeoutError):
        while piece := client.recv(65536):
            raw += piece
    client.settimeout(ANSWER_LIMIT_S)
    return raw


def until_spooled(made: Rig, body: bytes) -> None:
    """Until the proxy has taken all of it: what it does not hold is on its way to the client in the same turn."""
    until(lambda: sum(path.stat().st_size for path in (made.state_dir / "spool").glob("*.body")) >= len(body))


def released(raw: bytes) -> bytes:
    return dechunked(raw)[0]


@both_dialects
@pytest.mark.parametrize("coding", CODINGS)
def test_encoded_stream_shows_its_content_and_holds_its_terminal_event(shared: Rig, path: str, coding: str) -> None:
    """Up to the commit; afterwards the client has every byte as the provider sent it."""
    label, encode, decode = CODINGS[coding]
    content, end = STREAMS[path]
    encoded, encoded_end = encode(content, end)
    with asked(shared, path) as (made, client, provider):
        provider.sendall(_head(label) + _chunk(encoded))
        raw = read_until_content(client, decode, content)
        provider.sendall(_chunk(encoded_end))
        until_spooled(made, encoded + encoded_end)
        raw += read_all_that_comes(client)
        provider.sendall(b"0\r\n\r\n")
        pid = until_stopped(made)
        raw += read_all_that_comes(client)
        seen = decode(released(raw))
        os.kill(pid, signal.SIGCONT)
        raw += read_to_end(client)
    assert seen == content
    assert dechunked(raw) == (encoded + encoded_end, True)
    assert decode(released(raw)) == content + end


def test_terminal_event_in_one_piece_with_content_is_held(shared: Rig) -> None:
    """A piece leaves as a whole or not at all: here all of the stream is one."""
    encoded = gzip.compress(CHAT_STREAM)
    with asked(shared, CHAT) as (made, client, provider):
        provider.sendall(_head("gzip") + _chunk(encoded))
        until_spooled(made, encoded)
        raw = read_all_that_comes(client)
        provider.sendall(b"0\r\n\r\n")
        pid = until_stopped(made)
        assert DONE not in _gunzip_members(released(raw))
        os.kill(pid, signal.SIGCONT)
        raw += read_to_end(client)
    assert dechunked(raw) == (encoded, True)


@pytest.mark.parametrize(("path", "coding"), [(CHAT, "compress"), (MESSAGES, "gzip, x-new")])
def test_stream_in_an_unknown_coding_releases_nothing_before_the_commit(shared: Rig, path: str, coding: str) -> None:
    """Where its terminal event stands cannot be known, so the head is all that may leave."""
    body = CHAT_STREAM if path == CHAT else MESSAGE_STREAM
    with asked(shared, path) as (made, client, provider):
        provider.sendall(_head(coding) + _chunk(body[:200]) + _chunk(body[200:]))
        until_spooled(made, body)
        raw = read_all_that_comes(client)
        provider.sendall(b"0\r\n\r\n")
        pid = until_stopped(made)
        os.kill(pid, signal.SIGCONT)
        assert raw.startswith(b"HTTP/1.1 200 OK\r\n")
        assert released(raw) == b""
        raw += read_to_end(client)
    assert dechunked(raw) == (body, True)
