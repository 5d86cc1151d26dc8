"""Bodies of 200 MB, both ways, whole at both ends and in the ledger; and uploads that an SDK sends again."""

import http.client
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from blake3 import blake3

from tests.harness.connections import CALLER
from tests.harness.crashes import CHAT_PATH, completed
from tests.harness.kept_bodies import digest_of_pieces, is_kept, read_back
from tests.harness.processes import ANSWER_LIMIT_S, Rig, chat
from tests.harness.sdks import openai_client
from tests.harness.sent_answers import stream_of

SIZE: Final = 200_000_000
MIB: Final = 1024 * 1024
GIVES_UP_S: Final = 2.0
HELD: Final = "synthetic/hold=3"  # longer than the client waits, shorter than its second try does


def random_file(path: Path, size: int) -> str:
    """Its digest; nothing of it compresses, no piece comes twice."""
    whole = blake3()
    with path.open("wb") as file:
        for start in range(0, size, MIB):
            piece = os.urandom(min(MIB, size - start))
            whole.update(piece)
            file.write(piece)
    return whole.hexdigest()


class FilePart:
    """Takes a form of one file in pieces and hashes that file: what stands between the last head and the last delimiter."""

    def __init__(self, size: int) -> None:
        self._whole, self._missing = blake3(), size
        self._head: bytearray | None = bytearray()

    def take(self, piece: bytes) -> None:
        if self._head is not None:
            self._head += piece
            found = self._head.find(b"filename=")
            if found < 0 or (end := self._head.find(b"\r\n\r\n", found)) < 0:
                return
            piece, self._head = bytes(self._head[end + 4 :]), None
        taken = piece[: self._missing]
        self._whole.update(taken)
        self._missing -= len(taken)

    def digest(self) -> str:
        assert self._missing == 0
        return self._whole.hexdigest()


def test_large_upload_of_an_sdk_is_whole_at_the_provider_and_in_the_ledger(shared: Rig, tmp_path: Path) -> None:
    """The form's digest is the same on both sides; the file in it, read back from the ledger, is the file on the disk."""
    path = tmp_path / "large.bin"
    digest = random_file(path, SIZE)
    with path.open("rb") as file:
        answer = openai_client(shared, max_retries=0).files.create(file=file, purpose="batch")
    assert (answer.bytes, answer.filename) == (SIZE, "large.bin")
    row, part = completed(shared), FilePart(SIZE)
    (receipt,) = [each for each in shared.provider_receipts() if each["body_bytes"] > SIZE]
    assert row["body_blake3"] == receipt["body_blake3"]
    assert is_kept(shared, row["body_blake3"])
    read_back(shared, row["body_blake3"], part.take)
    assert part.digest() == digest


def test_large_stream_is_whole_at_the_client_and_in_the_ledger(shared: Rig) -> None:
    """What the provider wrote for its receipt, made again, has the digest of what came and of what is kept."""
    body = chat(f"synthetic/size={SIZE},chunks=20000", "a large stream", stream=True)
    about = {"Content-Type": "application/json", "Authorization": CALLER}
    with closing(http.client.HTTPConnection("127.0.0.1", shared.port, timeout=ANSWER_LIMIT_S)) as connection:
        connection.request("POST", CHAT_PATH, body, about)
        response = connection.getresponse()
        came = digest_of_pieces(iter(lambda: response.read(MIB), b""))
    row = completed(shared)
    (receipt,) = [each for each in shared.provider_receipts() if each["body_blake3"] == row["body_blake3"]]
    (attempt,) = shared.show(row["call_id"])["attempt_rows"]
    assert row["call_id"] == response.getheader("Sendonce-Call")
    assert came == attempt["response_blake3"] == digest_of_pieces(stream_of(receipt, body))
    assert attempt["response_bytes"] > SIZE
    assert is_kept(shared, attempt["response_blake3"])


def upload(client: Any) -> Any:
    """The API knows no model here; the provider looks for one all the same."""
    return client.files.with_raw_response.create(
        file=("batch.jsonl", b'{"a": 1}\n' * 1000), purpose="batch", extra_body={"model": HELD}
    )


def transcription(client: Any) -> Any:
    return client.audio.transcriptions.with_raw_response.create(model=HELD, file=("a.wav", b"RIFF\x00\xff" * 1000))


@pytest.mark.parametrize("ask", [upload, transcription], ids=lambda ask: ask.__name__)
def test_sdks_retry_of_an_upload_gets_the_answer_of_its_first_try(shared: Rig, ask: Callable[[Any], Any]) -> None:
    """Each try's body has a boundary of its own, so no two of them are equal bytes; the provider sees one."""
    before = len(shared.provider_receipts())
    raw = ask(openai_client(shared, timeout=GIVES_UP_S, max_retries=2))
    row = completed(shared)
    (receipt,) = shared.provider_receipts()[before:]
    assert raw.retries_taken >= 1
    assert raw.headers["sendonce-disposition"] in ("attached", "replayed")
    assert raw.headers["sendonce-call"] == row["call_id"]
    assert f"{receipt['n']:024d}" in raw.text or f"receipt {receipt['n']}" in raw.text
    assert receipt["body_blake3"] == row["body_blake3"]
    headers = {name.lower(): value for name, value in shared.show(row["call_id"])["manifest"]["headers"]}
    assert "boundary=" in headers["content-type"] != raw.http_request.headers["content-type"]
