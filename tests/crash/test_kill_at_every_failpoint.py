"""SIGKILL at every named point of a request's way, at its first passing, its second, … until the request gets through.

After each kill the provider's receipts, the stage that `sendonce calls` shows, and the answer to the same request must fit
together, by the table of semantics section 4. docs/crash-points.md is made from what is seen here, and must tell the same.
"""

import itertools
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from proxy.control import OwnerUnreachableError
from tests.harness import crash_points, settlements
from tests.harness.crash_points import (
    ANSWERED,
    AT_DECISION,
    AT_PRUNE,
    AT_REINTERPRETATION,
    AT_RUN,
    AT_START,
    ON_THE_WAY,
    POINTS,
    Kill,
)
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
from tests.harness.passes import OpenPass, open_pass
from tests.harness.processes import ROOT, Answer, Rig, StartFailed, chat, provider_in
from tests.harness.prunes import prune_process

SIGKILLED: Final = -9
PASSINGS_LIMIT: Final = 30
# The body comes so long after the head that the head's event is committed before: passings then mean the same each time.
MODEL: Final = "synthetic/chunks=3,delay=0.1,interval=0.02"
# Where one of several passings dies, that must hold on a slow machine, too; so must the first piece of a stream come alone.
SLOW: Final = "synthetic/chunks=3,delay=0.7,interval=0.4"
SEVERAL: Final = ("before-commit", "after-commit", "mid-stream")
PASSED_ONCE: Final = [point for point in ON_THE_WAY if point not in SEVERAL]
# What the answer will look like has not mattered yet.
BEFORE_AN_ANSWER: Final = PASSED_ONCE[: PASSED_ONCE.index("after-head")]


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One provider for all runs; each has a state dir of its own."""
    with provider_in(tmp_path_factory.mktemp("provider")) as made:
        yield made


def stage_of(row: dict[str, Any] | None) -> str:
    if row is None:
        return "nothing"
    return "delivered" if row["stage"] == "completed" and row["delivered"] else str(row["stage"])


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


def same_request_again(
    rig: Rig, body: bytes, headers: dict[str, str], received: bytes, within: OpenPass | None = None
) -> Kill:
    """Checks the answer, the provider's receipts and the ledger against the stage that stood before; returns what it saw."""
    rows = rig.calls()
    row = rows[0] if rows else None
    stage, sent, events = stage_of(row), len(receipts_of(rig, body)), events_of(rig)
    assert sent <= 1
    answer = (within or rig).chat(body, headers)
    # An explicit key names one intention for ever, delivered or not; a pass gets what an earlier one was delivered.
    disposition, code, is_sent = ANSWERED["completed" if stage == "delivered" and (headers or within) else stage]
    seen_code = None if answer.status == 200 else answer.code
    assert (answer.disposition, seen_code) == (disposition, code)
    sent_after = len(receipts_of(rig, body))
    assert sent_after == sent + is_sent
    if stage in ("nothing", "manifest_recorded", "not_sent"):
        assert sent == 0  # the record says it was not sent; the provider agrees
    if disposition == "refused":
        assert events_of(rig) == events
    if disposition == "replayed":
        assert row is not None
        assert digest_of(answer.body) == rig.show(row["call_id"])["attempt_rows"][0]["response_blake3"]
        assert answer.body.startswith(received)
        assert answer.headers["idempotency-replayed"] == "true"
    return Kill(stage, row["effect"] if row else "absent", answer.disposition or "", seen_code, sent, sent_after)


def kills_to_make() -> Iterator[Any]:
    """By default with a derived key, and in both forms where an answer has begun; every one of them in `make slow`."""
    for point, form, key in itertools.product(ON_THE_WAY, crash_points.FORMS, ("derived", "explicit")):
        is_asked_anyway = key == "derived" and (form == "json" or point not in BEFORE_AN_ANSWER)
        yield pytest.param(point, form, key, marks=() if is_asked_anyway else pytest.mark.slow)


@pytest.mark.parametrize(("point", "form", "key"), list(kills_to_make()))
def test_kill_at_failpoint_leaves_what_the_page_tells(provider: Rig, point: str, form: str, key: str) -> None:
    """Whatever passing dies, at most one effect is possible, and the same request gets exactly its stage's answer."""
    kills: list[Kill] = []
    for passing in range(1, 2 if point in PASSED_ONCE else PASSINGS_LIMIT):
        name = f"{point}-{form}-{key}-{passing}"
        rig = Rig(provider.directory, provider.provider_process, state_name=name)
        body = chat(SLOW if point in SEVERAL else MODEL, name, stream=form == "stream")
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
            kills.append(same_request_again(rig, body, headers, received))
            if answer is not None:  # I2: who saw the end will always find it on record
                assert kills[-1].stage in ("completed", "delivered")
        finally:
            rig.leave()
    if key == "derived":
        crash_points.check(point, form, kills)
    else:
        crash_points.rows(point, form, kills)


@pytest.mark.parametrize("form", crash_points.FORMS)
def test_point_that_is_passed_once_is_not_passed_twice(provider: Rig, form: str) -> None:
    """Whoever is passed a second time would kill this one; so the kills above are all of theirs."""
    rig = Rig(provider.directory, provider.provider_process, state_name=f"once-{form}")
    body = chat(MODEL, f"once, {form}", stream=form == "stream")
    try:
        rig.start(";".join(f"{point}=kill@2" for point in PASSED_ONCE))
        answer, _, died = first_try(rig, body, {})
        assert not died
        assert answer is not None
        assert (answer.status, answer.disposition, len(receipts_of(rig, body))) == (200, "forwarded", 1)
    finally:
        rig.leave()


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
    crash_points.check(point, "json", [same_request_again(running, body, {}, b"")])


@pytest.mark.parametrize("point", AT_PRUNE)
def test_kill_during_prune_leaves_what_the_page_tells(provider: Rig, point: str) -> None:
    """The answer is erased on record before its bytes go, so the retry learns so, and is not sent."""
    kills = []
    for passing in range(1, PASSINGS_LIMIT):
        name = f"{point}-{passing}"
        rig, body, headers = (
            Rig(provider.directory, provider.provider_process, state_name=name),
            chat(text=name),
            {"Idempotency-Key": name},
        )
        try:
            process = rig.start()
            _, received, _ = first_try(rig, body, headers)
            process.kill()
            done = prune_process(rig.paths, failpoints=f"{point}=kill@{passing}")
            if done.returncode == 0:
                break
            assert done.returncode == SIGKILLED, done.stderr
            rig.start()
            kills.append(same_request_again(rig, body, headers, received))
        finally:
            rig.leave()
    crash_points.check(point, "json", kills)


@pytest.mark.parametrize("point", AT_RUN)
def test_kill_during_a_run_leaves_what_the_page_tells(provider: Rig, point: str) -> None:
    """A pass moves on only by what is on record, so the next one, or the same, gets the same."""
    rig, body = Rig(provider.directory, provider.provider_process, state_name=point), chat(text=point)
    try:
        rig.start()
        received = open_pass(rig, "run").chat(body).body
        rig.settled()
        rig.restart(f"{point}=kill")
        if point == "after-pass-opened":
            with pytest.raises(OwnerUnreachableError):
                open_pass(rig, "run")
            rig.restart()
            again = open_pass(rig, "run")
        else:
            again = open_pass(rig, "run")
            again.cut_chat(body)
            rig.restart()
        assert rig.proxy_process is not None
        kill = same_request_again(rig, body, {}, received, again)
    finally:
        rig.leave()
    crash_points.check(point, "json", [kill])


@pytest.mark.parametrize("point", AT_DECISION)
def test_kill_during_a_decision_leaves_what_the_page_tells(provider: Rig, tmp_path: Path, point: str) -> None:
    """Before its append there is nothing of it; behind it the answer is found and read by the next start."""
    rig, body = Rig(provider.directory, provider.provider_process, state_name=point), chat(settlements.HELD, point)
    try:
        rig.start()
        (call,) = settlements.left_unknown(rig, point)
        answer = str(settlements.answer_file(rig, tmp_path))
        about = ("reconcile", call, "--served", "--response", answer, *settlements.WHY)
        assert settlements.killed_at(rig, f"{point}=kill", *about).returncode == SIGKILLED
        rig.start()
        kill = same_request_again(rig, body, {}, b"")
        assert rig.command(*about).returncode == 0
        assert call_of(rig)["stage"] == "completed"
    finally:
        rig.leave()
    crash_points.check(point, "json", [kill])


@pytest.mark.parametrize("point", AT_REINTERPRETATION)
def test_kill_during_a_reinterpretation_leaves_what_the_page_tells(provider: Rig, point: str) -> None:
    """One reading more, or none; nothing else changes."""
    rig, body = Rig(provider.directory, provider.provider_process, state_name=point), chat(text=point)
    try:
        process = rig.start()
        _, received, _ = first_try(rig, body, {})
        assert process.stop() == 0
        settlements.read_by_version_1(rig, call_of(rig)["call_id"])
        assert settlements.killed_at(rig, f"{point}=kill", "reinterpret").returncode == SIGKILLED
        rig.start()
        assert rig.command("reinterpret", "--json").stdout.count("call_") == 0
        kill = same_request_again(rig, body, {}, received)
    finally:
        rig.leave()
    crash_points.check(point, "json", [kill])


def points_in_source() -> set[str]:
    sources = [path for package in ("ledger", "proxy") for path in (ROOT / package).rglob("*.py")]
    return {point for path in sources for point in re.findall(r'\bpassed\("([a-z-]+)"\)', path.read_text())}


def test_every_failpoint_of_the_source_is_killed_at_and_documented() -> None:
    """A point that is missing here would be a crash nobody has looked at; where it is, the page says in the same words."""
    assert points_in_source() == set(POINTS)
    told = {point.strip("`"): where for point, where, *_ in reversed(crash_points.table_of())}
    assert told == {point: about.where for point, about in POINTS.items()}


KILLED: Final = Kill("effect_unknown", "unknown", "refused", "effect_unknown", 0, 0)


@pytest.mark.parametrize(
    "kills",
    [
        [],
        [KILLED, KILLED],
        [Kill("manifest_recorded", "absent", "resumed", None, 0, 1)],
        [Kill("effect_unknown", "unknown", "refused", "effect_unknown", 1, 1)],
        [Kill("effect_unknown", "happened", "refused", "effect_unknown", 0, 0)],
        [Kill("effect_unknown", "unknown", "forwarded", None, 0, 1)],
    ],
)
def test_page_that_tells_another_kill_is_noticed(kills: list[Kill], tmp_path: Path) -> None:
    """One passing more or less, another stage, effect, answer or number of receipts."""
    page = tmp_path / "page.md"
    page.write_text(crash_points.PAGE.read_text())
    crash_points.check("after-attempt-started", "json", [KILLED], page)
    with pytest.raises(AssertionError):
        crash_points.check("after-attempt-started", "json", kills, page)
