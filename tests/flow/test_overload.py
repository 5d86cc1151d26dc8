"""Too many at once: 503 `overloaded` proves that nothing was sent, and what it owes is one first try, no more."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.harness.connections import connected, read_answer, read_until, receipts_of, request_bytes, status_of
from tests.harness.narrow import LIMITED
from tests.harness.neighbours import beside, process_of
from tests.harness.processes import Process, Rig, chat, message, until

CHAT, MESSAGES = "/openai/v1/chat/completions", "/anthropic/v1/messages"
ONE_AT_A_TIME = "[limits]\nadmitted_requests = 1\n"
RETRY = {"x-stainless-lang": "python", "x-stainless-retry-count": "1"}
FIRST_TRY = {"x-stainless-lang": "python", "x-stainless-retry-count": "0"}
SLOW = "synthetic/chunks=20,interval=0.05"  # alive while its client leaves and comes back
ENDLESS = "synthetic/chunks=100000,interval=0.02"  # its place is free once a piece cannot be written any more
HANDED_OVER = ("attached", "replayed")
CLIENTS = 60


@pytest.fixture(scope="module")
def narrow(shared: Rig) -> Iterator[Rig]:
    """Admits one request at a time."""
    with beside(shared, settings=ONE_AT_A_TIME) as made:
        yield made


def until_free(rig: Rig) -> None:
    """Until the one place is free. The probe has a key of its own, so that it owes and claims nothing else."""
    until(lambda: rig.chat(chat(text="is it free"), {"Idempotency-Key": "probe"}).status == 200)


def refuse_while_full(rig: Rig, path: str, body: bytes, headers: dict[str, str]) -> None:
    """The request meets a full house once; afterwards there is room."""
    with connected(rig.port) as guest:
        guest.sendall(request_bytes(CHAT, chat(ENDLESS, f"in the place of {body!r} {headers}", stream=True)))
        read_until(guest, b"receipt")
        refused = rig.post(path, body, headers)
    assert (refused.status, refused.code) == (503, "overloaded")
    assert (refused.headers["x-should-retry"], refused.headers["retry-after"]) == ("true", "1")
    until_free(rig)


def ask_and_leave(rig: Rig, path: str, body: bytes, headers: dict[str, str]) -> None:
    """The provider has it, its client is gone, and its place is free."""
    with connected(rig.port) as client:
        client.sendall(request_bytes(path, body, headers))
        read_until(client, b"receipt")
    until_free(rig)


@pytest.mark.parametrize(("path", "make"), [(CHAT, chat), (MESSAGES, message)])
def test_retry_of_an_owed_first_try_attaches_to_it(narrow: Rig, path: str, make: Callable[..., bytes]) -> None:
    """Refused once, forwarded once: the retry of what was forwarded is no first try any more."""
    body = make(SLOW, "owed", stream=True)
    refuse_while_full(narrow, path, body, FIRST_TRY)
    assert receipts_of(narrow, body) == []
    ask_and_leave(narrow, path, body, RETRY)  # the first try that was owed
    again = narrow.post(path, body, RETRY)
    assert (again.status, again.disposition in HANDED_OVER) == (200, True)
    assert len(receipts_of(narrow, body)) == 1


def test_overloaded_retry_of_a_live_call_is_no_first_try(narrow: Rig) -> None:
    """It was sent already: that its retry met a full house does not make the next retry a request of its own."""
    body = chat(SLOW, "sent before the house was full", stream=True)
    ask_and_leave(narrow, CHAT, body, FIRST_TRY)
    refuse_while_full(narrow, CHAT, body, RETRY)
    again = narrow.post(CHAT, body, RETRY)
    assert (again.status, again.disposition in HANDED_OVER) == (200, True)
    assert len(receipts_of(narrow, body)) == 1


def test_first_try_refused_twice_is_owed_once(narrow: Rig) -> None:
    """One intention, two refusals: what is forwarded at last is the only one that its further retries find."""
    body = chat(SLOW, "refused twice", stream=True)
    refuse_while_full(narrow, CHAT, body, FIRST_TRY)
    refuse_while_full(narrow, CHAT, body, RETRY)
    ask_and_leave(narrow, CHAT, body, RETRY)
    again = narrow.post(CHAT, body, RETRY)
    assert (again.status, again.disposition in HANDED_OVER) == (200, True)
    assert len(receipts_of(narrow, body)) == 1


@contextmanager
def limited(shared: Rig, name: str) -> Iterator[Rig]:
    """A proxy that has few descriptors."""
    made = Rig(shared.directory, shared.provider_process, state_name=name)
    arguments = ["serve", "--port", "0", "--state-dir", str(made.state_dir)]
    arguments += ["--upstream", f"openai={shared.provider_url}"]
    made.proxy_process = Process(["-c", LIMITED, *arguments], r"listens on http://[^ ]*:(\d+)")
    try:
        yield made
    finally:
        made.leave()
        print(made.proxy_process.complained)  # why it ended, where a test failed


def test_more_clients_than_descriptors_are_refused_and_the_proxy_lives(shared: Rig) -> None:
    """Descriptors bound what is admitted: nobody is dropped, nothing is poisoned, and afterwards it serves."""
    bodies = [chat("synthetic/hold=1", f"descriptor {number}") for number in range(CLIENTS)]
    with limited(shared, "many-clients") as made:
        with ExitStack() as open_sockets:
            clients = [open_sockets.enter_context(connected(made.port)) for _ in bodies]
            for client, body in zip(clients, bodies, strict=True):
                client.sendall(request_bytes(CHAT, body))
            answers = [read_answer(client) for client in clients]
        served = [body for body, answer in zip(bodies, answers, strict=True) if answer.status == 200]
        refused = [answer for answer in answers if answer.status != 200]
        assert served
        assert {(answer.status, answer.code) for answer in refused} == {(503, "overloaded")}
        assert process_of(made).child.poll() is None
        assert made.chat(chat(text="afterwards")).status == 200
        made.settled()
        assert {row["stage"] for row in made.calls()} == {"completed"}
        assert sum(len(receipts_of(shared, body)) for body in bodies) == len(served)


def test_clients_that_leave_do_not_use_up_the_descriptors(shared: Rig) -> None:
    """Their calls are drained without them, and still hold descriptors: whoever comes later is refused, at worst."""
    with limited(shared, "leaving-clients") as made:
        for number in range(CLIENTS):
            with connected(made.port) as client:
                client.sendall(request_bytes(CHAT, chat(ENDLESS, f"leaves {number}", stream=True)))
                assert status_of(read_until(client, b"\r\n\r\n")) in (200, 503)
        assert process_of(made).child.poll() is None


def test_debt_does_not_let_the_retry_of_a_sent_call_be_sent_again(narrow: Rig) -> None:
    """Three tries met a full house, the fourth was sent and its client gave up: its retry gets that answer."""
    body = chat(SLOW, "owed and sent", stream=True)
    for _ in range(3):
        refuse_while_full(narrow, CHAT, body, FIRST_TRY)
    ask_and_leave(narrow, CHAT, body, FIRST_TRY)
    assert narrow.post(CHAT, body, RETRY).disposition in HANDED_OVER
    assert len(receipts_of(narrow, body)) == 1
