"""What sendonce is compared with: the plainest pass-through of aiohttp's server and client on uvloop. It records nothing."""

import asyncio
import sys
from typing import Final

import aiohttp
import uvloop
from aiohttp import web

HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "te", "transfer-encoding", "upgrade", "host", "content-length"}
)


async def main(provider: str) -> None:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:

        async def forward(request: web.BaseRequest) -> web.StreamResponse:
            headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP]
            body = await request.read()
            async with session.request(
                request.method, provider + request.path_qs, headers=headers, data=body
            ) as answer:
                response = web.StreamResponse(status=answer.status)
                response.headers.extend(
                    [(name, value) for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP]
                )
                if answer.content_length is None:
                    response.enable_chunked_encoding()
                else:
                    response.content_length = answer.content_length
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response

        server = web.Server(forward, access_log=None)
        listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, backlog=1024)
        print(f"on http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", flush=True)
        await listening.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
