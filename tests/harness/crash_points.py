"""The failpoints in words, and docs/crash-points.md, whose table is made from kills: `make crash-points`.

Each kill is measured by tests/crash/test_kill_at_every_failpoint.py, which fails where the page tells something else. A new
point is a row in POINTS, and the page made anew.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.harness.processes import ROOT

PAGE: Final = ROOT / "docs" / "crash-points.md"
TEST: Final = "tests/crash/test_kill_at_every_failpoint.py"
COLLECT: Final = "SENDONCE_CRASH_POINTS"  # names a file: what was measured goes there, and the page is not compared
FORMS: Final = ("json", "stream")
_TABLE: Final = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- /measured -->)", re.DOTALL)
_HEAD: Final = (
    "| point | where | passing | stage after the restart | effect | the same request | provider receipts |\n"
    "| --- | --- | --- | --- | --- | --- | --- |\n"
)
_VARIES: Final = " ¹"


@dataclass(frozen=True, slots=True)
class Point:
    """`left`: the stages that a kill at the first, second, … passing leaves. `a|b`: either, by chance; `a+`: this passing and all
    later ones, however many there are. `of_stream` where a streamed answer leaves others. Both are what should be;
    what is, the page tells from kills.
    """

    where: str
    left: str
    of_stream: str = ""

    def passings(self, form: str) -> list[str]:
        return (self.of_stream if form == "stream" and self.of_stream else self.left).split()


# A stage as `sendonce calls` shows it, `nothing` where there is no call, `delivered` for a completed call whose answer's delivery
# is on record.
ON_THE_WAY: Final = {
    "after-manifest": Point("forwarder: the claim and the manifest are durable", "manifest_recorded"),
    "after-connect": Point("forwarder: connected to the provider, before `attempt.started`", "manifest_recorded"),
    "before-commit": Point(
        "ledger writer: a transaction is written, not committed; nothing of it is left. The claim, the start, the head (its spool "
        "file may have it already), the observation (salvaged whole from the spool), then reading and delivery",
        "nothing manifest_recorded effect_unknown|effect_happened completed completed|delivered+",
    ),
    "after-commit": Point(
        "ledger writer: committed, its receipts not written, nobody told. The claim, the start (no `sent` receipt, so proven not "
        "sent), the head, the observation, then reading and delivery",
        "manifest_recorded not_sent effect_happened completed completed|delivered+",
    ),
    "before-receipt-sync": Point(
        "ledger writer: the `sent` receipt is written, not synced. A kill leaves the line there, so what was not sent cannot be "
        "proven unsent",
        "effect_unknown",
    ),
    "after-sent-receipt": Point(
        "ledger writer: the `sent` receipt is durable, the forwarder not told. Not sent, unprovably", "effect_unknown"
    ),
    "after-attempt-started": Point("forwarder: it may send now. Not sent, unprovably", "effect_unknown"),
    "after-first-byte": Point(
        "upstream: a piece of the body (up to 64 KiB) was handed to the kernel; the provider may have it",
        "effect_unknown",
    ),
    "after-head": Point(
        "forwarder: the provider's head is in the spool, its event queued: a 2xx without a byte of body",
        "effect_happened",
    ),
    "mid-stream": Point(
        "forwarder: a piece of the body is in the spool. All pieces so far are salvaged, and are a whole answer by length or by "
        "the dialect's terminal evidence",
        "completed",
        "effect_happened effect_happened|completed+",
    ),
    "before-observed": Point(
        "forwarder: the whole answer is in the spool, its end held back; salvaged at start without the provider",
        "completed",
    ),
    "after-observed": Point("forwarder: `attempt.observed` is durable, the end still held back", "completed"),
    "before-release": Point("forwarder: the same, in front of the release", "completed"),
    "after-release": Point(
        "forwarder: the end is released to the client's relay; the client may have it or not", "completed"
    ),
    "after-interpreted": Point("interpreter: reading and completion are durable", "completed|delivered"),
}
# Killed at while a start recovers a call that the provider held.
AT_START: Final = {
    "recovery-before-epoch": Point(
        "start: salvaged and proven, the new epoch not open; the next start does the same again and finds it done. The call "
        "was `effect_unknown` before that start, as after it",
        "effect_unknown",
    ),
    "recovery-after-epoch": Point(
        "start: the new epoch is open, old spool files not removed; a further epoch opens. The same call",
        "effect_unknown",
    ),
}
# Killed at in a `sendonce prune` of an answered call with an explicit key (and, in more states, in tests/contract/test_prune.py).
AT_PRUNE: Final = {
    "prune-erased": Point(
        "`sendonce prune`: every tombstone is durable and every body row is gone, no chunk is swept. As after a whole prune; "
        "the next one sweeps them. A derived key starts its next occurrence instead",
        "closed",
    ),
    "prune-swept": Point("`sendonce prune`: a batch of chunks is gone, the next not asked for. The same", "closed"),
}
# Killed at in the second pass of a run whose first one got its answer; the same request comes again in the newest pass.
AT_RUN: Final = {
    "after-pass-opened": Point(
        "`sendonce run`: the next pass is open on record, its program not told. Starting again opens one more, and the answer "
        "that the first pass got is replayed in it",
        "delivered",
    ),
    "after-pass-served": Point(
        "a replay within a run: on record that the pass was given this call, no byte of the answer written. The same pass is "
        "still open after the restart",
        "completed",
    ),
}
# Killed at in a `sendonce reconcile --served --response` of a call that the provider held (and in more states, in
# tests/crash/test_settling.py). Look-ups and imports settle in the same way.
AT_DECISION: Final = {
    "before-bundle": Point(
        "decisions: every call is read and its bundle decided, nothing is written; the same command does it again",
        "effect_unknown",
    ),
    "after-bundle": Point(
        "decisions: all bundles are durable in one transaction, what an answer came back for is not interpreted; the next start "
        "does that",
        "completed",
    ),
}
# Killed at in a `sendonce reinterpret` of an answered call.
AT_REINTERPRETATION: Final = {
    "after-reinterpreted": Point(
        "`sendonce reinterpret`: one newer reading is durable, the next answer not read; the same command goes on with that",
        "delivered",
    ),
}
POINTS: Final = ON_THE_WAY | AT_START | AT_PRUNE | AT_RUN | AT_DECISION | AT_REINTERPRETATION

# Stage -> disposition and code of what the same request gets, and is it sent: semantics section 4, for a derived key.
ANSWERED: Final = {
    "nothing": ("forwarded", None, True),
    "manifest_recorded": ("resumed", None, True),
    "not_sent": ("resumed", None, True),
    "effect_unknown": ("refused", "effect_unknown", False),
    "effect_happened": ("refused", "effect_happened", False),
    "completed": ("replayed", None, False),
    "delivered": ("forwarded", None, True),  # that occurrence is over
    "closed": ("refused", "response_erased", False),  # an explicit key
}


@dataclass(frozen=True, slots=True)
class Kill:
    """What was seen after one kill and a restart: before the same request came again, and then."""

    stage: str
    effect: str
    disposition: str
    code: str | None
    receipts_before: int  # the provider's own, of exactly this request
    receipts_after: int

    @property
    def cells(self) -> list[str]:
        stage = {"nothing": "no call", "delivered": "`completed`, delivered"}.get(self.stage, f"`{self.stage}`")
        gets = f"{self.disposition} `{self.code}`" if self.code else f"`{self.disposition}`"
        return [stage, self.effect, gets, f"{self.receipts_before} → {self.receipts_after}"]


def _either(stage: str) -> Kill:
    """As it must be where chance decides which stage it is: the provider has answered by then."""
    disposition, code, is_sent = ANSWERED[stage]
    effect = {"effect_unknown": "unknown"}.get(stage, "happened")
    return Kill(stage, effect, disposition, code, 1, 1 + is_sent)


def rows(point: str, form: str, kills: Sequence[Kill]) -> list[list[str]]:
    """The page's cells from `passing` on, of one kill after another. Raises AssertionError where POINTS expects other stages."""
    expected, told = POINTS[point].passings(form), []
    stages = " ".join(kill.stage for kill in kills)
    pattern = " ".join(f"(?:{stage})" for stage in expected)
    pattern = re.sub(r" \(\?:([a-z_|]+)\+\)$", r"(?: (?:\1))+", pattern)
    assert re.fullmatch(pattern, stages), f"{point}, {form}: a kill leaves {stages}, where POINTS expects {expected}"
    for passing, stage in enumerate(expected, start=1):
        label = f"{passing} and later" if stage.endswith("+") else str(passing)
        by_chance = stage.removesuffix("+").split("|")
        among = kills[passing - 1 :] if stage.endswith("+") else [kills[passing - 1]]
        if len(by_chance) == 1:
            assert len(set(among)) == 1, f"{point}, {form}: one stage, and different answers: {among}"
            told.append([label, *among[0].cells])
        else:
            allowed = [_either(stage) for stage in by_chance]
            assert set(among) <= set(allowed), f"{point}, {form}: {among}"
            told += [[label + _VARIES, *kill.cells] for kill in allowed]
    return told


def check(point: str, form: str, kills: Sequence[Kill], page: Path = PAGE) -> None:
    """Fails where the page tells something else; or collects for a new page (`make crash-points`)."""
    measured = rows(point, form, kills)
    if path := os.environ.get(COLLECT):
        with Path(path).open("a") as file:
            file.write(json.dumps({"point": point, "form": form, "kills": [asdict(kill) for kill in kills]}) + "\n")
        return
    assert measured == _told_of(point, form, page), f"{page.name} tells something else. Run: make crash-points"


def table_of(page: Path = PAGE) -> list[list[str]]:
    """The cells of each row."""
    found = _TABLE.search(page.read_text())
    assert found is not None, f"{page.name} has no table between its two marks"
    return [line.strip("| ").split(" | ") for line in found[0].removeprefix(_HEAD).splitlines()]


def _told_of(point: str, form: str, page: Path) -> list[list[str]]:
    """The rows of both forms, and of this one."""
    told = []
    for name, _, passing, *cells in table_of(page):
        only = re.match(f"({'|'.join(FORMS)}), ", passing)
        if name == f"`{point}`" and (only is None or only[1] == form):
            told.append([passing.removeprefix(f"{form}, "), *cells])
    return told


def table(measured: dict[tuple[str, str], list[list[str]]]) -> str:
    """The whole table; what both forms leave is told once."""
    lines = [_HEAD]
    for point, about in POINTS.items():
        json_rows, stream_rows = measured[point, "json"], measured.get((point, "stream"), [])
        if stream_rows in ([], json_rows):
            of_point = json_rows
        else:
            of_point = [
                [f"{form}, {passing}", *cells]
                for form, form_rows in zip(FORMS, (json_rows, stream_rows), strict=True)
                for passing, *cells in form_rows
            ]
        for number, cells in enumerate(of_point):
            where = about.where if number == 0 else ""
            lines.append(f"| {' | '.join([f'`{point}`', where or '〃', *cells])} |\n")
    return "".join(lines)


def main() -> int:
    """Kills at everything once more, and writes what it saw into the page."""
    with tempfile.TemporaryDirectory() as directory:
        collected = Path(directory) / "kills.jsonl"
        pytest = [sys.executable, "-m", "pytest", TEST, "-n", "4", "-m", "slow or not slow", "-k", "derived or during"]
        code = subprocess.run(pytest, cwd=ROOT, env={**os.environ, COLLECT: str(collected)}, check=False).returncode
        if code:
            print("The page is as it was: a kill left what POINTS or the contract does not expect.", file=sys.stderr)
            return code
        measured: dict[tuple[str, str], list[list[str]]] = {}
        for line in collected.read_text().splitlines():
            seen: dict[str, Any] = json.loads(line)
            kills = [Kill(**kill) for kill in seen["kills"]]
            measured[seen["point"], seen["form"]] = rows(seen["point"], seen["form"], kills)
    PAGE.write_text(_TABLE.sub(lambda _: table(measured), PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
