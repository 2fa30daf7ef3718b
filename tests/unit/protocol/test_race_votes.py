"""Race lists between two coordinators: what is sent, asked for and answered, once each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tandem.aggregation.race_lists import RaceList
from tandem.codecs import RaceLists
from tandem.codecs.votes import MAX_LISTED, cut_vote, read_vote
from tandem.errors import ProtocolError
from tandem.messages import Ballot, Heartbeat, ListRequest, Local, VerifyResult, Vote
from tandem.protocol.ballots import PATIENCE, ListLength
from tandem.protocol.log import Prefix
from tandem.protocol.routes import Send
from tandem.protocol.session import Session
from tandem.topology import Party
from tandem_lab.simulation.oracle import is_list_of
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol import talk

VOCAB, DEPTH = 40, 2
SPEC = make_spec(placement="mirror", temperature=1.0, vocab_size=VOCAB, race_depth=DEPTH)
EMPTY = Prefix(SPEC.session)


def vote(seed: int) -> bytes:
    """A vote in full."""
    return RaceLists().encode(np.random.default_rng(seed).dirichlet(np.ones(VOCAB)))


def make_list(payload: bytes, depth: int, step: int = 0) -> bytes:
    return cut_vote(payload, depth, VOCAB, seed=SPEC.seed, step=step, temperature=1.0)


def proposal(payload: bytes, prefix: Prefix = EMPTY) -> Vote:
    return talk.vote(prefix, payloads=(payload,), log_weights=(0.0,))


class Side:
    """The device's coordinator, with what it sends."""

    def __init__(self, spec: Any = SPEC) -> None:
        self.session = Session(spec, Party.DEVICE, lambda tokens: None, 0.0, measures=False)
        self.session.begin(0.0)
        self._number = 0

    def propose(self, payload: bytes, prefix: Prefix = EMPTY) -> list[Any]:
        ready = Local(session=SPEC.session, body=proposal(payload, prefix))
        return self._keep(self.session.receive(ready, 1.0))

    def hear(self, body: Any, view: int = 0) -> list[Any]:
        """A frame of the cloud."""
        self._number += 1
        return self._keep(self.session.receive_frame(talk.frame(body, view=view, number=self._number), 1.0))

    def tell(self, message: Any) -> list[Any]:
        """A message of the own aggregator."""
        return self._keep(self.session.receive(message, 1.0))

    def _keep(self, sends: Sequence[Send]) -> list[Any]:
        bodies = [send.message.body if send.to == "peer" else send.message for send in sends]
        return [body for body in bodies if isinstance(body, Vote | ListRequest | Ballot)]


def undecided(depth: int, digest: bytes = EMPTY.digest, view: int = 0) -> VerifyResult:
    return VerifyResult(
        session=SPEC.session, view=view, digest=digest, step=0, voters=(0, 1), depths=(0, depth)
    )


def request(depth: int, prefix: Prefix = EMPTY) -> ListRequest:
    return ListRequest(step=len(prefix), digest=prefix.digest, depth=depth)


# ---- the voter -------------------------------------------------------------------------------------------------


def test_the_peer_gets_a_list_and_the_own_aggregator_the_vote_in_full() -> None:
    side = Side()
    (sent,) = side.propose(vote(1))
    assert sent.payloads == (make_list(vote(1), DEPTH),)
    assert is_list_of(sent.payloads[0], vote(1), SPEC, 0)
    (ballot,) = side.hear(proposal(make_list(vote(2), DEPTH)))
    assert ballot.payloads == (vote(1), make_list(vote(2), DEPTH))


def test_a_request_is_answered_once_from_the_vote_that_was_sent() -> None:
    side = Side()
    side.propose(vote(1))
    assert side.propose(vote(9)) == [], "a vote that a restarted decoder computed again is not the vote"
    (answer,) = side.hear(request(10))
    assert answer.payloads == (make_list(vote(1), 10),)
    assert (answer.digest, answer.tokens) == (EMPTY.digest, (1,))
    assert side.hear(request(10)) == side.hear(request(4)) == []
    (whole,) = side.hear(request(MAX_LISTED + 1))
    assert whole.payloads == (vote(1),)
    assert side.session.race_votes.length.depth > DEPTH


# ---- the decider -----------------------------------------------------------------------------------------------


def asked(side: Side) -> list[Any]:
    side.propose(vote(1))
    side.hear(proposal(make_list(vote(2), DEPTH)))
    return side.tell(undecided(10))


def test_an_open_winner_is_asked_about_once_and_decided_with_the_longer_list() -> None:
    side = Side()
    assert asked(side) == [request(10)]
    assert side.tell(undecided(10)) == [], "a reminder of the aggregator"
    assert side.hear(Heartbeat()) == []
    (ballot,) = side.hear(proposal(make_list(vote(2), 10)))
    assert ballot.payloads == (vote(1), make_list(vote(2), 10))
    assert side.hear(proposal(make_list(vote(2), DEPTH))) == [], "the shorter list, overtaken"
    assert side.tell(undecided(10)) == [], "an answer to the ballot before"
    assert side.tell(undecided(50)) == [request(50)]
    assert side.session.statistics.num_list_requests == 2


# ---- lengths ---------------------------------------------------------------------------------------------------


def test_lists_grow_after_a_request_and_shrink_without_any() -> None:
    length = ListLength(8)
    assert [length.take() for _ in range(PATIENCE)] == [8] * (PATIENCE - 1) + [7]
    length.grow()
    assert length.take() == 9
    for _ in range(100):
        length.grow()
    assert length.take() == 32
    assert min(length.take() for _ in range(100 * PATIENCE)) == 4


def test_a_vote_in_full_comes_back_to_the_bit() -> None:
    dense = np.random.default_rng(1).dirichlet(np.full(VOCAB, 0.01))
    values = read_vote(RaceLists().encode(dense), VOCAB)
    assert not isinstance(values, RaceList)
    assert values.tobytes() == (dense / dense.sum()).astype(np.float32).tobytes()
    decoded = RaceLists().decode(RaceLists().encode(dense), VOCAB)
    assert decoded.argmax() == int(np.argmax(values))
    with pytest.raises(ProtocolError, match="must be a vote in full, got a list of 3 tokens"):
        RaceLists().decode(make_list(vote(1), 3), VOCAB)
