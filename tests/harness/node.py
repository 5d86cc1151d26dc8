"""The stock Node SDKs: installed once into a cache outside the tree, asked by tests/clients/node/ask.mjs."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from tests.harness.processes import ANSWER_LIMIT_S, ROOT

PROJECT: Final = ROOT / "tests" / "clients" / "node"
LOCK_FILE: Final = PROJECT / "package-lock.json"
# What the lock file pins is what runs. No package's own script; a registry that is away is noticed soon, not after minutes.
INSTALL: Final = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1")
INSTALL_LIMIT_S: Final = 90  # some ten seconds where the registry is near; below pytest's own limit of 120 s


def run(asks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What one Node process prints for these asks, in their order. Skips the test where the SDKs cannot be had."""
    # Given as text and not as a file: then its imports are looked for in the working directory.
    told = subprocess.run(
        ["node", "--input-type=module", "--eval", (PROJECT / "ask.mjs").read_text()],
        cwd=installed(),
        input="".join(json.dumps(ask) + "\n" for ask in asks),
        capture_output=True,
        text=True,
        timeout=ANSWER_LIMIT_S,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]


def installed() -> Path:
    """The folder that holds `node_modules`. Without it the test is skipped, loudly."""
    folder, missing = _installation()
    if missing:
        pytest.skip(f"NOT RUN: the Node SDKs are not here. {missing}")
    return folder


@cache
def _installation() -> tuple[Path, str]:
    """The folder, and what is missing: an empty sentence where nothing is. Asked once a process, made once a machine."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sendonce-tests"
    folder = caches / f"node-{hashlib.sha256(LOCK_FILE.read_bytes()).hexdigest()[:16]}"
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return folder, f"The program {program!r} is missing. Install Node.js 20 or newer (https://nodejs.org)."
    caches.mkdir(parents=True, exist_ok=True)
    with (caches / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes come at once; the first one installs
        return folder, "" if folder.exists() else _install(folder)


def _install(folder: Path) -> str:
    """Under its final name only when it is whole. What npm said, where it failed."""
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for name in ("package.json", LOCK_FILE.name):
        shutil.copy(PROJECT / name, unfinished)
    try:
        done = subprocess.run(
            INSTALL, cwd=unfinished, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        said = f"It did not end within {INSTALL_LIMIT_S} s."
    else:
        if done.returncode == 0:
            unfinished.rename(folder)
            return ""
        said = done.stderr
    shutil.rmtree(unfinished)
    return f"`{' '.join(INSTALL)}` failed; try it in a copy of {PROJECT} where the npm registry can be reached. It said: {said[:300]}"
