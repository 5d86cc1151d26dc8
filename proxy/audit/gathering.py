"""What a report is made of, read from the ledger and the activity log: page by page, beside a living proxy or without one."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final

from ledger.calls import AttemptState, CallState
from ledger.epochs import StateDir
from ledger.events import Body, Pairs
from ledger.ids import CallId, Digest
from ledger.reader import Reader, open_reader
from proxy.activity import lines_of, log_state
from proxy.audit.attempts import OwnAttempt, own_attempts
from proxy.audit.bounds import Evidence, OutputLimit, limits_of
from proxy.audit.prices import BY_FAMILY, Prices, Source
from proxy.audit.report import Ask, LogLine, OwnCall, Reach, Report, report
from proxy.audit.spend import BOUNDED, Item, category_of, item_of
from proxy.audit.tokens import Tokens, tokens_of
from proxy.interpreter import dialect_of
from proxy.kept import asking_of, kept
from proxy.manifest import as_headers
from proxy.owner import alive_calls
from proxy.settings import Settings

PAGE_CALLS: Final = 500  # of some ten events each: a few MiB
STATED_CHUNKS: Final = slice(
    None, 16
)  # of an answer that broke off, 8 KiB each on average: its beginning counts the input
LOGGED: Final = frozenset({"refused", "replayed", "attached"})

Progress = Callable[[str, int, int], None]
Twins = dict[tuple[str, Digest, str | None], int]


@dataclass(frozen=True, slots=True)
class _Unclear:
    """What has to be read of an attempt to bound it."""

    request: Body | None
    request_headers: Pairs
    partial: "_Partial | None"


@dataclass(frozen=True, slots=True)
class _Partial:
    state: CallState
    attempt: AttemptState
    body: Body


@dataclass(slots=True)
class Gathered:
    """Small rows for every call and attempt; larger ones only of what is not simply known."""

    calls: list[OwnCall] = field(default_factory=list)
    attempts: list[OwnAttempt] = field(default_factory=list)
    twins: Twins = field(default_factory=dict)  # what the provider counted as input, by upstream, body and model
    unclear: dict[str, _Unclear] = field(default_factory=dict)


def prices_of(settings: Settings) -> Prices:
    """Raises BadPriceSourceError where a setting names what the price list does not have."""
    sources = {
        name: Source(upstream.price_provider or BY_FAMILY.get(upstream.family), tuple(upstream.price_as.items()))
        for name, upstream in settings.upstreams.items()
    }
    prices = Prices(sources)
    prices.check()
    return prices


def output_limits() -> tuple[OutputLimit, ...]:
    return limits_of(files("config").joinpath("output_limits.toml").read_text())


async def audit(settings: Settings, state_dir: StateDir, ask: Ask, progress: Progress) -> Report:
    """Raises StateDirError, UnreadableRecordError, BadPriceSourceError."""
    prices, limits = prices_of(settings), output_limits()
    owner = await alive_calls(state_dir)
    alive = frozenset(CallId(call) for call in owner["alive"]) if owner else frozenset[CallId]()
    async with open_reader(state_dir.ledger) as reader:
        await reader.check_index()
        gathered = await _gather(reader, prices, alive, progress)
        items = [item async for item in _items(reader, settings, gathered, prices, limits, alive, progress)]
    log: list[LogLine] = []
    reach = _read_log(state_dir, log)
    return report(ask, gathered.calls, items, log, reach)


async def _gather(reader: Reader, prices: Prices, alive: frozenset[CallId], progress: Progress) -> Gathered:
    gathered = Gathered()
    count, _ = await reader.counts()
    async for states in reader.oldest_first(PAGE_CALLS):
        for state in states:
            _add_call(gathered, state, prices, alive)
        progress("calls", len(gathered.calls), max(count, len(gathered.calls)))
    return gathered


def _add_call(gathered: Gathered, state: CallState, prices: Prices, alive: frozenset[CallId]) -> None:
    newest = None
    for own, attempt in zip(own_attempts([state]), state.attempts, strict=True):
        newest = own
        gathered.attempts.append(own)
        if own.tokens is not None and own.request_digest is not None and own.ended == "whole":
            twin = (own.upstream, own.request_digest, own.asked_model)
            gathered.twins[twin] = max(gathered.twins.get(twin, 0), own.tokens.input)
        if category_of(own, prices, alive) in BOUNDED:
            gathered.unclear[own.attempt] = _unclear(state, attempt)
    requested, manifest = state.requested, state.manifest
    gathered.calls.append(
        OwnCall(
            call=state.call,
            created_at_ms=state.created_at_ms,
            upstream=state.upstream,
            model=newest.model if newest else manifest.model if manifest else None,
            caller=requested.caller if requested else state.caller_exact,
            run=state.run,
        )
    )


def _unclear(state: CallState, attempt: AttemptState) -> _Unclear:
    manifest, observed = state.manifest, attempt.observed
    is_partial = observed is not None and observed.observation == "partial" and 200 <= (observed.status or 0) < 300
    partial = None
    if is_partial and observed is not None and observed.body is not None and observed.body.kept:
        partial = _Partial(state, attempt, observed.body)
    return _Unclear(manifest.body if manifest else None, manifest.headers if manifest else (), partial)


async def _items(
    reader: Reader,
    settings: Settings,
    gathered: Gathered,
    prices: Prices,
    limits: tuple[OutputLimit, ...],
    alive: frozenset[CallId],
    progress: Progress,
) -> AsyncIterator[Item]:
    read = 0
    for own in gathered.attempts:
        unclear = gathered.unclear.get(own.attempt)
        if unclear is None:
            yield item_of(own, prices, limits, alive=alive)
            continue
        evidence = Evidence(
            await asking_of(reader, unclear.request, unclear.request_headers),
            gathered.twins.get((own.upstream, own.request_digest, own.asked_model)) if own.request_digest else None,
            own.tokens or await _stated(reader, settings, unclear),
        )
        yield item_of(own, prices, limits, evidence, alive)
        read += 1
        progress("requests whose cost is not stated", read, len(gathered.unclear))


async def _stated(reader: Reader, settings: Settings, unclear: _Unclear) -> Tokens | None:
    """What an answer that broke off said of its input: Anthropic and Gemini do, at its beginning."""
    partial = unclear.partial
    if partial is None or partial.attempt.observed is None:
        return None
    body = await kept(reader, partial.body, STATED_CHUNKS)
    if body is None:
        return None
    observed = partial.attempt.observed
    dialect, traits = dialect_of(settings, partial.state)
    reading = dialect.interpret(observed.status or 0, as_headers(observed.headers), body, traits)
    return tokens_of(dialect.name, reading.usage)


def _read_log(state_dir: StateDir, log: list[LogLine]) -> Reach:
    since_ms, unreadable = None, 0
    for row in lines_of(state_dir.activity_log):
        at_ms = _at(row) if row else None
        if row is None or at_ms is None:
            unreadable += 1
            continue
        since_ms = at_ms if since_ms is None else since_ms
        if row.get("what") in LOGGED:
            log.append(_log_line(row, at_ms))
    return Reach(since_ms, unreadable, *log_state(state_dir.activity_log))


def _at(row: Mapping[str, Any]) -> int | None:
    try:
        return int(datetime.fromisoformat(row["at"]).astimezone(UTC).timestamp() * 1000)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _log_line(row: Mapping[str, Any], at_ms: int) -> LogLine:
    def text(name: str) -> str | None:
        value = row.get(name)
        return value if isinstance(value, str) else None

    call = text("call")
    return LogLine(
        at_ms, str(row["what"]), text("upstream") or "-", text("code"), CallId(call) if call else None, text("run")
    )
