"""What was recorded and said before there were runs still means the same; of a run's call nothing may be left out."""

from pathlib import Path

import pytest

from ledger.verifier import Verdict, verify
from tests.verifier.bundles import Parts, read, write
from tests.verifier.run_story import SCOPE
from tests.verifier.story import good_bundle


def of_runs(parts: Parts) -> set[str]:
    return {row["call_id"] for row in parts.index if row["scope"] == SCOPE}


def forget_passes(parts: Parts, calls: set[str]) -> None:
    """Deliveries without their pass, rows without run and pass."""
    for line in parts.events:
        if line.record["call"] in calls and line.record["kind"] == "call.delivered":
            del line.record["data"]["pass_number"]
    for said in parts.inspections:
        if said["document"].get("call_id") in calls:
            del said["document"]["run"], said["document"]["pass"]


def forgotten(directory: Path, *, within_runs: bool) -> set[str]:
    """The findings, with the verdict among them."""
    good_bundle(directory)
    parts = read(directory)
    inside = of_runs(parts)
    forget_passes(parts, inside if within_runs else {row["call_id"] for row in parts.index} - inside)
    write(parts, directory)
    report = verify(directory)
    return {report.verdict, *(finding.name for finding in report.findings)}


def test_records_from_before_runs_are_ok(tmp_path: Path) -> None:
    """What they lack is null."""
    assert forgotten(tmp_path / "bundle", within_runs=False) == {Verdict.OK}


def test_records_of_a_run_may_lack_nothing(tmp_path: Path) -> None:
    """Null is not the pass that its client was of, nor what a row has to say of it."""
    assert forgotten(tmp_path / "bundle", within_runs=True) >= {"pass_not_given", "inspection_differs"}


@pytest.mark.parametrize("name", ["run", "served_pass", "is_unresolved"])
def test_index_without_a_column_of_runs_is_unreadable(name: str, tmp_path: Path) -> None:
    """A start computes it anew, so no export has the shape of an earlier version."""
    directory = tmp_path / "bundle"
    good_bundle(directory)
    parts = read(directory)
    del parts.index[0][name]
    write(parts, directory)
    report = verify(directory)
    assert report.verdict is Verdict.UNREADABLE
    assert f"the field {name} is missing" in report.findings[0].places[0]


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "x" * 129, "ä", "a b", "nightly\n"])
def test_run_of_a_name_that_none_can_have_is_unreadable(name: str, tmp_path: Path) -> None:
    """The name stands in a scope and in paths: what it may be is a part of the format."""
    directory = tmp_path / "bundle"
    good_bundle(directory)
    parts = read(directory)
    next(line for line in parts.events if line.record["kind"] == "pass.opened").record["data"]["run"] = name
    write(parts, directory)
    report = verify(directory)
    assert report.verdict is Verdict.UNREADABLE
    assert any("run has a wrong type" in place for place in report.findings[0].places)
