"""Erasures as somebody would forge them: for a call that is not over, a second time, or without bytes ever kept. And one that is none."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.verifier import Verdict, verify
from tests.verifier.bundles import Line, Parts, digest_of, write
from tests.verifier.forgeries import at, copy
from tests.verifier.story import AGAIN, ANSWERED, CUT, REQUESTS, RESPONSES, SAMPLE, UNKEPT, UNSENT, good_bundle

Forgery = Callable[[Parts, Path], None]


def erase(parts: Parts, call: str, which: str, data: bytes) -> None:
    """A tombstone as the last event of all."""
    last = copy(at(parts, "body.erased"))
    last.record |= {"call": call}
    last.record["data"] |= {"which": which, "digest": digest_of(data)}
    parts.events.append(Line(last.record))


def remove(directory: Path, data: bytes) -> None:
    (directory / "bodies" / digest_of(data)).unlink()


def erase_what_was_never_sent(parts: Parts, directory: Path) -> None:
    erase(parts, UNSENT, "request", REQUESTS[UNSENT])
    remove(directory, REQUESTS[UNSENT])


def erase_what_is_decided_before_it_is_continued(parts: Parts, _: Path) -> None:
    """Somebody may still decide otherwise. (Its bytes stay: the call that continues it keeps them.)"""
    erase(parts, CUT, "request", REQUESTS[CUT])
    tombstone = parts.events.pop()
    parts.events.insert(parts.events.index(at(parts, "call.requested", AGAIN)), tombstone)


def erase_before_it_is_completed(parts: Parts, directory: Path) -> None:
    tombstone = copy(at(parts, "body.erased"))
    tombstone.record |= {"call": ANSWERED}
    tombstone.record["data"]["digest"] = digest_of(RESPONSES[ANSWERED])
    parts.events.insert(parts.events.index(at(parts, "attempt.completed", ANSWERED)), tombstone)
    remove(directory, RESPONSES[ANSWERED])


def erase_what_is_answered_by_an_error(parts: Parts, directory: Path) -> None:
    at(parts, "attempt.interpreted", AGAIN).record["data"]["effect"] = "answered"
    erase(parts, AGAIN, "response", RESPONSES[AGAIN])
    remove(directory, RESPONSES[AGAIN])


def erase_twice(parts: Parts, _: Path) -> None:
    erase(parts, SAMPLE, "response", RESPONSES[SAMPLE])


def erase_what_was_not_kept(parts: Parts, _: Path) -> None:
    erase(parts, UNKEPT, "response", RESPONSES[UNKEPT])


FORGERIES: dict[Forgery, str] = {
    erase_what_was_never_sent: "order_illegal",
    erase_what_is_decided_before_it_is_continued: "order_illegal",
    erase_before_it_is_completed: "order_illegal",
    erase_what_is_answered_by_an_error: "order_illegal",
    erase_twice: "erasure_illegal",
    erase_what_was_not_kept: "erasure_illegal",
}


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_forged_tombstone_is_found(forge: Forgery, tmp_path: Path) -> None:
    """Although chain and inventory are made anew, and the bytes are gone."""
    directory = tmp_path / "bundle"
    parts = good_bundle(directory).parts
    forge(parts, directory)
    write(parts, directory)
    report = verify(directory)
    assert FORGERIES[forge] in {finding.name for finding in report.findings}
    assert report.verdict is Verdict.CONTRADICTION


def test_erasure_of_a_call_that_another_continues_is_no_finding(tmp_path: Path) -> None:
    """Although it was never completed; stage and effect, as the inspections tell them, stay. (What counts its events is stale.)"""
    directory = tmp_path / "bundle"
    parts = good_bundle(directory).parts
    erase(parts, CUT, "request", REQUESTS[CUT])
    write(parts, directory)
    found = {finding.name for finding in verify(directory).findings}
    assert found == {name for name in found if name.startswith(("inspection", "index", "bundle_head"))}


def test_body_that_is_gone_without_a_tombstone_is_found(tmp_path: Path) -> None:
    """Also where another call that kept the same bytes was erased."""
    directory = tmp_path / "bundle"
    parts = good_bundle(directory).parts
    erase(parts, SAMPLE, "request", REQUESTS[SAMPLE])
    remove(directory, REQUESTS[SAMPLE])
    write(parts, directory)
    assert "body_missing" in {finding.name for finding in verify(directory).findings}


def test_erased_body_that_another_call_keeps_is_no_finding_of_its_own(tmp_path: Path) -> None:
    """The tombstone stands for its call alone; what the index and the rows say of it is another matter."""
    directory = tmp_path / "bundle"
    parts = good_bundle(directory).parts
    erase(parts, SAMPLE, "request", REQUESTS[SAMPLE])
    write(parts, directory)
    found = {finding.name for finding in verify(directory).findings}
    assert found.isdisjoint({"erased_body_exists", "body_missing", "erasure_illegal", "order_illegal"})
