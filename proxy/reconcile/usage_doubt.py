"""What a verdict must survive beyond the plain equations: names that say otherwise than they did, and rows that changed places. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from proxy.reconcile.usage_equations import COLUMNS, Bounds, Hypothesis, Label, exactly
from proxy.reconcile.usage_exchange import Exchange, labels_of
from proxy.reconcile.usage_windows import Placed, Window

_NOT_HERE: Final = frozenset({Label.ELSEWHERE, Label.ABSENT})


def totals_of(window: Window, stated: frozenset[int]) -> tuple[int | None, ...]:
    """Of its rows; None of a column that the source does not state."""
    return tuple(
        sum(getattr(row, name) or 0 for row in window.rows) if at in stated else None for at, name in enumerate(COLUMNS)
    )


@dataclass(frozen=True, slots=True)
class Doubt:
    """`hypotheses`: those left even where strays were counted in the cells without unknowns."""

    windows: Sequence[Window]
    hypotheses: tuple[Hypothesis, ...]
    exchange: Exchange
    stated: frozenset[int]
    bounds: Bounds

    def against(self, window: Window, placed: Placed, labels: frozenset[Label]) -> str | None:
        """Why these labels may be others, as words that end a sentence; None where they hold."""
        if labels != self._by_names(window, placed):
            return _unsure_names(window)
        if labels != self._by_rows(window, placed):
            return "rows of another cell would fit here too, and then it would be otherwise"
        if labels == {Label.ABSENT} and (other := self._strayed(placed)) is not None:
            return f"nothing of it was counted here, but in {other.key} it may have been"
        return None

    def _by_names(self, window: Window, placed: Placed) -> frozenset[Label]:
        accepts = [exactly(total) for total in totals_of(window, self.stated)]
        return labels_of(window, placed, self.hypotheses, accepts, self.stated, self.bounds)

    def _by_rows(self, window: Window, placed: Placed) -> frozenset[Label]:
        return self.exchange.labels(window, placed, self.stated, self.bounds)

    def _strayed(self, placed: Placed) -> Window | None:
        """One with rows where it may have been counted, although it stands elsewhere by its names."""
        about = placed.attempt.attempt
        for window in self.windows:
            if window.rows and any(one.attempt.attempt == about for one in window.strays):
                labels = self._by_names(window, placed) | self._by_rows(window, placed)
                if not window.closed or not labels or labels - _NOT_HERE:
                    return window
        return None


def _unsure_names(window: Window) -> str:
    """Where there are no strays it is an own error that may have been counted elsewhere."""
    about = sorted(one.attempt.attempt for one in window.strays)
    if not about:
        return "an own error of it may have been counted in another cell, and then it would be otherwise"
    return (
        f"{len(about)} other attempts, such as {about[0]}, may have been counted here too, at another version or tier than "
        "answers had or by an upstream of the same account, and then it would be otherwise"
    )
