"""Usage records: what each generation counts for its bill, beside the receipts in the file `<receipts>.usage`.

One line of JSON when a generation ends, appended and fsynced before the end of its answer is sent. A receipt says that
a request came, a usage record what became of it: a process killed between the two leaves a receipt without a record, and
its generation is billed to nobody. An Anthropic batch has one record for each of its requests, under the one receipt.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import orjson
from blake3 import blake3

from synthetic_provider.receipts import fsync_directory
from synthetic_provider.request import Request

CREDENTIAL_DIGITS = 12  # enough to tell callers apart, too few to find a key by


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """`input_tokens` is all input, the cached included. What is not `billed` has no tokens."""

    n: int  # the receipt's
    at: str  # when it ended; ISO 8601, UTC
    started_at: str
    dialect: str  # the format's name
    model: str  # as answered
    requested_model: str
    input_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    billed: bool
    how: str
    status: int | None  # of the answer, also of one that nobody was left to read; None where none began
    api_key: str | None
    service_tier: str | None
    batch: bool

    @property
    def ended(self) -> datetime:
        return datetime.fromisoformat(self.at)

    @classmethod
    def of_line(cls, line: bytes) -> Self:
        values: dict[str, Any] = orjson.loads(line)
        record = cls(**values)
        datetime.fromisoformat(record.at)
        return record


class UsageFile:
    """The file's only writer, and all that it holds. Opening cuts off a torn last line.

    Raises ValueError, and leaves the file as it is, when a whole line of it is no usage record.
    """

    def __init__(self, path: Path) -> None:
        known = path.read_bytes() if path.exists() else b""
        whole = known[: known.rfind(b"\n") + 1]
        try:
            self._records = [UsageRecord.of_line(line) for line in whole.splitlines()]
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{path} holds a line that is no usage record: name another file with --receipts."
            ) from error
        self._file = path.open("ab")
        self._file.truncate(len(whole))
        os.fsync(self._file.fileno())
        fsync_directory(path.parent)

    @property
    def records(self) -> Sequence[UsageRecord]:
        return self._records

    def record(self, records: Sequence[UsageRecord]) -> None:
        """Durable on return."""
        self._file.writelines(orjson.dumps(asdict(record)) + b"\n" for record in records)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._records += records


def credential_of(request: Request) -> str | None:
    """As the providers take it: a bearer key, `x-api-key`, or Gemini's `x-goog-api-key`."""
    authorization = request.header("authorization")
    if authorization is not None:
        scheme, _, token = authorization.partition(" ")
        return token.strip() if scheme.lower() == "bearer" else authorization
    return request.header("x-api-key") or request.header("x-goog-api-key")


def api_key_id(credential: str | None) -> str | None:
    return None if credential is None else "key_" + blake3(credential.encode()).hexdigest()[:CREDENTIAL_DIGITS]
