"""A client's base URL may end as its SDK, or another SDK, expects it, and name IPv4 or IPv6: each completes a call at the provider's path."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.harness.asks import CLIENTS, Ask, text_of
from tests.harness.neighbours import beside
from tests.harness.processes import Rig, message

CHAT: Final = "/v1/chat/completions"
MESSAGES: Final = "/v1/messages"
IPV4, IPV6 = "127.0.0.1", "[::1]"
# The SDK, the host and path of its base URL, and the path at the provider. What the SDK puts behind it stands beside.
BASES: Final = (
    ("openai_chat", IPV4, "/openai/v1", CHAT),  # /chat/completions
    ("openai_chat", IPV4, "/openai/v1/", CHAT),
    ("openai_chat", IPV4, "/openai", CHAT),
    ("openai_chat", IPV6, "/openai/v1", CHAT),
    ("anthropic", IPV4, "/anthropic", MESSAGES),  # /v1/messages
    ("anthropic", IPV4, "/anthropic/", MESSAGES),
    ("anthropic", IPV4, "/anthropic/v1", MESSAGES),  # so /v1/v1/messages; the base URL that the AI SDK needs
    ("anthropic", IPV6, "/anthropic", MESSAGES),
)


@pytest.fixture(scope="module")
def listening(every_family: Rig) -> Iterator[dict[str, Rig]]:
    """Two proxies before one provider, by the host that they listen on."""
    with beside(every_family, "--host", "::1") as other:
        yield {IPV4: every_family, IPV6: other}


@pytest.mark.parametrize("language", ["", "node_"], ids=["python", "node"])
@pytest.mark.parametrize(("name", "host", "base", "path"), BASES)
def test_base_url_completes_a_call(
    listening: dict[str, Rig], language: str, name: str, host: str, base: str, path: str
) -> None:
    """The answer is that of the one receipt, and the provider saw its own path."""
    rig = listening[host]
    before = len(rig.provider_receipts())
    said = CLIENTS[language + name].ask(Ask(f"http://{host}:{rig.port}{base}", prompt=f"{language}{host}{base}"))
    (receipt,) = rig.provider_receipts()[before:]
    assert (said.text, receipt["path"]) == (text_of(receipt), path)


def test_path_without_a_version_completes_a_call(every_family: Rig) -> None:
    """The third path of Anthropic's: the AI SDK puts /messages alone behind a base URL that has no version."""
    before = len(every_family.provider_receipts())
    answer = every_family.post("/anthropic/messages", message(text="no version"), {"anthropic-version": "2023-06-01"})
    (receipt,) = every_family.provider_receipts()[before:]
    assert (answer.json["content"][0]["text"], receipt["path"]) == (text_of(receipt), MESSAGES)
