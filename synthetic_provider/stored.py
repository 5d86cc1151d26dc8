"""Objects that can be looked up. They live in memory: after a restart of the process they are gone, as if expired."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from synthetic_provider import batches_wire, openai_wire, prices, responses_wire
from synthetic_provider.outcomes import FINISHED, How
from synthetic_provider.usage import UsageRecord
from synthetic_provider.wire import Ask, Format, JsonObject

OBJECTS_LIMIT: Final = 4_000  # of one kind; the oldest go first, so that a long campaign does not fill the memory

Kept = TypeVar("Kept")


class Shelf(Generic[Kept]):
    """Objects of one kind by id, oldest first."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}

    def put(self, name: str, kept: Kept) -> None:
        """A known id keeps its place."""
        self._kept[name] = kept
        if len(self._kept) > OBJECTS_LIMIT:
            del self._kept[next(iter(self._kept))]

    def get(self, name: str) -> Kept | None:
        return self._kept.get(name)

    def drop(self, name: str) -> None:
        self._kept.pop(name, None)

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._kept.values())


@dataclass(frozen=True, slots=True)
class Objects:
    responses: Shelf[JsonObject] = field(default_factory=Shelf)  # foreground ones, whole
    chats: Shelf[JsonObject] = field(default_factory=Shelf)
    generations: Shelf[JsonObject] = field(default_factory=Shelf)  # OpenRouter's
    batches: Shelf[JsonObject] = field(default_factory=Shelf)
    message_batches: Shelf[JsonObject] = field(default_factory=Shelf)
    batch_results: Shelf[list[JsonObject]] = field(default_factory=Shelf)

    def keep(self, ask: Ask, answers: Format, how: How, records: Sequence[UsageRecord]) -> None:
        """What the provider still knows of an ended generation or job: of all but OpenRouter's only what is whole."""
        if answers is openai_wire.OPENROUTER_CHAT:
            (record,) = records
            if record.billed:
                self.generations.put(openai_wire.generation_id(ask), _generation(ask, how, record))
        elif how not in FINISHED:
            return
        elif answers is responses_wire.RESPONSES:
            if not ask.background and ask.body.get("store") is not False:  # stored is the default here
                self.responses.put(responses_wire.response_id(ask), responses_wire.completed(ask))
        elif answers is openai_wire.CHAT:
            if ask.body.get("store") is True:  # and here it is not
                metadata = ask.body.get("metadata")
                stored = {**openai_wire.chat(ask), "metadata": metadata if isinstance(metadata, dict) else {}}
                self.chats.put(stored["id"], stored)
        elif answers is batches_wire.BATCHES:
            made = batches_wire.batch(ask)
            self.batches.put(made["id"], made)
        elif answers is batches_wire.MESSAGE_BATCHES:
            ended = batches_wire.message_batch(ask)
            self.message_batches.put(ended["id"], ended)
            self.batch_results.put(ended["id"], batches_wire.results(ask))


def _generation(ask: Ask, how: How, record: UsageRecord) -> JsonObject:
    """openrouter.ai/docs/api-reference/get-a-generation; `usage` and `total_cost` are US dollars."""
    cost = float(prices.total(record))
    told: dict[str, Any] = {
        "id": openai_wire.generation_id(ask),
        "upstream_id": f"chatcmpl-{ask.receipt:024d}",
        "total_cost": cost,
        "usage": cost,
        "created_at": record.at,
        "model": record.model,
        "provider_name": "Synthetic",
        "streamed": ask.body.get("stream") is True,
        "cancelled": how not in FINISHED and how is not How.ERROR_AFTER,
        "finish_reason": "stop" if how in FINISHED else "error" if how is How.ERROR_AFTER else None,
        "is_byok": False,
    }
    for prefix in ("", "native_"):
        told[f"{prefix}tokens_prompt"] = record.input_tokens
        told[f"{prefix}tokens_completion"] = record.output_tokens
    return told | {
        "native_tokens_reasoning": record.reasoning_tokens,
        "native_tokens_cached": record.cached_tokens,
    }
