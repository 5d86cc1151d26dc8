"""The operator's own key for a provider, from the environment: for what no client asks. It is never recorded and never printed."""

from collections.abc import Mapping
from typing import Final

from proxy.endpoints import Family
from proxy.headers import RawHeaders, find
from proxy.settings import SettingsError
from proxy.upstream_settings import UpstreamSettings

# Variable and header of each family's SDK: openai 3.57.0, anthropic 2.14.0, google-genai 3.6.1.
_VARIABLES: Final[Mapping[Family, str]] = {
    Family.OPENAI: "OPENAI_API_KEY",
    Family.ANTHROPIC: "ANTHROPIC_API_KEY",
    Family.GEMINI: "GEMINI_API_KEY",
}
_HEADERS: Final[Mapping[Family, tuple[bytes, bytes]]] = {
    Family.ANTHROPIC: (b"x-api-key", b""),
    Family.GEMINI: (b"x-goog-api-key", b""),
}
_BEARER: Final = (b"Authorization", b"Bearer ")


def variable_of(name: str, upstream: UpstreamSettings) -> str:
    """The environment variable that holds the key. Raises SettingsError."""
    variable = upstream.key_variable or _VARIABLES.get(upstream.family)
    if variable is None:
        raise SettingsError(
            f"No environment variable is known to hold a key for {name}. Set upstreams.{name}.key_variable to its name."
        )
    return variable


def credential(name: str, upstream: UpstreamSettings, environ: Mapping[str, str]) -> RawHeaders:
    """Raises SettingsError where the variable is not set, or holds what no header can."""
    variable = variable_of(name, upstream)
    key = environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise SettingsError(
            f"The environment variable {variable} holds no key for {name}. Set it, for this command alone."
        )
    header, scheme = _HEADERS.get(upstream.family, _BEARER)
    return ((header, scheme + key.encode()),)


def with_recorded(given: RawHeaders, recorded: RawHeaders, names: frozenset[bytes]) -> RawHeaders:
    """The credential, with those of the recorded headers that say whose or which interface is meant."""
    return (*given, *(pair for pair in recorded if pair[0].lower() in names and find(given, pair[0].lower()) is None))
