"""A program whose answer broke off asks again in the other form: a recorded stream is told as JSON, exactly; the reverse is refused."""

import itertools
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.harness.crashes import completed
from tests.harness.processes import Rig, until
from tests.harness.relay import relaying
from tests.harness.sdks import API_KEY, sdk

HELD: Final = "synthetic/hold=1"  # until the relay has cut
RETRIES: Final = 2
TIMES: Final = {"created", "created_at", "completed_at"}  # of the receipt, as its number is
SHOWS_HEADERS: Final = {"sdk_http_response"}  # google-genai's object alone

_PROMPTS: Final = (f"question {number}" for number in itertools.count(1))


def openai_client(root: str, retries: int) -> Any:
    return sdk("openai").OpenAI(base_url=f"{root}/v1", api_key=API_KEY, max_retries=retries)


def chat(root: str, prompt: str, retries: int, *, stream: bool) -> Any:
    """In a stream the usage comes only where it is asked for."""
    asked = {"model": HELD, "messages": [{"role": "user", "content": prompt}]}
    with openai_client(root, retries) as client:
        if stream:
            return list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        return client.chat.completions.create(**asked)


def responses(root: str, prompt: str, retries: int, *, stream: bool) -> Any:
    with openai_client(root, retries) as client:
        answer = client.responses.create(model=HELD, input=prompt, stream=stream)
        return list(answer) if stream else answer


def messages(root: str, prompt: str, retries: int, *, stream: bool) -> Any:
    asked = {"model": HELD, "max_tokens": 64, "messages": [{"role": "user", "content": prompt}]}
    with sdk("anthropic").Anthropic(base_url=root, api_key=API_KEY, max_retries=retries) as client:
        answer = client.messages.create(**asked, stream=stream)
        return list(answer) if stream else answer


def gemini(root: str, prompt: str, retries: int, *, stream: bool) -> Any:
    options = {"base_url": root, "retry_options": {"attempts": retries + 1}}
    with sdk("google.genai").Client(api_key=API_KEY, http_options=options) as client:
        if stream:
            return list(client.models.generate_content_stream(model=HELD, contents=prompt))
        return client.models.generate_content(model=HELD, contents=prompt)


# ask(base URL, prompt, retries, stream=): the SDK's object, or those of the stream -> its upstream
ASKS: Final[dict[Callable[..., Any], str]] = {chat: "openai", responses: "openai", messages: "anthropic"}


def cut_short(rig: Rig, ask: Callable[..., Any], upstream: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
    """A client loses its connection while the provider holds. The prompt and the provider receipt, once the answer is recorded."""
    before, prompt = len(rig.provider_receipts()), next(_PROMPTS)
    with relaying(rig.port) as relay, ThreadPoolExecutor() as pool:
        asking = pool.submit(ask, f"http://127.0.0.1:{relay.port}/{upstream}", prompt, 0, stream=stream)
        until(lambda: len(rig.provider_receipts()) > before)
        relay.cut()
        assert asking.exception() is not None
    completed(rig)
    (receipt,) = rig.provider_receipts()[before:]
    return prompt, receipt


def apart_from_receipt(answer: Any, receipt: dict[str, Any]) -> Any:
    """The SDK's object as data, without what tells one receipt from another: its number in ids and text, and the times."""
    told = {name: value for name, value in answer.model_dump(mode="json").items() if name not in TIMES | SHOWS_HEADERS}
    text, found = re.subn(rf"(receipt |[a-z]+[_-]0+){receipt['n']}\b", r"\1N", json.dumps(told))
    assert found >= 2  # its id, and its text
    return json.loads(text)


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.__name__)
def test_cut_stream_asked_again_whole_is_exactly_the_json_of_the_first_answer(
    every_family: Rig, ask: Callable[..., Any]
) -> None:
    """One receipt; nothing but the receipt tells the SDK's object from the one that the provider itself gives for JSON."""
    upstream = ASKS[ask]
    prompt, receipt = cut_short(every_family, ask, upstream, stream=True)
    answer = ask(f"{every_family.url}/{upstream}", prompt, RETRIES, stream=False)
    assert every_family.provider_receipts()[-1] == receipt
    direct = ask(every_family.provider_url, prompt, RETRIES, stream=False)
    its_own = every_family.provider_receipts()[-1]
    assert apart_from_receipt(answer, receipt) == apart_from_receipt(direct, its_own)


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.__name__)
def test_cut_json_asked_again_as_stream_is_refused_at_once(every_family: Rig, ask: Callable[..., Any]) -> None:
    """JSON does not tell how it would have streamed. The SDK may retry and does not: one request of it, no new receipt."""
    upstream, log = ASKS[ask], every_family.state_dir / "activity.log"
    prompt, receipt = cut_short(every_family, ask, upstream, stream=False)
    before = len(log.read_text().splitlines())
    with pytest.raises(sdk(upstream).APIStatusError, match="is kept in another form"):
        ask(f"{every_family.url}/{upstream}", prompt, RETRIES, stream=True)
    (line,) = map(json.loads, log.read_text().splitlines()[before:])
    assert (line["what"], line["code"]) == ("refused", "form_differs")
    assert every_family.provider_receipts()[-1] == receipt


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_other_form_of_gemini_is_another_request(every_family: Rig, stream: bool) -> None:
    """Its forms are two endpoints, so the second call is no retry of the first; in its own form it is."""
    prompt, receipt = cut_short(every_family, gemini, "gemini", stream=not stream)
    through = f"{every_family.url}/gemini"
    gemini(through, prompt, RETRIES, stream=not stream)
    assert every_family.provider_receipts()[-1] == receipt
    gemini(through, prompt, RETRIES, stream=stream)
    assert every_family.provider_receipts()[-1]["n"] == receipt["n"] + 1
