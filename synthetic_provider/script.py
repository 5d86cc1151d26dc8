"""The script of one answer: every byte, pause and end of it in order, faults included. Pure; `server` plays it."""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus

import orjson

from synthetic_provider.behaviour import Behaviour, Reset
from synthetic_provider.wire import Ask, Format, Stream

REDIRECT_TARGET = "/redirected"  # answers without redirecting: a client that follows leaves just one more receipt
LAST_CHUNK = b"0\r\n\r\n"
GATEWAY_PAGE = "<html><head><title>{reason}</title></head><body><h1>{reason}</h1><p>receipt {n}</p></body></html>"


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


class End(Enum):
    """How the answer leaves the connection."""

    KEEP = auto()  # whole; open for the next request
    CUT = auto()  # FIN, whatever the framing still owes
    RESET = auto()  # RST


Step = bytes | Wait | End


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer before framing and faults of the connection."""

    status: int
    headers: dict[str, str]
    body: bytes | Stream


def script(ask: Ask, answers: Format, *, deduplicated: bool = False, rejection: str | None = None) -> Iterator[Step]:
    """The steps of the answer; the last one is an End. `rejection` says why the model name cannot be read: a 400."""
    behaviour = ask.behaviour
    reply = _reply(ask, answers, rejection)
    head = _head(reply, {"x-synthetic-receipt": str(ask.receipt)} | _mark(deduplicated=deduplicated))
    yield Wait(behaviour.hold_s)
    match behaviour.reset:
        case Reset.BEFORE:
            yield End.RESET
            return
        case Reset.HEAD:
            yield head[: len(head) // 2]
            yield End.RESET
            return
        case Reset.MID | None:
            pass
    yield head
    yield Wait(behaviour.delay_s)
    if ask.method == "HEAD":
        yield End.KEEP
    elif isinstance(reply.body, Stream):
        yield from _stream_body(reply.body, behaviour)
    else:
        yield from _whole_body(reply.body, behaviour)


def _mark(*, deduplicated: bool) -> dict[str, str]:
    return {"x-synthetic-deduplicated": "true"} if deduplicated else {}


def _reply(ask: Ask, answers: Format, rejection: str | None) -> Reply:
    behaviour = ask.behaviour
    json_headers = {"content-type": "application/json", answers.request_id_header: ask.request_id}
    if rejection is not None:
        return _shaped(behaviour, 400, json_headers, orjson.dumps(answers.error(ask, 400, rejection)))
    if behaviour.redirect is not None and ask.path != REDIRECT_TARGET:
        return Reply(behaviour.redirect, {"location": REDIRECT_TARGET}, b"")
    if behaviour.page is not None:
        page = GATEWAY_PAGE.format(reason=f"{behaviour.page} {_reason(behaviour.page)}", n=ask.receipt)
        return _shaped(behaviour, behaviour.page, {"content-type": "text/html"}, page.encode())
    if behaviour.status is not None:
        message = f"receipt {ask.receipt}: the status {behaviour.status} that the model name asked for"
        envelope = answers.error(ask, behaviour.status, message)
        return _shaped(behaviour, behaviour.status, json_headers, orjson.dumps(envelope))
    if ask.wants_stream and answers.stream is not None:
        headers = json_headers | {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        return Reply(200, headers, answers.stream(ask))
    return _shaped(behaviour, 200, json_headers, orjson.dumps(answers.whole(ask)))


def _shaped(behaviour: Behaviour, status: int, headers: dict[str, str], body: bytes) -> Reply:
    """A whole answer after those options that change the body before it is framed."""
    if behaviour.gzip:
        headers, body = headers | {"content-encoding": "gzip"}, gzip.compress(body, mtime=0)
    if behaviour.clean_cut is not None:
        body = body[: len(body) // 2]
    return Reply(status, headers, body)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Synthetic"  # e.g. 529, which only Anthropic has


def _head(reply: Reply, extra: dict[str, str]) -> bytes:
    framing = (
        {"transfer-encoding": "chunked"} if isinstance(reply.body, Stream) else {"content-length": str(len(reply.body))}
    )
    lines = [f"HTTP/1.1 {reply.status} {_reason(reply.status)}"]
    lines += [f"{name}: {value}" for name, value in (reply.headers | extra | framing).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _whole_body(body: bytes, behaviour: Behaviour) -> Iterator[Step]:
    if behaviour.cut is not None or behaviour.reset is Reset.MID:
        yield body[: len(body) // 2]
        yield End.CUT if behaviour.cut is not None else End.RESET
        return
    yield body
    yield End.KEEP


def _stream_body(stream: Stream, behaviour: Behaviour) -> Iterator[Step]:
    """Where several faults meet, the one with the fewest chunks before it comes first."""
    faults: list[tuple[int, bytes, End]] = []  # content chunks before it, bytes sent then, end
    if behaviour.cut is not None:
        faults.append((behaviour.cut, b"", End.CUT))
    if behaviour.reset is Reset.MID:
        faults.append((len(stream.chunks) // 2, b"", End.RESET))
    if behaviour.clean_cut is not None:
        faults.append((behaviour.clean_cut, LAST_CHUNK, End.KEEP))
    if behaviour.error_after is not None:
        faults.append((behaviour.error_after, _http_chunk(stream.error) + LAST_CHUNK, End.KEEP))
    whole = (len(stream.chunks), _http_chunk(stream.ending) + LAST_CHUNK, End.KEEP)
    count, last_bytes, end = min(faults, key=lambda fault: fault[0], default=whole)

    yield _http_chunk(stream.opening)
    for index, chunk in enumerate(stream.chunks[:count]):
        if index:
            yield Wait(behaviour.interval_s)
        yield _http_chunk(chunk)
    yield last_bytes
    yield end


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
