"""Asking the provider what became of an attempt: what is asked, and what each answer proves. Pure; `proxy/looking.py` asks.

A look-up is a generator: it yields what to GET, is sent the replies, and returns what was found. Nothing here can generate: the
one request that changes anything at the provider, and only where a person says so, is the cancelling of a background response.
"""

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from ledger.events import Found
from ledger.ids import CallId
from proxy.dialects.base import data_objects, objects, parsed_object
from proxy.headers import RawHeaders

TAG: Final = "sendonce_call"  # in a request's metadata, by injection level 1 or 2
SETTLE_S: Final = (
    60  # between two listings that agree: how long a provider may take to list what it accepted is documented nowhere
)

Asking = Generator["Get | Cancel | Pause", "Reply", "LookedUp"]


@dataclass(frozen=True, slots=True)
class Get:
    """`target`: the provider's path and query."""

    target: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Of a background response: it ends, and whatever it was is told. Asked only where a person wants it."""

    response: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Time for the provider to come to know what it accepted."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """`body` without content coding."""

    status: int
    headers: RawHeaders
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        return parsed_object(self.body)


NOTHING: Final = Reply(0, (), b"")  # what a pause is answered with


@dataclass(frozen=True, slots=True)
class Known:
    """What is on record of one attempt. `partial`: what came of a stream, decoded; `ids`: of its head and its first bytes."""

    call: CallId
    target: str
    request: Mapping[str, Any]
    stream: bool
    ids: Mapping[str, str]
    partial: bytes
    started_s: float
    tag: str | None = None  # that sendonce put into this very request: no other one has it
    others: frozenset[str] = frozenset()  # ids of what other calls of this kind created
    equals: int = 0  # other unresolved calls with this very request
    same_credential: bool = False  # asked with the key that sent it: what that key cannot see, it did not make
    lists_all: bool = False  # whose interface it is is known, and that it lists everything, for good
    asked_s: float = 0  # when the look-up began, by our clock
    settle_s: float = SETTLE_S
    cancels: bool = False

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def beside(self, last: str) -> str:
        """The path with another last part."""
        return self.path.rpartition("/")[0] + "/" + last


@dataclass(frozen=True, slots=True)
class LookedUp:
    """`says`: one sentence. `answer`: the provider's answer to this very request. `settles`: the result may be decided upon."""

    result: Found
    says: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    answer: Reply | None = None
    settles: bool = False


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One way to ask, and what it proves; shown by `sendonce lookup --list`."""

    name: str
    applies: Callable[[Known], bool]
    look: Callable[[Known], Asking]
    needs: str
    hit: str
    miss: str
    retention: str
    source: str


def found(says: str, answer: Reply | None = None, **evidence: Any) -> LookedUp:
    return LookedUp("matches", says, evidence, answer, settles=True)


def nothing_proven(says: str, **evidence: Any) -> LookedUp:
    return LookedUp("absent_inconclusive", says, evidence)


def unreadable(reply: Reply, what: str) -> LookedUp:
    says = f"{what} was answered with {reply.status} and nothing that can be read. Ask again later."
    return LookedUp("unreadable", says, {"status": reply.status})


def look(mechanism: Mechanism, known: Known) -> Asking:
    """As the mechanism does; an answer that is of no known form is `unreadable`, whatever it breaks."""
    try:
        return (yield from mechanism.look(known))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return LookedUp("unreadable", f"The provider's answer has no known form ({type(error).__name__}).")


# --- OpenAI Responses ---------------------------------------------------------------------------------------------

_UNFINISHED: Final = frozenset({"queued", "in_progress"})
_ENDED: Final = frozenset({"completed", "incomplete", "failed"})
_RESPONSE_ID: Final = re.compile(r"resp_[A-Za-z0-9_-]{1,128}")
# Of any provider; it is a word of theirs, and goes into a path with the operator's key behind it.
_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,255}")


def _is_response(known: Known) -> bool:
    return known.path.endswith("/responses")


def _response(known: Known) -> Asking:
    """`store` is true by default; what it gives is the answer to a request without `stream`, byte for byte its own object."""
    response = known.ids.get("id", "")
    if not _RESPONSE_ID.fullmatch(response):
        says = "No id of a response reached the record, and responses cannot be listed: nothing can be asked."
        return nothing_proven(says)
    reply = yield Get(f"{known.path}/{response}")
    if reply.status == 200 and reply.document.get("status") in _UNFINISHED and known.cancels:
        reply = yield Cancel(f"{known.path}/{response}")
    if reply.status == 404:
        return nothing_proven(
            f"{response} is not stored. That proves nothing: a provider ends and forgets a foreground stream whose connection breaks, "
            "and stores nothing with store=false, under zero data retention, or for another project. Tokens may be billed.",
            id=response,
        )
    document = reply.document
    if reply.status != 200 or document.get("object") != "response":
        return unreadable(reply, response)
    if document.get("id") != response:
        return LookedUp("differs", f"{response} was asked for and {document.get('id')} came.", {"id": response})
    return (yield from _of_status(known, reply, str(document.get("status"))))


def _of_status(known: Known, reply: Reply, status: str) -> Asking:
    response, about = str(reply.document["id"]), {"id": reply.document["id"], "status": status}
    if status in _UNFINISHED:
        says = f"{response} was accepted and is {status}. Ask again, with --wait, or end it with --cancel."
        return LookedUp("matches", says, about)
    if status == "cancelled":
        return found(f"{response} was cancelled; what it had generated may be billed.", **about)
    if status not in _ENDED:
        return unreadable(reply, response)
    if not known.stream:
        return found(f"{response} is {status}; this is its answer.", reply, **about)
    if known.request.get("background") is not True:
        says = f"{response} is {status}. Its stream cannot be had again, and its answer has not the form that was asked for."
        return found(says, reply, **about)
    tail = yield Get(f"{known.path}/{response}?stream=true{_after(known.partial)}")
    if tail.status != 200:
        return unreadable(tail, f"the stream of {response}")
    whole = Reply(200, tail.headers, _whole_events(known.partial) + tail.body)
    if not _is_one_stream(whole.body, response):
        return LookedUp("differs", f"What came as the rest of {response} does not continue what had come of it.", about)
    return found(f"{response} is {status}; the rest of its stream was fetched.", whole, **about)


def _is_one_stream(stream: bytes, response: str) -> bool:
    """Each event once and none missing, by their numbers, and all of this response."""
    documents = list(data_objects(stream))
    numbers = [document.get("sequence_number") for document in documents]
    named = {document["response"].get("id") for document in documents if isinstance(document.get("response"), dict)}
    return numbers == list(range(len(numbers))) and named == {response}


def _after(partial: bytes) -> str:
    """The last event that came whole, by its number."""
    numbers = re.findall(rb'^data:.*"sequence_number"\s*:\s*(\d+)', _whole_events(partial), re.MULTILINE)
    return f"&starting_after={int(numbers[-1])}" if numbers else ""


def _whole_events(partial: bytes) -> bytes:
    ends = [partial.rfind(end) + len(end) for end in (b"\n\n", b"\r\n\r\n") if end in partial]
    return partial[: max(ends, default=0)]


# --- OpenAI stored chat completions -------------------------------------------------------------------------------


def _is_stored_chat(known: Known) -> bool:
    return known.path.endswith("/chat/completions") and known.request.get("store") is True


def _chat(known: Known) -> Asking:
    """By the tag that was sent with it, which needs no byte of the answer; else by the id of its first chunk."""
    tag = known.tag
    if tag is not None:
        listed = yield Get(f"{known.path}?metadata%5B{TAG}%5D={quote(str(tag), safe='')}&limit=2")
        if listed.status != 200 or not isinstance(listed.document.get("data"), list):
            return unreadable(listed, "The list of stored completions")
        stored = objects(listed.document["data"])
        if len(stored) > 1 or any(_tag_of(one) != tag for one in stored):
            return LookedUp(
                "differs", f"What is listed for the tag {tag} is not one completion that has it.", {"tag": tag}
            )
        completion = str(stored[0]["id"]) if stored else None
    else:
        completion = known.ids.get("id")
    if completion is None or not _ID.fullmatch(completion):
        return nothing_proven(
            "No stored completion is known of it. That proves nothing: what failed or broke off is not stored, nor is anything under "
            "zero data retention, and how long storing takes is documented nowhere.",
            **({"tag": tag} if tag else {}),
        )
    reply = yield Get(f"{known.path}/{completion}")
    if reply.status == 404:
        return nothing_proven(
            f"{completion} is not stored, which proves nothing: what broke off is not.", id=completion
        )
    if reply.status != 200 or reply.document.get("id") != completion or (tag and _tag_of(reply.document) != tag):
        return unreadable(reply, completion)
    return found(f"{completion} is stored; this is its answer.", reply, id=completion)


def _tag_of(completion: Mapping[str, Any]) -> object:
    metadata = completion.get("metadata")
    return metadata.get(TAG) if isinstance(metadata, dict) else None


# --- OpenRouter ---------------------------------------------------------------------------------------------------


def _is_generation(known: Known) -> bool:
    return bool(_generation_id(known))


def _generation_id(known: Known) -> str | None:
    said = known.ids.get("x-generation-id") or known.ids.get("id", "")
    return said if _ID.fullmatch(said) and ("x-generation-id" in known.ids or said.startswith("gen-")) else None


def _generation(known: Known) -> Asking:
    """What it cost, not what it said: the exact cost is in the evidence."""
    generation = _generation_id(known) or ""
    prefix = known.path.partition("/v1/")[0]
    reply = yield Get(f"{prefix}/v1/generation?id={generation}")
    if reply.status == 404:
        return nothing_proven(f"{generation} is not known (yet): it takes some seconds. Ask again.", id=generation)
    about = reply.document.get("data")
    if reply.status != 200 or not isinstance(about, dict) or about.get("id") != generation:
        return unreadable(reply, generation)
    shown = ("total_cost", "cancelled", "finish_reason", "native_tokens_prompt", "native_tokens_completion", "model")
    said = {name: about[name] for name in shown if about.get(name) is not None}
    return found(
        f"{generation} was generated and cost {about.get('total_cost')} USD; its text is not to be had.", **said
    )


BY_ID: Final = (
    Mechanism(
        "openai_response", _is_response, _response,
        needs="the response's id, from the first event or the body",
        hit="served; its usage is exact, and its answer is replayed", miss="nothing",
        retention="30 days; background ones about 10 minutes for polling",
        source="openai 3.57.0 resources/responses; developers.openai.com/docs/guides/background and your-data; the 404 of a foreground "
        "stream whose connection broke: reported, community.openai.com/t/1362217",
    ),
    Mechanism(
        "openai_stored_chat", _is_stored_chat, _chat,
        needs="store: true, and a tag (injection level 1 or 2) or the first chunk",
        hit="served; its usage is exact, and its answer is replayed", miss="nothing",
        retention="conflicting reports: 30 days, or until deleted",
        source="openai/openai-openapi@f85dbe2, GET /chat/completions",
    ),
    Mechanism(
        "openrouter_generation", _is_generation, _generation,
        needs="X-Generation-Id of the answer's head, or the first chunk",
        hit="served, cancelled ones too; the exact cost", miss="nothing: it is known some seconds later",
        retention="not documented",
        source="openrouter 1.3.84 operations/getgeneration; openrouter.ai/docs/api-reference/streaming",
    ),
)  # fmt: skip
