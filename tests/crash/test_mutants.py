"""Each mutant is a patch that still applies and has checks named for it; `make mutants` and the slow test run them."""

import subprocess

import pytest

from tests.harness.processes import ROOT
from tests.mutants.run import CAUGHT_BY, CHECKS, PATCHES, survivors


def test_every_patch_has_checks_and_every_check_exists() -> None:
    """No patch without a row, no row without a patch, and only checks that there are."""
    assert {path.stem for path in PATCHES.glob("*.patch")} == set(CAUGHT_BY)
    assert {check for checks in CAUGHT_BY.values() for check in checks} == set(CHECKS)


@pytest.mark.parametrize("mutant", CAUGHT_BY)
def test_patch_applies_to_the_tree_as_it_is(mutant: str) -> None:
    """One that does not apply proves nothing."""
    patch = PATCHES / f"{mutant}.patch"
    checked = subprocess.run(
        ["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, f"Renew {patch.name}: {checked.stderr}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", CAUGHT_BY)
def test_mutant_is_noticed_by_every_check_named_for_it(mutant: str) -> None:
    """The promise it breaks has a check that fails."""
    assert survivors(mutant) == []
