"""The canonical body: what counts as the same intention, semantics.md section 1."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import keys
from proxy.clients import PROFILES
from proxy.multipart import form_of
from tests.harness.request_bodies import body_of

PROFILE = PROFILES[-1]
JSON = b"application/json"


def canonical(body: bytes, content_type: bytes | None = JSON) -> bytes:
    """As manifest.read asks for it; a body that stands for itself gives its own bytes."""
    came, kind = body_of(body), (content_type or b"").partition(b";")[0].strip().lower()
    document = came.whole() if keys.is_read(came, kind) else None
    canonical = keys.canonical_body(came, document, form_of(came.pieces(), content_type or b""), PROFILE)
    return canonical if isinstance(canonical, bytes) else canonical.whole()


# --- canonical JSON ---

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shuffled(value[name]) for name in reversed(list(value))}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_key_order_whitespace_and_escapes_do_not_matter(document: dict[str, Any]) -> None:
    """Codex reorders keys on its outer retry; a re-serialised body is the same intention."""
    spaced = json.dumps(shuffled(document), indent=3, ensure_ascii=True).encode()
    assert canonical(json.dumps(document).encode()) == canonical(spaced)


@given(json_values, json_values)
def test_other_values_have_another_canonical_body(left: Any, right: Any) -> None:
    """Two documents share a canonical body only if they are the same JSON."""
    texts = [json.dumps({"v": value}, sort_keys=True) for value in (left, right)]
    assert (canonical(texts[0].encode()) == canonical(texts[1].encode())) == (texts[0] == texts[1])


@given(
    st.binary(),
    st.sampled_from([None, JSON, b"text/plain", b"multipart/form-data; boundary=b", b"multipart/", b"\xff;"]),
)
def test_any_bytes_have_a_canonical_body(body: bytes, content_type: bytes | None) -> None:
    """It never raises."""
    assert isinstance(canonical(body, content_type), bytes)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (b"1", b"1.0"),
        (b"1e5", b"100000.0"),
        (b"1e5", b"1E5"),
        (b"0", b"-0"),
        (b"0.1", b"0.1000000000000000055"),
        (b"1e400", b"1e999"),
        (b"9" * 5000, b"9" * 4999 + b"8"),
        (b'"1"', b"1"),
        (b"true", b'"true"'),
        (b'"e\\u0301"', b'"\\u00e9"'),
    ],
)
def test_text_of_a_value_matters(left: bytes, right: bytes) -> None:
    """Numbers keep their text, and no unicode normalisation takes place."""
    assert canonical(b'{"v":%s}' % left) != canonical(b'{"v":%s}' % right)


@pytest.mark.parametrize(
    "body",
    [
        b'{"seed":1,"seed":2}',
        b'{"a":{"b":1,"b":1}}',
        b'{"v":NaN}',
        b'{"v":-Infinity}',
        b"[" * 65 + b"]" * 65,
        b"[" * 200_000 + b"]" * 200_000,
        b"not json",
        b"",
        b"\xef\xbb\xbf{}",
        b'{"v":"\xed\xa0\x80"}',
        '{"v":1}'.encode("utf-16"),
    ],
)
def test_ambiguous_json_stands_for_itself(body: bytes) -> None:
    """What two parsers may read differently is compared byte for byte."""
    assert canonical(body) == body


def test_deepest_allowed_json_is_canonical() -> None:
    """The depth limit is exact."""
    depth = keys.CANONICAL_JSON_DEPTH_LIMIT
    assert canonical(b"[ " * depth + b"]" * depth) == b"[" * depth + b"]" * depth


def test_lone_surrogate_escape_is_kept() -> None:
    """It is JSON, and other than any other text."""
    assert canonical(b'{"v": "\\ud800"}') == b'{"v":"\\ud800"}'


def test_body_above_the_limit_stands_for_itself() -> None:
    """Parsing takes several times the body's size."""
    body = b'{"v": "' + b"x" * keys.CANONICAL_JSON_LIMIT_BYTES + b'"}'
    assert canonical(body) == body


def test_form_fields_are_left_out_at_the_top_only() -> None:
    """Claude Code re-asks without `stream`; a tool argument of that name is content."""
    assert canonical(b'{"stream":true,"stream_options":{},"m":1}') == canonical(b'{"m":1}')
    assert canonical(b'{"a":{"stream":true}}') != canonical(b'{"a":{}}')


@pytest.mark.parametrize("content_type", [b"application/octet-stream", b"text/plain"])
def test_other_content_stands_for_itself(content_type: bytes) -> None:
    """A file that happens to be JSON is a file."""
    assert canonical(b'{"stream": true}', content_type) == b'{"stream": true}'


# --- canonical multipart ---


def multipart(boundary: bytes, *parts: tuple[bytes, bytes], end: bytes = b"--\r\n") -> tuple[bytes, bytes]:
    body = b"".join(b"--%s\r\n%s\r\n\r\n%s\r\n" % (boundary, head, content) for head, content in parts)
    return body + b"--" + boundary + end, b'multipart/form-data; charset=x; Boundary="' + boundary + b'"'


FILE = (
    b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav',
    b"RIFF\r\n--other\x00\xff",
)
MODEL = (b'Content-Disposition: form-data; name="model"', b"whisper-1")


def test_boundary_does_not_matter() -> None:
    """SDKs make a new one for each try."""
    one, two = multipart(b"one", FILE, MODEL), multipart(b"two-2", FILE, MODEL, end=b"--")
    assert canonical(*one) == canonical(*two)
    assert canonical(*one) != one[0]


@pytest.mark.parametrize(
    "parts",
    [
        (MODEL, FILE),
        (FILE,),
        (FILE, MODEL, MODEL),
        (FILE, (MODEL[0], b"whisper-2")),
        ((FILE[0].replace(b"a.wav", b"b.wav"), FILE[1]), MODEL),
        ((FILE[0].replace(b"audio/wav", b"audio/mp3"), FILE[1]), MODEL),
        (FILE, (MODEL[0], b"")),
    ],
)
def test_other_parts_have_another_canonical_body(parts: tuple[tuple[bytes, bytes], ...]) -> None:
    """Order, name, file name, type and content all count."""
    assert canonical(*multipart(b"one", *parts)) != canonical(*multipart(b"one", FILE, MODEL))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b--",
        b"--b\r\nno head end\r\n--b--",
        b"--b\r\nA: b\r\n\r\ncontent",
        b"--b\r\nA: b\r\n\r\ncontent\r\n--b",
        b"--b\r\nA: b\r\n\r\ncontent\r\n--b--\r\nepilogue",
        b"preamble\r\n--b\r\nA: b\r\n\r\ncontent\r\n--b--",
        b"--b \r\nA: b\r\n\r\ncontent\r\n--b--",
        b"--b\r\nA: b\r\n\r\ncontent\r\n--bc\r\n\r\n\r\n--b--",
    ],
)
def test_malformed_multipart_stands_for_itself(body: bytes) -> None:
    """Only the plain form that client libraries write is read."""
    assert canonical(body, b"multipart/form-data; boundary=b") == body


def test_multipart_without_boundary_stands_for_itself() -> None:
    """Nothing can be told apart without one."""
    body, _ = multipart(b"one", FILE)
    assert canonical(body, b"multipart/form-data") == body
