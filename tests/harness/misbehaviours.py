"""What a provider can do to an answer, byte for byte, and what must become of it; as data.

Semantics sections 4 and 5, I2 and I13. The source of each behaviour is research/reliability.md section 2 or a row of field-reports.md.
"""

import gzip
import json
from dataclasses import dataclass
from typing import Final

from tests.harness.upstreams import CLOSE, Act, Piece

CHAT, RESPONSES, OTHER = "/openai/v1/chat/completions", "/openai/v1/responses", "/other/v1/anything"
MESSAGES, GEMINI = "/anthropic/v1/messages", "/gemini/v1beta/models/m:streamGenerateContent"
OK: Final = b"HTTP/1.1 200 OK\r\n"
JSON: Final = b"Content-Type: application/json\r\n"
SSE: Final = b"Content-Type: text/event-stream\r\n"
CHUNKS: Final = b"Transfer-Encoding: chunked\r\n"
IDLE_S: Final = 0.5  # of every upstream here


def document(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def event(value: object, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + document(value) + b"\n\n"


COMPLETION: Final = document({
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
})  # fmt: skip
PAGE: Final = b"<html><body><h1>Bad gateway</h1></body></html>"
ENVELOPE: Final = document({
    "error": {"message": "it failed", "type": "server_error", "param": None, "code": None},
})  # fmt: skip
OVERLOADED: Final = document({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


@dataclass(frozen=True, slots=True)
class Stream:
    """One dialect's stream: content, its terminal events, an error of the provider, and how an error event of ours begins."""

    path: str
    begun: bytes
    end: bytes
    failed: bytes
    ours: bytes


CHUNK: Final = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m"}
STREAMS: Final = {
    "chat": Stream(
        CHAT,
        event({**CHUNK, "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}]}),
        event({**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}) + b"data: [DONE]\n\n",
        event({"error": {"message": "it failed", "type": "server_error", "code": None}}),
        b'data: {"error":',
    ),
    "responses": Stream(
        RESPONSES,
        event({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}, "response.created"),
        event({"type": "response.completed", "response": {"id": "resp_1", "status": "completed"}}, "response.completed"),
        event(
            {"type": "response.failed", "response": {"id": "resp_1", "status": "failed", "error": {"code": "server_error"}}},
            "response.failed",
        ),
        b"event: response.failed\n",
    ),
    "messages": Stream(
        MESSAGES,
        event({"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": []}}, "message_start"),
        event({"type": "message_stop"}, "message_stop"),
        event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error"),
        b"event: error\n",
    ),
    "gemini": Stream(
        GEMINI,
        event({"candidates": [{"content": {"parts": [{"text": "hi"}], "role": "model"}}]}),
        event({"candidates": [{"content": {"parts": [{"text": "!"}]}, "finishReason": "STOP"}]}),
        event({"error": {"code": 503, "message": "it failed", "status": "UNAVAILABLE"}}),
        b'data: {"error":',
    ),
}  # fmt: skip


def chunks(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end


def sized(body: bytes, status: bytes = b"200 OK", headers: bytes = JSON) -> bytes:
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(body), body)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is on record, and what the same request under the same key gets next: a disposition, or a code of ours."""

    observation: str
    effect: str
    stage: str
    again: str


SERVED: Final = Verdict("response", "happened", "completed", "replayed")
CUT: Final = Verdict("partial", "happened", "effect_happened", "effect_happened")
LOST: Final = Verdict("lost", "unknown", "effect_unknown", "effect_unknown")
UNPROVEN: Final = Verdict("response", "unknown", "completed", "effect_unknown")
FAILED: Final = Verdict("response", "answered", "completed", "forwarded")
ABSENT: Final = Verdict("response", "absent", "completed", "resumed")


@dataclass(frozen=True, slots=True)
class Case:
    """`status` and `clean` are what the client saw; `code` where the answer is ours; `error` how our last event begins.

    `status` None: the connection ended without an answer.
    """

    reply: tuple[Piece, ...]
    verdict: Verdict
    ended_by: str = "complete"
    status: int | None = 200
    clean: bool = True
    code: str | None = None
    error: bytes | None = None
    path: str = CHAT


def cut(*reply: Piece, ended_by: str = "ClientPayloadError", path: str = CHAT) -> Case:
    return Case(reply, CUT, ended_by, clean=False, path=path)


def lost(*reply: Piece, ended_by: str) -> Case:
    return Case(reply, LOST, ended_by, status=400, code="effect_unknown")


def whole(status: bytes, body: bytes, verdict: Verdict, headers: bytes = JSON, path: str = CHAT) -> Case:
    return Case((sized(body, status, headers),), verdict, status=int(status[:3]), path=path)


HALF: Final = COMPLETION[:60]
BEGUN: Final = OK + JSON + CHUNKS + b"\r\n" + chunks(HALF, end=b"")
FRAMING: Final = {
    "whole": whole(b"200 OK", COMPLETION, SERVED),
    "fewer bytes than declared": cut(OK + JSON + b"Content-Length: 999\r\n\r\n" + COMPLETION, CLOSE),
    "no last chunk": cut(OK + JSON + CHUNKS + b"\r\n" + chunks(COMPLETION, end=b""), CLOSE),
    "half a chunk": cut(OK + JSON + CHUNKS + b"\r\n999\r\n" + COMPLETION, CLOSE),
    "chunk size that is none": cut(BEGUN, 0.1, b"zz\r\n"),
    "chunk size that is none, at once": lost(BEGUN + b"zz\r\n", ended_by="ClientResponseError"),
    "chunk size below zero": cut(BEGUN, 0.1, b"-1\r\n"),
    "chunk longer than its size": cut(BEGUN, 0.1, b"1\r\nxyz\r\n0\r\n\r\n"),
    "last chunk without its last line": cut(OK + JSON + CHUNKS + b"\r\n" + chunks(COMPLETION, end=b"0\r\n"), CLOSE),
    "reset before the head": lost(Act.RESET, ended_by="ClientError"),
    "reset in the head": lost(OK + b"X-A: 1\r\nX-B", Act.RESET, ended_by="ClientError"),
    "reset in the body": cut(OK + JSON + b"Content-Length: 999\r\n\r\n" + HALF, 0.1, Act.RESET),
    "close before the head": lost(CLOSE, ended_by="ClientError"),
    "close in the head": lost(OK + b"X-A: 1\r\nX-B", CLOSE, ended_by="ClientError"),
    "close in the status line": lost(b"HTTP/1.1 20", CLOSE, ended_by="ClientError"),
    "more bytes than declared": lost(sized(COMPLETION) + b"EXTRA", ended_by="ClientResponseError"),
    "second answer behind the first": Case((sized(COMPLETION) * 2,), SERVED),
    "204 with a body": lost(b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nhi", ended_by="ClientResponseError"),
    "two lengths": lost(OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", ended_by="ClientResponseError"),
    "two equal lengths": lost(OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", ended_by="ClientResponseError"),
    "length and chunks": lost(
        OK + b"Content-Length: 2\r\n" + CHUNKS + b"\r\n" + chunks(b"{}"), ended_by="ClientResponseError"
    ),
    "length that is no number": lost(OK + b"Content-Length: two\r\n\r\n{}", ended_by="ClientResponseError"),
    "transfer coding that nobody asked for": lost(
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunks(gzip.compress(COMPLETION)), ended_by="ClientError"
    ),
    "100 and 103 before the head": Case(
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + sized(COMPLETION),), SERVED
    ),
    "102 and nothing more": lost(b"HTTP/1.1 102 Processing\r\n\r\n", CLOSE, ended_by="ClientError"),
    "trailers": Case(
        (OK + JSON + CHUNKS + b"Trailer: X-T\r\n\r\n" + chunks(COMPLETION, end=b"0\r\nX-T: 1\r\n\r\n"),), SERVED
    ),
    "101 unasked": lost(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw", ended_by="ClientError"
    ),
    "folded header": Case((sized(COMPLETION, headers=JSON + b"X-Folded: a\r\n b\r\n"),), SERVED),
    "bare CR in a header": lost(sized(COMPLETION, headers=b"X-A: a\rX-B: b\r\n"), ended_by="ClientResponseError"),
    "NUL in a header": lost(sized(COMPLETION, headers=b"X-A: a\0\r\n"), ended_by="ClientResponseError"),
    "bare LF as line end": Case((sized(COMPLETION).replace(b"\r\n", b"\n"),), SERVED),
    "header of 60 kB": whole(b"200 OK", COMPLETION, SERVED, JSON + b"X-A: " + b"a" * 60_000 + b"\r\n"),
    "header above 64 kB": lost(
        sized(COMPLETION, headers=b"X-A: " + b"a" * 70_000 + b"\r\n"), ended_by="ClientResponseError"
    ),
    "300 headers": lost(
        sized(COMPLETION, headers=b"".join(b"X-%d: 1\r\n" % number for number in range(300))),
        ended_by="ClientResponseError",
    ),
    "garbage": lost(b"\x00\x01garbage\r\n\r\n", CLOSE, ended_by="ClientResponseError"),
    "TLS alert": lost(bytes.fromhex("15030100020228"), CLOSE, ended_by="ClientResponseError"),
    "HTTP/0.9": lost(COMPLETION, CLOSE, ended_by="ClientResponseError"),
    "HTTP/2 settings": lost(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", CLOSE, ended_by="ClientResponseError"),
    "status of two digits": lost(b"HTTP/1.1 20 OK\r\n\r\n{}", CLOSE, ended_by="ClientResponseError"),
    "status above 599": Case((sized(COMPLETION, b"799 Odd"),), UNPROVEN, status=799),
    "HTTP/1.0": Case((b"HTTP/1.0 200 OK\r\n" + JSON + b"\r\n" + COMPLETION, CLOSE), SERVED),
    "never answers": lost(Act.HOLD, ended_by="SocketTimeoutError"),
    "stops in the head": lost(OK, Act.HOLD, ended_by="SocketTimeoutError"),
    "stops in the body": cut(
        OK + JSON + b"Content-Length: 999\r\n\r\n" + HALF, Act.HOLD, ended_by="SocketTimeoutError"
    ),
    "slow head": Case(
        (OK, 0.2, JSON, 0.2, b"Content-Length: %d\r\n" % len(COMPLETION), 0.2, b"\r\n", 0.2, COMPLETION), SERVED
    ),
}
GZIPPED: Final = gzip.compress(COMPLETION, mtime=0)
GZIP: Final = JSON + b"Content-Encoding: gzip\r\n"
BODIES: Final = {
    "delimited by the close, a whole document": Case((OK + JSON + b"\r\n" + COMPLETION, CLOSE), SERVED),
    "delimited by the close, half a document": cut(OK + JSON + b"\r\n" + HALF, CLOSE, ended_by="no_terminal_evidence"),
    "delimited by the close, nothing known of it": Case(
        (OK + b"Content-Type: text/plain\r\n\r\nabc", CLOSE), SERVED, "unproven", path=OTHER
    ),
    "delimited by a reset": cut(
        OK + b"Content-Type: text/plain\r\n\r\nabc", 0.1, Act.RESET, ended_by="ClientConnectionError", path=OTHER
    ),
    "half a document in whole framing": cut(sized(HALF), ended_by="no_terminal_evidence"),
    "gzip": whole(b"200 OK", GZIPPED, SERVED, GZIP),
    "gzip that is cut, in whole framing": cut(sized(GZIPPED[:40], headers=GZIP), ended_by="no_terminal_evidence"),
    "gzip that is damaged": cut(
        sized(GZIPPED[:30] + b"\xff" * 10 + GZIPPED[40:], headers=GZIP), ended_by="no_terminal_evidence"
    ),
    "gzip by name only": cut(sized(COMPLETION, headers=GZIP), ended_by="no_terminal_evidence"),
    "coding that nobody knows": whole(b"200 OK", GZIPPED, SERVED, JSON + b"Content-Encoding: odd\r\n"),
    "nothing": Case((sized(b""),), CUT, "no_terminal_evidence", status=400, code="effect_happened"),
    "nothing, delimited by the close": cut(OK + JSON + b"\r\n", CLOSE, ended_by="no_terminal_evidence"),
    "empty document": whole(b"200 OK", b"{}", SERVED),
    "null": whole(b"200 OK", b"null", SERVED),
    "page with 200": whole(b"200 OK", PAGE, SERVED, b"Content-Type: text/html\r\n"),
    "204": Case((b"HTTP/1.1 204 No Content\r\n\r\n",), SERVED, status=204),
    "205": Case((b"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",), SERVED, status=205),
}


def _of_a_stream(name: str, it: Stream) -> dict[str, Case]:
    """Event streams: whole, without their end in every framing, failed by the provider."""
    head, closed = OK + SSE + CHUNKS + b"\r\n", OK + SSE + b"\r\n"
    path, error, lacks = it.path, it.ours, "no_terminal_evidence"
    unclean = {"status": 200, "clean": False, "path": path, "error": error}
    coded = OK + SSE + b"Content-Encoding: gzip\r\n" + CHUNKS + b"\r\n"
    return {
        f"{name}: whole": Case((head + chunks(it.begun, it.end),), SERVED, path=path),
        f"{name}: delimited by the close": Case((closed + it.begun + it.end, CLOSE), SERVED, path=path),
        f"{name}: no end, closed": Case((closed + it.begun, CLOSE), CUT, lacks, **unclean),
        f"{name}: no end, clean framing": Case((head + chunks(it.begun),), CUT, lacks, **unclean),
        f"{name}: no end, cut": Case((head + chunks(it.begun, end=b""), CLOSE), CUT, "ClientPayloadError", **unclean),
        f"{name}: no end, reset": Case(
            (head + chunks(it.begun, end=b""), 0.1, Act.RESET), CUT, "ClientPayloadError", **unclean
        ),
        f"{name}: no end, silence": Case(
            (head + chunks(it.begun, end=b""), Act.HOLD), CUT, "SocketTimeoutError", **unclean
        ),
        f"{name}: last event without its blank line": Case((head + chunks(it.begun, it.end[:-1]),), SERVED, path=path),
        f"{name}: half an event": Case((head + chunks(it.begun, it.end[:-4]),), CUT, lacks, **unclean),
        f"{name}: nothing": Case((head + chunks(),), CUT, lacks, **unclean),
        f"{name}: whole gzip": Case((coded + chunks(gzip.compress(it.begun + it.end, mtime=0)),), SERVED, path=path),
        f"{name}: gzip that is cut": Case(
            (coded + chunks(gzip.compress(it.begun + it.end, mtime=0)[:-20]),), CUT, lacks, clean=False, path=path
        ),
        f"{name}: error of the provider": Case((head + chunks(it.begun, it.failed),), FAILED, path=path),
        f"{name}: end, then cut": Case(
            (head + chunks(it.begun, it.end, end=b""), CLOSE), CUT, "ClientPayloadError", **unclean
        ),
    }


EVENTS: Final = {name: case for dialect, it in STREAMS.items() for name, case in _of_a_stream(dialect, it).items()}
HTML: Final = b"Content-Type: text/html\r\n"
STATUSES: Final = {
    "400 with an envelope": whole(b"400 Bad Request", ENVELOPE, ABSENT),
    "429": whole(b"429 Too Many Requests", ENVELOPE, ABSENT),
    "404 page": whole(b"404 Not Found", PAGE, ABSENT, HTML),
    **{f"{status}": whole(b"%d X" % status, ENVELOPE, UNPROVEN) for status in (408, 409, 425, 499)},
    **{f"{status} with an envelope": whole(b"%d X" % status, ENVELOPE, FAILED) for status in (500, 502, 503, 504)},
    **{f"{status} page": whole(b"%d X" % status, PAGE, UNPROVEN, HTML) for status in (500, 502, 503, 504, 520, 524)},
    "503 of nothing": whole(b"503 X", b"", UNPROVEN),
    "529": whole(b"529 Overloaded", OVERLOADED, ABSENT, path=MESSAGES),
    "529 page": whole(b"529 Overloaded", PAGE, ABSENT, HTML, MESSAGES),
    **{
        f"half a {status}": Case(
            (b"HTTP/1.1 %d X\r\n" % status + JSON + b"Content-Length: 999\r\n\r\n" + ENVELOPE, CLOSE),
            Verdict("partial", "unknown", "effect_unknown", "effect_unknown"),
            "ClientPayloadError",
            status,
            clean=False,
        )
        for status in (400, 429, 500, 529)
    },
    "304": Case((b"HTTP/1.1 304 Not Modified\r\n\r\n",), UNPROVEN, status=304),
    **{
        f"{status} to elsewhere": Case(
            (sized(b"", b"%d X" % status, b"Location: /v1/elsewhere\r\n"),),
            ABSENT if status in (307, 308) else UNPROVEN,
            status=400,
            code="redirect_refused",
        )
        for status in (301, 302, 303, 307, 308)
    },
}
CASES: Final = FRAMING | BODIES | EVENTS | STATUSES
