"""Each finding is provoked by a forgery of its own, and named; what merely damages files stands here."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import tests.verifier.run_forgeries  # noqa: F401 - it enters its forgeries
from ledger.verifier import Verdict, verify
from ledger.verifier.report import FINDINGS
from tests.verifier.bundles import ZEROS, Parts, call_id, digest_of, padded, read, reseal, write
from tests.verifier.forgeries import FORGERIES, at, copy, forges, receipt
from tests.verifier.story import AGAIN, CUT, REQUESTS, SAMPLE, UNKEPT, UNSENT, good_bundle

AFTER: dict[str, tuple[Verdict, Callable[[Path], None]]] = {}  # what changes files once the parts are written


def changes(name: str, verdict: Verdict) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    def enter(change: Callable[[Path], None]) -> Callable[[Path], None]:
        AFTER[name] = (verdict, change)
        return change

    return enter


@changes("events_truncated", Verdict.TRUNCATED)
def cut_the_events(directory: Path) -> None:
    path = directory / "events.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    reseal(directory)


@changes("bundle_head_differs", Verdict.CONTRADICTION)
def vouch_for_another_head(directory: Path) -> None:
    about = json.loads((directory / "bundle.json").read_bytes())
    about["head"]["chain"] = "a" * 64
    (directory / "bundle.json").write_text(json.dumps(about))


def vouch_for_receipts(directory: Path, *, owner: bool, through: int) -> None:
    about = json.loads((directory / "bundle.json").read_bytes())
    about |= {"owner": owner, "receipts_through": through}
    (directory / "bundle.json").write_text(json.dumps(about))


def opened_seq(directory: Path) -> int:
    return int(at(read(directory), "epoch.opened", nth=-1).record["seq"])


@changes("segment_cut", Verdict.TRUNCATED)
def cut_the_padding(directory: Path) -> None:
    path = directory / "receipts" / "000002.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    reseal(directory)


@changes("padding_damaged", Verdict.TAMPERED)
def write_into_the_padding(directory: Path) -> None:
    path = directory / "receipts" / "000002.jsonl"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    reseal(directory)


@changes("receipt_chain_broken", Verdict.TAMPERED)
def change_a_receipt(directory: Path) -> None:
    path = directory / "receipts" / "000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"at":1', b'"at":2', 1))
    reseal(directory)


@changes("event_chain_broken", Verdict.TAMPERED)
def change_an_event(directory: Path) -> None:
    path = directory / "events.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"at":1', b'"at":2', 1))
    reseal(directory)


@changes("seq_gap", Verdict.CONTRADICTION)
def skip_a_seq(directory: Path) -> None:
    path = directory / "events.jsonl"
    lines = path.read_bytes().splitlines()
    record = lines[-1][65:].replace(f'"seq":{len(lines)}'.encode(), f'"seq":{len(lines) + 1}'.encode())
    link = digest_of(lines[-2][:64] + record)
    path.write_bytes(b"\n".join([*lines[:-1], link.encode() + b" " + record, b""]))
    reseal(directory)


@changes("file_damaged", Verdict.TAMPERED)
def change_a_file(directory: Path) -> None:
    path = directory / "receipts" / "000001.jsonl"
    path.write_bytes(padded(path.read_bytes()))


@changes("file_unlisted", Verdict.TAMPERED)
def add_a_file(directory: Path) -> None:
    (directory / "note.txt").write_text("hello")


@changes("unreadable", Verdict.UNREADABLE)
def remove_a_file(directory: Path) -> None:
    (directory / "index.jsonl").unlink()


# --- further forgeries of findings that have one ---------------------------------------------------------------------


@forges("effect_unproven")
def read_absence_off_a_time_out(parts: Parts, _: Path) -> None:
    answer_with(parts, 408)
    at(parts, "attempt.interpreted", UNKEPT).record["data"]["effect"] = "absent"


@forges("effect_unproven")
def read_success_off_an_error(parts: Parts, _: Path) -> None:
    answer_with(parts, 500)


def answer_with(parts: Parts, status: int) -> None:
    for kind in ("attempt.acknowledged", "attempt.observed"):
        at(parts, kind, UNKEPT).record["data"]["status"] = status


@forges("status_differs")
def observe_no_status(parts: Parts, _: Path) -> None:
    at(parts, "attempt.observed", UNKEPT).record["data"] |= {"source": "salvage", "status": None}


@forges("body_withheld")
def withhold_a_request(parts: Parts, directory: Path) -> None:
    at(parts, "call.manifest", UNSENT).record["data"]["body"]["kept"] = False
    (directory / "bodies" / digest_of(REQUESTS[UNSENT])).unlink()


@forges("order_illegal")
def lose_an_acknowledged_attempt(parts: Parts, _: Path) -> None:
    """An answer that the ledger saw begin cannot be called lost: that is `partial`."""
    at(parts, "attempt.observed", UNKEPT).record["data"]["observation"] = "lost"


@forges("claim_illegal")
def call_a_second_sample_the_first(parts: Parts, _: Path) -> None:
    at(parts, "call.requested", SAMPLE).record["data"]["why_new"] = "first"


@forges("receipt_missing")
def drop_the_receipt_of_an_unanswered_attempt(parts: Parts, _: Path) -> None:
    lines, line = receipt(parts, "sent", CUT)
    lines.remove(line)


@forges("inspections_missing", Verdict.TRUNCATED)
def leave_out_the_last_show(parts: Parts, _: Path) -> None:
    del parts.inspections[-1]


@forges("inspections_stale")
def add_an_event_behind_the_last_show(parts: Parts, _: Path) -> None:
    parts.events.append(copy(at(parts, "call.delivered", AGAIN)))
    parts.about["receipts_through"] += 1
    next(row for row in parts.index if row["call_id"] == AGAIN)["last_seq"] = len(parts.events)


@forges("inspections_stale")
def compare_no_head_after_the_last_show(parts: Parts, _: Path) -> None:
    parts.inspections[-1]["head_after"] = None


@forges("inspections_missing", Verdict.TRUNCATED)
def show_one_call_twice(parts: Parts, _: Path) -> None:
    parts.inspections[-1] = parts.inspections[-2]


@forges("inspection_differs")
def show_another_manifest(parts: Parts, _: Path) -> None:
    parts.inspections[-2]["document"]["manifest"]["url"] += "x"


@forges("inspection_differs")
def show_no_manifest(parts: Parts, _: Path) -> None:
    parts.inspections[-2]["document"]["manifest"] = None


@forges("inspection_differs")
def show_no_risk(parts: Parts, _: Path) -> None:
    parts.inspections[-1]["document"]["unresolved"] = False


@forges("inspection_differs")
def show_one_decision_less(parts: Parts, _: Path) -> None:
    show = next(said for said in parts.inspections[-len(parts.index) :] if said["document"]["call_id"] == CUT)
    del show["document"]["decisions"][0]


@forges("provider_receipt_uncovered")
def receive_a_broken_request_of_no_call(parts: Parts, _: Path) -> None:
    assert parts.provider is not None
    parts.provider[-1]["client_request_id"] = call_id(99)


@forges("provider_receipt_uncovered")
def receive_a_broken_request_once_more(parts: Parts, _: Path) -> None:
    assert parts.provider is not None
    parts.provider[-1]["client_request_id"] = CUT


@forges("provider_receipt_uncovered")
def receive_a_broken_request_of_a_known_key(parts: Parts, _: Path) -> None:
    assert parts.provider is not None
    parts.provider[-1] |= {"client_request_id": None, "idempotency_key": "unsent"}


@forges("credential_recorded")
def record_user_info(parts: Parts, _: Path) -> None:
    at(parts, "call.manifest", AGAIN).record["data"]["url"] = "https://ann:pass@api.example/v1/chat"


@forges("credential_recorded")
def record_a_credential_header(parts: Parts, _: Path) -> None:
    at(parts, "attempt.observed", AGAIN).record["data"]["headers"] = [["X-Amz-Security-Token", "abc"]]


@forges("credential_recorded")
def record_where_a_result_lies(parts: Parts, _: Path) -> None:
    location = ["Location", "https://blob.example/result?se=1&SIG=abc"]
    at(parts, "attempt.acknowledged", AGAIN).record["data"]["headers"] = [location]


# --- the tests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_parts_give_their_finding(name: str, tmp_path: Path) -> None:
    """Only meaning can tell: every chain and the inventory are right again."""
    directory = tmp_path / "bundle"
    good_bundle(directory)
    finding_name, verdict, forgery = FORGERIES[name]
    parts = read(directory)
    forgery(parts, directory)
    write(parts, directory)
    report = verify(directory)
    assert (report.verdict, finding_name in {finding.name for finding in report.findings}) == (verdict, True), (
        report.findings
    )


@pytest.mark.parametrize("name", AFTER)
def test_changed_files_give_their_finding(name: str, tmp_path: Path) -> None:
    """Damage and cuts are told apart from lies."""
    directory = tmp_path / "bundle"
    good_bundle(directory)
    verdict, change = AFTER[name]
    change(directory)
    report = verify(directory)
    assert (report.verdict, name in {finding.name for finding in report.findings}) == (verdict, True), report.findings


def test_every_finding_has_a_forgery() -> None:
    """A finding that nothing provokes is not known to work."""
    assert {name for name, _, _ in FORGERIES.values()} | AFTER.keys() == FINDINGS.keys()


def test_receipt_of_an_unknown_call_is_foreign(tmp_path: Path) -> None:
    """The second meaning of receipt_foreign: a call that the ledger never had."""
    good_bundle(tmp_path / "bundle")
    parts = read(tmp_path / "bundle")
    receipt(parts, "sent", AGAIN)[1].record["call"] = call_id(99)
    write(parts, tmp_path / "bundle")
    assert "receipt_foreign" in {finding.name for finding in verify(tmp_path / "bundle").findings}


def test_receipts_vouched_for_early_without_an_owner_differ(tmp_path: Path) -> None:
    """Nobody was writing, so every receipt was due: no forger may say otherwise to hide one."""
    good_bundle(tmp_path / "bundle")
    vouch_for_receipts(tmp_path / "bundle", owner=False, through=0)
    assert [finding.name for finding in verify(tmp_path / "bundle").findings] == ["bundle_head_differs"]


def test_receipts_vouched_for_early_by_an_owner_are_noted(tmp_path: Path) -> None:
    """What is not checked is said, with its number."""
    good_bundle(tmp_path / "bundle")
    vouch_for_receipts(tmp_path / "bundle", owner=True, through=opened_seq(tmp_path / "bundle"))
    report = verify(tmp_path / "bundle")
    assert (report.verdict, report.notes[0].split(" lie ")[0]) == (Verdict.OK, "5 answered attempts")


def test_receipts_vouched_for_before_the_newest_epoch_differ(tmp_path: Path) -> None:
    """A start waits for what came before it, so not even a living owner may vouch for less."""
    good_bundle(tmp_path / "bundle")
    vouch_for_receipts(tmp_path / "bundle", owner=True, through=opened_seq(tmp_path / "bundle") - 1)
    assert [finding.name for finding in verify(tmp_path / "bundle").findings] == ["bundle_head_differs"]


def test_acceptance_notes_what_it_forgives(tmp_path: Path) -> None:
    """An attempt without its receipt before an acceptance is no finding, but counted; so is a line of a lost event."""
    good_bundle(tmp_path / "bundle")
    parts = read(tmp_path / "bundle")
    at(parts, "epoch.opened", nth=3).record["data"]["accepted"] = "copy"
    lines, line = receipt(parts, "sent", AGAIN)
    lines.remove(line)
    write(parts, tmp_path / "bundle")
    report = verify(tmp_path / "bundle")
    assert [re.findall(r"(\d+) (?:attempts|receipts)", note) for note in report.notes] == [["0", "1"], ["1", "0"]]
    assert report.verdict is Verdict.OK, report.findings


@pytest.mark.parametrize(
    ("kind", "name", "config_digest", "decided", "forged"),
    [
        ("operator", "ann", None, "not_served", False),
        ("operator", "ann", None, None, True),
        ("operator", "ann", None, "parked", True),
        ("caller", "Sendonce-Accept", None, None, False),
        ("caller", "Sendonce-Accept", None, "served", True),
        ("caller", "ann", None, None, True),
        *(("setting", f"after_{name}", ZEROS, None, False) for name in ("server_error", "gateway_error", "cut_stream")),
        ("setting", "on_unknown", ZEROS, "parked", True),
        ("setting", "on_unknown", "f" * 64, None, True),
        ("setting", "on_anything", ZEROS, None, True),
    ],
)
def test_claim_without_its_authority_is_forged(
    kind: str, name: str, config_digest: str | None, decided: str | None, *, forged: bool, tmp_path: Path
) -> None:
    """Operator, caller and setting each may continue what they may, and nobody what stands parked or served."""
    good_bundle(tmp_path / "bundle")
    parts = read(tmp_path / "bundle")
    if decided is None:
        parts.events = [line for line in parts.events if not line.record["kind"].startswith("reconcile.")]
    else:
        at(parts, "reconcile.decided", CUT, nth=1).record["data"]["decision"] = decided
    authority = {"kind": kind, "name": name, "config_digest": config_digest}
    at(parts, "call.requested", AGAIN).record["data"]["authority"] = authority
    write(parts, tmp_path / "bundle")
    names = {finding.name for finding in verify(tmp_path / "bundle").findings}
    assert ("authority_forged" in names, "claim_illegal" in names) == (forged, False), names


def test_receipt_against_a_proof_of_absence_is_the_one_finding(tmp_path: Path) -> None:
    """Chains, positions and digests agree, and the provider is silent: only the proof itself gives it away."""
    good_bundle(tmp_path / "bundle")
    parts = read(tmp_path / "bundle")
    FORGERIES["receive_a_receipt_before_the_next_position"][2](parts, tmp_path / "bundle")
    write(parts, tmp_path / "bundle")
    (tmp_path / "bundle" / "provider_receipts.jsonl").unlink()
    reseal(tmp_path / "bundle")
    report = verify(tmp_path / "bundle")
    assert [finding.name for finding in report.findings] == ["not_sent_but_receipted"]
    assert "effects at the provider were not compared" in report.notes[-1]
