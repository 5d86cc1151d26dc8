"""The demo holds on the real source, and fails on sources that break one promise each: it measures, it does not recite."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.harness.processes import ROOT
from tests.mutants.run import PATCHES, copy_of_the_tree

DEMO_LIMIT_S = 100

# mutant -> the case that must fail, and the provider's receipts in it: the effects that the broken promise cost
CAUGHT_BY = {
    "send-before-commit": ("nothing sent before it is recorded", "case-5", 2),
    "release-before-observed": ("no end before it is recorded", "case-6", 1),
    "retry-on-unknown": ("refused for an unknown effect", "case-3", 2),
}


IN_THE_DEFAULT_RUN: Final = "retry-on-unknown"


def demo(source: Path, evidence: Path) -> tuple[int, dict[str, Any]]:
    """Runs the demo of the tree at `source`, which its children inherit."""
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "demo", "--json", "--evidence", str(evidence)],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=DEMO_LIMIT_S,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def receipts_in(case: Path) -> int:
    """Lines of the provider's own file."""
    return len((case / "provider.jsonl").read_text().splitlines())


def test_real_source_demo_holds_and_keeps_evidence(tmp_path: Path) -> None:
    """Every expectation holds, each case's receipts are in its directory, and the expectations are older than all of it."""
    evidence = tmp_path / "e"
    code, told = demo(ROOT, evidence)
    assert (code, [case["failures"] for case in told["cases"]]) == (0, [[]] * 7)
    assert [receipts_in(evidence / name) for name in ("case-1", "case-3", "case-4", "naive")] == [1, 1, 1, 2]
    assert json.loads((evidence / "table.json").read_text()) == told
    written = json.loads((evidence / "expectations.json").read_text())
    assert written == {case["case"]: case["expected"] for case in told["cases"]}
    oldest = min(path.stat().st_mtime_ns for path in evidence.glob("*/*.stderr"))
    assert (evidence / "expectations.json").stat().st_mtime_ns <= oldest
    said = [json.loads(line) for path in evidence.glob("*/inspections.jsonl") for line in path.read_text().splitlines()]
    assert Counter(line["what"] for line in said) == {"calls": 22, "show": 22, "refusal": 2}
    assert all(line["head"]["seq"] > 0 for line in said)


# `make mutants` runs each of them against the demo, too.
@pytest.mark.parametrize(
    "mutant", [pytest.param(name, marks=() if name == IN_THE_DEFAULT_RUN else pytest.mark.slow) for name in CAUGHT_BY]
)
def test_mutant_source_demo_fails_in_the_case_that_shows_it(mutant: str, tmp_path: Path) -> None:
    """The broken promise is named, the exit is non-zero, and the provider's own file counts what it cost."""
    evidence = tmp_path / "e"
    with copy_of_the_tree(PATCHES / f"{mutant}.patch") as copy:
        code, told = demo(copy, evidence)
    case, directory, receipts = CAUGHT_BY[mutant]
    failed = {row["case"] for row in told["cases"] if not row["holds"]}
    assert (code, case in failed) == (1, True), told
    assert case in told["closing"]
    assert receipts_in(evidence / directory) == receipts


def test_evidence_directory_in_use_is_refused(tmp_path: Path) -> None:
    """Older evidence is never mixed with new or overwritten."""
    (tmp_path / "table.json").write_text("older")
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "demo", "--evidence", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "is not empty" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]
