"""The guard at the door, and the target as it may be recorded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from proxy.headers import RawHeaders
from proxy.target import FaultCode, target_fault, without_credentials

HTTP11 = (1, 1)


def code(
    target: str = "/v1", *, method: str = "POST", version: tuple[int, int] = HTTP11, headers: RawHeaders = ()
) -> FaultCode | None:
    fault = target_fault(method, target, version, headers)
    return None if fault is None else fault.code


@pytest.mark.parametrize(
    "target",
    [
        "", "*", "v1", "http://evil.com/x", "evil.com:443", "//evil.com/x", "?a=1", "/a\\b", "/a#b", "/x?a#b", "/a b", "/a\tb",
        "/a\x00b", "/a\x7fb", "/ü", "/\udce9", "/x?", "/?", "/.", "/..", "/a/../b", "/a/./b", "/a/%2e%2E/b", "/a/.%2e", "/%2e",
        "/a%2f..%2Fb", "/a/..%5cb", "/a%5C%2e%2e", "/a/..;x=1/b",
    ],
)  # fmt: skip
def test_ambiguous_target_is_refused(target: str) -> None:
    """Nothing that a second parser could read as another path, host or request is forwarded."""
    assert code(target) is FaultCode.BAD_TARGET


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/v1/a%2Fb/%7e;x/length?q=%zz&&a=+",
        "/v1/messages?beta=true",
        "/a//b",
        "/a?b?",
        "/x??",
        "/...",
        "/a.b/.c",
        "/a?b=../c",
    ],
)
def test_plain_target_is_admitted(target: str) -> None:
    """Odd but unambiguous targets pass."""
    assert code(target) is None


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=40))
def test_admitted_target_reaches_the_wire_byte_for_byte(rest: str) -> None:
    """The client library writes exactly what the guard let through."""
    target = "/" + rest
    if code(target) is None:
        assert URL("http://127.0.0.1:1" + target, encoded=True).raw_path_qs == target


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "get", "PROPFIND", ""])
def test_unlisted_method_is_refused(method: str) -> None:
    """The method list is closed, and methods are case-sensitive."""
    assert code(method=method) is FaultCode.BAD_TARGET


@pytest.mark.parametrize("version", [(1, 0), (0, 9), (2, 0)])
def test_other_http_version_is_refused(version: tuple[int, int]) -> None:
    """Framing is defined for HTTP/1.1 only."""
    assert code(version=version) is FaultCode.BAD_FRAMING


@pytest.mark.parametrize("name", [b"Authorization", b"Idempotency-Key"])
def test_doubled_single_header_is_refused(name: bytes) -> None:
    """Two callers, or two intentions, are none; once is fine."""
    assert code(headers=((name, b"a"), (name.lower(), b"a"))) is FaultCode.BAD_FRAMING
    assert code(headers=((name, b"a"),)) is None


def test_upgrade_is_refused_with_its_own_code() -> None:
    """WebSocket upgrades get 426."""
    assert code(method="GET", headers=((b"upgrade", b"websocket"),)) is FaultCode.UPGRADE_UNSUPPORTED


@pytest.mark.parametrize(
    ("target", "recorded"),
    [
        ("/v1/m", "/v1/m"),
        ("/v1/m?a=1&&b=%zz+", "/v1/m?a=1&&b=%zz+"),
        ("/v1/m?key=canary", "/v1/m"),
        ("/v1/m?key=canary&alt=sse", "/v1/m?alt=sse"),
        ("/v1/m?alt=sse&KEY=canary", "/v1/m?alt=sse"),
        ("/v1/m?a=1&%6bey=canary&b=2", "/v1/m?a=1&b=2"),
        ("/v1/m?a=1;api_key=canary;b=2", "/v1/m?a=1;b=2"),
        (
            "/m?X-Amz-Signature=canary&x-amz-date=d&X-Amz-Security-Token=canary&X-Amz-Credential=canary",
            "/m?x-amz-date=d",
        ),
        ("/m?key&a", "/m?a"),
        ("/m?key=canary?key=canary", "/m"),
        ("/m?monkey=1&keys=2", "/m?monkey=1&keys=2"),
    ],
)
def test_without_credentials_removes_only_credential_parameters(target: str, recorded: str) -> None:
    """Every other byte stays as it was."""
    assert without_credentials(target) == recorded


@given(st.text(st.sampled_from("ak=&;%?+/"), max_size=30))
def test_without_credentials_twice_changes_nothing_more(rest: str) -> None:
    """Removal never brings a credential parameter into being."""
    once = without_credentials("/x?" + rest.replace("ak", "key"))
    assert without_credentials(once) == once
