"""Builds one running proxy from its settings, and takes it down again. The only place that names concrete parts."""

import asyncio
import contextlib
import os
import resource
import secrets
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from aiohttp import web

from ledger.epochs import Lock, StateDir
from ledger.errors import PoisonedError
from ledger.events import CallDelivered, DeliveredHow, EpochClosed, EpochConfigured
from ledger.operations import Append, Entry
from ledger.reader import open_reader
from ledger.recovery import Acceptance, Fresh, Recovered, open_epoch
from ledger.reserve import Reserve
from ledger.writer import Writer
from proxy import clock, control
from proxy.activity import Activity
from proxy.connections import DataServer, accept_tls, assert_c_parser
from proxy.console import say
from proxy.forwarder import Forwarder
from proxy.ingress import Ingress
from proxy.interpreter import Interpreter, judge_salvaged
from proxy.liveness import Claimant, Registry
from proxy.outbound import Outbound
from proxy.passes import Passes
from proxy.preserve import Preserver
from proxy.request_body import Memory
from proxy.services import Services
from proxy.settings import Settings, SettingsError, command_options

LINEAGE_BYTES: Final = 8
SHUTDOWN_S: Final = 0.5  # for handlers whose answer is written; what is in flight was waited for already
BACKLOG: Final = 1024  # connections the kernel holds while recovery runs
PIECE_BYTES: Final = 4096  # of a pipe between parent and child: a line of some ten bytes, or one
USERS_LOOK_S: Final = 0.2  # whether anybody still uses a proxy whose starter is gone; locks wake nobody


class PortTakenError(Exception):
    """Somebody listens there already. Exit code 3."""


def listen(host: str, port: int) -> socket.socket:
    """The sockets listen before recovery, so that clients wait instead of failing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise PortTakenError(
            f"Port {port} on {host} cannot be used ({error.strerror}). Stop what listens there, or choose another with --port."
        ) from error


def url_of(settings: Settings, sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def state_dir_of(settings: Settings) -> StateDir:
    root = settings.state_dir.expanduser().absolute()
    return StateDir(root, settings.receipts_dir or root / "receipts")


def owned(settings: Settings) -> Lock:
    """The state dir's lock. Raises StateDirError."""
    state_dir = state_dir_of(settings)
    state_dir.prepare()
    return state_dir.lock()


def reserve_of(settings: Settings, state_dir: StateDir) -> Reserve:
    return Reserve(state_dir.reserve, settings.limits.disk_reserve_bytes)


def recover(settings: Settings, state_dir: StateDir, acceptance: Acceptance | None = None) -> Recovered:
    """Under the lock: opens the next epoch, or raises StartRefusedError with everything as it was."""
    reserve_of(settings, state_dir).look()  # on a full disk recovery needs what the process before kept free
    fresh = Fresh(secrets.token_hex(LINEAGE_BYTES), secrets.token_hex(LINEAGE_BYTES), clock.now_ms)

    return open_epoch(
        state_dir,
        fresh,
        settings.digest,
        lambda state, head, body: judge_salvaged(settings, state, head, body),
        acceptance,
    )


async def serve(
    settings: Settings,
    sockets: Sequence[socket.socket],
    announce: Callable[[Services], None],
    reread: Callable[[Settings], dict[str, Any] | None],
    admits: Callable[[int], None] | None = None,
    lifeline_fd: int | None = None,
    lock: Lock | None = None,
) -> None:
    """Runs until it is told to stop (`stops`), or is poisoned. Raises PoisonedError, and SettingsError for a bad certificate.

    `admits` is called with the epoch once requests are: who gives it is a supervisor. SIGHUP changes what `reread` makes of the
    settings so far, by field; None changes nothing. `lock`: a supervisor's, which keeps it when this process ends.
    """
    assert_c_parser()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold credentials
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the soft limit is a shell's habit; a call takes four
    state_dir, lock = state_dir_of(settings), lock or owned(settings)
    stop, hurry = stops(lifeline_fd, state_dir, supervised=admits is not None)
    try:
        tls = settings.tls()
    except ValueError as error:
        raise SettingsError(f"{error}. Mend the files, or name others.") from error
    async with running(settings, state_dir, lock, recover(settings, state_dir)) as services:
        rereads(services, reread, tls)
        server = DataServer(Ingress(services), services.registry.connection_lost, settings.timeouts.client_header_s)
        listeners = [await listen_with(server, sock, tls, settings.timeouts.client_header_s) for sock in sockets]
        runner = web.AppRunner(control.application(services), access_log=None, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        state_dir.control_socket.unlink(missing_ok=True)
        await web.UnixSite(runner, str(state_dir.control_socket)).start()
        state_dir.control_socket.chmod(0o600)
        services.url = url_of(settings, sockets[0])
        announce(services)
        if admits is not None:
            admits(services.epoch)
        await _until(stop, services)
        services.draining = True
        services.outbound.stop_waiting()
        for stop_listening in listeners:
            stop_listening()
        if not services.poisoned:
            await drain(services, services.settings.timeouts.stop_s, hurry)
        server.pre_shutdown()
        await server.shutdown(SHUTDOWN_S)
        await runner.cleanup()
        state_dir.control_socket.unlink(missing_ok=True)


def stops(lifeline_fd: int | None, state_dir: StateDir, *, supervised: bool) -> tuple[asyncio.Event, asyncio.Event]:
    """`stop`, and `hurry` where it is asked for again: by SIGTERM or SIGINT, or by a byte from a supervisor.

    At the end of the lifeline whoever held it is dead: a supervisor, whose ports are gone with it, or a `sendonce run`, beside
    which others may use this process.
    """
    loop, stop, hurry = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def stop_or_hurry() -> None:
        (hurry if stop.is_set() else stop).set()

    def stop_unused() -> None:
        if state_dir.unused() is None:
            loop.call_later(USERS_LOOK_S, stop_unused)
        else:  # and the lock is held until this process ends
            stop.set()

    def told() -> None:
        assert lifeline_fd is not None
        orders = os.read(lifeline_fd, PIECE_BYTES)
        if orders:
            for _ in orders if supervised else b"":
                stop_or_hurry()
            return
        loop.remove_reader(lifeline_fd)
        if supervised:
            stop.set()
        else:
            stop_unused()

    for signum in () if supervised else (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop_or_hurry)
    if lifeline_fd is not None:
        loop.add_reader(lifeline_fd, told)
    return stop, hurry


def rereads(
    services: Services, reread: Callable[[Settings], dict[str, Any] | None], tls: ssl.SSLContext | None
) -> None:
    """From now on SIGHUP changes the settings, and gives new connections the certificate that is in its files now."""

    async def change() -> None:
        settings = services.settings
        if (values := reread(settings)) is None:
            return
        changed = settings.changed_by(values)
        if tls is not None and changed.tls_cert is not None:
            try:
                tls.load_cert_chain(changed.tls_cert, changed.tls_key)
            except OSError as error:  # `reread` has just tried them: they were changed since
                say(f"The certificate cannot be read again, and nothing changes: {error}. Send SIGHUP again.")
                return
        digest = changed.digest
        if digest != settings.digest:  # on record before a claim leans on it
            configured = EpochConfigured(services.epoch, digest)
            await services.writer.append(Append((Entry(None, None, configured),)))
        settings.take(values)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: services.spawn(change()))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # one that came before now is obeyed now


async def listen_with(
    server: DataServer, sock: socket.socket, tls: ssl.SSLContext | None, header_timeout_s: float
) -> Callable[[], object]:
    """What it gives ends it."""
    if tls is None:
        listener = await asyncio.get_running_loop().create_server(server, sock=sock, backlog=BACKLOG)
        return listener.close
    accepting = asyncio.create_task(accept_tls(sock, server, tls, header_timeout_s))

    def close() -> None:
        accepting.cancel()
        sock.close()

    return close


@asynccontextmanager
async def running(settings: Settings, state_dir: StateDir, lock: Lock, recovered: Recovered) -> AsyncIterator[Services]:
    """Everything but the sockets: parts wired, calls that need no provider finished. Raises PoisonedError, also at its end."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        reserve = reserve_of(settings, state_dir)
        writer = Writer(recovered.store, recovered.receipts, state_dir.wal, clock.now_ms, reserve)
        reader = await stack.enter_async_context(open_reader(state_dir.ledger))
        outbound = Outbound(settings.upstreams, settings.timeouts)
        stack.push_async_callback(outbound.close)
        preserver = Preserver(writer, settings.limits.record_limit_bytes)
        interpreter = Interpreter(settings, reader, writer, preserver)
        activity = Activity(state_dir.activity_log)
        stack.callback(activity.close)

        def delivered(to: Claimant, how: DeliveredHow) -> None:
            writer.post(Append((Entry(to.call, None, CallDelivered(how, to.disposition, to.pass_number)),)))

        drains = settings.on_client_disconnect == "drain"
        registry = Registry(delivered, settings.timeouts.drain_limit_s if drains else settings.timeouts.cancel_grace_s)
        options, secret = command_options(state_dir.root), state_dir.secret()
        services = Services(
            settings=settings,
            state_dir=state_dir,
            secret=secret,
            epoch=recovered.epoch,
            writer=writer,
            reader=reader,
            registry=registry,
            outbound=outbound,
            forwarder=Forwarder(recovered.epoch, writer, outbound, preserver, interpreter, reserve, options),
            preserver=preserver,
            interpreter=interpreter,
            activity=activity,
            reserve=reserve,
            passes=Passes(reader, writer, secret),
            memory=Memory(reserve=reserve),
            fatal=loop.create_future(),
            command_options=options,
        )
        activity.in_flight.set_function(lambda: len(registry.flights))
        activity.epoch.set(recovered.epoch)
        activity.admitting.set_function(lambda: services.admits)
        try:
            for state in recovered.unfinished:
                await interpreter.finish(state.call)
            yield services
        finally:
            await close(services)
            lock.release()


async def drain(services: Services, limit_s: float, hurry: asyncio.Event) -> None:
    """Lets answers in flight end, until the limit or a second signal. What is left stays unknown, which is the truth."""
    if flights := services.registry.flights:
        say(f"waiting for {len(flights)} answers, up to {limit_s:g} s; a second signal stops at once")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while flights := services.registry.flights:  # a request that waited may still begin one
                ends = [asyncio.create_task(event.wait()) for event in (flights[0].finished, hurry)]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for end in ends:
                    end.cancel()
                if hurry.is_set():
                    return


async def close(services: Services) -> None:
    """Raises PoisonedError if it was before or is now: the writer may still be writing, so the lock goes with the process."""
    for flight in services.registry.flights:
        if flight.task is not None:
            flight.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):  # `services.fatal` has what it raises
                await flight.task
    if not services.poisoned:
        with contextlib.suppress(PoisonedError):
            await services.writer.append(Append((Entry(None, None, EpochClosed(services.epoch, "self")),)))
        await services.writer.close()
    if services.poisoned:
        raise PoisonedError(_why(services))


def _why(services: Services) -> str:
    poisoned = services.writer.poisoned
    error = poisoned.result() if poisoned.done() else services.fatal.result()
    return (
        f"What is on disk is unknown after {type(error).__name__}: {error}. Nothing more is admitted; the process ends and "
        "recovers at its next start. If the disk is full or failing, mend that first."
    )


async def _until(stop: asyncio.Event, services: Services) -> None:
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((stopping, services.writer.poisoned, services.fatal), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
