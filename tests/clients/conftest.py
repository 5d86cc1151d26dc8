"""One provider and one proxy for all rows of a table; each row's prompt is its own."""

from collections.abc import Iterator

import pytest

from tests.harness.processes import Rig, start_provider


@pytest.fixture(scope="module")
def every_family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """With the upstream /gemini beside /openai and /anthropic."""
    directory = tmp_path_factory.mktemp("clients")
    made = Rig(directory, start_provider(directory / "provider.jsonl"))
    made.arguments += ["--upstream", f"gemini={made.provider_url}"]
    try:
        made.start()
        yield made
    finally:
        made.close()
