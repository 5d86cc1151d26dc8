"""The stock SDKs, with nothing changed but the base URL."""

import importlib
import os
from types import ModuleType
from typing import Any, Final

import pytest

from tests.harness.processes import Rig

API_KEY: Final = "sk-test-caller"


def sdk(name: str) -> ModuleType:
    """The SDK. Without it the test is skipped, loudly; where CI=true that is a failure, or a claim would go unproven."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = f"NOT RUN: the SDK {name!r} is not installed ({error}). Run: pip install -e '.[dev]'"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)


def openai_client(rig: Rig, kind: str = "OpenAI", **options: Any) -> Any:
    return getattr(sdk("openai"), kind)(base_url=f"{rig.url}/openai/v1", api_key=API_KEY, **options)


def anthropic_client(rig: Rig, kind: str = "Anthropic", **options: Any) -> Any:
    return getattr(sdk("anthropic"), kind)(base_url=f"{rig.url}/anthropic", api_key=API_KEY, **options)


def genai_client(rig: Rig, **options: Any) -> Any:
    return sdk("google.genai").Client(api_key=API_KEY, http_options={"base_url": f"{rig.url}/gemini", **options})


def restart_on_the_same_port(rig: Rig, port: int) -> None:
    """As a supervisor would: clients keep their base URL. The proxy before is killed, or dead already."""
    assert rig.proxy_process is not None
    rig.proxy_process.close()
    rig.start("", "--port", str(port))
