"""The activity log and the metrics: what happened that the ledger, rightly, does not record. No witnesses (I4)."""

import logging
import os
from collections import Counter as Counted
from collections.abc import Iterator
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any, Final

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from ledger.events import Authority
from proxy import clock
from proxy.views import instant

LOG_LIMIT_BYTES: Final = 16 * 1024 * 1024  # one file; a few of them cover weeks of refusals
LOG_FILES: Final = 4


def refusals_of(path: Path, run: str) -> Counted[tuple[int, str]]:
    """How often each pass of a run was refused, by code, as far as the log goes back. Marked as what it is: no witness."""
    counted: Counted[tuple[int, str]] = Counted()
    named = b'"run":"%b"' % run.encode()
    for file in _files(path):
        with suppress(FileNotFoundError), _opened(file) as lines:
            for line in lines:
                if named in line and line.endswith(b"\n"):
                    row = orjson.loads(line)
                    counted[row["pass"], row["code"]] += row["what"] == "refused"
    return counted


def lines_of(path: Path) -> Iterator[dict[str, Any] | None]:
    """Every line from the oldest file on, in the order they were written; None for one that cannot be read. No witness."""
    for file in _files(path):
        with suppress(FileNotFoundError), _opened(file) as lines:
            for line in lines:
                try:
                    row = orjson.loads(line)
                except orjson.JSONDecodeError:  # written while a disk was full, or while we read
                    row = None
                yield row if isinstance(row, dict) else None


def log_state(path: Path) -> tuple[bool, bool]:
    """Whether there is no log at all, and whether older lines than it holds may have been rotated away."""
    files = _files(path)
    return not any(map(_is_log, files)), _is_log(files[0])


def _is_log(file: Path) -> bool:
    with suppress(OSError):
        return S_ISREG(file.lstat().st_mode)
    return False


def _opened(file: Path) -> IO[bytes]:
    """A regular file itself; anything else is no log of ours, and a pipe would never end. Raises FileNotFoundError, OSError."""
    if not _is_log(file):
        raise FileNotFoundError(file)
    return os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _files(path: Path) -> tuple[Path, ...]:
    """Oldest first."""
    return (*(path.with_name(f"{path.name}.{number}") for number in range(LOG_FILES - 1, 0, -1)), path)


class _Quiet(RotatingFileHandler):
    """No witness: where the disk is full its lines are lost, and stderr is not filled in their place."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        del record


class Activity:
    """One per process. Log lines carry identities and codes, never prompts, answers or credentials."""

    def __init__(self, path: Path) -> None:
        self._log = logging.getLogger("sendonce.activity")
        self._log.setLevel(logging.INFO)
        self._log.propagate = False
        handler = _Quiet(path, maxBytes=LOG_LIMIT_BYTES, backupCount=LOG_FILES - 1)
        handler.setFormatter(logging.Formatter("%(message)s"))
        self._log.addHandler(handler)
        self.registry = CollectorRegistry()
        self._answers = Counter(
            "sendonce_answers",
            "Answers to clients, by disposition.",
            ("upstream", "disposition"),
            registry=self.registry,
        )
        self._refusals = Counter(
            "sendonce_refusals", "Refusals and own answers, by code.", ("upstream", "code"), registry=self.registry
        )
        self._accepted = Counter(
            "sendonce_accepted_effects",
            "Calls started although an earlier effect is not absent, by who accepted: caller, operator or the setting's name.",
            ("upstream", "authority"),
            registry=self.registry,
        )
        self._observed = Counter(
            "sendonce_observed_refusals",
            'Requests forwarded in mode "observe" that mode "enforce" would have refused, by code.',
            ("upstream", "code"),
            registry=self.registry,
        )
        self.in_flight = Gauge("sendonce_calls_in_flight", "Calls alive in this process.", registry=self.registry)
        self.epoch = Gauge("sendonce_epoch", "The epoch of this process.", registry=self.registry)
        self.admitting = Gauge("sendonce_admitting", "1 while requests are admitted.", registry=self.registry)

    def answered(self, upstream: str, disposition: str) -> None:
        self._answers.labels(upstream, disposition).inc()

    def refused(self, upstream: str, code: str, **about: Any) -> None:
        self._refusals.labels(upstream, code).inc()
        self._write("refused", upstream=upstream, code=code, **about)

    def replayed(self, upstream: str, **about: Any) -> None:
        self._write("replayed", upstream=upstream, **about)

    def attached(self, upstream: str, **about: Any) -> None:
        self._write("attached", upstream=upstream, **about)

    def accepted(self, upstream: str, authority: Authority) -> None:
        by = authority.name if authority.kind == "setting" else authority.kind
        self._accepted.labels(upstream, by).inc()

    def observed(self, upstream: str, code: str, **about: Any) -> None:
        self._observed.labels(upstream, code).inc()
        self._write("observed", upstream=upstream, code=code, **about)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def close(self) -> None:
        for handler in tuple(self._log.handlers):
            self._log.removeHandler(handler)
            with suppress(OSError):  # a full disk: no witness is lost, and what ends the process must not be hidden
                handler.close()

    def _write(self, what: str, **about: Any) -> None:
        self._log.info("%s", orjson.dumps({"at": instant(clock.now_ms()), "what": what, **about}).decode())
