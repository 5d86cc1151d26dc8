"""The synthetic provider's bodies: content codings, forms cut anywhere, and sizes that must not live in memory."""

import json
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import brotli
import pytest
import zstandard
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from synthetic_provider.behaviour import parse
from synthetic_provider.codings import Coding
from synthetic_provider.filler import FILLER, blocks, filler, first, pieces, size_bytes
from synthetic_provider.formats import endpoint_of
from synthetic_provider.intake import FIELD_LIMIT_BYTES, File, Intake
from synthetic_provider.script import script
from synthetic_provider.wire import Ask
from tests.harness.connections import connected, dechunked, exchange, request_bytes
from tests.harness.processes import Process, chat, peak_bytes, start_provider

CHAT = "/v1/chat/completions"
LARGE_BYTES = 200_000_000
GROWTH_BYTES = 32 * 1024 * 1024
PIECE_BYTES = 1024 * 1024
CLOSING = {"connection": "close"}


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Process]:
    process = start_provider(tmp_path / "receipts.jsonl")
    yield process
    process.close()
    assert process.complained == ""


def decoder(coding: str) -> tuple[Callable[[bytes], bytes], Callable[[], bool]]:
    """Decodes piece by piece, as a client of a stream does; and tells whether the coding's own end has come."""
    match coding:
        case "gzip":
            gzip = zlib.decompressobj(wbits=zlib.MAX_WBITS + 16)
            return gzip.decompress, lambda: gzip.eof
        case "br":
            br = brotli.Decompressor()
            return br.process, br.is_finished
        case _:
            zstd = zstandard.ZstdDecompressor().decompressobj()
            return zstd.decompress, lambda: zstd.eof


def receipts(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "receipts.jsonl").read_text().splitlines()]


def answered(options: str, *, stream: bool) -> tuple[dict[str, str], list[bytes]]:
    """Receipt 7's chat answer to always the same request: its headers, and its body write by write."""
    target, model = CHAT, f"synthetic/{options}"
    ask = Ask("POST", target, {"stream": stream}, 0, (), "m", 7, datetime.fromtimestamp(0, UTC), parse(model))
    head, *body = [step for step in script(ask, endpoint_of("POST", target, ()).format) if isinstance(step, bytes)]
    return dict(line.split(": ") for line in head.decode().split("\r\n")[1:-2]), body


def test_coding_and_bodyless_status_are_read_from_the_model_name() -> None:
    """Also in the older spelling; what does not exist is an error that names the option."""
    asked = parse("synthetic/encoding=br,bodyless=304")
    assert (asked.encoding, asked.bodyless) == (Coding.BROTLI, 304)
    assert parse("synthetic/gzip=1") == parse("synthetic/encoding=gzip") != parse("synthetic/gzip=0") == parse("")
    for option, expected in (("encoding=x", "one of gzip, br, zstd"), ("bodyless=200", "204 or 304")):
        with pytest.raises(ValueError, match=f"option '{option.partition('=')[0]}'.*{expected}"):
            parse(f"synthetic/{option}")


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
@pytest.mark.parametrize("size", ["", ",size=300000"])
def test_coded_answer_decodes_to_the_plain_one(coding: str, size: str) -> None:
    """Whole, under a head that says its size; `gzip=1` is the older spelling."""
    options = [f"encoding={coding}", *(["gzip=1"] if coding == "gzip" else [])]
    (_, plain), *coded = [answered(option + size, stream=False) for option in ["", *options]]
    for headers, body in coded:
        assert headers["content-encoding"] == coding
        assert int(headers["content-length"]) == len(b"".join(body))
        decode, ended = decoder(coding)
        assert (decode(b"".join(body)), ended()) == (b"".join(plain), True)


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
@pytest.mark.parametrize("fault", ["", ",clean_cut=2", ",error_after=2"])
def test_coded_stream_decodes_event_by_event(coding: str, fault: str) -> None:
    """Each write decodes to whole events as soon as it is there, and all of them to the plain stream."""
    _, plain = answered(f"chunks=4{fault}", stream=True)
    headers, coded = answered(f"chunks=4,encoding={coding}{fault}", stream=True)
    (decode, ended), events = decoder(coding), []
    assert (headers["content-encoding"], len(coded)) == (coding, len(plain))
    for write in coded:
        assert not ended()
        events.append(decode(dechunked(b"\r\n\r\n" + write)[0]))
        assert events[-1][-2:] in (b"\n\n", b"")
    assert events[:-1] == [dechunked(b"\r\n\r\n" + write)[0] for write in plain[:-1]]
    assert (b"".join(events), ended()) == (dechunked(b"\r\n\r\n" + b"".join(plain))[0], True)


@given(st.integers(0, 400), st.integers(0, 300_000), st.integers(0, 400_000))
def test_mark_stands_for_its_part_of_the_filler(start: int, length: int, count: int) -> None:
    """Size, bytes, their blocks and their first so many are those of the text written out."""
    marked = b"a" + filler(start, start + length).encode() + b"z"
    written = b"a" + (FILLER * ((start + length) // len(FILLER) + 1))[start : start + length] + b"z"
    assert size_bytes(marked) == len(written)
    assert b"".join(blocks(pieces(marked))) == written
    assert b"".join(first(count, pieces(marked))) == written[:count]


def form(parts: list[tuple[str, bytes]], boundary: str) -> bytes:
    """A form as RFC 7578 has it, of heads' first lines and contents."""
    lines = [
        f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + content + b"\r\n"
        for head, content in parts
    ]
    return b"".join(lines) + f"--{boundary}--\r\n".encode()


contents = st.lists(
    st.sampled_from([b"\r\n", b"--", b"-", b"b", b"\r", b"\r\n--b", b"\xff\x00", b"model"]), max_size=12
).map(b"".join)


@given(contents, contents, st.lists(st.integers(0, 500), max_size=8))
@settings(max_examples=300)
def test_form_cut_anywhere_gives_fields_sizes_and_digest(name: bytes, content: bytes, cuts: list[int]) -> None:
    """Contents that look like delimiters, in pieces of any size: the fields whole, of the file its size only."""
    body = form(
        [
            ('name="model"', name),
            ('name="file"; filename="a;b.wav"', content),
            ('name="stream"', b"true"),
            ("nothing", b"x"),
        ],
        "b-u",
    )
    intake = Intake("multipart/form-data; charset=utf-8; boundary=b-u")
    for start, end in pairwise([0, *sorted(cuts), len(body)]):
        intake.take(body[start:end])
    assert intake.fields() == {"model": name.decode(errors="replace"), "stream": True}
    assert intake.files() == (File("file", "a;b.wav", len(content)),)
    assert (intake.digest(), intake.size_bytes) == (blake3(body).hexdigest(), len(body))


@pytest.mark.parametrize(
    ("content_type", "body", "fields"),
    [
        ("multipart/form-data; boundary=b", b"no delimiter at all", {}),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nhalf of',
            {"a": "hal"},
        ),
        ("multipart/form-data", b'{"model":"m"}', {"model": "m"}),
        ("", b'\n {"model":"m"}', {"model": "m"}),
        ("", b"[1]", {}),
        ("", b"", {}),
    ],
)
def test_odd_body_is_read_as_far_as_it_goes(content_type: str, body: bytes, fields: dict[str, Any]) -> None:
    """It never stops a request."""
    intake = Intake(content_type)
    intake.take(body)
    assert intake.fields() == fields


def test_long_form_field_is_kept_to_its_limit() -> None:
    """A field is no way around the limit on memory."""
    intake = Intake("multipart/form-data; boundary=b")
    intake.take(form([('name="prompt"', b"x" * (FIELD_LIMIT_BYTES + 9)), ('name="model"', b"m")], "b"))
    assert (len(intake.fields()["prompt"]), intake.fields()["model"]) == (FIELD_LIMIT_BYTES, "m")


@pytest.mark.parametrize("status", [204, 304])
def test_bodyless_answer_ends_with_its_head(provider: Process, status: int) -> None:
    """No framing header; the connection goes on; `times` limits it as it does a status."""
    body = chat(f"synthetic/bodyless={status},times=1")
    raw = exchange(provider.port, request_bytes(CHAT, body) + request_bytes(CHAT, body, CLOSING))
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert (b"content-length" in head, b"transfer-encoding" in head) == (False, False)
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_unknown_path_is_echoed(provider: Process, method: str) -> None:
    """With its method, whatever it is."""
    raw = exchange(provider.port, request_bytes("/v9/things?x=1", b"{}", CLOSING, method))
    echo = json.loads(raw.partition(b"\r\n\r\n")[2])
    assert (echo["method"], echo["path"], echo["body_bytes"]) == (method, "/v9/things?x=1", 2)


def test_form_under_a_new_boundary_is_another_body(provider: Process, tmp_path: Path) -> None:
    """`times` counts bytes, as receipts do: an SDK's retry with a fresh boundary has its fault again."""
    answers = []
    for boundary in ("b1", "b1", "b2"):
        body = form([('name="model"', b"synthetic/status=500,times=1"), ('name="file"; filename="a"', b"x")], boundary)
        about = CLOSING | {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        answers.append(exchange(provider.port, request_bytes("/v1/files", body, about)).split(b" ", 2)[1])
    assert answers == [b"500", b"200", b"500"]
    assert {receipt["model"] for receipt in receipts(tmp_path)} == {"synthetic/status=500,times=1"}


def test_large_answers_and_bodies_need_little_memory(provider: Process, tmp_path: Path) -> None:
    """200 MB whole, streamed and uploaded grow the process by less than 32 MiB."""
    size = f"synthetic/size={LARGE_BYTES}"
    exchange(provider.port, request_bytes(CHAT, chat(), CLOSING))
    before = peak_bytes(provider.child.pid)
    for body in (chat(size), chat(f"{size},chunks=20000", stream=True), chat(f"{size},chunks=2", stream=True)):
        assert LARGE_BYTES < received_bytes(provider.port, request_bytes(CHAT, body, CLOSING)) < LARGE_BYTES * 1.1
    packed = received_bytes(provider.port, request_bytes(CHAT, chat(f"{size},encoding=zstd"), CLOSING))
    assert packed < LARGE_BYTES // 100
    upload = form([('name="file"; filename="a"', b"x" * LARGE_BYTES), ('name="model"', b"synthetic")], "b")
    about = CLOSING | {"Content-Type": "multipart/form-data; boundary=b"}
    answer = exchange(provider.port, request_bytes("/v1/files", upload, about))
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["bytes"] == LARGE_BYTES
    exchange(provider.port, request_bytes("/v1/raw", b"\x00" * LARGE_BYTES, CLOSING))
    assert [receipt["body_bytes"] for receipt in receipts(tmp_path)[-2:]] == [len(upload), LARGE_BYTES]
    assert receipts(tmp_path)[-2]["body_blake3"] == blake3(upload).hexdigest()
    assert peak_bytes(provider.child.pid) - before < GROWTH_BYTES


def received_bytes(port: int, request: bytes) -> int:
    """Until the connection ends; nothing is kept."""
    count = 0
    with connected(port) as sock:
        sock.sendall(request)
        while piece := sock.recv(PIECE_BYTES):
            count += len(piece)
    return count


def test_json_above_the_limit_is_hashed_but_not_read(provider: Process, tmp_path: Path) -> None:
    """The model is then `synthetic`, whatever it asked for."""
    body = chat("synthetic/status=500", "x" * (65 * 1024 * 1024))
    assert exchange(provider.port, request_bytes(CHAT, body, CLOSING)).startswith(b"HTTP/1.1 200 OK\r\n")
    (receipt,) = receipts(tmp_path)
    assert (receipt["model"], receipt["body_blake3"]) == (None, blake3(body).hexdigest())
