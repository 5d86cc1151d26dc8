"""Batches can be listed. OpenAI's cannot be deleted, so what two complete lists lack was not accepted. Pure.

A miss is conclusive only where nothing else explains it: the very key that sent the request reads lists that go to their end, twice,
long enough after the attempt and apart, and no entry of them is anything like it. Whatever is not so proves nothing.
"""

import json
from collections.abc import Callable, Generator
from datetime import datetime
from typing import Any, Final

from proxy.dialects.base import objects
from proxy.reconcile.lookups import (
    TAG,
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
PAGES_LIMIT: Final = 50  # of a listing; an order of its entries is documented nowhere, so it is read to its end
CLOCK_SKEW_S: Final = 2  # of the provider's clock against ours; a like one that seems older may be anybody's

Entry = dict[str, Any]
Walk = Generator[Get | Cancel | Pause, Reply, Any]


def _batch(known: Known, cursor: str, picked: Callable[[Known, list[Entry]], Walk]) -> Asking:
    """`cursor`: the parameter that asks for the next page; `picked`: those of the listed that are it, or LookedUp."""
    early_s = known.started_s + known.settle_s - known.asked_s  # until then a list that lacks it counts for nothing
    for wait_s in (*([early_s] if early_s > 0 else []), known.settle_s, None):
        listed = yield from _listed(known, cursor)
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
        if wait_s is not None:
            yield Pause(wait_s)
    if not known.same_credential or not known.lists_all:
        return nothing_proven(
            "It is in no list of batches. That proves nothing: another key made the request, or the provider does not list everything."
        )
    says = f"Two complete lists of batches, {known.settle_s:g} s apart, have nothing like it: it was not accepted."
    return LookedUp("absent_conclusive", says, {"lists": 2, "apart_s": known.settle_s}, settles=True)


def _listed(known: Known, cursor: str) -> Walk:
    """Every batch there is; LookedUp where they are not all to be had."""
    batches: list[Entry] = []
    after = ""
    for _ in range(PAGES_LIMIT):
        reply = yield Get(f"{known.path}?limit={PAGE_ENTRIES}{after}")
        page = reply.document.get("data")
        if reply.status != 200 or not isinstance(page, list) or len(objects(page)) < len(page):
            return unreadable(reply, "The list of batches")
        batches += page
        if reply.document.get("has_more") is False or not page:
            return batches
        after = f"&{cursor}={page[-1]['id']}"
    return nothing_proven(f"There are more than {PAGES_LIMIT * PAGE_ENTRIES} batches, and not all were read.")


def _is_of_its_time(known: Known, batch: Entry) -> bool:
    """OpenAI gives Unix seconds, Anthropic RFC 3339. What came since the look-up began may be a newer call's."""
    at = batch["created_at"]
    created_s = datetime.fromisoformat(at).timestamp() if isinstance(at, str) else float(at)
    return known.started_s - CLOCK_SKEW_S <= created_s <= known.asked_s + CLOCK_SKEW_S


def _unsure(batch: Entry) -> LookedUp:
    says = f"{batch['id']} is like it in part, or of another time or call, so it may be it, and may not. Look at it yourself."
    return LookedUp("differs", says, {"id": batch["id"]})


# --- OpenAI ---


def _is_openai(known: Known) -> bool:
    return known.path.endswith("/batches") and "input_file_id" in known.request


def _of_openai(known: Known, batches: list[Entry]) -> Walk:
    """By its tag alone, or by file and metadata. Another tag of ours makes it another's; anything else that is like it is in doubt."""
    yield from ()
    mine = []
    for batch in batches:
        metadata = batch.get("metadata") or {}
        if batch["input_file_id"] != known.request["input_file_id"] or (
            known.tag and metadata.get(TAG, known.tag) != known.tag
        ):
            continue
        same = metadata == (known.request.get("metadata") or {}) and batch["endpoint"] == known.request.get("endpoint")
        if not same or batch["id"] in known.others or not _is_of_its_time(known, batch):
            return _unsure(batch)
        mine.append(batch)
    return mine


# --- Anthropic ---


def _is_anthropic(known: Known) -> bool:
    return known.path.endswith("/messages/batches") and bool(_custom_ids(known.request.get("requests")))


def _custom_ids(requests: object) -> list[str]:
    return sorted(str(request.get("custom_id")) for request in objects(requests))


def _of_anthropic(known: Known, batches: list[Entry]) -> Walk:
    """By the number of requests at once, for certain by their custom ids, which are read once it has ended."""
    asked = _custom_ids(known.request.get("requests"))
    mine = []
    for batch in batches:
        if sum(batch["request_counts"].values()) != len(asked) or not _is_of_its_time(known, batch):
            continue
        if batch["processing_status"] != "ended":
            return nothing_proven(
                f"{batch['id']} may be it, and has not ended: its requests cannot be read yet. Ask again."
            )
        results = yield Get(f"{known.path}/{batch['id']}/results")
        if results.status != 200:
            return unreadable(results, f"The results of {batch['id']}")
        if sorted(str(json.loads(line)["custom_id"]) for line in results.body.splitlines() if line.strip()) == asked:
            if batch["id"] in known.others:
                return _unsure(batch)
            mine.append(batch)
    return mine or nothing_proven("It is in no list of batches. That proves nothing: an ended batch can be deleted.")


BY_LIST: Final = (
    Mechanism(
        "openai_batch", _is_openai, lambda known: _batch(known, "after", _of_openai),
        needs="nothing; a tag (injection level 1) tells equal ones apart",
        hit="served; the batch is the answer", miss="not accepted, if two complete lists of upstream openai agree",
        retention="durable: it has no delete",
        source="openai 3.57.0 resources/batches",
    ),
    Mechanism(
        "anthropic_batch", _is_anthropic, lambda known: _batch(known, "after_id", _of_anthropic),
        needs="nothing; custom ids of your own tell equal ones apart",
        hit="served, once it has ended; the batch is the answer", miss="nothing: an ended one can be deleted",
        retention="until it is deleted",
        source="anthropic 2.14.0 resources/messages/batches",
    ),
)  # fmt: skip
