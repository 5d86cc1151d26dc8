"""Any other endpoint: the facts that most providers share, read where they happen to stand. No terminal evidence is
required, because none is known: HTTP framing alone says whether the answer is whole.
"""

from typing import Any

from proxy.dialects import base
from proxy.dialects.base import Findings, Outcome, Reading, RequestFacts, TerminalEvidence
from proxy.effects import PLAIN, UpstreamTraits
from proxy.endpoints import Family
from proxy.headers import RawHeaders
from proxy.sse import Item

VERSION = 2

_OUTPUT_LIMITS = ("max_output_tokens", "max_completion_tokens", "max_tokens")
_ERROR_TYPES = frozenset({"error", "response.failed"})


class Generic:
    name = "generic"
    version = VERSION
    ends_by_type = True
    family = Family.GENERIC

    def read_request(self, target: str, body: bytes) -> RequestFacts:  # noqa: ARG002 - the protocol's name
        request = base.parsed_object(body)
        limits = (base.positive(request.get(name)) for name in _OUTPUT_LIMITS)
        return RequestFacts(
            model=base.text(request.get("model")),
            stream=request.get("stream") is True,
            max_output_tokens=next((limit for limit in limits if limit is not None), None),
            background=request.get("background") is True,  # Gemini's interactions
        )

    def is_terminal(self, event: bytes) -> bool:  # noqa: ARG002 - the protocol's name
        return False

    def item_done(self, event: bytes) -> Item | None:  # noqa: ARG002 - the protocol's name
        return None

    def evidence(
        self, status: int, headers: RawHeaders, body: bytes, traits: UpstreamTraits = PLAIN
    ) -> TerminalEvidence:
        return base.evidence(status, headers, body, traits, None)

    def interpret(self, status: int, headers: RawHeaders, body: bytes, traits: UpstreamTraits = PLAIN) -> Reading:
        return base.read_whole(VERSION, _findings, status, headers, body, traits)

    def tool_results(self, body: bytes) -> frozenset[str]:  # noqa: ARG002 - the protocol's name
        return frozenset()

    def error_event(self, code: str, sentence: str) -> bytes:  # noqa: ARG002 - the protocol's names
        return b""

    def sse_to_json(self, body: bytes) -> bytes | None:  # noqa: ARG002 - the protocol's name
        return None


def _findings(data: bytes, is_stream: bool) -> Findings:
    documents = list(base.data_objects(data)) if is_stream else _documents(data)
    usage: dict[str, int] = {}
    model = error = tier = None
    ids: dict[str, str] = {}
    for document in documents:
        # The Responses API nests the answer in its events; Gemini has its own names.
        nested = document.get("response")
        answer = nested if isinstance(nested, dict) else document
        usage |= base.flat_usage(answer.get("usage")) | base.flat_usage(answer.get("usageMetadata"))
        ids |= base.body_ids(id=answer.get("id"), responseId=answer.get("responseId"))
        model = base.text(answer.get("model")) or base.text(answer.get("modelVersion")) or model
        tier = base.text(answer.get("service_tier")) or tier
        error = error or _error(document, answer)
    return Findings(
        outcome=Outcome.IN_BAND_ERROR if error else Outcome.SUCCEEDED if data else Outcome.EMPTY,
        usage=usage or None,
        provider_ids=ids,
        model=model,
        error=error,
        service_tier=tier,
    )


def _documents(data: bytes) -> list[dict[str, Any]]:
    """A JSON answer as a list: Gemini streams without `alt=sse` as one array."""
    document = base.parsed(data)
    return [item for item in (document if isinstance(document, list) else [document]) if isinstance(item, dict)]


def _error(document: dict[str, Any], answer: dict[str, Any]) -> str | None:
    error = base.envelope_error(document) or base.envelope_error(answer)
    return error or (base.text(document.get("type")) if document.get("type") in _ERROR_TYPES else None)
