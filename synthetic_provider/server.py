"""Sockets: read a request, write its receipt, play the script of its answer.

Plain asyncio streams rather than an HTTP library, because half a head, a reset and a missing last chunk are the point.
"""

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Iterator

from synthetic_provider.behaviour import Behaviour, parse
from synthetic_provider.formats import endpoint_of
from synthetic_provider.receipts import ReceiptFile
from synthetic_provider.request import HEAD_LIMIT_BYTES, BadRequestError, Request, read_request
from synthetic_provider.script import End, Step, Wait, script
from synthetic_provider.wire import Ask

BACKLOG = 1024  # connections; a test may open hundreds at once
ACK_POLL_S = 0.001
ACK_LIMIT_S = 5.0  # a client that reads nothing for this long gets its reset anyway
LINGER_ZERO = struct.pack("ii", 1, 0)


async def listen(host: str, port: int, receipts: ReceiptFile) -> asyncio.Server:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _serve(reader, writer, receipts)

    return await asyncio.start_server(connected, host, port, limit=HEAD_LIMIT_BYTES, backlog=BACKLOG)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, receipts: ReceiptFile) -> None:
    """One connection, request after request."""
    writer.transport.set_write_buffer_limits(0)  # drain() then means: handed to the kernel
    try:
        while request := await read_request(reader, writer):
            answer = _answer(request, receipts)
            if answer is None or not await _play(answer, writer) or request.closes:
                break
    except BadRequestError as error:
        body = str(error).encode()
        writer.write(
            b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
    except ConnectionError:
        pass  # the client went away; its receipt stands
    finally:
        writer.close()


def _answer(request: Request, receipts: ReceiptFile) -> Iterator[Step] | None:
    """The script of the answer, after the receipt is durable; None for a request that broke off."""
    endpoint = endpoint_of(request.method, request.target, request.header_names)
    model = endpoint.model or request.fields.get("model")
    named = model if isinstance(model, str) else None
    receipt = receipts.record(request, named)
    if not request.complete:
        return None
    rejection = None
    try:
        asked = parse(named or "").on_receipt(receipt.ordinal)
    except ValueError as error:
        asked, rejection = Behaviour(), str(error)
    ask = Ask(
        method=request.method,
        path=request.target,
        body=request.fields,
        body_bytes=request.body_bytes,
        files=request.files,
        model=named or "synthetic",
        receipt=receipt.n,
        at=receipt.at,
        behaviour=asked,
    )
    return script(ask, endpoint.format, deduplicated=receipt.deduplicated, rejection=rejection)


async def _play(steps: Iterator[Step], writer: asyncio.StreamWriter) -> bool:
    """True while the connection can carry another request."""
    for step in steps:
        match step:
            case bytes():
                writer.write(step)
                await writer.drain()
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case End.KEEP:
                return True
            case End.CUT:
                return False
            case End.RESET:
                await _reset(writer)
                return False
    raise AssertionError("a script ends with an End")


async def _reset(writer: asyncio.StreamWriter) -> None:
    """RST, but only after the peer's kernel has what was written: an RST discards what is still on its way."""
    connection = writer.get_extra_info("socket")
    patience_s = ACK_LIMIT_S
    while not writer.transport.is_closing() and _unacknowledged_bytes(connection.fileno()):
        if patience_s <= 0:
            break
        await asyncio.sleep(ACK_POLL_S)
        patience_s -= ACK_POLL_S
    if writer.transport.is_closing():
        return  # the client left first
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
    writer.transport.abort()


def _unacknowledged_bytes(descriptor: int) -> int:
    """SIOCOUTQ, tcp(7); Linux gives it the number of TIOCOUTQ."""
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    return int(count)
