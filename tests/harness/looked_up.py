"""A proxy whose settings a command shares, and the operator's key: what look-ups and resumes need beside a state dir."""

import json
import os
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.harness.commands import sendonce
from tests.harness.processes import Rig, provider_in
from tests.harness.provider_records import OPENAI_ADMIN

KEY: Final = "sk-test-caller"  # what the rig's clients send
# The provider counts at once, its clock is ours, and what it worked on when we died it finished within a second: so its pages say from
# then on what they will always say, and `fetched` may date them later than they are.
LATER_S: Final = 10
AT_ONCE: Final = ("--settled", "this provider counts at once", "--longest-s", "2", "--skew-s", "1")
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


def fetched(path: Path, pages: list[dict[str, Any]]) -> Path:
    """The pages in a file, as if they were fetched when the longest of AT_ONCE is over."""
    path.write_text(json.dumps(pages))
    at = time.time() + LATER_S
    os.utime(path, (at, at))
    return path


def usage_pages(rig: Rig) -> list[dict[str, Any]]:
    """The provider's usage of these hours, split by model and tier, as an operator with an admin key fetches it."""
    hour = int(time.time()) // 3600 * 3600
    asked = {"start_time": hour - 7200, "end_time": hour + 7200, "bucket_width": "1h", "limit": 24}
    groups = "&group_by[]=model&group_by[]=service_tier"
    url = f"{rig.provider_url}/v1/organization/usage/completions?{urllib.parse.urlencode(asked)}{groups}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {OPENAI_ADMIN}"})
    with urllib.request.urlopen(request) as answer:
        return [json.loads(answer.read())]
