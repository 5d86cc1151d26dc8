"""Each finding is provoked by a forgery of its own, and named."""

from pathlib import Path

import pytest

from ledger.verifier import verify
from ledger.verifier.report import FINDINGS
from tests.verifier.bundles import call_id, read, write
from tests.verifier.forgeries import AFTER, FORGERIES, receipt
from tests.verifier.story import AGAIN, good_bundle


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_parts_give_their_finding(name: str, tmp_path: Path) -> None:
    """Only meaning can tell: every chain and the inventory are right again."""
    directory = tmp_path / "bundle"
    good_bundle(directory)
    verdict, forgery = FORGERIES[name]
    parts = read(directory)
    forgery(parts, directory)
    write(parts, directory)
    report = verify(directory)
    assert (report.verdict, name in {finding.name for finding in report.findings}) == (verdict, True), report.findings


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
    assert FORGERIES.keys() | AFTER.keys() == FINDINGS.keys()


def test_receipt_of_an_unknown_call_is_foreign(tmp_path: Path) -> None:
    """The second meaning of receipt_foreign: a call that the ledger never had."""
    good_bundle(tmp_path / "bundle")
    parts = read(tmp_path / "bundle")
    receipt(parts, "sent", AGAIN)[1].record["call"] = call_id(99)
    write(parts, tmp_path / "bundle")
    assert "receipt_foreign" in {finding.name for finding in verify(tmp_path / "bundle").findings}
