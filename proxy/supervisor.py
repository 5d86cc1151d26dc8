"""The small parent of the serving process: it holds the listening sockets, and forks a warm child that serves.

A child that served and ends unasked, however it ends, is replaced at once: everything is imported, and connections wait in the backlog of
sockets that never close. The parent has one thread, no event loop and no ledger, so a fork copies nothing that could be torn.
"""

import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ledger import codec, queries
from proxy import changes, systemd
from proxy.console import EXIT_POISONED, say
from proxy.settings import Settings, command_options
from proxy.wiring import PIECE_BYTES, USERS_LOOK_S, state_dir_of

SOUND_LIFE_S: Final = 1  # admitted for so long, a life is no start that fails: whatever ended it may come once
BACK_OFF_S: Final = 0.1  # before the third start in a row, doubled with each: some ten tries in the first minute
BACK_OFF_LIMIT_S: Final = 30  # a mended disk is noticed by a person no sooner
STOP_MARGIN_S: Final = 10  # beside timeouts.stop_s: the last commits and a checkpoint of 16 MiB on a slow disk
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
# Imported by others within a function, found by comparing sys.modules after a call with those before the start.
LOADED_LATE: Final = ("encodings.idna",)
STOP: Final = b"s"  # down the lifeline: the first one to stop, another one to hurry


@dataclass(frozen=True, slots=True)
class Serving:
    """What a child was given: it serves with these; `lifeline_fd` tells it to stop, each byte and its end."""

    settings: Settings
    lifeline_fd: int
    is_first: bool  # nobody has admitted before it: it announces
    _says_fd: int
    _read: Callable[[], Settings]

    def admits(self, epoch: int) -> None:
        self._say(f"admits {epoch}")

    def reread(self, now: Settings) -> dict[str, Any] | None:
        """What SIGHUP changes, by field, or None. The parent has read the file too, and told what came of it."""
        found = changes.reread(now, self._read)
        self._say("reread")
        return found.values if found.is_read else None

    def _say(self, line: str) -> None:
        with suppress(BrokenPipeError):  # the parent is gone: the lifeline ends too
            os.write(self._says_fd, line.encode() + b"\n")


@dataclass(slots=True)
class _Child:
    """One life, as the parent sees it."""

    pid: int
    heard_fd: int
    lifeline_fd: int  # the write end: it closes when this process ends, however it ends
    admitted_at_s: float | None = None
    said: bytes = b""
    is_silent: bool = False  # its end of the pipe is closed: it ends, and SIGCHLD tells when


def hold(
    settings: Settings, sockets: tuple[socket.socket, ...], read: Callable[[], Settings], lifeline_fd: int | None = None
) -> Serving:
    """Returns in each child, and only there; in the parent it ends in SystemExit with the exit code of the last child.

    `read` gives the settings anew after SIGHUP, or raises SettingsError. At the end of `lifeline_fd` it stops as after SIGTERM, once
    no `sendonce run` uses it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold credentials
    warm()
    gc.collect()
    gc.freeze()  # the pages that all lives share are not written to by a collection
    return _Supervisor(settings, sockets, read, lifeline_fd).run()


def rereads_aloud(read: Callable[[], Settings]) -> Callable[[Settings], dict[str, Any] | None]:
    """What SIGHUP changes in a serving process that has no parent of ours, by field; None: nothing, not even the certificate."""

    def reread(now: Settings) -> dict[str, Any] | None:
        found = changes.reread(now, read)
        say(found.sentence)
        return found.values if found.is_read else None

    return reread


def warm() -> None:
    """What a start and a first call would load or build only then, so that each life finds it ready."""
    for name in LOADED_LATE:
        importlib.import_module(name)
    codec.warm()
    queries.schema()


class _Supervisor:
    def __init__(
        self,
        settings: Settings,
        sockets: tuple[socket.socket, ...],
        read: Callable[[], Settings],
        lifeline_fd: int | None,
    ) -> None:
        self._settings, self._sockets, self._read, self._outer_fd = settings, sockets, read, lifeline_fd
        self._child: _Child | None = None
        self._short_lives = 0
        self._due_s = 0.0  # when the next child is due, by the monotonic clock
        self._died_at_s: float | None = None
        self._death = ""  # how the last child died, for the sentence that tells of its replacement
        self._has_admitted = False
        self._kill_at_s: float | None = None  # set once it stops
        self._is_orphaned = False  # whoever started it is gone: it stops once nobody uses it
        self._awake, wake = socket.socketpair()
        self._wake = wake
        for end in (self._awake, wake):
            end.setblocking(False)
        for signum in SIGNALS:
            signal.signal(signum, _noted)  # the wake-up descriptor tells which
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def run(self) -> Serving:
        while True:
            if self._child is None:
                if self._kill_at_s is not None:
                    raise SystemExit(0)
                if time.monotonic() >= self._due_s and (serving := self._fork()) is not None:
                    return serving
            self._wait()
            for signum in self._signals():
                self._act(signum)
            self._hear()
            self._reap()

    # --- lives -----------------------------------------------------------------------------------------------------

    def _fork(self) -> Serving | None:
        """In the child what it serves with, in the parent None."""
        heard_fd, says_fd = os.pipe()
        ends_fd, lifeline_fd = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until it is settled whose they are
        if (pid := os.fork()) == 0:
            self._become_child(heard_fd, lifeline_fd)
            return Serving(self._settings, ends_fd, not self._has_admitted, says_fd, self._read)
        os.close(says_fd)
        os.close(ends_fd)
        for fd in (heard_fd, lifeline_fd):
            os.set_blocking(fd, False)
        self._child = _Child(pid, heard_fd, lifeline_fd)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return None

    def _become_child(self, *fds: int) -> None:
        """What is sent to a whole group is the parent's to hear; it tells the child. SIGHUP stays pending until the child can obey."""
        signal.set_wakeup_fd(-1)
        for end in (self._awake, self._wake):
            end.close()
        for fd in (*fds, *([] if self._outer_fd is None else [self._outer_fd])):
            os.close(fd)
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_IGN if signum in (signal.SIGINT, signal.SIGTERM) else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, set(SIGNALS) - {signal.SIGHUP})

    def _hear(self) -> None:
        child = self._child
        if child is None:
            return
        with suppress(BlockingIOError):
            while not child.is_silent:
                piece = os.read(child.heard_fd, PIECE_BYTES)
                child.said, child.is_silent = child.said + piece, not piece
        *lines, child.said = child.said.split(b"\n")
        for line in lines:
            what, _, epoch = line.decode().partition(" ")
            systemd.notify("READY=1", f"STATUS=Process {child.pid} admits requests")
            if what == "admits":
                self._admitted(child, epoch)

    def _admitted(self, child: _Child, epoch: str) -> None:
        child.admitted_at_s = time.monotonic()
        if self._died_at_s is not None:
            say(
                f"{self._death}; process {child.pid} admits requests {child.admitted_at_s - self._died_at_s:.2f} s later, "
                f"in epoch {epoch}."
            )
        self._has_admitted, self._died_at_s = True, None

    def _reap(self) -> None:
        child = self._child
        if child is None or (reaped := os.waitpid(child.pid, os.WNOHANG))[0] == 0:
            return
        self._hear()  # what it said last
        self._child = None
        os.close(child.heard_fd)
        os.close(child.lifeline_fd)
        code = os.waitstatus_to_exitcode(reaped[1])
        if self._kill_at_s is not None:
            raise SystemExit(code if code >= 0 else 128 - code)
        if code >= 0 and code != EXIT_POISONED and child.admitted_at_s is None:
            raise SystemExit(code)  # a start that cannot succeed, and has said why
        self._died(child, code)

    def _died(self, child: _Child, code: int) -> None:
        now_s = time.monotonic()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._death = f"The serving process {child.pid} {how}"
        self._died_at_s = now_s
        systemd.notify(f"STATUS={self._death}; it is replaced")
        if child.admitted_at_s is not None and now_s - child.admitted_at_s >= SOUND_LIFE_S:
            self._short_lives, self._due_s = 0, now_s
            return
        self._short_lives += 1
        wait_s = back_off_s(self._short_lives)
        self._due_s = now_s + wait_s
        options = command_options(self._settings.state_dir.expanduser().absolute())
        when = f"in {wait_s:g} s" if wait_s else "at once"
        say(
            f"{self._death} {'before' if child.admitted_at_s is None else 'soon after'} it admitted requests, "
            f"{self._short_lives} in a row. The next one starts {when}. What is wrong: sendonce doctor{options}"
        )

    # --- what it is told -------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Until there is something to do."""
        now_s = time.monotonic()
        fds = [self._awake.fileno()]
        fds += [self._child.heard_fd] if self._child is not None and not self._child.is_silent else []
        fds += [] if self._outer_fd is None else [self._outer_fd]
        deadline_s = self._kill_at_s if self._child is not None else self._due_s
        timeouts_s = [] if deadline_s is None else [max(0.0, deadline_s - now_s)]
        timeouts_s += [USERS_LOOK_S] if self._is_orphaned and self._kill_at_s is None else []
        readable, _, _ = select.select(fds, (), (), min(timeouts_s, default=None))
        if self._outer_fd is not None and self._outer_fd in readable and not os.read(self._outer_fd, PIECE_BYTES):
            os.close(self._outer_fd)
            self._outer_fd, self._is_orphaned = None, True
        # The lock is held until this process ends: who comes now waits for that, and starts a proxy of its own.
        if self._is_orphaned and self._kill_at_s is None and state_dir_of(self._settings).unused() is not None:
            self._stop()
        if self._child is not None and self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
            say(
                f"The serving process {self._child.pid} has not stopped in time; it is killed, its calls stay as recorded."
            )
            os.kill(self._child.pid, signal.SIGKILL)
            self._kill_at_s += STOP_MARGIN_S

    def _signals(self) -> list[int]:
        with suppress(BlockingIOError):
            return list(self._awake.recv(PIECE_BYTES))
        return []

    def _act(self, signum: int) -> None:
        if signum in (signal.SIGTERM, signal.SIGINT):
            self._stop()
        elif signum == signal.SIGHUP and self._kill_at_s is None:
            self._reread()

    def _stop(self) -> None:
        """The first time it drains, the second time it hurries: that is the child's to know, it is told each time.

        Not by a signal: who stops a whole group has sent the child one already.
        """
        if self._kill_at_s is None:
            systemd.notify("STOPPING=1", "STATUS=Waiting for answers in flight")
            self._kill_at_s = time.monotonic() + self._settings.timeouts.stop_s + STOP_MARGIN_S
            for sock in self._sockets:
                sock.close()
        if self._child is not None:
            with suppress(BrokenPipeError, BlockingIOError):  # it ends already; or it was told thousands of times
                os.write(self._child.lifeline_fd, STOP)

    def _reread(self) -> None:
        """For this child and later ones. What the child makes of it is the same: it reads and compares by the same functions."""
        systemd.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        found = changes.reread(self._settings, self._read)
        self._settings = self._settings.changed_by(found.values)  # an epoch of a later child has them on record
        say(found.sentence)
        if found.is_read and self._child is not None:
            # Not yet waited for, so the number is still its own; it says when it has obeyed.
            os.kill(self._child.pid, signal.SIGHUP)
        else:
            systemd.notify("READY=1")


def back_off_s(short_lives: int) -> float:
    """Before the next start, after so many short lives in a row."""
    if short_lives < 2:
        return 0
    return min(BACK_OFF_S * 2.0 ** min(short_lives - 2, 30), BACK_OFF_LIMIT_S)


def _noted(_signum: int, _frame: object) -> None:
    pass
