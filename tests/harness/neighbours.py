"""Further proxies beside a shared provider: each with its own state dir, settings and failpoints; and looks at a stopped one."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.harness.processes import Process, Rig, until

_NUMBERS: Final = itertools.count(1)


@contextmanager
def beside(shared: Rig, *arguments: str, settings: str = "", failpoints: str = "") -> Iterator[Rig]:
    """A proxy over a fresh state dir. `settings` is TOML; `arguments` are more of `serve`, after those of the rig."""
    name = f"beside-{next(_NUMBERS)}"
    config = shared.directory / f"{name}.toml"
    config.write_text(settings)
    made = Rig(shared.directory, shared.provider_process, ["--config", str(config), *arguments], state_name=name)
    try:
        made.start(failpoints)
        yield made
    finally:
        made.leave()


def process_of(rig: Rig) -> Process:
    assert rig.proxy_process is not None
    return rig.proxy_process


def until_stopped(rig: Rig) -> int:
    """Until a failpoint has stopped the proxy (SIGSTOP); its process id, for SIGCONT."""
    pid = process_of(rig).child.pid
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    return pid
