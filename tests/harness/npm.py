"""What tests need from npm, installed once a machine into a cache outside the tree, exactly as a lock file pins it."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pytest

# No package's own script; a registry that is away is noticed soon, not after minutes.
INSTALL: Final = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1")
INSTALL_LIMIT_S: Final = 110  # ten to thirty seconds where the registry is near; below pytest's own limit of 120 s


def installed(project: Path) -> Path:
    """The folder that holds `node_modules` of a project (package.json, package-lock.json). Without it the test is skipped, loudly."""
    folder, missing = installation(project)
    if missing:
        pytest.skip(f"NOT RUN: what {project} pins is not here. {missing}")
    return folder


@cache
def installation(project: Path) -> tuple[Path, str]:
    """The folder, and what is missing: an empty sentence where nothing is. Asked once a process, made once a machine."""
    lock_file = project / "package-lock.json"
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sendonce-tests"
    folder = caches / f"{project.name}-{hashlib.sha256(lock_file.read_bytes()).hexdigest()[:16]}"
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return folder, f"The program {program!r} is missing. Install Node.js 20 or newer (https://nodejs.org)."
    caches.mkdir(parents=True, exist_ok=True)
    with (caches / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes come at once; the first one installs
        return folder, "" if folder.exists() else _install(project, folder)


def _install(project: Path, folder: Path) -> str:
    """Under its final name only when it is whole. What npm said, where it failed."""
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(project / name, unfinished)
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
    return f"`{' '.join(INSTALL)}` failed; try it in a copy of {project} where the npm registry can be reached. It said: {said[:300]}"
