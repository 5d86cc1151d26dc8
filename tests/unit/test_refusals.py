"""The refusal table on the wire: semantics.md section 7."""

import json
import string
from pathlib import Path
from typing import Any

import pytest

from proxy.codes import CODES, Code, Group
from proxy.endpoints import Family
from proxy.headers import find
from proxy.refusals import GROUPS, Column, column, lost_answer, render, sentence

FINAL_CODES = [
    "effect_unknown",
    "effect_happened",
    "protocol_marker_invalid",
    "drift",
    "parked",
    "response_lost",
    "response_erased",
    "form_differs",
    "caller_changed",
    "stale_pass",
    "run_diverged",
    "corruption",
    "redirect_refused",
]
NOT_SENT_CODES = ["cannot_record", "draining", "upstream_unreachable", "overloaded"]
BAD_REQUESTS = {
    "unknown_upstream": 404,
    "body_too_large": 413,
    "bad_target": 400,
    "bad_key": 400,
    "bad_framing": 400,
    "upgrade_unsupported": 426,
    "token_required": 401,
}
# code -> status per column (openai, anthropic, gemini, others), x-should-retry, Retry-After
TABLE: dict[str, tuple[tuple[int, int, int, int], bytes, bytes | None]] = {
    **dict.fromkeys(FINAL_CODES, ((400, 424, 424, 409), b"false", None)),
    "key_reused": ((400, 424, 424, 422), b"false", None),
    "in_progress": ((409, 409, 409, 409), b"true", b"1"),
    **dict.fromkeys(NOT_SENT_CODES, ((503, 503, 503, 503), b"true", b"1")),
    "upstream_lost": ((502, 502, 502, 502), b"true", None),
    **{code: ((status,) * 4, b"false", None) for code, status in BAD_REQUESTS.items()},
}


def document(code: Code, to: Column = Column.OPENAI, **facts: Any) -> dict[str, Any]:
    found = json.loads(render(code, to, **facts).body)
    assert isinstance(found, dict)
    return found


def test_table_covers_every_code() -> None:
    """The table here, the code's and the enumeration name the same codes and groups."""
    assert set(TABLE) == {code.value for code in Code} == {code.value for code in CODES}
    assert set(GROUPS) == set(Group) == {row.group for row in CODES.values()}


@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize(("position", "to"), list(enumerate(Column)))
def test_code_has_its_status_and_headers(code: Code, position: int, to: Column) -> None:
    """Each row of semantics.md section 7 in each column."""
    statuses, should_retry, retry_after = TABLE[code]
    refusal = render(code, to)
    assert refusal.status == statuses[position]
    assert find(refusal.headers, b"x-should-retry") == should_retry
    assert find(refusal.headers, b"retry-after") == retry_after
    assert find(refusal.headers, b"content-type") == b"application/json"
    assert find(refusal.headers, b"content-length") == str(len(refusal.body)).encode()


@pytest.mark.parametrize("to", list(Column))
def test_body_is_every_envelope_and_a_problem(to: Column) -> None:
    """One object: OpenAI, Anthropic and Google find their error in it, and problem+json stands beside."""
    body = document(Code.EFFECT_UNKNOWN, to, call="c1", attempt="c1.1", since="noon", next_operation="reconcile_effect")
    status = render(Code.EFFECT_UNKNOWN, to).status
    assert next(iter(body)) == "error"
    assert next(iter(body["error"])) == "message"
    assert body["error"]["message"].startswith(
        "This request was sent at noon, and whether the provider served it is unknown"
    )
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["code"] == (status if to is Column.GEMINI else "effect_unknown")
    assert body["error"]["param"] is None
    assert body["error"]["status"] == "FAILED_PRECONDITION"
    assert (body["type"], body["status"], body["code"]) == ("error", status, "effect_unknown")
    assert (body["call"], body["attempt"], body["since"]) == ("c1", "c1.1", "noon")
    assert body["next_operation"] == "reconcile_effect"
    assert body["remedy"].startswith('sendonce reconcile c1 --reason "…" --park  # or --served, ')
    assert body["remedy"] in body["error"]["message"]
    assert "Sendonce-Accept: c1.1" in body["detail"]


def test_same_facts_give_the_same_bytes() -> None:
    """A refusal is the same answer on every repeat."""
    assert render(Code.PARKED, Column.ANTHROPIC, call="c") == render(Code.PARKED, Column.ANTHROPIC, call="c")


def test_given_text_replaces_the_table_s() -> None:
    """A sentence that knows more than the table wins; members without a value are left out."""
    body = document(Code.BAD_KEY, text="The key is empty.")
    assert body["detail"] == body["error"]["message"] == "The key is empty."
    assert not body.keys() & {"call", "attempt", "since", "next_operation", "remedy"}
    assert document(Code.DRIFT, call="c", options=" --state-dir /x")["remedy"] == "sendonce show c --state-dir /x"


def test_hostile_text_is_still_json() -> None:
    """Facts may hold anything, also half of a surrogate pair."""
    assert document(Code.DRIFT, text='"\ud800\n{call}', since="{x}")["detail"] == '"?\n{call}'


@pytest.mark.parametrize("code", list(Code))
def test_sentence_is_complete_without_facts(code: Code) -> None:
    """No placeholder is left, whatever is not known."""
    found = sentence(code)
    assert "{" not in found
    assert found.endswith(".")


@pytest.mark.parametrize("row", CODES.values(), ids=list(CODES))
def test_templates_use_known_facts_only(row: Any) -> None:
    """Rendering cannot fail on a placeholder that nobody fills."""
    used = {
        name for text in (row.sentence, row.remedy or "") for _, name, _, _ in string.Formatter().parse(text) if name
    }
    assert used <= {"call", "attempt", "since", "options"}


def test_lost_answer_is_what_comes_next() -> None:
    """Where a setting accepts, the client may ask again at once; else it hears the final refusal."""
    assert lost_answer(accepts=False) is Code.EFFECT_UNKNOWN
    assert lost_answer(accepts=True) is Code.UPSTREAM_LOST


def test_family_has_its_column() -> None:
    """Unknown providers get the column of the others."""
    assert [column(family) for family in Family] == list(Column)


def test_every_code_is_documented() -> None:
    """docs/codes.md explains each code."""
    text = (Path(__file__).parents[2] / "docs" / "codes.md").read_text(encoding="utf-8")
    assert [code for code in Code if f"`{code}`" not in text] == []
