"""Under which name and tier of an export an attempt may have been counted: what answers taught, and what else is possible. Pure.

A request is answered by the model that it names, by a dated version of it, or by what it was ever answered by, and at any tier that
is offered: a tier may be asked for by the request itself, and a name may get a new version at any moment. So an attempt without an
answer stands, by what answers taught, in one cell, and yet no verdict may hang on that: each other cell that it may have been counted
in has to allow for it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from proxy.audit.attempts import OwnAttempt
from proxy.reconcile.usage_windows import CellKey, Role

# What follows a name where it names a version of the same model: gpt-4o-2024-08-06, gpt-4-0613, claude-sonnet-4-5-20250929,
# claude-3-5-haiku-latest, gemini-2.5-flash-preview-09-2025, text-embedding-005, claude-opus-4@20250514.
_VERSION: Final = re.compile(
    r"(?:[-@:_](?:v\d+|\d{3,8}|\d{4}-\d{2}-\d{2}|\d{2}-\d{2,4}|preview|exp|experimental|latest|stable))+$", re.ASCII
)
# What a request may name as its tier, in the words of exports; None: no tier in particular. Anything else is called the same.
_TIERS: Final[Mapping[str, str | None]] = {"auto": None, "standard_only": "standard"}


def stem(model: str) -> str:
    """A name without its version and without whose it is: all names of one stem may answer each other's requests."""
    return _VERSION.sub("", model.rpartition("/")[2].lower())


@dataclass(frozen=True, slots=True)
class Naming:
    """Which names an asked model was answered under, and at which tiers, as own whole answers taught."""

    keys: frozenset[CellKey]
    models: Mapping[str, frozenset[str]]
    tiers: Mapping[str, frozenset[str | None]]
    asked_tier: Callable[[OwnAttempt], str | None]

    @classmethod
    def learnt(
        cls,
        answers: Iterable[OwnAttempt],
        keys: frozenset[CellKey],
        asked_tier: Callable[[OwnAttempt], str | None],
    ) -> "Naming":
        models: dict[str, frozenset[str]] = {}
        tiers: dict[str, frozenset[str | None]] = {}
        for one in answers:
            if one.asked_model and one.model:
                models[one.asked_model] = models.get(one.asked_model, frozenset()) | {one.model}
                tiers[one.asked_model] = tiers.get(one.asked_model, frozenset()) | {one.service_tier}
        return cls(keys, models, tiers, asked_tier)

    def names(self, attempt: OwnAttempt, role: Role) -> frozenset[str] | None:
        """None: nobody can say."""
        if role is Role.ANSWER or attempt.model != attempt.asked_model:
            return frozenset({attempt.model}) if attempt.model else None
        asked = attempt.asked_model
        if asked is None:
            return None
        if (known := self.models.get(asked)) is not None:
            return known
        return frozenset({asked}) if any(key.model == asked for key in self.keys) else None

    def candidates(self, attempt: OwnAttempt, role: Role) -> tuple[CellKey, ...]:
        """Where it stands: by its own answer, else by its own request's tier, else by all answers to the same asked model."""
        names, tiers = self.names(attempt, role), self._tiers(attempt, role)
        fitting = [
            key for key in self.keys if (names is None or key.model in names) and (role is Role.JOB or not key.batch)
        ]
        exact = [key for key in fitting if key.tier in tiers]
        if tiers and None not in tiers and exact:
            fitting = exact
        elif names is not None and (asked := self._asked_tier(attempt, role)) and any(key.tier for key in fitting):
            fitting += [CellKey(name, tier=asked) for name in names]  # nor for its tier
        for name in names or ():
            if all(key.model != name for key in fitting):
                fitting.append(CellKey(name))  # the export has no row for it
        return tuple(sorted(fitting))

    def _tiers(self, attempt: OwnAttempt, role: Role) -> frozenset[str | None]:
        if role is Role.ANSWER or attempt.service_tier is not None:
            return frozenset({attempt.service_tier})
        if (asked := self._asked_tier(attempt, role)) is not None:
            return frozenset({asked})
        return self.tiers.get(attempt.asked_model or "", frozenset())

    def _asked_tier(self, attempt: OwnAttempt, role: Role) -> str | None:
        asked = None if role is Role.ANSWER else self.asked_tier(attempt)
        return None if asked is None else _TIERS.get(asked, asked)

    def strays(self, attempt: OwnAttempt, role: Role) -> tuple[CellKey, ...]:
        """Where it may have been counted although nothing taught it. Of an answer of ours nowhere: it says what it was."""
        names = self.names(attempt, role)
        if role is Role.ANSWER or names is None:
            return ()
        stems = {stem(name) for name in names}
        if attempt.model == attempt.asked_model and attempt.asked_model is not None:
            stems.add(stem(attempt.asked_model))
        homes, tier = self.candidates(attempt, role), attempt.service_tier  # which an answer said, though it broke off
        return tuple(
            sorted(
                key
                for key in self.keys
                if key not in homes
                and (role is Role.JOB or not key.batch)
                and stem(key.model) in stems
                and tier in (None, key.tier)
            )
        )

    def anywhere(self, attempt: OwnAttempt, role: Role) -> tuple[CellKey, ...]:
        """Every cell that may have counted it, whatever is likely."""
        return tuple(sorted({*self.candidates(attempt, role), *self.strays(attempt, role)} & self.keys))
