"""`python -m ledger.verifier DIR [--json]`: prints the report and ends with the verdict's exit code."""

import sys
from pathlib import Path

from ledger.verifier.audit import verify
from ledger.verifier.report import as_json, render

USAGE_EXIT_CODE = 2
USAGE = "usage: python -m ledger.verifier DIR [--json]"


def main(arguments: list[str]) -> int:
    directories = [argument for argument in arguments if argument != "--json"]
    if len(directories) != 1 or directories[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return USAGE_EXIT_CODE
    report = verify(Path(directories[0]))
    text = as_json(report) if "--json" in arguments else render(report)
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
