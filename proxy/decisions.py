"""The vocabulary of admission: what a request asks, what is known around it, and the verdicts there are. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ledger.calls import CallState
from ledger.events import Authority, WhyNew
from ledger.ids import CallId, Digest
from proxy.codes import Code


@dataclass(frozen=True, slots=True)
class Ask:
    """What the request says of itself."""

    key_source: Literal["explicit", "derived"]
    intent_digest: Digest
    body_digest: Digest
    url: str
    caller_exact: str
    certain_retry: bool = False
    accepts_attempt: str | None = None
    context: Mapping[str, str] = field(default_factory=dict)
    retells: CallId | None = None  # the very call whose answer it repeats the beginning of
    in_pass: bool = False  # of a run: whoever opened it vouches for its callers
    asks_once: bool = False  # such a request is made once: while a call of its key is open, this is that one's retry


@dataclass(frozen=True, slots=True)
class Live:
    """What this process knows of a call beyond the ledger. `claimed`: the socket of a client that got or awaits its answer is open."""

    alive: bool = False
    claimed: bool = False
    delivered: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """The standing settings that accept a second effect, for this upstream and endpoint class; true accepts."""

    on_unknown: bool = False
    after_server_error: bool = True
    after_gateway_error: bool = False
    after_cut_stream: bool = False
    observes: bool = False  # `mode = "observe"`: what would be refused is recorded and forwarded
    config_digest: str = ""


@dataclass(frozen=True, slots=True)
class Now:
    """What surrounds the decision: time, and what was waited for already."""

    at_ms: int
    late_retry_ms: int
    settled: bool = False
    waited_for_close: bool = False
    owed_first_try: bool = False
    form_differs: bool = False  # the answer to replay cannot be made in the form asked for


@dataclass(frozen=True, slots=True)
class Forward:
    """Send it, as this call. `resumed` is the disposition the client reads: a later generation of an absent effect."""

    occurrence: int
    generation: int
    why_new: WhyNew
    continues: CallState | None = None
    accepts_attempt: str | None = None
    authority: Authority | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    differences: tuple[str, ...] = ()

    @property
    def resumed(self) -> bool:
        return self.why_new == "resumed"


@dataclass(frozen=True, slots=True)
class Attach:
    call: CallId


@dataclass(frozen=True, slots=True)
class Replay:
    call: CallState


@dataclass(frozen=True, slots=True)
class Refuse:
    code: Code
    call: CallState


@dataclass(frozen=True, slots=True)
class Wait:
    """Finish the call's bookkeeping; or let a FIN arrive; or let one of the claimed be closed. Then decide again."""

    until: Literal["finished", "settled", "closed"]
    calls: tuple[CallId, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands in a run (semantics section 9). `unresolved`: an earlier pass's call that the settings would refuse."""

    number: int
    position: int  # how many occurrences of its key this pass was given
    unresolved: CallState | None = None
    continues: bool = False  # `--on-divergence continue`: what is new is sent all the same


Verdict = Forward | Attach | Replay | Refuse | Wait
