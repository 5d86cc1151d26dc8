"""`make mutants`: each broken promise, applied as a patch to a copy of the tree, and the checks that must notice it.

A check that cannot fail proves nothing. First every check has to pass on the unmodified copy; then each mutant has to fail
all the checks that its row names. Exit code 1 if a mutant survives one of them, or a patch no longer applies.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.harness.figures import noted

ROOT: Final = Path(__file__).resolve().parents[2]
PATCHES: Final = ROOT / "tests" / "mutants"
COPIED: Final = ("proxy", "ledger", "synthetic_provider", "config", "tests", "pyproject.toml", "docs")
CHECK_LIMIT_S: Final = 300  # the slowest check takes a fifth of it
_PYTEST: Final = (
    "-m",
    "pytest",
    "-q",
    "-x",
    "-o",
    "addopts=--import-mode=importlib",
    "-p",
    "no:cacheprovider",
    "-m",
    "not slow",
)

# name -> what is run in the copy; it notices a mutant by a non-zero exit
CHECKS: Final = {
    "crash states": ("-m", "tests.harness.crash_states", "--requests", "8", "--seed", "1"),
    "crash states, streams": ("-m", "tests.harness.crash_states", "--requests", "8", "--seed", "1", "--stream"),
    "demo": ("-m", "proxy", "demo", "--json"),
    "state machine": (*_PYTEST, "tests/crash/test_state_machine.py"),
    "failed writes": (*_PYTEST, "tests/crash/test_poison.py"),
    "cut answers": (*_PYTEST, "tests/crash/test_provider_dies.py"),
    "store": (*_PYTEST, "tests/contract/test_store.py"),
    "claims": (*_PYTEST, "tests/unit/test_claims.py"),
    "admission table": (*_PYTEST, "tests/unit/test_admission.py"),
    "callers": (*_PYTEST, "tests/flow/test_callers.py"),
    "retold retries": (*_PYTEST, "tests/flow/test_retold.py"),
    "passes": (*_PYTEST, "tests/flow/test_passes.py"),
    "kills in runs": (*_PYTEST, "tests/crash/test_kill_at_every_failpoint.py", "-k", "a_run"),
    "fin race": (*_PYTEST, "tests/flow/test_fin_race.py", "-k", "overtaken"),
    "long streams": (*_PYTEST, "tests/flow/test_long_streams.py"),
    "kills in decisions": (*_PYTEST, "tests/crash/test_settling.py", "-k", "many and before-commit"),
    "decisions": (*_PYTEST, "tests/flow/test_bulk_decisions.py"),
    "resume": (*_PYTEST, "tests/flow/test_resume_command.py"),
    "look-ups": (*_PYTEST, "tests/unit/test_lookups.py"),
    "bundles": (*_PYTEST, "tests/unit/test_operator.py"),
    "exports": (*_PYTEST, "tests/unit/test_usage_algebra.py"),
}

# patch -> the checks that must notice it, and what each must say: another failure would not be this mutant's
CAUGHT_BY: Final[dict[str, dict[str, str]]] = {
    "send-before-commit": {
        "crash states": "VIOLATION I1-record",
        "crash states, streams": "VIOLATION I1-record",
        "demo": "nothing sent before it is recorded: ",
    },
    "no-receipt-sync": {"crash states": "VIOLATION I1-receipt"},
    "receipt-before-commit": {"crash states": "VIOLATION start"},
    "no-directory-sync": {"crash states": "VIOLATION start"},
    "release-before-observed": {
        "crash states": "VIOLATION I2-observed",
        "crash states, streams": "VIOLATION I2-observed",
        "demo": "no end before it is recorded: ",
    },
    "synchronous-normal": {
        "crash states": "VIOLATION start",
        "crash states, streams": "VIOLATION start",
    },
    "closed-pass-starts": {"passes": "test_request_queued_when_its_pass_is_closed_is_not_sent"},
    "pass-served-unrecorded": {"kills in runs": "after-pass-served"},
    "new-words-are-sent": {"passes": "test_parked_call_stands_in_the_way_of_other_words"},
    "retry-on-unknown": {
        "demo": "refused for an unknown effect: ",
        "state machine": "test_no_order_of_steps_sends_what_nobody_permitted",
    },
    "replay-across-callers": {
        "admission table": "another credential]",
        "callers": "test_renewed_token_does_not_get_the_answer_of_the_old_one",
    },
    "retold-retry-is-new": {"retold retries": "test_retold_retry_after_a_kill_is_refused_like_the_request_it_repeats"},
    "overtaken-try-is-a-sample": {"fin race": "test_first_try_that_its_retry_has_overtaken_is_not_sent_as_a_sample"},
    "long-stream-by-its-framing": {"long streams": "test_long_stream_that_lacks_its_end_is_cut"},
    "clean-end-on-a-cut": {"cut answers": "is_an_error_event_and_an_unclean_end"},
    "swallowed-failed-commit": {"failed writes": "test_failed_write_ends_the_process_and_the_restart_recovers"},
    "claim-outside-the-transaction": {"store": "test_two_appends_on_one_head_give_one_winner"},
    "started-unconditional": {"claims": "test_superseded_call_cannot_start"},
    "half-a-bundle": {"kills in decisions": "some are decided and some are not"},
    "answer-unexamined": {"decisions": "test_file_that_is_no_answer_is_refused"},
    "resume-for-anybody": {"resume": "test_another_key_is_another_caller"},
    "a-404-is-absent": {"look-ups": "test_response_that_is_not_had_settles_nothing"},
    "absence-proves": {"exports": "test_unknown_may_stand_in_bucket_without_row_is_undecided"},
    "late-ruling": {"bundles": "test_ruling_on_what_was_looked_at_before_something_was_recorded_is_refused"},
}


class PatchError(Exception):
    """The patch does not apply any more, so it proves nothing. Renew it."""


@contextmanager
def copy_of_the_tree(patch: Path | None) -> Iterator[Path]:
    """A directory with the sources and the tests, the patch applied. Raises PatchError."""
    with tempfile.TemporaryDirectory(prefix="sendonce-mutant-") as directory:
        copy = Path(directory)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy)
        if patch is not None:
            applied = subprocess.run(
                ["git", "apply", str(patch)], cwd=copy, capture_output=True, text=True, check=False
            )
            if applied.returncode:
                raise PatchError(f"{patch.name} no longer applies, so it proves nothing. Renew it: {applied.stderr}")
        yield copy


def run_check(name: str, copy: Path) -> tuple[bool, str]:
    """Did it pass, and the last of what it said. Its children run the copy too."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SENDONCE_")}
    try:
        done = subprocess.run(
            [sys.executable, *CHECKS[name]],
            cwd=copy,
            env={**environment, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=CHECK_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"it did not end within {CHECK_LIMIT_S} s"
    return done.returncode == 0, (done.stdout + done.stderr)[-2000:]


def survivors(mutant: str) -> list[str]:
    """The checks of its row that do not notice it, empty if all do. Prints each check and how long it took."""
    missed = []
    with copy_of_the_tree(PATCHES / f"{mutant}.patch") as copy:
        for check, sign in CAUGHT_BY[mutant].items():
            began = time.monotonic()
            passed, said = run_check(check, copy)
            caught = not passed and sign in said
            missed += [] if caught else [check]
            verdict = "caught by" if caught else "SURVIVES"
            print(f"{mutant:30} {verdict:10} {check:22} {time.monotonic() - began:5.1f} s  {sign}", flush=True)
    return missed


def sound_checks(names: list[str]) -> list[str]:
    """Those that fail on the unmodified tree: nothing they say of a mutant counts."""
    unsound = []
    with copy_of_the_tree(None) as copy:
        for name in names:
            passed, said = run_check(name, copy)
            print(f"{'(unmodified)':32} {'passes' if passed else 'FAILS':10} {name}", flush=True)
            if not passed:
                unsound.append(name)
                print(said, file=sys.stderr)
    return unsound


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mutants", nargs="*", choices=[*CAUGHT_BY, []], help="default: all of them")
    chosen = parser.parse_args().mutants or list(CAUGHT_BY)
    names = list(dict.fromkeys(check for mutant in chosen for check in CAUGHT_BY[mutant]))
    if unsound := sound_checks(names):
        print(f"These checks fail on the unmodified tree: {', '.join(unsound)}.", file=sys.stderr)
        return 1
    missed = {mutant: missing for mutant in chosen if (missing := survivors(mutant))}
    caught = {mutant: list(CAUGHT_BY[mutant]) for mutant in chosen if mutant not in missed}
    noted(what="mutants", caught=caught, survive=missed)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} mutants are caught by every check named for them.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
