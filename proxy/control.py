"""The owner's socket: what only the living process knows (who is alive), and decisions that only it may write.

`control.sock`, 0600, in the state dir: whoever may open it may read the ledger anyway. Commands append, reads project.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
from aiohttp import web

from ledger.errors import ConflictError, LedgerError, PoisonedError
from ledger.events import BodyErased
from ledger.ids import CallId, Digest
from ledger.operations import Append, Entry, Erased, Erasure
from ledger.writer import Writer
from proxy.environment import behind
from proxy.passes import BadRunError
from proxy.reconcile.operator import DecisionRefusedError
from proxy.reinterpreting import reinterpret
from proxy.resuming import resume
from proxy.services import Services
from proxy.settling import settle

ASKED_LIMIT_BYTES: Final = 64 * 1024 * 1024  # an answer that came back by another way, in base64
# What the owner does for a command, and a command does itself, under the lock, where there is none (owner.py).
OPERATIONS: Final[Mapping[str, Callable[[Services, dict[str, Any]], Awaitable[dict[str, Any]]]]] = {
    "settle": settle,
    "reinterpret": reinterpret,
    "resume": resume,
}
LASTING: Final = frozenset({"resume"})  # as long as the provider takes
OWNER_LIMIT_S: Final = 30  # a decision is one commit; a stopped or drowning owner is worth a sentence


class OwnerSilentError(Exception):
    """The owner lives and does not answer; what became of the request is unknown. Exit code 6."""


class OwnerUnreachableError(Exception):
    """No living owner answers on the control socket."""


class StagingError(Exception):
    """A large body is being stored: chunks that nothing refers to yet may be its own. Nothing was swept; ask again."""


def application(services: Services) -> web.Application:
    async def alive(_: web.Request) -> web.Response:
        calls = [flight.call for flight in services.registry.flights]
        return _json(
            {
                "epoch": services.epoch,
                "alive": calls,
                "admitting": services.admits,
                "draining": services.draining or services.poisoned,
                "url": services.url,
                "upstreams": {name: asdict(about) for name, about in behind(services.settings.upstreams).items()},
            }
        )

    async def prune(request: web.Request) -> web.Response:
        try:
            return _json(asdict(await erase(services.writer, _erasing(await request.json()))))
        except StagingError:
            return _json({"staging": services.writer.staging}, status=409)
        except ConflictError as conflict:
            return _json({"conflict": str(conflict)}, status=409)
        except LedgerError as refused:
            return _json({"refused": str(refused)}, status=409)

    app = web.Application(client_max_size=ASKED_LIMIT_BYTES)
    app.add_routes([web.get("/alive", alive), web.post("/prune", prune)])
    app.add_routes([web.post("/passes", partial(_open_pass, services))])
    app.add_routes([web.post(f"/{name}", partial(_operate, services, name)) for name in OPERATIONS])
    return app


async def _operate(services: Services, name: str, request: web.Request) -> web.Response:
    try:
        return _json(await OPERATIONS[name](services, await request.json()))
    except PoisonedError as poisoned:
        return _json({"poisoned": str(poisoned)}, status=503)
    except (DecisionRefusedError, LedgerError) as refused:
        return _json({"refused": str(refused)}, status=409)


async def _open_pass(services: Services, request: web.Request) -> web.Response:
    asked = await request.json()
    if services.draining:  # the asker has looked at `alive` a moment ago
        return _json({"conflict": "the proxy is ending; start the run again"}, status=409)
    try:
        opened = await services.passes.open(asked["run"], asked["on_divergence"])
    except BadRunError as bad:
        return _json({"refused": str(bad)}, status=409)
    except PoisonedError as poisoned:
        return _json({"poisoned": str(poisoned)}, status=503)
    except LedgerError as conflict:
        return _json({"conflict": str(conflict)}, status=409)
    return _json(asdict(opened) | {"url": services.url})


async def erase(writer: Writer, op: Append) -> Erased:
    """One page of tombstones or one batch of chunks. Raises StagingError, and what `Writer.append` raises.

    No chunk of a body that is being staged can go: that none is staged is seen, and the batch handed to the writer, in
    one turn of the event loop. A staging that begins later inserts each of its chunks (INSERT OR IGNORE) in operations
    behind this one; one that ended has its event in front of this one, and what that names is spared (`named_since`).
    """
    if op.erasure is not None and op.erasure.chunks and writer.staging:
        raise StagingError
    return (await writer.append(op)).erased or Erased()


async def ask_to_erase(socket: Path, op: Append) -> Erased:
    """From another process. Raises OwnerUnreachableError, OwnerSilentError, and what `erase` raises."""
    assert op.erasure is not None
    asked = {
        "tombstones": [{"call": entry.call, **asdict(entry.event)} for entry in op.entries],
        "counted_through": op.erasure.counted_through,
        "bodies": op.erasure.bodies,
        "chunks": [chunk.hex() for chunk in op.erasure.chunks],
    }
    _, answer = await ask_owner(socket, "POST", "/prune", asked)
    if "staging" in answer:
        raise StagingError
    if "conflict" in answer:
        raise ConflictError(answer["conflict"])
    if "refused" in answer:
        raise DecisionRefusedError(answer["refused"])
    return Erased(**answer)


def _erasing(asked: dict[str, Any]) -> Append:
    entries = tuple(
        Entry(CallId(one["call"]), None, BodyErased(Digest(one["digest"]), one["which"], one["why"], one["by"]))
        for one in asked["tombstones"]
    )
    chunks = tuple(bytes.fromhex(chunk) for chunk in asked["chunks"])
    return Append(entries, erasure=Erasure(asked["counted_through"], tuple(map(Digest, asked["bodies"])), chunks))


async def ask_owner(
    socket: Path, method: str, path: str, body: dict[str, Any] | None = None, limit_s: float | None = OWNER_LIMIT_S
) -> tuple[int, dict[str, Any]]:
    """From another process; `limit_s` None: however long it takes. Raises OwnerUnreachableError where no owner lives."""
    connector = aiohttp.UnixConnector(path=str(socket))
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=limit_s)) as session,
            session.request(method, f"http://owner{path}", json=body) as response,
        ):
            return response.status, _document(socket, await response.read())
    except TimeoutError as error:
        raise OwnerSilentError(
            f"The owner of {socket.parent} lives and did not answer within {OWNER_LIMIT_S} s. What was asked may still be done: "
            "look again before you repeat it."
        ) from error
    except (aiohttp.ClientConnectionError, OSError) as error:
        raise OwnerUnreachableError(str(error)) from error


def _document(socket: Path, answer: bytes) -> dict[str, Any]:
    try:
        document: dict[str, Any] = orjson.loads(answer)
    except orjson.JSONDecodeError as error:
        raise OwnerSilentError(
            f"The owner of {socket.parent} is another version of sendonce and does not know what is asked. Restart it, and ask again."
        ) from error
    return document


def _json(document: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(document), status=status, content_type="application/json")
