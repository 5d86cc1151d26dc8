"""Exports and the record brought together: files read, attempts gathered, what was asked looked at where a proof depends on it."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from stat import S_ISREG
from typing import Final
from urllib.parse import urlsplit

from ledger.epochs import StateDir
from ledger.events import CallManifest
from ledger.ids import CallId
from ledger.reader import Reader, open_reader
from proxy.audit.asking import Asking
from proxy.audit.attempts import OwnAttempt, own_attempts
from proxy.audit.prices import BY_FAMILY
from proxy.kept import asking_of
from proxy.owner import alive_calls
from proxy.reconcile.usage_cells import Placement, Scope, place
from proxy.reconcile.usage_comparison import Line, compare, compare_costs
from proxy.reconcile.usage_exports import FILE_LIMIT_BYTES, SOURCE_FAMILIES, Export, UnusableExportError
from proxy.reconcile.usage_pages import read_exports
from proxy.reconcile.usage_verdicts import Again, Fetched, Report, judge
from proxy.reconcile.usage_windows import Role
from proxy.settings import Settings, SettingsError
from proxy.upstream_settings import UpstreamSettings

PAGE_CALLS: Final = 500  # of some ten events each: a few MiB

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Ask:
    """`settled`: why the numbers are final without a second fetch; it goes on record."""

    files: tuple[Path, ...]
    again: tuple[Path, ...] = ()
    upstream: str | None = None
    columns: Mapping[str, str] | None = None
    scope: Scope = field(default_factory=Scope)
    settled: str | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """`report`: None of cost pages, which prove nothing about single attempts."""

    export: Export
    upstream: str
    lines: tuple[Line, ...]
    report: Report | None


async def compared(
    settings: Settings, state_dir: StateDir, ask: Ask, progress: Progress, costs: Mapping[str, Decimal] | None = None
) -> Compared:
    """Raises UnusableExportError, SettingsError, StateDirError, UnreadableRecordError. Nothing is written.

    `costs`: of own attempts whose cost is known, by attempt id, in US dollars.
    """
    export, fetched = _exports(ask)
    owner = await alive_calls(state_dir)
    alive = frozenset(owner["alive"]) if owner else frozenset[str]()
    async with open_reader(state_dir.ledger) as reader:
        attempts, manifests = await _attempts(reader, progress)
        upstream = _upstream(settings, ask, export, attempts)
        about = settings.upstreams[upstream]
        mine, near = _accounts(settings, upstream, attempts, manifests)
        if export.is_costs:
            return Compared(export, upstream, compare_costs(mine, export, costs), None)
        scope = replace(ask.scope, alive=alive)
        placement = place(mine, export, scope, about.family, near)
        asked = await _asked(reader, placement, manifests, progress)
    several = _several(asked, gateway=about.gateway)
    scope = replace(scope, input_upper=_upper(asked), several=several, acts=_acts(asked), asked_tier=_tier(asked))
    report = judge(place(mine, export, scope, about.family, near), fetched)
    return Compared(export, upstream, compare(report.placement, report.algebra, costs), report)


def _accounts(
    settings: Settings, name: str, attempts: Sequence[OwnAttempt], manifests: Mapping[CallId, CallManifest]
) -> tuple[list[OwnAttempt], list[OwnAttempt]]:
    """Whose requests the export of this upstream counts: all that went to the same address, under whatever name; and which it may count
    as well, because the other upstream is of the same provider, or speaks otherwise to the same address.
    """
    about = settings.upstreams[name]
    mine, near = [], []
    host, path = _address(about.base_url)
    for one in attempts:
        other, manifest = settings.upstreams.get(one.upstream), manifests.get(one.call)
        url = manifest.url if manifest is not None else other.base_url if other is not None else ""
        other_host, other_path = _address(url)
        same_family = other is None or other.family is about.family
        if one.upstream == name or (other_host == host and f"{other_path}/".startswith(f"{path}/") and same_family):
            mine.append(one)
        elif other_host == host or (other is not None and _is_one_provider(other, about)):
            near.append(one)
    return mine, near


def _address(url: str) -> tuple[str, str]:
    """Host and port as one, however they are written, and the path."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    return f"{parts.hostname}:{port}", parts.path.rstrip("/")


def _is_one_provider(other: UpstreamSettings, about: UpstreamSettings) -> bool:
    """By whose prices it has; "none" are many."""
    theirs, ours = (one.price_provider or BY_FAMILY.get(one.family) for one in (other, about))
    return theirs == ours and ours not in (None, "none")


def _exports(ask: Ask) -> tuple[Export, Fetched]:
    """When something was fetched is known by its file's time alone: no page says it."""
    columns = ask.columns or {}
    export = read_exports([(str(path), _bytes(path)) for path in ask.files], columns)
    times = [path.stat().st_mtime for path in ask.files]
    first_ms = int(min(times) * 1000)
    if not ask.again:
        return export, Fetched(first_ms, settled=ask.settled)
    if same := {path.resolve() for path in ask.files} & {path.resolve() for path in ask.again}:
        raise UnusableExportError(f"{min(same)}: it is given as itself and as --again. Fetch the same once more.")
    later = read_exports([(str(path), _bytes(path)) for path in ask.again], columns)
    younger = min(path.stat().st_mtime for path in ask.again) - max(times)
    return export, Fetched(first_ms, Again(later, younger), ask.settled)


def _bytes(path: Path) -> bytes:
    """Of a regular file: a pipe or a device has no size, and may never end. Opening one waits for nobody."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            is_regular = S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(FILE_LIMIT_BYTES + 1) if is_regular else b""
    except OSError as error:
        raise UnusableExportError(
            f"{path}: it cannot be read ({error.strerror}). Name the file of an export."
        ) from error
    if not is_regular:
        raise UnusableExportError(f"{path}: it is no regular file. Save the export into one, and name that.")
    if len(data) > FILE_LIMIT_BYTES:
        raise UnusableExportError(
            f"{path}: it has more than the {FILE_LIMIT_BYTES} bytes that are read. Fetch a shorter time, or wider buckets."
        )
    return data


async def _attempts(reader: Reader, progress: Progress) -> tuple[list[OwnAttempt], dict[CallId, CallManifest]]:
    await reader.check_index()
    attempts: list[OwnAttempt] = []
    manifests: dict[CallId, CallManifest] = {}
    count, _ = await reader.counts()
    read = 0
    async with aclosing(reader.oldest_first(PAGE_CALLS)) as pages:
        async for states in pages:
            attempts += own_attempts(states)
            manifests |= {state.call: state.manifest for state in states if state.manifest is not None}
            read += len(states)
            progress("calls", read, max(count, read))
    return attempts, manifests


def _upstream(settings: Settings, ask: Ask, export: Export, attempts: Sequence[OwnAttempt]) -> str:
    if ask.upstream is not None:
        if ask.upstream not in settings.upstreams:
            raise SettingsError(
                f"--upstream {ask.upstream!r} is none of the configuration: {', '.join(sorted(settings.upstreams))}."
            )
        return ask.upstream
    family = SOURCE_FAMILIES.get(export.source)
    used = {one.upstream for one in attempts} & settings.upstreams.keys()
    fitting = sorted(name for name in used if family in (None, settings.upstreams[name].family))
    if len(fitting) != 1:
        names = ", ".join(fitting) or ", ".join(sorted(used)) or "none"
        raise SettingsError(f"Of which upstream is {ask.files[0]}? Name it: --upstream. On record are {names}.")
    return fitting[0]


async def _asked(
    reader: Reader, placement: Placement, manifests: Mapping[CallId, CallManifest], progress: Progress
) -> dict[str, Asking | None]:
    """What each request asked for, by attempt, of those that stand beside an unknown one, or in one cell or another by the tier that
    they named. None: it cannot be read.
    """
    wanted = {
        one.attempt.attempt: one.attempt.call
        for window in placement.windows
        if window.unknowns or any(one.role is Role.UNKNOWN for one in window.strays)
        for one in (*window.placed, *window.strays)
    }
    wanted |= {one.attempt.attempt: one.attempt.call for one in placement.placed if one.strays}
    asked: dict[str, Asking | None] = {}
    by_digest: dict[str, Asking | None] = {}
    for number, (attempt, call) in enumerate(sorted(wanted.items()), 1):
        manifest = manifests.get(call)
        if manifest is not None and manifest.body.digest not in by_digest:
            by_digest[manifest.body.digest] = await asking_of(reader, manifest.body, manifest.headers)
        asked[attempt] = by_digest[manifest.body.digest] if manifest is not None else None
        progress("requests", number, len(wanted))
    return asked


def _upper(asked: Mapping[str, Asking | None]) -> Callable[[OwnAttempt], int | None]:
    def upper(attempt: OwnAttempt) -> int | None:
        about = asked.get(attempt.attempt)
        if about is None or about.beyond or about.media or about.loops:
            return None
        return about.input_tokens

    return upper


def _several(asked: Mapping[str, Asking | None], *, gateway: bool) -> Callable[[OwnAttempt], str | None]:
    """Where no unknown stands beside it, the cell itself shows what was counted."""

    def several(attempt: OwnAttempt) -> str | None:
        if gateway:
            return "its upstream is a gateway, which may ask several providers"
        if attempt.attempt not in asked:
            return None
        about = asked[attempt.attempt]
        if about is None:
            return "its request cannot be read any more"
        return about.loops or (f"it asks for {about.answers} answers" if about.answers > 1 else None)

    return several


def _tier(asked: Mapping[str, Asking | None]) -> Callable[[OwnAttempt], str | None]:
    def tier(attempt: OwnAttempt) -> str | None:
        about = asked.get(attempt.attempt)
        return None if about is None else about.tier

    return tier


def _acts(asked: Mapping[str, Asking | None]) -> Callable[[OwnAttempt], str | None]:
    """What a request names beyond its own bytes may be read, called or added to: a conversation, a URL, a field of tomorrow."""

    def acts(attempt: OwnAttempt) -> str | None:
        about = asked.get(attempt.attempt)
        return None if about is None else about.beyond

    return acts


def columns_of(given: Iterable[str], keys: Sequence[str]) -> dict[str, str]:
    """--map KEY=COLUMN. Raises SettingsError."""
    columns: dict[str, str] = {}
    for pair in given:
        key, equals, column = pair.partition("=")
        if not equals or key not in keys or not column:
            raise SettingsError(f"--map {pair!r} maps nothing. Give KEY=COLUMN; the keys are {', '.join(keys)}.")
        if key in columns:
            raise SettingsError(f"--map {key} is given twice. Keep one.")
        columns[key] = column
    return columns
