"""Where connections lead and who may make them: egress proxies, authorities, turns, TLS and the token of the listener."""

import http.client
import json
import socket
import ssl
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from tests.harness.connections import connected, exchange, read_answer, request_bytes, status_of
from tests.harness.egress import egress
from tests.harness.narrow import DESCRIPTORS, LIMITED
from tests.harness.neighbours import beside
from tests.harness.processes import ANSWER_LIMIT_S, Answer, Process, Rig, until
from tests.harness.upstreams import Act, Piece, RawUpstream, raw_upstream

SERVED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
TOKEN = "a-token-of-this-proxy"
EGRESS_LOGIN = "egress-user:egress-password"


@dataclass(frozen=True)
class Authority:
    """A certificate authority of the tests' own, as a file that a client may trust."""

    ca: trustme.CA
    file: Path

    def server(self, name: str = "127.0.0.1") -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(name).configure_cert(context)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    ca, file = trustme.CA(), tmp_path_factory.mktemp("ca") / "ca.pem"
    ca.cert_pem.write_to_path(str(file))
    return Authority(ca, file)


@contextmanager
def serving(*pieces: Piece, tls: ssl.SSLContext | None = None) -> Iterator[RawUpstream]:
    """A provider that answers every target the same."""
    with raw_upstream(defaultdict(lambda: pieces or (SERVED,)), tls) as provider:
        yield provider


def upstream_table(upstream: RawUpstream, *lines: str, name: str = "local") -> str:
    return "\n".join([f"[upstreams.{name}]", f'base_url = "{upstream.url}"', *lines, ""])


# --- the way to the provider --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encrypted", [False, True], ids=["http", "https"])
def test_upstream_with_an_egress_proxy_is_reached_through_it_alone(
    shared: Rig, authority: Authority, encrypted: bool
) -> None:
    """By absolute form or CONNECT; its login goes no further, and other upstreams do not pass there."""
    with (
        egress() as between,
        serving(tls=authority.server() if encrypted else None) as provider,
        serving() as other,
    ):
        lines = [f'egress_proxy = "http://{EGRESS_LOGIN}@{between.authority}"']
        lines += [f'ca_file = "{authority.file}"'] if encrypted else []
        settings = upstream_table(provider, *lines) + upstream_table(other, name="direct")
        with beside(shared, settings=settings) as made:
            assert [made.post(f"/{name}/v1/x", b'{"a":1}').status for name in ("local", "direct")] == [200, 200]
            files = [path.read_bytes() for path in made.state_dir.rglob("*") if path.is_file()]
        (passed,) = between.heads
        assert passed.startswith(b"CONNECT 127.0.0.1:" if encrypted else b"POST http://127.0.0.1:")
        assert b"Proxy-Authorization: Basic" in passed
        assert [request.partition(b"\r\n\r\n")[2] for request in provider.requests] == [b'{"a":1}']
        assert b"Proxy-Authorization" not in provider.requests[0]
        assert not any(b"egress-password" in file for file in files)
        assert len(other.requests) == 1


def test_provider_of_a_private_authority_is_trusted_by_its_file_only(shared: Rig, authority: Authority) -> None:
    """Without the file, or under another name: 503 with the proof that nothing was sent."""
    ca_file = f'ca_file = "{authority.file}"'
    with (
        serving(tls=authority.server()) as provider,
        serving(tls=authority.server("other.example")) as misnamed,
    ):
        settings = upstream_table(provider, ca_file) + upstream_table(provider, name="untrusted")
        settings += upstream_table(misnamed, ca_file, name="misnamed")
        with beside(shared, settings=settings) as made:
            assert made.post("/local/v1/x", b"{}").status == 200
            for name in ("untrusted", "misnamed"):
                answer = made.post(f"/{name}/v1/x", b"{}")
                assert (answer.status, answer.code) == (503, "upstream_unreachable")
                row = made.show(answer.headers["sendonce-call"])
                assert (row["stage"], row["effect"]) == ("manifest_recorded", "absent")
                assert "call.abandoned" in [event["kind"] for event in row["events"]]
        assert (len(provider.requests), misnamed.requests) == (1, [])


@pytest.mark.parametrize(("lines", "connections"), [((), 1), (("fresh_connections = true",), 3)])
def test_connections_are_kept_unless_fresh_ones_are_asked_for(
    shared: Rig, lines: tuple[str, ...], connections: int
) -> None:
    """The provider counts them."""
    with serving() as provider, beside(shared, settings=upstream_table(provider, *lines)) as made:
        for number in range(3):
            assert made.post("/local/v1/x", b"{}", {"Idempotency-Key": f"{number}"}).status == 200
            made.settled()
        assert (provider.connections, len(provider.requests)) == (connections, 3)


# --- turns --------------------------------------------------------------------------------------------------------------


@contextmanager
def one_at_a_time(shared: Rig) -> Iterator[tuple[Rig, RawUpstream]]:
    """One call is sent at once, one may wait; the provider holds its answers until it is released."""
    with (
        serving(Act.HOLD, SERVED) as provider,
        beside(shared, settings=upstream_table(provider, "concurrency = 1", "queue = 1")) as made,
    ):
        yield made, provider


def asked(name: str) -> bytes:
    return request_bytes("/local/v1/x", json.dumps({"call": name}).encode())


def bodies(provider: RawUpstream) -> list[str]:
    return [json.loads(request.partition(b"\r\n\r\n")[2])["call"] for request in provider.requests]


def stages(made: Rig) -> list[str]:
    """Oldest first."""
    return [str(row["stage"]) for row in reversed(made.calls())]


def test_call_beyond_the_concurrency_waits_on_record_and_one_beyond_the_queue_is_refused(shared: Rig) -> None:
    """In the order in which they came; who was refused may come again."""
    with one_at_a_time(shared) as (made, provider), connected(made.port) as first, connected(made.port) as second:
        first.sendall(asked("first"))
        until(lambda: bodies(provider) == ["first"])
        second.sendall(asked("second"))
        until(lambda: stages(made) == ["effect_unknown", "manifest_recorded"])
        third = made.post("/local/v1/x", b'{"call": "third"}')
        assert (third.status, third.code, third.headers["retry-after"]) == (503, "overloaded", "1")
        assert (bodies(provider), len(made.calls())) == (["first"], 2)
        provider.released.set()
        assert [read_answer(sock).status for sock in (first, second)] == [200, 200]
        assert made.post("/local/v1/x", b'{"call": "third"}').status == 200
        assert bodies(provider) == ["first", "second", "third"]


def test_waiting_call_of_a_killed_proxy_is_resumed_and_sent_once(shared: Rig) -> None:
    """Its manifest is on record and nothing was sent: the same request goes on from there; the one that was sent is refused."""
    with one_at_a_time(shared) as (made, provider):
        with connected(made.port) as first, connected(made.port) as second:
            first.sendall(asked("first"))
            until(lambda: bodies(provider) == ["first"])
            second.sendall(asked("second"))
            until(lambda: stages(made) == ["effect_unknown", "manifest_recorded"])
            made.restart()
        assert stages(made) == ["effect_unknown", "manifest_recorded"]
        provider.released.set()
        with connected(made.port) as again:
            again.sendall(asked("second"))
            resumed = read_answer(again)
            again.sendall(asked("first"))
            refused = read_answer(again)
        assert (resumed.status, resumed.disposition) == (200, "resumed")
        assert (refused.disposition, refused.code) == ("refused", "effect_unknown")
        assert bodies(provider) == ["first", "second"]


def test_call_whose_client_leaves_while_it_waits_is_never_sent(shared: Rig) -> None:
    """Nobody wants it any more; what is on record says that nothing was sent."""
    with one_at_a_time(shared) as (made, provider), connected(made.port) as first:
        first.sendall(asked("first"))
        until(lambda: bodies(provider) == ["first"])
        with connected(made.port) as second:
            second.sendall(asked("second"))
            until(lambda: len(stages(made)) == 2)
        provider.released.set()
        assert read_answer(first).status == 200
        made.settled()
        assert stages(made) == ["completed", "manifest_recorded"]
        assert [row["effect"] for row in made.calls()] == ["absent", "happened"]
        assert bodies(provider) == ["first"]


def test_burst_leaves_no_more_than_the_queue_holds(shared: Rig) -> None:
    """Ten at the same moment: one is sent, one waits, eight are refused before anything of them is recorded."""
    with one_at_a_time(shared) as (made, provider), ThreadPoolExecutor(10) as pool:
        answers = [
            pool.submit(made.post, "/local/v1/x", asked(f"{number}").partition(b"\r\n\r\n")[2]) for number in range(10)
        ]
        until(lambda: sum(answer.done() for answer in answers) == 8)
        refused = [answer.result() for answer in answers if answer.done()]
        assert {(answer.status, answer.code) for answer in refused} == {(503, "overloaded")}
        assert len(made.calls()) == 2
        provider.released.set()
        assert sorted(answer.result().status for answer in answers) == [200] * 2 + [503] * 8
        assert len(bodies(provider)) == 2


def test_stop_tells_who_waits_that_nothing_was_sent(shared: Rig) -> None:
    """503 `draining` at once, and the record agrees; what was sent is waited for."""
    with one_at_a_time(shared) as (made, provider), connected(made.port) as first, connected(made.port) as second:
        first.sendall(asked("first"))
        until(lambda: bodies(provider) == ["first"])
        second.sendall(asked("second"))
        until(lambda: len(stages(made)) == 2)
        assert made.proxy_process is not None
        made.proxy_process.child.terminate()
        told = read_answer(second)
        assert (told.status, told.code) == (503, "draining")
        provider.released.set()
        assert read_answer(first).status == 200
        assert made.proxy_process.stop() == 0
        assert stages(made) == ["completed", "manifest_recorded"]
        assert bodies(provider) == ["first"]


# --- the listener -------------------------------------------------------------------------------------------------------


@contextmanager
def listening(
    shared: Rig,
    name: str,
    settings: str,
    scheme: str,
    environment: dict[str, str],
    module: tuple[str, ...] = ("-m", "proxy"),
) -> Iterator[Rig]:
    """A proxy that listens in another way than on loopback in the clear."""
    config = shared.directory / f"{name}.toml"
    config.write_text(settings)
    made = Rig(shared.directory, shared.provider_process, state_name=name)
    arguments = [*module, "serve", "--port", "0", "--state-dir", str(made.state_dir), "--config", str(config)]
    made.proxy_process = Process(arguments, rf"listens on {scheme}://[^ ]*:(\d+)", environment)
    try:
        yield made
    finally:
        made.leave()


def certified(shared: Rig, authority: Authority) -> str:
    cert, key = shared.directory / "cert.pem", shared.directory / "key.pem"
    issued = authority.ca.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(key))
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return f'tls_cert = "{cert}"\ntls_key = "{key}"\n'


def test_connections_without_a_handshake_take_no_call_its_descriptors(shared: Rig, authority: Authority) -> None:
    """More of them than the process has descriptors, and no token needed: a call in flight ends well, and a new one passes."""
    with serving(Act.HOLD, SERVED) as provider, ExitStack() as silent:
        settings = certified(shared, authority) + "[timeouts]\nclient_header_s = 0.5\n" + upstream_table(provider)
        with listening(shared, "silent", settings, "https", {}, ("-c", LIMITED)) as made:
            context = ssl.create_default_context(cafile=authority.file)
            clients = [http.client.HTTPSConnection("127.0.0.1", made.port, context=context) for _ in range(2)]
            clients[0].request("POST", "/local/v1/x", b"{}", {"Idempotency-Key": "flying"})
            until(lambda: len(provider.requests) == 1)
            for _ in range(2 * DESCRIPTORS):
                silent.enter_context(socket.create_connection(("127.0.0.1", made.port)))
            provider.released.set()
            assert clients[0].getresponse().status == 200
            clients[1].request("POST", "/local/v1/x", b"{}", {"Idempotency-Key": "new"})
            assert clients[1].getresponse().status == 200
            for client in clients:
                client.close()


def test_listener_with_a_certificate_speaks_tls_and_nothing_else(shared: Rig, authority: Authority) -> None:
    """A call passes; plain HTTP on that port is closed without an answer and without a trace."""
    with serving() as provider:
        settings = certified(shared, authority) + upstream_table(provider)
        with listening(shared, "tls", settings, "https", {}) as made:
            context = ssl.create_default_context(cafile=authority.file)
            client = http.client.HTTPSConnection("127.0.0.1", made.port, timeout=ANSWER_LIMIT_S, context=context)
            for number in range(2):
                client.request("POST", "/local/v1/x", b"{}", {"Idempotency-Key": f"{number}"})
                answer = client.getresponse()
                assert (answer.status, answer.read()) == (200, b"{}")
            client.close()
            made.settled()
            before = made.status()["events"]
            assert not exchange(made.port, asked("plain")).startswith(b"HTTP/")
            assert (made.status()["events"], len(provider.requests)) == (before, 2)


def test_listener_beyond_loopback_asks_every_client_for_its_token(shared: Rig) -> None:
    """Without it 401 and nothing on record; with it forwarded, and the token is in no file and not at the provider."""
    with serving() as provider:
        settings = 'host = "0.0.0.0"\nbehind_tls_proxy = true\n' + upstream_table(provider)
        with listening(shared, "token", settings, "http", {"SENDONCE_CALLER_TOKEN": TOKEN}) as made:
            before = made.status()["events"]
            for headers in (
                {},
                {"Sendonce-Token": ""},
                {"Sendonce-Token": TOKEN[:-1]},
                {"Sendonce-Token": TOKEN + "x"},
            ):
                refused = made.post("/local/v1/x", b"{}", headers)
                assert (refused.status, refused.code) == (401, "token_required")
            assert made.post("/_sendonce/metrics", b"", method="GET").status == 401
            assert made.post("/local/v1/models", b"", method="GET").status == 401
            doubled = asked("two").replace(b"Host:", f"Sendonce-Token: {TOKEN}\r\nsendonce-token: x\r\nHost:".encode())
            assert status_of(exchange(made.port, doubled)) == 400
            assert (made.status()["events"], provider.requests) == (before, [])
            assert made.post("/_sendonce/health", b"", method="GET").status == 200
            answer: Answer = made.post("/local/v1/x", b"{}", {"Sendonce-Token": TOKEN})
            assert (answer.status, answer.disposition) == (200, "forwarded")
            made.settled()
            assert [TOKEN.encode() in request for request in provider.requests] == [False]
            files = [path for path in made.state_dir.rglob("*") if path.is_file()]
            assert files
            assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
