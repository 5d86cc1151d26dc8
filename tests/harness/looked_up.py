"""A proxy whose settings a command shares, and the operator's key: what look-ups and resumes need beside a state dir."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.harness.commands import sendonce
from tests.harness.processes import Rig, provider_in

KEY: Final = "sk-test-caller"  # what the rig's clients send
GENERATING: Final = ("/chat/completions", "/responses", "/messages", "/batches", "/embeddings")


@contextmanager
def configured(directory: Path, **openai: Any) -> Iterator[Rig]:
    """A provider, and a proxy that is not started yet; `openai` are settings of that upstream."""
    with provider_in(directory) as made:
        fields = {"base_url": made.provider_url, **openai}
        lines = [f"{name} = {_toml(value)}" for name, value in fields.items()]
        others = {"openrouter": "/api", "anthropic": ""}
        tables = [f'[upstreams.{name}]\nbase_url = "{made.provider_url}{path}"' for name, path in others.items()]
        (directory / "sendonce.toml").write_text("\n".join(["[upstreams.openai]", *lines, *tables]))
        made.arguments += ["--config", str(directory / "sendonce.toml")]
        yield made


def _toml(value: Any) -> str:
    """JSON but for tables."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_toml(each)}" for name, each in value.items()) + " }"
    return json.dumps(value)


def operator(rig: Rig, *arguments: str, key: str = KEY) -> "subprocess.CompletedProcess[str]":
    """A command with the rig's settings, and with the operator's key in its environment."""
    where = ("--state-dir", str(rig.state_dir), "--config", str(rig.directory / "sendonce.toml"))
    return sendonce(*arguments, *where, OPENAI_API_KEY=key, OPENROUTER_API_KEY=key, ANTHROPIC_API_KEY=key)


def lookup(rig: Rig, *arguments: str, key: str = KEY) -> list[dict[str, Any]]:
    done = operator(rig, "lookup", *arguments, "--json", key=key)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def generating(rig: Rig) -> list[dict[str, Any]]:
    """The provider's receipts for requests that make it do something."""
    return [line for line in rig.provider_receipts() if line["path"].partition("?")[0].endswith(GENERATING)]
