"""What an injection level adds to a body, byte for byte, and where it leaves it alone."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.ids import CallId
from proxy.endpoints import Family
from proxy.injection import INJECTED_LIMIT_BYTES, injected

CALL = CallId("call_1")
CHAT, BATCHES, RESPONSES = "/v1/chat/completions", "/v1/batches", "/v1/responses"
TAGGED = {"sendonce_call": CALL}


def made(level: int, body: bytes, path: str = CHAT) -> dict[str, Any] | None:
    found = injected(level, Family.OPENAI, path, body, CALL)
    return None if found is None else json.loads(found[0])


@pytest.mark.parametrize(
    ("level", "path", "body", "becomes"),
    [
        (1, CHAT, {"store": True}, {"store": True, "metadata": TAGGED}),
        (1, CHAT, {"store": True, "metadata": {}}, {"store": True, "metadata": TAGGED}),
        (1, CHAT, {"store": True, "metadata": None}, {"store": True, "metadata": TAGGED}),
        (1, CHAT, {"metadata": {"a": "b"}, "store": True}, {"metadata": {**TAGGED, "a": "b"}, "store": True}),
        (2, CHAT, {"model": "m"}, {"model": "m", "store": True, "metadata": TAGGED}),
        (2, CHAT, {"store": None}, {"store": True, "metadata": TAGGED}),
        (2, CHAT, {}, {"store": True, "metadata": TAGGED}),
        (1, BATCHES, {"input_file_id": "f"}, {"input_file_id": "f", "metadata": TAGGED}),
    ],
)
def test_body_that_will_be_kept_is_tagged(level: int, path: str, body: dict[str, Any], becomes: dict[str, Any]) -> None:
    """The tag, and at level 2 `store`, and nothing else."""
    assert made(level, json.dumps(body).encode(), path) == becomes


@pytest.mark.parametrize(
    ("level", "path", "body"),
    [
        (0, CHAT, b'{"store": true}'),
        (1, CHAT, b'{"model": "m"}'),
        (1, CHAT, b'{"store": false}'),
        (2, CHAT, b'{"store": false}'),
        (2, RESPONSES, b'{"store": true}'),
        (1, CHAT, b'{"store": true, "metadata": "text"}'),
        (1, CHAT, b'{"store": true, "metadata": {"sendonce_call": "mine"}}'),
        (1, CHAT, json.dumps({"store": True, "metadata": {str(n): "" for n in range(16)}}).encode()),
        (2, CHAT, b'{"a": 1, "a": 2}'),
        (2, CHAT, b"[]"),
        (2, CHAT, b""),
        (2, CHAT, b'{"a": 1} {}'),
        (2, CHAT, b"\xff"),
        (2, CHAT, b'{"a": "' + b"x" * INJECTED_LIMIT_BYTES + b'"}'),
        (2, CHAT, b"[" * 100_000),
    ],
)
def test_any_other_body_is_left_as_it_is(level: int, path: str, body: bytes) -> None:
    """A lower level, the client's own word about storing, metadata that is full or ours already, what is no single object."""
    assert injected(level, Family.OPENAI, path, body, CALL) is None


def test_other_families_are_left_alone() -> None:
    """Their providers know neither field."""
    assert injected(2, Family.ANTHROPIC, CHAT, b"{}", CALL) is None


names = st.text(max_size=6).filter(lambda name: name not in {"store", "metadata"})
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(names, values, max_size=5), st.sampled_from([None, 2]), st.booleans())
def test_everything_else_stays_byte_for_byte(document: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    """Taking out what was added gives the very text that came, whatever its spacing, escapes and numbers."""
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    found = injected(2, Family.OPENAI, CHAT, text.encode("utf-8", "surrogatepass"), CALL)
    if found is None:  # a lone surrogate is no UTF-8
        assert "\\ud" in ascii(text).lower()
        return
    added = f'"store":true,"metadata":{{"sendonce_call":"{CALL}"}}' + ("," if document else "")
    assert found[0].decode().replace(added, "", 1) == text
    assert json.loads(found[0]) == {**document, "store": True, "metadata": TAGGED}
