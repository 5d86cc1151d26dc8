"""The synthetic provider's dialects: event sequences as pure data, then the real SDKs straight at a real process."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from synthetic_provider.behaviour import parse
from synthetic_provider.filler import pieces
from synthetic_provider.formats import endpoint_of
from synthetic_provider.wire import Ask, Stream
from tests.harness.connections import dechunked, exchange, request_bytes
from tests.harness.processes import Process, start_provider
from tests.harness.sdks import sdk

RESPONSES = "/v1/responses"
STREAM = ":streamGenerateContent?alt=sse"
FLAT_TOOL: Any = {"type": "function", "name": "look", "parameters": {}, "strict": False}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    directory: Path = tmp_path_factory.mktemp("provider")
    process = start_provider(directory / "receipts.jsonl")
    yield process
    process.close()
    assert process.complained == ""


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def openai(provider: Process, clients: ExitStack) -> Any:
    base = f"http://127.0.0.1:{provider.port}/v1"
    return clients.enter_context(sdk("openai").OpenAI(api_key="k", base_url=base, max_retries=0))


def genai_client(provider: Process, **options: Any) -> Any:
    http_options = {"base_url": f"http://127.0.0.1:{provider.port}", **options}
    return sdk("google.genai").Client(api_key="k", http_options=http_options)


@pytest.fixture
def gemini(provider: Process, clients: ExitStack) -> Any:
    return clients.enter_context(genai_client(provider))


def stream_of(target: str, options: str, body: dict[str, Any] | None = None) -> Stream:
    """The parts of the stream that receipt 7 would get."""
    endpoint = endpoint_of("POST", target, ())
    assert endpoint.format.stream is not None
    at, model = datetime.fromtimestamp(1_800_000_000, UTC), f"synthetic/{options}"
    return endpoint.format.stream(Ask("POST", target, body or {}, 0, (), model, 7, at, parse(model)))


def events_of(marked: bytes) -> list[tuple[str | None, dict[str, Any]]]:
    """Each event's name and data; raises where a line is neither."""
    events = []
    for block in b"".join(pieces(marked)).decode().split("\n\n")[:-1]:
        *names, data = block.split("\n")
        assert data.startswith("data: ")
        events.append((names[0].removeprefix("event: ") if names else None, json.loads(data.removeprefix("data: "))))
    return events


def whole(stream: Stream) -> bytes:
    return stream.opening + b"".join(stream.chunks) + stream.ending


def test_responses_stream_has_the_events_of_the_api_in_order() -> None:
    """Named as their type, numbered without a gap, the call as an item of its own."""
    events = events_of(whole(stream_of(RESPONSES, "chunks=2,tool_call=1", {"tools": [FLAT_TOOL]})))
    assert [name for name, _ in events] == [data["type"] for _, data in events]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert [data["type"].removeprefix("response.") for _, data in events] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    deltas = [data["delta"] for _, data in events if data["type"] == "response.output_text.delta"]
    (message, call), text = events[-1][1]["response"]["output"], "".join(deltas)
    assert [part["text"] for part in message["content"]] == [text]
    assert text.startswith("receipt 7: ")
    assert (call["name"], call["arguments"]) == ("look", '{"receipt":7}')


def test_responses_in_band_error_is_numbered_after_its_deltas() -> None:
    """`response.failed` with the reason in the response, and no usage."""
    stream = stream_of(RESPONSES, "error_after=3")
    ((name, data),) = events_of(stream.error)
    assert (name, data["sequence_number"]) == ("response.failed", 7)
    assert (data["response"]["status"], data["response"]["usage"]) == ("failed", None)
    assert data["response"]["error"]["code"] == "server_error"
    assert "receipt 7" in data["response"]["error"]["message"]


def test_responses_stream_of_parts_completes_each_before_the_next() -> None:
    """Several messages, each an item of its own, as reasoning models write them; numbered without a gap, the call last."""
    events = events_of(whole(stream_of(RESPONSES, "chunks=5,parts=2,tool_call=1")))
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    items = [
        (data["type"].removeprefix("response.output_item."), data["output_index"])
        for _, data in events
        if "output_item" in data["type"]
    ]
    assert items == [(step, index) for index in range(3) for step in ("added", "done")]
    done = [data["item"] for _, data in events if data["type"] == "response.output_item.done"]
    assert events[-1][1]["response"]["output"] == done
    assert len({item["id"] for item in done}) == len(done)
    ((_, failed),) = events_of(stream_of(RESPONSES, "chunks=5,parts=2,error_after=4").error)
    sent = stream_of(RESPONSES, "chunks=5,parts=2")
    assert failed["sequence_number"] == len(events_of(sent.opening + b"".join(list(sent.chunks)[:4])))


def test_anthropic_stream_of_parts_is_the_message_of_parts(provider: Process, clients: ExitStack) -> None:
    """The SDK puts the blocks together; the whole answer has the same, with another receipt."""
    base = f"http://127.0.0.1:{provider.port}"
    anthropic = clients.enter_context(sdk("anthropic").Anthropic(api_key="k", base_url=base, max_retries=0))
    asked: Any = {
        "model": "synthetic/chunks=7,parts=3,tool_call=1",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
    }
    with anthropic.messages.stream(**asked) as stream:
        streamed = [block.to_dict() for block in stream.get_final_message().content]
    plain = [block.to_dict() for block in anthropic.messages.create(**asked).content]
    assert [block["type"] for block in streamed] == ["text", "text", "text", "tool_use"]
    assert [block.get("text") for block in streamed[1:]] == [block.get("text") for block in plain[1:]]


@pytest.mark.parametrize("options", ["chunks=3", "chunks=3,tool_call=1"])
def test_gemini_stream_ends_with_its_finish_reason_and_counts_up(options: str) -> None:
    """No event names, no terminal event; usage in each chunk, the last one's is all of it."""
    body = {
        "contents": [{"role": "user", "parts": [{"text": "one two"}]}],
        "systemInstruction": {"parts": [{"text": "a"}]},
    }
    events = events_of(whole(stream_of(f"/v1beta/models/synthetic{STREAM}", options, body)))
    assert {name for name, _ in events} == {None}
    candidates = [data["candidates"][0] for _, data in events]
    assert [candidate.get("finishReason") for candidate in candidates] == [None, None, None, "STOP"]
    counts = [data["usageMetadata"] for _, data in events]
    assert [count["candidatesTokenCount"] for count in counts] == [1, 2, 3, 3]
    assert {count["promptTokenCount"] for count in counts} == {3}
    call = candidates[-1]["content"]["parts"][0].get("functionCall")
    assert (call is not None) == ("tool_call" in options)


@pytest.mark.parametrize(
    ("options", "elements", "last"),
    [("chunks=3", 4, "candidates"), ("error_after=2", 3, "error"), ("error_after=0", 1, "error")],
)
def test_gemini_without_sse_is_one_json_array(provider: Process, options: str, elements: int, last: str) -> None:
    """However it ends; the answer's type says JSON, and an error's envelope is an array too."""
    raw = _asked(provider, f"/v1/models/synthetic/{options}:streamGenerateContent")
    assert b"\r\ncontent-type: application/json\r\n" in raw
    listed = json.loads(dechunked(raw)[0])
    assert (len(listed), next(iter(listed[-1]))) == (elements, last)
    refused = _asked(provider, "/v1/models/synthetic/status=429:streamGenerateContent").partition(b"\r\n\r\n")[2]
    assert json.loads(refused)[0]["error"]["status"] == "RESOURCE_EXHAUSTED"


def _asked(provider: Process, path: str) -> bytes:
    return exchange(provider.port, request_bytes(path, b"{}", {"connection": "close"}))


@pytest.mark.parametrize(
    ("target", "model"),
    [
        ("/v1/models/synthetic/cut=3,hold=5:generateContent", "synthetic/cut=3,hold=5"),
        ("/v1beta/models/synthetic%2Fcut%3D3%2Chold=5%3AgenerateContent", "synthetic/cut=3,hold=5"),
        ("/models/gemini-2.5-pro:generateContent?key=k", "gemini-2.5-pro"),
        ("/v1/projects/p/locations/l/publishers/google/models/synthetic/cut=3:generateContent", "synthetic/cut=3"),
        ("/v1beta1/projects/p/locations/l/publishers/synthetic/models/cut=3:generateContent", "synthetic/cut=3"),
        ("/v1beta1/publishers/google/models/synthetic:generateContent", "synthetic"),
        ("/v1/models/synthetic:noSuchMethod", None),
        ("/v1/chat/completions", None),
    ],
)
def test_path_names_the_gemini_model(target: str, model: str | None) -> None:
    """With or without a version, as Vertex writes it, quoted or not; only methods that are known."""
    assert endpoint_of("POST", target, ()).model == model


def test_openai_sdk_reads_responses(openai: Any) -> None:
    """Plain: ids of the receipt, text, call, counts; the token count agrees."""
    asked = {"model": "synthetic/chunks=4,tool_call=1", "instructions": "be brief", "input": "one two three"}
    raw = openai.responses.with_raw_response.create(**asked, tools=[FLAT_TOOL])
    answer, n = raw.parse(), int(raw.headers["x-synthetic-receipt"])
    assert (answer.id, answer.status, answer.instructions) == (f"resp_{n:024d}", "completed", "be brief")
    assert answer.output_text.startswith(f"receipt {n}: ")
    assert (answer.output[1].name, json.loads(answer.output[1].arguments)) == ("look", {"receipt": n})
    usage = answer.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (5, 4, 9)
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (0, 0)
    assert openai.responses.input_tokens.count(instructions="be brief", input="one two three").input_tokens == 5
    assert openai.responses.create(model="synthetic/usage=none", input="x").usage is None


def test_openai_sdk_accumulates_the_responses_stream(openai: Any) -> None:
    """The SDK's own accumulation ends with the answer that the last event carries."""
    with openai.responses.stream(model="synthetic/chunks=6,size=500,tool_call=1", input="hi") as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert (kinds.count("response.output_text.delta"), len(answer.output_text)) == (6, 500)
    assert [item.type for item in answer.output] == ["message", "function_call"]
    failing = list(openai.responses.create(model="synthetic/error_after=1", input="hi", stream=True))
    assert [event.type for event in failing[-2:]] == ["response.output_text.delta", "response.failed"]
    with pytest.raises(sdk("openai").RateLimitError, match="the status 429"):
        openai.responses.create(model="synthetic/status=429", input="hi")


def test_google_sdk_reads_answers_and_counts(gemini: Any) -> None:
    """The model's options reach us through the path; text, call, ids, counts and vectors are readable."""
    types, models = sdk("google.genai").types, gemini.models
    look = types.Tool(function_declarations=[types.FunctionDeclaration(name="look")])
    config = types.GenerateContentConfig(tools=[look], system_instruction="be brief")
    answer = models.generate_content(model="synthetic/chunks=4,tool_call=1", contents="one two three", config=config)
    n = int(answer.response_id)
    assert answer.text.startswith(f"receipt {n}: ")
    assert answer.model_version == "synthetic/chunks=4,tool_call=1"
    assert [(call.name, call.args) for call in answer.function_calls] == [("look", {"receipt": n})]
    usage = answer.usage_metadata
    assert (usage.prompt_token_count, usage.candidates_token_count, usage.total_token_count) == (5, 4, 9)
    assert models.count_tokens(model="synthetic", contents="one two three").total_tokens == 3
    embedded = models.embed_content(model="synthetic", contents=["a", "b"], config={"output_dimensionality": 3})
    assert [vector.values[1:] for vector in embedded.embeddings] == [[0.0, 0.5], [1.0, 0.5]]


@pytest.mark.parametrize("version", ["v1", "v1beta"])
async def test_google_sdk_reads_streams_sync_and_async(provider: Process, clients: ExitStack, version: str) -> None:
    """The same pieces either way, and the finish with all usage in the last."""
    client = clients.enter_context(genai_client(provider, api_version=version))
    asked = {"model": "synthetic/chunks=6,size=500", "contents": "hi"}
    sync_chunks = list(client.models.generate_content_stream(**asked))
    async with client.aio as aio:
        plain = await aio.models.generate_content(**asked)
        async_chunks = [chunk async for chunk in await aio.models.generate_content_stream(**asked)]
    for chunks in (sync_chunks, async_chunks):
        texts = [chunk.text for chunk in chunks]
        assert (len(texts), len("".join(texts))) == (7, 500)
        finishes = [chunk.candidates[0].finish_reason for chunk in chunks]
        assert (finishes[:-1], finishes[-1].value) == ([None] * 6, "STOP")
        assert chunks[-1].usage_metadata.total_token_count == plain.usage_metadata.total_token_count == 7
    assert len(plain.text) == 500


@pytest.mark.parametrize(
    ("options", "code", "status"),
    [
        ("cut=x", 400, "INVALID_ARGUMENT"),
        ("status=429", 429, "RESOURCE_EXHAUSTED"),
        ("error_after=2", 503, "UNAVAILABLE"),
    ],
)
def test_google_sdk_raises_the_error(gemini: Any, options: str, code: int, status: str) -> None:
    """Envelopes and in-band errors are read, with what came before them."""
    seen: list[Any] = []
    with pytest.raises(sdk("google.genai.errors").APIError) as raised:
        seen.extend(gemini.models.generate_content_stream(model=f"synthetic/{options}", contents="hi"))
    assert (raised.value.code, raised.value.status) == (code, status)
    assert len(seen) == (2 if "error_after" in options else 0)


def test_openai_sdk_uploads_a_file_and_is_told_its_size(openai: Any) -> None:
    """The file part's bytes, whatever is in them; the model that a test adds asks for a fault."""
    content = b"\r\n--not the boundary\r\n\x00\xff" * 1000
    uploaded = openai.files.create(file=('quo"te ä.bin', content), purpose="batch")
    assert (uploaded.bytes, uploaded.purpose, uploaded.status) == (len(content), "batch", "processed")
    assert uploaded.filename.endswith("ä.bin")
    assert uploaded.id.startswith("file-0")
    upload = openai.uploads.create(bytes=9, filename="a", mime_type="text/plain", purpose="batch")
    assert (upload.bytes, upload.status) == (9, "pending")
    with pytest.raises(sdk("openai").InternalServerError, match="the status 500"):
        openai.files.create(file=("a", b"b"), purpose="batch", extra_body={"model": "synthetic/status=500"})


def test_openai_sdk_transcribes_speaks_and_moderates(openai: Any) -> None:
    """The form's model and stream flag are read; JSON, text, events and sound come back."""
    asked: Any = {"model": "synthetic/chunks=3,size=90", "file": ("a.wav", b"RIFF" * 5)}
    whole_answer = openai.audio.transcriptions.create(**asked, prompt="one two")
    assert len(whole_answer.text) == 90
    usage = whole_answer.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (22, 3, 25)
    assert len(openai.audio.transcriptions.create(**asked, response_format="text").rstrip("\n")) == 90
    events = list(openai.audio.transcriptions.create(**asked, stream=True))
    assert [event.type for event in events] == ["transcript.text.delta"] * 3 + ["transcript.text.done"]
    assert "".join(event.delta for event in events[:-1]) == events[-1].text
    spoken = openai.audio.speech.create(model="synthetic/size=70001", input="hi", voice="alloy")
    assert (spoken.response.headers["content-type"], len(spoken.content)) == ("audio/mpeg", 70001)
    with pytest.raises(UnicodeDecodeError):
        spoken.content.decode()
    judged = openai.moderations.create(model="synthetic", input=["a", "b"])
    assert [(result.flagged, result.categories.self_harm) for result in judged.results] == [(False, False)] * 2
