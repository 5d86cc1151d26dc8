"""A handler served on a real socket by aiohttp as the proxy sets it up, and clients that write and read raw bytes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from proxy.connections import DataServer

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, data: bytes, until: bytes) -> bytes:
        self.writer.write(data)
        return await self.reader.readuntil(until)

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        return await self.reader.read()


Connect = Callable[[Handler], Awaitable[Client]]


@asynccontextmanager
async def connections(header_timeout_s: float = 10) -> AsyncIterator[Connect]:
    """What serves a handler and gives a client that is connected to it."""
    servers: list[tuple[web.Server, asyncio.Server]] = []
    clients: list[Client] = []

    async def serve(handler: Handler) -> Client:
        server = DataServer(handler, lambda _transport, _error: None, header_timeout_s)
        listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
        servers.append((server, listener))
        clients.append(Client(*await asyncio.open_connection(*listener.sockets[0].getsockname()[:2], limit=2**25)))
        return clients[-1]

    try:
        yield serve
    finally:
        for client in clients:
            client.writer.transport.abort()
        for server, listener in servers:
            listener.close()
            await server.shutdown(0.1)
