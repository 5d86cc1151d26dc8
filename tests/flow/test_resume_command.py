"""`sendonce resume`: what provably never left is sent once, from its recorded bytes, as the next generation; nothing else is."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.harness.crashes import CHAT_PATH, CUT, call_of, events_of, held, receipts_of, records_of
from tests.harness.looked_up import configured, generating, operator
from tests.harness.passes import open_pass
from tests.harness.processes import Rig, chat, start_provider, until

KEYED = {"Idempotency-Key": "mine"}
CONTEXT = {"Sendonce-Context-Package": "sha256:1", "Sendonce-Task": "t-1"}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with configured(tmp_path) as made:
        yield made


def left(rig: Rig, body: bytes, headers: dict[str, str] | None = None, point: str = "after-manifest") -> str:
    """Killed before anything left; a new proxy runs. The call."""
    rig.start(f"{point}=kill")
    with pytest.raises(CUT):
        rig.chat(body, headers)
    rig.restart()
    return str(call_of(rig)["call_id"])


def resumed(rig: Rig, call: str, *more: str) -> dict[str, Any]:
    done = operator(rig, "resume", call, *more, "--json")
    assert done.returncode in (0, 6), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == (document["effect"] == "happened")
    return document


@pytest.mark.parametrize("headers", [{}, KEYED, CONTEXT], ids=["derived", "explicit", "context"])
@pytest.mark.parametrize("point", ["after-manifest", "after-connect"])
def test_call_that_never_left_is_sent_and_its_client_gets_the_answer(
    rig: Rig, headers: dict[str, str], point: str
) -> None:
    """The very bytes, as a linked next generation; the client's own next try is a replay."""
    body = chat()
    call = left(rig, body, headers, point)
    document = resumed(rig, call)
    assert (document["stage"], document["effect"], document["next_operation"]) == ("completed", "happened", "none")
    (receipt,) = receipts_of(rig, body)
    assert receipt["idempotency_key"] == headers.get("Idempotency-Key")
    row = rig.show(document["resumed_as"])
    assert (row["generation"], row["superseded_by"], row["manifest"]["body"]) == (
        2,
        None,
        rig.show(call)["manifest"]["body"],
    )
    (linked,) = records_of(rig, document["resumed_as"], "call.resumed")
    assert (linked["continues"], linked["differences"]) == (call, [])
    again = rig.chat(body, headers)
    assert (again.status, again.disposition) == (200, "replayed")
    assert len(generating(rig)) == 1
    assert rig.command("verify").returncode == 0


def test_without_an_owner_it_is_sent_under_the_lock(rig: Rig) -> None:
    """The command serves it itself, and leaves everything closed."""
    body = chat(stream=True)
    call = left(rig, body)
    assert rig.proxy_process is not None
    rig.proxy_process.kill()
    assert resumed(rig, call)["effect"] == "happened"
    rig.start()
    assert rig.chat(body).disposition == "replayed"
    assert len(generating(rig)) == 1


def test_call_decided_not_served_is_sent(rig: Rig) -> None:
    """By the operator's decision, which its claim names."""
    body = chat("synthetic/hold=forever,times=1")
    rig.start()
    with held(rig, CHAT_PATH, body):
        rig.restart()
    call = call_of(rig)["call_id"]
    done = operator(rig, "resume", call)
    assert done.returncode == 6
    assert "it may have been served, so it is not sent again. Its next operation is reconcile_effect." in done.stderr
    assert operator(rig, "reconcile", call, "--not-served", "--reason", "its log").returncode == 0
    document = resumed(rig, call)
    claim = rig.claim(document["resumed_as"])
    assert (claim.why_new, claim.continues, claim.authority and claim.authority.kind) == ("decision", call, "operator")
    assert len(generating(rig)) == 2


def test_provider_that_refuses_leaves_another_absent_effect(rig: Rig) -> None:
    """It can be resumed again."""
    body = chat("synthetic/status=429,times=1")
    call = left(rig, body)
    first = resumed(rig, call)
    assert (first["effect"], first["next_operation"]) == ("absent", "start_call")
    assert resumed(rig, first["resumed_as"])["effect"] == "happened"
    done = operator(rig, "resume", call)
    assert done.returncode == 6
    assert f"{call} was continued by {first['resumed_as']}" in done.stderr
    assert len(generating(rig)) == 2


def test_provider_that_is_away_leaves_it_to_be_resumed_again(rig: Rig) -> None:
    """It says so, and what was not sent is sent later, once."""
    call = left(rig, chat())
    port = rig.provider_process.port
    rig.provider_process.close()
    done = operator(rig, "resume", call)
    assert done.returncode == 6
    assert "The provider did not serve it, so it can be resumed again" in done.stdout
    rig.provider_process = start_provider(rig.receipts_file, port=port)
    assert resumed(rig, call_of(rig)["call_id"])["effect"] == "happened"
    assert len(generating(rig)) == 1


def test_stop_does_not_wait_for_a_resume_longer_than_for_any_call(rig: Rig) -> None:
    """It is cut like the others, and is unknown then; the command says where it stands."""
    call = left(rig, chat("synthetic/hold=forever"))
    assert rig.proxy_process is not None
    rig.proxy_process.close()
    rig.arguments += ["--config", str(short_stop(rig))]
    rig.start()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(rig.command, "status")  # a worker of its own is there before the clock matters
        asked.result()
        resuming = pool.submit(operator, rig, "resume", call)
        until(lambda: len(generating(rig)) == 1)
        assert rig.proxy_process.stop() == 0
        done = resuming.result()
    assert done.returncode == 6
    assert f"{call} was continued by" in done.stderr
    rig.start()
    assert call_of(rig)["next_operation"] == "reconcile_effect"


def short_stop(rig: Rig) -> Path:
    """The rig's settings, and half a second for a stop."""
    path = rig.directory / "short.toml"
    path.write_text("timeouts = { stop_s = 0.5 }\n" + (rig.directory / "sendonce.toml").read_text())
    return path


@pytest.mark.parametrize("again", ["client", "resume"])
def test_call_recorded_before_the_level_was_raised_is_continued_with_the_difference_on_record(
    rig: Rig, again: str
) -> None:
    """A tag makes other bytes of it; the intention is the same, and the verifier finds both told."""
    body = json.dumps({"model": "synthetic", "store": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
    call = left(rig, body)
    assert rig.proxy_process is not None
    rig.proxy_process.close()
    text = (rig.directory / "sendonce.toml").read_text()
    (rig.directory / "sendonce.toml").write_text(
        text.replace("[upstreams.openai]", "[upstreams.openai]\ninjection = 1")
    )
    rig.start()
    if again == "client":
        assert rig.chat(body).disposition == "resumed"
    else:
        resumed(rig, call)
    rig.settled()
    (linked,) = records_of(rig, call_of(rig)["call_id"], "call.resumed")
    assert (linked["continues"], linked["differences"]) == (call, ["body"])
    assert rig.command("verify").returncode == 0


def test_head_that_moved_on_refuses(rig: Rig) -> None:
    """What the operator saw has to be what stands."""
    call = left(rig, chat())
    seq = rig.show(call)["head"]["seq"]
    for wrong in (seq - 1, seq + 1):
        done = operator(rig, "resume", call, "--head", str(wrong))
        assert done.returncode == 6
        assert f"Something was recorded of {call} since {wrong}: it stands at {seq} now" in done.stderr
    assert generating(rig) == []
    assert resumed(rig, call, "--head", str(seq))["effect"] == "happened"


def test_headers_that_are_not_on_record_have_to_be_left_out_on_purpose(rig: Rig) -> None:
    """To a gateway they may be half of the request."""
    call = left(rig, chat(), {"X-Portkey-Config": "pc-1", "Accept-Language": "de"})
    done = operator(rig, "resume", call)
    assert done.returncode == 6
    assert "sent headers that are not on record: x-portkey-config. If" in done.stderr
    assert generating(rig) == []
    assert resumed(rig, call, "--leave-out")["effect"] == "happened"


def test_proxy_that_is_ending_resumes_nothing(rig: Rig) -> None:
    """What it would leave in flight at its end would be unknown."""
    call = left(rig, chat())
    body = chat("synthetic/hold=1.5", "held")
    with held(rig, CHAT_PATH, body):
        assert rig.proxy_process is not None
        rig.proxy_process.child.terminate()
        until(lambda: not rig.status()["admitting"])
        done = operator(rig, "resume", call)
    assert done.returncode == 6
    assert "The proxy is ending" in done.stderr
    assert len(generating(rig)) == 1


def test_another_key_is_another_caller(rig: Rig) -> None:
    """It is not sent with somebody else's money; nor without any key."""
    call = left(rig, chat())
    events = events_of(rig)
    done = operator(rig, "resume", call, key="sk-somebody-else")
    assert done.returncode == 6
    assert "The credential is not the one of the caller of" in done.stderr
    done = operator(rig, "resume", call, key="")
    assert done.returncode == 2
    assert "OPENAI_API_KEY holds no key for openai" in done.stderr
    assert (events_of(rig), generating(rig)) == (events, [])


def test_upstream_that_moved_is_drift(rig: Rig, tmp_path: Path) -> None:
    """What was meant for one address is not sent to another."""
    call = left(rig, chat())
    assert rig.proxy_process is not None
    rig.proxy_process.kill()
    text = (tmp_path / "sendonce.toml").read_text().replace(rig.provider_url, rig.provider_url + "/elsewhere")
    (tmp_path / "sendonce.toml").write_text(text)
    done = operator(rig, "resume", call)
    assert done.returncode == 6
    assert "where openai no longer points" in done.stderr
    assert generating(rig) == []


@pytest.mark.parametrize("stage", ["completed", "unknown call"])
def test_what_cannot_be_resumed_says_what_is_next(rig: Rig, stage: str) -> None:
    """A whole answer needs nothing; a call that is not there is not found."""
    rig.start()
    call = rig.chat(chat()).headers["sendonce-call"]
    rig.settled()
    done = operator(rig, "resume", call if stage == "completed" else "call_nothing")
    assert done.returncode == (6 if stage == "completed" else 2)
    assert ("Its next operation is none" if stage == "completed" else "There is no call call_nothing") in done.stderr
    assert len(generating(rig)) == 1


def test_call_of_a_run_is_left_to_its_run(rig: Rig) -> None:
    """Starting the run again is how it goes on."""
    rig.start("after-manifest=kill")
    open_pass(rig, "nightly").cut_chat(chat())
    rig.restart()
    done = operator(rig, "resume", call_of(rig)["call_id"])
    assert done.returncode == 6
    assert "sendonce run --id nightly" in done.stderr


@pytest.mark.parametrize(
    ("point", "sent_by_then", "goes_on"),
    [
        ("after-manifest", 0, True),
        pytest.param("after-connect", 0, True, marks=pytest.mark.slow),
        pytest.param("after-attempt-started", 0, False, marks=pytest.mark.slow),
        ("after-sent-receipt", 0, False),
        pytest.param("after-head", 1, False, marks=pytest.mark.slow),
        ("before-observed", 1, None),
        pytest.param("after-observed", 1, None, marks=pytest.mark.slow),
    ],
)
def test_resume_killed_during_its_send_never_sends_twice(
    rig: Rig, point: str, sent_by_then: int, goes_on: bool | None
) -> None:
    """What the kill left is judged like any other call's: it goes on, is refused, or (None) has its answer."""
    body = chat()
    left(rig, body)
    assert rig.proxy_process is not None
    rig.proxy_process.close()
    rig.start(f"{point}=kill")
    operator(rig, "resume", call_of(rig)["call_id"])  # where its owner dies, the command looks again, as the next owner
    rig.restart()
    assert len(generating(rig)) == sent_by_then
    newest = call_of(rig)
    done = operator(rig, "resume", newest["call_id"])
    assert done.returncode == (0 if goes_on else 6), done.stderr
    assert len(generating(rig)) == max(sent_by_then, int(bool(goes_on)))
    if goes_on is None:
        assert newest["stage"] == "completed"
        assert rig.chat(body).disposition == "replayed"
    assert rig.command("verify").returncode == 0
