"""The synthetic provider as its users meet it: a real process on loopback, raw sockets and the real SDKs."""

import gzip
import json
import math
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from blake3 import blake3

from synthetic_provider.behaviour import Behaviour, Reset, parse
from tests.harness.connections import readable

ROOT = Path(__file__).parents[2]
PATIENCE_S = 20.0
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
END_OF_CHUNKS = b"0\r\n\r\n"
MID_STREAM = b"}\n\n\r\n"  # an event and its HTTP chunk are whole, nothing follows
TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {}}}]


@dataclass
class Wire:
    """What a raw client saw of one answer."""

    raw: bytes
    reset: bool

    def __post_init__(self) -> None:
        head, _, self.body = self.raw.partition(b"\r\n\r\n")
        self.status = int(head.split(b" ", 2)[1]) if head else None
        self.headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line)


@dataclass
class Provider:
    """One process, its receipts and the clients of it that the test's end closes."""

    process: subprocess.Popen[str]
    url: str
    receipts_file: Path
    clients: ExitStack

    def receipts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.receipts_file.read_text().split("\n")[:-1]]

    def connect(self, raw: bytes) -> socket.socket:
        port = int(self.url.rsplit(":", 1)[1])
        client = self.clients.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
        client.sendall(raw)
        return client

    def ask(self, path: str, body: dict[str, Any], **headers: str) -> Wire:
        return read_to_end(self.connect(post(path, body, connection="close", **headers)))

    def openai(self) -> Any:
        return self.clients.enter_context(openai.OpenAI(api_key="k", base_url=f"{self.url}/v1", max_retries=0))

    def anthropic(self) -> Any:
        return self.clients.enter_context(anthropic.Anthropic(api_key="k", base_url=self.url, max_retries=0))

    def end(self, by: signal.Signals) -> int:
        self.process.send_signal(by)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Provider]]:
    """Start providers over the same receipts file; none may have written to stderr (where asyncio reports our bugs)."""
    file, errors = tmp_path / "provider-receipts.jsonl", tmp_path / "stderr"
    command = [sys.executable, "-m", "synthetic_provider", "--port", "0", "--receipts", str(file)]
    with ExitStack() as stack, errors.open("w") as stderr:

        def run(*options: str) -> Provider:
            started = subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True)
            process = stack.enter_context(started)
            stack.callback(process.kill)
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("synthetic provider on ").strip()
            return Provider(process, url, file, stack.enter_context(ExitStack()))

        yield run
    assert errors.read_text() == ""


@pytest.fixture
def provider(start: Callable[..., Provider]) -> Provider:
    return start()


def post(path: str, body: dict[str, Any], **headers: str) -> bytes:
    payload = json.dumps(body).encode()
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(payload)}\r\n{''.join(lines)}\r\n"
    return head.encode() + payload


def read_to_end(client: socket.socket) -> Wire:
    raw, reset = bytearray(), False
    try:
        while piece := client.recv(65536):
            raw += piece
    except ConnectionResetError:
        reset = True
    return Wire(bytes(raw), reset)


def chat(options: str = "", *, stream: bool = False, words: str = "one two three") -> dict[str, Any]:
    body = {"model": f"synthetic/{options}", "messages": [{"role": "user", "content": words}]}
    return body | {"stream": True} if stream else body


def test_model_name_is_parsed_to_its_behaviour() -> None:
    """Options combine; unknown ones are kept for the echo; other models are plain."""
    assert parse("") == parse("gpt-5/hold=5") == parse("synthetic") == Behaviour()
    combined = Behaviour(hold_s=math.inf, status=529, reset=Reset.MID, usage=False, size_bytes=9)
    assert parse("synthetic/hold=forever,status=529,reset=mid,usage=none,size=9") == combined
    assert parse("synthetic/turbo=1,delay=0.2,new") == Behaviour(delay_s=0.2, unknown=("turbo=1", "new"))


@pytest.mark.parametrize("option", ["hold=-1", "delay=nan", "cut=x", "status=200", "redirect=304", "reset=x", "gzip="])
def test_malformed_value_names_the_option(option: str) -> None:
    """A known option with an impossible value is an error that names it."""
    with pytest.raises(ValueError, match=f"option '{option.partition('=')[0]}'"):
        parse(f"synthetic/{option}")


def test_openai_chat_plain_names_receipt_ids_usage_and_tool(provider: Provider) -> None:
    """Text, header, ids and counts are those of the receipt and the request; the call is of the first tool offered."""
    body = chat("chunks=4,turbo=1,tool_call=1") | {"tools": TOOLS}
    raw = provider.openai().chat.completions.with_raw_response.create(**body)
    answer = raw.parse()
    (choice,) = answer.choices
    assert choice.message.content.startswith("receipt 1: unknown option turbo=1. ")
    assert choice.message.tool_calls[0].function.to_dict() == {"name": "look", "arguments": '{"receipt":1}'}
    assert choice.finish_reason == "tool_calls"
    assert (raw.headers["x-synthetic-receipt"], raw.headers["x-request-id"]) == ("1", "req_000000000000000000000001")
    assert (answer.id, answer.model) == ("chatcmpl-000000000000000000000001", "synthetic/chunks=4,turbo=1,tool_call=1")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 4, 7)


def test_openai_chat_stream_has_chunks_tool_call_and_usage_when_asked(provider: Provider) -> None:
    """Seven content chunks, the call, one finish; usage only in a last chunk without choices, and only if asked for."""
    body = chat("chunks=7,tool_call=1", stream=True) | {"stream_options": {"include_usage": True}}
    completions = provider.openai().chat.completions
    chunks = list(completions.create(**body, tools=TOOLS))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    pieces = [choice.delta.content for choice in choices if choice.delta.content]
    assert (pieces[0], len(pieces)) == ("receipt 1: ", 7)
    calls = [call.function for choice in choices for call in choice.delta.tool_calls or []]
    assert (calls[0].name, "".join(call.arguments for call in calls)) == ("look", '{"receipt":1}')
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["tool_calls"]
    assert [bool(chunk.usage) for chunk in chunks] == [False] * 11 + [True]
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (3, 7)
    for unmetered in (chat(stream=True), body | {"model": "synthetic/usage=none"}):
        assert not [chunk for chunk in completions.create(**unmetered) if chunk.usage]


def test_openai_embeddings_and_models_are_readable(provider: Provider) -> None:
    """Vectors begin with the receipt's number in both encodings; one model is listed."""
    client = provider.openai()
    packed = client.embeddings.create(model="synthetic", input=["a b", "c"])
    floats = client.embeddings.create(model="synthetic", input="a b", encoding_format="float", dimensions=3)
    assert [e.embedding[:2] for e in packed.data] == [[1.0, 0.0], [1.0, 1.0]]
    assert (packed.usage.prompt_tokens, floats.usage.prompt_tokens) == (3, 2)
    assert [e.embedding for e in floats.data] == [[2.0, 0.0, 0.5]]
    listed = [*client.models.list(), *provider.anthropic().models.list()]
    assert [model.id for model in listed] == ["synthetic", "synthetic"]


def test_anthropic_plain_has_receipt_ids_and_usage(provider: Provider) -> None:
    """Text, ids and counts; count_tokens agrees with the message's input tokens."""
    client = provider.anthropic()
    raw = client.messages.with_raw_response.create(max_tokens=9, system="be brief", **chat("chunks=2"))
    message = raw.parse()
    assert message.content[0].text.startswith("receipt 1: ")
    assert (message.id, message.stop_reason) == ("msg_000000000000000000000001", "end_turn")
    assert raw.headers["request-id"] == "req_000000000000000000000001"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 2)
    assert client.messages.count_tokens(system="be brief", **chat()).input_tokens == 5


def test_anthropic_stream_accumulates_to_the_plain_answer(provider: Provider) -> None:
    """The SDK's own accumulation gives what the plain answer gives, tool call included."""
    body = chat("chunks=6,tool_call=1,size=500") | {"max_tokens": 9}
    with provider.anthropic().messages.stream(**body) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert (kinds[0], kinds.count("text"), kinds[-1]) == ("message_start", 6, "message_stop")
    text, call = message.content
    assert (len(text.text), call.input, message.stop_reason) == (500, {"receipt": 1}, "tool_use")
    plain = provider.anthropic().messages.create(**body)
    assert [block.type for block in plain.content] == ["text", "tool_use"]
    assert message.usage.output_tokens == plain.usage.output_tokens == 6


@pytest.mark.parametrize(
    ("path", "option", "error", "text", "seen"),
    [
        (CHAT, "cut=x", openai.BadRequestError, "option 'cut'", 0),
        (CHAT, "status=429", openai.RateLimitError, "receipt 1: the status 429", 0),
        (CHAT, "error_after=2", openai.APIError, "receipt 1: the in-band error", 3),
        (MESSAGES, "cut=x", anthropic.BadRequestError, "option 'cut'", 0),
        (MESSAGES, "status=529", anthropic.APIStatusError, "overloaded_error.*receipt 1: the status 529", 0),
        (MESSAGES, "error_after=2", anthropic.APIStatusError, "receipt 1: the in-band error", 4),
    ],
)
def test_sdk_raises_the_error(provider: Provider, path: str, option: str, error: Any, text: str, seen: int) -> None:
    """Envelopes and in-band errors are read by the dialect's SDK, after the events before it; one receipt each."""
    create = provider.openai().chat.completions.create if path == CHAT else provider.anthropic().messages.create
    events: list[Any] = []
    with pytest.raises(error, match=text):
        events.extend(create(max_tokens=9, **chat(option, stream=True)))
    assert len(events) == seen
    assert len(provider.receipts()) == 1


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("option", ["cut=3", "reset=mid", "clean_cut=3"])
def test_cut_stream_has_three_of_six_chunks_and_no_end(provider: Provider, path: str, option: str) -> None:
    """FIN or RST within the framing, or whole framing; never a finish or a terminal event."""
    wire = provider.ask(path, chat(f"{option},chunks=6", stream=True))
    assert (wire.status, wire.reset) == (200, option == "reset=mid")
    assert b"receipt 1: " in wire.body
    assert wire.body.count(b'"content":"') + wire.body.count(b"text_delta") == (4 if path == CHAT else 3)
    assert wire.body.endswith(END_OF_CHUNKS if option == "clean_cut=3" else MID_STREAM)
    assert not [mark for mark in (b"[DONE]", b"message_stop", b'"stop"', b"end_turn") if mark in wire.body]


def test_broken_whole_answer_ends_where_asked(provider: Provider) -> None:
    """Nothing, half of the head, half of a large body before RST; half before FIN; what was sent arrives."""
    options = ("reset=before", "reset=head", "reset=mid", "cut=3")
    before, head, mid, cut = (provider.ask(CHAT, chat(f"{option},size=1000000")) for option in options)
    assert (before.reset, head.reset, mid.reset, cut.reset) == (True, True, True, False)
    assert before.raw == b""
    assert head.raw.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\n\r\n" not in head.raw
    assert [len(w.body) for w in (mid, cut)] == [int(w.headers["content-length"]) // 2 for w in (mid, cut)]
    assert [receipt["complete"] for receipt in provider.receipts()] == [True] * 4


def test_page_redirect_and_gzip_shape_the_answer(provider: Provider) -> None:
    """An HTML page without an envelope, a redirect whose target leaves one more receipt, and an unasked-for gzip."""
    page = provider.ask(MESSAGES, chat("page=502"))
    assert (page.status, page.headers.get("content-type"), page.headers.get("request-id")) == (502, "text/html", None)
    assert b"receipt 1" in page.body
    redirect = provider.ask(CHAT, chat("redirect=307"))
    assert (redirect.status, redirect.headers.get("location")) == (307, "/redirected")
    assert provider.ask("/redirected", chat("redirect=307")).status == 200
    packed = provider.ask(CHAT, chat("gzip=1"))
    assert packed.headers.get("content-encoding") == "gzip"
    assert "receipt 4: " in json.loads(gzip.decompress(packed.body))["choices"][0]["message"]["content"]


def test_delay_and_interval_pace_the_answer(provider: Provider) -> None:
    """The pauses are at least what was asked for: one delay, four intervals between five chunks."""
    began = time.monotonic()
    provider.ask(CHAT, chat("delay=0.1,interval=0.05", stream=True))
    assert time.monotonic() - began >= 0.3


def test_receipt_holds_exact_bytes_and_no_credential(provider: Provider) -> None:
    """32 MiB are hashed whole; names of headers are kept, but no value of an authorization header."""
    body, path = chat("turbo=1", stream=True, words="x" * 2**25), f"{CHAT}?api-version=1"
    provider.ask(path, body, authorization="Bearer canary-secret", Idempotency_Key="k-1", X_Odd="1")
    payload = json.dumps(body).encode()
    (receipt,) = provider.receipts()
    assert receipt.pop("at").endswith("+00:00")
    names = ["authorization", "connection", "content-length", "host", "idempotency-key", "x-odd"]
    digest = {"body_blake3": blake3(payload).hexdigest(), "body_bytes": len(payload), "header_names": names}
    read = {"idempotency_key": "k-1", "model": "synthetic/turbo=1", "stream": True, "complete": True, "generates": True}
    assert receipt == {"n": 1, "method": "POST", "path": path} | digest | read
    assert "canary" not in provider.receipts_file.read_text()


def test_hold_forever_has_its_receipt_and_survives_sigkill(start: Callable[..., Provider]) -> None:
    """The receipt precedes the hold; after SIGKILL and a torn line the next process goes on, with `times`."""
    provider, body = start(), chat("hold=forever,times=1")
    client = provider.connect(post(CHAT, body))
    deadline = time.monotonic() + PATIENCE_S
    while not provider.receipts():
        assert not readable(client, 0.005), "answered before the receipt"
        assert time.monotonic() < deadline, "no receipt"
    provider.end(signal.SIGKILL)
    provider.receipts_file.write_text(provider.receipts_file.read_text() + '{"n":2,"torn')
    restarted = start()
    assert restarted.ask(CHAT, body).headers["x-synthetic-receipt"] == "2"
    statuses = [restarted.ask(CHAT, chat("status=500,times=1", words=words)).status for words in "aab"]
    assert statuses == [500, 200, 500]  # each body has its own count
    assert [receipt["n"] for receipt in restarted.receipts()] == [1, 2, 3, 4, 5]


def test_body_broken_off_has_an_incomplete_receipt(provider: Provider) -> None:
    """Both framings: what came is counted, nothing is answered."""
    for framing in (b"content-length: 100\r\n\r\nhello", b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n9\r\n"):
        client = provider.connect(b"POST /v1/x HTTP/1.1\r\n" + framing)
        client.shutdown(socket.SHUT_WR)
        assert read_to_end(client).raw == b""
    assert [(r["complete"], r["body_bytes"], r["model"]) for r in provider.receipts()] == [(False, 5, None)] * 2


def test_requests_on_one_connection_are_echoed(provider: Provider) -> None:
    """100 Continue before a chunked body, whose framing and trailers leave no trace; then a HEAD, which has no body."""
    client = provider.connect(b"PUT /%2F?%7E HTTP/1.1\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n")
    assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.sendall(b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\ntrailer: 1\r\n\r\nHEAD /c HTTP/1.1\r\nconnection: close\r\n\r\n")
    echo, _, head = read_to_end(client).body.partition(b"HTTP/1.1 200 OK\r\n")
    assert json.loads(echo) == {"object": "echo", "method": "PUT", "path": "/%2F?%7E", "body_bytes": 5, "receipt": 1}
    assert head.endswith(b"\r\n\r\n")
    assert provider.receipts()[0]["body_blake3"] == blake3(b"abcde").hexdigest()


def test_ambiguous_framing_is_refused(provider: Provider) -> None:
    """A proxy under test that sends such a request must hear of it."""
    two = b"content-length: 1\r\n"
    for rest in (two + b"transfer-encoding: chunked\r\n", two + two, b"bad name : x\r\n"):
        assert read_to_end(provider.connect(b"POST /a HTTP/1.1\r\n" + rest + b"\r\n")).status == 400


def test_same_key_is_counted_twice_unless_dedupe(start: Callable[..., Provider]) -> None:
    """Two effects by default; with --dedupe the first's number again and no receipt."""
    plain = start()
    answers = [plain.ask(CHAT, chat(), Idempotency_Key="k") for _ in range(2)]
    plain.end(signal.SIGTERM)
    deduping = start("--dedupe")
    answers += [deduping.ask(CHAT, chat(), Idempotency_Key=key) for key in ("k", "other", "other")]
    assert [answer.headers["x-synthetic-receipt"] for answer in answers] == ["1", "2", "1", "3", "3"]
    assert ["x-synthetic-deduplicated" in answer.headers for answer in answers] == [False, False, True, False, True]
    assert b"receipt 1: " in answers[2].body
    assert len(deduping.receipts()) == 3


def test_sigterm_cuts_streams_and_exits_zero(provider: Provider) -> None:
    """A stream in flight ends without its framing; the exit code is 0."""
    client = provider.connect(post(CHAT, chat("interval=60", stream=True)))
    assert client.recv(17, socket.MSG_PEEK) == b"HTTP/1.1 200 OK\r\n"
    assert provider.end(signal.SIGTERM) == 0
    assert not read_to_end(client).raw.endswith(END_OF_CHUNKS)
