"""Votes that are race lists: what is sent of them, and how long they are. What is asked for is in the fuzz property."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from tandem.aggregation.race_lists import RaceList
from tandem.codecs import RaceLists
from tandem.codecs.votes import MAX_LISTED, cut_vote, read_vote
from tandem.errors import ProtocolError
from tandem.messages import ListRequest, Local, Vote
from tandem.protocol.ballots import PATIENCE, ListLength
from tandem.protocol.log import Prefix
from tandem.protocol.routes import Send
from tandem.protocol.session import Session
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol import talk

VOCAB, DEPTH = 40, 2
SPEC = make_spec(placement="mirror", temperature=1.0, vocab_size=VOCAB, race_depth=DEPTH)


def vote(seed: int) -> bytes:
    """A vote in full."""
    return RaceLists().encode(np.random.default_rng(seed).dirichlet(np.ones(VOCAB)))


def make_list(payload: bytes, depth: int) -> bytes:
    return cut_vote(payload, depth, VOCAB, seed=SPEC.seed, step=0, temperature=1.0)


def test_a_request_is_answered_once_from_the_vote_that_was_sent() -> None:
    session = Session(SPEC, Party.DEVICE, lambda tokens: None, 0.0, measures=False)
    session.begin(0.0)
    numbers = itertools.count(1)

    def propose(payload: bytes) -> list[Vote]:
        own = Local(session=1, body=talk.vote(payloads=(payload,), log_weights=(0.0,)))
        return sent(session.receive(own, 1.0))

    def request(depth: int) -> list[Vote]:
        body = ListRequest(step=0, digest=Prefix(1).digest, depth=depth)
        return sent(session.receive_frame(talk.frame(body, number=next(numbers)), 1.0))

    def sent(sends: Sequence[Send]) -> list[Vote]:
        return [body for body in talk.bodies(sends) if isinstance(body, Vote)]

    (first,) = propose(vote(1))
    assert first.payloads == (make_list(vote(1), DEPTH),)
    assert propose(vote(9)) == [], "a vote that a restarted decoder computed again is not the vote"
    (answer,) = request(10)
    assert answer.payloads == (make_list(vote(1), 10),)
    assert (answer.digest, answer.tokens) == (Prefix(1).digest, (1,))
    assert request(10) == request(4) == []
    (whole,) = request(MAX_LISTED + 1)
    assert whole.payloads == (vote(1),)
    assert session.race_votes.length.depth > DEPTH


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
