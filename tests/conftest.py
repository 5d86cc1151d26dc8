"""Fixtures that every kind of test may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.processes import Rig, provider_in, rig


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Rig]:
    """A provider and a proxy over a fresh state dir."""
    with rig(tmp_path) as made:
        yield made


@pytest.fixture
def unstarted(tmp_path: Path) -> Iterator[Rig]:
    """A provider and no proxy yet, for tests whose first one is to break."""
    with provider_in(tmp_path) as made:
        yield made
