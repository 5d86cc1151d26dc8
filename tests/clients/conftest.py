"""One provider and one proxy for all rows of a table; each row's prompt is its own."""

from collections.abc import Iterator

import pytest

from tests.harness.processes import Rig, provider_in


@pytest.fixture(scope="module")
def every_family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """With the upstream /gemini beside /openai and /anthropic."""
    directory = tmp_path_factory.mktemp("clients")
    with provider_in(directory) as made:
        made.arguments += ["--upstream", f"gemini={made.provider_url}"]
        made.start()
        yield made
