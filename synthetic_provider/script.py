"""The script of one answer: every byte, pause and end of it in order, faults included. Pure; `playing` plays it."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from itertools import chain, islice

import orjson

from synthetic_provider.behaviour import BODYLESS, Behaviour, Reset
from synthetic_provider.codings import CODERS, Coder
from synthetic_provider.filler import blocks, first, pieces, size_bytes
from synthetic_provider.outcomes import BROKEN, Begins, Ends, How, Made, Mark
from synthetic_provider.wire import Ask, Format, Plain, Stream

REDIRECT_TARGET = "/redirected"  # answers without redirecting: a client that follows leaves just one more receipt
LAST_CHUNK = b"0\r\n\r\n"
GATEWAY_PAGE = "<html><head><title>{reason}</title></head><body><h1>{reason}</h1><p>receipt {n}</p></body></html>"


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class Until:
    """Wait for what another answer does."""

    reached: Callable[[], Awaitable[None]]


class End(Enum):
    """How the answer leaves the connection."""

    KEEP = auto()  # whole; open for the next request
    CUT = auto()  # FIN, whatever the framing still owes
    RESET = auto()  # RST


Step = bytes | Wait | Until | Mark | End


@dataclass(frozen=True, slots=True)
class Whole:
    size_bytes: int
    parts: Iterable[bytes]  # in pieces, made when they are sent


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer before framing and faults of the connection."""

    status: int
    headers: dict[str, str]
    body: Whole | Stream
    how: How = How.WHOLE  # unless a fault of the connection comes first


NO_BODY = Whole(0, ())


def script(ask: Ask, answers: Format, *, deduplicated: bool = False, rejection: str | None = None) -> Iterator[Step]:
    """The steps of the answer; the last one is an End. `rejection` says why the model name cannot be read: a 400."""
    behaviour = ask.behaviour
    reply = _reply(ask, answers, rejection)
    head = _head(reply, {"x-synthetic-receipt": str(ask.receipt)} | _mark(deduplicated=deduplicated))
    yield Wait(behaviour.hold_s)
    if behaviour.reset is Reset.BEFORE:
        yield Ends(How.RESET)
        yield End.RESET
        return
    yield Begins(reply.status)
    if behaviour.reset is Reset.HEAD:
        yield head[: len(head) // 2]
        yield Ends(How.RESET)
        yield End.RESET
        return
    yield head
    yield Wait(behaviour.delay_s)
    if ask.method == "HEAD":
        yield End.KEEP
    elif isinstance(reply.body, Stream):
        yield from _stream_body(reply.body, behaviour)
    else:
        yield from _whole_body(reply.body, reply.how, behaviour)


def told(receipt: int, status: int, headers: Mapping[str, str], data: bytes) -> Iterator[Step]:
    """A whole answer as it is: a look-up, which no model name shapes."""
    reply = Reply(status, dict(headers), Whole(size_bytes(data), pieces(data)))
    yield _head(reply, {"x-synthetic-receipt": str(receipt)})
    yield from blocks(reply.body.parts if isinstance(reply.body, Whole) else ())
    yield End.KEEP


def resumed(receipt: int, headers: Mapping[str, str], events: Iterable[Until | bytes]) -> Iterator[Step]:
    """A stream of events that another answer makes; nothing is sent for events that never come."""
    yield _head(Reply(200, dict(headers), Stream(b"", (), b"", b"")), {"x-synthetic-receipt": str(receipt)})
    for one in events:
        if isinstance(one, bytes):
            yield from blocks(_http_chunk(one, None))
        else:
            yield one
    yield LAST_CHUNK
    yield End.KEEP


def _mark(*, deduplicated: bool) -> dict[str, str]:
    return {"x-synthetic-deduplicated": "true"} if deduplicated else {}


def _reply(ask: Ask, answers: Format, rejection: str | None) -> Reply:
    behaviour = ask.behaviour
    named = {answers.request_id_header: ask.request_id} if answers.request_id_header else {}
    json_headers = {"content-type": "application/json", **named}
    if rejection is not None:
        refused = orjson.dumps(answers.error(ask, 400, rejection))
        return _shaped(behaviour, 400, json_headers, refused, How.ERROR_STATUS)
    if behaviour.redirect is not None and ask.path != REDIRECT_TARGET:
        return Reply(behaviour.redirect, {"location": REDIRECT_TARGET}, NO_BODY, How.REDIRECT)
    if behaviour.bodyless is not None:
        return Reply(behaviour.bodyless, named, NO_BODY, How.BODYLESS)
    if behaviour.page is not None:
        page = GATEWAY_PAGE.format(reason=f"{behaviour.page} {_reason(behaviour.page)}", n=ask.receipt)
        return _shaped(behaviour, behaviour.page, {"content-type": "text/html"}, page.encode(), How.ERROR_STATUS)
    if behaviour.status is not None:
        message = f"receipt {ask.receipt}: the status {behaviour.status} that the model name asked for"
        envelope = answers.error(ask, behaviour.status, message)
        return _shaped(behaviour, behaviour.status, json_headers, orjson.dumps(envelope), How.ERROR_STATUS)
    if answers.headers is not None:
        json_headers |= answers.headers(ask)
    if answers.stream is not None and answers.streams(ask):
        headers = json_headers | {"content-type": answers.stream_type, "cache-control": "no-cache"}
        return Reply(200, headers | _coding(behaviour), answers.stream(ask))
    whole = answers.whole(ask)
    if isinstance(whole, Plain):
        return _shaped(behaviour, 200, json_headers | {"content-type": whole.media_type}, whole.data)
    return _shaped(behaviour, 200, json_headers, orjson.dumps(whole))


def _coding(behaviour: Behaviour) -> dict[str, str]:
    return {"content-encoding": behaviour.encoding} if behaviour.encoding is not None else {}


def _shaped(behaviour: Behaviour, status: int, headers: dict[str, str], data: bytes, how: How = How.WHOLE) -> Reply:
    """A whole answer after those options that change the body before it is framed."""
    size, parts = size_bytes(data), pieces(data)
    if behaviour.encoding is not None:
        coded = CODERS[behaviour.encoding]().whole(parts)  # its size goes into the head; filler packs well
        size, parts = len(coded), iter([coded])
    if behaviour.clean_cut is not None:
        size //= 2
        how = How.CLEAN_CUT if how is How.WHOLE else how
    return Reply(status, headers | _coding(behaviour), Whole(size, first(size, parts)), how)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Synthetic"  # e.g. 529, which only Anthropic has


def _head(reply: Reply, extra: dict[str, str]) -> bytes:
    framing = {}
    if isinstance(reply.body, Stream):
        framing = {"transfer-encoding": "chunked"}
    elif reply.status not in BODYLESS:
        framing = {"content-length": str(reply.body.size_bytes)}
    lines = [f"HTTP/1.1 {reply.status} {_reason(reply.status)}"]
    lines += [f"{name}: {value}" for name, value in (reply.headers | extra | framing).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _whole_body(body: Whole, how: How, behaviour: Behaviour) -> Iterator[Step]:
    broken = How.CUT if behaviour.cut is not None else How.RESET if behaviour.reset is Reset.MID else None
    if how is How.WHOLE and broken is not None:
        how = broken
    if how in (How.WHOLE, *BROKEN):
        yield Made(behaviour.chunks if how is How.WHOLE else behaviour.chunks // 2)
    yield Ends(how)
    if broken is not None:
        yield from blocks(first(body.size_bytes // 2, body.parts))
        yield End.CUT if broken is How.CUT else End.RESET
        return
    yield from blocks(body.parts)
    yield End.KEEP


def _stream_body(stream: Stream, behaviour: Behaviour) -> Iterator[Step]:
    """Where several faults meet, the one with the fewest chunks before it comes first."""
    faults: list[tuple[int, bytes | None, How]] = []  # content chunks before it, events then (None: broken off), how
    if behaviour.cut is not None:
        faults.append((behaviour.cut, None, How.CUT))
    if behaviour.reset is Reset.MID:
        faults.append((behaviour.chunks // 2, None, How.RESET))
    if behaviour.clean_cut is not None:
        faults.append((behaviour.clean_cut, b"", How.CLEAN_CUT))
    if behaviour.error_after is not None:
        faults.append((behaviour.error_after, stream.error, How.ERROR_AFTER))
    whole = (behaviour.chunks, stream.ending, How.WHOLE)
    count, last_events, how = min(faults, key=lambda fault: fault[0], default=whole)

    coder = None if behaviour.encoding is None else CODERS[behaviour.encoding]()
    yield from blocks(_http_chunk(stream.opening, coder))
    for index, chunk in enumerate(islice(stream.chunks, count)):
        if index:
            yield Wait(behaviour.interval_s)
        yield Made(index + 1)
        yield from blocks(_http_chunk(stream.separator * bool(index) + chunk, coder))
    yield Ends(how)
    if last_events is not None:
        separator = stream.separator if count and last_events else b""
        yield from blocks(chain(_http_chunk(separator + last_events, coder, last=True), [LAST_CHUNK]))
    yield {How.CUT: End.CUT, How.RESET: End.RESET}.get(how, End.KEEP)


def _http_chunk(data: bytes, coder: Coder | None, *, last: bool = False) -> Iterator[bytes]:
    """No chunk where there is nothing to send: an empty one would end the body."""
    if coder is None:
        size, parts = size_bytes(data), pieces(data)
    elif data or last:
        coded = coder.whole(pieces(data)) if last else coder.event(pieces(data))
        size, parts = len(coded), iter([coded])
    else:
        return
    if size:
        yield b"%x\r\n" % size
        yield from parts
        yield b"\r\n"
