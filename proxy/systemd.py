"""What systemd passes and wants to hear: sockets that it listens on (sd_listen_fds(3)), and datagrams (sd_notify(3)).

Both protocols are documented there as stable and meant to be spoken without its library.
"""

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

from proxy.settings import SettingsError

FIRST_FD: Final = 3  # SD_LISTEN_FDS_START
UNIT: Final = "Give the .socket unit ListenStream=127.0.0.1:PORT, and Accept=no."
NAMES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def passed_sockets(environment: MutableMapping[str, str]) -> tuple[socket.socket, ...]:
    """The sockets that were opened for this process, in their order; none without socket activation. Raises SettingsError.

    The variables are taken out: no child of ours is meant by them.
    """
    pid, count, _names = (environment.pop(name, "") for name in NAMES)
    if pid != str(os.getpid()) or not count.isdecimal():
        return ()
    made = []
    for fd in range(FIRST_FD, FIRST_FD + int(count)):
        try:
            os.set_inheritable(fd, False)
            sock = socket.socket(fileno=fd)
        except OSError as error:
            raise SettingsError(
                f"{NAMES[1]}={count}, but descriptor {fd} is no socket ({error.strerror}). {UNIT}"
            ) from error
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or not _listens(sock):
            raise SettingsError(f"systemd passed descriptor {fd}, which is no listening TCP socket. {UNIT}")
        made.append(sock)
    return tuple(made)


def _listens(sock: socket.socket) -> bool:
    return sock.type == socket.SOCK_STREAM and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def notify(*lines: str) -> None:
    """Nothing without NOTIFY_SOCKET. What systemd does not hear is its loss: serving goes on."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    if address.startswith("@"):  # in the abstract namespace
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told:
        told.setblocking(False)  # a reader that is stuck holds nobody up
        told.sendto("\n".join(lines).encode(), address)
