"""Decisions about many calls are one append; an answer that came back by another way is replayed; a wrong one is refused."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.harness.commands import command
from tests.harness.crashes import CHAT_PATH, MESSAGES_PATH, call_of, completed, events_of, held, records_of
from tests.harness.processes import Rig, chat, message

HELD = "synthetic/hold=forever,times=1"
WHY = ("--reason", "the provider's log")


@pytest.fixture
def unknowns(running: Rig) -> tuple[Rig, list[str]]:
    """Three chat calls and a message that the provider held when the proxy was killed, oldest first."""
    with ExitStack() as stack:
        for text in ("one", "two", "three"):
            stack.enter_context(held(running, CHAT_PATH, chat(HELD, text)))
        stack.enter_context(held(running, MESSAGES_PATH, message(HELD, "four"), {"anthropic-version": "2023-06-01"}))
        running.restart()
    return running, [row["call_id"] for row in reversed(running.calls())]


def decided(rig: Rig) -> list[str | None]:
    return [row["decision"] for row in reversed(rig.calls())]


def test_all_that_conditions_hold_for_are_decided_together(unknowns: tuple[Rig, list[str]]) -> None:
    """By upstream and time; what they do not hold for stays unknown."""
    rig, calls = unknowns
    about = ("--where", "upstream=openai", "--where", "since=2026-01-01", "--accept-duplicate", *WHY, "--json")
    done = command(rig, "reconcile", *about)
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout)["calls"]) == calls[:3]
    assert decided(rig) == ["accept_duplicate"] * 3 + [None]
    assert command(rig, "verify").returncode == 0


def test_parked_call_wants_a_decision_of_its_own(unknowns: tuple[Rig, list[str]]) -> None:
    """Conditions leave it out, and say so."""
    rig, calls = unknowns
    assert command(rig, "reconcile", calls[0], "--park", *WHY).returncode == 0
    done = command(rig, "reconcile", "--where", "upstream=openai", "--not-served", *WHY)
    assert done.returncode == 0
    assert f"1 more are parked or damaged and want decisions of their own, the first {calls[0]}" in done.stderr
    assert decided(rig) == ["parked", "not_served", "not_served", None]


def test_one_call_that_cannot_be_decided_keeps_all_from_it(unknowns: tuple[Rig, list[str]]) -> None:
    """All or nothing: a completed call, one that is not there, one that was decided otherwise."""
    rig, calls = unknowns
    whole = rig.chat(chat(text="whole")).headers["sendonce-call"]
    rig.settled()
    for wrong in (whole, "call_nothing"):
        events = events_of(rig)
        done = command(rig, "reconcile", *calls, wrong, "--park", *WHY)
        assert (done.returncode, wrong in done.stderr) == (6, True)
        assert events_of(rig) == events
    assert command(rig, "reconcile", calls[0], "--park", *WHY).returncode == 0
    done = command(rig, "reconcile", *calls, "--served", *WHY)
    assert done.returncode == 6
    assert "add --succeeds" in done.stderr
    assert decided(rig) == ["parked", None, None, None, None]


def test_same_bundle_again_adds_what_lacks_and_nothing_else(unknowns: tuple[Rig, list[str]]) -> None:
    """A rerun converges."""
    rig, calls = unknowns
    assert command(rig, "reconcile", *calls[:2], "--not-served", *WHY).returncode == 0
    events = events_of(rig)
    assert command(rig, "reconcile", *calls[:2], "--not-served", *WHY).returncode == 0
    assert events_of(rig) == events
    assert command(rig, "reconcile", *calls, "--not-served", *WHY).returncode == 0
    assert events_of(rig) == events + 4
    assert decided(rig) == ["not_served"] * 4


UNCLEAR: Final[list[tuple[tuple[str, ...], str]]] = [
    (("--park",), "Name calls, or --where"),
    (("call_x", "--where", "upstream=openai", "--park"), "Name calls, or --where"),
    (
        ("--where", "model=gpt", "--park"),
        "--where 'model=gpt' is no condition. Give one of upstream=…, since=…, until=…",
    ),
    (("--where", "since=yesterday", "--park"), "--where since 'yesterday' is no date"),
    (("--where", "upstream=nobody", "--park"), "No undecided call in "),
    (("a", "b", "--served", "--response", "x"), "--response is the answer to one call"),
    (("a", "--park", "--response", "x"), "--response is the answer to one call"),
    (("a", "--served", "--response", "/nowhere"), "--response /nowhere cannot be read"),
    (("a", "b", "--park", "--succeeds", "3"), "--succeeds is the decision about one call"),
]


def test_unclear_decision_is_a_sentence(unknowns: tuple[Rig, list[str]]) -> None:
    """It names what is missing, and nothing is written."""
    rig, _ = unknowns
    events = events_of(rig)
    for arguments, sentence in UNCLEAR:
        done = command(rig, "reconcile", *arguments, *WHY)
        assert (done.returncode, sentence in done.stderr) == (2, True), done.stderr
    assert events_of(rig) == events


def answer_to(rig: Rig, text: str) -> bytes:
    """What the provider answers to the same request, asked past the proxy."""
    return rig.post(CHAT_PATH.removeprefix("/openai"), chat(text=text), port=rig.provider_process.port).body


def test_answer_from_elsewhere_is_replayed(unknowns: tuple[Rig, list[str]], tmp_path: Path) -> None:
    """Byte for byte, to whoever asks again; the verifier finds nothing wrong with it."""
    rig, calls = unknowns
    answer = answer_to(rig, "one")
    (tmp_path / "answer.json").write_bytes(answer)
    done = command(rig, "reconcile", calls[0], "--served", "--response", str(tmp_path / "answer.json"), *WHY)
    assert done.returncode == 0, done.stderr
    assert "Its answer is on record" in done.stdout
    count = len(rig.provider_receipts())
    again = rig.chat(chat(HELD, "one"))
    assert (again.status, again.disposition, again.body) == (200, "replayed", answer)
    assert len(rig.provider_receipts()) == count
    assert rig.show(calls[0])["usage"]["total_tokens"] > 0
    assert [one["source"] for one in records_of(rig, calls[0], "attempt.observed")] == ["recovered"]
    assert command(rig, "verify").returncode == 0


# Nothing, text, another dialect, an error, a stream without its end, half a document, an unfinished answer, another encoding.
NO_ANSWERS: Final = [
    b"",
    b"no json",
    b'{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"text","text":"hi"}]}',
    b'{"error":{"message":"no","type":"server_error"}}',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n',
    b'{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0',
    b'{"id":"chatcmpl-1","choices":[{"index":0,"message":{"content":"hi"},"finish_reason":null}]}',
    '{"id":"c","choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}]}'.encode("utf-16"),
]


def test_file_that_is_no_answer_is_refused(unknowns: tuple[Rig, list[str]], tmp_path: Path) -> None:
    """It names the file and what is wanted, and the call stays as it was."""
    rig, calls = unknowns
    before = rig.show(calls[0])
    for number, wrong in enumerate(NO_ANSWERS):
        (tmp_path / f"answer-{number}").write_bytes(wrong)
        done = command(rig, "reconcile", calls[0], "--served", "--response", str(tmp_path / f"answer-{number}"), *WHY)
        assert done.returncode == 6, wrong
        assert f"{tmp_path / f'answer-{number}'} is no whole answer as openai_chat has it" in done.stderr
    assert rig.show(calls[0]) == before


def test_answer_of_another_form_is_refused_to_who_streams(running: Rig, tmp_path: Path) -> None:
    """A document cannot be told as the stream that was asked for; who asks for the document gets it."""
    body = chat(HELD, "streamed", stream=True)
    with held(running, CHAT_PATH, body):
        running.restart()
    call = call_of(running)["call_id"]
    answer = answer_to(running, "streamed")
    (tmp_path / "answer.json").write_bytes(answer)
    done = command(running, "reconcile", call, "--served", "--response", str(tmp_path / "answer.json"), *WHY)
    assert done.returncode == 0, done.stderr
    assert running.chat(body).code == "form_differs"
    assert running.chat(chat(HELD, "streamed")).body == answer


def test_without_an_owner_decisions_are_made_under_the_lock(unknowns: tuple[Rig, list[str]]) -> None:
    """Salvage first, then all of it; the next proxy finds it so."""
    rig, _ = unknowns
    assert rig.proxy_process is not None
    rig.proxy_process.kill()
    done = command(rig, "reconcile", "--where", "until=2100-01-01", "--not-served", *WHY)
    assert done.returncode == 0, done.stderr
    rig.start()
    assert decided(rig) == ["not_served"] * 4
    assert rig.chat(chat(HELD, "one")).disposition == "forwarded"
    assert completed(rig)["generation"] == 2
