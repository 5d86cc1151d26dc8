"""What a model name asks for: `synthetic`, then optionally `/` and options `name=value` joined by commas. Pure.

Any other model name gets the plain behaviour, so that agents may send their side requests here under real model names.
Where the name stands, body or path, is the endpoint's business (formats.py); it is the same name in each dialect.

What is claimed (`as`, `in`, `out`, `cached`, `reasoning`, `tier`) stands in the answer, the usage record and the export
alike. `in` is all input; `cached` is a part of it, `reasoning` a part of the output; neither exceeds its whole, and no
output exceeds the limit that the request sets.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from synthetic_provider.codings import Coding

REDIRECTS = frozenset({301, 302, 303, 307, 308})
BODYLESS = frozenset({204, 304})  # RFC 9112, 6.3: these end with their head, whatever the method


class Reset(StrEnum):
    """Where the connection is reset (RST, not FIN)."""

    BEFORE = "before"  # before any byte of the answer
    HEAD = "head"  # after half of the head
    MID = "mid"  # after half of the body


class OnDisconnect(StrEnum):
    """What becomes of a generation whose connection ends first: by the client, or by one of our faults.

    OpenAI stops a foreground stream whose client goes (community.openai.com/t/1362217). Whether it bills what it had
    written is undocumented; here it does: the input once the head was written, and the output of the chunks written.
    """

    ABORT = "abort"  # it stops at once; nothing is stored
    CONTINUE = "continue"  # it ends at once, whole: the pauses left are skipped; stored and billed as any whole one


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One answer's behaviour; the defaults answer at once and well. `cut`, `clean_cut`, `error_after` count chunks."""

    # Faults, which `times` limits:
    hold_s: float = 0.0  # after the receipt, before the head; infinite: until the process dies
    status: int | None = None  # the dialect's error envelope
    page: int | None = None  # an HTML page with this status, as gateways in front of providers send
    redirect: int | None = None
    bodyless: int | None = None  # a success without a body
    reset: Reset | None = None
    cut: int | None = None  # FIN without the end of framing; a whole answer is cut after half of its body
    clean_cut: int | None = (
        None  # the end of framing, a stream's coding too, not the dialect's; a whole answer: half of its body
    )
    error_after: int | None = None  # in-band error; streams only
    # Pace and shape of the answer, which stay:
    times: int | None = None
    delay_s: float = 0.0  # between head and body
    interval_s: float = 0.0  # between content chunks of a stream
    chunks: int = 5
    parts: int = 1  # output items (Responses) or content blocks (Anthropic) that the text's chunks are spread over
    size_bytes: int | None = None  # of the content text; never less than its first words, which name the receipt
    usage: bool = True
    tool_call: bool = False
    on_disconnect: OnDisconnect | None = None  # None: streams abort, whole answers continue
    answered_as: str | None = None  # the model that the answer names
    input_tokens: int | None = None  # claimed; None: the request's words
    output_tokens: int | None = None  # claimed; None: one for each chunk
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    tier: str | None = None
    encoding: Coding | None = None  # whatever Accept-Encoding says; a stream is flushed after each event
    unknown: tuple[str, ...] = ()  # options not known, as written; the answer's text repeats them

    def on_receipt(self, ordinal: int) -> "Behaviour":
        """What is left for the `ordinal`-th receipt (from 1) of one body: no fault once `times` is used up."""
        if self.times is None or ordinal <= self.times:
            return self
        return replace(
            self,
            hold_s=0.0,
            status=None,
            page=None,
            redirect=None,
            bodyless=None,
            reset=None,
            cut=None,
            clean_cut=None,
            error_after=None,
        )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError
    return seconds


def _hold(text: str) -> float:
    return math.inf if text == "forever" else _seconds(text)


def _count(minimum: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) >= minimum):
            raise ValueError
        return int(text)

    return read


def _error_status(text: str) -> int:
    status = int(text)
    if not HTTPStatus.BAD_REQUEST <= status <= 599:
        raise ValueError
    return status


def _one_of(values: Mapping[str, Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text not in values:
            raise ValueError
        return values[text]

    return read


def _name(text: str) -> str:
    if not text:
        raise ValueError
    return text


_FLAG = _one_of({"1": True, "0": False})

# option -> field of Behaviour, how its value is read, what the value must be
_OPTIONS: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "hold": ("hold_s", _hold, "seconds or 'forever'"),
    "delay": ("delay_s", _seconds, "seconds"),
    "interval": ("interval_s", _seconds, "seconds"),
    "status": ("status", _error_status, "a status from 400 to 599"),
    "page": ("page", _error_status, "a status from 400 to 599"),
    "redirect": ("redirect", _one_of({str(status): status for status in REDIRECTS}), "one of 301, 302, 303, 307, 308"),
    "bodyless": ("bodyless", _one_of({str(status): status for status in BODYLESS}), "204 or 304"),
    "reset": ("reset", Reset, "one of before, head, mid"),
    "cut": ("cut", _count(0), "a number of chunks"),
    "clean_cut": ("clean_cut", _count(0), "a number of chunks"),
    "error_after": ("error_after", _count(0), "a number of chunks"),
    "times": ("times", _count(0), "a number of receipts"),
    "chunks": ("chunks", _count(1), "a number of chunks from 1"),
    "parts": ("parts", _count(1), "a number of parts from 1"),
    "size": ("size_bytes", _count(0), "a number of bytes"),
    "usage": ("usage", _one_of({"none": False}), "'none'"),
    "tool_call": ("tool_call", _FLAG, "0 or 1"),
    "on_disconnect": ("on_disconnect", OnDisconnect, "abort or continue"),
    "as": ("answered_as", _name, "a model's name"),
    "in": ("input_tokens", _count(0), "a number of tokens"),
    "out": ("output_tokens", _count(0), "a number of tokens"),
    "cached": ("cached_tokens", _count(0), "a number of tokens"),
    "reasoning": ("reasoning_tokens", _count(0), "a number of tokens"),
    "tier": ("tier", _name, "a service tier's name"),
    "encoding": ("encoding", Coding, "one of gzip, br, zstd"),
    "gzip": ("encoding", _one_of({"1": Coding.GZIP, "0": None}), "0 or 1"),
}


def parse(model: str) -> Behaviour:
    """Raise ValueError, a sentence that names the option, when a known option has a value that it cannot have."""
    name, _, listed = model.partition("/")
    if name != "synthetic":
        return Behaviour()
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for option in filter(None, listed.split(",")):
        key, _, text = option.partition("=")
        if key not in _OPTIONS:
            unknown.append(option)
            continue
        field, read, expected = _OPTIONS[key]
        try:
            values[field] = read(text)
        except ValueError as error:
            raise ValueError(
                f"The option {key!r} of the model name has the value {text!r}: give {expected}."
            ) from error
    return Behaviour(**values, unknown=tuple(unknown))
