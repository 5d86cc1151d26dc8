"""The synthetic provider asked after the fact, with the real SDKs: responses, chats, generations, batches."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.harness.connections import connected, dechunked, exchange, read_until, request_bytes
from tests.harness.processes import until
from tests.harness.provider_records import KEY, Direct, direct
from tests.harness.sdks import sdk

RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
OPENROUTER = "/api/v1/chat/completions"
MESSAGES: Any = [{"role": "user", "content": "one two three"}]


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Direct]:
    with direct(tmp_path) as made:
        yield made


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def openai(provider: Direct, clients: ExitStack) -> Any:
    return clients.enter_context(sdk("openai").OpenAI(api_key=KEY, base_url=f"{provider.url}/v1", max_retries=0))


@pytest.fixture
def anthropic(provider: Direct, clients: ExitStack) -> Any:
    return clients.enter_context(sdk("anthropic").Anthropic(api_key=KEY, base_url=provider.url, max_retries=0))


def raw_events(provider: Direct, request: bytes) -> list[bytes]:
    body, whole = dechunked(exchange(provider.port, request))
    assert whole
    return body.split(b"\n\n")[:-1]


def resumption(name: str, after: int | None = None) -> bytes:
    query = "?stream=true" + ("" if after is None else f"&starting_after={after}")
    return request_bytes(f"{RESPONSES}/{name}{query}", b"", {"connection": "close"}, "GET")


def streamed(options: str, **more: Any) -> bytes:
    body = {"model": f"synthetic/{options}", "input": "hi", "background": True, "stream": True, **more}
    return request_bytes(RESPONSES, json.dumps(body).encode(), {"connection": "close"})


def test_background_response_is_queued_until_it_is_cancelled(openai: Any, provider: Direct) -> None:
    """Answered at once although it is held; cancelling twice tells the same, and its usage record says so."""
    made = openai.responses.create(model="synthetic/hold=forever", input="hi", background=True)
    assert (made.status, made.background, made.usage) == ("queued", True, None)
    assert openai.responses.retrieve(made.id).status == "queued"
    assert [openai.responses.cancel(made.id).status for _ in range(2)] == ["cancelled"] * 2
    assert openai.responses.retrieve(made.id).status == "cancelled"
    assert [(line["how"], line["billed"]) for line in provider.usage()] == [("cancelled", False)]


def test_background_response_passes_its_pauses_then_completes(openai: Any, provider: Direct) -> None:
    """In progress with chunks that take for ever, complete without pauses; a finished one is not cancelled any more."""
    running = openai.responses.create(model="synthetic/interval=600", input="a b", background=True)
    until(lambda: openai.responses.retrieve(running.id).status == "in_progress")
    assert openai.responses.cancel(running.id).status == "cancelled"
    assert [(line["how"], line["output_tokens"]) for line in provider.usage()] == [("cancelled", 1)]
    made = openai.responses.create(model="synthetic/interval=0.01,hold=0.01", input="a b", background=True)
    done = until(lambda: (found := openai.responses.retrieve(made.id)).status == "completed" and found)
    assert (done.output_text.startswith("receipt "), done.background) == (True, True)
    assert (done.usage.input_tokens, done.usage.output_tokens) == (2, 5)
    assert openai.responses.cancel(made.id).to_dict() == done.to_dict()


@pytest.mark.parametrize("fault", ["cut=1", "reset=head", "reset=before", "clean_cut=0"])
def test_background_response_survives_the_loss_of_its_answer(provider: Direct, fault: str) -> None:
    """Whatever on_disconnect says; an answer that refuses leaves no response."""
    for body in ({}, {"stream": True}):
        asked = {"model": f"synthetic/{fault},on_disconnect=abort", "input": "hi", "background": True, **body}
        n = len(provider.receipts()) + 1
        exchange(provider.port, request_bytes(RESPONSES, json.dumps(asked).encode(), {"connection": "close"}))
        assert provider.ended(n)["output_tokens"] == 5
        assert provider.get(f"{RESPONSES}/resp_{n:024d}").json["status"] == "completed"
    refused = {"model": "synthetic/status=500", "input": "hi", "background": True}
    n = len(provider.receipts()) + 1
    assert provider.ask("POST", RESPONSES, refused).status == 500
    assert provider.get(f"{RESPONSES}/resp_{n:024d}").status == 404


@pytest.mark.parametrize("options", ["chunks=4", "chunks=5,parts=2,size=300", "error_after=2"])
def test_resumed_stream_has_the_bytes_of_the_first(provider: Direct, options: str) -> None:
    """From the start and from each event on; a tool call and an in-band error included."""
    first = raw_events(provider, streamed(options))
    name = f"resp_{1:024d}"
    assert b'"background":true' in first[0]
    assert raw_events(provider, resumption(name)) == first
    for after in range(len(first) + 1):
        assert raw_events(provider, resumption(name, after)) == first[after + 1 :]
    status = provider.get(f"{RESPONSES}/{name}").json["status"]
    assert status == ("failed" if "error" in options else "completed")


def test_stream_of_a_lost_client_is_resumed_while_it_runs(provider: Direct, openai: Any) -> None:
    """The client goes after its first chunk; the SDK gets the rest as it comes, and the response goes on to its end."""
    with connected(provider.port) as sock:
        sock.sendall(streamed("interval=0.2,chunks=6"))
        read_until(sock, b"output_text.delta")
    resumed = openai.responses.retrieve(f"resp_{1:024d}", stream=True, starting_after=4)
    numbers = [event.sequence_number for event in resumed]
    assert numbers == list(range(5, 5 + len(numbers)))
    assert len(numbers) == 5 + 4  # five deltas more, four events at the end
    assert provider.ended(1)["how"] == "continued"


def test_cancelled_stream_ends_for_all_who_read_it(provider: Direct, openai: Any) -> None:
    """The first stream is cut, a resumed one ends without a terminal event."""
    name = f"resp_{1:024d}"
    with connected(provider.port) as sock, connected(provider.port) as again:
        sock.sendall(streamed("interval=600"))
        got = read_until(sock, b"output_text.delta")
        again.sendall(resumption(name, 3))
        read_until(again, b"output_text.delta")
        assert openai.responses.cancel(name).status == "cancelled"
        while piece := sock.recv(65536):
            got += piece
        assert read_until(again, b"0\r\n\r\n")
    assert b"response.completed" not in got
    assert not got.endswith(b"0\r\n\r\n")


def test_foreground_response_is_stored_when_whole(openai: Any, provider: Direct) -> None:
    """As it was answered, unless the request says not to; it is neither resumed nor cancelled."""
    made = openai.responses.create(model="synthetic", input="hi", metadata={"attempt": "a1"})
    assert openai.responses.retrieve(made.id).to_dict() == made.to_dict()
    events = list(openai.responses.create(model="synthetic", input="hi", stream=True))
    assert openai.responses.retrieve(events[-1].response.id).to_dict() == events[-1].response.to_dict()
    errors = sdk("openai")
    unstored = openai.responses.create(model="synthetic", input="hi", store=False)
    with pytest.raises(errors.NotFoundError, match=f"Response with id '{unstored.id}' not found"):
        openai.responses.retrieve(unstored.id)
    with pytest.raises(errors.NotFoundError):
        openai.responses.cancel("resp_unknown")
    with pytest.raises(errors.BadRequestError, match="background=true"):
        openai.responses.cancel(made.id)
    with pytest.raises(errors.BadRequestError, match="background=true and stream=true"):
        openai.responses.retrieve(made.id, stream=True)
    assert provider.get(f"{RESPONSES}/{made.id}?stream=true&starting_after=x").status == 400


def test_stored_chats_are_listed_by_their_metadata(openai: Any) -> None:
    """Only those with `store`; all pairs must match; pages follow one another in both orders."""
    made = []
    for attempt, run in (("a1", "r1"), ("a2", "r1"), ("a3", "r2")):
        asked = {"model": "synthetic/as=gpt-4o", "messages": MESSAGES, "metadata": {"attempt": attempt, "run": run}}
        made.append(openai.chat.completions.create(store=True, **asked))
        openai.chat.completions.create(**asked)
    chats = openai.chat.completions
    assert [one.id for one in chats.list(metadata={"attempt": "a2", "run": "r1"})] == [made[1].id]
    assert [one.id for one in chats.list(metadata={"run": "r1"}, limit=1)] == [made[0].id, made[1].id]
    assert [one.id for one in chats.list(order="desc", limit=2)] == [one.id for one in reversed(made)]
    assert list(chats.list(metadata={"attempt": "a1", "run": "r2"})) == list(chats.list(model="gpt-5")) == []
    page = chats.list(model="gpt-4o", limit=2)
    assert (page.has_more, page.first_id, page.last_id) == (True, made[0].id, made[1].id)
    found = chats.retrieve(made[2].id)
    assert (found.metadata, found.usage) == ({"attempt": "a3", "run": "r2"}, made[2].usage)
    with pytest.raises(sdk("openai").NotFoundError):
        chats.retrieve("chatcmpl-unknown")
    with pytest.raises(sdk("openai").BadRequestError, match="limit"):
        chats.list(limit=0)


def test_openrouter_generation_is_known_once_it_ended(provider: Direct) -> None:
    """Its id is in the head, before the body; then cost and native tokens, of a whole one and of one that was left."""
    name = f"gen-{1:024d}"
    options = "interval=600,as=openai/gpt-4o-mini,in=1000,out=500"
    body = json.dumps({"model": f"synthetic/{options}", "messages": MESSAGES, "stream": True}).encode()
    with connected(provider.port) as sock:
        sock.sendall(request_bytes(OPENROUTER, body))
        head = read_until(sock, b'"content":"receipt')
        assert f"\r\nx-generation-id: {name}\r\n".encode() in head
        assert provider.get(f"/api/v1/generation?id={name}").json["error"]["code"] == 404
    provider.ended(1)
    data = provider.get(f"/api/v1/generation?id={name}").json["data"]
    assert (data["id"], data["cancelled"], data["streamed"]) == (name, True, True)
    assert (data["native_tokens_prompt"], data["native_tokens_completion"]) == (1000, 100)
    assert data["total_cost"] == data["usage"] == pytest.approx(1000 * 0.15e-6 + 100 * 0.6e-6)
    whole = provider.ask("POST", OPENROUTER, json.loads(body) | {"model": "synthetic", "stream": False})
    found = provider.get(f"/api/v1/generation?id={whole.json['id']}").json["data"]
    assert whole.headers["x-generation-id"] == found["id"]
    assert (found["cancelled"], found["finish_reason"], found["model"]) == (False, "stop", "synthetic")
    assert provider.ask("POST", OPENROUTER, {"model": "synthetic/status=502"}).json["error"]["code"] == 502


def test_openai_batch_is_found_by_its_metadata(openai: Any, provider: Direct) -> None:
    """Newest first, page by page; also one whose answer was lost. Cancelling is idempotent."""
    asked: Any = {"input_file_id": "file-1", "endpoint": "/v1/responses", "completion_window": "24h"}
    made = [openai.batches.create(**asked, metadata={"attempt": str(index)}) for index in range(3)]
    with pytest.raises(sdk("openai").APIConnectionError):
        openai.batches.create(**asked, extra_body={"model": "synthetic/reset=head"})
    listed = list(openai.batches.list(limit=2))
    assert [(batch.status, batch.metadata) for batch in listed] == [
        ("validating", metadata) for metadata in (None, {"attempt": "2"}, {"attempt": "1"}, {"attempt": "0"})
    ]
    assert openai.batches.retrieve(made[0].id).to_dict() == made[0].to_dict()
    cancelled = [openai.batches.cancel(made[0].id) for _ in range(2)]
    assert cancelled[0].status == "cancelled"
    assert cancelled[0].to_dict() == cancelled[1].to_dict() == openai.batches.retrieve(made[0].id).to_dict()
    with pytest.raises(sdk("openai").NotFoundError):
        openai.batches.retrieve("batch_unknown")
    assert provider.usage() == []


def test_anthropic_batch_is_found_and_its_results_read(anthropic: Any, provider: Direct) -> None:
    """Ended at once; one usage record for each of its requests, and none is billed that errored."""
    params = {"max_tokens": 9, "messages": MESSAGES}
    models = {"a-1": "synthetic/as=claude-haiku-4-5", "a-2": "synthetic/status=529"}
    requests = [{"custom_id": name, "params": {"model": model, **params}} for name, model in models.items()]
    made = [anthropic.messages.batches.create(requests=requests) for _ in range(3)]
    assert (made[0].processing_status, made[0].request_counts.succeeded, made[0].request_counts.errored) == (
        *("ended", 1),
        1,
    )
    results = {one.custom_id: one.result for one in anthropic.messages.batches.results(made[0].id)}
    assert results["a-1"].message.model == "claude-haiku-4-5"
    assert (results["a-1"].message.usage.output_tokens, results["a-2"].type) == (5, "errored")
    ids = [batch.id for batch in reversed(made)]
    batches = anthropic.messages.batches
    assert [batch.id for batch in batches.list(limit=2)] == ids
    assert [batch.id for batch in batches.list(before_id=ids[2], limit=1).data] == ids[1:2]
    assert batches.retrieve(ids[0]).to_dict() == made[2].to_dict()
    with pytest.raises(sdk("anthropic").NotFoundError, match="not_found_error"):
        batches.retrieve("msgbatch_unknown")
    of_first = [(line["dialect"], line["batch"], line["billed"]) for line in provider.usage() if line["n"] == 1]
    assert of_first == [("anthropic_messages", True, True), ("anthropic_messages", True, False)]


@pytest.mark.parametrize(
    "path",
    [
        *(f"{RESPONSES}/resp_1", CHAT, f"{CHAT}/chatcmpl-1", "/v1/batches", "/v1/batches/batch_1"),
        *("/v1/messages/batches", "/v1/messages/batches/b", "/v1/messages/batches/b/results"),
        *("/api/v1/generation?id=gen-1", "/v1/organization/usage/completions", "/v1/organizations/cost_report"),
    ],
)
def test_lookup_wants_a_credential_with_permission(provider: Direct, path: str) -> None:
    """In the envelope of the provider; each is a receipt that does not generate."""
    answers = [provider.get(path, key) for key in (None, "sk-no-permission-1")]
    assert [answer.status for answer in answers] == [401, 403]
    for answer in answers:
        assert isinstance(answer.json["error"]["message"], str)
    assert [(line["method"], line["generates"]) for line in provider.receipts()] == [("GET", False)] * 2
