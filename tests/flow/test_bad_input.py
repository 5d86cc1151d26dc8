"""What cannot be admitted: the right status and a sentence, nothing sent, nothing recorded, and the proxy goes on."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.commands import sendonce
from tests.harness.connections import exchange, receipts_of, request_bytes, status_of
from tests.harness.processes import Rig, StartFailed, chat, rig

CHAT = "/openai/v1/chat/completions"
LIMIT_BYTES = 20_000
CLOSE = {"Connection": "close"}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A proxy that takes small bodies only."""
    directory = tmp_path_factory.mktemp("limited")
    config = directory / "sendonce.toml"
    config.write_text(f"[limits]\nbody_bytes = {LIMIT_BYTES}\n[timeouts]\nclient_body_idle_s = 0.5\n")
    with rig(directory, "--config", str(config)) as made:
        yield made


def ask(path: str = CHAT, method: str = "POST", body: bytes = b"{}", **headers: str) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return request_bytes(path, body, {**named, **CLOSE}, method)


def framed(*lines: str, body: bytes = b"") -> bytes:
    """A head of our own making, with nothing else in it."""
    return "\r\n".join([f"POST {CHAT} HTTP/1.1", "Host: p", *lines, "", ""]).encode() + body


BAD = {
    "unknown upstream": (ask("/nope/v1/x"), 404, "unknown_upstream"),
    "no upstream": (ask("/"), 404, "unknown_upstream"),
    "pass that was never opened": (ask("/run/a/1/openai/v1/x"), 400, "stale_pass"),
    "run without an upstream": (ask("/run/a/1-b"), 404, "unknown_upstream"),
    "unknown own endpoint": (ask("/_sendonce/nothing", "GET", b""), 400, "bad_target"),
    "body over the limit": (ask(body=b"x" * (LIMIT_BYTES + 1)), 413, "body_too_large"),
    "chunked body over the limit": (
        framed(
            "Transfer-Encoding: chunked", body=b"%x\r\n%b\r\n0\r\n\r\n" % (LIMIT_BYTES + 1, b"x" * (LIMIT_BYTES + 1))
        ),
        413,
        "body_too_large",
    ),
    "dot segment": (ask("/openai/v1/../admin"), 400, "bad_target"),
    "encoded dot segment": (ask("/openai/v1/%2e%2E/admin"), 400, "bad_target"),
    "encoded slash and dots": (ask("/openai/v1%2f..%2fadmin"), 400, "bad_target"),
    "absolute form": (ask("http://127.0.0.1/openai/v1/x"), 400, "bad_target"),
    "two slashes": (ask("//openai/v1/x"), 400, "bad_target"),
    "fragment": (ask("/openai/v1/x#y"), 400, "bad_target"),
    "empty query": (ask("/openai/v1/x?"), 400, "bad_target"),
    "upgrade": (ask("/openai/v1/responses", "GET", b"", Upgrade="websocket"), 426, "upgrade_unsupported"),
    "key of 10 kB": (ask(Idempotency_Key="k" * 10_000), 400, "bad_key"),
    "empty key": (ask(Idempotency_Key=""), 400, "bad_key"),
    "key with a space": (ask(Idempotency_Key="a b"), 400, "bad_key"),
    "two keys": (framed("Idempotency-Key: a", "idempotency-key: b", "Content-Length: 0"), 400, "bad_framing"),
    "two credentials": (framed("Authorization: a", "authorization: b", "Content-Length: 0"), 400, "bad_framing"),
    "HTTP/1.0": (ask().replace(b"HTTP/1.1", b"HTTP/1.0", 1), 400, "bad_framing"),
    "TRACE": (ask(method="TRACE", body=b""), 400, "bad_target"),
    "unknown method": (ask(method="PURGE"), 400, "bad_target"),
    "header that is no UTF-8": (ask().replace(b"Host: proxy", b"Host: proxy\r\nX-Odd: \xff\xfe"), 400, "bad_framing"),
    "broken chunk": (framed("Transfer-Encoding: chunked", body=b"zz\r\nhello\r\n0\r\n\r\n"), 400, "bad_framing"),
    "CONNECT": (ask("example.org:443", "CONNECT", b""), 400, "bad_target"),
    "two lengths": (framed("Content-Length: 1", "Content-Length: 2", body=b"{}"), 400, "bad_framing"),
    "length and chunks": (
        framed("Content-Length: 5", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        400,
        "bad_framing",
    ),
    "negative length": (framed("Content-Length: -1", body=b"{}"), 400, "bad_framing"),
    "flood of headers": (framed(*(f"X-{n}: {n}" for n in range(300)), "Content-Length: 0"), 400, "bad_framing"),
    "header of 100 kB": (ask(X_Long="x" * 100_000), 400, "bad_framing"),
    "target of 100 kB": (ask("/openai/v1/" + "x" * 100_000), 400, "bad_framing"),
    "garbage": (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400, "bad_framing"),
    "folded header": (framed("X-A: 1", " 2", "Content-Length: 0"), 400, "bad_framing"),
    "space before the colon": (framed("Content-Length : 0"), 400, "bad_framing"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_request_is_answered_and_leaves_nothing_behind(limited: Rig, name: str) -> None:
    """Status, code and sentence; no event, no receipt; healthy afterwards."""
    data, status, code = BAD[name]
    limited.settled()
    events, receipts = limited.status()["events"], limited.receipts_file.read_bytes()
    raw = exchange(limited.port, data)
    assert status_of(raw) == status
    document = json.loads(raw.partition(b"\r\n\r\n")[2])
    assert document["code"] == code
    assert document["error"]["message"].endswith(".")
    assert b"x-should-retry: false" in raw
    assert b"Sendonce-Disposition: refused" in raw
    assert b"Traceback" not in raw
    assert (limited.status()["events"], limited.receipts_file.read_bytes()) == (events, receipts)
    assert limited.post("/_sendonce/health", b"", method="GET").status == 200


BROKEN_OFF = {
    "connection closed": (b"Content-Length: 100", b'{"half', True),
    "stalled": (b"Content-Length: 100", b'{"half', False),
    "too large": (b"Content-Length: %d" % (LIMIT_BYTES + 1), b"", False),
}


@pytest.mark.parametrize("name", BROKEN_OFF)
def test_broken_body_under_an_explicit_key_is_on_record_and_the_key_is_served_later(limited: Rig, name: str) -> None:
    """`call.requested` and `call.preparation_failed`, effect absent; the corrected request is the next generation."""
    framing, body, closes = BROKEN_OFF[name]
    key = f"broken-{name.replace(' ', '-')}"
    head = f"POST {CHAT} HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer sk-test-caller\r\nIdempotency-Key: {key}\r\n"
    for _ in range(2):
        exchange(limited.port, head.encode() + framing + b"\r\n\r\n" + body, half_close=closes)
    limited.settled()
    rows = [row for row in limited.calls() if row["key"] == key]
    assert {row["stage"] for row in rows[:1]} == {"preparation_failed"}
    assert {row["effect"] for row in rows} == {"absent"}
    kinds = [event["kind"] for event in limited.show(rows[0]["call_id"])["events"]]
    assert kinds == ["call.requested", "call.preparation_failed"]
    corrected = chat(text=name)
    answer = limited.chat(corrected, {"Idempotency-Key": key})
    assert (answer.status, answer.disposition) == (200, "resumed")
    assert len(receipts_of(limited, corrected)) == 1


def test_broken_body_without_a_key_leaves_nothing_behind(limited: Rig) -> None:
    """Nobody could name that call again."""
    limited.settled()
    before = limited.status()["events"]
    exchange(limited.port, framed("Content-Length: 100", body=b"{"), half_close=True)
    limited.settled()
    assert limited.status()["events"] == before


def test_broken_body_under_a_used_key_changes_nothing_of_it(limited: Rig) -> None:
    """What stands is more than a failed preparation could say; the replay stays."""
    body, key = chat(text="used key"), {"Idempotency-Key": "used-key"}
    first = limited.chat(body, key)
    limited.settled()
    before = limited.status()["events"]
    data = request_bytes(CHAT, body, {**key, **CLOSE})[:-5]
    exchange(limited.port, data, half_close=True)
    limited.settled()
    assert limited.status()["events"] == before
    assert limited.chat(body, key).body == first.body


# --- at start ---------------------------------------------------------------------------------------------------------

CONFIGS = {
    "malformed": ("port = = 1", "is not TOML"),
    "unknown setting": ("prot = 1", "The setting prot does not exist"),
    "unknown nested setting": ("[limits]\nbody_bites = 1", "The setting limits.body_bites does not exist"),
    "wrong type": ('[limits]\nbody_bytes = "many"', "The setting limits.body_bytes is wrong"),
    "out of range": ("[timeouts]\nretry_wait_s = -1", "The setting timeouts.retry_wait_s is wrong"),
    "not loopback": ('host = "0.0.0.0"', "is not loopback: prompts and keys would cross the network in the clear"),
    "no token": ('host = "0.0.0.0"\nbehind_tls_proxy = true', "Set SENDONCE_CALLER_TOKEN"),
    "short token": ('caller_token = "short"', "at least 16 visible ASCII characters"),
    "key without certificate": ('tls_key = "key.pem"', "tls_cert and tls_key belong together"),
    "certificate that is none": ('tls_cert = "/dev/null"\ntls_key = "/dev/null"', "cannot be used together"),
    "TLS twice": (
        'tls_cert = "a"\ntls_key = "b"\nbehind_tls_proxy = true',
        "contradict each other: who terminates TLS",
    ),
    "CA file that is none": ('[upstreams.openai]\nca_file = "/dev/null"', "holds no certificates in PEM form"),
    "CA file that is not there": ('[upstreams.openai]\nca_file = "/no/ca.pem"', "/no/ca.pem holds no certificates"),
    "fresh and kept": (
        "[upstreams.openai]\nfresh_connections = true\nkeepalive_s = 5",
        "contradict each other: a fresh",
    ),
    "queue for nothing": ("[upstreams.openai]\nqueue = 5", "queue without concurrency"),
    "two identities": (
        '[upstreams.openai.caller]\nheader = "X-User"\nbearer_claim = "sub"',
        "header and bearer_claim contradict each other",
    ),
    "egress proxy of another kind": (
        '[upstreams.openai]\negress_proxy = "socks5://x:1"',
        "http://[user:password@]host:port",
    ),
    "policy for reads": ("[upstreams.openai.policy.safe]\non_unknown = 'accept'", "the class safe has no policy"),
    "header that is none": ('[upstreams.openai.caller]\nheader = "X User:"', "upstreams.openai.caller.header is wrong"),
    "egress port": ('[upstreams.openai]\negress_proxy = "http://x:99999"', "http://[user:password@]host:port"),
    "status that proves nothing": ("[upstreams.openai]\nanswered_statuses = [400, 408]", "[408] prove nothing anyway"),
    "unknown mode": ('mode = "audit"', "The setting mode is wrong"),
    "record limit too low": ("[limits]\nrecord_limit_bytes = 1000", "The setting limits.record_limit_bytes is wrong"),
    "reserved upstream": ('[upstreams.run]\nbase_url = "http://x"', "'run' cannot be the name of an upstream"),
    "base URL with a query": ('[upstreams.a]\nbase_url = "http://x?y"', "The setting upstreams.a.base_url is wrong"),
    "unknown policy": ('[upstreams.openai.policy.generate]\non_unknown = "perhaps"', "on_unknown is wrong"),
    "unknown class": ("[upstreams.openai.policy.everything]", "upstreams.openai.policy.everything"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_unusable_configuration_does_not_start(tmp_path: Path, name: str) -> None:
    """Exit 2, one sentence that names the field, no traceback, no state dir."""
    text, sentence = CONFIGS[name]
    config = tmp_path / "c.toml"
    config.write_text(text)
    refused = refused_start(tmp_path, "--config", str(config))
    assert refused.code == 2
    assert sentence in refused.err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--config", "/nowhere.toml"), "There is no configuration file /nowhere.toml"),
        (("--upstream", "openai"), "is not NAME=BASE_URL"),
        (("--upstream", "a=ftp://x"), "upstreams.a.base_url"),
        (("--port", "70000"), "port"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_unusable_command_line_does_not_start(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    """Exit 2 and one sentence."""
    refused = refused_start(tmp_path, *arguments)
    assert refused.code == 2
    assert sentence in refused.err


def test_taken_port_does_not_start(tmp_path: Path) -> None:
    """Exit 3, and the state dir is not touched."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = refused_start(tmp_path, "--port", str(port))
    assert refused.code == 3
    assert f"Port {port}" in refused.err
    assert not (tmp_path / "state").exists()


def test_owned_or_loose_state_dir_does_not_start(limited: Rig, tmp_path: Path) -> None:
    """Exit 4: a second owner is told the first one's process; a directory others can read is refused."""
    assert limited.proxy_process is not None
    refused = refused_start(tmp_path, "--state-dir", str(limited.state_dir))
    assert (refused.code, f"process {limited.proxy_process.child.pid}" in refused.err) == (4, True)
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o755)
    refused = refused_start(tmp_path)
    assert (refused.code, "chmod go-rwx" in refused.err) == (4, True)


def refused_start(directory: Path, *arguments: str) -> StartFailed:
    done = sendonce("serve", "--port", "0", "--state-dir", str(directory / "state"), *arguments)
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("sendonce: ")
    return StartFailed(done.returncode, done.stdout, done.stderr)
