"""Client profiles against what real clients sent: tests/golden, recorded from unmodified clients of the versions named there.

Two requests are tries of one thing where their canonical bodies are equal, or the later one repeats what came of the earlier's
answer. `parts` of an answer are made of the events that the client had got when its stream broke.
"""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from proxy.clients import PROFILES, ClientProfile, recognise
from proxy.headers import RawHeaders
from proxy.keys import canonical_body
from proxy.request_body import Memory, RequestBody
from proxy.retelling import may_tell, told
from tests.harness.processes import ROOT
from tests.harness.streams import event

GOLDEN: Final = ROOT / "tests/golden"
STAINLESS: Final = (b"X-Stainless-Lang", b"python")
Json = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One run of one client: its POSTs in order."""

    name: str
    requests: list[Json]

    @property
    def profile(self) -> ClientProfile:
        return recognise(headers_of(self.requests[0]))


def headers_of(request: Json) -> RawHeaders:
    return tuple((name.encode(), value.encode()) for name, value in request["headers"])


def cases_of(file: str) -> list[Case]:
    recorded = json.loads((GOLDEN / file).read_text())
    return [
        Case(f"{case['agent']}: {case['case']}", [r for r in case["requests"] if r["method"] == "POST"])
        for case in recorded
    ]


CASES: Final = [case for file in ("sdks.json", "claude_code.json", "codex.json") for case in cases_of(file)]
SDKS: Final = {case.name: case for case in cases_of("sdks.json")}
AGENTS: Final = {case.name: case for case in CASES if case.name not in SDKS}
NAMES: Final = {
    "openai-": "stainless",
    "anthropic-": "stainless",
    "@anthropic-ai": "stainless",
    "litellm 1.110.2 openai": "stainless",  # it calls the openai SDK
    "litellm": "litellm",
    "google-genai": "google_genai",
    "@google/genai": "google_genai",
    "ai ": "ai_sdk",
    "claude-code": "claude_code",
    "codex": "codex",
}


def canonical(tmp_path: Path, case: Case, request: Json, *, across_starts: bool = False) -> Any:
    body, document = RequestBody(tmp_path, Memory()), json.dumps(request["body"]).encode()
    body.append(document)
    return canonical_body(body, document, None, case.profile, across_starts=across_starts)


def is_told(profile: ClientProfile, earlier: Json, later: Json) -> bool:
    """Does `later` repeat what came of the answer to `earlier`, and nothing else?"""
    retells, answered = profile.retells, earlier["answered"] or {}
    if retells is None or not may_tell(retells, later["body"]):
        return False
    start = event("message_start", message={"content": [], "usage": {}})
    stream = b"".join(
        event(**{"kind": e["type"], **{k: v for k, v in e.items() if k != "type"}}) for e in answered.get("events", ())
    )
    before, after = (profile.intention(request["body"]) for request in (earlier, later))
    return told(retells, before, after, retells.parts(start + stream)) is not None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_client_is_recognised_by_every_request_it_sends(case: Case) -> None:
    """Retries included."""
    expected = next(name for start, name in NAMES.items() if case.name.startswith(start))
    assert {recognise(headers_of(request)).name for request in case.requests} == {expected}


@pytest.mark.parametrize("case", SDKS.values(), ids=SDKS)
def test_retries_of_an_sdk_are_one_intention_and_marked_where_it_marks_them(case: Case, tmp_path: Path) -> None:
    """The stainless SDKs count; the others change nothing at all."""
    assert len(case.requests) >= 3
    assert len({canonical(tmp_path, case, request) for request in case.requests}) == 1
    marks = [case.profile.certain_retry(headers_of(request)) for request in case.requests]
    counts = [
        int(
            dict(headers_of(r)).get(
                b"x-stainless-retry-count", dict(headers_of(r)).get(b"X-Stainless-Retry-Count", b"0")
            )
        )
        for r in case.requests
    ]
    assert marks == [count > 0 for count in counts]
    assert any(marks) == (case.profile.name == "stainless")


@pytest.mark.parametrize("case", AGENTS.values(), ids=AGENTS)
def test_retries_of_an_agent_are_one_intention_whatever_words_they_use(case: Case, tmp_path: Path) -> None:
    """After an error, a cut, a delivered item: only a whole answer, another start, or a tool that was run makes a new one."""
    for earlier, later in pairwise(case.requests):
        same = canonical(tmp_path, case, earlier) == canonical(tmp_path, case, later)
        same = same or is_told(case.profile, earlier, later)
        assert same == (not is_new(case, earlier, later)), (case.name, json.dumps(later["body"])[-2000:])
        assert not case.profile.certain_retry(headers_of(later))  # neither marks its retries


def is_new(case: Case, earlier: Json, later: Json) -> bool:
    """By what happened, not by what was sent: another start, a whole answer, or tools whose results stand in the request."""
    ran_a_tool = any(word in json.dumps(later["body"]) for word in ('_call_output"', '"tool_result"')) and not any(
        word in json.dumps(earlier["body"]) for word in ('_call_output"', '"tool_result"')
    )
    lineages = {case.profile.lineage(headers_of(request)) for request in (earlier, later)}
    is_whole = (earlier["answered"] or {}).get("framing_ended") and "ended cleanly" not in case.name
    return ran_a_tool or len(lineages) > 1 or bool(is_whole)


@pytest.mark.parametrize(
    "case", [case for case in AGENTS.values() if "started twice" in case.name], ids=lambda case: case.name
)
def test_two_starts_of_an_agent_are_one_intention_only_inside_a_run(case: Case, tmp_path: Path) -> None:
    """Two sessions are never merged; a restart in a run is recognised by all that is not new at each start."""
    first, second = case.requests[0], case.requests[-1]
    assert canonical(tmp_path, case, first) != canonical(tmp_path, case, second)
    assert canonical(tmp_path, case, first, across_starts=True) == canonical(tmp_path, case, second, across_starts=True)


@pytest.mark.parametrize("limit", [1, 512, 4096])
def test_probe_of_claude_code_is_another_intention_than_its_question(limit: int, tmp_path: Path) -> None:
    """It lowers a large `max_tokens` when it asks again; a warm-up's answer of one token must not stand for the real one."""
    case = next(case for case in AGENTS.values() if case.profile.name == "claude_code")
    (asked, *_) = case.requests
    assert asked["body"]["max_tokens"] > 4096
    bodies = [{**asked, "body": {**asked["body"], "max_tokens": tokens}} for tokens in (limit, 64_000, 128_000)]
    probe, less, more = (canonical(tmp_path, case, request) for request in bodies)
    assert probe != less == more


@pytest.mark.parametrize(
    ("count", "expected"),
    [(b"0", False), (b"1", True), (b"12", True), (b"", False), (b"-1", False), (b"x", False), (b"9" * 5000, True)],
)
def test_stainless_retry_count_above_zero_is_a_certain_retry(count: bytes, expected: bool) -> None:
    """Anything but a positive number is no sign."""
    headers = (STAINLESS, (b"X-Stainless-Retry-Count", count))
    assert recognise(headers).certain_retry(headers) is expected


def test_stainless_without_count_is_no_certain_retry() -> None:
    """An absent count says nothing."""
    assert recognise((STAINLESS,)).certain_retry((STAINLESS,)) is False


def test_count_of_a_client_that_is_no_stainless_sdk_says_nothing() -> None:
    """A header of its own that looks like theirs."""
    headers = ((b"User-Agent", b"curl/8"), (b"x-stainless-retry-count", b"2"))
    assert recognise(headers).name == "generic"
    assert recognise(headers).certain_retry(headers) is False


@pytest.mark.parametrize("metadata", [b"", b"{", b"[]", b"null", b'{"turn_id": 1}', b'{"turn_id": ""}', b"[" * 100_000])
def test_turn_that_cannot_be_read_is_no_lineage(metadata: bytes) -> None:
    """Codex's own words are anyone's."""
    headers = ((b"x-codex-turn-metadata", metadata),)
    assert recognise(headers).name == "codex"
    assert recognise(headers).lineage(headers) is None


def test_every_profile_ignores_the_form() -> None:
    """Streaming or not is the form of an answer, never another intention."""
    assert all({"stream", "stream_options"} <= profile.ignored_fields for profile in PROFILES)


@pytest.mark.parametrize("value", [[], {}, None, "x", {"metadata": []}, {"metadata": {"user_id": 1, "other": 2}}])
def test_ids_of_a_start_are_taken_out_of_any_shape(value: Any) -> None:
    """Only at their place."""
    profile = ClientProfile("test", lambda _: True, start_ids=("a.metadata.user_id", "b.*.id"))
    kept = {"metadata": {"other": 2}} if value == {"metadata": {"user_id": 1, "other": 2}} else value
    document = {"a": value, "b": [{"id": 1, "c": value}, value]}
    assert profile.without_start_ids(document) == {"a": kept, "b": [{"c": value}, value]}
