"""What a verdict carries into the claim or to the client: acceptance, authority, differences, evidence, the call in the way."""

from dataclasses import replace
from typing import Any

import pytest

from ledger.events import CallDelivered
from ledger.stages import Effect
from proxy.admission import Ask, Forward, Live, Now, Policy, Refuse, decide
from proxy.codes import Code
from tests.harness.histories import STARTED, Past, Step, completed
from tests.harness.ledgers import DIGEST, NOW_MS, call_id

FIRST = call_id(1)
NOW = Now(NOW_MS + 1000, 120_000)
ASK = Ask("derived", DIGEST, DIGEST, "http://up/v1/x", "exact")
CERTAIN: dict[str, Any] = {"certain_retry": True}
ACCEPTS: dict[str, Any] = {"accepts_attempt": f"{FIRST}.1"}
NOT_SENT: tuple[Step, ...] = (*STARTED, "attempt.observed:not_sent")
LOST: tuple[Step, ...] = (*STARTED, "attempt.observed:lost")
SERVED: tuple[Step, ...] = (*LOST, "reconcile.decided:served")
HAPPENED = completed(Effect.HAPPENED)


def delivered(how: str) -> Step:
    return CallDelivered(how, "forwarded")  # type: ignore[arg-type]


def test_superseded_call_is_judged_by_its_newest_generation() -> None:
    """An accepted attempt is used up: naming it again accepts nothing."""
    past = Past()
    first = past.call(*LOST)
    past.call(*LOST, generation=2, continues=first, why_new="decision")
    refused = decide(replace(ASK, **ACCEPTS), past.history, {}, Policy(), NOW)
    assert isinstance(refused, Refuse)
    assert refused.code is Code.EFFECT_UNKNOWN
    assert refused.call.generation == 2


@pytest.mark.parametrize("setting", [True, False])
def test_accepted_effect_names_attempt_and_authority(setting: bool) -> None:
    """I3: who accepted which attempt stands in the claim; a setting with the digest of its configuration."""
    past = Past()
    past.call(*LOST)
    ask = ASK if setting else replace(ASK, **ACCEPTS)
    plan = decide(ask, past.history, {}, Policy(on_unknown=setting, config_digest="digest"), NOW)
    assert isinstance(plan, Forward)
    assert plan.accepts_attempt == f"{FIRST}.1"
    assert plan.authority is not None
    assert plan.authority.config_digest == ("digest" if setting else None)
    assert not plan.resumed


def test_allowed_difference_of_a_continuation_stands_in_the_plan() -> None:
    """Same intention in another form: the body differs, the canonical one does not."""
    past = Past()
    past.call(*NOT_SENT)
    plan = decide(replace(ASK, body_digest="other", url="http://moved/v1/x"), past.history, {}, Policy(), NOW)  # type: ignore[arg-type]
    assert isinstance(plan, Forward)
    assert plan.differences == ("body", "url")


def test_second_sample_names_its_evidence() -> None:
    """I3: socket open, delivered how, decided how, retry sign, first try owed."""
    past = Past()
    calls = [
        past.call(*(*HAPPENED, delivered("fin"))),
        past.call(*STARTED, occurrence=2),
        past.call(*SERVED, occurrence=3),
    ]
    live = {calls[1]: Live(alive=True, claimed=True)}
    plan = decide(ASK, past.history, live, Policy(), replace(NOW, settled=True))
    assert isinstance(plan, Forward)
    assert plan.evidence == {
        "retry_sign": False,
        "owed_first_try": False,
        "open": [calls[1]],
        "delivered": {calls[0]: ["fin"]},
        "decided": {calls[2]: "served"},
    }


def test_certain_retry_of_nothing_known_says_so_in_its_evidence() -> None:
    """It is treated as unmarked: its first try never reached us; the sign it carried is still a fact."""
    past = Past()
    past.call(*HAPPENED, delivered("next_request"))
    plan = decide(replace(ASK, **CERTAIN), past.history, {}, Policy(), NOW)
    assert isinstance(plan, Forward)
    assert plan.evidence["retry_sign"] is True


def test_refusal_names_the_call_that_stands_in_the_way() -> None:
    """What the client is told to settle is the unknown one, not the newest one."""
    past = Past()
    unknown = past.call(*LOST)
    past.call(*HAPPENED, delivered("fin"), occurrence=2)
    refused = decide(ASK, past.history, {}, Policy(), NOW)
    assert isinstance(refused, Refuse)
    assert (refused.code, refused.call.call) == (Code.EFFECT_UNKNOWN, unknown)
