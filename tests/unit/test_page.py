"""The page: one file, no script, nothing loaded, the same bytes each time, and no name gets out of its place."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ledger.ids import CallId
from proxy.audit import page
from proxy.audit.report import Ask, By, Reach, Report, report
from proxy.audit.spend import Item
from tests.harness.bills import answered, asked, at, call_of, item
from tests.harness.ledgers import NOW_MS

EVIL = "</text><script>alert(1)</script><img src=x onerror=alert(2)>$x^{\u202e\x00&amp;\"'{{ 7777*7777 }}"
DAY_MS = 24 * 3600 * 1000


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def reported(*items: Item, by: By = By.MODEL) -> Report:
    return report(Ask(by), [call_of(each) for each in items], items, [], Reach())


def many(count: int, model: str = "gpt-5.5") -> list[Item]:
    return [at(item(*answered(model=model)), number, NOW_MS + number * DAY_MS) for number in range(count)]


def test_page_has_no_script_and_loads_nothing() -> None:
    """It may be mailed around: opening it asks nobody for anything, and its policy says so, too."""
    text = page.page(reported(*many(3), at(item(*asked(), "attempt.observed:lost"), 9)), "")
    tags = Tags(text).found
    policy = next(about["content"] for tag, about in tags if about.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert {"script", "link", "img", "iframe", "object", "form", "base", "a"}.isdisjoint({tag for tag, _ in tags})
    for _, about in tags:
        assert not any(name.startswith("on") for name in about)
        assert all((about.get(name) or "#").startswith("#") for name in ("href", "src", "xlink:href"))
    assert not re.search(r"url\((?!#)|@import", text)
    assert text.count("<svg") == 2


def test_hostile_names_stay_text() -> None:
    """Of models, callers and runs: as text in tables, as text in the charts, and never as a template."""
    evil = at(item(*answered(model="gpt-5.5")), 1)
    formula = replace(evil, attempt=replace(evil.attempt, model="$x^{$", call=CallId("call_of_the_formula")))
    named = replace(evil, attempt=replace(evil.attempt, model=EVIL, run=EVIL, caller=EVIL))
    unknown = at(item(*asked(EVIL), "attempt.observed:lost"), 2)
    for by in By:
        text = page.page(
            reported(named, unknown, formula, by=by),
            "",
            [dict.fromkeys(("status", "window", "model", "own", "export", "note"), EVIL)],
        )
        tags = {tag for tag, _ in Tags(text).found}
        assert {"script", "img"}.isdisjoint(tags)
        assert "\u202e" not in text
        assert "\x00" not in text
        assert "{{ 7777*7777 }}" in text
        assert "60481729" not in text


def test_same_report_gives_the_same_bytes() -> None:
    """Two people who audit one ledger can compare what they got."""
    assert page.page(reported(*many(5)), "") == page.page(reported(*many(5)), "")


@pytest.mark.parametrize(
    "items", [[], [item(*asked("nobody-knows"), "attempt.observed:lost")], [item(*answered(model="nobody-knows"))]]
)
def test_page_of_nothing_known_has_no_empty_chart(items: list[Item]) -> None:
    """An axis without bars would look like zero dollars."""
    text = page.page(reported(*items), "")
    assert "<svg" not in text
    assert "Known: $0.00." in text


def test_long_time_and_many_models_say_what_is_left_out() -> None:
    """A chart of what fits, and a note; the table has all of it."""
    items = many(130) + [at(item(*answered(model="gpt-5.5")), 1000 + number) for number in range(20)]
    text = page.page(reported(*items, by=By.TIME), "")
    assert "The newest 120; 10 earlier ones are in the table." in text
    assert text.count('<td class="name">') == 130


def test_comparison_stands_on_the_page_only_where_there_is_one() -> None:
    """The lead of the export's audit hands in lines."""
    line = {"status": "agrees", "window": "one hour", "model": "m", "own": 1, "export": 1, "note": "as counted"}
    assert "as counted" in page.page(reported(), "", [line])
    assert "own export" not in page.page(reported(), "")
