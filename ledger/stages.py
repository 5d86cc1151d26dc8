"""The closed vocabularies of the ladder: what a projection can say. Values are the words of FORMAT.md and of `--json`."""

from enum import StrEnum


class Effect(StrEnum):
    """Could the provider have served it? Ordered from proven not to proven; a call has the highest of its attempts."""

    ABSENT = "absent"  # proven
    ANSWERED = "answered"  # the provider said that it failed; billing is not proven
    UNKNOWN = "unknown"
    HAPPENED = "happened"  # proven

    @property
    def rank(self) -> int:
        return _RANK[self]


_RANK = {effect: rank for rank, effect in enumerate(Effect)}


class Stage(StrEnum):
    """The last evidence recorded for a call, as semantics.md section 3 names it."""

    REQUESTED = "requested"
    PREPARATION_FAILED = "preparation_failed"
    MANIFEST_RECORDED = "manifest_recorded"
    EFFECT_UNKNOWN = "effect_unknown"
    EFFECT_HAPPENED = "effect_happened"
    NOT_SENT = "not_sent"
    OBSERVED = "observed"
    INTERPRETED = "interpreted"
    ATTEMPT_COMPLETED = "attempt_completed"
    SETTLED = "settled"
    COMPLETED = "completed"
    SUPERSEDED = "superseded"
    CLOSED = "closed"
    CORRUPTION = "corruption"


class NextOperation(StrEnum):
    """The one operation that is safe next."""

    NONE = "none"
    START_CALL = "start_call"
    START_NEXT_ATTEMPT = "start_next_attempt"
    FIX_INPUTS = "fix_inputs"
    RECONCILE_EFFECT = "reconcile_effect"
    REINTERPRET = "reinterpret"
    REDECIDE = "redecide"
    FINALIZE = "finalize"
    INSPECT = "inspect"
