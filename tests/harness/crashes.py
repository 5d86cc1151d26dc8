"""What crash tests ask: hold a request open, wait for a fact, compare what the provider and the ledger say of one body."""

import http.client
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from blake3 import blake3

from tests.harness.processes import ANSWER_LIMIT_S, Answer, Rig, until

# How a client notices that its answer will not come whole.
CUT: Final = (ConnectionError, http.client.HTTPException)
CHAT_PATH: Final = "/openai/v1/chat/completions"
MESSAGES_PATH: Final = "/anthropic/v1/messages"


def digest_of(body: bytes) -> str:
    return blake3(body).hexdigest()


def receipts_of(rig: Rig, body: bytes) -> list[dict[str, Any]]:
    """The provider's receipts for exactly these bytes."""
    return [receipt for receipt in rig.provider_receipts() if receipt["body_blake3"] == digest_of(body)]


def call_of(rig: Rig) -> dict[str, Any]:
    """The row of the newest call."""
    return rig.calls()[0]


def completed(rig: Rig) -> dict[str, Any]:
    """The row of the newest call once it is completed: the client has its answer a moment before."""
    return until(lambda: next((row for row in rig.calls()[:1] if row["stage"] == "completed"), None)) or {}


def records_of(rig: Rig, call: str, kind: str) -> list[dict[str, Any]]:
    """The data of a call's events of one kind, read from the file as FORMAT.md describes it."""
    with closing(sqlite3.connect(f"file:{rig.state_dir / 'ledger.db'}?mode=ro", uri=True)) as ledger:
        rows = ledger.execute("SELECT record FROM event WHERE call_id = ? ORDER BY seq", (call,)).fetchall()
    records = [json.loads(record) for (record,) in rows]
    return [record["data"] for record in records if record["kind"] == kind]


def kinds_of(rig: Rig, call: str) -> list[str]:
    return [event["kind"] for event in rig.show(call)["events"]]


def events_of(rig: Rig) -> int:
    """How many events the ledger holds."""
    return int(rig.status()["events"])


def begin(rig: Rig, path: str, body: bytes, headers: dict[str, str] | None = None) -> http.client.HTTPConnection:
    """Sends a whole request on a connection of its own and does not wait for the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=ANSWER_LIMIT_S)
    about = {"Content-Type": "application/json", "Authorization": "Bearer sk-test-caller", **(headers or {})}
    connection.request("POST", path, body, about)
    return connection


@contextmanager
def held(
    rig: Rig, path: str, body: bytes, headers: dict[str, str] | None = None
) -> Iterator[http.client.HTTPConnection]:
    """A request that the provider has, and holds."""
    before = len(receipts_of(rig, body))
    with closing(begin(rig, path, body, headers)) as connection:
        until(lambda: len(receipts_of(rig, body)) > before)
        yield connection


def kill_while_held(rig: Rig, path: str, body: bytes, headers: dict[str, str] | None = None) -> None:
    """SIGKILL to the proxy while the provider holds the request; the next proxy runs when this returns."""
    with held(rig, path, body, headers):
        rig.restart()


def read_until_cut(connection: http.client.HTTPConnection) -> tuple[Answer | None, bytes]:
    """The whole answer, or None and what came before the cut."""
    try:
        with connection.getresponse() as response:
            body = response.read()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, body), body
    except http.client.IncompleteRead as cut:
        return None, cut.partial
    except CUT:
        return None, b""


def sentence_of(answer: Answer) -> str:
    """What a client shows: the message of the error envelope."""
    return str(json.loads(answer.body)["error"]["message"])
