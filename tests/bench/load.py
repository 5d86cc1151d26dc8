"""The load generator, a process of its own: N connections, each sends its next request when the answer before is whole.

    python -m tests.bench.load PORT PATH CONNECTIONS SECONDS json|sse

Raw sockets on uvloop rather than wrk: wrk is often not installed, and the same generator everywhere keeps ratios comparable.
One core of Python drives some 20,000 requests a second, far above both proxies; only the `direct` rows are bounded by it.
Every request has a key of its own, so that sendonce forwards each. One JSON object on stdout.
"""

import asyncio
import json
import os
import re
import sys
import time
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any, Final, cast

import uvloop

LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
STAMP: Final = re.compile(rb'"t":(\d+)')
DRAIN_LIMIT_S: Final = 10  # for answers still on their way when time is up; they are not counted
PROMPT: Final = "Say it once. " * 20  # about 400 bytes of body, as in a short chat


@dataclass
class Tally:
    """What all connections saw. Times are in nanoseconds."""

    latencies: list[int] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)  # of each event of a stream, from the provider's write to our read
    errors: int = 0
    sent: int = 0


class Connection(asyncio.Protocol):
    """A closed loop over one socket."""

    def __init__(self, tally: Tally, path: str, deadline_ns: int, *, is_stream: bool) -> None:
        self._tally, self._deadline, self._is_stream = tally, deadline_ns, is_stream
        message: dict[str, Any] = {"model": "bench", "messages": [{"role": "user", "content": PROMPT}]}
        body = json.dumps(message | ({"stream": True} if is_stream else {}), separators=(",", ":")).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nAuthorization: Bearer bench\r\n"
            f"Content-Length: {len(body)}\r\nIdempotency-Key: bench-{os.urandom(6).hex()}-"
        )
        self._head, self._body, self._number = head.encode(), body, 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class
        self._send()

    def _send(self) -> None:
        self._read = bytearray()
        self._number += 1
        self._tally.sent += 1
        self._sent_at = time.monotonic_ns()
        self._transport.write(b"%b%d\r\n\r\n%b" % (self._head, self._number, self._body))

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        self._read += data
        if self._is_stream:
            self._tally.delays += [now - int(stamp) for stamp in STAMP.findall(data)]
        if not self._is_whole():
            return
        if not self._read.startswith(b"HTTP/1.1 200"):
            self._tally.errors += 1
        elif now <= self._deadline:
            self._tally.latencies.append(now - self._sent_at)
        if now < self._deadline:
            self._send()
        else:
            self._finish()

    def _is_whole(self) -> bool:
        end = self._read.find(b"\r\n\r\n")
        if end < 0:
            return False
        if (found := LENGTH.search(self._read, 0, end)) is not None:
            return len(self._read) >= end + 4 + int(found[1])
        return self._read.endswith(b"\r\n0\r\n\r\n")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if not self.done.done():
            self._tally.errors += 1
            self._finish()

    def _finish(self) -> None:
        self.done.set_result(None)
        self._transport.close()


async def main(port: int, path: str, connections: int, seconds: float, kind: str) -> dict[str, Any]:
    loop, tally, started = asyncio.get_running_loop(), Tally(), time.monotonic_ns()
    deadline = started + int(seconds * 1e9)
    made = [
        await loop.create_connection(
            lambda: Connection(tally, path, deadline, is_stream=kind == "sse"), "127.0.0.1", port
        )
        for _ in range(connections)
    ]
    _, late = await asyncio.wait([connection.done for _, connection in made], timeout=seconds + DRAIN_LIMIT_S)
    return {
        "rps": len(tally.latencies) / seconds,
        "sent": tally.sent,
        "errors": tally.errors + len(late),
        **_spread("latency", tally.latencies),
        **_spread("event_delay", tally.delays),
    }


def _spread(name: str, values_ns: list[int]) -> dict[str, float]:
    if len(values_ns) < 2:
        return {}
    cut = quantiles(values_ns, n=100)
    return {f"{name}_p50_us": cut[49] / 1e3, f"{name}_p99_us": cut[98] / 1e3}


if __name__ == "__main__":
    port, path, connections, seconds, kind = sys.argv[1:]
    print(json.dumps(uvloop.run(main(int(port), path, int(connections), float(seconds), kind))))
