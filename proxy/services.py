"""What one running proxy is made of. Built by `wiring`, handed to whoever needs several of its parts."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from ledger.epochs import StateDir
from ledger.errors import PoisonedError
from ledger.reader import Reader
from ledger.reserve import Reserve
from ledger.writer import Writer
from proxy.activity import Activity
from proxy.forwarder import Forwarder
from proxy.interpreter import Interpreter
from proxy.liveness import Registry
from proxy.outbound import Outbound
from proxy.passes import Passes
from proxy.preserve import Preserver
from proxy.request_body import Memory
from proxy.settings import Settings


@dataclass(slots=True)
class Services:
    """One process, one epoch."""

    settings: Settings
    state_dir: StateDir
    secret: bytes
    epoch: int
    writer: Writer
    reader: Reader
    registry: Registry
    outbound: Outbound
    forwarder: Forwarder
    preserver: Preserver
    interpreter: Interpreter
    activity: Activity
    reserve: Reserve
    passes: Passes
    memory: Memory  # of request bodies
    fatal: "asyncio.Future[BaseException]"
    command_options: str  # what a command printed for this proxy's user must end with
    url: str = ""  # where it listens, once it does
    draining: bool = False
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    @property
    def admits(self) -> bool:
        """Asks the disk too."""
        return not self.poisoned and not self.draining and self.reserve.look()

    @property
    def poisoned(self) -> bool:
        return self.writer.poisoned.done() or self.fatal.done()

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Work that outlives its client. An error nobody foresaw ends the process: on this path nothing is logged and left."""
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None or isinstance(error, PoisonedError):
            return  # the writer's own poison ends the process
        if not self.fatal.done():
            self.fatal.set_result(error)
