"""Jobs: OpenAI batches and Anthropic message batches, as openai 3.57 and anthropic 2.14 have them. Pure.

An OpenAI batch stays as it was made, `validating`, until it is cancelled: nobody here reads its input file. The requests
of an Anthropic batch run at once, so it has ended when it is answered. Where the API knows no `model` a test may send one
all the same, to ask for a behaviour of the request that makes the batch.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from synthetic_provider import anthropic_wire, openai_wire
from synthetic_provider.behaviour import Behaviour, parse
from synthetic_provider.wire import Ask, Format, JsonObject, provider_id

BATCH_LIFE = timedelta(days=1)  # both providers' documents: 24 hours

_TIMES_OF_OPENAI = (
    *("in_progress_at", "finalizing_at", "completed_at", "failed_at"),
    *("expired_at", "cancelling_at", "cancelled_at"),
)


def batch(ask: Ask) -> JsonObject:
    return {
        "id": provider_id("batch_", ask),
        "object": "batch",
        **{name: ask.body.get(name) for name in ("endpoint", "input_file_id", "completion_window", "metadata")},
        "errors": None,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": int(ask.at.timestamp()),
        "expires_at": int((ask.at + BATCH_LIFE).timestamp()),
        **dict.fromkeys(_TIMES_OF_OPENAI),
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
    }


def cancelled_batch(made: JsonObject, at: datetime) -> JsonObject:
    """At once, where the provider takes up to ten minutes; one that ended stays as it is."""
    if made["status"] == "cancelled":
        return made
    time = int(at.timestamp())
    return {**made, "status": "cancelled", "cancelling_at": time, "cancelled_at": time}


def _listed(ask: Ask) -> list[dict[str, Any]]:
    listed = ask.body.get("requests")
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def items(ask: Ask) -> list[Ask]:
    """Each request of an Anthropic batch as an ask of its own, under the batch's receipt."""
    asks = []
    for one in _listed(ask):
        params = one.get("params")
        body = params if isinstance(params, dict) else {}
        model = body.get("model")
        named = model if isinstance(model, str) else "synthetic"
        asks.append(replace(ask, body=body, model=named, behaviour=_behaviour(named)))
    return asks


def _behaviour(model: str) -> Behaviour:
    """A model name that cannot be read is an error of its item: nothing was generated."""
    try:
        return parse(model)
    except ValueError:
        return Behaviour(status=400)


def results(ask: Ask) -> list[JsonObject]:
    """Of each request its message; an error where its model name asks for a status."""
    told: list[JsonObject] = []
    for index, (one, item) in enumerate(zip(_listed(ask), items(ask), strict=True)):
        status = item.behaviour.status
        if status is None:
            message = {**anthropic_wire.messages(item), "id": f"{provider_id('msg_', ask)}{index:04d}"}
            result: JsonObject = {"type": "succeeded", "message": message}
        else:
            refusal = anthropic_wire.error(item, status, f"receipt {ask.receipt}: the status {status} of an item")
            result = {"type": "errored", "error": refusal}
        told.append({"custom_id": one.get("custom_id"), "result": result})
    return told


def message_batch(ask: Ask) -> JsonObject:
    name, at = provider_id("msgbatch_", ask), ask.at.isoformat()
    errored = sum(item.behaviour.status is not None for item in items(ask))
    return {
        "id": name,
        "type": "message_batch",
        "processing_status": "ended",
        "request_counts": {
            "processing": 0,
            "succeeded": len(_listed(ask)) - errored,
            "errored": errored,
            "canceled": 0,
            "expired": 0,
        },
        "created_at": at,
        "ended_at": at,
        "expires_at": (ask.at + BATCH_LIFE).isoformat(),
        "archived_at": None,
        "cancel_initiated_at": None,
        "results_url": f"/v1/messages/batches/{name}/results",
    }


BATCHES = Format("openai_batches", "x-request-id", batch, openai_wire.error, job=True)
MESSAGE_BATCHES = Format("anthropic_batches", "request-id", message_batch, anthropic_wire.error, job=True, items=items)
