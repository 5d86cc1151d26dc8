"""Each endpoint through its stock SDK, unmodified but for the base URL: the right answer, one effect, a whole record."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from synthetic_provider.filler import pieces
from synthetic_provider.openai_files_wire import AUDIO_MARK
from synthetic_provider.wire import content_text
from tests.harness.crashes import completed, records_of
from tests.harness.processes import Rig
from tests.harness.sdks import anthropic_client, genai_client, openai_client
from tests.harness.sent_answers import ask_of

MODEL: Final = "synthetic/hold=0.01,chunks=4,size=700"  # Gemini's stands in the path, its `/`, `=` and `,` as they are
SOUND: Final = ("a.wav", b"RIFF\r\n--\x00\xff" * 50)


@dataclass(frozen=True)
class Seen:
    """What the program has in its hands. `usage` under the provider's names; `call` where the SDK shows headers."""

    content: str | bytes
    usage: Mapping[str, int] = field(default_factory=dict)
    call: str | None = None


def counts(usage: Any, *names: str) -> dict[str, int]:
    return {name: getattr(usage, name) for name in names}


CHAT_COUNTS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")
COUNTS: Final = ("input_tokens", "output_tokens")


def call_of(raw: Any) -> str:
    return str(raw.headers["sendonce-call"])


# --- openai ----------------------------------------------------------------------------------------------------------


def chat(rig: Rig, prompt: str) -> Seen:
    messages = [{"role": "user", "content": prompt}]
    raw = openai_client(rig).chat.completions.with_raw_response.create(model=MODEL, messages=messages)
    answer = raw.parse()
    return Seen(answer.choices[0].message.content, counts(answer.usage, *CHAT_COUNTS), call_of(raw))


def chat_stream(rig: Rig, prompt: str) -> Seen:
    raw = openai_client(rig).chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(raw.parse())
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return Seen(text, counts(chunks[-1].usage, *CHAT_COUNTS), call_of(raw))


def responses(rig: Rig, prompt: str) -> Seen:
    raw = openai_client(rig).responses.with_raw_response.create(model=MODEL, input=prompt)
    answer = raw.parse()
    return Seen(answer.output_text, counts(answer.usage, *COUNTS, "total_tokens"), call_of(raw))


def responses_stream(rig: Rig, prompt: str) -> Seen:
    with openai_client(rig).responses.stream(model=MODEL, input=prompt) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        answer = stream.get_final_response()
    assert answer.output_text == text
    return Seen(text, counts(answer.usage, *COUNTS, "total_tokens"))


def responses_async(rig: Rig, prompt: str) -> Seen:
    async def ask() -> Seen:
        async with openai_client(rig, "AsyncOpenAI") as client:
            events = await client.responses.create(model=MODEL, input=prompt, stream=True)
            seen = [event async for event in events]
        return Seen(seen[-1].response.output_text, counts(seen[-1].response.usage, *COUNTS, "total_tokens"))

    return asyncio.run(ask())


def embeddings(rig: Rig, prompt: str) -> Seen:
    """The first number of a synthetic vector is its receipt's."""
    raw = openai_client(rig).embeddings.with_raw_response.create(model=MODEL, input=[prompt], dimensions=3)
    answer = raw.parse()
    return Seen(str(answer.data[0].embedding), counts(answer.usage, "prompt_tokens", "total_tokens"), call_of(raw))


def upload(rig: Rig, prompt: str) -> Seen:
    raw = openai_client(rig).files.with_raw_response.create(file=(prompt, SOUND[1]), purpose="batch")
    answer = raw.parse()
    assert (answer.bytes, answer.purpose) == (len(SOUND[1]), "batch")
    return Seen(answer.filename, call=call_of(raw))


def transcription(rig: Rig, prompt: str) -> Seen:
    raw = openai_client(rig).audio.transcriptions.with_raw_response.create(model=MODEL, file=SOUND, prompt=prompt)
    answer = raw.parse()
    return Seen(answer.text, counts(answer.usage, *COUNTS, "total_tokens"), call_of(raw))


def transcription_stream(rig: Rig, prompt: str) -> Seen:
    events = list(openai_client(rig).audio.transcriptions.create(model=MODEL, file=SOUND, prompt=prompt, stream=True))
    assert events[-1].type == "transcript.text.done"
    text = "".join(event.delta for event in events[:-1])
    return Seen(text, counts(events[-1].usage, *COUNTS, "total_tokens"))


def speech(rig: Rig, prompt: str) -> Seen:
    """Sound: its first four bytes are no UTF-8."""
    raw = openai_client(rig).audio.speech.with_raw_response.create(model=MODEL, input=prompt, voice="alloy")
    return Seen(raw.content, call=call_of(raw))


# --- anthropic -------------------------------------------------------------------------------------------------------


def asked(prompt: str) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": prompt}]}


def messages(rig: Rig, prompt: str) -> Seen:
    raw = anthropic_client(rig).messages.with_raw_response.create(**asked(prompt))
    answer = raw.parse()
    return Seen(answer.content[0].text, counts(answer.usage, *COUNTS), call_of(raw))


def messages_stream(rig: Rig, prompt: str) -> Seen:
    with anthropic_client(rig).messages.stream(**asked(prompt)) as stream:
        text = "".join(stream.text_stream)
        return Seen(text, counts(stream.get_final_message().usage, *COUNTS), call_of(stream.response))


# --- google-genai ----------------------------------------------------------------------------------------------------


def of_gemini(text: str, answer: Any) -> Seen:
    usage, headers = answer.usage_metadata, answer.sdk_http_response.headers
    named = {"promptTokenCount": usage.prompt_token_count, "totalTokenCount": usage.total_token_count}
    return Seen(text, named, {name.lower(): value for name, value in headers.items()}.get("sendonce-call"))


def gemini(rig: Rig, prompt: str) -> Seen:
    with genai_client(rig) as client:
        answer = client.models.generate_content(model=MODEL, contents=prompt)
    return of_gemini(answer.text, answer)


def gemini_stream(rig: Rig, prompt: str) -> Seen:
    with genai_client(rig) as client:
        chunks = list(client.models.generate_content_stream(model=MODEL, contents=prompt))
    return of_gemini("".join(chunk.text for chunk in chunks), chunks[-1])


def gemini_async(rig: Rig, prompt: str) -> Seen:
    async def ask() -> Seen:
        async with genai_client(rig).aio as client:
            answer = await client.models.generate_content(model=MODEL, contents=prompt)
        return of_gemini(answer.text, answer)

    return asyncio.run(ask())


def gemini_async_stream(rig: Rig, prompt: str) -> Seen:
    async def ask() -> Seen:
        async with genai_client(rig).aio as client:
            stream = await client.models.generate_content_stream(model=MODEL, contents=prompt)
            chunks = [chunk async for chunk in stream]
        return of_gemini("".join(chunk.text for chunk in chunks), chunks[-1])

    return asyncio.run(ask())


# --- the table -------------------------------------------------------------------------------------------------------

# ask -> the dialect on record, whether a stream was asked for
TABLE: Final[dict[Callable[[Rig, str], Seen], tuple[str, bool]]] = {
    chat: ("openai_chat", False),
    chat_stream: ("openai_chat", True),
    responses: ("openai_responses", False),
    responses_stream: ("openai_responses", True),
    responses_async: ("openai_responses", True),
    embeddings: ("generic", False),
    upload: ("generic", False),
    transcription: ("generic", False),
    transcription_stream: ("generic", True),
    speech: ("generic", False),
    messages: ("anthropic_messages", False),
    messages_stream: ("anthropic_messages", True),
    gemini: ("gemini", False),
    gemini_stream: ("gemini", True),
    gemini_async: ("gemini", False),
    gemini_async_stream: ("gemini", True),
}

SHOWS_NO_HEADERS: Final = {responses_stream, responses_async, transcription_stream}


def expected(ask: Callable[[Rig, str], Seen], receipt: dict[str, Any], prompt: str) -> str | bytes:
    """What the provider put into the answer to this receipt."""
    if ask is upload:
        return prompt
    if ask is embeddings:
        return str([float(receipt["n"]), 0.0, 0.5])
    sound = ask is speech
    content = content_text(ask_of(receipt), len(AUDIO_MARK) if sound else 0)
    sent = b"".join(pieces(content.encode()))
    return AUDIO_MARK + sent if sound else sent.decode()


@pytest.mark.parametrize("ask", TABLE, ids=lambda ask: ask.__name__)
def test_stock_sdk_gets_the_answer_and_the_record_says_the_same(
    every_family: Rig, ask: Callable[[Rig, str], Seen]
) -> None:
    """One effect; dialect, model, usage, stage and effect on record; the bytes recorded are those the provider got."""
    dialect, stream = TABLE[ask]
    before, prompt = len(every_family.provider_receipts()), f"say it to {ask.__name__}"
    seen = ask(every_family, prompt)
    row = completed(every_family)
    (receipt,) = every_family.provider_receipts()[before:]
    assert seen.content == expected(ask, receipt, prompt)
    assert seen.call == (None if ask in SHOWS_NO_HEADERS else row["call_id"])
    assert records_of(every_family, row["call_id"], "call.requested")[0]["dialect"] == dialect
    assert (row["effect"], row["outcome"], row["stream"]) == ("happened", "succeeded", stream)
    assert row["model"] == receipt["model"] == (None if ask is upload else MODEL)
    assert row["body_blake3"] == receipt["body_blake3"]
    recorded = row["usage"] or {}
    assert {name: recorded.get(name) for name in seen.usage} == seen.usage
