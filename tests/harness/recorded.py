"""Inspections put on record while a test lives through a past, for a later export to hand to the verifier."""

import asyncio
import json
from pathlib import Path

from ledger.epochs import StateDir
from proxy import evidence


def put_on_record(state_dir: StateDir, path: Path) -> None:
    """What `calls` and `show` say at this moment, as lines of a bundle's inspections."""
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in asyncio.run(evidence.inspections(state_dir)))
