"""Which requests repeat the beginning of an answer and else ask the same: by content, and by nothing that a client merely claims."""

import json
from typing import Any

import pytest

from proxy.clients import PROFILES
from proxy.dialects.openai_responses import after_items
from proxy.retelling import Retelling, may_tell, told
from tests.harness.streams import event

Document = dict[str, Any]

CODEX, CLAUDE_CODE = (
    profile.retells for name in ("codex", "claude_code") for profile in PROFILES if profile.name == name
)
REASONING = {"id": "rs_a", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA=", "status": "completed"}
SAID = {
    "id": "msg_a",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}],
}
TOOL = {"id": "fc_a", "type": "function_call", "call_id": "call_a", "name": "exec", "arguments": "{}"}
OUTPUT = {"id": "fco_a", "type": "function_call_output", "call_id": "call_a", "output": "done"}
REMARK = "<system-reminder>\nYour response above was cut off mid-stream. Resume directly from where it stops.\n</system-reminder>"


def asked(field: str, *more: Document, **changes: Any) -> Document:
    first = {"role": "user", "content": [{"type": "text", "text": "say hi", "cache_control": {"type": "ephemeral"}}]}
    return {"model": "m", field: [first, *more], **changes}


def as_codex_repeats(item: Document) -> Document:
    """As measured: some fields left out, one added."""
    kept = {name: value for name, value in item.items() if name != "status"}
    for part in kept.get("content", []):
        kept["content"] = [{name: value for name, value in part.items() if name != "logprobs"}]
    return kept | {"internal_chat_message_metadata_passthrough": {"turn_id": "t"}}


def said(text: str) -> Document:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def remark(text: str = REMARK) -> Document:
    return {"role": "user", "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]}


BLOCK = {"type": "text", "text": "Hello", "citations": None}
# name -> (client, what the conversation grew by, the whole parts of the earlier answer, how many it repeats)
CASES: dict[str, tuple[Retelling | None, list[Document], list[Any], int | None]] = {
    "codex nothing": (CODEX, [], [SAID], 0),
    "codex one item": (CODEX, [as_codex_repeats(SAID)], [SAID, TOOL], 1),
    "codex two items": (CODEX, [as_codex_repeats(REASONING), as_codex_repeats(SAID)], [REASONING, SAID], 2),
    "codex more than came": (CODEX, [SAID, SAID], [SAID], None),
    "codex another item": (CODEX, [{**SAID, "content": []}], [SAID], None),
    "codex a field that was not there": (CODEX, [{**SAID, "more": 1}], [SAID], None),
    "codex the second item first": (CODEX, [as_codex_repeats(SAID)], [REASONING, SAID], None),
    "codex with the tool's output": (CODEX, [TOOL, OUTPUT], [TOOL], None),
    "codex with a new question": (CODEX, [as_codex_repeats(SAID), {"role": "user", "content": "and"}], [SAID], None),
    "claude code nothing came": (CLAUDE_CODE, [remark()], [], 0),
    "claude code one block": (CLAUDE_CODE, [said("Hello"), remark()], [BLOCK], 1),
    "claude code other words": (CLAUDE_CODE, [said("Bye"), remark()], [BLOCK], None),
    "claude code a person's words": (CLAUDE_CODE, [said("Hello"), remark("go on")], [BLOCK], None),
    "claude code without a remark": (CLAUDE_CODE, [said("Hello")], [BLOCK], None),
    "claude code a tool's result": (
        CLAUDE_CODE,
        [said("Hello"), {"role": "user", "content": [{"type": "tool_result", "content": REMARK}]}],
        [BLOCK],
        None,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_conversation_that_grew_tells_what_it_repeats(name: str) -> None:
    """Only whole parts, in their order, unchanged, and the client's own remark; everything else is another intention."""
    retells, grown, parts, expected = CASES[name]
    assert retells is not None
    earlier, later = asked(retells.conversation), asked(retells.conversation, *grown)
    assert told(retells, earlier, later, parts) == expected


@pytest.mark.parametrize(
    "change", [{"model": "other"}, {"temperature": 1}, {"input": []}, {"input": "say hi"}, {"input": None}]
)
def test_request_that_differs_elsewhere_repeats_nothing(change: Document) -> None:
    """The same model, instructions, tools: all but the conversation has to be equal."""
    assert CODEX is not None
    assert told(CODEX, asked("input"), {**asked("input", as_codex_repeats(SAID)), **change}, [SAID]) is None


def test_cache_marks_and_short_texts_make_no_difference() -> None:
    """Claude Code moves its mark to the newest message, and then writes the older one's text alone."""
    assert CLAUDE_CODE is not None
    earlier = asked("messages")
    later = {**earlier, "messages": [{"role": "user", "content": "say hi"}, said("Hello"), remark()]}
    assert told(CLAUDE_CODE, earlier, later, [BLOCK]) == 1


@pytest.mark.parametrize(
    ("retells", "last", "expected"),
    [
        (CODEX, as_codex_repeats(SAID), True),
        (CODEX, OUTPUT, False),
        (CODEX, {"role": "user", "content": "x"}, False),
        (CODEX, "text", False),
        (CLAUDE_CODE, remark(), True),
        (CLAUDE_CODE, remark("hello"), False),
        (CLAUDE_CODE, said("x"), False),
    ],
)
def test_only_last_words_of_a_retelling_are_looked_up(retells: Retelling, last: Any, expected: bool) -> None:
    """Every other request is spared the look at earlier ones."""
    assert may_tell(retells, {retells.conversation: [{"role": "user", "content": "hi"}, last]}) is expected


@pytest.mark.parametrize("conversation", [None, [], "hi", {}, 1])
@pytest.mark.parametrize("retells", [CODEX, CLAUDE_CODE])
def test_body_without_a_conversation_tells_nothing(retells: Retelling, conversation: Any) -> None:
    """Whatever it holds, nothing is raised."""
    assert not may_tell(retells, {retells.conversation: conversation})
    assert not may_tell(retells, {})


@pytest.mark.parametrize("retells", [CODEX, CLAUDE_CODE])
def test_conversation_too_deep_to_compare_tells_nothing(retells: Retelling) -> None:
    """A hostile body may be as deep as it likes."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    document = {retells.conversation: [{"role": "assistant", "content": deep}]}
    assert not may_tell(retells, document)
    assert told(retells, document, dict(document), []) is None


# --- the parts of a stream that broke off ------------------------------------------------------------------------------

ITEMS = [
    event("response.created", response={"id": "resp_1"}),
    event("response.output_item.added", output_index=0, item=REASONING),
    event("response.output_item.done", output_index=0, item=REASONING),
    event("response.output_item.added", output_index=1, item=SAID),
    event("response.output_text.delta", output_index=1, delta="I look."),
    event("response.output_item.done", output_index=1, item=SAID),
    event("response.completed", response={"id": "resp_1", "output": [REASONING, SAID]}),
]
BLOCKS = [
    event("message_start", message={"id": "m", "type": "message", "role": "assistant", "content": [], "usage": {}}),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hel"}),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "lo"}),
    event("content_block_stop", index=0),
    event("content_block_start", index=1, content_block={"type": "tool_use", "id": "t", "name": "f", "input": {}}),
    event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": '{"x": 1}'}),
    event("content_block_stop", index=1),
    event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 3}),
    event("message_stop"),
]
TEXT = {"type": "text", "text": "Hello"}
CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}


@pytest.mark.parametrize(
    ("retells", "stream", "whole"),
    [(CODEX, ITEMS, {3: [REASONING], 6: [REASONING, SAID]}), (CLAUDE_CODE, BLOCKS, {5: [TEXT], 8: [TEXT, CALL]})],
    ids=["items", "blocks"],
)
def test_cut_stream_has_the_parts_that_came_whole(
    retells: Retelling, stream: list[bytes], whole: dict[int, Any]
) -> None:
    """Wherever it is cut, within an event too."""
    expected: list[Any] = []
    for count, piece in enumerate(stream):
        before = b"".join(stream[:count])
        expected = whole.get(count, expected)
        assert retells.parts(before) == expected
        assert retells.parts(before + piece[: len(piece) // 2]) == expected
    assert retells.parts(b"".join(stream)) == expected


@pytest.mark.parametrize("retells", [CODEX, CLAUDE_CODE])
@pytest.mark.parametrize("stream", [b"", b"data: 1\n\n", b"data: {\n\n", event("content_block_stop", index=7), b"\xff"])
def test_foreign_stream_has_no_parts(retells: Retelling, stream: bytes) -> None:
    """Recorded bytes are anyone's."""
    assert retells.parts(stream) == []


def test_stream_after_items_leaves_out_only_theirs() -> None:
    """What the client has it is not given twice; the end and what belongs to no item stay."""

    def kinds(stream: bytes) -> list[str]:
        lines = stream.decode().splitlines()
        return [json.loads(line[len("data: ") :])["type"] for line in lines if line.startswith("data: ")]

    whole = b"".join(ITEMS)
    assert kinds(after_items(whole, 0)) == kinds(whole)
    assert kinds(after_items(whole, 1)) == [kind for at, kind in enumerate(kinds(whole)) if at not in (1, 2)]
    assert kinds(after_items(whole, 2)) == ["response.created", "response.completed"]
