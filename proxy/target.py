"""The guard at the door: which request targets and heads may be forwarded at all. Pure.

It refuses whatever a second parser could read differently, so that the bytes that were recorded, the bytes that are sent and
the bytes that the provider acts on name the same thing (research/reliability.md section 2).
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import unquote_plus

from proxy.headers import RawHeaders, find, find_all

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SINGLE_HEADERS: Final = (b"authorization", b"idempotency-key")  # two of them name two callers, or two intentions

CREDENTIAL_PARAMETERS: Final = frozenset({
    "key", "api_key", "api-key", "apikey", "x-api-key", "x-goog-api-key", "subscription-key",
    "token", "access_token", "id_token", "refresh_token", "auth", "auth_token", "authorization",
    "sig", "signature", "secret", "client_secret", "password", "awsaccesskeyid",
    "x-amz-signature", "x-amz-credential", "x-amz-security-token", "x-goog-signature", "x-goog-credential",
})  # fmt: skip

_PRINTABLE_PATH: Final = re.compile(r"/[!-~]*")
_SLASH: Final = re.compile(r"/|%2f|\\|%5c", re.IGNORECASE)
_DOT: Final = re.compile(r"%2e", re.IGNORECASE)


class FaultCode(StrEnum):
    BAD_TARGET = "bad_target"
    BAD_FRAMING = "bad_framing"
    UPGRADE_UNSUPPORTED = "upgrade_unsupported"


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a request is not admitted; `sentence` names the field and the remedy."""

    code: FaultCode
    sentence: str


def target_fault(method: str, target: str, version: tuple[int, int], headers: RawHeaders) -> Fault | None:
    """The first fault of a request's head, or None. `target` is the raw request target as it stood on the wire."""
    if version != (1, 1):
        return Fault(FaultCode.BAD_FRAMING, "The request is not HTTP/1.1. Speak HTTP/1.1 to this proxy.")
    if find(headers, b"upgrade") is not None:
        return Fault(FaultCode.UPGRADE_UNSUPPORTED, "The header Upgrade is not supported. Send a plain request.")
    for name in SINGLE_HEADERS:
        if len(find_all(headers, name)) > 1:
            return Fault(FaultCode.BAD_FRAMING, f"The header {name.decode()} is there more than once. Send it once.")
    if method not in METHODS:
        return Fault(FaultCode.BAD_TARGET, f"The method is not forwarded. Use one of {', '.join(sorted(METHODS))}.")
    if (sentence := _target_sentence(target)) is not None:
        return Fault(FaultCode.BAD_TARGET, sentence)
    return None


def _target_sentence(target: str) -> str | None:
    path, mark, query = target.partition("?")
    if not path.startswith("/") or path.startswith("//"):
        return "The request target is not a path that starts with one slash. Send the origin form, as in /openai/v1/models."
    if _PRINTABLE_PATH.fullmatch(target) is None or "\\" in target or "#" in target:
        return "The request target holds a character that has no place there. Percent-encode it."
    if mark and not query:  # yarl, which writes the request line, drops it
        return "The request target ends with an empty query. Remove the trailing question mark."
    segments = (segment.partition(";")[0] for segment in _SLASH.split(_DOT.sub(".", path)))
    if any(segment in {".", ".."} for segment in segments):
        return "The request target holds a dot segment. Send the resolved path."
    return None


def without_credentials(target: str) -> str:
    """The target as it may be recorded: credential parameters removed, every other byte as it was.

    Names are compared as a provider's server would read them: percent-decoded, without regard to case.
    """
    path, mark, query = target.partition("?")
    pieces = re.split("([&;])", query)  # value, separator, value, …
    separators = ["", *pieces[1::2]]
    kept = [both for both in zip(separators, pieces[::2], strict=True) if not _is_credential(both[1])]
    if len(kept) == len(separators):
        return target
    if not kept:
        return path
    return path + mark + kept[0][1] + "".join(separator + value for separator, value in kept[1:])


def _is_credential(parameter: str) -> bool:
    return unquote_plus(parameter.partition("=")[0]).strip().lower() in CREDENTIAL_PARAMETERS
