"""One provider and one proxy for all tests of a module; each test keeps to prompts, or keys, of its own."""

from collections.abc import Iterator

import pytest

from tests.harness.processes import Rig, start_provider


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """With a generic upstream /local beside /openai and /anthropic."""
    directory = tmp_path_factory.mktemp("flow")
    provider = start_provider(directory / "provider.jsonl")
    made = Rig(directory, provider)
    try:
        made.arguments += ["--upstream", f"local={made.provider_url}"]
        made.start()
        yield made
    finally:
        made.close()
