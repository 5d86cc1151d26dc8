"""Gemini generateContent, at Google's API and at Vertex. Facts: research/providers.md section 5; google-genai 3.6.1
types.GenerateContentResponse, which is the type of a whole answer and of every chunk.

There is no terminal event. A chunk may say that a candidate has finished, and another one may follow: older models said
STOP in every chunk (reported, BerriAI/litellm#2195), translating gateways say it before the text (reported,
router-for-me/CLIProxyAPI#5651). So the first such chunk holds the rest back, and the newest word about each candidate proves.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from proxy.dialects import base
from proxy.dialects.base import Findings, Outcome, Reading, RequestFacts, TerminalEvidence
from proxy.dialects.tool_calls import tool_calls
from proxy.effects import PLAIN, UpstreamTraits
from proxy.endpoints import Family
from proxy.headers import RawHeaders
from proxy.sse import Item

VERSION = 2

_UNFINISHED: Final = frozenset({None, "", "FINISH_REASON_UNSPECIFIED"})
_END_WORDS: Final = (b"finishReason", b"blockReason", b"error")


class Gemini:
    name = "gemini"
    version = VERSION
    ends_by_type = False
    family = Family.GEMINI

    def read_request(self, target: str, body: bytes) -> RequestFacts:
        model, streams = base.path_facts(target)
        request = base.parsed_object(body)
        config = request.get("generationConfig") or request.get("generation_config")  # protobuf's JSON takes both
        config = config if isinstance(config, dict) else {}
        limit = base.positive(config.get("maxOutputTokens"))
        return RequestFacts(
            model=model,
            stream=streams,
            max_output_tokens=base.positive(config.get("max_output_tokens")) if limit is None else limit,
        )

    def is_terminal(self, event: bytes) -> bool:
        # Asked of every event of every stream: look before parsing. A long event (an image) says at its end that it is the
        # last one and cannot be judged by its beginning: there the hold on its line end is what keeps it from being read.
        return any(word in event for word in _END_WORDS) and any(map(_ends, base.data_objects(event)))

    def item_done(self, event: bytes) -> Item | None:  # noqa: ARG002 - the protocol's name
        return None

    def evidence(
        self, status: int, headers: RawHeaders, body: bytes, traits: UpstreamTraits = PLAIN
    ) -> TerminalEvidence:
        """Without `alt=sse` a stream is one JSON array, whole when it parses."""
        return base.evidence(status, headers, body, traits, lambda stream: _all_ended(base.data_objects(stream)))

    def interpret(self, status: int, headers: RawHeaders, body: bytes, traits: UpstreamTraits = PLAIN) -> Reading:
        return base.read_whole(VERSION, _findings, status, headers, body, traits)

    def tool_results(self, body: bytes) -> frozenset[str]:
        """A result without an id belongs to a call by name and order: nobody is named then."""
        contents = base.objects(base.parsed_object(body).get("contents"))
        answers = (part.get("functionResponse") for each in contents for part in base.objects(each.get("parts")))
        return base.ids(answer.get("id") for answer in answers if isinstance(answer, dict))

    def error_event(self, code: str, sentence: str) -> bytes:
        # research/clients.md section 5: raised by every client, if there is no `event:` line and `error` stands first.
        details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "domain": "sendonce"}]
        error = {"code": 424, "message": sentence, "status": "FAILED_PRECONDITION", "details": details}
        return b"data: " + json.dumps({"error": error}).encode("ascii") + b"\n\n"

    def sse_to_json(self, body: bytes) -> bytes | None:
        """Of a single chunk: how the parts of several would have been cut without streaming is not known."""
        chunks = list(base.stream_events(body))
        if len(chunks) != 1:
            return None
        document = base.parsed_object(chunks[0].data)
        return chunks[0].data if not document.get("error") and _all_ended([document]) else None


# --- ends ---


def _candidates(document: dict[str, Any]) -> Iterable[tuple[int, dict[str, Any]]]:
    """By index, which protobuf's JSON leaves out where it is 0."""
    found = document.get("candidates")
    for candidate in found if isinstance(found, list) else ():
        if isinstance(candidate, dict):
            yield base.positive(candidate.get("index")) or 0, candidate


def _finish_reason(candidate: dict[str, Any]) -> str | None:
    reason = base.text(candidate.get("finishReason"))
    return None if reason in _UNFINISHED else reason


def _block_reason(document: dict[str, Any]) -> str | None:
    feedback = document.get("promptFeedback")
    return base.text(feedback.get("blockReason")) if isinstance(feedback, dict) else None


def _ends(document: dict[str, Any]) -> bool:
    """Whether a client may take this chunk for the last one."""
    return bool(
        document.get("error")
        or _block_reason(document)
        or any(_finish_reason(candidate) for _, candidate in _candidates(document))
    )


def _all_ended(documents: Iterable[dict[str, Any]]) -> bool:
    finished: dict[int, bool] = {}
    for document in documents:
        if document.get("error") or _block_reason(document):
            return True
        for index, candidate in _candidates(document):
            finished[index] = _finish_reason(candidate) is not None
    return bool(finished) and all(finished.values())


# --- reading ---


def _findings(data: bytes, is_stream: bool) -> Findings:
    whole = None if is_stream else base.parsed(data)
    documents = list(base.data_objects(data)) if is_stream else _documents(whole)
    usage: dict[str, int] = {}
    ids: dict[str, str] = {}
    finish_reason = model = error = None
    has_candidates = has_output = False
    for document in documents:
        usage |= base.flat_usage(document.get("usageMetadata"))
        ids |= base.body_ids(responseId=document.get("responseId"))
        model = base.text(document.get("modelVersion")) or model
        finish_reason = _block_reason(document) or finish_reason
        if document.get("error"):
            error = base.envelope_error(document) or "error"
        for _, candidate in _candidates(document):
            has_candidates = True
            has_output = has_output or bool((candidate.get("content") or {}).get("parts"))
            finish_reason = _finish_reason(candidate) or finish_reason
    if error is not None:
        outcome = Outcome.IN_BAND_ERROR
    elif documents and (is_stream or isinstance(whole, list)) and not _all_ended(documents):
        outcome = Outcome.INCOMPLETE
    elif has_output:
        outcome = Outcome.SUCCEEDED
    else:
        is_answer = has_candidates or finish_reason or not data or is_stream
        outcome = Outcome.EMPTY if is_answer else Outcome.UNINTERPRETABLE
    return Findings(
        outcome=outcome,
        finish_reason=finish_reason,
        usage=usage or None,
        provider_ids=ids,
        model=model,
        error=error,
        tool_calls=tool_calls(
            (call.get("id"), call.get("name"), call.get("args")) for document in documents for call in _calls(document)
        ),
    )


def _calls(document: dict[str, Any]) -> Iterable[dict[str, Any]]:
    contents = (candidate.get("content") for _, candidate in _candidates(document))
    parts = (part for content in contents if isinstance(content, dict) for part in base.objects(content.get("parts")))
    return base.objects([part.get("functionCall") for part in parts])


def _documents(whole: Any) -> list[dict[str, Any]]:
    return [document for document in (whole if isinstance(whole, list) else [whole]) if isinstance(document, dict)]
