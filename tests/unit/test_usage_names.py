"""Which cells may have counted what was not answered: by versions of one name, and by tiers that nobody had before."""

from dataclasses import replace

import pytest

from proxy.reconcile.usage_names import Naming, stem
from proxy.reconcile.usage_windows import CellKey, Role
from tests.harness.usage_worlds import DAY, own

ANSWER = own(1, "gpt-4o", "answer", DAY, DAY + 1, (10, 0, 5))
UNKNOWN = own(2, "gpt-4o", "unknown", DAY, 0, (10, 0, 5))


def naming(*keys: CellKey, asked_tier: str | None = None, **answer: str) -> Naming:
    """`answer`: what the one answer on record had."""
    told = replace(ANSWER, **answer)  # type: ignore[arg-type]
    return Naming.learnt([told], frozenset(keys), lambda _: asked_tier)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("openai/gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4-0613", "gpt-4"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-3-5-haiku-latest", "claude-3-5-haiku-20241022"),
        ("claude-opus-4@20250514", "claude-opus-4-20250514"),
        ("gemini-2.5-flash-preview-09-2025", "gemini-2.5-flash"),
        ("text-embedding-005", "text-embedding-004"),
    ],
)
def test_versions_of_a_model_have_one_stem(name: str, same: str) -> None:
    """Whatever was asked for, the provider may answer with another of them tomorrow."""
    assert stem(name) == stem(same)


def test_other_models_have_other_stems() -> None:
    """Else each unknown request would be a doubt in every cell."""
    names = ("gpt-4", "gpt-4o", "gpt-4o-mini", "gpt-4.1-mini", "o4-mini", "gpt-5", "claude-opus-4", "claude-opus-4-1")
    assert len({stem(name) for name in names}) == len(names)


def test_unknown_may_stray_to_each_version_and_tier_of_its_model() -> None:
    """It stands where answers did, and no verdict may hang on that."""
    home, flex, newer = CellKey("gpt-4o", tier="default"), CellKey("gpt-4o", tier="flex"), CellKey("gpt-4o-2026-01-01")
    found = naming(home, flex, newer, CellKey("gpt-4o-mini", tier="flex"), service_tier="default")
    assert found.candidates(UNKNOWN, Role.UNKNOWN) == (home,)
    assert found.strays(UNKNOWN, Role.UNKNOWN) == (flex, newer)
    assert found.strays(ANSWER, Role.ANSWER) == ()


def test_alias_may_stray_to_versions_of_what_it_was_answered_by() -> None:
    """A deployment moves on to the next version by itself."""
    older, newer = CellKey("gpt-4o-2024-05-13"), CellKey("gpt-4o-2024-08-06")
    found = naming(older, newer, CellKey("o9"), asked_model="prod", model=older.model)
    asked = replace(UNKNOWN, asked_model="prod", model="prod")
    assert (found.candidates(asked, Role.UNKNOWN), found.strays(asked, Role.UNKNOWN)) == ((older,), (newer,))


def test_tier_that_a_request_names_wins_over_those_of_answers() -> None:
    """Answers to other requests say what those asked for; `auto` names none; a tier without any row leaves it open."""
    keys = [CellKey("gpt-4o", tier=tier) for tier in ("default", "flex")]
    for asked, cells in (("flex", keys[1:]), ("auto", keys[:1]), (None, keys[:1])):
        found = naming(*keys, asked_tier=asked, service_tier="default")
        assert found.candidates(UNKNOWN, Role.UNKNOWN) == tuple(cells)
        assert set(found.strays(UNKNOWN, Role.UNKNOWN)) == set(keys) - set(cells)
    found = naming(keys[0], asked_tier="priority", service_tier="default")
    assert set(found.candidates(UNKNOWN, Role.UNKNOWN)) == {keys[0], CellKey("gpt-4o", tier="priority")}
