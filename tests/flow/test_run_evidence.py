"""What `verify`, `status` and the rows say of a run that was really started several times."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from ledger import verifier
from proxy import evidence
from tests.harness.crashes import CHAT_PATH, held
from tests.harness.passes import OpenPass, open_pass
from tests.harness.processes import Rig, chat, rig
from tests.verifier.bundles import Parts, read, write

RUN: Final = "nightly"
HELD: Final = chat("synthetic/hold=4,times=1")
EXPORTS: Final = 5


def dispositions(within: OpenPass, *texts: str) -> list[str | None]:
    return [within.chat(chat(text=text)).disposition for text in texts]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Three passes: one that was killed at a claim, one that resumed and replayed, one that was attached to what it asked."""
    with rig(tmp_path_factory.mktemp("runs")) as made:
        first = open_pass(made, RUN)
        assert dispositions(first, "one", "one", "two") == ["forwarded"] * 3
        made.settled()
        made.restart("after-manifest=kill")
        first.cut_chat(chat(text="claimed"))
        made.restart()
        second = open_pass(made, RUN)
        assert first.chat(chat(text="late")).code == "stale_pass"
        assert dispositions(second, "one", "claimed", "one") == ["replayed", "resumed", "replayed"]
        with held(made, second.path + CHAT_PATH, HELD) as connection:
            third = open_pass(made, RUN)
            assert third.chat(HELD).disposition == "attached"
            with connection.getresponse() as answer:
                assert answer.read()
        assert made.chat(chat(text="one")).disposition == "forwarded"  # outside of the run it is nobody's retry
        made.settled()
        yield made


@pytest.fixture(scope="module")
def exported(ran: Rig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("exported") / "bundle"
    done = ran.command("export", str(directory), "--provider-receipts", str(ran.receipts_file))
    assert done.returncode == 0, done.stderr
    return directory


def test_bundle_of_a_run_is_ok_and_its_claims_looked_at_it(exported: Path) -> None:
    """Every way to come to a pass is in it."""
    report = verifier.verify(exported)
    assert report.findings == ()
    counts = {claim.name: claim.count for claim in report.claims}
    assert (counts["passes_are_in_order"], counts["passes_are_rebuilt_equal"]) == (3, 3)
    given = [line.record["data"]["disposition"] for line in served(read(exported))]
    assert sorted(set(given)) == ["attached", "forwarded", "replayed", "resumed"]
    assert counts["passes_are_given_in_order"] == len(given)


def served(parts: Parts) -> list[Any]:
    return [line for line in parts.events if line.record["kind"] == "pass.served"]


def test_rows_name_their_run_and_pass(ran: Rig) -> None:
    """Stable fields of `calls --json`: null outside of runs; what no pass but the first asked for stays its own."""
    rows = {(row["run"], row["pass"]) for row in ran.calls()}
    assert rows == {(None, None), (RUN, 1), (RUN, 2), (RUN, 3)}
    assert all(set(ran.show(row["call_id"])) >= {"run", "pass"} for row in ran.calls())


def test_status_and_doctor_count_epochs_not_passes(ran: Rig) -> None:
    """Both are events of the ledger and of no call."""
    status = ran.status()
    assert status["epoch"] == 3
    assert status["epoch_opened_at"] is not None
    done = ran.command("doctor", "--json")
    assert done.returncode == 0, done.stdout
    assert {finding["what"]: finding["says"] for finding in json.loads(done.stdout)}["passes"].startswith("3 passes")


def wrong_pass(parts: Parts) -> None:
    next(line for line in served(parts) if line.record["data"]["disposition"] == "replayed").record["data"][
        "number"
    ] = 1


def lost_claim(parts: Parts) -> None:
    parts.events.remove(served(parts)[0])


def skipped(parts: Parts) -> None:
    parts.events.remove(next(line for line in served(parts) if line.record["data"]["disposition"] == "replayed"))


def lost_pass(parts: Parts) -> None:
    del parts.passes[1]


@pytest.mark.parametrize(
    ("name", "forge"),
    [("pass_not_open", wrong_pass), ("pass_missing", lost_claim), ("occurrence_skipped", skipped), ("passes_differ", lost_pass)],
)  # fmt: skip
def test_forged_run_is_caught_by_its_own_name(name: str, forge: Any, exported: Path, tmp_path: Path) -> None:
    """In what the product wrote, chained and listed anew."""
    parts = read(exported)
    forge(parts)
    for directory in ("bodies", "receipts"):
        (tmp_path / directory).mkdir()
    for path in (exported / "bodies").iterdir():
        (tmp_path / "bodies" / path.name).write_bytes(path.read_bytes())
    write(parts, tmp_path)
    assert name in {finding.name for finding in verifier.verify(tmp_path).findings}


def test_verify_beside_starts_of_a_run_is_ok_every_time(tmp_path: Path) -> None:
    """Passes, their index and what they were given are of one snapshot."""
    stop = threading.Event()

    def start_again(made: Rig) -> int:
        count = 0
        while not stop.is_set():
            within = open_pass(made, RUN)
            count += all(answer in ("forwarded", "replayed") for answer in dispositions(within, "one", "two", "one"))
        return count

    with rig(tmp_path) as made, ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start_again, made)
        try:
            for number in range(EXPORTS):
                bundle = tmp_path / f"bundle-{number}"
                asyncio.run(evidence.export(made.paths, bundle, lambda _done, _of: None))
                assert verifier.verify(bundle).findings == ()
        finally:
            stop.set()
        assert starting.result() > 0
        made.settled()
        assert made.command("verify", "--provider-receipts", str(made.receipts_file)).returncode == 0
