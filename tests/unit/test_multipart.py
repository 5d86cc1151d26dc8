"""Forms read in pieces: the same parts wherever the pieces are cut, and nothing but what client libraries write."""

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from proxy.multipart import FIELD_LIMIT_BYTES, HEAD_LIMIT_BYTES, PARTS_LIMIT, Part, form_of

TYPE = b"multipart/form-data; boundary=XX"
MODEL = b'Content-Disposition: form-data; name="model"'
FILE = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav'


def form(*parts: tuple[bytes, bytes], end: bytes = b"--XX--\r\n") -> bytes:
    return b"".join(b"--XX\r\n%b\r\n\r\n%b\r\n" % part for part in parts) + end


def part(head: bytes, content: bytes) -> Part:
    text = content if len(content) <= FIELD_LIMIT_BYTES else None
    return Part(head.decode("latin-1"), blake3(content).hexdigest(), text)


CONTENT = st.one_of(
    st.binary(max_size=200), st.sampled_from([b"", b"\r\n", b"\r\n--X", b"--XX"[:3], b"\r\n\r\n", b"-" * 50])
)


@given(st.lists(st.tuples(st.sampled_from([MODEL, FILE]), CONTENT), min_size=1, max_size=4), st.integers(1, 70))
def test_parts_are_the_same_wherever_the_pieces_are_cut(parts: list[tuple[bytes, bytes]], size: int) -> None:
    """Delimiters lie across pieces; contents hold what looks like the beginning of one."""
    body = form(*parts)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    assert form_of(pieces, TYPE) == [part(*each) for each in parts]


def test_field_has_a_name_and_a_file_has_none() -> None:
    """Only a plain field can name the model; a large one is not held."""
    model, file, large = form_of([form((MODEL, b"whisper"), (FILE, b"RIFF"), (MODEL, b"x" * 2000))], TYPE) or []
    assert (model.field, model.text, file.field) == ("model", b"whisper", None)
    assert (large.field, large.text) == ("model", None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--XX--\r\n",
        b"preamble" + form((MODEL, b"m")),
        form((MODEL, b"m"), end=b"--XX--\r\nepilogue"),
        form((MODEL, b"m"), end=b"--XX"),
        form((MODEL, b"m"), end=b""),
        form((MODEL, b"m\r\n--XXY")),
        b"--XX\r\nno end of head\r\n--XX--\r\n",
        b"--XX padding\r\n\r\n\r\nm\r\n--XX--",
        form((b"X: " + b"x" * HEAD_LIMIT_BYTES, b"m")),
        form(*[(MODEL, b"m")] * (PARTS_LIMIT + 1)),
    ],
)
def test_anything_else_is_no_form(body: bytes) -> None:
    """Its raw bytes stand for it."""
    assert form_of([body], TYPE) is None


@pytest.mark.parametrize("content_type", [b"", b"application/json", b"multipart/form-data", b"text/x; boundary=XX"])
def test_other_types_are_no_forms(content_type: bytes) -> None:
    """Without a boundary, or of another type."""
    assert form_of([form((MODEL, b"m"))], content_type) is None
