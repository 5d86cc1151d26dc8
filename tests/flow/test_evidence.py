"""`export` and `verify`: beside a living proxy under load, at rest, in the middle of a start; damage has its exit code."""

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from ledger import verifier
from proxy import evidence
from tests.harness.commands import command
from tests.harness.crashes import CHAT_PATH, held
from tests.harness.processes import Rig, chat, message, rig
from tests.harness.segments import content, put

VERDICTS: Final = {"OK": 0, "CONTRADICTION": 10, "TAMPERED": 11, "TRUNCATED": 12, "UNREADABLE": 13}


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A state dir with a few answered calls and one that is unknown; nothing owns it."""
    with rig(tmp_path_factory.mktemp("evidence")) as made:
        for number in range(3):
            assert made.chat(chat(text=f"{number}")).status == 200
        assert made.messages(message(stream=True)).status == 200
        made.settled()
        assert made.proxy_process is not None
        with held(made, CHAT_PATH, chat("synthetic/hold=forever")):
            made.proxy_process.kill()
        yield made


@pytest.fixture
def copied(rest: Rig, tmp_path: Path) -> Rig:
    """The same state dir, to be damaged: for readers a copy is as good as the original."""
    shutil.copytree(rest.state_dir, tmp_path / "state", ignore=shutil.ignore_patterns("*.sock"))
    shutil.copy(rest.receipts_file, tmp_path)
    return Rig(tmp_path, rest.provider_process)


def verdict_of(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    return done.returncode, done.stdout.splitlines()[-1] if done.stdout else done.stderr.split()[1].strip(".")


def test_verify_beside_a_busy_proxy_is_ok_every_time(tmp_path: Path) -> None:
    """Whatever moment it takes: each receipt has its event, each due receipt is there; and the proxy goes on."""
    stop = threading.Event()

    def ask(made: Rig, worker: int) -> int:
        count = 0
        while not stop.is_set():
            key = {"Idempotency-Key": f"{worker}-{count}"} if count % 2 else None
            count += made.chat(chat(text=f"{worker} {count}", stream=count % 3 == 0), key).status == 200
        return count

    with rig(tmp_path) as made, ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(ask, made, worker) for worker in range(4)]
        try:
            for number in range(6):
                bundle = tmp_path / f"bundle-{number}"
                asyncio.run(evidence.export(made.paths, bundle, lambda _done, _of: None))
                report = verifier.verify(bundle)
                assert report.findings == ()
                about = json.loads((bundle / "bundle.json").read_text())
                assert about["owner"] is True
                assert about["receipts_through"] <= about["head"]["seq"]
        finally:
            stop.set()
        assert all(worker.result() > 0 for worker in workers)
        done = command(made, "verify", "--provider-receipts", str(made.receipts_file))
        assert verdict_of(done) == (0, "OK")


def test_verify_beside_a_held_call_says_what_is_alive(tmp_path: Path) -> None:
    """A living call's row has nothing to do next, and the verifier derives the same."""
    with rig(tmp_path) as made, held(made, CHAT_PATH, chat("synthetic/hold=forever")):
        done = command(made, "export", str(tmp_path / "bundle"), "--json")
        assert json.loads(done.stdout)["bodies"] == 1
        rows = [json.loads(line) for line in (tmp_path / "bundle" / "inspections.jsonl").read_text().splitlines()]
        assert [(row["document"]["alive"], row["document"]["next_operation"]) for row in rows] == [(True, "none")] * 2
        assert verifier.verify(tmp_path / "bundle").findings == ()


def test_export_at_rest_appends_nothing_and_is_private(rest: Rig, tmp_path: Path) -> None:
    """The ledger's files are what they were; the bundle is nobody else's business."""
    names = ("ledger.db", "ledger.db-wal", "receipts/000001.jsonl")
    before = {name: (rest.state_dir / name).read_bytes() for name in names}
    assert command(rest, "export", str(tmp_path / "bundle")).returncode == 0
    assert {name: (rest.state_dir / name).read_bytes() for name in names} == before
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "bundle").rglob("*")}
    assert modes == {0}


def test_verify_while_a_proxy_starts_and_stops_is_ok(copied: Rig) -> None:
    """An epoch that opens in the middle of an export is no sign that reading wrote."""
    assert command(copied, "recover", "--accept-copy", "--reason", "a copy for the test").returncode == 0
    stop = threading.Event()

    def restarts() -> None:
        while not stop.is_set():
            copied.start().stop()

    with ThreadPoolExecutor(1) as pool:
        restarting = pool.submit(restarts)
        verdicts = [asyncio.run(_verified(copied)) for _ in range(8)]
        stop.set()
        restarting.result()
    assert verdicts == ["OK"] * 8


async def _verified(made: Rig) -> str:
    return str((await evidence.verify(made.paths, None, lambda _done, _of: None)).verdict)


def _blank_a_chunk(made: Rig) -> None:
    with closing(sqlite3.connect(made.state_dir / "ledger.db")) as db, db:
        db.execute("DROP TRIGGER chunk_is_never_updated")
        db.execute("UPDATE chunk SET frame = zeroblob(length(frame)) WHERE id = 1")
        db.execute(
            "CREATE TRIGGER chunk_is_never_updated BEFORE UPDATE ON chunk BEGIN SELECT RAISE(ABORT, 'chunks are only added'); END"
        )


def _cut_the_receipts(made: Rig) -> None:
    os.truncate(made.state_dir / "receipts" / "000001.jsonl", 700)


def _empty_the_receipts(made: Rig) -> None:
    """A segment has its first line from its birth: one without was damaged, and no start takes it for a new one."""
    os.truncate(made.state_dir / "receipts" / "000001.jsonl", 0)


def _repeat_a_provider_receipt(made: Rig) -> None:
    lines = made.receipts_file.read_text().splitlines()
    made.receipts_file.write_text("\n".join([*lines, lines[0]]) + "\n")


def _change_a_receipt(made: Rig) -> None:
    path = made.state_dir / "receipts" / "000001.jsonl"
    put(path, content(path).replace(b'"occurrence":1', b'"occurrence":2', 1))


def _cut_the_ledger(made: Rig) -> None:
    os.truncate(made.state_dir / "ledger.db", 5000)


DAMAGES: Final[tuple[tuple[str, Callable[[Rig], None]], ...]] = (
    ("CONTRADICTION", _repeat_a_provider_receipt),
    ("TAMPERED", _blank_a_chunk),
    ("TAMPERED", _change_a_receipt),
    ("TAMPERED", _empty_the_receipts),
    ("TRUNCATED", _cut_the_receipts),
    ("UNREADABLE", _cut_the_ledger),
)


@pytest.mark.parametrize(("verdict", "damage"), DAMAGES)
def test_verify_of_a_damaged_state_dir_ends_with_its_code(
    verdict: str, damage: Callable[[Rig], None], copied: Rig
) -> None:
    """The last line is the verdict, and the exit code is its own."""
    damage(copied)
    done = command(copied, "verify", "--provider-receipts", str(copied.receipts_file))
    assert verdict_of(done) == (VERDICTS[verdict], verdict), done
    assert "Traceback" not in done.stderr


def test_verify_as_json_is_one_document(copied: Rig) -> None:
    """For programs: verdict, exit code, claims with counts, findings."""
    document: dict[str, Any] = json.loads(command(copied, "verify", "--json").stdout)
    assert (document["verdict"], document["exit_code"], document["findings"]) == ("OK", 0, [])
    assert {claim["name"]: claim["count"] for claim in document["claims"]}["attempts_are_witnessed"] == 5


BAD_RECEIPTS: Final = {
    "no json": ("{", "is no JSON"),
    "a list": ("[]", "is no JSON object"),
    "no method": ('{"path":"/x","body_blake3":"%s","complete":true}' % ("0" * 64), "method is None"),
    "no digest": ('{"method":"POST","path":"/x","body_blake3":"abc","complete":true}', "body_blake3 is 'abc'"),
    "a key of another type": (
        '{"method":"POST","path":"/x","body_blake3":"%s","complete":true,"idempotency_key":7}' % ("0" * 64),
        "idempotency_key is 7",
    ),
}


@pytest.mark.parametrize("name", BAD_RECEIPTS)
@pytest.mark.parametrize("end", ["\n", ""])
def test_bad_provider_receipt_is_named_by_line_and_field(name: str, end: str, rest: Rig, tmp_path: Path) -> None:
    """Also where its last line has no newline: nothing that was given is left out in silence."""
    line, says = BAD_RECEIPTS[name]
    (tmp_path / "receipts").write_text(line + end)
    done = command(rest, "export", str(tmp_path / "bundle"), "--provider-receipts", str(tmp_path / "receipts"))
    assert (done.returncode, "Line 1 of" in done.stderr, says in done.stderr) == (2, True, True), done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("export", "{used}"), "is not empty"),
        (("export", "{state}/bundle"), "is inside the state directory"),
        (("export", "{new}", "--inspections", "{used}"), "is no file"),
        (("export", "{used}/file"), "Name another directory"),
        (("export", "{new}", "--provider-receipts", "{new}"), "is no file"),
        (("export", "{new}", "--inspections", "{used}/file"), "is no JSON"),
        (("verify", "--work-dir", "{new}"), "Name another directory with --work-dir"),
    ],
)
def test_bad_arguments_are_a_sentence_with_a_remedy(
    arguments: tuple[str, ...], says: str, rest: Rig, tmp_path: Path
) -> None:
    """Exit code 2, one sentence, nothing written."""
    used, new = tmp_path / "used", tmp_path / "new"
    used.mkdir()
    (used / "file").write_text("something\n")
    done = command(rest, *(argument.format(used=used, new=new, state=rest.state_dir) for argument in arguments))
    assert (done.returncode, says in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
    assert [path.name for path in used.iterdir()] == ["file"]
