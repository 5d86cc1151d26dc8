"""Looking up stored objects: responses, chat completions, OpenRouter generations, batches of both kinds.

As `resources/responses`, `resources/chat/completions`, `resources/batches` of openai 3.57, `resources/messages/batches` of
anthropic 2.14 and openrouter.ai/docs/api-reference/get-a-generation have them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from synthetic_provider import batches_wire
from synthetic_provider.asked import Asked, Events, Lines, RefusedError, Told
from synthetic_provider.generation import Generation
from synthetic_provider.outcomes import FINISHED, How
from synthetic_provider.responses_wire import responses_stream, snapshot
from synthetic_provider.script import Until
from synthetic_provider.wire import JsonObject

DEFAULT_LIMIT = 20  # objects on a page, of all lists here
OPENAI_LIMIT, ANTHROPIC_LIMIT = 100, 1000
_ORDERS = {"asc": False, "desc": True}


def response(asked: Asked, name: str) -> Told:
    background, whole = asked.books.backgrounds.get(name), asked.books.objects.responses.get(name)
    if background is None and whole is None:
        raise _no_response(name)
    if asked.query.one("stream") == "true":
        if background is None or not background.streamed:
            raise RefusedError(400, "Only a response that was created with background=true and stream=true is resumed.")
        return Events(_events_after(background, asked.query.number("starting_after", -1)))
    if background is not None:
        return snapshot(background.ask, background.state)
    assert whole is not None
    return whole


def cancelled_response(asked: Asked, name: str) -> Told:
    """Idempotent: one that ended is told as it is."""
    background = asked.books.backgrounds.get(name)
    if background is None:
        if asked.books.objects.responses.get(name) is None:
            raise _no_response(name)
        raise RefusedError(400, "Only a response that was created with background=true can be cancelled.")
    background.cancel()
    return snapshot(background.ask, background.state)


def _no_response(name: str) -> RefusedError:
    return RefusedError(404, f"Response with id '{name}' not found.")


def _events_after(running: Generation, number: int) -> Iterator[Until | bytes]:
    """The events above this sequence number, byte for byte those of the first stream; a cancelled one has no last."""
    stream, seen = responses_stream(running.ask), 0

    def rest(part: bytes) -> bytes:
        nonlocal seen
        events = [event + b"\n\n" for event in part.split(b"\n\n")[:-1]]
        first, seen = seen, seen + len(events)
        return b"".join(events[max(0, number + 1 - first) :])

    yield Until(partial(running.reached, _has_begun))
    if not _has_begun(running):
        return
    yield rest(stream.opening)
    for count, chunk in enumerate(stream.chunks, 1):
        yield Until(partial(running.reached, partial(_has_made, count)))
        if not _has_made(count, running):
            break
        yield rest(chunk)
    yield Until(partial(running.reached, _is_over))
    if running.how in FINISHED:
        yield rest(stream.ending)
    elif running.how is How.ERROR_AFTER:
        yield rest(stream.error)


def _has_begun(running: Generation) -> bool:
    return running.status is not None


def _has_made(count: int, running: Generation) -> bool:
    return running.chunks >= count


def _is_over(running: Generation) -> bool:
    return running.over


def chat(asked: Asked, name: str) -> Told:
    found = asked.books.objects.chats.get(name)
    if found is None:
        raise RefusedError(404, f"Chat completion {name} not found.")
    return found


def chats(asked: Asked) -> Told:
    """Filtered by model and by each pair of `metadata[key]=value`."""
    query = asked.query
    pairs = {
        name.removeprefix("metadata[").removesuffix("]"): values[0]
        for name, values in query.raw.items()
        if name.startswith("metadata[")
    }
    model = query.one("model")
    found = [
        one
        for one in asked.books.objects.chats
        if model in (None, one["model"]) and all(one["metadata"].get(key) == value for key, value in pairs.items())
    ]
    return _page(asked, found, newest_first=_ORDERS[query.choice("order", _ORDERS, "asc")])


def generation(asked: Asked) -> Told:
    """Unknown until it has ended."""
    name = asked.query.one("id") or ""
    found = asked.books.objects.generations.get(name)
    if found is None:
        raise RefusedError(404, f"Generation {name} not found")
    return {"data": found}


def batch(asked: Asked, name: str) -> Told:
    found = asked.books.objects.batches.get(name)
    if found is None:
        raise RefusedError(404, f"No batch found with id '{name}'.")
    return found


def batches(asked: Asked) -> Told:
    return _page(asked, asked.books.objects.batches, newest_first=True)


def cancelled_batch(asked: Asked, name: str) -> Told:
    found = asked.books.objects.batches.get(name)
    if found is None:
        raise RefusedError(404, f"No batch found with id '{name}'.")
    cancelled = batches_wire.cancelled_batch(found, asked.receipt.at)
    asked.books.objects.batches.put(name, cancelled)
    return cancelled


def _page(asked: Asked, objects: Iterable[JsonObject], *, newest_first: bool) -> JsonObject:
    """A page of OpenAI's lists; `after` is the last id of the one before."""
    limit = asked.query.number("limit", DEFAULT_LIMIT, least=1, most=OPENAI_LIMIT)
    listed = list(objects)
    if newest_first:
        listed.reverse()
    after = asked.query.one("after")
    if after is not None:
        listed = listed[_place(after, listed, "after") + 1 :]
    return {"object": "list", **_ends(listed[:limit]), "has_more": len(listed) > limit}


def _place(name: str, listed: Sequence[JsonObject], parameter: str) -> int:
    for index, one in enumerate(listed):
        if one["id"] == name:
            return index
    raise RefusedError(400, f"The parameter {parameter} names {name!r}, which is not on this list.")


def _ends(page: Sequence[JsonObject]) -> Mapping[str, object]:
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"data": list(page), "first_id": first, "last_id": last}


def message_batch(asked: Asked, name: str) -> Told:
    found = asked.books.objects.message_batches.get(name)
    if found is None:
        raise RefusedError(404, f"message_batch_id {name} not found")
    return found


def message_batches(asked: Asked) -> Told:
    """Newest first. `before_id` asks for the page just before that id, `after_id` for the one just behind it."""
    query = asked.query
    limit = query.number("limit", DEFAULT_LIMIT, least=1, most=ANTHROPIC_LIMIT)
    listed = list(asked.books.objects.message_batches)[::-1]
    before, after = query.one("before_id"), query.one("after_id")
    if before is not None:
        listed = listed[: _place(before, listed, "before_id")]
        page = listed[-limit:]
    else:
        listed = listed if after is None else listed[_place(after, listed, "after_id") + 1 :]
        page = listed[:limit]
    return {**_ends(page), "has_more": len(listed) > limit}


def message_batch_results(asked: Asked, name: str) -> Told:
    found = asked.books.objects.batch_results.get(name)
    if found is None:
        raise RefusedError(404, f"message_batch_id {name} not found")
    return Lines(found)
