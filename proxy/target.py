"""The guard at the door: which request targets and heads may be forwarded at all. Pure.

It refuses whatever a second parser could read differently, so that the bytes that were recorded, the bytes that are sent and
the bytes that the provider acts on name the same thing (research/reliability.md section 2).
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import unquote_plus

from proxy.headers import HOP_BY_HOP, OWN_PREFIX, RawHeaders, end_to_end, find

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Two of them name two callers, or two intentions; so would two of our own.
SINGLE_HEADERS: Final = frozenset({b"authorization", b"idempotency-key"})
HEAD_LIMIT_BYTES: Final = 256 * 1024  # all of it; providers allow some 64 KiB of headers

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
    if (sentence := _headers_sentence(headers)) is not None:
        return Fault(FaultCode.BAD_FRAMING, sentence)
    if method not in METHODS:
        return Fault(FaultCode.BAD_TARGET, f"The method is not forwarded. Use one of {', '.join(sorted(METHODS))}.")
    if (sentence := _target_sentence(target)) is not None:
        return Fault(FaultCode.BAD_TARGET, sentence)
    return None


def _headers_sentence(headers: RawHeaders) -> str | None:
    if sum(len(name) + len(value) for name, value in headers) > HEAD_LIMIT_BYTES:
        return f"The head of the request is larger than {HEAD_LIMIT_BYTES} bytes. Send fewer or shorter headers."
    # Chunks are all that is taken off here; of any other coding the provider would get the bytes without its name.
    if (coding := find(headers, b"transfer-encoding")) is not None and coding.lower() != b"chunked":
        return "The header Transfer-Encoding is not chunked. Send chunks, or a Content-Length."
    names = [name.lower() for name, _ in headers]
    passed_on = {name.lower() for name, _ in end_to_end(headers)}
    for name in names:
        is_own = name.startswith(OWN_PREFIX)
        if (is_own or name in SINGLE_HEADERS) and names.count(name) > 1:
            return f"The header {name.decode()} is there more than once. Send it once."
        if not is_own and name not in passed_on | HOP_BY_HOP:  # we would go by it, and the provider would not see it
            return f"The header Connection lists {name.decode()}, which is meant for the provider. List it no more."
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
