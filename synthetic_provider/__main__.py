"""Arguments, and the line that says where it listens."""

import argparse
import asyncio
import os
import signal
from pathlib import Path

from synthetic_provider.generation import Books
from synthetic_provider.receipts import ReceiptFile
from synthetic_provider.server import Provider, listen
from synthetic_provider.usage import UsageFile


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m synthetic_provider", description="Imitates model providers for tests."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, required=True, help="0 takes a free port; the first line of output names it"
    )
    parser.add_argument(
        "--receipts",
        type=Path,
        required=True,
        help="file that gets one line for each request; beside it FILE.usage, one line for each generation that ended",
    )
    parser.add_argument("--dedupe", action="store_true", help="answer a known Idempotency-Key without a new receipt")
    parser.add_argument(
        "--count-errors", action="store_true", help="count 4xx and 5xx answers as requests in the usage export"
    )
    arguments = parser.parse_args()
    path: Path = arguments.receipts
    try:
        receipts = ReceiptFile(path, dedupe=arguments.dedupe)
        books = Books(UsageFile(path.with_name(f"{path.name}.usage")))
    except ValueError as error:
        parser.error(str(error))
    asyncio.run(_run(arguments.host, arguments.port, Provider(receipts, books, count_errors=arguments.count_errors)))


async def _run(host: str, port: int, provider: Provider) -> None:
    # At once, streams in flight and holds included: receipts are durable before any answer, so nothing is left to tidy.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    server = await listen(host, port, provider)
    bound = server.sockets[0].getsockname()[1]
    print(f"synthetic provider on http://{host}:{bound}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    main()
