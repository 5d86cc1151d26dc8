"""Each way of asking, driven by hand: what is asked, in which order, and what every kind of answer proves."""

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from ledger.ids import CallId
from proxy.looking import MECHANISMS
from proxy.reconcile.batch_lookups import PAGES_LIMIT
from proxy.reconcile.lookups import NOTHING, Cancel, Get, Known, LookedUp, Pause, Reply, look

KNOWN: Final = Known(CallId("call_1"), "/v1/responses", {}, stream=False, ids={}, partial=b"", started_s=1000)
CHAT: Final = replace(KNOWN, target="/v1/chat/completions", request={"store": True}, tag="call_1")
BATCH_ASKED: Final = {"input_file_id": "file-1", "endpoint": "/v1/responses", "completion_window": "24h"}
BATCH: Final = replace(
    KNOWN, target="/v1/batches", request=BATCH_ASKED, same_credential=True, lists_all=True, settle_s=9, asked_s=5000
)
GENERATION: Final = replace(KNOWN, target="/api/v1/chat/completions", ids={"x-generation-id": "gen-1"})
BACKGROUND: Final = replace(KNOWN, ids={"id": "resp_1"}, stream=True, request={"background": True})


def reply(document: Any, status: int = 200) -> Reply:
    return Reply(status, (), json.dumps(document).encode())


def asked(known: Known, *replies: Reply) -> tuple[LookedUp, list[Any]]:
    """What is found when the provider answers so, and what it was asked. Replies that are left over, or lack, fail."""
    (mechanism,) = [each for each in MECHANISMS if each.applies(known)]
    asking, waiting = look(mechanism, known), list(replies)
    steps: list[Any] = [next(asking)]
    try:
        while True:
            steps.append(asking.send(NOTHING if isinstance(steps[-1], Pause) else waiting.pop(0)))
    except StopIteration as ended:
        assert not waiting
        found: LookedUp = ended.value
        return found, steps


def at_once(known: Known) -> LookedUp:
    (mechanism,) = [each for each in MECHANISMS if each.applies(known)]
    with pytest.raises(StopIteration) as ended:
        next(look(mechanism, known))
    found: LookedUp = ended.value.value
    return found


def response(status: str, **more: Any) -> dict[str, Any]:
    return {"object": "response", "id": "resp_1", "status": status, **more}


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
def test_stored_response_is_the_answer(status: str) -> None:
    """By its id; whatever it became, it is what the provider has to say to this request."""
    found, steps = asked(replace(KNOWN, ids={"id": "resp_1"}), reply(response(status)))
    assert (found.result, found.settles, steps) == ("matches", True, [Get("/v1/responses/resp_1")])
    assert found.answer is not None


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (reply({"error": {"message": "no"}}, 404), "absent_inconclusive"),
        (reply(response("completed", id="resp_2")), "differs"),
        (reply({"error": {"message": "busy"}}, 429), "unreadable"),
        (reply({"object": "list"}), "unreadable"),
        (Reply(200, (), b"<html>"), "unreadable"),
        (Reply(200, (), b""), "unreadable"),
        (reply(response("teleported")), "unreadable"),
    ],
)
def test_response_that_is_not_had_settles_nothing(answer: Reply, result: str) -> None:
    """Not stored, another's, an error, a page: none of it proves anything."""
    found, _ = asked(replace(KNOWN, ids={"id": "resp_1"}), answer)
    assert (found.result, found.settles, found.answer) == (result, False, None)


@pytest.mark.parametrize("known", [KNOWN, replace(KNOWN, ids={"id": "resp_1/../../x"}), replace(CHAT, tag=None)])
def test_without_a_usable_id_nothing_is_asked(known: Known) -> None:
    """An id is a word of the provider's, and goes into a path only as one."""
    found = at_once(known)
    assert (found.result, found.settles) == ("absent_inconclusive", False)


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_running_response_is_cancelled_only_where_asked(status: str) -> None:
    """Seen to be accepted, it settles nothing yet; cancelled, it does."""
    known = replace(KNOWN, ids={"id": "resp_1"})
    found, _ = asked(known, reply(response(status)))
    assert (found.result, found.settles) == ("matches", False)
    found, steps = asked(replace(known, cancels=True), reply(response(status)), reply(response("cancelled")))
    assert (found.result, found.settles, found.answer) == ("matches", True, None)
    assert steps[1] == Cancel("/v1/responses/resp_1")


def event(number: int, response: str = "resp_1", end: str = "\n\n") -> bytes:
    return f'data: {{"sequence_number": {number}, "response": {{"id": "{response}"}}}}{end}'.encode()


@pytest.mark.parametrize(
    ("partial", "after", "rest"),
    [
        (b"", "", [0, 1, 2]),
        (event(0), "&starting_after=0", [1, 2]),
        (event(0) + event(1) + b'data: {"sequence_number": 2', "&starting_after=1", [2]),
        (event(0)[:-4], "", [0, 1]),
        (event(0, end="\r\n\r\n") + b"data", "&starting_after=0", [1]),
    ],
    ids=["nothing", "one event", "a cut one", "a cut first one", "carriage returns"],
)
def test_background_stream_goes_on_behind_its_last_whole_event(partial: bytes, after: str, rest: list[int]) -> None:
    """An event that broke off is fetched again, and no event twice."""
    tail = Reply(200, (), b"".join(map(event, rest)))
    found, steps = asked(replace(BACKGROUND, partial=partial), reply(response("completed")), tail)
    assert steps[1] == Get(f"/v1/responses/resp_1?stream=true{after}")
    assert found.answer is not None
    assert found.answer.body.count(b"sequence_number") == rest[-1] + 1
    assert found.answer.body.endswith(tail.body)


@pytest.mark.parametrize(
    "tail",
    [event(0) + event(1), event(2), event(1) + event(3), event(1, "resp_2"), b"", b'data: {"type": "x"}\n\n'],
    ids=["from its beginning", "one lacks", "one lacks within", "another's", "nothing named", "no number"],
)
def test_stream_that_does_not_continue_is_no_answer(tail: bytes) -> None:
    """Glued together it would pass for the whole one."""
    partial = event(0) if tail else b""
    found, _ = asked(replace(BACKGROUND, partial=partial), reply(response("completed")), Reply(200, (), tail))
    assert (found.result, found.settles, found.answer) == ("differs", False, None)


@pytest.mark.parametrize("name", ["../../v1/batches", "a?b", "a#b", "gen-\u00e9 \0", "", "x" * 300])
def test_hostile_id_goes_into_no_path(name: str) -> None:
    """It is the provider's word, and the operator's key would go with it."""
    assert at_once(replace(CHAT, tag=None, ids={"id": name})).result == "absent_inconclusive"
    hostile = replace(GENERATION, ids={"x-generation-id": name})
    assert not any(each.applies(hostile) for each in MECHANISMS)


def test_completion_is_found_by_its_tag_alone() -> None:
    """One hit is it; none proves nothing; two are nobody's."""
    tagged = {"id": "chatcmpl-1", "metadata": {"sendonce_call": "call_1"}}
    found, steps = asked(CHAT, reply({"data": [tagged]}), reply(tagged))
    assert (found.result, found.settles) == ("matches", True)
    assert steps[0] == Get("/v1/chat/completions?metadata%5Bsendonce_call%5D=call_1&limit=2")
    assert asked(CHAT, reply({"data": []}))[0].result == "absent_inconclusive"
    assert asked(CHAT, reply({"data": [tagged, tagged]}))[0].result == "differs"
    assert asked(CHAT, reply({"data": [{"id": "somebody-elses"}]}))[0].result == "differs"
    assert asked(CHAT, reply({"data": [tagged]}), reply({"id": "chatcmpl-1"}))[0].result == "unreadable"
    assert asked(CHAT, reply({"data": "none"}))[0].result == "unreadable"
    assert asked(CHAT, reply({"data": [{"metadata": {"sendonce_call": "call_1"}}]}))[0].result == "unreadable"


def test_generation_proves_its_cost() -> None:
    """A cancelled one too; one that is not known yet proves nothing."""
    about = {"data": {"id": "gen-1", "total_cost": 0.25, "cancelled": True}}
    found, steps = asked(GENERATION, reply(about))
    assert (found.result, found.settles, found.evidence["total_cost"], found.answer) == ("matches", True, 0.25, None)
    assert steps == [Get("/api/v1/generation?id=gen-1")]
    assert asked(GENERATION, reply({}, 404))[0].result == "absent_inconclusive"


def listed(*batches: dict[str, Any], more: bool = False) -> Reply:
    return reply({"object": "list", "data": list(batches), "has_more": more})


def batch(name: str, created_at: int = 1000, **more: Any) -> dict[str, Any]:
    return {"id": name, "created_at": created_at, **BATCH_ASKED, **more}


def test_batch_in_neither_of_two_lists_was_not_accepted() -> None:
    """Only with the very key that asked, of a provider that lists everything, and with time in front of them and between."""
    found, steps = asked(BATCH, listed(), listed())
    assert (found.result, found.settles) == ("absent_conclusive", True)
    assert [type(step) for step in steps] == [Get, Pause, Get]
    _, steps = asked(replace(BATCH, asked_s=1003), listed(), listed(), listed())
    assert [step for step in steps if isinstance(step, Pause)] == [Pause(6), Pause(9)]
    for known in (replace(BATCH, same_credential=False), replace(BATCH, lists_all=False)):
        found, _ = asked(known, listed(), listed())
        assert (found.result, found.settles) == ("absent_inconclusive", False)


def test_batch_that_the_second_list_has_is_found() -> None:
    """It was accepted late."""
    found, _ = asked(BATCH, listed(), listed(batch("batch_1")), reply(batch("batch_1")))
    assert (found.result, found.settles) == ("matches", True)


def test_list_is_read_to_its_end() -> None:
    """No order of it is documented, so an old entry ends nothing; what does not end proves nothing."""
    other, old = batch("batch_0", input_file_id="file-2"), batch("batch_9", 1, input_file_id="file-3")
    first, second, third = listed(old, more=True), listed(other, more=True), listed(batch("batch_1"))
    found, steps = asked(BATCH, first, second, third, reply(batch("batch_1")))
    assert (found.result, found.settles) == ("matches", True)
    assert [step.target for step in steps[1:3]] == [
        "/v1/batches?limit=100&after=batch_9",
        "/v1/batches?limit=100&after=batch_0",
    ]
    found, _ = asked(BATCH, *[listed(other, more=True)] * PAGES_LIMIT)
    assert (found.result, found.settles) == ("absent_inconclusive", False)


@pytest.mark.parametrize(
    ("known", "batches"),
    [
        (BATCH, [batch("batch_1"), batch("batch_2")]),
        (replace(BATCH, equals=1), [batch("batch_1")]),
        (BATCH, [batch("batch_1", metadata={"mine": "1"})]),
        (BATCH, [batch("batch_1", endpoint="/v1/embeddings")]),
        (BATCH, [batch("batch_1", 760)]),
        (BATCH, [batch("batch_1", 6000)]),
        (replace(BATCH, others=frozenset({"batch_1"})), [batch("batch_1")]),
        (
            replace(BATCH, tag="call_1", request={**BATCH_ASKED, "metadata": {"sendonce_call": "call_1"}}),
            [batch("batch_1")],
        ),
    ],
    ids=[
        "two",
        "two calls",
        "other metadata",
        "other endpoint",
        "before it",
        "since the look-up",
        "another call's",
        "its tag gone",
    ],
)
def test_batch_that_may_be_it_settles_nothing(known: Known, batches: list[dict[str, Any]]) -> None:
    """Like it in part is neither a hit nor a miss."""
    found, _ = asked(known, listed(*batches))
    assert (found.result, found.settles) == ("differs", False)


def test_batch_with_another_tag_of_ours_is_another_calls() -> None:
    """Two calls for the same file are told apart by what sendonce put into them."""
    mine = replace(BATCH, tag="call_1", request={**BATCH_ASKED, "metadata": {"sendonce_call": "call_1"}})
    other = batch("batch_2", metadata={"sendonce_call": "call_2"})
    assert asked(mine, listed(other), listed(other))[0].result == "absent_conclusive"
    own = batch("batch_1", metadata={"sendonce_call": "call_1"})
    found, _ = asked(mine, listed(other, own), reply(own))
    assert found.evidence["id"] == "batch_1"


@pytest.mark.parametrize("entry", ["text", {"id": "b"}, {"id": "b", "input_file_id": "file-1"}])
def test_list_with_an_entry_of_no_known_form_is_unreadable(entry: Any) -> None:
    """It may be the one."""
    found, _ = asked(BATCH, reply({"data": [entry], "has_more": False}))
    assert (found.result in ("unreadable", "differs"), found.settles) == (True, False)


MESSAGES_ASKED: Final = {"requests": [{"custom_id": "b", "params": {}}, {"custom_id": "a", "params": {}}]}
MESSAGES: Final = replace(BATCH, target="/v1/messages/batches", request=MESSAGES_ASKED)


def messages_batch(name: str, status: str = "ended", succeeded: int = 2) -> dict[str, Any]:
    counts = {"processing": 0, "succeeded": succeeded, "errored": 0, "canceled": 0, "expired": 0}
    return {
        "id": name,
        "created_at": "1970-01-01T00:20:00+00:00",
        "processing_status": status,
        "request_counts": counts,
    }


def results(*custom_ids: str) -> Reply:
    return Reply(200, (), b"\n".join(json.dumps({"custom_id": one}).encode() for one in custom_ids))


def test_messages_batch_is_known_by_its_custom_ids() -> None:
    """As many requests make a candidate; their ids make it the one."""
    first, second = messages_batch("msgbatch_1"), messages_batch("msgbatch_2")
    listing = listed(first, second, messages_batch("msgbatch_3", succeeded=5))
    found, steps = asked(MESSAGES, listing, results("x", "y"), results("a", "b"), reply(second))
    assert (found.result, found.settles, found.evidence["id"]) == ("matches", True, "msgbatch_2")
    assert [step.target for step in steps[1:]] == [
        "/v1/messages/batches/msgbatch_1/results",
        "/v1/messages/batches/msgbatch_2/results",
        "/v1/messages/batches/msgbatch_2",
    ]


def test_messages_batch_that_has_not_ended_may_be_it() -> None:
    """Its requests cannot be read yet, so nothing is proven."""
    found, _ = asked(MESSAGES, listed(messages_batch("msgbatch_1", "in_progress")))
    assert (found.result, found.settles) == ("absent_inconclusive", False)


def test_messages_batch_that_is_in_no_list_proves_nothing() -> None:
    """An ended one can be deleted. The next page is asked for by Anthropic's own cursor."""
    page = listed(messages_batch("msgbatch_9", succeeded=5), more=True)
    found, steps = asked(MESSAGES, page, listed())
    assert (found.result, found.settles) == ("absent_inconclusive", False)
    assert steps[1] == Get("/v1/messages/batches?limit=100&after_id=msgbatch_9")


def test_tag_that_another_wrote_is_no_tag() -> None:
    """A client that copies the metadata of an answer names another call."""
    assert at_once(replace(CHAT, tag=None)).result == "absent_inconclusive"
