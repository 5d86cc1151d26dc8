"""What a supervisor is told: settings read again, systemd's sockets, and what it tells systemd."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Final

import pytest
import trustme

from ledger.events import CallRequested
from proxy.settings import Timeouts
from proxy.supervisor import STOP_MARGIN_S
from tests.harness.crashes import call_of
from tests.harness.processes import (
    ALONE,
    ROOT,
    SUPERVISED,
    Process,
    Rig,
    StartFailed,
    chat,
    provider_in,
    until,
)
from tests.harness.supervised import LISTENS, kill_serving, next_serving, with_own_state

ACTIVATED: Final = (  # as systemd does: the socket is descriptor 3, and the variables name the process that it becomes
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1', "
    "LISTEN_FDNAMES='sendonce.socket'); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with provider_in(tmp_path_factory.mktemp("told")) as made:
        yield made


@pytest.fixture
def provided(provider: Rig, tmp_path: Path) -> Iterator[Rig]:
    """For a proxy that a test starts itself."""
    with with_own_state(provider, tmp_path.name) as made:
        yield made


# --- what it is told -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["supervised", "alone"])
def test_sighup_applies_what_can_change_and_names_what_cannot(provided: Rig, tmp_path: Path, how: str) -> None:
    """A bad file changes nothing. What has changed holds for the next request, and for the next process."""
    config, small, large = tmp_path / "config.toml", "[limits]\nbody_bytes = 1000\n", chat(text="x" * 2000)
    config.write_text("")
    provided.supervised = how == "supervised"
    process = provided.start("", "--config", str(config))
    assert provided.chat(large).status == 200
    config.write_text(f'host = "localhost"\n{small}')
    process.child.send_signal(signal.SIGHUP)
    until(lambda: provided.chat(large).status == 413)
    if how == "supervised":
        kill_serving(provided)
        assert provided.chat(large).status == 413
    config.write_text("mode = 7")
    process.child.send_signal(signal.SIGHUP)
    config_is_read_again(process)
    assert provided.chat(large).status == 413
    assert process.stop() == 0
    assert "changed: limits.body_bytes. Only a restart changes host:" in process.complained
    assert "The settings cannot be read again, and nothing changes. The setting mode is wrong" in process.complained
    assert process.complained.count("The settings were read again") == 1


def config_is_read_again(process: Process) -> None:
    """Once its SIGHUP is pending no more: it was taken, and signals are obeyed in order."""
    status = Path(f"/proc/{process.child.pid}/status")
    until(lambda: int(next(line for line in status.read_text().splitlines() if line.startswith("ShdPnd"))[7:], 16) == 0)


@pytest.mark.parametrize("how", [SUPERVISED, ALONE], ids=["supervised", "alone"])
def test_sighup_gives_new_connections_a_renewed_certificate_and_keeps_it_over_a_bad_one(
    provided: Rig, tmp_path: Path, how: dict[str, str]
) -> None:
    """Files that are no certificate are a sentence, whether the settings name them still or no more; it serves on with its pair."""
    ca, config, cert, key = trustme.CA(), tmp_path / "config.toml", tmp_path / "cert.pem", tmp_path / "key.pem"
    client, with_tls = ssl.create_default_context(), f'tls_cert = "{cert}"\ntls_key = "{key}"\n'
    ca.configure_trust(client)

    def renew() -> None:
        issued = ca.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(str(key))
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def served(path: str = "/_sendonce/health") -> object:
        """The certificate of a new connection, on which a request is answered."""
        with (
            socket.create_connection(("127.0.0.1", process.port), 30) as sock,
            client.wrap_socket(sock, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
            return connection.getpeercert()["serialNumber"]  # type: ignore[index]

    def told() -> str:
        process.child.send_signal(signal.SIGHUP)
        assert process.child.stderr is not None
        return process.child.stderr.readline()

    renew()
    config.write_text(with_tls)
    serve = ["-m", "proxy", "serve", "--port", "0", "--state-dir", str(provided.state_dir), "--config", str(config)]
    process = provided.proxy_process = Process(serve, r"listens on https://[^ ]*:(\d+)", how)
    first = served()
    cert.write_text("no certificate")
    assert "The settings cannot be read again, and nothing changes. The settings do not go together: tls_cert" in told()
    assert served() == first
    config.write_text("")
    assert "The certificate cannot be read again, and nothing changes: tls_cert and tls_key cannot be used" in told()
    assert served() == first
    renew()
    config.write_text(with_tls)
    assert "The settings were read again; changed: none." in told()
    until(lambda: served() != first)
    second = served()
    if how is SUPERVISED:
        kill_serving(provided)
        assert served() == second
    assert process.stop() == 0


def test_sighup_puts_the_changed_acceptances_on_record_before_they_count(provided: Rig, tmp_path: Path) -> None:
    """A claim by a setting names the configuration that says so, and the verifier finds that on record; the way back works too."""
    config, policy = tmp_path / "config.toml", "[upstreams.openai.policy.generate]\nafter_server_error = "
    config.write_text(f'{policy}"refuse"')
    process = provided.start("", "--config", str(config))
    body = chat("synthetic/status=500,times=1", "accepted by a setting")
    assert [provided.chat(body).status for _ in range(2)] == [500, 400]
    config.write_text(f'{policy}"accept"')
    process.child.send_signal(signal.SIGHUP)
    until(lambda: provided.chat(body).status == 200)
    accepted = provided.claim(call_of(provided)["call_id"]).authority
    assert accepted is not None
    config.write_text(f'mode = "observe"\n{policy}"refuse"')
    process.child.send_signal(signal.SIGHUP)

    def observed() -> CallRequested | None:
        provided.chat(chat("synthetic/status=500", "observed"))
        claim = provided.claim(provided.calls()[0]["call_id"])
        return claim if "would_refuse" in claim.evidence else None

    authority = until(observed).authority  # type: ignore[union-attr]
    assert authority is not None
    assert (authority.name, authority.config_digest != accepted.config_digest) == ("mode", True)
    assert process.stop() == 0
    verified = provided.command("verify")
    assert verified.returncode == 0, verified.stdout


def test_sockets_and_words_of_systemd(provided: Rig, tmp_path: Path) -> None:
    """It serves on the socket that it is given, and says READY, STATUS, RELOADING and STOPPING as each becomes true."""
    heard, address = [], str(tmp_path / "notify")
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified,
    ):
        notified.bind(address)
        notified.settimeout(30)

        def hear(word: str) -> list[str]:
            while not any(line.startswith(word) for line in heard[-1:] for line in line.splitlines()):
                heard.append(notified.recv(4096).decode())
            return heard.pop().splitlines()

        port, fd = listening.getsockname()[1], listening.fileno()
        serve = [
            "-m",
            "proxy",
            "serve",
            "--state-dir",
            str(provided.state_dir),
            "--upstream",
            f"openai={provided.provider_url}",
        ]
        environment = SUPERVISED | {"NOTIFY_SOCKET": address}
        process = provided.proxy_process = Process(["-c", ACTIVATED, str(fd), *serve], LISTENS, environment, (fd,))
        assert process.port == port
        child = provided.serving_pid
        assert hear("READY=1") == ["READY=1", f"STATUS=Process {child} admits requests"]
        assert provided.chat(chat(text="activated")).status == 200
        os.kill(child, signal.SIGKILL)
        assert f"STATUS=The serving process {child} was killed by SIGKILL; it is replaced" in hear("STATUS=The")
        assert f"STATUS=Process {next_serving(provided, child)} admits requests" in hear("READY=1")
        process.child.send_signal(signal.SIGHUP)
        before = time.monotonic_ns() // 1000
        assert int(hear("RELOADING=1")[1].removeprefix("MONOTONIC_USEC=")) >= before - 30_000_000
        hear("READY=1")
        process.child.send_signal(signal.SIGTERM)
        hear("STOPPING=1")
        assert process.wait() == 0


def test_activation_socket_in_the_open_is_refused_as_a_setting_would_be(provided: Rig) -> None:
    """Whoever opens the socket decides who can reach it: the rules for `host` hold for its address."""
    serve = ["-m", "proxy", "serve", "--state-dir", str(provided.state_dir)]
    with socket.create_server(("0.0.0.0", 0)) as listening:
        fd = listening.fileno()
        with pytest.raises(StartFailed) as caught:
            Process(["-c", ACTIVATED, str(fd), *serve], LISTENS, SUPERVISED, (fd,))
    assert caught.value.code == 2
    assert "host 0.0.0.0 is not loopback" in caught.value.err


def test_example_units_are_what_systemd_reads(tmp_path: Path) -> None:
    """By systemd's own check where it is installed; everywhere they hold what a supervisor with SIGTERM and SIGHUP needs."""
    units = {}
    for name in ("sendonce.service", "sendonce.socket"):
        text = (ROOT / "config" / name).read_text()
        (tmp_path / name).write_text(text.replace("/usr/local/bin/sendonce", sys.executable))
        units[name] = ConfigParser(interpolation=None)
        units[name].read_string(text)
    service = units["sendonce.service"]["Service"]
    assert (service["type"], service["restart"], service["killmode"]) == ("notify", "on-failure", "mixed")
    assert int(service["timeoutstopsec"]) >= Timeouts().stop_s + STOP_MARGIN_S
    assert units["sendonce.socket"]["Socket"]["listenstream"] == "127.0.0.1:8787"
    if (checker := shutil.which("systemd-analyze")) is not None:
        checked = subprocess.run(
            [checker, "verify", *map(str, tmp_path.glob("sendonce.*"))], capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, "")
