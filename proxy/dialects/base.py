"""What every dialect answers, and the reading that all of them share: content codings, JSON, usage, ids.

All of it is pure and total: a request or a response is judged on its bytes alone, and no bytes make a reading raise.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Final, Protocol
from urllib.parse import unquote

from ledger.events import ToolCall
from ledger.stages import Effect
from proxy.codings import UndecodableError, decoded
from proxy.effects import PLAIN, UpstreamTraits, verdict
from proxy.endpoints import Family
from proxy.headers import RawHeaders, find, media_type
from proxy.sse import Event, Item, events

ID_LIMIT_BYTES = 256  # every id seen is below 100; a longer one is not worth a column
INTEGER_LIMIT_DIGITS = 4000  # below CPython's limit of 4,300
COUNT_LIMIT = 2**63 - 1  # what JSON writers and databases hold; far above any token count
USAGE_NAMES_LIMIT, USAGE_NAME_LIMIT_CHARS, USAGE_DEPTH_LIMIT = 64, 128, 4  # seen: about 12 names, 2 levels
ERROR_WORD_LIMIT_CHARS = 64  # they are words such as rate_limit_error

# Gemini and Vertex name the model, and whether the answer is a stream, in the path.
_PATH_MODEL: Final = re.compile(r"/(?:models|tunedModels|endpoints)/([^:?]+):(\w+)(?:\?|$)")
_PATH_MODEL_LIMIT_CHARS: Final = 256
_STREAM_VERBS: Final = frozenset({"streamGenerateContent", "streamRawPredict"})

BODILESS_2XX = frozenset({204, 205})

# Ids that providers put on the head, for look-ups and for support. Source: research/providers.md section 5.
_ID_HEADERS = (b"x-request-id", b"request-id", b"apim-request-id", b"x-amzn-requestid", b"x-generation-id", b"cf-ray")


class Outcome(StrEnum):
    """How the provider's answer ended, in its own words."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # an error status with the provider's envelope
    IN_BAND_ERROR = "in_band_error"  # an error after a 2xx had begun
    INCOMPLETE = "incomplete"  # no terminal evidence
    EMPTY = "empty"  # whole, and without any output
    UNINTERPRETABLE = "uninterpretable"  # judged by status alone


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a request says, in its path or its body. None: it does not say, or cannot be read."""

    model: str | None = None
    stream: bool = False
    max_output_tokens: int | None = None
    background: bool = False  # the answer only says that a job was begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a dialect found in a response body. Usage keeps the provider's names; a name that is absent is not 0."""

    outcome: Outcome
    finish_reason: str | None = None
    usage: Mapping[str, int] | None = None
    provider_ids: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    error: str | None = None
    service_tier: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Findings):
    """Findings, the effect that they prove, and the version of the dialect that read them."""

    version: int
    effect: Effect


class Dialect(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int:
        """Of its readings: a higher one rules over what lower ones found in the same bytes."""

    @property
    def family(self) -> Family: ...

    @property
    def ends_by_type(self) -> bool:
        """Is a terminal event known by its beginning, and by itself alone?"""

    def read_request(self, target: str, body: bytes) -> RequestFacts:
        """`target`: the provider's path, query allowed. Never raises."""

    def is_terminal(self, event: bytes) -> bool:
        """Whether a client may take this SSE event (its raw text, of a long one the beginning) for the answer's end.

        It holds back and proves nothing: a long event may be cut, and Gemini has several ends. `evidence` proves.
        """

    def item_done(self, event: bytes) -> Item | None:
        """What this SSE event completes, for clients that act on items. In doubt a tool."""

    def evidence(
        self, status: int, headers: RawHeaders, body: bytes, traits: UpstreamTraits = PLAIN
    ) -> "TerminalEvidence":
        """Whether the body holds the terminal evidence that the dialect requires."""

    def interpret(self, status: int, headers: RawHeaders, body: bytes, traits: UpstreamTraits = PLAIN) -> Reading:
        """The reading of a whole response. Never raises: what cannot be read is `uninterpretable`, judged by status."""

    def tool_results(self, body: bytes) -> frozenset[str]:
        """The ids of the tool calls that a request brings results of. Never raises."""

    def error_event(self, code: str, sentence: str) -> bytes:
        """What to write at an event boundary, before an unclean end, once a 200 has begun. Empty: nothing is readable."""

    def sse_to_json(self, body: bytes) -> bytes | None:
        """A decoded whole event stream as the JSON that the same request without `stream` gets; None if not exactly."""


# --- bodies ---


def is_event_stream(headers: RawHeaders) -> bool:
    return media_type(headers) == b"text/event-stream"


def is_json(headers: RawHeaders) -> bool:
    return media_type(headers).endswith((b"/json", b"+json"))


def _integer(digits: str) -> int | float:
    """Python refuses to read thousands of digits as an int; the document is no less whole for that."""
    return int(digits) if len(digits) <= INTEGER_LIMIT_DIGITS else float(digits)


def parsed(data: bytes) -> Any:
    """The JSON value, or None where there is none."""
    try:
        return json.loads(data, parse_int=_integer)
    except (ValueError, RecursionError):
        return None


def parsed_object(data: bytes) -> dict[str, Any]:
    """The JSON object, or an empty one where there is none."""
    document = parsed(data)
    return document if isinstance(document, dict) else {}


class TerminalEvidence(StrEnum):
    """Does a body itself say that it is all there? HTTP framing is judged elsewhere."""

    PROVEN = "proven"  # a JSON document that parses, a stream with its terminal event
    LACKING = "lacking"  # the dialect requires it, and it is not there
    NONE_KNOWN = "none_known"  # nobody can tell: the framing alone decides


def evidence(
    status: int,
    headers: RawHeaders,
    body: bytes,
    traits: UpstreamTraits,
    stream_ends: Callable[[bytes], bool] | None,
) -> TerminalEvidence:
    """`stream_ends` says whether a decoded event stream holds its terminal event; None where the dialect knows none.

    Of an upstream that is known to leave it out, a stream owes none. Only a 2xx owes evidence: an error's status says all that
    is concluded from it, however its body is labelled.
    """
    owed = 200 <= status < 300 and status not in BODILESS_2XX
    missing = TerminalEvidence.LACKING if owed else TerminalEvidence.NONE_KNOWN
    try:
        data = decoded(headers, body)
    except UndecodableError:
        return TerminalEvidence.NONE_KNOWN  # or every answer in such a coding would count as cut
    if is_event_stream(headers):
        if stream_ends is None:
            return TerminalEvidence.NONE_KNOWN
        if stream_ends(data):
            return TerminalEvidence.PROVEN
        return missing if traits.terminal_evidence_required else TerminalEvidence.NONE_KNOWN
    if is_json(headers):
        parses = data.strip() == b"null" or parsed(data) is not None
        return TerminalEvidence.PROVEN if parses else missing
    return TerminalEvidence.NONE_KNOWN if body or stream_ends is None else missing


# --- facts ---


def path_facts(target: str) -> tuple[str | None, bool]:
    """The model that a path names, and whether the path asks for a stream."""
    found = _PATH_MODEL.search(target)
    if found is None:
        return None, False
    model = text(unquote(found[1]))
    return model if model and len(model) <= _PATH_MODEL_LIMIT_CHARS else None, found[2] in _STREAM_VERBS


def text(value: object) -> str | None:
    """A string as it can be recorded: JSON may hold lone surrogates, UTF-8 may not."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def positive(value: object) -> int | None:
    """A count as it can be recorded; above 64 bits it counts nothing real."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= COUNT_LIMIT else None


def flat_usage(usage: object) -> dict[str, int]:
    """The numbers under the provider's own names, nested ones joined with dots; null and text say nothing.

    Bounded: what is beyond the limits is no usage that any provider states, and it would be copied into an event.
    """
    return dict(islice(_usage_leaves(usage, "", USAGE_DEPTH_LIMIT), USAGE_NAMES_LIMIT))


def _usage_leaves(usage: object, prefix: str, depth_left: int) -> Iterator[tuple[str, int]]:
    if not isinstance(usage, dict) or depth_left == 0:
        return
    for name, value in usage.items():
        full = prefix + (text(name) or "")
        if len(full) > USAGE_NAME_LIMIT_CHARS:
            continue
        if (count := positive(value)) is not None:
            yield full, count
        else:
            yield from _usage_leaves(value, full + ".", depth_left - 1)


def objects(value: object) -> list[dict[str, Any]]:
    """The objects in a list that somebody else wrote; nothing where it is none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def ids(found: Iterable[object]) -> frozenset[str]:
    return frozenset(value for value in map(text, found) if value)


def envelope_error(document: object) -> str | None:
    """What an error envelope calls its error: `type/code/status`, whichever it has. OpenAI, Anthropic and Gemini all have
    a message at `error.message`, which stays in the recorded body: providers echo what they were sent (I8). Gemini puts it
    into an array where it would have streamed one (google-genai 3.6.1 errors.py).
    """
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return None
    words = [text(error.get(name)) for name in ("type", "code", "status")]
    return "/".join(word[:ERROR_WORD_LIMIT_CHARS] for word in words if word) or "error"


def header_ids(headers: RawHeaders) -> dict[str, str]:
    found = {name.decode(): find(headers, name) for name in _ID_HEADERS}
    return {name: value.decode("latin-1") for name, value in found.items() if value and len(value) <= ID_LIMIT_BYTES}


def body_ids(**ids: object) -> dict[str, str]:
    found = {name: text(value) for name, value in ids.items()}
    return {name: value for name, value in found.items() if value and len(value) <= ID_LIMIT_BYTES}


def stream_events(stream: bytes) -> Iterator[Event]:
    """The events of a stored stream, with a last one that lacks only its blank line: what it says was said."""
    return events(stream + b"\n\n")


def data_objects(stream: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of an event stream's data, in order; anything else in it is passed over."""
    for event in stream_events(stream):
        if document := parsed_object(event.data):
            yield document


class InexactError(Exception):
    """The stream holds something whose non-stream form is not known, or it did not end well."""


# What reading somebody's stream as a document may raise.
NOT_RENDERED: Final = (InexactError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


def rendered(render: Callable[[bytes], Any], stream: bytes) -> bytes | None:
    """What `render` makes of a decoded stream, as JSON; None where it cannot be made exactly. Never raises."""
    try:
        return json.dumps(render(stream), allow_nan=False).encode("ascii")
    except NOT_RENDERED:
        return None


def read_whole(
    version: int,
    found_in: Callable[[bytes, bool], Findings],
    status: int,
    headers: RawHeaders,
    body: bytes,
    traits: UpstreamTraits,
) -> Reading:
    """A reading of a response: an error status by its envelope, a 2xx by `found_in(data, is_stream)`. Never raises."""
    try:
        data = decoded(headers, body)
        if 200 <= status < 300:
            findings = found_in(data, is_event_stream(headers))
        else:
            error = envelope_error(parsed(data))
            findings = Findings(outcome=Outcome.UNINTERPRETABLE if error is None else Outcome.FAILED, error=error)
    except Exception:  # noqa: BLE001 - recorded bytes are anyone's; whatever they break, the status still speaks
        findings = Findings(outcome=Outcome.UNINTERPRETABLE)
    return Reading(
        version=version,
        effect=verdict(
            status,
            has_envelope=findings.outcome is Outcome.FAILED,
            in_band_error=findings.outcome is Outcome.IN_BAND_ERROR,
            gateway=traits.gateway,
            exceptions=traits.answered_statuses,
        ),
        outcome=findings.outcome,
        finish_reason=findings.finish_reason,
        usage=findings.usage,
        provider_ids={**header_ids(headers), **findings.provider_ids},
        model=findings.model,
        error=findings.error,
        service_tier=findings.service_tier,
        tool_calls=findings.tool_calls,
    )
