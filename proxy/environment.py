"""What a command needs so that its SDKs ask the proxy: variables, and Codex's own option. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from proxy.upstream_settings import UpstreamSettings

LAUNCHERS: Final = frozenset({"npx", "bunx", "node"})  # what stands before the program that they start
CODEX_NAMES: Final = frozenset({"codex", "codex.js"})
CODEX_PACKAGE: Final = "@openai/codex"  # npx @openai/codex …
PROXY_VARIABLES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
LOOPBACK_HOSTS: Final = "127.0.0.1,localhost,::1"


class ElsewhereError(Exception):
    """A variable points at a provider that is no upstream here, so its key would go to another one. Exit code 2."""


@dataclass(frozen=True, slots=True)
class Behind:
    """One upstream of the proxy that will be asked: `variables`: of an SDK -> the path behind its name."""

    base_url: str
    variables: Mapping[str, str]


def behind(upstreams: Mapping[str, UpstreamSettings]) -> dict[str, Behind]:
    return {name: Behind(about.base_url, dict(about.environment)) for name, about in upstreams.items()}


def base_url(url: str, run: str | None, segment: str | None) -> str:
    """What upstream names follow: `url` is where the proxy listens."""
    return url if run is None else f"{url}/run/{run}/{segment}"


def variables(upstreams: Mapping[str, Behind], url: str, base: str, current: Mapping[str, str]) -> dict[str, str]:
    """Every variable to set. One that is set already keeps its provider: it is moved behind the upstream that has its base URL.

    `upstreams` are the proxy's own, `url` is where it listens. Raises ElsewhereError.
    """
    found = {}
    for name, about in upstreams.items():
        for variable, path in about.variables.items():
            given = current.get(variable)
            found[variable] = f"{base}/{name}{path}" if not given else base + _moved(upstreams, url, variable, given)
    if any(current.get(name) for name in PROXY_VARIABLES):
        for name in ("NO_PROXY", "no_proxy"):
            found[name] = ",".join(filter(None, (current.get(name), LOOPBACK_HOSTS)))
    return found


def _moved(upstreams: Mapping[str, Behind], url: str, variable: str, given: str) -> str:
    """`/NAME/path` for a base URL that somebody set."""
    if given.startswith(url + "/"):
        path = given.removeprefix(url)
        return "/" + path.split("/", 4)[4] if path.startswith("/run/") and path.count("/") > 3 else path
    for name, about in upstreams.items():
        if given == about.base_url or given.startswith(about.base_url + "/"):
            return f"/{name}{given.removeprefix(about.base_url)}"
    raise ElsewhereError(
        f"{variable} is {given}, which is the base URL of no upstream here, so its requests would go to another provider. "
        "Unset it, or give the proxy its provider with --upstream NAME=BASE_URL."
    )


def codex_option(base: str) -> str:
    """Codex ignores OPENAI_BASE_URL (docs/clients.md)."""
    return f'openai_base_url="{base}/openai/v1"'


def with_codex_option(command: Sequence[str], base: str) -> list[str]:
    """Behind the word that is Codex, if there is one: `codex exec …`, `npx @openai/codex exec …`."""
    for index, word in enumerate(command):
        if PurePath(word).name in CODEX_NAMES or word == CODEX_PACKAGE or word.startswith(CODEX_PACKAGE + "@"):
            return [*command[: index + 1], "-c", codex_option(base), *command[index + 1 :]]
        if not word.startswith("-") and (index or PurePath(word).name not in LAUNCHERS):
            break  # what stands further behind belongs to another program
    return list(command)
