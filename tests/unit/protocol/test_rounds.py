"""What becomes of a drafter's proposals: judged once, by the committed tokens alone."""

from __future__ import annotations

from itertools import product
from math import inf, isnan, nan
from typing import Any

import pytest

from tandem.events import ClientEvent, RoundEvent
from tandem.messages import Round, Rounds, Vote
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.rounds import ProposalRounds, count_accepted
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol.talk import vote


def made(**changes: Any) -> ProposalRounds:
    values = {"mode": "speculative", "pacing": "stop_and_wait", "length_policy": "best", "max_proposal": 8}
    spec = make_spec(**{**values, **changes})
    return ProposalRounds(spec, Party.DEVICE)


def proposal(before: tuple[int, ...], *tokens: int) -> Vote:
    return vote(before, tokens, payloads=tuple(b"ab" for _ in tokens), decode_us=1000 * len(tokens))


def commit(
    rounds: ProposalRounds,
    *tokens: int,
    num_new: int = 1,
    now_s: float = 1.0,
    rtt_s: float = nan,
    lost: frozenset[str] | None = frozenset(),
) -> list[Send]:
    link = (rtt_s, nan if isnan(rtt_s) else inf)
    events, sends = rounds.commit(Prefix(1, tokens), num_new, now_s, 0.0, link, lost)
    return [*(Send("client", ClientEvent(1, event)) for event in events), *sends]


def reported(sends: list[Send]) -> list[Round]:
    return [each for send in sends if isinstance(send.message, Rounds) for each in send.message.rounds]


def test_a_count_agrees_with_the_obvious_one() -> None:
    """All proposals of up to three binary tokens after one token, and all committed tokens of up to five."""
    for length, num in product(range(4), range(6)):
        for tokens, committed in product(product((0, 1), repeat=length), product((0, 1), repeat=num)):
            expected: int | None = None
            if num > 1 and committed[0] == 1:
                equal = [one == other for one, other in zip(tokens, committed[1:], strict=False)]
                accepted = equal.index(False) if False in equal else len(equal)
                is_decided = False in equal or accepted == length
                expected = accepted if is_decided else None
            assert count_accepted(proposal((1,), *tokens), Prefix(1, committed)) == expected


def test_a_round_is_reported_once_with_its_time() -> None:
    rounds = made()
    rounds.propose(proposal((5,), 6, 7, 8), 1, 2.0)
    sends = commit(rounds, 5, 6, 9, num_new=2, now_s=2.25)
    (judged,) = reported(sends)
    assert (judged.length, judged.num_accepted, judged.draft_us, judged.num_bytes) == (3, 1, 3000, 6)
    assert judged.waited_s == 0.25
    assert isnan(judged.rtt_s)
    (event,) = (send.message for send in sends if isinstance(send.message, ClientEvent))
    assert event.event == RoundEvent(step=1, length=3, num_accepted=1, judged_s=2.25)
    assert commit(rounds, 5, 6, 9, 10) == []


@pytest.mark.parametrize("changes", [{"length_policy": "fixed"}, {"max_proposal": 0}, {"only": Party.DEVICE}])
def test_nothing_is_observed_where_lengths_do_not_adapt(changes: dict[str, Any]) -> None:
    rounds = made(**changes)
    rounds.propose(proposal((5,), 6, 7), 1, nan)
    assert commit(rounds, 5, 6, 9) == []
