"""Providers that break HTTP or their own dialect: what is recorded, what the client sees, what the same request gets next.

Semantics sections 4 and 5, I2, I3 and I13; the tables are in tests/harness/misbehaviours.py. The framing is read from raw bytes.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.events import CallRequested
from ledger.reader import open_reader
from tests.harness.connections import connected, read_to_end, request_bytes
from tests.harness.framing import RawAnswer, answers
from tests.harness.misbehaviours import CASES, EVENTS, IDLE_S, JSON, OK, PAGE, Case, Verdict, sized
from tests.harness.neighbours import process_of, until_stopped
from tests.harness.processes import Rig, rig, until
from tests.harness.upstreams import CLOSE, Act, RawUpstream, raw_upstream

FAMILIES = ("openai", "anthropic", "gemini", "other")
Wild = tuple[Rig, RawUpstream]
NAMES = list(CASES)
SENT_AGAIN = ("forwarded", "resumed")


def target_of(name: str) -> str:
    return f"{CASES[name].path}?case={NAMES.index(name)}"


def without_upstream(target: str) -> str:
    return "/" + target[1:].partition("/")[2]


MORE = {
    "/v1/embeddings?page": (sized(PAGE, b"502 Bad Gateway"),),
    "/v1/models": (OK + JSON + b"Content-Length: 999\r\n\r\n{", CLOSE),
}


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wild]:
    """Every upstream is the same raw one, with a small idle limit."""
    directory = tmp_path_factory.mktemp("wild")
    replies = {without_upstream(target_of(name)): CASES[name].reply for name in NAMES} | MORE
    with raw_upstream(replies) as upstream:
        config = directory / "sendonce.toml"
        tables = (f'[upstreams.{name}]\nbase_url = "{upstream.url}"\nidle_s = {IDLE_S}\n' for name in FAMILIES)
        config.write_text("".join(tables))
        own = (f"{name}={upstream.url}" for name in FAMILIES[:2])  # the rig's own arguments name another
        arguments = [argument for pair in own for argument in ("--upstream", pair)]
        with rig(directory, *arguments, "--config", str(config)) as made:
            yield made, upstream


def ask(made: Rig, target: str, key: str, body: bytes) -> RawAnswer | None:
    """None: the connection ended without an answer."""
    with connected(made.port) as sock:
        sock.sendall(request_bytes(target, body, {"Idempotency-Key": key, "Connection": "close"}))
        found = answers(read_to_end(sock))
    assert len(found) <= 1
    return found[0] if found else None


def row_of(made: Rig, key: str) -> dict[str, Any]:
    made.settled()
    return made.show(next(row["call_id"] for row in made.calls() if row["key"] == key))


def provider_body(reply: tuple[Any, ...]) -> bytes:
    return b"".join(piece for piece in reply if isinstance(piece, bytes))


@pytest.mark.parametrize("name", NAMES)
def test_misbehaviour_is_recorded_as_what_it_proves_and_told_as_it_was(wild: Wild, name: str) -> None:
    """Verdict, framing and error event as the table says; then the same request, and the provider's count of both."""
    made, upstream = wild
    case, key, sent = CASES[name], f"case-{NAMES.index(name)}", len(upstream.requests)
    body = b'{"model":"m","stream":%b}' % (b"true" if name in EVENTS else b"false")
    answer = ask(made, target_of(name), key, body)
    row = row_of(made, key)
    (attempt,) = row["attempt_rows"]
    assert Verdict(attempt["observation"], row["effect"], row["stage"], case.verdict.again) == case.verdict
    assert attempt["ended_by"] == case.ended_by
    assert_told(case, answer)
    again = ask(made, target_of(name), key, body)
    assert again is not None
    disposition = again.headers["sendonce-disposition"]
    assert (again.code if disposition == "refused" else disposition) == case.verdict.again
    assert len(upstream.requests) - sent == (2 if case.verdict.again in SENT_AGAIN else 1)


def assert_told(case: Case, answer: RawAnswer | None) -> None:
    """Status and framing; nothing of ours in the provider's answer but the error event, which is the last one."""
    if answer is None:
        assert case.status is None
        return
    assert (answer.status, answer.clean) == (case.status, case.clean)
    if case.code is not None:
        assert answer.code == case.code
    elif case.error is not None:
        assert answer.body.rstrip(b"\n").rpartition(b"\n\n")[2].startswith(case.error)
    else:
        assert b"sendonce" not in answer.body


# --- beside the table ---------------------------------------------------------------------------------------------------


def claim_of(made: Rig, call: str) -> CallRequested:
    async def read() -> Any:
        async with open_reader(made.paths.ledger) as reader:
            return (await reader.events(call))[0].event  # type: ignore[arg-type]

    event = asyncio.run(read())
    assert isinstance(event, CallRequested)
    return event


def test_gateway_page_for_a_cheap_request_is_sent_again_with_the_setting_on_record(wild: Wild) -> None:
    """Embeddings accept a second effect by default; the claim names the setting, the attempt and the configuration."""
    made, upstream = wild
    sent, target = len(upstream.requests), "/openai/v1/embeddings?page"
    first = ask(made, target, "embeddings", b'{"input":"x"}')
    made.settled()
    second = ask(made, target, "embeddings", b'{"input":"x"}')
    assert first is not None
    assert second is not None
    assert [(answer.status, answer.body) for answer in (first, second)] == [(502, PAGE)] * 2
    assert (second.headers["sendonce-disposition"], len(upstream.requests) - sent) == ("forwarded", 2)
    claim = claim_of(made, second.headers["sendonce-call"])
    assert claim.accepts_attempt == f"{first.headers['sendonce-call']}.1"
    assert claim.authority is not None
    assert (claim.authority.kind, claim.authority.name) == ("setting", "after_gateway_error")
    assert claim.authority.config_digest


def test_safe_request_that_is_cut_ends_unclean_and_is_not_sent_twice(wild: Wild) -> None:
    """No ledger for it, and still no clean end."""
    made, upstream = wild
    sent = len(upstream.requests)
    with connected(made.port) as sock:
        sock.sendall(request_bytes("/openai/v1/models", b"", {"Connection": "close"}, "GET"))
        (answer,) = answers(read_to_end(sock))
    assert (answer.status, answer.clean, len(upstream.requests) - sent) == (200, False, 1)


def test_words_between_two_answers_are_never_taken_for_the_second(tmp_path: Path) -> None:
    """What a kept connection said unasked ends it; the next request goes out on another."""
    poison = sized(b'"poison"')
    replies = {"/v1/first": (sized(b'"first"'), Act.HOLD, poison), "/v1/second": (sized(b'"second"'),)}
    with raw_upstream(replies) as upstream, rig(tmp_path, "--upstream", f"other={upstream.url}") as made:
        assert made.post("/other/v1/first", b"{}").body == b'"first"'
        upstream.released.set()
        until(lambda: poison in upstream.done)
        assert made.post("/other/v1/second", b"{}").body == b'"second"'
        assert upstream.connections == 2


# --- no connection ------------------------------------------------------------------------------------------------------


def test_provider_that_cannot_be_reached_is_proven_not_sent(tmp_path: Path) -> None:
    """Refuses, or speaks no TLS: 503 each time, effect absent, and the next try is a resumed one."""
    with raw_upstream({}) as plain, socket.create_server(("127.0.0.1", 0)) as closed:
        urls = {"refuses": url_of(closed), "no-tls": plain.url.replace("http:", "https:")}
        closed.close()
        config = tmp_path / "sendonce.toml"
        tables = (f'[upstreams.{name}]\nbase_url = "{url}"\nconnect_s = {IDLE_S}\n' for name, url in urls.items())
        config.write_text("".join(tables))
        with rig(tmp_path, "--config", str(config)) as made:
            for name in urls:
                for generation in (1, 2):
                    answer = ask(made, f"/{name}/v1/x", name, b"{}")
                    assert answer is not None
                    assert (answer.status, answer.code) == (503, "upstream_unreachable")
                    row = row_of(made, name)
                    assert (row["stage"], row["effect"], row["generation"]) == (
                        "manifest_recorded",
                        "absent",
                        generation,
                    )
        assert plain.requests == []


def test_provider_that_hangs_up_before_the_first_byte_is_proven_not_sent(tmp_path: Path) -> None:
    """The connection stood, and ended while the attempt was recorded: the record says why nothing can have been received."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        rig(tmp_path, "--upstream", f"other={url_of(listener)}") as made,
    ):
        process_of(made).close()
        made.start("after-connect=stop")
        with connected(made.port) as client:
            client.sendall(request_bytes("/other/v1/x", b"{}", {"Idempotency-Key": "hung-up", "Connection": "close"}))
            pid = until_stopped(made)
            listener.accept()[0].close()
            listener.close()  # the second attempt finds nobody
            os.kill(pid, signal.SIGCONT)
            (answer,) = answers(read_to_end(client))
        assert (answer.status, answer.code) == (503, "upstream_unreachable")
        row = row_of(made, "hung-up")
        assert (row["stage"], row["effect"]) == ("not_sent", "absent")
        assert row["attempt_rows"][0]["proof"].startswith("no byte left")


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"
