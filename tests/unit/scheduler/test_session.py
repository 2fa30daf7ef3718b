"""Fixed placements: the scheduler keeps the side that the query names, whatever the profile says."""

from __future__ import annotations

from math import nan

import pytest

from tandem.messages import Profile
from tandem.protocol.spec import SessionSpec
from tandem.scheduler.session import SchedulerSession
from tandem.side import Side


def profile(rtt_s: float, device_s: float, cloud_s: float) -> Profile:
    return Profile(
        session=1, device_decode_s=device_s, cloud_decode_s=cloud_s,
        device_acceptance=0.9, cloud_acceptance=0.1, rtt_s=rtt_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("placement", "side"), [("device", Side.DEVICE), ("cloud", Side.CLOUD), ("mirror", Side.DEVICE)]
)
def test_a_fixed_placement_never_moves(placement: str, side: Side) -> None:
    session = SchedulerSession(SessionSpec(session=1, query="q", seed=0, placement=placement))  # type: ignore[arg-type]
    for seen in (profile(0.0, 1.0, 0.1), profile(0.3, 0.1, 1.0), profile(nan, nan, nan)):
        assert session.observe(seen) == []
        assert session.last_profile is seen
    assert session.aggregator is side


class _Restless(SchedulerSession):
    def _choose(self, profile: Profile) -> Side:
        return Side.CLOUD if profile.rtt_s > 0.1 else Side.DEVICE


def test_an_aggregator_hears_only_of_a_change() -> None:
    session = _Restless(SessionSpec(session=1, query="q", seed=0))
    sent = [session.observe(profile(rtt_s, 0.1, 0.1)) for rtt_s in (0.0, 0.3, 0.3, 0.0)]
    assert [[(send.to, send.message.aggregator) for send in sends] for sends in sent] == [
        [],
        [("aggregator", Side.CLOUD)],
        [],
        [("aggregator", Side.DEVICE)],
    ]
