"""Named points at which a test may break this process: `SENDONCE_FAILPOINTS='after-sent-receipt=kill@2;before-observed=eio'`.

Actions: kill, stop (SIGKILL, SIGSTOP to itself), exit (70), sleep(seconds), eio, enospc; `@n` is the n-th passing
(default 1). Unset, a point costs one truth test. docs/crash-points.md lists every point.
"""

import errno
import os
import re
import signal
import time
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "SENDONCE_FAILPOINTS"
_RULE: Final = re.compile(
    r"(?P<point>[a-z0-9-]+)=(?P<action>kill|stop|exit|eio|enospc|sleep)(?:\((?P<seconds>[\d.]+)\))?(?:@(?P<at>\d+))?"
)


@dataclass(slots=True)
class _Rule:
    action: str
    seconds: float
    at: int
    passed: int = 0


def _parse(text: str) -> dict[str, _Rule]:
    rules = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        match = _RULE.fullmatch(part)
        if match is None:
            raise ValueError(f"{VARIABLE}: {part!r} is not POINT=ACTION[(SECONDS)][@N]")
        rules[match["point"]] = _Rule(match["action"], float(match["seconds"] or 0), int(match["at"] or 1))
    return rules


try:
    _rules: Final = _parse(os.environ.get(VARIABLE, ""))
except ValueError as error:  # for tests only, so the process that asked for it ends here
    raise SystemExit(f"sendonce: {error}") from None


def passed(point: str) -> None:
    """Marks that execution reached `point`. Raises OSError for eio and enospc; may not return at all."""
    if _rules and point in _rules:
        _act(point, _rules[point])


def _act(point: str, rule: _Rule) -> None:
    rule.passed += 1
    if rule.passed != rule.at:
        return
    match rule.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exit":
            os._exit(70)
        case "sleep":
            time.sleep(rule.seconds)
        case "eio" | "enospc":
            raise OSError(getattr(errno, rule.action.upper()), f"failpoint {point}")
        case _:
            raise AssertionError(rule.action)
