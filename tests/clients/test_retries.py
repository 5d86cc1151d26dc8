"""What the stock SDKs of Python and Node do again by themselves, or a program with them: paid for again where they ask a provider
directly, once where sendonce stands between. Each asks both ways, in both forms at once; the provider's own receipts count.
"""

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.harness.asks import CLIENTS, Ask, Client, Said, text_of
from tests.harness.neighbours import beside
from tests.harness.processes import Rig, provider_in, until
from tests.harness.relay import relaying

TIMEOUT_S: Final = 1.0
RETRIES: Final = 2  # the default of the SDKs that retry unasked; google-genai does it where it is told to
TRIES: Final = RETRIES + 1
# Longer than two tries' time-outs, so directly no try gets an answer; shorter than it takes until the last try begins (two
# time-outs and two pauses, 3.1 s at least), so that the whole time-out of the last one is to spare on a busy machine.
HELD: Final = "synthetic/hold=2.5"
# The asynchronous google-genai client with `retry_options` gives up at its time-out: they do not name that exception.
RETRIES_BY_ITSELF: Final = [name for name in CLIENTS if name != "gemini_async"]
RETRIED_BY_THE_PROGRAM: Final = ["gemini", "gemini_async", "node_gemini"]
SEED: Final = 3082  # google-genai draws its pause of 1 to 10 s: from this seed the shortest, four times; nothing else depends on it

_NUMBERS: Final = itertools.count(1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A provider that no proxy stands before."""
    with provider_in(tmp_path_factory.mktemp("alone")) as made:
        yield made


@dataclass(frozen=True)
class Outcome:
    """Of one program that asked in both forms: what it heard last of each, and the provider receipts of each body in order."""

    said: list[Said]
    receipts: list[list[dict[str, Any]]]

    @property
    def effects(self) -> list[int]:
        return [len(of_one_body) for of_one_body in self.receipts]

    def heard(self, index: int) -> bool:
        """Each form got the answer to that receipt of its body."""
        return {said.text for said in self.said} == {text_of(of_one_body[index]) for of_one_body in self.receipts}


def in_both_forms(rig: Rig, client: Client, url: str, *tries: dict[str, Any]) -> Outcome:
    """Plain and streaming at once, each prompt its own; `tries` are calls of one program, one after another."""
    before, number = len(rig.provider_receipts()), next(_NUMBERS)

    def ask(stream: bool) -> Said:
        prompt = f"question {number}, {'streaming' if stream else 'plain'}"
        return client.ask_each([Ask(url, HELD, prompt, stream, **options) for options in tries])[-1]

    with ThreadPoolExecutor() as pool:
        said = list(pool.map(ask, (False, True)))
    of_body = defaultdict(list)
    for receipt in rig.provider_receipts()[before:]:
        of_body[receipt["body_blake3"]].append(receipt)
    return Outcome(said, list(of_body.values()))


def both_ways(client: Client, alone: Rig, proxied: Rig, *tries: dict[str, Any]) -> tuple[Outcome, Outcome]:
    """Directly, and through sendonce, at the same time."""
    with ThreadPoolExecutor() as pool:
        directly = pool.submit(in_both_forms, alone, client, client.direct(alone), *tries)
        through = pool.submit(in_both_forms, proxied, client, client.through(proxied), *tries)
        return directly.result(), through.result()


@pytest.mark.parametrize("name", RETRIES_BY_ITSELF)
def test_timed_out_sdk_retries_into_its_first_answer(alone: Rig, every_family: Rig, name: str) -> None:
    """Three provider receipts and an error directly; through sendonce one, and a retry returns the first try's answer."""
    options = {"timeout_s": TIMEOUT_S, "max_retries": RETRIES}
    directly, through = both_ways(CLIENTS[name], alone, every_family, options)
    assert directly.effects == [TRIES, TRIES]
    assert all(said.error for said in directly.said)
    assert through.effects == [1, 1]
    assert through.heard(0)


@pytest.mark.parametrize("name", RETRIED_BY_THE_PROGRAM)
def test_timed_out_program_asks_again_and_gets_its_first_answer(alone: Rig, every_family: Rig, name: str) -> None:
    """Nothing marks the second call but that the first one's socket is gone."""
    directly, through = both_ways(CLIENTS[name], alone, every_family, {"timeout_s": TIMEOUT_S}, {})
    assert directly.effects == [2, 2]
    assert directly.heard(1)
    assert through.effects == [1, 1]
    assert through.heard(0)


def test_dropped_connection_is_asked_again_by_genai_and_gets_the_first_answer(alone: Rig, every_family: Rig) -> None:
    """The asynchronous client sends again by itself, once, seconds later, with nothing to mark it."""
    random.seed(SEED)
    client = CLIENTS["gemini_async"]
    before, before_through = len(alone.provider_receipts()), len(every_family.provider_receipts())
    with (
        relaying(alone.provider_process.port) as near,
        relaying(every_family.port) as far,
        ThreadPoolExecutor() as pool,
    ):
        directly = pool.submit(in_both_forms, alone, client, client.direct(alone, near.port), {})
        through = pool.submit(in_both_forms, every_family, client, client.through(every_family, far.port), {})
        until(lambda: len(alone.provider_receipts()) == before + 2)
        near.cut()
        until(lambda: len(every_family.provider_receipts()) == before_through + 2)
        far.cut()
    assert directly.result().effects == [2, 2]
    assert directly.result().heard(1)
    assert through.result().effects == [1, 1]
    assert through.result().heard(0)


# --- refusals --------------------------------------------------------------------------------------------------------

LEFT: Final = "synthetic/hold=forever"
SENTENCE: Final = "sendonce does not send it again"
FINAL_STATUS: Final = {"openai": 400, "anthropic": 424, "gemini": 424}  # semantics.md section 7


def asks_left_open(client: Client, rig: Rig, number: int, retries: int) -> list[Ask]:
    return [
        Ask(client.through(rig), LEFT, f"question {number}, {form}", form == "streaming", max_retries=retries)
        for form in ("plain", "streaming")
    ]


@pytest.mark.parametrize("name", CLIENTS)
def test_refused_sdk_stops_after_one_try_and_shows_our_sentence(every_family: Rig, name: str) -> None:
    """Killed while the provider holds, restarted, asked again by an SDK that may retry: one request of each form reaches the
    proxy, none the provider.
    """
    client, number = CLIENTS[name], next(_NUMBERS)
    before = len(every_family.provider_receipts())
    with beside(every_family, "--upstream", f"gemini={every_family.provider_url}") as rig:
        with ThreadPoolExecutor() as pool:
            first = [pool.submit(client.ask, asked) for asked in asks_left_open(client, rig, number, 0)]
            until(lambda: len(rig.provider_receipts()) == before + 2)
            rig.restart()
        assert all(asking.result().error for asking in first)
        refused = client.ask_each(asks_left_open(client, rig, number, RETRIES))
        lines = [json.loads(line) for line in (rig.state_dir / "activity.log").read_text().splitlines()]
        assert len(rig.provider_receipts()) == before + 2
    assert [(line["what"], line["code"]) for line in lines] == [("refused", "effect_unknown")] * 2
    for said, line in zip(refused, lines, strict=True):
        assert (said.text, said.status) == (None, FINAL_STATUS[client.upstream])
        assert SENTENCE in said.message
        assert f"sendonce reconcile {line['call']}" in said.message
