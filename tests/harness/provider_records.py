"""A synthetic provider without a proxy before it: what it wrote down, and what it says when it is asked after the fact."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.processes import ANSWER_LIMIT_S, Answer, Process, start_provider, until

KEY = "sk-test-caller"
OPENAI_ADMIN, ANTHROPIC_ADMIN = "sk-admin-test", "sk-ant-admin-test"


def usage_lines(receipts: Path) -> list[dict[str, Any]]:
    """The whole lines of the usage file beside this receipts file."""
    file = receipts.with_name(f"{receipts.name}.usage")
    whole, _, _ = file.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


@dataclass
class Direct:
    process: Process
    receipts_file: Path

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def receipts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.receipts_file.read_text().splitlines()]

    def usage(self) -> list[dict[str, Any]]:
        return usage_lines(self.receipts_file)

    def ended(self, n: int) -> dict[str, Any]:
        """The usage record of this receipt, once its generation ended."""
        return until(lambda: [line for line in self.usage() if line["n"] == n])[0]

    def ask(self, method: str, path: str, body: Any = None, key: str | None = KEY, **headers: str) -> Answer:
        """One request on a connection of its own; `key` is a bearer key."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_LIMIT_S)
        about = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body).encode(), about | headers)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, key: str | None = KEY, **headers: str) -> Answer:
        return self.ask("GET", path, None, key, **headers)


@contextmanager
def direct(directory: Path, *options: str) -> Iterator[Direct]:
    """Fails the test when the provider wrote to stderr, where asyncio reports its bugs."""
    receipts = directory / "provider.jsonl"
    process = start_provider(receipts, *options)
    try:
        yield Direct(process, receipts)
    finally:
        process.close()
    assert process.complained == ""
