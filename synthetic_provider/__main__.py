"""Arguments, and the line that says where it listens."""

import argparse
import asyncio
import os
import signal
from pathlib import Path

from synthetic_provider.receipts import ReceiptFile
from synthetic_provider.server import listen


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m synthetic_provider", description="Imitates model providers for tests."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, required=True, help="0 takes a free port; the first line of output names it"
    )
    parser.add_argument("--receipts", type=Path, required=True, help="file that gets one line for each request")
    parser.add_argument("--dedupe", action="store_true", help="answer a known Idempotency-Key without a new receipt")
    arguments = parser.parse_args()
    try:
        receipts = ReceiptFile(arguments.receipts, dedupe=arguments.dedupe)
    except ValueError as error:
        parser.error(str(error))
    asyncio.run(_run(arguments.host, arguments.port, receipts))


async def _run(host: str, port: int, receipts: ReceiptFile) -> None:
    # At once, streams in flight and holds included: receipts are durable before any answer, so nothing is left to tidy.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    server = await listen(host, port, receipts)
    bound = server.sockets[0].getsockname()[1]
    print(f"synthetic provider on http://{host}:{bound}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    main()
