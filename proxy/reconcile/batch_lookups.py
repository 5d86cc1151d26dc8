"""Batches can be listed: what two complete lists lack was not accepted, if the very key that sent it reads them. Pure.

Two of OpenAI are told apart by their input file and metadata, two of Anthropic by the custom ids of their requests, which are read once a
batch has ended.
"""

import json
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import Any, Final

from proxy.dialects.base import objects
from proxy.reconcile.lookups import (
    Asking,
    Cancel,
    Get,
    Known,
    LookedUp,
    Mechanism,
    Pause,
    Reply,
    found,
    nothing_proven,
    unreadable,
)

PAGE_ENTRIES: Final = 100
PAGES_LIMIT: Final = 20  # of a listing: what was asked for lies among the newest
CLOCK_SKEW_S: Final = 300  # of the provider's clock against ours

Entry = dict[str, Any]
Walk = Generator[Get | Cancel | Pause, Reply, Any]


def _batch(known: Known, cursor: str, picked: Callable[[Known, list[Entry]], Walk]) -> Asking:
    """`cursor`: the parameter that asks for the next page; `picked`: those of the listed that are like it, or LookedUp."""
    for again in (False, True):
        listed = yield from _listed_since(known, cursor)
        mine = listed if isinstance(listed, LookedUp) else (yield from picked(known, listed))
        if isinstance(mine, LookedUp):
            return mine
        if len(mine) + known.equals > 1:
            says = "More than one batch is like it, or more than one call asked for it; which is whose cannot be told."
            return LookedUp("differs", says, {"batches": [one["id"] for one in mine], "calls": known.equals + 1})
        if mine:
            reply = yield Get(f"{known.path}/{mine[0]['id']}")
            if reply.status != 200 or reply.document.get("id") != mine[0]["id"]:
                return unreadable(reply, str(mine[0]["id"]))
            return found(f"{mine[0]['id']} was created by it.", reply, id=mine[0]["id"])
        if not again:
            yield Pause(known.settle_s)
    if not known.same_credential:
        return nothing_proven("It is in no list of batches. That proves nothing, since another key made the request.")
    says = f"Two complete lists of batches, {known.settle_s:g} s apart, do not have it: it was not accepted."
    return LookedUp("absent_conclusive", says, {"lists": 2, "apart_s": known.settle_s}, settles=True)


def _listed_since(known: Known, cursor: str) -> Walk:
    """Every batch that was created since the attempt started, newest first as they are listed; LookedUp where that is not to be had."""
    batches: list[Entry] = []
    after = ""
    for _ in range(PAGES_LIMIT):
        reply = yield Get(f"{known.path}?limit={PAGE_ENTRIES}{after}")
        if reply.status != 200 or not isinstance(reply.document.get("data"), list):
            return unreadable(reply, "The list of batches")
        page = objects(reply.document["data"])
        recent = [batch for batch in page if _created_s(batch) >= known.started_s - CLOCK_SKEW_S]
        batches += recent
        if not page or reply.document.get("has_more") is not True or len(recent) < len(page):
            return batches
        after = f"&{cursor}={page[-1]['id']}"
    return nothing_proven(
        f"More than {PAGES_LIMIT * PAGE_ENTRIES} batches were created since; it is not among the newest."
    )


def _created_s(batch: Entry) -> float:
    """OpenAI gives Unix seconds, Anthropic RFC 3339."""
    at = batch["created_at"]
    return datetime.fromisoformat(at).timestamp() if isinstance(at, str) else float(at)


# --- OpenAI ---

_SAME_FILE: Final = ("input_file_id", "endpoint", "completion_window")


def _is_openai(known: Known) -> bool:
    return known.path.endswith("/batches") and "input_file_id" in known.request


def _of_openai(known: Known, batches: list[Entry]) -> Walk:
    yield from ()
    return [batch for batch in batches if _same(known.request, batch) and batch["id"] not in known.others]


def _same(request: Mapping[str, Any], batch: Entry) -> bool:
    tagged = (batch.get("metadata") or {}) == (request.get("metadata") or {})
    return tagged and all(batch.get(name) == request.get(name) for name in _SAME_FILE)


# --- Anthropic ---


def _is_anthropic(known: Known) -> bool:
    return known.path.endswith("/messages/batches") and bool(_custom_ids(known.request.get("requests")))


def _custom_ids(requests: object) -> list[str]:
    return sorted(str(request.get("custom_id")) for request in objects(requests))


def _of_anthropic(known: Known, batches: list[Entry]) -> Walk:
    """By the number of requests at once, for certain by their custom ids; one that has not ended may be it."""
    asked = _custom_ids(known.request.get("requests"))
    mine = []
    for batch in batches:
        counted = sum(count for count in (batch.get("request_counts") or {}).values() if isinstance(count, int))
        if counted != len(asked) or batch["id"] in known.others:
            continue
        if batch.get("processing_status") != "ended":
            return nothing_proven(
                f"{batch['id']} may be it, and has not ended: its requests cannot be read yet. Ask again."
            )
        results = yield Get(f"{known.path}/{batch['id']}/results")
        if results.status != 200:
            return unreadable(results, f"The results of {batch['id']}")
        if (
            sorted(str(json.loads(line).get("custom_id")) for line in results.body.splitlines() if line.strip())
            == asked
        ):
            mine.append(batch)
    return mine


BY_LIST: Final = (
    Mechanism(
        "openai_batch", _is_openai, lambda known: _batch(known, "after", _of_openai),
        needs="nothing; a tag (injection level 1) tells equal ones apart",
        hit="served; the batch is the answer", miss="not accepted, if two complete lists agree",
        retention="durable",
        source="openai 3.57.0 resources/batches",
    ),
    Mechanism(
        "anthropic_batch", _is_anthropic, lambda known: _batch(known, "after_id", _of_anthropic),
        needs="nothing; custom ids of your own tell equal ones apart",
        hit="served, once it has ended; the batch is the answer", miss="not accepted, if two complete lists agree",
        retention="ended 24 hours after it was made at the latest",
        source="anthropic 2.14.0 resources/messages/batches",
    ),
)  # fmt: skip
