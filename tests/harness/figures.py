"""Figures for docs/proof.md: what a campaign measured, as lines of JSON in the file that SENDONCE_FIGURES names."""

import json
import os
from pathlib import Path
from typing import Any


def noted(**figure: Any) -> None:
    """Printed (`pytest -s` shows it), and appended where a file is named."""
    line = json.dumps(figure)
    print(line)
    if path := os.environ.get("SENDONCE_FIGURES"):
        with Path(path).open("a") as file:
            file.write(line + "\n")
