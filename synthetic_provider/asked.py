"""What a look-up or an export is asked, and what it is told. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs

from synthetic_provider.generation import Books
from synthetic_provider.receipts import Receipt
from synthetic_provider.request import Request
from synthetic_provider.script import Until
from synthetic_provider.wire import JsonObject

_LISTED = re.compile(r"(.*?)(?:\[\d*\])?")  # `models`, `models[]` and `models[0]` are one name


class RefusedError(Exception):
    """Answered with this status in the envelope of the provider's dialect."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Query:
    def __init__(self, target: str) -> None:
        self._values: dict[str, list[str]] = {}
        self.raw = parse_qs(target.partition("?")[2], keep_blank_values=True)
        for name, values in self.raw.items():
            found = _LISTED.fullmatch(name)
            self._values.setdefault(name if found is None else found[1], []).extend(values)

    def all(self, name: str) -> list[str]:
        return self._values.get(name, [])

    def one(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)

    def choice(self, name: str, choices: Mapping[str, Any], default: str) -> str:
        value = self.one(name) or default
        if value not in choices:
            raise RefusedError(400, f"The parameter {name} is {value!r}: give one of {', '.join(choices)}.")
        return value

    def number(self, name: str, default: int | None = None, *, least: int = 0, most: int | None = None) -> int:
        """Raises where it is missing without a default, no number, or out of bounds."""
        text = self.one(name)
        if text is None and default is not None:
            return default
        bounds = f"from {least}" + ("" if most is None else f" to {most}")
        if text is None or not (text.isascii() and text.isdigit()):
            raise RefusedError(400, f"The parameter {name} is {text!r}: give a whole number {bounds}.")
        value = int(text)
        if value < least or (most is not None and value > most):
            raise RefusedError(400, f"The parameter {name} is {text}: give a whole number {bounds}.")
        return value

    def within(self, name: str, known: Iterable[str]) -> list[str]:
        """A list of known names, e.g. those to group by."""
        asked, names = self.all(name), tuple(known)
        unknown = [one for one in asked if one not in names]
        if unknown:
            raise RefusedError(400, f"The parameter {name} has {unknown[0]!r}: give some of {', '.join(names)}.")
        return asked


@dataclass(frozen=True)
class Asked:
    request: Request
    receipt: Receipt
    books: Books
    count_errors: bool

    @cached_property
    def query(self) -> Query:
        return Query(self.request.target)

    @property
    def path(self) -> str:
        return self.request.target.partition("?")[0]


@dataclass(frozen=True, slots=True)
class Lines:
    """An answer of JSON lines."""

    lines: list[JsonObject]


@dataclass(frozen=True, slots=True)
class Events:
    """An answer of server-sent events, each part when it is there."""

    parts: Iterable[Until | bytes]


Told = JsonObject | Lines | Events
