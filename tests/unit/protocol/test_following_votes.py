"""Votes that are too large for one message travel in several."""

from __future__ import annotations

import pytest

from tandem.aggregation.document_weights import DocumentWeights
from tandem.messages import RetrieveResult
from tandem.protocol import following
from tandem.protocol.decoding import Forward, Result
from tandem.protocol.following import FollowingSession
from tandem.protocol.prefix import Prefix
from tandem_lab.simulation.specs import make_spec


@pytest.mark.parametrize(("limit", "sizes"), [(10, [1, 1, 1]), (25, [2, 1]), (1000, [3])])
def test_votes_in_full_travel_in_as_many_messages_as_they_need(
    limit: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MAX_VOTES_BYTES", limit)
    spec = make_spec(mode="federated", workers=("ada", "ben"), documents={})
    session = FollowingSession(spec, "ada")
    session.receive(RetrieveResult(session=spec.session, ids=(), texts=(), scores=(), retrieve_us=0))
    session.finish_prefill(1, ())
    prefix = Prefix(spec.session, [4, 5])
    session.prefix.extend([4, 5])
    job = Forward(spec.session, 2, prefix.digest, (4, 5), DocumentWeights(()), (), tuple(prefix.digests), 2)
    sends = session.finish(job, [Result(0, bytes(12), 1)] * 3)
    votes = [send.message.body for send in sends]
    assert [len(each.digests) for each in votes] == sizes
    assert [digest for each in votes for digest in each.digests] == prefix.digests
    assert [each.step for each in votes] == [sum(sizes[:number]) for number in range(len(sizes))]
    assert all(len(each.log_weights) == len(each.digests) for each in votes), "documents decide here"
