"""`sendonce reinterpret`: a newer reading beside the older one, from preserved bytes, of every dialect; no provider is asked."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.commands import command
from tests.harness.crashes import records_of
from tests.harness.processes import Rig, chat, message
from tests.harness.settlements import read_by_version_1

TOOL = "synthetic/tool_call=1"
WIRES: dict[str, tuple[str, bytes]] = {
    "chat": ("/openai/v1/chat/completions", chat(TOOL)),
    "chat stream": ("/openai/v1/chat/completions", chat(TOOL, stream=True)),
    "responses": ("/openai/v1/responses", json.dumps({"model": TOOL, "input": "hi"}).encode()),
    "responses stream": ("/openai/v1/responses", json.dumps({"model": TOOL, "input": "hi", "stream": True}).encode()),
    "messages": ("/anthropic/v1/messages", message(TOOL)),
    "messages stream": ("/anthropic/v1/messages", message(TOOL, stream=True)),
    "gemini": (
        "/gemini/v1beta/models/synthetic%2Ftool_call=1:generateContent",
        json.dumps({"contents": [{"parts": [{"text": "hi"}]}]}).encode(),
    ),
    "generic": ("/openai/v1/embeddings", b'{"model": "synthetic", "input": "hi"}'),
}


def readings(rig: Rig, call: str) -> list[dict[str, Any]]:
    return records_of(rig, call, "attempt.interpreted")


def test_every_dialect_is_read_anew_and_nothing_is_replaced(unstarted: Rig) -> None:
    """Usage, model, ids and tool calls are there again; the older reading stays on record; a rerun adds nothing."""
    rig = unstarted
    rig.arguments += ["--upstream", f"gemini={rig.provider_url}"]
    rig.start()
    calls = {}
    for wire, (path, body) in WIRES.items():
        answer = rig.post(path, body, {"anthropic-version": "2023-06-01"})
        assert answer.status == 200, answer.body
        calls[wire] = answer.headers["sendonce-call"]
    rig.settled()
    assert rig.proxy_process is not None
    rig.proxy_process.stop()
    for call in calls.values():
        read_by_version_1(rig, call)
    count = len(rig.provider_receipts())
    done = command(rig, "reinterpret", "--json")
    assert (done.returncode, json.loads(done.stdout)["added"]) == (0, sorted(calls.values())), done.stderr
    for wire, call in calls.items():
        first, old, new = readings(rig, call)
        assert old["interpreter"] == 1 < new["interpreter"]
        assert new == first
        if wire != "generic":
            assert [tool["name"] for tool in new["tool_calls"]] == ["synthetic_tool"]
            assert bool(new["usage"]) == (wire != "chat stream")  # which states it only where that is asked for
    assert json.loads(command(rig, "reinterpret", "--json").stdout)["added"] == []
    assert len(rig.provider_receipts()) == count
    assert command(rig, "verify").returncode == 0


def test_beside_a_living_proxy_one_call_can_be_named(running: Rig) -> None:
    """It is the owner who reads; what is read already stays as it is; a call that is not there is a sentence."""
    call = running.chat(chat()).headers["sendonce-call"]
    running.settled()
    done = command(running, "reinterpret", call, "--json")
    assert json.loads(done.stdout) == {"looked_at": 1, "added": []}
    done = command(running, "reinterpret", "call_nothing")
    assert (done.returncode, "There is no call call_nothing" in done.stderr) == (6, True)


def test_erased_answer_keeps_its_reading(running: Rig) -> None:
    """There is nothing left to read."""
    call = running.chat(chat()).headers["sendonce-call"]
    running.settled()
    assert command(running, "prune", "--older-than", "0").returncode == 0
    assert running.proxy_process is not None
    running.proxy_process.stop()
    read_by_version_1(running, call)
    assert json.loads(command(running, "reinterpret", "--json").stdout)["added"] == []


def test_tool_call_is_shown_with_what_became_of_it(running: Rig) -> None:
    """Delivered, and its result in a later request; one whose document broke off cannot have run."""
    answer = running.chat(chat(TOOL, "use it"))
    call = answer.headers["sendonce-call"]
    tool = answer.json["choices"][0]["message"]["tool_calls"][0]["id"]
    messages = [{"role": "user", "content": "use it"}, {"role": "tool", "tool_call_id": tool, "content": "done"}]
    later = running.chat(json.dumps({"model": "synthetic", "messages": messages}).encode()).headers["sendonce-call"]
    running.settled()
    (row,) = running.show(call)["tool_calls"]
    assert (row["id"], row["relayed"], row["result_in"]) == (tool, "yes", later)
    done = command(running, "show", call)
    assert f"its client got it; its result came in {later}" in done.stdout
    with pytest.raises(Exception):  # noqa: B017, PT011 - however the client notices
        running.chat(chat("synthetic/tool_call=1,cut=1", "broken"))
    running.settled()
    broken = running.calls()[0]
    assert (broken["stage"], running.show(broken["call_id"])["tool_calls"]) == ("effect_happened", [])


def test_upstream_that_is_not_configured_is_not_read_anew(running: Rig, tmp_path: Path) -> None:
    """What its answers prove stands in its settings; read without them, a 400 that may be billed would open the way to another."""
    (tmp_path / "s.toml").write_text(
        f'[upstreams.azure]\nbase_url = "{running.provider_url}"\nfamily = "openai"\nanswered_statuses = [400]\n'
    )
    assert running.proxy_process is not None
    running.proxy_process.close()
    running.arguments += ["--config", str(tmp_path / "s.toml")]
    running.start()
    path = "/azure/v1/chat/completions"
    call = running.post(path, chat("synthetic/status=400")).headers["sendonce-call"]
    running.settled()
    assert running.proxy_process.stop() == 0
    read_by_version_1(running, call)
    before = readings(running, call)
    assert before[-1]["effect"] == "answered"
    assert json.loads(command(running, "reinterpret", "--json").stdout)["added"] == []
    assert readings(running, call) == before
