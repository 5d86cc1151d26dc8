"""A busy ledger of a thousand calls, killed, restarted and reconciled: the verifier says OK, with nothing but Python and blake3."""

import asyncio
import importlib.util
import json
import shutil
import subprocess
import venv
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from ledger.ids import CallId
from proxy import owner
from proxy.reconcile.operator import Ruling
from proxy.settings import load
from tests.harness.crashes import CUT, until
from tests.harness.passes import open_pass
from tests.harness.processes import ROOT, Answer, Rig, chat, message, rig

CALLS: Final = 1000
AT_ONCE: Final = 8
LEFT_BEHIND: Final = 12  # requests that the provider holds when the proxy is killed
DECISIONS: Final = ("served", "not_served", "accept_duplicate", "parked")

Ask = tuple[str, bytes, dict[str, str] | None]  # dialect, body, headers


def asks(first: int, count: int) -> Iterator[Ask]:
    """Both dialects, whole and streamed, with and without keys, answered well and badly."""
    for number in range(first, first + count):
        model = {7: "synthetic/status=429", 8: "synthetic/status=500", 9: "synthetic/cut=2"}.get(
            number % 10, "synthetic"
        )
        key = {"Idempotency-Key": f"key-{number}"} if number % 3 == 0 else None
        if number % 4 == 0:
            yield "messages", message(model, f"m{number}", stream=number % 8 == 0), key
        else:
            yield "chat", chat(model, f"c{number}", stream=number % 2 == 0), key


def attempt(made: Rig, ask: Ask) -> Answer | None:
    """None where the answer was cut, which some are asked to be and some are by the kill."""
    dialect, body, key = ask
    try:
        return made.messages(body, key) if dialect == "messages" else made.chat(body, key)
    except (*CUT, OSError):
        return None


def ask_all(made: Rig, wanted: Iterator[Ask]) -> Counter[int]:
    """Statuses; 0 for a cut."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda ask: attempt(made, ask), wanted))
    return Counter(answer.status if answer else 0 for answer in answers)


def kill_while_busy(made: Rig) -> None:
    """SIGKILL with calls held by the provider and others in every state; the next proxy runs when this returns."""
    held = [chat("synthetic/hold=forever", f"held {number}") for number in range(LEFT_BEHIND)]
    with ThreadPoolExecutor(LEFT_BEHIND + AT_ONCE) as pool:
        for body in held:
            pool.submit(attempt, made, ("chat", body, None))
        for body in held:
            made.await_receipt(body)
        others = [pool.submit(attempt, made, ask) for ask in asks(CALLS, 60)]
        until(lambda: sum(other.done() for other in others) > 20)
        made.restart()
    again = [made.chat(body) for body in held]
    assert {answer.code for answer in again} == {"effect_unknown"}


def decide_all(made: Rig) -> None:
    """Each kind of decision, about calls whose effect is unknown; two of them are succeeded by another one."""
    unknown = [row for row in made.calls() if row["stage"] == "effect_unknown"]
    assert len(unknown) >= LEFT_BEHIND
    for number, row in enumerate(unknown):
        decide(made, row["call_id"], DECISIONS[number % 4])
    for row in unknown[:2]:
        (decision,) = made.show(row["call_id"])["decisions"]
        decide(made, row["call_id"], "accept_duplicate", decision["seq"])


def decide(made: Rig, call: str, decision: str, succeeds: int | None = None) -> None:
    """As `sendonce reconcile` asks the living owner."""
    ruling = Ruling(decision, "looked", "ada", succeeds)  # type: ignore[arg-type]
    settings = load(None, {"state_dir": made.state_dir})
    assert asyncio.run(owner.settle(settings, {CallId(call): ruling}))


def start_a_run_twice(made: Rig) -> None:
    """The second start is given what the first one paid for."""
    for disposition in ("forwarded", "replayed"):
        within = open_pass(made, "nightly")
        answers = [within.chat(chat(text=f"turn {number % 3}")) for number in range(6)]
        assert {answer.disposition for answer in answers} == {disposition}


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of such a ledger, which no process owns any more."""
    directory = tmp_path_factory.mktemp("busy")
    with rig(directory) as made:
        answered = ask_all(made, asks(0, CALLS // 2))
        assert answered[200] > CALLS // 4
        assert answered[0] > 0
        kill_while_busy(made)
        decide_all(made)
        ask_all(made, asks(CALLS // 2, CALLS // 2))
        start_a_run_twice(made)
        assert made.proxy_process is not None
        made.proxy_process.kill()
        made.start()
        made.settled()
        made.proxy_process.stop()
        exported = made.command("export", str(directory / "bundle"), "--provider-receipts", str(made.receipts_file))
        assert exported.returncode == 0, exported.stderr
    return directory / "bundle"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has blake3 and the published package's files, and not one of its dependencies."""
    root = tmp_path_factory.mktemp("bare")
    venv.create(root, with_pip=False, symlinks=True)
    (packages,) = root.glob("lib/python*/site-packages")
    spec = importlib.util.find_spec("blake3")
    assert spec is not None
    assert spec.origin is not None
    shutil.copytree(Path(spec.origin).parent, packages / "blake3")
    shutil.copytree(ROOT / "ledger", packages / "ledger", ignore=shutil.ignore_patterns("__pycache__"))
    return root / "bin" / "python"


def audited(python: Path, bundle: Path) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [str(python), "-I", "-m", "ledger.verifier", str(bundle), "--json"], capture_output=True, text=True, check=False
    )
    assert not done.stderr
    return done.returncode, json.loads(done.stdout)


def test_thousand_calls_are_ok_in_a_bare_environment(busy: Path, bare: Path) -> None:
    """Every claim holds and looked at something; nothing of ours but the verifier could be imported there."""
    code, report = audited(bare, busy)
    assert (code, report["verdict"], report["findings"]) == (0, "OK", [])
    counts = {claim["name"]: claim["count"] for claim in report["claims"]}
    print(counts)
    assert counts["index_is_rebuilt_equal"] >= CALLS
    idle = {name for name, count in counts.items() if count == 0}
    assert idle <= {
        "witnessed_attempts_have_receipts",
        "erasures_name_kept_bodies",
    }  # nothing was lost, nothing is erased yet
    imported = subprocess.run(
        [str(bare), "-I", "-c", "import ledger.codec"], capture_output=True, text=True, check=False
    )
    assert "ModuleNotFoundError" in imported.stderr


def test_thousand_calls_with_one_more_provider_receipt_contradict(busy: Path, bare: Path, tmp_path: Path) -> None:
    """The teeth: an effect that nobody started here is named."""
    forged = tmp_path / "bundle"
    shutil.copytree(busy, forged)
    receipts = forged / "provider_receipts.jsonl"
    last = receipts.read_text().splitlines()[-1]
    receipts.write_text(receipts.read_text() + last + "\n")
    _code, report = audited(bare, forged)
    assert report["verdict"] == "TAMPERED"  # the inventory alone tells
    names = {finding["name"] for finding in report["findings"]}
    assert "provider_receipt_uncovered" in names
