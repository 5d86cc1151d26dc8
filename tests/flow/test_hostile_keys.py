"""Bodies that a derived key could mistake for one another, or fail on: each is sent as it is, and its exact retry is known."""

import json
from itertools import permutations
from typing import Final

import pytest

from proxy.keys import CANONICAL_JSON_DEPTH_LIMIT
from tests.harness.connections import connected, receipts_of, request_bytes
from tests.harness.processes import Answer, Rig

CHAT, MESSAGES, LOCAL = "/openai/v1/chat/completions", "/anthropic/v1/messages", "/local/v1/anything"
# A stream whose end came before its client closed counts as delivered, read or not.
HELD: Final = b"synthetic/hold=0.5,times=1"
ALL_PATHS: Final = (CHAT, MESSAGES, LOCAL)
RETRY = {"x-stainless-lang": "python", "x-stainless-retry-count": "1"}


def nested(levels: int, inner: bytes = b"1") -> bytes:
    """Of `levels` arrays and objects in turn, the outermost one counted."""
    for level in range(levels):
        inner = b"[%b]" % inner if level % 2 else b'{"a":%b}' % inner
    return inner


def body(value: bytes, model: bytes = b"synthetic") -> bytes:
    """A request with a value that the provider does not look at, two levels below the top."""
    return b'{"model":"%b","messages":[],"metadata":{"value":%b}}' % (model, value)


HOSTILE: Final[dict[str, bytes]] = {
    "equal names": b'{"model":"synthetic","messages":[],"a":1,"a":2}',
    "equal names below": body(b'{"a":1,"a":2}'),
    "equal names, one escaped": b'{"model":"synthetic","messages":[],"a":1,"\\u0061":2}',
    "beyond a double": body(b"1e400"),
    "below a double": body(b"-1e-400"),
    "long integer": body(b"9" * 5000),
    "one with a fraction": body(b"1.0"),
    "minus zero": body(b"-0"),
    "NaN": body(b"NaN"),
    "infinity": body(b"-Infinity"),
    "as deep as read": nested(CANONICAL_JSON_DEPTH_LIMIT),
    "one deeper": nested(CANONICAL_JSON_DEPTH_LIMIT + 1),
    "10,000 levels": nested(10_000),
    "10,000 brackets never closed": b"[" * 10_000,
    "escaped lone surrogate": body(b'"\\ud800"'),
    "escaped lone surrogate as a name": body(b'{"\\udfff":1}'),
    "encoded lone surrogate": body(b'"\xed\xa0\x80"'),
    "overlong encoding": body(b'"\xc0\xaf"'),
    "NUL": body(b'"\\u0000"'),
    "raw NUL": body(b'"\x00"'),
    "byte order mark": b"\xef\xbb\xbf" + body(b"1"),
    "UTF-16": body(b"1").decode().encode("utf-16"),
    "number alone": b"1",
    "string alone": b'"hello"',
    "array": b"[1,2,3]",
    "nothing": b"",
    "white space": b" \r\n\t",
    "cut off": body(b"1")[:-5],
    "two documents": body(b"1") * 2,
    "trailing comma": b'{"model":"synthetic",}',
}


def ask_and_leave(rig: Rig, path: str, data: bytes) -> None:
    with connected(rig.port) as client:
        client.sendall(request_bytes(path, data))
        rig.await_receipt(data)


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_body_is_sent_as_it_is_and_its_retry_is_known(shared: Rig, case: str) -> None:
    """Byte for byte; neither a retry that says so nor one after a client that left is sent again; another sample is."""
    data = HOSTILE[case]
    for path in ALL_PATHS:
        about = {"Authorization": f"Bearer sk-{case}-{path}"}  # the same bytes are asked for at each path
        before = len(receipts_of(shared, data))
        first = shared.post(path, data, about)
        again = shared.post(path, data, {**about, **RETRY})
        sample = shared.post(path, data, about)
        assert (first.status, first.disposition, sample.disposition) == (200, "forwarded", "forwarded"), path
        assert again.disposition in ("attached", "replayed"), path
        assert again.body == first.body != sample.body
        assert len(receipts_of(shared, data)) == before + 2


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_body_whose_client_left_is_not_sent_to_its_retry(shared: Rig, case: str) -> None:
    """Unmarked, on a new connection, after the first one was closed with its answer unread."""
    data = HOSTILE[case]
    before = len(receipts_of(shared, data))
    about = {"Authorization": f"Bearer sk-left-{case}"}
    with connected(shared.port) as client:
        client.sendall(request_bytes(CHAT, data, about))
    again = shared.post(CHAT, data, about)
    assert (again.status, again.disposition) in ((200, "attached"), (200, "replayed"))
    assert len(receipts_of(shared, data)) == before + 1


# --- which differences make another intention --------------------------------------------------------------------------

FIELDS: Final = (
    b'"model":"synthetic"',
    b'"messages":[{"role":"user","content":"order"}]',
    b'"metadata":{"b":1,"a":[2,1]}',
)
# The first is asked and left; is the second its retry?
SAME: Final[dict[str, tuple[bytes, bytes]]] = {
    "white space": (body(b'"white space"'), body(b'"white space"').replace(b":", b" :\n\t ")),
    "escapes": (body(b'"esc\xc3\xa9"'), body(b'"\\u0065sc\\u00E9"')),
    "order below": (body(b'{"x":1,"y":[1]}'), body(b'{"y":[1],"x":1}')),
    "stream": (body(b'"form"', HELD)[:-1] + b',"stream":true}', body(b'"form"', HELD)),
    "order beside a lone surrogate": (body(b'{"x":"\\ud800","y":2}'), body(b'{"y":2,"x":"\\uD800"}')),
    "order beside a large number": (body(b'{"x":1e400,"y":2}'), body(b'{"y":2,"x":1e400}')),
}
OTHER: Final[dict[str, tuple[bytes, bytes]]] = {
    "1 and 1.0": (body(b"[1]"), body(b"[1.0]")),
    "1e400 and 1e401": (body(b"[1e400]"), body(b"[1e401]")),
    "0 and -0": (body(b"[0]"), body(b"[-0]")),
    "1 and true": (body(b'{"is":1}'), body(b'{"is":true}')),
    "number and its text": (body(b'{"n":7}'), body(b'{"n":"7"}')),
    "order of an array": (body(b"[5,6]"), body(b"[6,5]")),
    "null and absent": (body(b'{"gone":null}'), body(b"{}")),
    "stream below the top": (body(b'{"stream":true}'), body(b'{"stream":false}')),
    "two lone surrogates": (body(b'"\\ud801"'), body(b'"\\ud802"')),
    "composed and decomposed": (body(b'"\xc3\xa9"'), body(b'"e\xcc\x81"')),
    "which of two equal names is last": (body(b'{"a":1,"a":3}'), body(b'{"a":3,"a":1}')),
    "white space beside equal names": (body(b'{"a":1,"a":4}'), body(b'{"a":1, "a":4}')),
    "large integers that are one double": (body(b"9007199254740992"), body(b"9007199254740993")),
}


def asked_after_a_left_one(rig: Rig, path: str, first: bytes, second: bytes) -> Answer:
    ask_and_leave(rig, path, first)
    return rig.post(path, second)


@pytest.mark.parametrize("case", SAME)
def test_body_that_only_looks_different_is_the_same_intention(shared: Rig, case: str) -> None:
    """The second one is handed the first one's answer."""
    first, second = SAME[case]
    answer = asked_after_a_left_one(shared, CHAT, first, second)
    assert answer.disposition in ("attached", "replayed")
    assert (len(receipts_of(shared, first)), receipts_of(shared, second)) == (1, [])


def test_body_with_its_names_in_any_order_is_the_same_intention(shared: Rig) -> None:
    """At every provider path; agents write their names in another order on each try."""
    orders = [b"{%b}" % b",".join(order) for order in permutations(FIELDS)]
    for path in ALL_PATHS:
        ask_and_leave(shared, path, orders[0])
        answers = [shared.post(path, other, RETRY) for other in orders[1:]]
        assert {answer.disposition for answer in answers} <= {"attached", "replayed"}
        assert len({answer.body for answer in answers}) == 1
    assert [len(receipts_of(shared, order)) for order in orders] == [len(ALL_PATHS), *[0] * (len(orders) - 1)]


@pytest.mark.parametrize("case", OTHER)
def test_body_that_only_looks_alike_is_another_intention(shared: Rig, case: str) -> None:
    """The first one's client left with its answer owed, and the second one is not handed it."""
    first, second = OTHER[case]
    assert asked_after_a_left_one(shared, CHAT, first, second).disposition == "forwarded"
    assert [len(receipts_of(shared, data)) for data in (first, second)] == [1, 1]


@pytest.mark.parametrize(
    ("base", "other"),
    [
        (CHAT, "/openai/chat/completions"),
        (MESSAGES, "/anthropic/messages"),
        (MESSAGES, "/anthropic/v1/v1/messages"),
    ],
)
def test_base_url_with_and_without_its_version_is_the_same_intention(shared: Rig, base: str, other: str) -> None:
    """One provider path, one key: a retry by a client with the other base URL is handed the answer."""
    data = json.dumps({"model": "synthetic", "messages": [], "max_tokens": 64, "metadata": {"base": other}}).encode()
    ask_and_leave(shared, base, data)
    answer = shared.post(other, data)
    assert answer.disposition in ("attached", "replayed")
    (receipt,) = receipts_of(shared, data)
    assert receipt["path"] == base.removeprefix("/openai").removeprefix("/anthropic")
