"""One generation while it runs: how far it is, what its connection's end means for it, and its record when it ends."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from synthetic_provider.anthropic_wire import MESSAGES, message_tokens
from synthetic_provider.behaviour import OnDisconnect
from synthetic_provider.client import happened
from synthetic_provider.outcomes import BROKEN, FINISHED, REFUSED, Begins, Ends, How, Made, Mark, Tokens
from synthetic_provider.responses_wire import RESPONSES, response_id
from synthetic_provider.stored import Objects, Shelf
from synthetic_provider.usage import UsageFile, UsageRecord, api_key_id
from synthetic_provider.wire import Ask, Format


@dataclass(slots=True)
class Books:
    """What outlives a connection."""

    usage: UsageFile
    objects: Objects = field(default_factory=Objects)
    backgrounds: "Shelf[Generation]" = field(default_factory=Shelf)  # background responses by their id
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # held, as the loop itself holds tasks weakly


class Generation:
    """Hears the marks of its answer's script and writes its usage record at its end.

    A background response (OpenAI) does not depend on its connection: streamed, it goes at the pace of its stream and goes
    on when that breaks; else it is answered at once and keeps its own pace.
    """

    def __init__(self, ask: Ask, answers: Format, credential: str | None, books: Books) -> None:
        self.ask, self.answers = ask, answers
        self._credential, self._books = credential, books
        self.background = answers is RESPONSES and ask.background
        self.streamed = answers.streams(ask)
        self.status: int | None = None
        self.chunks = 0
        self.how: How | None = None
        self.left = False  # the connection ended first
        self._news = asyncio.Event()
        if self.background:
            books.backgrounds.put(response_id(ask), self)

    @property
    def over(self) -> bool:
        return self.how is not None

    @property
    def cancelled(self) -> bool:
        return self.how is How.CANCELLED

    @property
    def goes_on(self) -> bool:
        """Whatever becomes of the connection."""
        default = OnDisconnect.ABORT if self.streamed else OnDisconnect.CONTINUE
        return self.background or (self.ask.behaviour.on_disconnect or default) is OnDisconnect.CONTINUE

    @property
    def state(self) -> str:
        """The status of a response."""
        match self.how:
            case None:
                return "queued" if self.status is None else "in_progress"
            case How.CANCELLED:
                return "cancelled"
            case _:
                return "completed" if self.how in FINISHED else "failed"

    def hear(self, mark: Mark) -> None:
        """Of the script that answers the client."""
        if self.background and not self.streamed:
            if isinstance(mark, Ends):
                if mark.how in REFUSED:
                    self._ends(mark.how)
                else:
                    self._go_on_alone()
            return
        match mark:
            case Begins(status):
                self.status = status
                self._told()
            case Made(chunks):
                self._made(chunks)
            case Ends(how):
                self._breaks(how) if how in BROKEN else self._ends(how)

    def cancel(self) -> None:
        self._ends(How.CANCELLED)

    def abort(self) -> None:
        self._ends(How.ABORTED)

    async def pause(self, seconds: float) -> None:
        """Shorter where the generation ends within it."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not self.over and (rest := deadline - asyncio.get_running_loop().time()) > 0:
            await happened(self._news, rest)

    async def reached(self, wanted: Callable[["Generation"], bool]) -> None:
        """Until this is so, or the generation is over."""
        while not (self.over or wanted(self)):
            await self._news.wait()

    def _told(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _made(self, chunks: int) -> None:
        self.chunks = chunks
        self._told()

    def _breaks(self, how: How) -> None:
        """By a fault of the connection. Before any byte nothing has begun, unless the model name asks to go on."""
        if self.background:
            self.left, self.status = True, self.status or 200
            self._go_on_alone()
        elif self.goes_on and (self.status is not None or self.ask.behaviour.on_disconnect is not None):
            self._ends(How.CONTINUED)
        else:
            self._ends(how)

    def _go_on_alone(self) -> None:
        task = asyncio.get_running_loop().create_task(self._pace())
        self._books.tasks.add(task)
        task.add_done_callback(self._books.tasks.discard)

    async def _pace(self) -> None:
        """The pauses of the model name, without a connection."""
        behaviour = self.ask.behaviour
        if self.status is None:
            await self.pause(behaviour.hold_s)
            self.status = 200
            self._told()
            await self.pause(behaviour.delay_s)
        while not self.over and self.chunks < behaviour.chunks:
            await self.pause(behaviour.interval_s if self.chunks else 0.0)
            if not self.over:
                self._made(self.chunks + 1)
        self._ends(How.WHOLE)

    def _ends(self, how: How) -> None:
        """The record is durable before anyone is told; only the first end counts."""
        if self.over:
            return
        if self.left and how is How.WHOLE:
            how = How.CONTINUED
        records = self._records(how)
        if self.answers.tokens is not None or self.answers.items is not None:
            self._books.usage.record(records)
        self._books.objects.keep(self.ask, self.answers, how, records)
        if self.background and how in REFUSED:
            self._books.backgrounds.drop(response_id(self.ask))
        self.how = how
        self._told()

    def _records(self, how: How) -> list[UsageRecord]:
        """Its own; of a job, those of the requests that ran in it, and its own is not written."""
        at = datetime.now(UTC)
        if self.answers.items is None:
            return [self._record(self.ask, how, self._bill(how), at)]
        if how not in FINISHED:
            return []
        return [self._item(item, at) for item in self.answers.items(self.ask)]

    def _bill(self, how: How) -> Tokens | None:
        """None where nothing is billed: what never began, and what was refused."""
        if self.answers.tokens is None:
            return None
        count = self.answers.tokens(self.ask)
        if how in FINISHED:
            return count
        begun = self.status is not None and how not in REFUSED
        return count.after(self.chunks, self.ask.behaviour.chunks) if begun else None

    def _item(self, ask: Ask, at: datetime) -> UsageRecord:
        refused = ask.behaviour.status is not None
        count = None if refused else message_tokens(ask)
        item = self._record(ask, How.ERROR_STATUS if refused else How.WHOLE, count, at)
        return replace(item, dialect=MESSAGES.name, batch=True, status=ask.behaviour.status or 200)

    def _record(self, ask: Ask, how: How, count: Tokens | None, at: datetime) -> UsageRecord:
        billed = count or Tokens(0)
        return UsageRecord(
            n=ask.receipt,
            at=at.isoformat(),
            started_at=ask.at.isoformat(),
            dialect=self.answers.name,
            model=ask.answered_model,
            requested_model=ask.model,
            input_tokens=billed.taken,
            cached_tokens=billed.cached,
            cache_write_tokens=0,
            output_tokens=billed.made,
            reasoning_tokens=billed.reasoning,
            billed=count is not None,
            how=how,
            status=self.status,
            api_key=api_key_id(self._credential),
            service_tier=ask.behaviour.tier,
            batch=False,
        )
