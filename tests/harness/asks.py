"""One question to a stock SDK and what it said, in the same words for Python and Node, so that one table holds them all."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from synthetic_provider.filler import pieces
from synthetic_provider.wire import content_text
from tests.harness import node
from tests.harness.processes import Rig
from tests.harness.sdks import API_KEY, sdk
from tests.harness.sent_answers import ask_of

MAX_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of an SDK; None leaves the SDK's default."""

    base_url: str
    model: str = "synthetic"
    prompt: str = "hello"
    stream: bool = False
    timeout_s: float | None = None
    max_retries: int | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """The text that the program got, or the exception that it saw."""

    text: str | None = None
    error: str | None = None  # the name of its class
    status: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Client:
    """An SDK as a program uses it."""

    upstream: str
    suffix: str  # what its base URL has behind the provider's root
    ask_each: Callable[[Sequence[Ask]], list[Said]]  # one after another, in one process

    def ask(self, asked: Ask) -> Said:
        (said,) = self.ask_each([asked])
        return said

    def through(self, rig: Rig, port: int | None = None) -> str:
        """Its base URL at the proxy, or at a relay before it."""
        return f"http://127.0.0.1:{port or rig.port}/{self.upstream}{self.suffix}"

    def direct(self, rig: Rig, port: int | None = None) -> str:
        """Its base URL at the provider itself, or at a relay before it."""
        return f"http://127.0.0.1:{port or rig.provider_process.port}{self.suffix}"


def text_of(receipt: dict[str, Any]) -> str:
    """The content text that the provider sent for this receipt, and for no other."""
    return b"".join(pieces(content_text(ask_of(receipt)).encode())).decode()


# --- Python ----------------------------------------------------------------------------------------------------------


def _options(asked: Ask) -> dict[str, Any]:
    """As the two SDKs name them that Stainless makes."""
    given = {"timeout": asked.timeout_s, "max_retries": asked.max_retries}
    return {"base_url": asked.base_url, "api_key": API_KEY} | {
        name: value for name, value in given.items() if value is not None
    }


def _messages(asked: Ask) -> dict[str, Any]:
    return {"model": asked.model, "messages": [{"role": "user", "content": asked.prompt}]}


def _of_chunk(chunk: Any) -> str:
    return (chunk.choices[0].delta.content if chunk.choices else None) or ""


def _openai_chat(asked: Ask) -> str:
    with sdk("openai").OpenAI(**_options(asked)) as client:
        answer = client.chat.completions.create(**_messages(asked), stream=asked.stream)
        return "".join(map(_of_chunk, answer)) if asked.stream else str(answer.choices[0].message.content)


async def _openai_async(asked: Ask) -> str:
    async with sdk("openai").AsyncOpenAI(**_options(asked)) as client:
        answer = await client.chat.completions.create(**_messages(asked), stream=asked.stream)
        if asked.stream:
            return "".join([_of_chunk(chunk) async for chunk in answer])
        return str(answer.choices[0].message.content)


def _openai_responses(asked: Ask) -> str:
    with sdk("openai").OpenAI(**_options(asked)) as client:
        answer = client.responses.create(model=asked.model, input=asked.prompt, stream=asked.stream)
        if not asked.stream:
            return str(answer.output_text)
        return "".join(event.delta for event in answer if event.type == "response.output_text.delta")


def _anthropic(asked: Ask) -> str:
    with sdk("anthropic").Anthropic(**_options(asked)) as client:
        answer = client.messages.create(**_messages(asked), max_tokens=MAX_TOKENS, stream=asked.stream)
        if not asked.stream:
            return str(answer.content[0].text)
        return "".join(event.delta.text for event in answer if event.type == "content_block_delta")


async def _anthropic_async(asked: Ask) -> str:
    async with sdk("anthropic").AsyncAnthropic(**_options(asked)) as client:
        answer = await client.messages.create(**_messages(asked), max_tokens=MAX_TOKENS, stream=asked.stream)
        if not asked.stream:
            return str(answer.content[0].text)
        return "".join([event.delta.text async for event in answer if event.type == "content_block_delta"])


def _genai(asked: Ask) -> Any:
    """Without `retry_options` the asynchronous client re-sends once by itself; with them they alone decide."""
    options: dict[str, Any] = {"base_url": asked.base_url}
    if asked.timeout_s is not None:
        options["timeout"] = int(asked.timeout_s * 1000)
    if asked.max_retries is not None:
        options["retry_options"] = {"attempts": asked.max_retries + 1, "initial_delay": 0.5, "jitter": 0}
    return sdk("google.genai").Client(api_key=API_KEY, http_options=options)


def _gemini(asked: Ask) -> str:
    with _genai(asked) as client:
        if asked.stream:
            chunks = client.models.generate_content_stream(model=asked.model, contents=asked.prompt)
            return "".join(chunk.text for chunk in chunks)
        return str(client.models.generate_content(model=asked.model, contents=asked.prompt).text)


async def _gemini_async(asked: Ask) -> str:
    async with _genai(asked).aio as client:
        if asked.stream:
            chunks = await client.models.generate_content_stream(model=asked.model, contents=asked.prompt)
            return "".join([chunk.text async for chunk in chunks])
        return str((await client.models.generate_content(model=asked.model, contents=asked.prompt)).text)


def _each(ask: Callable[[Ask], Any], asks: Sequence[Ask]) -> list[Said]:
    """What came back, exceptions included, whatever their class: an SDK may raise those of its HTTP library."""

    def outcome(asked: Ask) -> Any:
        answer = ask(asked)
        return asyncio.run(answer) if asyncio.iscoroutine(answer) else answer

    said = []
    with ThreadPoolExecutor(1) as thread:
        for asked in asks:
            asking = thread.submit(outcome, asked)
            error = asking.exception()
            if error is None:
                said.append(Said(asking.result()))
            elif not isinstance(error, Exception):
                raise error  # pytest's own: the SDK is not installed
            else:
                status = getattr(error, "status_code", None) or getattr(error, "code", None)
                said.append(Said(None, type(error).__name__, status, str(error)))
    return said


def _python(upstream: str, suffix: str, ask: Callable[[Ask], Any]) -> Client:
    return Client(upstream, suffix, partial(_each, ask))


# --- Node ------------------------------------------------------------------------------------------------------------


def _in_node(name: str, asks: Sequence[Ask]) -> list[Said]:
    told = node.run(
        {
            "sdk": name,
            "base_url": asked.base_url,
            "api_key": API_KEY,
            "model": asked.model,
            "prompt": asked.prompt,
            "stream": asked.stream,
            "timeout_s": asked.timeout_s,
            "max_retries": asked.max_retries,
        }
        for asked in asks
    )
    return [Said(**line) for line in told]


def _node(upstream: str, suffix: str, name: str) -> Client:
    return Client(upstream, suffix, partial(_in_node, name))


CLIENTS: Final = {
    "openai_chat": _python("openai", "/v1", _openai_chat),
    "openai_async": _python("openai", "/v1", _openai_async),
    "openai_responses": _python("openai", "/v1", _openai_responses),
    "anthropic": _python("anthropic", "", _anthropic),
    "anthropic_async": _python("anthropic", "", _anthropic_async),
    "gemini": _python("gemini", "", _gemini),
    "gemini_async": _python("gemini", "", _gemini_async),
    "node_openai_chat": _node("openai", "/v1", "openai_chat"),
    "node_openai_responses": _node("openai", "/v1", "openai_responses"),
    "node_anthropic": _node("anthropic", "", "anthropic"),
    "node_gemini": _node("gemini", "", "gemini"),
}
