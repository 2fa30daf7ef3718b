"""What becomes of a drafter's proposals, by the committed tokens alone; and a policy that hears of them."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tandem.aggregation.rules import Step
from tandem.messages import Alone
from tandem.protocol.ballots import count_accepted, is_open
from tandem.protocol.decoding import DraftingSession, Forward
from tandem.protocol.log import Prefix
from tandem.protocol.routes import Send
from tandem.scheduler.policies import load_length_policy
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol.talk import adopted, decided, vote, votes

POLICY = f"{__name__}:Scripted"


class Scripted:
    """Gives these lengths one after the other, and keeps what it hears."""

    lengths: list[int] = []  # noqa: RUF012 (of the test that runs)
    heard: list[tuple[int, int, float]] = []  # noqa: RUF012

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length

    def choose(self) -> int:
        return self.lengths.pop(0) if len(self.lengths) > 1 else self.lengths[0]

    def observe(self, length: int, num_accepted: int, draft_s: float) -> None:
        self.heard.append((length, num_accepted, draft_s))


@pytest.fixture(autouse=True)
def _loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    load_length_policy(POLICY, {}, "This process")
    monkeypatch.setattr(Scripted, "heard", [])
    monkeypatch.setattr(Scripted, "lengths", [2])


def drafter(*lengths: int, **changes: Any) -> DraftingSession:
    """Without a vote and without documents; the policy gives these lengths."""
    Scripted.lengths = list(lengths)
    values = {
        "mode": "speculative", "pacing": "stop_and_wait", "max_proposal": 8, "length_policy": POLICY,
        "device_documents": 0, **changes,
    }  # fmt: skip
    made = DraftingSession(make_spec(**values), Party.DEVICE)
    made.begin()
    made.finish_prefill(11, ())
    return made


def draft(made: DraftingSession, *tokens: int) -> list[tuple[int, ...]]:
    """Drafts these tokens; returns the proposals that go out."""
    sends: list[Send] = []
    for token in tokens:
        job = made.next_job()
        assert isinstance(job, Forward)
        sends += made.finish(job, [Step(job.step, token, b"", 1000)])
    return [proposal.tokens for proposal in votes(sends)]


def test_a_count_agrees_with_the_obvious_one() -> None:
    """All proposals of up to three binary tokens after one token, and all committed tokens of up to five, with a token
    behind them that is not committed."""
    for length, num in product(range(4), range(6)):
        for tokens, committed in product(product((0, 1), repeat=length), product((0, 1), repeat=num)):
            expected: int | None = None
            if num > 1 and committed[0] == 1:
                equal = [one == other for one, other in zip(tokens, committed[1:], strict=False)]
                accepted = equal.index(False) if False in equal else len(equal)
                is_decided = False in equal or accepted == length
                expected = accepted if is_decided else None
            prefix, proposal = Prefix(1, (*committed, 1)), vote((1,), tokens)
            assert count_accepted(proposal, prefix, num) == expected
            is_other = num > 0 and committed[0] != 1
            assert is_open(proposal, prefix, num) == (expected is None and not is_other)


def test_the_policy_hears_of_each_proposal_once_and_its_length_is_that_of_the_next() -> None:
    made = drafter(2, 3, 1)
    assert draft(made, 5, 6) == [(5, 6)]
    made.receive(decided(0, 5, 7))
    assert Scripted.heard == [(2, 1, 0.002)]
    assert draft(made, 8, 9, 4) == [(8, 9, 4)]
    made.receive(decided(2, 8, 9, 4, 5))
    assert Scripted.heard[1:] == [(3, 3, 0.003)]
    assert draft(made, 3) == [(3,)]


def test_a_proposal_behind_a_rejected_one_says_nothing() -> None:
    made = drafter(2, pacing="pipelined")
    assert draft(made, 5, 6, 7, 8) == [(5, 6), (7, 8)]
    made.receive(decided(0, 5, 9))
    made.receive(decided(2, 1, 1))
    assert Scripted.heard == [(2, 1, 0.002)]


def test_a_proposal_in_two_verdicts_is_one() -> None:
    made = drafter(3, pacing="pipelined")
    assert draft(made, 5, 6, 7) == [(5, 6, 7)]
    made.receive(decided(0, 5))
    assert Scripted.heard == []
    made.receive(decided(1, 6, 7))
    assert Scripted.heard == [(3, 3, 0.003)]


def test_what_may_be_lost_says_nothing() -> None:
    """After a Resync, or where this party goes on alone."""
    for message, step in ((adopted(5), 1), (Alone(session=1, is_alone=True), 0)):
        made = drafter(2, pacing="pipelined")
        draft(made, 5, 6)
        made.receive(message)
        made.receive(decided(step, 9))
        assert Scripted.heard == []


@pytest.mark.parametrize(("wanted", "length"), [(99, 7), (-3, 0)])
def test_no_length_exceeds_the_querys_limit(wanted: int, length: int) -> None:
    assert drafter(wanted, max_proposal=7).length == length


@pytest.mark.parametrize("changes", [{"length_policy": "fixed"}, {"max_proposal": 0}, {"only": Party.DEVICE}])
def test_without_a_choice_no_policy_is_asked(changes: dict[str, Any]) -> None:
    made = drafter(3, **changes)
    made.receive(decided(0, 5))
    assert made.length != 3
    assert Scripted.heard == []
