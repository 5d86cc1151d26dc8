"""A raw provider that misbehaves on request: the last segment of the path names its answer and how the connection goes on."""

import asyncio
import gzip
import socket
import struct
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\n"
GZIPPED = gzip.compress(b"x" * 1000, mtime=0)
SMALL = OK + b"Content-Length: 2\r\n\r\nok"

# What the provider answers by the last segment of the path: bytes, and how the connection goes on after them.
ANSWERS: dict[str, tuple[bytes, str]] = {
    "length": (OK + b"Content-Length: 5\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nX-Raw: \xe9\xff\r\n\r\nhello", "stay"),
    "chunked": (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nX-Trailer: t\r\n\r\n", "stay"),
    "close": (OK + b"\r\nhello", "fin"),
    "nocontent": (b"HTTP/1.1 204 No Content\r\n\r\n", "stay"),
    "notmodified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\n\r\n", "stay"),
    "head": (OK + b"Content-Length: 12345\r\n\r\n", "stay"),
    "early103": (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + SMALL, "stay"),
    "reason": (b"HTTP/1.1 299 Odd   Reason \xe9\r\nContent-Length: 0\r\n\r\n", "stay"),
    "switch101": (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw", "stay"),
    "gzip": (OK + b"Content-Encoding: gzip\r\nContent-Length: 29\r\n\r\n" + GZIPPED, "stay"),
    "redirect": (b"HTTP/1.1 307 Go\r\nLocation: /length\r\nContent-Length: 0\r\n\r\n", "stay"),
    "resetbefore": (b"", "rst"),
    "finbefore": (b"", "fin"),
    "finmidhead": (OK + b"X-A: 1\r\nX-B", "fin"),
    "resetmidhead": (OK + b"X-A: 1\r\nX-B", "rst"),
    "twolengths": (OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok", "stay"),
    "finmidbody": (OK + b"Content-Length: 100\r\n\r\n" + b"b" * 40, "fin"),
    "resetmidbody": (OK + b"Content-Length: 100\r\n\r\n" + b"b" * 40, "rst"),
    "badchunk": (OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbbbb\r\nzz\r\n", "stay"),
    "begun": (OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbbbb\r\n", "stay"),
    "halfchunk": (OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbbbb\r\n", "fin"),
    "mute": (b"", "stay"),
}


def reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass
class Provider:
    """Records every request whose head came whole; `writers` are its open connections, newest last."""

    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    ended: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    base: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.connected.set()
        end = "stay"
        try:
            while end == "stay":
                end = await self.exchange(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.ended.put_nowait(None)
        finally:
            writer.close()

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0)
        name = head.split(b" ")[1].decode().rpartition("/")[2].partition("?")[0]
        self.arrived.put_nowait(name)
        if name in {"resetinbody", "stallinbody"}:
            await reader.readexactly(1_000)
            if name == "stallinbody":
                await self.resume.wait()
                await reader.readexactly(length)
            reset(writer)
            return "rst"
        self.bodies.append(await reader.readexactly(length))
        answer, end = ANSWERS.get(name, (SMALL, "stay"))
        writer.write(answer)
        await writer.drain()
        if end == "rst":
            reset(writer)
        return end
