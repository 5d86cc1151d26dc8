"""Fifteen corruptions of a bundle that the product really wrote, each caught by its own name.

The forger renumbers and chains events and receipts anew and lists every file again, so no digest tells: only meaning does.
The past has all that can be forged: samples, a key, a stream, kills, an accepted duplicate, a resumption, decisions. Where a
corruption can be committed in several places, the seed chooses.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from ledger.verifier import Verdict, verify
from tests.harness.crashes import CUT, held
from tests.harness.processes import Rig, chat, message, rig
from tests.harness.recorded import put_on_record
from tests.verifier.bundles import Line, Parts, read, write

SEEDS: Final = range(3)
CHAT_PATH: Final = "/openai/v1/chat/completions"

Corruption = Callable[[Parts, Path, random.Random], None]
CORRUPTIONS: Final[dict[str, tuple[Verdict, Corruption]]] = {}


def committed(name: str, verdict: Verdict = Verdict.CONTRADICTION) -> Callable[[Corruption], Corruption]:
    def enter(corruption: Corruption) -> Corruption:
        CORRUPTIONS[name] = (verdict, corruption)
        return corruption

    return enter


# --- the past --------------------------------------------------------------------------------------------------------------


def live(made: Rig, inspections: Path) -> None:
    """Everything that a forger below needs, through real processes."""
    for _ in range(2):
        assert made.chat(chat(text="a sample")).status == 200
    assert made.messages(message("synthetic/chunks=3", stream=True), {"Idempotency-Key": "keyed"}).status == 200
    assert made.chat(chat("synthetic/status=429")).status == 429
    made.settled()
    put_on_record(made.paths, inspections)
    accepted, parked = chat("synthetic/hold=600,times=1"), chat("synthetic/hold=601,times=1")
    for body, decision in ((accepted, "--accept-duplicate"), (parked, "--park")):
        with held(made, CHAT_PATH, body):
            assert made.proxy_process is not None
            made.proxy_process.kill()
        made.start()
        call = made.calls()[0]["call_id"]
        assert made.chat(body).code == "effect_unknown"
        assert made.command("reconcile", call, decision, "--reason", "looked", "--by", "ada").returncode == 0
    assert made.chat(accepted).disposition == "forwarded"
    made.restart("after-manifest=kill")
    with pytest.raises(CUT):
        made.chat(chat(text="resumed"))
    made.restart()
    assert made.chat(chat(text="resumed")).disposition == "resumed"
    made.settled()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("corruptions")
    with rig(directory) as made:
        live(made, directory / "inspections.jsonl")
        assert made.proxy_process is not None
        assert made.proxy_process.stop() == 0
        given = ("--provider-receipts", str(made.receipts_file), "--inspections", str(directory / "inspections.jsonl"))
        exported = made.command("export", str(directory / "bundle"), *given)
        assert exported.returncode == 0, exported.stderr
    return directory / "bundle"


# --- what a forger looks for ---------------------------------------------------------------------------------------------


def events(parts: Parts, kind: str, **data: Any) -> list[Line]:
    found = [line for line in parts.events if line.record["kind"] == kind]
    return [line for line in found if data.items() <= line.record["data"].items()]


def of_call(parts: Parts, call: str, kind: str) -> Line:
    return next(line for line in events(parts, kind) if line.record["call"] == call)


def answered(parts: Parts) -> list[str]:
    """The calls that were answered whole."""
    return [line.record["call"] for line in events(parts, "attempt.observed", observation="response")]


def receipts(parts: Parts, kind: str) -> list[tuple[list[Line], Line]]:
    return [(lines, line) for lines in parts.segments.values() for line in lines if line.record["kind"] == kind]


def copy(line: Line, **changes: Any) -> Line:
    return Line(orjson.loads(orjson.dumps(line.record)) | changes)


# --- the fifteen -----------------------------------------------------------------------------------------------------------


@committed("attempt_lost")
def lose_an_attempt(parts: Parts, _: Path, chance: random.Random) -> None:
    parts.events.remove(chance.choice(events(parts, "attempt.started")))


@committed("body_swapped", Verdict.TAMPERED)
def swap_two_bodies(_: Parts, directory: Path, chance: random.Random) -> None:
    first, second = chance.sample(sorted((directory / "bodies").iterdir()), 2)
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


@committed("receipt_repeated")
def repeat_a_receipt(parts: Parts, _: Path, chance: random.Random) -> None:
    lines, line = chance.choice(receipts(parts, "sent"))
    lines.append(copy(line))


@committed("receipt_foreign")
def bring_a_foreign_receipt(parts: Parts, _: Path, chance: random.Random) -> None:
    lines, line = chance.choice(receipts(parts, "sent"))
    lines.append(copy(line, call="call_" + "f" * 28, scope="openai/elsewhere", chain="e" * 64))


@committed("inspection_from_future")
def know_the_future(parts: Parts, _: Path, chance: random.Random) -> None:
    early = parts.inspections[0]["head"]
    shows = [each for each in parts.inspections if each["what"] == "show"]
    lines = [each for each in shows if each["document"]["head"]["seq"] > early["seq"]]
    chance.choice(lines).update(head=early, head_after=early)


@committed("order_illegal")
def reorder_two_events(parts: Parts, _: Path, chance: random.Random) -> None:
    call = chance.choice(answered(parts))
    early, late = (of_call(parts, call, kind) for kind in ("attempt.interpreted", "attempt.completed"))
    at, to = parts.events.index(early), parts.events.index(late)
    parts.events[at], parts.events[to] = late, early


@committed("observation_moved")
def move_an_observation(parts: Parts, _: Path, chance: random.Random) -> None:
    of, to = chance.sample(answered(parts), 2)
    of_call(parts, of, "attempt.observed").record["call"] = to


@committed("decision_forged")
def forge_a_decision(parts: Parts, _: Path, chance: random.Random) -> None:
    parts.events.remove(chance.choice(events(parts, "reconcile.observed")))


@committed("interpretation_without_bytes")
def take_the_interpreted_bytes(parts: Parts, directory: Path, chance: random.Random) -> None:
    observed = of_call(parts, chance.choice(answered(parts)), "attempt.observed").record["data"]
    (directory / "bodies" / observed["body"]["digest"]).unlink()


@committed("release_before_observation")
def release_before_observing(parts: Parts, _: Path, chance: random.Random) -> None:
    call = chance.choice(
        [line.record["call"] for line in events(parts, "call.delivered") if line.record["data"]["how"] != "no"]
    )
    delivered = of_call(parts, call, "call.delivered")
    parts.events.remove(delivered)
    parts.events.insert(parts.events.index(of_call(parts, call, "attempt.observed")), delivered)


@committed("second_attempt_unaccepted")
def forget_the_acceptance(parts: Parts, _: Path, chance: random.Random) -> None:
    claims = [line for line in events(parts, "call.requested") if line.record["data"]["accepts_attempt"]]
    chance.choice(claims).record["data"].update(accepts_attempt=None, authority=None)


@committed("occurrence_without_evidence")
def forget_the_evidence(parts: Parts, _: Path, chance: random.Random) -> None:
    chance.choice(events(parts, "call.requested", occurrence=2)).record["data"]["evidence"] = {}


@committed("resumed_digest_differs")
def resume_something_else(parts: Parts, _: Path, chance: random.Random) -> None:
    resumed = chance.choice(events(parts, "call.resumed")).record["call"]
    of_call(parts, resumed, "call.manifest").record["data"]["intent_digest"] = "d" * 64


@committed("erased_body_exists")
def keep_an_erased_body(parts: Parts, _: Path, chance: random.Random) -> None:
    call = chance.choice(of_effect(parts, "happened"))
    digest = of_call(parts, call, "attempt.observed").record["data"]["body"]["digest"]
    data = {"digest": digest, "which": "response", "why": "asked", "by": "ada"}
    last = parts.events[-1].record
    parts.events.append(
        Line({**last, "seq": 0, "kind": "body.erased", "v": 1, "call": call, "attempt": None, "data": data})
    )


def of_effect(parts: Parts, effect: str) -> list[str]:
    return [line.record["call"] for line in events(parts, "attempt.interpreted", effect=effect)]


@committed("epoch_marker_missing")
def unmark_an_epoch(parts: Parts, _: Path, chance: random.Random) -> None:
    chance.choice(events(parts, "epoch.opened")).record["data"]["protocol"] = "send-and-hope/1"


# --- the tests -------------------------------------------------------------------------------------------------------------


def test_bundle_as_it_was_written_is_ok(real: Path, tmp_path: Path) -> None:
    """And stays so in the hands of a forger who changes nothing: what follows is the corruptions' doing."""
    assert verify(real).findings == ()
    untouched = tmp_path / "bundle"
    shutil.copytree(real, untouched)
    write(read(untouched), untouched)
    assert (verify(untouched).verdict, verify(untouched).findings) == (Verdict.OK, ())


@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[1:])])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption_is_caught_by_its_own_name(name: str, seed: int, real: Path, tmp_path: Path) -> None:
    """The inventory is right again; the exit is the one of its kind."""
    directory = tmp_path / "bundle"
    shutil.copytree(real, directory)
    verdict, corruption = CORRUPTIONS[name]
    parts = read(directory)
    corruption(parts, directory, random.Random(f"{name}-{seed}"))
    write(parts, directory)
    report = verify(directory)
    found = {finding.name for finding in report.findings}
    assert name in found, found
    assert report.verdict is verdict, report.findings
    assert "file_damaged" not in found


def test_there_are_fifteen() -> None:
    """As the contract of this step lists them."""
    assert len(CORRUPTIONS) == 15
