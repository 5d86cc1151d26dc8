"""A client gives up and asks again at once, unmarked, on a new connection: its FIN may come behind its retry, and is waited for.

Taken for a deliberate sample, a retry would cost a second send. Directly, and through a relay that passes the FIN on late.
"""

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

import pytest
from blake3 import blake3

from tests.harness.connections import connected, read_answer, read_until, receipts_of, request_bytes
from tests.harness.figures import noted
from tests.harness.neighbours import beside
from tests.harness.processes import Answer, Rig, chat
from tests.harness.relay import relaying

CHAT: Final = "/openai/v1/chat/completions"
AT_ONCE: Final = 24  # clients; each try takes as long as the provider withholds its answer
# Far longer than a FIN takes: an answer that came before it would have been delivered, to the relay.
SILENT: Final = "synthetic/hold=0.4"
HEAD_ONLY: Final = "synthetic/delay=0.4"
FIN_DELAY_S: Final = 0.005  # a tenth of duplicate_settle_ms = 50
HELD_BACK_S: Final = 0.2  # four times as long as that
UNSENT_BYTES: Final = 200_000  # more than a relay reads at once
SEND_BUFFER_BYTES: Final = 1_048_576  # the kernel takes all of it, so a close leaves it with bytes to send
NUMBERS: Final = count(1)


@dataclass(frozen=True)
class Leaving:
    """When the client gives its first try up. Its FIN is behind all it sent, whatever of that has left its kernel."""

    model: str
    await_: Callable[[socket.socket], object]
    filler_bytes: int = 0


AFTER_HEAD: Final = "with the answer's head read"
LEAVINGS: Final = {
    AFTER_HEAD: Leaving(HEAD_ONLY, lambda client: read_until(client, b"\r\n\r\n")),
    "right behind its last byte": Leaving(SILENT, lambda _: None),
    "behind unsent bytes": Leaving(SILENT, lambda _: None, UNSENT_BYTES),
}
whenever = pytest.mark.parametrize("leaving", LEAVINGS)


def give_up_and_retry(port: int, body: bytes, leaving: Leaving) -> Answer:
    """The retry follows as fast as a client can."""
    data = request_bytes(CHAT, body)
    with connected(port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        client.sendall(data)
        leaving.await_(client)
    with connected(port) as client:
        client.sendall(data)
        return read_answer(client)


def taken_for_samples(rig: Rig, port: int, leaving: Leaving, tries: int) -> int:
    """How many of so many retries were sent, by the provider's receipts; every client has got an answer."""
    filler = "x" * leaving.filler_bytes
    bodies = [chat(leaving.model, f"race {next(NUMBERS)} {filler}") for _ in range(tries)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda body: give_up_and_retry(port, body, leaving), bodies))
    assert {answer.status for answer in answers} == {200}
    found = Counter(line["body_blake3"] for line in rig.provider_receipts())
    sent = [found[blake3(body).hexdigest()] for body in bodies]
    assert min(sent) >= 1
    return sum(sent) - tries


@contextmanager
def through_a_relay(shared: Rig, settings: str = "", fin_delay_s: float = FIN_DELAY_S) -> Iterator[tuple[Rig, int]]:
    with beside(shared, settings=settings) as rig, relaying(rig.port, fin_delay_s=fin_delay_s) as relay:
        yield rig, relay.port


@whenever
def test_retry_right_behind_a_fin_is_not_taken_for_a_sample(shared: Rig, leaving: str) -> None:
    """On connections of the client's own."""
    assert taken_for_samples(shared, shared.port, LEAVINGS[leaving], 30) == 0


@whenever
def test_retry_that_overtakes_the_fin_behind_a_relay_is_not_taken_for_a_sample(shared: Rig, leaving: str) -> None:
    """`duplicate_settle_ms` is waited for the FIN. Here so long that a busy machine's relay keeps within it, too."""
    with through_a_relay(shared, "[timeouts]\nduplicate_settle_ms = 1000\n") as (rig, port):
        assert taken_for_samples(rig, port, LEAVINGS[leaving], 50) == 0


def test_first_try_that_its_retry_has_overtaken_is_not_sent_as_a_sample(shared: Rig) -> None:
    """A relay may pass it on behind its own retry, FIN and all: nobody waits for it, and the retry's answer is under way."""
    body = chat("synthetic/hold=1", "overtaken")
    data = request_bytes(CHAT, body)
    with connected(shared.port) as retry:
        retry.sendall(data)
        shared.await_receipt(body)
        with connected(shared.port) as first_try:
            first_try.sendall(data)
        assert read_answer(retry).disposition == "forwarded"
    shared.settled()
    assert len(receipts_of(shared, body)) == 1


@pytest.mark.parametrize(
    ("settings", "fin_delay_s"),
    [("[timeouts]\nduplicate_settle_ms = 0.01\n", HELD_BACK_S), ("", HELD_BACK_S)],
    ids=["next to nothing waited for", "FIN held for longer"],
)
def test_fin_that_is_not_waited_for_long_enough_makes_samples_of_retries(
    shared: Rig, settings: str, fin_delay_s: float
) -> None:
    """So the checks above can fail; and the limit of what a proxy behind such a relay can know."""
    with through_a_relay(shared, settings, fin_delay_s) as (rig, port):
        assert taken_for_samples(rig, port, LEAVINGS[AFTER_HEAD], 50) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("leaving", "tries"), list(zip(LEAVINGS, (1500, 1200, 300), strict=True)))
def test_three_thousand_retries_behind_a_relay_are_not_taken_for_samples(shared: Rig, leaving: str, tries: int) -> None:
    """The campaign, in three parts."""
    began = time.monotonic()
    with through_a_relay(shared) as (rig, port):
        taken = taken_for_samples(rig, port, LEAVINGS[leaving], tries)
    seconds = round(time.monotonic() - began, 1)
    figure = {"leaving": leaving, "tries": tries, "fin_delay_s": FIN_DELAY_S, "taken_for_samples": taken}
    noted(kind="fin race", **figure, seconds=seconds)
    assert taken == 0
