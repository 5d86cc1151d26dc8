"""What `sendonce run` sets for a command: variables, and Codex's own option."""

import pytest

from proxy.environment import Behind, ElsewhereError, behind, variables, with_codex_option
from proxy.settings import load

URL = "http://127.0.0.1:8787"
BASE = f"{URL}/run/nightly/2-token"
UPSTREAMS = behind(load(None, {}).upstreams)
OPTION = ["-c", f'openai_base_url="{BASE}/openai/v1"']


def test_every_variable_names_its_upstream_within_the_pass() -> None:
    """The ones that docs/clients.md lists."""
    assert variables(UPSTREAMS, URL, BASE, {}) == {
        "OPENAI_BASE_URL": f"{BASE}/openai/v1",
        "OPENAI_API_BASE": f"{BASE}/openai/v1",
        "ANTHROPIC_BASE_URL": f"{BASE}/anthropic",
        "ANTHROPIC_API_BASE": f"{BASE}/anthropic",
        "GOOGLE_GEMINI_BASE_URL": f"{BASE}/gemini",
        "GEMINI_API_BASE": f"{BASE}/gemini",
        "GOOGLE_VERTEX_BASE_URL": f"{BASE}/vertex",
    }


@pytest.mark.parametrize(
    ("given", "moved"),
    [
        ("https://api.openai.com/v1", "/openai/v1"),
        ("https://api.groq.com/openai/v1", "/groq/v1"),
        ("http://127.0.0.1:11434/v1", "/ollama/v1"),
        (f"{URL}/mistral/v1", "/mistral/v1"),
        (f"{URL}/run/other/1-x/openai/v1", "/openai/v1"),
        ("", "/openai/v1"),
    ],
)
def test_variable_that_is_set_keeps_its_provider(given: str, moved: str) -> None:
    """Behind the upstream that has its base URL, or where it was behind this proxy already."""
    assert variables(UPSTREAMS, URL, BASE, {"OPENAI_BASE_URL": given})["OPENAI_BASE_URL"] == BASE + moved


@pytest.mark.parametrize("given", ["https://llm.example.com/v1", "https://api.openai.com.example.com/v1", "nonsense"])
def test_variable_for_an_unknown_provider_is_refused(given: str) -> None:
    """Its requests, with its key, would go to another one."""
    with pytest.raises(ElsewhereError, match=r"OPENAI_BASE_URL is .* --upstream NAME=BASE_URL"):
        variables(UPSTREAMS, URL, BASE, {"OPENAI_BASE_URL": given})


def test_egress_proxy_is_not_used_for_loopback() -> None:
    """Where the environment names one; what is exempt already stays so."""
    found = variables({}, URL, BASE, {"HTTPS_PROXY": "http://proxy:3128", "no_proxy": "intranet"})
    assert found == {"NO_PROXY": "127.0.0.1,localhost,::1", "no_proxy": "intranet,127.0.0.1,localhost,::1"}


def test_upstream_of_ones_own_has_ones_own_variable() -> None:
    """`upstreams.NAME.environment` in the configuration."""
    assert variables({"acme": Behind("https://acme", {"ACME_URL": "/api"})}, URL, BASE, {}) == {
        "ACME_URL": f"{BASE}/acme/api"
    }


@pytest.mark.parametrize(
    ("command", "option_at"),
    [
        (["codex", "exec", "say hi"], 1),
        (["/opt/bin/codex", "exec"], 1),
        (["node", "/x/node_modules/@openai/codex/bin/codex.js", "exec"], 2),
        (["npx", "-y", "@openai/codex@0.171.0", "exec"], 3),
        (["python", "agent.py", "codex"], None),
        (["claude", "-p", "codex"], None),
        (["echo", "codex"], None),
    ],
)
def test_codex_gets_its_option_where_it_is_the_program(command: list[str], option_at: int | None) -> None:
    """It ignores OPENAI_BASE_URL; nobody else is given a word."""
    made = with_codex_option(command, BASE)
    assert made == (command if option_at is None else [*command[:option_at], *OPTION, *command[option_at:]])
