"""Sockets: read a request, write its receipt, play the script of its answer."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

from synthetic_provider.asked import Asked
from synthetic_provider.behaviour import Behaviour, parse
from synthetic_provider.client import Client, ClientReader
from synthetic_provider.formats import endpoint_of
from synthetic_provider.generation import Books, Generation
from synthetic_provider.lookups import looked_up
from synthetic_provider.playing import play
from synthetic_provider.receipts import Receipt, ReceiptFile
from synthetic_provider.request import HEAD_LIMIT_BYTES, BadRequestError, Request, read_request
from synthetic_provider.script import Step, script
from synthetic_provider.usage import credential_of
from synthetic_provider.wire import Ask, Format

BACKLOG = 1024  # connections; a test may open hundreds at once


@dataclass(frozen=True, slots=True)
class Provider:
    receipts: ReceiptFile
    books: Books
    count_errors: bool = False  # 4xx and 5xx answers count as requests of the usage export


async def listen(host: str, port: int, provider: Provider) -> asyncio.Server:
    def connecting() -> asyncio.StreamReaderProtocol:
        reader = ClientReader(HEAD_LIMIT_BYTES)

        async def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _serve(reader, writer, provider)

        return asyncio.StreamReaderProtocol(reader, connected)

    return await asyncio.get_running_loop().create_server(connecting, host, port, backlog=BACKLOG)


async def _serve(reader: ClientReader, writer: asyncio.StreamWriter, provider: Provider) -> None:
    """One connection, request after request."""
    client = Client(reader.gone, writer)
    try:
        while request := await read_request(reader, writer):
            answer = _answer(request, provider)
            if answer is None or not await play(answer.steps, client, answer.generation) or request.closes:
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


@dataclass(frozen=True, slots=True)
class Answer:
    steps: Iterator[Step]
    generation: Generation | None = None


def _answer(request: Request, provider: Provider) -> Answer | None:
    """After the receipt is durable; None for a request that broke off."""
    endpoint = endpoint_of(request.method, request.target, request.header_names)
    model = endpoint.model or request.fields.get("model")
    named = model if isinstance(model, str) else None
    receipt = provider.receipts.record(request, named, generates=endpoint.format.generates)
    if not request.complete:
        return None
    found = looked_up(Asked(request, receipt, provider.books, count_errors=provider.count_errors))
    if found is not None:
        return Answer(found)
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
    generation = _generation(ask, endpoint.format, request, receipt, provider)
    if generation is not None and generation.background and not generation.streamed:
        # The answer, which says `queued`, comes at once; the pauses are the generation's own.
        ask = replace(ask, behaviour=replace(asked, hold_s=0.0, delay_s=0.0, interval_s=0.0))
    return Answer(script(ask, endpoint.format, deduplicated=receipt.deduplicated, rejection=rejection), generation)


def _generation(ask: Ask, answers: Format, request: Request, receipt: Receipt, provider: Provider) -> Generation | None:
    """A repeated answer generates nothing."""
    if receipt.deduplicated or not answers.generates:
        return None
    return Generation(ask, answers, credential_of(request), provider.books)
