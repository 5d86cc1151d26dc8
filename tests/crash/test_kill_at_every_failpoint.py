"""SIGKILL at every named point of a request's way, at its first passing, its second, … until the request gets through.

After each kill the provider's receipts, the stage that `sendonce calls` shows, and the answer to the same request must fit
together, by the table of semantics section 4. docs/failpoints.md says the same in words.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest

from tests.harness.crashes import (
    CHAT_PATH,
    begin,
    call_of,
    digest_of,
    events_of,
    kill_while_held,
    read_until_cut,
    receipts_of,
    until,
)
from tests.harness.processes import ROOT, Answer, Rig, StartFailed, chat, provider_in

SIGKILLED: Final = -9
PASSINGS_LIMIT: Final = 30
# The body comes so long after the head that the head's event is committed before: passings then mean the same each time.
MODEL: Final = "synthetic/chunks=3,delay=0.1,interval=0.02"

# Point -> the stages that a kill at its first, second, … passing leaves after the restart, as a pattern.
LEFT_BY_JSON: Final = {
    "after-manifest": "manifest_recorded",
    "after-connect": "manifest_recorded",
    # claim, start, head (its spool may have begun), observation: salvaged whole, then reading and delivery in any order
    "before-commit": "nothing manifest_recorded effect_(unknown|happened)( completed)+",
    "after-commit": "manifest_recorded not_sent effect_happened( completed)+",
    "before-receipt-sync": "effect_unknown",
    "after-sent-receipt": "effect_unknown",
    "after-attempt-started": "effect_unknown",
    "after-first-byte": "effect_unknown",
    "after-head": "effect_happened",
    "mid-stream": "completed",
    "before-observed": "completed",
    "after-observed": "completed",
    "before-release": "completed",
    "after-release": "completed",
    "after-interpreted": "completed",
}
# How many pieces a stream comes in is the network's choice anew in each run, so the last one may never be killed at.
LEFT_BY_STREAM: Final = LEFT_BY_JSON | {"mid-stream": "effect_happened( effect_happened)*( completed)*"}
AT_START: Final = ("recovery-before-epoch", "recovery-after-epoch")
AT_PRUNE: Final = ("prune-erased", "prune-swept")  # killed at in tests/contract/test_prune.py

# Stage before the request came again -> disposition, code, is it sent. Derived keys; see `expected`.
TABLE: Final = {
    "nothing": ("forwarded", None, True),
    "manifest_recorded": ("resumed", None, True),
    "not_sent": ("resumed", None, True),
    "effect_unknown": ("refused", "effect_unknown", False),
    "effect_happened": ("refused", "effect_happened", False),
    "completed": ("replayed", None, False),
}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One provider for all runs; each has a state dir of its own."""
    with provider_in(tmp_path_factory.mktemp("provider")) as made:
        yield made


def expected(row: dict[str, Any] | None, *, explicit: bool) -> tuple[str, str | None, bool]:
    """A delivered answer of a derived key is over: the same request is then a second sample."""
    if row is None:
        return TABLE["nothing"]
    if row["stage"] == "completed" and row["delivered"] and not explicit:
        return "forwarded", None, True
    return TABLE[row["stage"]]


def first_try(rig: Rig, body: bytes, headers: dict[str, str]) -> tuple[Answer | None, bytes, bool]:
    """The answer, what came of it, and whether the proxy died: else everything of the call is recorded when this returns."""
    with closing(begin(rig, CHAT_PATH, body, headers)) as connection:
        answer, received = read_until_cut(connection)
    assert rig.proxy_process is not None
    child = rig.proxy_process.child

    def over() -> bool:
        if answer is None:
            return child.poll() is not None
        rows = rig.calls()
        return child.poll() is not None or bool(rows and rows[0]["stage"] == "completed" and rows[0]["delivered"])

    until(over)
    if answer is not None and child.poll() is None and not rig.status()["running"]:
        until(lambda: child.poll() is not None)  # killed right after the last commit
    return answer, received, child.poll() is not None


def same_request_again(rig: Rig, body: bytes, headers: dict[str, str], received: bytes, *, explicit: bool) -> str:
    """Checks the answer, the provider's receipts and the ledger against the stage that stood before; returns the stage."""
    rows = rig.calls()
    row = rows[0] if rows else None
    sent, events = len(receipts_of(rig, body)), events_of(rig)
    assert sent <= 1
    answer = rig.chat(body, headers)
    disposition, code, is_sent = expected(row, explicit=explicit)
    assert (answer.disposition, None if answer.status == 200 else answer.code) == (disposition, code)
    assert len(receipts_of(rig, body)) == sent + is_sent
    stage = row["stage"] if row else "nothing"
    if stage in ("nothing", "manifest_recorded", "not_sent"):
        assert sent == 0  # the record says it was not sent; the provider agrees
    if disposition == "refused":
        assert events_of(rig) == events
    if disposition == "replayed":
        assert row is not None
        assert digest_of(answer.body) == rig.show(row["call_id"])["attempt_rows"][0]["response_blake3"]
        assert answer.body.startswith(received)
        assert answer.headers["idempotency-replayed"] == "true"
    return stage


@pytest.mark.parametrize("key", ["derived", pytest.param("explicit", marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", ["json", "stream"])
@pytest.mark.parametrize("point", LEFT_BY_JSON)
def test_kill_at_failpoint_leaves_what_the_table_answers(provider: Rig, point: str, form: str, key: str) -> None:
    """Whatever passing dies, at most one effect is possible, and the same request gets exactly its stage's answer."""
    stages: list[str] = []
    for passing in range(1, PASSINGS_LIMIT):
        name = f"{point}-{form}-{key}-{passing}"
        rig = Rig(provider.directory, provider.provider_process, state_name=name)
        body = chat(MODEL, name, stream=form == "stream")
        headers = {"Idempotency-Key": name} if key == "explicit" else {}
        try:
            process = rig.start(f"{point}=kill@{passing}")
            answer, received, died = first_try(rig, body, headers)
            if not died:
                assert answer is not None
                assert (answer.status, answer.disposition, len(receipts_of(rig, body))) == (200, "forwarded", 1)
                break
            assert process.wait() == SIGKILLED
            rig.restart()
            stages.append(same_request_again(rig, body, headers, received, explicit=key == "explicit"))
            if answer is not None:  # I2: who saw the end will always find it on record
                assert stages[-1] == "completed"
        finally:
            rig.leave()
    left = (LEFT_BY_STREAM if form == "stream" else LEFT_BY_JSON)[point]
    assert re.fullmatch(left, " ".join(stages)), stages


@pytest.mark.parametrize("point", AT_START)
def test_kill_during_recovery_is_recovered_from(running: Rig, point: str) -> None:
    """A start that dies midway is repeated: the same call is found, and still refused."""
    body = chat("synthetic/hold=forever")
    kill_while_held(running, CHAT_PATH, body)
    before = call_of(running)
    assert running.proxy_process is not None
    running.proxy_process.kill()
    with pytest.raises(StartFailed) as died:
        running.start(f"{point}=kill")
    assert died.value.code == SIGKILLED
    running.start()
    assert call_of(running) == before
    assert same_request_again(running, body, {}, b"", explicit=False) == "effect_unknown"


def points_in_source() -> set[str]:
    sources = [path for package in ("ledger", "proxy") for path in (ROOT / package).rglob("*.py")]
    return {point for path in sources for point in re.findall(r'\bpassed\("([a-z-]+)"\)', path.read_text())}


def test_every_failpoint_of_the_source_is_killed_at_and_documented() -> None:
    """A point that is missing here would be a crash nobody has looked at."""
    documented = re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs" / "failpoints.md").read_text(), re.MULTILINE)
    assert {*LEFT_BY_JSON, *AT_START, *AT_PRUNE} == points_in_source() == set(documented)
    assert len(documented) == len(set(documented))
