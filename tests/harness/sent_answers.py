"""What the synthetic provider put on the wire for one of its receipts, made again: its answers are a function of them."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from synthetic_provider.behaviour import parse
from synthetic_provider.filler import pieces
from synthetic_provider.formats import endpoint_of
from synthetic_provider.wire import Ask


def ask_of(receipt: dict[str, Any], body: bytes = b"{}") -> Ask:
    """The ask as the provider saw it; `body` only matters where the answer repeats something of it."""
    at, model = datetime.fromisoformat(receipt["at"]), receipt["model"]
    return Ask(
        receipt["method"], receipt["path"], json.loads(body), len(body), (), model, receipt["n"], at, parse(model)
    )


def stream_of(receipt: dict[str, Any], body: bytes) -> Iterator[bytes]:
    """The body of a streamed answer, in pieces."""
    stream = endpoint_of(receipt["method"], receipt["path"], ()).format.stream
    assert stream is not None
    parts = stream(ask_of(receipt, body))
    for part in (parts.opening, *parts.chunks, parts.ending):
        yield from pieces(part)
