"""Is it the whole answer to this call? Asked of bytes that came back by another way than the attempt. Pure."""

from collections.abc import Iterable
from typing import Final

from proxy.dialects.base import Dialect, Outcome, TerminalEvidence
from proxy.effects import UpstreamTraits
from proxy.endpoints import Family
from proxy.headers import RESPONSE_STORED, RawHeaders, stored
from proxy.reconcile.operator import DecisionRefusedError, Recovered

_STREAM_STARTS = (b"event:", b"data:", b"id:", b":")
GIVEN: Final = frozenset({Outcome.SUCCEEDED})  # what a person gives must show itself to be an answer
# What the provider gives under the answer's own id is the answer, an empty or a failed one too.
FETCHED: Final = GIVEN | {Outcome.EMPTY, Outcome.IN_BAND_ERROR}
_LEFT_OUT = frozenset({b"content-length", b"content-encoding", b"content-type"})  # they are of the way it came back


def _is_text(data: bytes) -> bool:
    try:
        return not data.decode().startswith("\ufeff")
    except UnicodeDecodeError:
        return False


def recovered(
    data: bytes,
    dialect: Dialect,
    traits: UpstreamTraits,
    where: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
    outcomes: frozenset[Outcome] = GIVEN,
) -> Recovered:
    """`data` without content coding; `headers` as they came with it. Raises DecisionRefusedError, which names `where` it is from."""
    kind = b"text/event-stream" if data.lstrip().startswith(_STREAM_STARTS) else b"application/json"
    raw: RawHeaders = ((b"Content-Type", kind),)
    reading = dialect.interpret(200, raw, data, traits)
    proven = dialect.evidence(200, raw, data, traits) is TerminalEvidence.PROVEN
    # JSON on the wire is UTF-8 without a mark; an answer in a dialect that is read says why it ended.
    is_odd = not _is_text(data) or (
        outcomes == GIVEN and dialect.family is not Family.GENERIC and reading.finish_reason is None
    )
    if not proven or is_odd or reading.outcome not in outcomes:
        found = reading.outcome if proven or not data else f"{reading.outcome}, and its end is missing"
        raise DecisionRefusedError(
            f"{where} is no whole answer as {dialect.name} has it ({found}). Give the provider's answer to this very request, "
            "byte for byte, as JSON or as its event stream; or decide without one."
        )
    kept = tuple(pair for pair in stored(tuple(headers), RESPONSE_STORED) if pair[0].lower() not in _LEFT_OUT)
    pairs = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in (*raw, *kept))
    return Recovered(200, pairs, data)
