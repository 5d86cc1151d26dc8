"""What every command of `sendonce` shares: its options, its two consoles, and how it ends with a sentence."""

import getpass
import os
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import orjson
import typer
import uvloop
from rich.console import Console

T = TypeVar("T")

EXIT_USAGE = 2
EXIT_DECISION = 6  # a decision does not apply as things stand
EXIT_POISONED = 70  # what is on disk is unknown: the next start finds out

errors = Console(stderr=True, soft_wrap=True, highlight=False)
# Piped, a line is a line, however long: it is grepped, not looked at.
out = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 400)

StateDirOption = Annotated[
    Path | None,
    typer.Option(
        "--state-dir", help="Where the ledger is. Default: SENDONCE_STATE_DIR, else the platform's state folder."
    ),
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="A TOML file; see config/example.toml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs: one JSON document on stdout.")]
ByOption = Annotated[str | None, typer.Option("--by", help="Who decides. Default: the user's login name.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Goes on record, word for word.")]


def decider(reason: str, by: str | None) -> str:
    """Who decides: as given, else the login name. Ends with a sentence where the record could not say why."""
    if not reason.strip():
        fail("--reason is empty. Say why, for whoever reads the record.", EXIT_USAGE)
    by = by or getpass.getuser()
    (reason + by).encode()  # raises UnicodeError for what no record can hold
    return by


def fail(sentence: str, code: int) -> NoReturn:
    errors.print(f"sendonce: {sentence}", markup=False)
    raise SystemExit(code)


def say(sentence: str) -> None:
    """On stderr, from what goes on without a reader there: a proxy outlives the terminal or pipe that it was started in."""
    with suppress(OSError):  # not by way of sys.stderr, whose buffer would keep what could not be written
        os.write(sys.stderr.fileno(), f"sendonce: {sentence}\n".encode())


def run(work: Coroutine[Any, Any, T]) -> T:
    return uvloop.run(work)


def print_json(document: Any) -> None:
    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")
