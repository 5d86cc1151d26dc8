"""The stock Node SDKs: installed once into a cache outside the tree, asked by tests/clients/node/ask.mjs."""

import json
import subprocess
from collections.abc import Iterable
from typing import Any, Final

from tests.harness.npm import installed
from tests.harness.processes import ANSWER_LIMIT_S, ROOT

PROJECT: Final = ROOT / "tests" / "clients" / "node"


def run(asks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What one Node process prints for these asks, in their order. Skips the test where the SDKs cannot be had."""
    # Given as text and not as a file: then its imports are looked for in the working directory.
    told = subprocess.run(
        ["node", "--input-type=module", "--eval", (PROJECT / "ask.mjs").read_text()],
        cwd=installed(PROJECT),
        input="".join(json.dumps(ask) + "\n" for ask in asks),
        capture_output=True,
        text=True,
        timeout=ANSWER_LIMIT_S,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]
