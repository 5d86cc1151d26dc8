"""A random credential goes through everything, and is then looked for in every byte we wrote (I8)."""

import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.harness.crashes import CHAT_PATH, CUT, MESSAGES_PATH, kill_while_held, records_of
from tests.harness.processes import Process, Rig, StartFailed, chat, message, start_provider


def ended(process: Process | None, said: list[str]) -> None:
    """Kills it, and keeps all that it wrote to stdout and stderr."""
    assert process is not None
    process.close()
    said += [*process.said, process.complained]


def written(rig: Rig) -> dict[str, bytes]:
    """Every file of the state dir, ledger, WAL, receipts, spool and log alike."""
    files = [path for path in rig.state_dir.rglob("*") if path.is_file()]
    return {str(path.relative_to(rig.state_dir)): path.read_bytes() for path in files}


def leaks(canaries: list[str], texts: dict[str, bytes]) -> list[tuple[str, str]]:
    forms = [form for canary in canaries for form in (canary, quote(canary, safe=""), canary[5:-5])]
    return [(name, form) for name, text in texts.items() for form in forms if form.encode() in text]


def use_every_way(rig: Rig, said: list[str], canaries: list[str]) -> None:
    """Success, provider error, bad request, refusal, crash and cut, with each canary where its provider wants it."""
    bearer, api_key, parameter = canaries
    path = f"{CHAT_PATH}?api-version=marker-in-query&key={parameter}"
    headers = {"Authorization": f"Bearer {bearer}", "x-api-key": api_key, "anthropic-version": "2023-06-01"}
    models = ("synthetic", "synthetic/status=500", "synthetic/status=401", "synthetic/reset=before", "synthetic/cut=1")
    for model in models:
        for stream in (False, True):
            for target, body in ((path, chat(model, stream=stream)), (MESSAGES_PATH, message(model, stream=stream))):
                for _ in range(2):
                    try:
                        rig.post(target, body, headers)
                    except CUT:
                        continue
    rig.post(f"/nowhere/{parameter}?key={parameter}", chat(), headers)
    rig.post(path, chat(), headers | {"Idempotency-Key": "two words"})
    rig.post(f"/openai/../{parameter}", chat(), headers)
    crashed = rig.proxy_process
    kill_while_held(rig, path, chat("synthetic/hold=forever", "held"), headers)
    ended(crashed, said)
    assert rig.post(path, chat("synthetic/hold=forever", "held"), headers).code == "effect_unknown"
    ended(rig.proxy_process, said)
    rig.start("mid-stream=kill")
    with pytest.raises(CUT):
        rig.post(path, chat("synthetic/chunks=9,interval=0.01", "cut", stream=True), headers)
    spooled = [name for name in written(rig) if name.startswith("spool/")]
    assert spooled
    ended(rig.proxy_process, said)
    assert leaks(canaries, written(rig)) == []  # also with the spool still there
    rig.start()
    rig.provider_process.kill()
    for target in (path, f"/openai/v1/models?key={parameter}"):
        assert rig.post(target, chat(text="unreachable"), headers).status == 503


def test_credential_is_in_no_byte_we_wrote(running: Rig) -> None:
    """Files of the state dir, stdout and stderr, after success, refusal, error, crash and a start that failed."""
    said: list[str] = []
    canaries = [f"sk-canary-{secrets.token_hex(16)}+{place}" for place in ("bearer", "api-key", "parameter")]
    canaries[2] = canaries[2].replace("+", "")  # a query would read it as a space
    use_every_way(running, said, canaries)
    received = running.provider_receipts()
    assert any(canaries[2] in receipt["path"] for receipt in received)  # the provider did get it
    assert {"authorization", "x-api-key"} <= set(received[0]["header_names"])
    shown = [running.command("calls", "--json"), running.command("status"), running.command("doctor")]
    shown.append(running.command("show", running.calls()[0]["call_id"], "--json"))
    said += [done.stdout + done.stderr for done in shown]
    ended(running.proxy_process, said)
    with pytest.raises(StartFailed) as failed:
        running.start("", "--upstream", f"openai=http://user:{canaries[0]}@127.0.0.1:1")
    said += [failed.value.out, failed.value.err]
    files = written(running)
    assert {Path(name).name for name in files} >= {"ledger.db", "000001.jsonl", "activity.log", "secret"}
    assert any(b"marker-in-query" in text for text in files.values())  # the search does find what is recorded
    texts = files | {f"output {number}": text.encode() for number, text in enumerate(said)}
    assert leaks(canaries, texts) == []


@contextmanager
def full_backlog() -> Iterator[str]:
    """The address of a listener that never accepts and whose queue is full: the kernel drops every further SYN."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_credential_of_a_connection_that_timed_out_is_in_no_byte_we_wrote(tmp_path: Path) -> None:
    """The error of the HTTP client quotes the whole URL; what goes on record is its class and the proof."""
    canary = f"canary{secrets.token_hex(16)}"
    config, said = tmp_path / "sendonce.toml", list[str]()
    config.write_text("[timeouts]\nupstream_connect_s = 0.3\n")
    with full_backlog() as address:
        made = Rig(tmp_path, start_provider(tmp_path / "provider.jsonl"), ["--config", str(config)])
        try:
            made.start("", "--upstream", f"gemini={address}")
            path = f"/gemini/v1beta/models/marker-in-path:generateContent?key={canary}"
            for headers in ({}, {"Idempotency-Key": "explicit"}, {"x-goog-api-key": canary}):
                answer = made.post(path, b'{"contents": []}', headers)
                assert (answer.status, answer.code) == (503, "upstream_unreachable")
                assert canary not in answer.body.decode()
            made.settled()
            assert {row["stage"] for row in made.calls()} == {"manifest_recorded"}
            calls = [row["call_id"] for row in made.calls()]
            reasons = [record["reason"] for call in calls for record in records_of(made, call, "call.abandoned")]
            assert reasons == ["no connection (ConnectionTimeoutError)"] * 3
            said.append(made.command("show", calls[0], "--json").stdout)
            ended(made.proxy_process, said)
        finally:
            made.close()
    files = written(made)
    assert any(b"marker-in-path" in text for text in files.values())
    assert leaks([canary], files | {f"output {number}": text.encode() for number, text in enumerate(said)}) == []
