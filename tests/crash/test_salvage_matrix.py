"""Is what a crash left a whole answer? Only a matching declared length, or the body's own terminal evidence, says so.

The whole table against `judge_salvaged`, and some of its rows through a real SIGKILL.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from ledger.events import CallManifest
from proxy.interpreter import judge_salvaged
from proxy.settings import load
from tests.harness.crashes import CUT, digest_of, records_of
from tests.harness.histories import one
from tests.harness.ledgers import MANIFEST
from tests.harness.neighbours import beside, process_of
from tests.harness.processes import Rig, chat, message, start_provider
from tests.harness.streams import CHAT_STREAM, DONE, MESSAGE_STREAM, STOP, event
from tests.harness.upstreams import CLOSE, raw_upstream

SSE, JSON, HTML = "text/event-stream", "application/json", "text/html"
PATHS: Final = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "generic": "/v1/completions"}
UPSTREAMS: Final = {"chat": "openai", "messages": "anthropic", "generic": "openai"}
RESPONSES_STREAM: Final = event("response.created", response={"id": "resp_1"}) + event("response.completed")
ENVELOPE: Final = json.dumps({"error": {"type": "some_error", "code": "some", "message": "Not now."}}).encode()
# dialect -> a whole event stream, and the same without its end
STREAMS: Final = {
    "chat": (CHAT_STREAM, CHAT_STREAM.removesuffix(DONE)),
    "messages": (MESSAGE_STREAM, MESSAGE_STREAM.removesuffix(STOP)),
    "generic": (RESPONSES_STREAM, RESPONSES_STREAM[:-30]),
}
SETTINGS: Final = load(None, {})


@dataclass(frozen=True, slots=True)
class Left:
    """What stands in a spool. `declared`: the Content-Length, where the framing is one."""

    dialect: str
    status: int
    framing: str
    media: str
    body: bytes
    declared: int = -1
    coding: str | None = None

    @property
    def headers(self) -> list[list[str]]:
        pairs = [["Content-Type", self.media]]
        pairs += [["Content-Length", str(self.declared)]] if self.framing == "length" else []
        return pairs + ([["Content-Encoding", self.coding]] if self.coding else [])


def judged(left: Left, directory: Path) -> bool:
    spooled = directory / "call.body"
    spooled.write_bytes(left.body)
    asked: CallManifest = replace(MANIFEST, url=f"https://provider{PATHS[left.dialect]}", stream=left.media == SSE)
    state = replace(one(asked), upstream=UPSTREAMS[left.dialect])
    head = {"status": left.status, "headers": left.headers, "framing": left.framing}
    return judge_salvaged(SETTINGS, state, head, spooled).is_whole


def matrix() -> Iterator[tuple[Left, bool]]:
    """Status x framing x dialect x cut or whole; errors are JSON envelopes, a 200 is an event stream."""
    for dialect, status, framing, is_whole in product(
        PATHS, (200, 429, 500), ("length", "chunked", "close"), (True, False)
    ):
        whole, cut = STREAMS[dialect] if status == 200 else (ENVELOPE, ENVELOPE[:-9])
        has_evidence = not (dialect == "generic" and status == 200)  # nobody knows how its stream ends
        left = Left(
            dialect, status, framing, SSE if status == 200 else JSON, whole if is_whole else cut, declared=len(whole)
        )
        yield left, is_whole and (has_evidence or framing == "length")


OTHERS: Final = [
    # a length that fits does not make up for the terminal event that a dialect requires
    (Left("chat", 200, "length", SSE, STREAMS["chat"][1], declared=len(STREAMS["chat"][1])), False),
    (Left("messages", 200, "length", SSE, STREAMS["messages"][1], declared=len(STREAMS["messages"][1])), False),
    (Left("chat", 200, "length", JSON, b'{"id": "x"', declared=10), False),
    # and a terminal event does not make up for bytes that are missing
    (Left("chat", 200, "length", SSE, CHAT_STREAM, declared=len(CHAT_STREAM) + 1), False),
    (Left("generic", 429, "length", JSON, ENVELOPE, declared=len(ENVELOPE) + 1), False),
    # JSON is its own evidence in every framing
    (Left("generic", 200, "chunked", JSON, b'{"id": "x"}'), True),
    (Left("generic", 200, "close", JSON, b'{"id": "x'), False),
    # nothing but a head
    (Left("chat", 429, "chunked", JSON, b""), False),
    (Left("chat", 429, "close", JSON, b""), False),
    (Left("messages", 429, "length", JSON, b"", declared=0), True),
    (Left("messages", 204, "none", JSON, b""), True),
    # a gateway's page
    (Left("chat", 502, "chunked", HTML, b"<html></html>"), False),
    (Left("chat", 502, "close", HTML, b"<html></html>"), False),
    (Left("chat", 502, "length", HTML, b"<html></html>", declared=13), True),
    # an error that is labelled as a stream owes nothing, and proves nothing
    (Left("chat", 429, "chunked", SSE, b"data: slow down\n\n"), False),
    (Left("messages", 500, "close", SSE, b"data: {"), False),
    # codings
    (Left("chat", 200, "chunked", SSE, gzip.compress(CHAT_STREAM), coding="gzip"), True),
    (Left("chat", 200, "chunked", SSE, gzip.compress(CHAT_STREAM)[:-40], coding="gzip"), False),
    (Left("messages", 200, "close", SSE, MESSAGE_STREAM, coding="compress"), False),
    (Left("messages", 429, "chunked", JSON, gzip.compress(ENVELOPE)[:-30], coding="gzip"), False),
]


def name_of(value: object) -> str | None:
    if isinstance(value, Left):
        return f"{value.dialect}-{value.status}-{value.framing}-{len(value.body)}of{value.declared}-{value.coding}"
    return "whole" if value is True else "partial" if value is False else None


@pytest.mark.parametrize(("left", "whole"), [*matrix(), *OTHERS], ids=name_of)
def test_salvaged_answer_is_whole_only_with_evidence(tmp_path: Path, left: Left, whole: bool) -> None:
    """A cut answer that passes for whole would be replayed, or its request sent again."""
    assert judged(left, tmp_path) is whole


# --- through real crashes ----------------------------------------------------------------------------------------------


def on_the_wire(left: Left, *, ends: bool) -> bytes:
    """As the provider sends it; `ends`: with the last byte of framing, where the framing has one."""
    head = "".join(f"{name}: {value}\r\n" for name, value in left.headers)
    if left.framing == "chunked":
        body = b"%x\r\n%b\r\n" % (len(left.body), left.body) + b"0\r\n\r\n" * ends
        return f"HTTP/1.1 {left.status} X\r\n{head}Transfer-Encoding: chunked\r\n\r\n".encode() + body
    return f"HTTP/1.1 {left.status} X\r\n{head}\r\n".encode() + left.body


@dataclass(frozen=True, slots=True)
class Crash:
    """What was left, where the proxy died, and what the next start makes of it. `then`: what the same request gets."""

    left: Left
    failpoint: str
    observation: str
    stage: str
    then: tuple[int, str]  # status, and the code of a refusal or the disposition


MID, END = "mid-stream=kill", "before-observed=kill"
CRASHES: Final = {
    "cut 429": Crash(
        Left("chat", 429, "chunked", JSON, ENVELOPE[:-9]), MID, "partial", "effect_unknown", (400, "effect_unknown")
    ),
    "cut 429, messages": Crash(
        Left("messages", 429, "close", JSON, ENVELOPE[:-9]), MID, "partial", "effect_unknown", (424, "effect_unknown")
    ),
    "whole 429 by its JSON": Crash(
        Left("chat", 429, "chunked", JSON, ENVELOPE), END, "response", "completed", (200, "resumed")
    ),
    "cut generic stream": Crash(
        Left("generic", 200, "chunked", SSE, STREAMS["generic"][1]),
        MID, "partial", "effect_happened", (400, "effect_happened"),
    ),
    "generic stream whose framing ended": Crash(
        Left("generic", 200, "chunked", SSE, RESPONSES_STREAM),
        END, "partial", "effect_happened", (400, "effect_happened"),
    ),
    "generic stream of a known length": Crash(
        Left("generic", 200, "length", SSE, RESPONSES_STREAM, declared=len(RESPONSES_STREAM)),
        END, "response", "completed", (200, "replayed"),
    ),
    "chat stream up to its terminal event": Crash(
        Left("chat", 200, "chunked", SSE, CHAT_STREAM), MID, "response", "completed", (200, "replayed")
    ),
    "cut 500": Crash(
        Left("messages", 500, "chunked", JSON, ENVELOPE[:-9]), MID, "partial", "effect_unknown", (424, "effect_unknown")
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Whoever is asked after the crash: it serves."""
    directory = tmp_path_factory.mktemp("matrix")
    made = Rig(directory, start_provider(directory / "provider.jsonl"))
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("name", CRASHES)
def test_crash_within_an_answer_leads_where_its_evidence_says(provider: Rig, name: str) -> None:
    """A cut answer is partial, whatever its status; only a proven absence lets the same request through."""
    crash = CRASHES[name]
    left, ends = crash.left, crash.failpoint == END
    make, upstream = message if left.dialect == "messages" else chat, UPSTREAMS[left.dialect]
    body, path = make(text=name, stream=left.media == SSE), f"/{upstream}{PATHS[left.dialect]}"
    pieces = (on_the_wire(left, ends=ends), *((CLOSE,) if ends and left.framing == "close" else ()))
    with raw_upstream({PATHS[left.dialect]: pieces}) as raw:
        with beside(provider, "--upstream", f"{upstream}={raw.url}", failpoints=crash.failpoint) as made:
            with pytest.raises(CUT):
                made.post(path, body)
            assert process_of(made).wait() == -9
            made.arguments = []  # from now on the provider that serves
            made.restart()
            (row,) = made.calls()
            (observed,) = records_of(made, row["call_id"], "attempt.observed")
            assert (observed["observation"], observed["source"]) == (crash.observation, "salvage")
            assert observed["body"] == {"digest": digest_of(left.body), "size": len(left.body), "kept": True}
            assert row["stage"] == crash.stage
            again = made.post(path, body)
            status, word = crash.then
            assert (again.status, again.code if status >= 400 else again.disposition) == (status, word)
            if word == "replayed":
                assert again.body == left.body
            made.settled()
            assert len(made.calls()) == (2 if word == "resumed" else 1)
        assert len(raw.requests) == 1
