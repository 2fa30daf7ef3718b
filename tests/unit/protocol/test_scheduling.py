"""A scheduler sends estimates under every placement, and advice under greedy alone."""

from __future__ import annotations

from math import inf, isfinite, nan
from typing import Any

import pytest

from tandem.messages import Estimate, Placement, Profile
from tandem.protocol.routes import Send
from tandem.protocol.services import SchedulingSession
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.specs import make_spec


def profile(aggregator: Party = Party.DEVICE, **changes: Any) -> Profile:
    """Remote drafts of the cloud mostly fail: the cloud should aggregate."""
    values: dict[str, Any] = {
        "session": 1, "step": 3, "aggregator": PARTIES.index(aggregator), "decode_s": (0.06, 0.06),
        "acceptance": (0.95, 0.2), "rtt_s": 0.3, "rtt_average_s": 0.3,
        "bytes_per_s": inf, "notes": (),
    }  # fmt: skip
    return Profile(**{**values, **changes})


def session(placement: str, party: Party = Party.DEVICE) -> SchedulingSession:
    return SchedulingSession(make_spec(session=1, query="q", seed=0, placement=placement), party)  # type: ignore[arg-type]


def estimates(sends: list[Send]) -> list[Estimate]:
    return [send.message for send in sends if send.to == "draft_queue"]


def advice(sends: list[Send]) -> list[Party]:
    assert all(isinstance(send.message, Placement) for send in sends if send.to == "aggregator")
    return [PARTIES[send.message.aggregator] for send in sends if send.to == "aggregator"]


@pytest.mark.parametrize("placement", ["device", "cloud", "mirror", "random"])
@pytest.mark.parametrize("party", PARTIES)
def test_other_placements_are_estimated_and_never_advised(placement: str, party: Party) -> None:
    for seen in (profile(), profile(Party.CLOUD), profile(rtt_s=nan, decode_s=(nan, 0.06))):
        sends = session(placement, party).receive(seen)
        (estimate,) = estimates(sends)
        assert advice(sends) == []
        assert estimate.chosen == seen.aggregator
        assert estimate.profile is seen


def test_greedy_advises_its_own_aggregator_to_hand_over() -> None:
    on_device = session("greedy", Party.DEVICE)
    assert advice(on_device.receive(profile(Party.DEVICE))) == [Party.CLOUD]
    assert advice(on_device.receive(profile(Party.DEVICE))) == [
        Party.CLOUD
    ]  # repeated: it may have restarted


@pytest.mark.parametrize("bad", [nan, 0.0, inf, -1.0, 6.0])
def test_gaps_leave_it_finite_and_are_named(bad: float) -> None:
    seen = profile(decode_s=(bad, 0.06), acceptance=(nan, 0.2), rtt_s=bad)
    (estimate,) = estimates(session("greedy").receive(seen))
    assert isfinite(estimate.delta_z_s)
    assert any("acceptance rate of the device" in sentence for sentence in estimate.assumed)
