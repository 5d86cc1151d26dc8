"""A lean provider for benchmarks: a fixed answer at once, or a stream whose every event says when it was written.

Not the synthetic provider: that one fsyncs a receipt for each request, so every target would be measured against its disk.
`GET /count` answers how many POSTs came, which shows that a target forwarded all that it answered.
"""

import asyncio
import re
import time
from contextlib import suppress
from typing import cast

import uvloop

EVENTS, INTERVAL_S = 50, 0.02  # of one stream
ANSWER = (
    b'{"id":"chatcmpl-bench","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"' + b"word " * 150 + b'"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":80,"completion_tokens":150,"total_tokens":230}}'
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","model":"bench","t":%d,'
    b'"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":%b}]}\n\n'
)
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class Provider(asyncio.Protocol):
    """Request after request on one connection; bodies come with a length."""

    posts = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._read = cast(asyncio.Transport, transport), bytearray()  # uvloop's own class

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            found = LENGTH.search(bytes(self._read[:end]))  # a copy: a match would pin the buffer
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self._read) < size:
                return
            self._answer(bytes(self._read[:size]))
            del self._read[:size]

    def _answer(self, request: bytes) -> None:
        if request.startswith(b"GET"):
            self._transport.write(whole(b"%d" % Provider.posts))
            return
        Provider.posts += 1
        if b'"stream":true' in request:
            self._transport.write(STREAM_HEAD)
            self._next(0)
        else:
            self._transport.write(whole(ANSWER))

    def _next(self, number: int) -> None:
        is_last = number == EVENTS
        data = EVENT % (time.monotonic_ns(), b'"stop"' if is_last else b"null") + b"data: [DONE]\n\n" * is_last
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) + b"0\r\n\r\n" * is_last)
        if not is_last:
            asyncio.get_running_loop().call_later(INTERVAL_S, self._next, number + 1)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", 0, backlog=1024)
    print(f"on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        uvloop.run(main())
