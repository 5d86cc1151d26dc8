"""Provider receipts: the provider's own account of what reached it.

One line of JSON for each request, appended and fsynced before the request is held or answered. A line holds header
names but no header values except the idempotency key's: credentials are never written. `generates` says whether its
endpoint generates or makes a job; lines of an older version lack it.
"""

import os
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from synthetic_provider.request import Request


@dataclass(frozen=True, slots=True)
class Receipt:
    n: int
    ordinal: int  # which request with this very body it is, from 1
    at: datetime
    deduplicated: bool  # no line was written: `n` is the first request's with this idempotency key


class ReceiptFile:
    """The file's only writer. Opening cuts off a torn last line, left by a kill, and goes on from the last whole one.

    Raises ValueError, and leaves the file as it is, when a whole line of it is no receipt.
    """

    def __init__(self, path: Path, *, dedupe: bool) -> None:
        self._dedupe = dedupe
        self._last_n = 0
        self._bodies: Counter[str] = Counter()
        self._first_of_key: dict[str, int] = {}
        known = path.read_bytes() if path.exists() else b""
        whole = known[: known.rfind(b"\n") + 1]
        for line in whole.splitlines():
            try:
                self._remember(orjson.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f"{path} holds a line that is no receipt: name another file with --receipts."
                ) from error
        self._file = path.open("ab")
        self._file.truncate(len(whole))
        os.fsync(self._file.fileno())
        fsync_directory(path.parent)

    def record(self, request: Request, model: str | None, *, generates: bool) -> Receipt:
        """Durable on return. `model` is None where the request names none; `generates` is its endpoint's (formats.py)."""
        at = datetime.now(UTC)
        digest = request.body_blake3
        key = request.header("idempotency-key")
        first = self._first_of_key.get(key) if self._dedupe and request.complete and key is not None else None
        if first is not None:
            self._bodies[digest] += 1
            return Receipt(first, self._bodies[digest], at, deduplicated=True)
        stream = request.fields.get("stream")
        line = {
            "n": self._last_n + 1,
            "method": request.method,
            "path": request.target,
            "idempotency_key": key,
            "body_blake3": digest,
            "body_bytes": request.body_bytes,
            "at": at.isoformat(),
            "model": model,
            "stream": stream if isinstance(stream, bool) else None,
            "header_names": sorted(request.header_names),
            "complete": request.complete,
            "generates": generates,
        }
        self._file.write(orjson.dumps(line) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._remember(line)
        return Receipt(self._last_n, self._bodies[digest], at, deduplicated=False)

    def _remember(self, line: dict[str, Any]) -> None:
        self._last_n = line["n"]
        if line["complete"]:
            self._bodies[line["body_blake3"]] += 1
            if line["idempotency_key"] is not None:
                self._first_of_key.setdefault(line["idempotency_key"], line["n"])


def fsync_directory(path: Path) -> None:
    """A new file survives a power cut only once its directory entry does."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
