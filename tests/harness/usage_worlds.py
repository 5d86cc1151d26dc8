"""Worlds for usage exports: own attempts, what the provider really did with each, and the export that follows from it."""

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from hypothesis import strategies as st

from ledger.ids import CallId, Digest
from ledger.stages import Effect, NextOperation
from proxy.audit.attempts import OwnAttempt
from proxy.audit.tokens import Tokens
from proxy.endpoints import Family
from proxy.reconcile.usage_algebra import Verdict
from proxy.reconcile.usage_cells import Scope, place
from proxy.reconcile.usage_exports import Export
from proxy.reconcile.usage_pages import read_exports
from proxy.reconcile.usage_verdicts import Again, Fetched, Report, judge

HOUR: Final = 3_600_000
DAY: Final = 1_796_000_400_000 // HOUR * HOUR  # the first bucket begins here
LONGEST: Final = 900_000
SKEW: Final = 60_000
FETCHED: Final = DAY + 10 * HOUR  # long after all of a world is over
MODELS: Final = ("gpt-4o", "gpt-4o-mini")
# own attempts of known outcome, and what an unknown one really was
KNOWN: Final = ("answer", "answer", "answer", "refused", "failed")
DECISIONS: Final = (None, None, "served", "not_served", "accept_duplicate", "parked")  # whatever the truth is
TRUTHS: Final = ("served", "absent", "refused", "failed")


@dataclass(frozen=True)
class Deed:
    """One own attempt and the truth about it: when it was counted, with how many tokens. `truth` is of unknown ones."""

    attempt: OwnAttempt
    truth: str
    counted_ms: int
    tokens: tuple[int, int, int]  # input, cached, output

    @property
    def known(self) -> bool:
        return not self.attempt.is_unknown


@dataclass
class World:
    deeds: list[Deed]
    counts_refused: bool
    counts_failed: int  # 0 no · 1 without tokens · 2 with them
    hours: int = 8
    tokens_only: bool = False  # the export is Anthropic's, which counts no requests

    def contribution(self, deed: Deed) -> tuple[int, int, int, int]:
        requests, tokens = 1, deed.tokens
        if deed.truth == "absent" or (deed.truth == "refused" and not self.counts_refused):
            return 0, 0, 0, 0
        if deed.truth == "failed" and self.counts_failed == 0:
            return 0, 0, 0, 0
        if deed.truth == "refused" or (deed.truth == "failed" and self.counts_failed == 1):
            tokens = (0, 0, 0)
        return requests, *tokens

    def was_billed(self, deed: Deed) -> bool:
        return any(self.contribution(deed)[1:])

    def pages(self) -> dict[str, Any]:
        """The provider's page, from the truth."""
        buckets: list[dict[str, Any]] = []
        for hour in range(self.hours):
            start = DAY + hour * HOUR
            rows: dict[str, list[int]] = {}
            for deed in self.deeds:
                if start <= deed.counted_ms < start + HOUR and (adds := self.contribution(deed))[0]:
                    row = rows.setdefault(str(deed.attempt.model), [0, 0, 0, 0])
                    rows[str(deed.attempt.model)] = [have + more for have, more in zip(row, adds, strict=True)]
            results = [result(model, *numbers) for model, numbers in rows.items()]
            buckets.append(
                {
                    "object": "bucket",
                    "start_time": start // 1000,
                    "end_time": (start + HOUR) // 1000,
                    "results": results,
                }
            )
        return {"object": "page", "data": buckets, "has_more": False, "next_page": None}


def result(model: str, requests: int, tokens_in: int, cached: int, tokens_out: int) -> dict[str, Any]:
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": tokens_in,
        "input_cached_tokens": cached,
        "output_tokens": tokens_out,
        "num_model_requests": requests,
        "model": model,
        "api_key_id": "key_1",
        "service_tier": None,
        "batch": None,
    }


def as_anthropic(pages: dict[str, Any]) -> dict[str, Any]:
    """The same tokens as Anthropic's usage report states them."""

    def moment(seconds: int) -> str:
        return datetime.fromtimestamp(seconds, UTC).isoformat()

    def row(said: dict[str, Any]) -> dict[str, Any]:
        return {
            "uncached_input_tokens": said["input_tokens"] - said["input_cached_tokens"],
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "cache_read_input_tokens": said["input_cached_tokens"],
            "output_tokens": said["output_tokens"],
            "model": said["model"],
            "api_key_id": said["api_key_id"],
        }

    data = [
        {
            "starting_at": moment(bucket["start_time"]),
            "ending_at": moment(bucket["end_time"]),
            "results": [row(said) for said in bucket["results"]],
        }
        for bucket in pages["data"]
    ]
    return {"data": data, "has_more": False, "next_page": None}


def small_world(truth: str = "served", **changes: Any) -> World:
    """Two hours with an answer each, and an unknown request in the second, with `changes` to it."""
    deeds = []
    for number, (kind, hour) in enumerate((("answer", 1), ("answer", 2), ("unknown", 2))):
        start, tokens = DAY + hour * HOUR + HOUR // 2, (100 + number, 0, 50)
        about = own(number, "gpt-4o", kind, start, start + 1000, tokens)
        deeds.append(Deed(about, "served" if kind == "answer" else truth, start, tokens))
    deeds[-1] = replace(deeds[-1], attempt=replace(deeds[-1].attempt, **changes))
    return World(deeds, counts_refused=False, counts_failed=0)


def own(number: int, model: str, kind: str, start_ms: int, end_ms: int, tokens: tuple[int, int, int]) -> OwnAttempt:
    """`kind`: of KNOWN, or unknown."""
    known = kind != "unknown"
    return OwnAttempt(
        attempt=f"call_{number:04}.1",
        call=CallId(f"call_{number:04}"),
        upstream="openai",
        dialect="openai_chat",
        endpoint_class="generate",
        caller="ada",
        run=None,
        asked_model=model,
        model=model,
        service_tier=None,
        started_at_ms=start_ms,
        ended_at_ms=end_ms if known else None,
        ended="whole" if known else "open",
        status={"answer": 200, "refused": 400, "failed": 500}.get(kind),
        outcome=None,
        effect={"answer": Effect.HAPPENED, "refused": Effect.ABSENT, "failed": Effect.ANSWERED}.get(
            kind, Effect.UNKNOWN
        ),
        decision=None,
        tokens=Tokens(tokens[0], tokens[2], cached=tokens[1]) if kind == "answer" else None,
        request_bytes=tokens[0] * 4,
        request_digest=Digest(f"{tokens[0]:064x}"),
        max_output_tokens=None,
        background=False,
        last_seq=1000 + number,
        is_answered=kind == "answer",
        next_operation=NextOperation.NONE if known else NextOperation.RECONCILE_EFFECT,
    )


@st.composite
def some_deed(draw: st.DrawFn, number: int, model: str | None = None) -> Deed:
    """`model`: an unknown one at it."""
    kind = draw(st.sampled_from((*KNOWN, "unknown"))) if model is None else "unknown"
    model = model or draw(st.sampled_from(MODELS))
    hour, second = draw(st.integers(0, 7)), draw(st.sampled_from((1800, 1200, 2000, 100, 5, 2400, 3400, 3590)))
    start = DAY + hour * HOUR + second * 1000
    tokens_in = draw(st.integers(1, 2_000_000))
    tokens = (tokens_in, draw(st.sampled_from((0, tokens_in))), draw(st.integers(0, 2_000_000)))
    took = draw(st.integers(0, 30_000))
    truth = draw(st.sampled_from(TRUTHS)) if kind == "unknown" else {"answer": "served"}.get(kind, kind)
    late = draw(st.integers(0, LONGEST)) if kind == "unknown" else draw(st.integers(-SKEW, took + SKEW))
    made = Deed(own(number, model, kind, start, start + took, tokens), truth, start + late, tokens)
    decision = draw(st.sampled_from(DECISIONS)) if kind == "unknown" else None
    return made if decision is None else decided(made, decision)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Most hours of most models have an answer in their middle, as a busy key has; the rest is as it comes."""
    model = draw(st.sampled_from(MODELS))
    base = [
        Deed(own(100 + hour, model, "answer", middle, middle + 9_000, tokens), "served", middle + 5_000, tokens)
        for hour in draw(st.lists(st.integers(0, 7), unique=True, min_size=3, max_size=8))
        for middle in [DAY + hour * HOUR + HOUR // 2]
        for tokens in [(draw(st.integers(1, 2_000_000)), 0, draw(st.integers(0, 2_000_000)))]
    ]
    made = [draw(some_deed(number, model)) for number in range(draw(st.integers(1, 3)))]
    made += [draw(some_deed(10 + number)) for number in range(draw(st.integers(0, 6)))]
    return World([*base, *made], draw(st.booleans()), draw(st.integers(0, 2)), tokens_only=draw(st.booleans()))


def export_of(pages: dict[str, Any]) -> Export:
    return read_exports([("usage.json", json.dumps(pages).encode())], {})


SCOPE: Final = Scope(SKEW, LONGEST, input_upper=lambda one: one.request_bytes)


def judged(world: World, pages: dict[str, Any], scope: Scope = SCOPE, *, again: bool = True) -> Report:
    export = export_of(as_anthropic(pages) if world.tokens_only else pages)
    family = Family.ANTHROPIC if world.tokens_only else Family.OPENAI
    placement = place([deed.attempt for deed in world.deeds], export, scope, family)
    return judge(placement, Fetched(FETCHED, Again(export, 3600) if again else None))


def lies(world: World, report: Report) -> list[str]:
    """Verdicts that the truth contradicts."""
    by_attempt = {deed.attempt.attempt: deed for deed in world.deeds}
    found = []
    for finding in report.findings:
        deed = by_attempt[finding.placed.attempt.attempt]
        truly_served = deed.truth == "served" or world.was_billed(deed)
        counted = world.was_billed(deed) or (world.contribution(deed)[0] > 0 and not world.tokens_only)
        if (finding.verdict is Verdict.SERVED and not truly_served) or (
            finding.verdict is Verdict.NOT_BILLED and counted
        ):
            found.append(f"{finding.verdict} but {deed.truth}: {finding.why}")
    return found


def verdicts(report: Report) -> dict[str, Verdict]:
    return {finding.placed.attempt.attempt: finding.verdict for finding in report.findings}


def decided(deed: Deed, decision: str | None = None) -> Deed:
    """As it reads once its truth, or whatever is said, is decided on record."""
    decision = decision or ("served" if deed.truth == "served" else "not_served")
    effect = {"served": Effect.HAPPENED, "not_served": Effect.ABSENT}.get(decision, deed.attempt.effect)
    return replace(deed, attempt=replace(deed.attempt, decision=decision, effect=effect))
