"""What the stock SDKs of Python and Node do again by themselves, or a program with them: paid for again where they ask a provider
directly, once where sendonce stands between. Each asks both ways, in both forms at once; the provider's own receipts count.
"""

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.harness.asks import CLIENTS, Ask, Client, Said, text_of
from tests.harness.neighbours import beside
from tests.harness.processes import Rig, provider_in, until
from tests.harness.relay import Relay, relaying

# Each try must reach the provider within it, and the last one be answered: some fifth of a second on a busy machine.
TIMEOUT_S: Final = 2.0
RETRIES: Final = 2  # the default of the SDKs that retry unasked; google-genai does it where it is told to
TRIES: Final = RETRIES + 1
LEFT: Final = "synthetic/hold=forever"
HELD: Final = "synthetic/hold=4"  # twice the time-out, for tries that have none
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


# Prompt -> what counts the tries of it. A held answer may not come by the clock: where it meets a try's time-out, an SDK that has
# begun to read it raises and does not retry (@google/genai), and a late one finds the last try gone.
_COUNTED: Final[dict[bytes, Relay]] = {}


def _last_try_is_there(question: bytes) -> bool:
    return all(relay.asked >= TRIES for prompt, relay in _COUNTED.items() if prompt in question)


@pytest.fixture(scope="module")
def held(every_family: Rig) -> Iterator[Rig]:
    """A proxy whose provider's answer comes once the last try is at the door, and not before."""
    with relaying(every_family.provider_process.port, may_pass=_last_try_is_there) as provider:
        names = ("openai", "anthropic", "gemini")
        upstreams = [f"--upstream={name}=http://127.0.0.1:{provider.port}" for name in names]
        with beside(every_family, *upstreams) as made:
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


def prompts() -> list[str]:
    """Of a plain and a streaming call, nobody else's."""
    number = next(_NUMBERS)
    return [f"question {number}, {form}" for form in ("plain", "streaming")]


def in_both_forms(
    rig: Rig, client: Client, urls: Sequence[str], *tries: dict[str, Any], model: str = HELD, asked: Sequence[str] = ()
) -> Outcome:
    """Plain and streaming at once, each with its URL and prompt; `tries` are calls of one program, one after another."""

    def ask(url: str, prompt: str, stream: bool) -> Said:
        return client.ask_each([Ask(url, model, prompt, stream, **options) for options in tries])[-1]

    before = len(rig.provider_receipts())
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(ask, urls, asked or prompts(), (False, True)))
    of_body = defaultdict(list)
    for receipt in rig.provider_receipts()[before:]:
        of_body[receipt["body_blake3"]].append(receipt)
    return Outcome(said, list(of_body.values()))


def until_the_last_try(held: Rig, client: Client, options: dict[str, Any]) -> Outcome:
    """The provider holds each answer until the last try of its question is there."""
    asked = prompts()
    with relaying(held.port) as plain, relaying(held.port) as streaming:
        relays = (plain, streaming)
        _COUNTED.update(zip((prompt.encode() for prompt in asked), relays, strict=True))
        urls = [client.through(held, relay.port) for relay in relays]
        outcome = in_both_forms(held, client, urls, options, model="synthetic", asked=asked)
        assert [relay.asked for relay in relays] == [TRIES, TRIES]
    return outcome


@pytest.mark.parametrize("name", RETRIES_BY_ITSELF)
def test_timed_out_sdk_retries_into_its_first_answer(alone: Rig, held: Rig, name: str) -> None:
    """Three provider receipts and an error directly; through sendonce one, and the last try returns the first one's answer."""
    options, client = {"timeout_s": TIMEOUT_S, "max_retries": RETRIES}, CLIENTS[name]
    with ThreadPoolExecutor() as pool:
        through = pool.submit(until_the_last_try, held, client, options).result
        directly = in_both_forms(alone, client, [client.direct(alone)] * 2, options, model=LEFT)
    assert directly.effects == [TRIES, TRIES]
    assert all(said.error for said in directly.said)
    assert through().effects == [1, 1]
    assert through().heard(0), through().said


@pytest.mark.parametrize("name", RETRIED_BY_THE_PROGRAM)
def test_timed_out_program_asks_again_and_gets_its_first_answer(alone: Rig, every_family: Rig, name: str) -> None:
    """Nothing marks the second call but that the first one's socket is gone."""
    client, tries = CLIENTS[name], ({"timeout_s": TIMEOUT_S}, {})
    with ThreadPoolExecutor() as pool:
        through = pool.submit(in_both_forms, every_family, client, [client.through(every_family)] * 2, *tries).result
        directly = in_both_forms(alone, client, [client.direct(alone)] * 2, *tries)
    assert directly.effects == [2, 2]
    assert directly.heard(1), directly.said
    assert through().effects == [1, 1]
    assert through().heard(0), through().said


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
        directly = pool.submit(in_both_forms, alone, client, [client.direct(alone, near.port)] * 2, {})
        through = pool.submit(in_both_forms, every_family, client, [client.through(every_family, far.port)] * 2, {})
        until(lambda: len(alone.provider_receipts()) == before + 2)
        near.cut()
        until(lambda: len(every_family.provider_receipts()) == before_through + 2)
        far.cut()
    assert directly.result().effects == [2, 2]
    assert directly.result().heard(1)
    assert through.result().effects == [1, 1]
    assert through.result().heard(0)


# --- refusals --------------------------------------------------------------------------------------------------------

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
