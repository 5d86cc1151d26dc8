"""The verdict table: semantics.md section 5."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.stages import Effect
from proxy.effects import verdict

ABSENT, ANSWERED, UNKNOWN, HAPPENED = Effect


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 424, 429, 307, 308, 529])
def test_refusing_status_proves_absent(status: int) -> None:
    """A wholly received refusal comes before any generation, with or without an envelope."""
    assert verdict(status, has_envelope=False, in_band_error=False) is ABSENT
    assert verdict(status, has_envelope=True, in_band_error=False) is ABSENT


@pytest.mark.parametrize("status", [408, 409, 425, 499])
@pytest.mark.parametrize("gateway", [False, True])
def test_unproving_4xx_is_unknown(status: int, gateway: bool) -> None:
    """Four 4xx say nothing about what was done, with an envelope or from a gateway neither."""
    assert verdict(status, has_envelope=True, in_band_error=False, gateway=gateway) is UNKNOWN


@pytest.mark.parametrize("status", [500, 502, 503, 504, 520, 522, 524])
def test_5xx_is_answered_only_with_envelope(status: int) -> None:
    """The provider's envelope tells its own error from a gateway's page."""
    assert verdict(status, has_envelope=True, in_band_error=False) is ANSWERED
    assert verdict(status, has_envelope=False, in_band_error=False) is UNKNOWN


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_2xx_happened_unless_in_band_error(status: int) -> None:
    """A 2xx proves the effect; an error event in it is the provider saying that it failed."""
    assert verdict(status, has_envelope=False, in_band_error=False) is HAPPENED
    assert verdict(status, has_envelope=False, in_band_error=True) is ANSWERED


def test_gateway_4xx_is_answered() -> None:
    """A gateway may have tried another provider before its own 4xx."""
    assert verdict(400, has_envelope=True, in_band_error=False, gateway=True) is ANSWERED
    assert verdict(529, has_envelope=True, in_band_error=False, gateway=True) is ABSENT


def test_listed_exception_is_answered() -> None:
    """Azure bills some 400s and 408s; other statuses keep their verdict."""
    azure = frozenset({400, 408})
    assert verdict(400, has_envelope=True, in_band_error=False, exceptions=azure) is ANSWERED
    assert verdict(408, has_envelope=True, in_band_error=False, exceptions=azure) is ANSWERED
    assert verdict(401, has_envelope=True, in_band_error=False, exceptions=azure) is ABSENT
    assert verdict(200, has_envelope=True, in_band_error=False, exceptions=frozenset({200})) is HAPPENED


@given(st.integers(), st.booleans(), st.booleans(), st.booleans())
def test_unlisted_status_is_unknown(status: int, has_envelope: bool, in_band_error: bool, gateway: bool) -> None:
    """What no rule names proves nothing."""
    found = verdict(status, has_envelope=has_envelope, in_band_error=in_band_error, gateway=gateway)
    if not (200 <= status < 300 or status in {307, 308} or 400 <= status < 600):
        assert found is UNKNOWN
