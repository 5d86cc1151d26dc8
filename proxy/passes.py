"""Runs: which start of a run is its newest, and the opening of another one (semantics section 9).

A pass is known to its clients by a segment of their base URL, `NUMBER-TOKEN`: /run/RUN/NUMBER-TOKEN/UPSTREAM/… Only the token's
digest is on record, so who reads the ledger cannot speak for a run.
"""

import hmac
import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from ledger.errors import ConflictError
from ledger.events import OnDivergence, PassOpened
from ledger.failpoints import passed
from ledger.ids import NO_CHAIN, Head
from ledger.operations import Append, Entry
from ledger.reader import Reader
from ledger.writer import Writer
from proxy.gates import Gate, counted, gates_of
from proxy.manifest import OpenPass

RUN_LIMIT_CHARS: Final = 128  # it stands in a path, in every row of the run, and in one table cell
TOKEN_BYTES: Final = 16  # guessing one is hopeless; it is no password that people type
REMEMBERED: Final = 4096  # runs; what is not remembered is read again
OPENINGS_LIMIT: Final = 5  # starts of one run at once that may be first before this one gives up
_RUN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PASS: Final = re.compile(r"([1-9][0-9]{0,8})-([A-Za-z0-9_-]{1,64})")


class BadRunError(Exception):
    """A name that no run can have; the message says what one may be. Exit code 2."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A pass that was just opened: `segment` is what its base URLs name it by. `earlier`: the one it closed, and when that was opened."""

    run: str
    number: int
    segment: str
    gates: tuple[Gate, ...]
    earlier: int | None = None
    earlier_at_ms: int | None = None


def checked_run(name: str) -> str:
    """Raises BadRunError."""
    if len(name) > RUN_LIMIT_CHARS or not _RUN.fullmatch(name):
        shown = name if len(name) <= RUN_LIMIT_CHARS else f"{name[:32]}… ({len(name)} characters)"
        raise BadRunError(
            f"The run id {shown!r} cannot be used: it is a path segment of the base URLs. Use 1 to {RUN_LIMIT_CHARS} of the "
            "characters A-Z a-z 0-9 . _ -, beginning with a letter or a digit, as in --id nightly-2026-11-30."
        )
    return name


class Passes:
    """The owner's view: it alone opens passes, so what it remembers of them is what the ledger says."""

    def __init__(self, reader: Reader, writer: Writer, secret: bytes) -> None:
        self._reader, self._writer, self._secret = reader, writer, secret
        self._newest: OrderedDict[str, OpenPass] = OrderedDict()

    async def newest(self, run: str) -> OpenPass | None:
        if run in self._newest:
            self._newest.move_to_end(run)
            return self._newest[run]
        opened = await self._reader.newest_pass(run)
        return self._remember(opened) if opened else None

    async def named(self, run: str, segment: str) -> OpenPass | None:
        """The run's newest pass if this segment names it; None: it names another one, or none that was ever opened."""
        found = _PASS.fullmatch(segment)
        newest = await self.newest(run) if found and _RUN.fullmatch(run) and len(run) <= RUN_LIMIT_CHARS else None
        if found is None or newest is None or newest.number != int(found[1]):
            return None
        return newest if hmac.compare_digest(self._digest(run, found[2]), newest.token_digest) else None

    async def is_newest(self, within: OpenPass) -> bool:
        return await self.newest(within.run) == within

    async def open(self, run: str, on_divergence: OnDivergence) -> Opened:
        """Closes the pass before; durable when it returns. Raises BadRunError, and ConflictError when others were first too often."""
        checked_run(run)
        for _ in range(OPENINGS_LIMIT):
            head = await self._reader.head() or Head(0, NO_CHAIN)
            passes = await self._reader.passes(run)
            gates = await gates_of(self._reader, run, passes)
            number, token = len(passes) + 1, secrets.token_urlsafe(TOKEN_BYTES)
            event = PassOpened(
                run, number, self._digest(run, token), on_divergence, head.seq, head.chain, counted(gates)
            )
            try:
                await self._writer.append(Append((Entry(None, None, event),)))
            except ConflictError:  # of two starts at once the last wins
                continue
            passed("after-pass-opened")
            self._remember(event)
            earlier_at_ms, earlier = passes[-1] if passes else (None, None)
            return Opened(run, number, f"{number}-{token}", gates, earlier.number if earlier else None, earlier_at_ms)
        raise ConflictError(f"the run {run} is being started again and again; stop the other starts")

    def _remember(self, opened: PassOpened) -> OpenPass:
        """The newest one: what was read may have been overtaken by an opening meanwhile."""
        continues = opened.on_divergence == "continue"
        made = OpenPass(opened.run, opened.number, opened.token_digest, continues)
        if (known := self._newest.get(opened.run)) is not None and known.number > made.number:
            return known
        self._newest[opened.run] = made
        self._newest.move_to_end(opened.run)
        if len(self._newest) > REMEMBERED:
            self._newest.popitem(last=False)
        return made

    def _digest(self, run: str, token: str) -> str:
        return blake3(b"\0".join((b"pass", run.encode(), token.encode())), key=self._secret).hexdigest()
