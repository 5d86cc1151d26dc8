"""Passes of runs, opened over the control socket as `sendonce run` does it."""

import asyncio
import http.client
from dataclasses import dataclass
from typing import Any

from proxy.control import ask_owner
from tests.harness.processes import Answer, Rig


@dataclass(frozen=True)
class OpenPass:
    """What the owner answered; `path` is what an upstream's name follows."""

    rig: Rig
    path: str
    opened: dict[str, Any]

    @property
    def gates(self) -> list[str]:
        return [gate["code"] for gate in self.opened["gates"]]

    @property
    def number(self) -> int:
        return int(self.opened["number"])

    def chat(self, body: bytes, headers: dict[str, str] | None = None, *, port: int | None = None) -> Answer:
        return self.rig.post(f"{self.path}/openai/v1/chat/completions", body, headers, port=port)

    def cut_chat(self, body: bytes) -> None:
        """Asks, and the process that answers dies meanwhile."""
        try:
            answer = self.chat(body)
        except (OSError, http.client.HTTPException):
            return
        raise AssertionError(f"it answered {answer.status}: {answer.body!r}")


def open_pass(rig: Rig, run: str, on_divergence: str = "refuse") -> OpenPass:
    asked = {"run": run, "on_divergence": on_divergence}
    _, opened = asyncio.run(ask_owner(rig.paths.control_socket, "POST", "/passes", asked))
    assert "refused" not in opened, opened
    return OpenPass(rig, f"/run/{run}/{opened['segment']}", opened)
