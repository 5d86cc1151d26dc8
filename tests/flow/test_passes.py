"""What a pass of a run may and may not have: what it waits for when it is closed, another credential, another form, a lost tail."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ledger.events import PassOpened
from ledger.reader import open_reader
from proxy.passes import Passes
from tests.harness.passes import open_pass
from tests.harness.processes import chat, rig, until

TOKENS = [{"Authorization": f"Bearer sk-ant-oat-{number}", "X-Account": "acme"} for number in (1, 2)]


def test_request_queued_when_its_pass_is_closed_is_not_sent(tmp_path: Path) -> None:
    """It was claimed, and waits for its turn at the provider: the next start may have it sent, once; the old one gets `stale_pass`."""
    with rig(tmp_path) as made:
        made.environment["SENDONCE_UPSTREAMS__OPENAI__CONCURRENCY"] = "1"
        made.restart()
        held, queued = chat("synthetic/hold=5", "held"), chat(text="queued")
        first = open_pass(made, "queue")
        with ThreadPoolExecutor() as pool:
            ahead = pool.submit(first.chat, held)
            made.await_receipt(held)
            waiting = pool.submit(first.chat, queued)
            until(lambda: len(made.calls()) == 2)
            second = open_pass(made, "queue")
            assert waiting.result().code == "stale_pass"
            assert ahead.result().status == 200
        assert len(made.provider_receipts()) == 1
        assert second.chat(queued).disposition == "resumed"
        assert len(made.provider_receipts()) == 2


def test_renewed_token_of_a_known_account_goes_on_with_the_run(tmp_path: Path) -> None:
    """The same caller by configuration, with another credential: the pass proves that it is the one who asked."""
    with rig(tmp_path) as made:
        made.environment["SENDONCE_UPSTREAMS__OPENAI__CALLER__ACCOUNT_HEADER"] = "X-Account"
        made.restart()
        body = chat(text="renewed")
        first = open_pass(made, "tokens").chat(body, TOKENS[0])
        again = open_pass(made, "tokens").chat(body, TOKENS[1])
        assert (again.disposition, again.body) == ("replayed", first.body)
        outside = [made.chat(body, {**token, "Idempotency-Key": "outside-of-the-run"}) for token in TOKENS]
        assert [outside[0].disposition, outside[1].code] == ["forwarded", "caller_changed"]


def test_caller_known_by_a_short_lived_token_only_is_a_gate(tmp_path: Path) -> None:
    """Another token is another caller, for whom nothing is on record: whoever starts it again is told beforehand."""
    with rig(tmp_path) as made:
        open_pass(made, "rotates").chat(chat(), TOKENS[0])
        made.settled()
        assert open_pass(made, "rotates").gates == ["caller_rotates"]


def test_answer_in_another_form_is_refused_and_the_pass_stands_where_it_stood(tmp_path: Path) -> None:
    """A refusal gives nothing: asked in the form of the first start, it gets the first occurrence still."""
    with rig(tmp_path) as made:
        body, streamed = chat(text="form"), chat(text="form", stream=True)
        first = open_pass(made, "form").chat(body)
        made.settled()
        second = open_pass(made, "form")
        events = made.status()["events"]
        assert second.chat(streamed).code == "form_differs"
        assert made.status()["events"] == events
        assert second.chat(body).body == first.body
        assert len(made.provider_receipts()) == 1


def test_parked_call_stands_in_the_way_of_other_words(tmp_path: Path) -> None:
    """Parking is the remedy that a refusal prints first: it does not let the same thing be paid for in other words."""
    with rig(tmp_path) as made:
        held = chat("synthetic/hold=forever", "parked")
        with ThreadPoolExecutor() as pool:
            cut = pool.submit(open_pass(made, "parked").cut_chat, held)
            made.await_receipt(held)
            made.restart()
            cut.result()
        (row,) = made.calls()
        assert made.command("reconcile", row["call_id"], "--park", "--reason", "later").returncode == 0
        opened = open_pass(made, "parked")
        assert opened.gates == ["unresolved"]
        assert opened.chat(chat(text="in other words")).code == "run_diverged"
        assert len(made.provider_receipts()) == 1


async def test_newest_pass_is_not_forgotten_for_one_that_was_read_before(tmp_path: Path) -> None:
    """A reading that an opening overtook must not bring the closed pass back."""
    with rig(tmp_path) as made:
        await asyncio.to_thread(open_pass, made, "race")
        await asyncio.to_thread(open_pass, made, "race")
        async with open_reader(made.paths.ledger) as reader:
            (_, first), (_, second) = await reader.passes("race")
            assert isinstance(first, PassOpened)
            passes = Passes(reader, None, made.paths.secret())  # type: ignore[arg-type]
            passes._remember(second)
            assert passes._remember(first).number == 2
            newest = await passes.newest("race")
            assert newest is not None
            assert newest.number == 2
