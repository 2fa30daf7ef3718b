"""What a healthy link carries while the peer is slow, and what is kept: nothing twice, nothing for ever."""

from __future__ import annotations

import pytest

from tandem.events import TokenEvent
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.virtual import Outcome, VirtualRun
from tests.unit.lab.simulation.world import NEVER, Case, make_spec

RTT_S = 0.05
BESIDES_DRAFTS = 6
"""Frames of an answer that are no drafts, verdicts or heartbeats, at most: probes and their replies, Done."""


class Measured(VirtualRun):
    """A run that remembers the most that any coordinator kept."""

    most_kept = most_held = most_remembered = 0

    def after_event(self, party: str) -> None:
        for party in PARTIES:
            session = self.parties[party].queue.sessions.get(self.spec.session)
            if session is not None:
                held = sum(map(len, session.ballots.entries.values()))
                self.most_kept = max(
                    self.most_kept, max(len(link.deliveries) for link in session.peers.values())
                )
                self.most_held = max(self.most_held, held)
                remembered = sum(map(len, session.ballots.branches.values()))
                self.most_remembered = max(self.most_remembered, remembered)


def run(
    decode_s: dict[Party, float], *, window: int, tokens: int, **changes: object
) -> tuple[Measured, Outcome]:
    spec = make_spec(3, max_window=window, max_new_tokens=tokens, eos_token_ids=(), **changes)
    case = Case(spec, Link(delay_s=RTT_S / 2))
    made = case.make(lambda party, rng: decode_s[party], kind=Measured, first_end=NEVER)
    return made, made.run(3000.0)


@pytest.mark.parametrize(
    ("placement", "peer_s"), [("mirror", 0.3), ("cloud", 1.0), ("device", 1.0), ("mirror", 3.0)]
)
def test_a_slow_peer_on_a_healthy_link_causes_no_resends(placement: str, peer_s: float) -> None:
    _, outcome = run({Party.DEVICE: 0.03, Party.CLOUD: peer_s}, window=16, tokens=74, placement=placement)
    assert outcome.done is not None
    assert outcome.done.statistics.num_tokens == 74
    assert outcome.done.statistics.num_resent_frames == 0
    heartbeats = 2 * outcome.ended_s / 0.25
    drafts = sum(outcome.num_forwards.values())
    receipts = drafts  # of a party that has nothing else to send
    assert outcome.num_frames <= drafts + receipts + 74 + heartbeats + BESIDES_DRAFTS


def test_a_wide_window_keeps_no_dead_branch() -> None:
    """With a window of 200 each rejection leaves up to 200 drafts behind that no answer can need."""
    window = 200
    decode_s = {Party.DEVICE: 0.002, Party.CLOUD: 0.2}
    made, outcome = run(decode_s, window=window, tokens=120, placement="mirror", draft_rule="coupled")
    assert outcome.done is not None
    assert outcome.done.statistics.num_resent_frames == 0
    num_rejected = 120 - outcome.done.statistics.num_device_accepted
    assert num_rejected > 10, "there were dead branches"
    assert made.most_kept <= window + 2
    assert made.most_held <= 2 * (window + 2)
    assert made.most_remembered <= 5 * window


def test_a_device_alone_for_a_minute_keeps_and_sends_next_to_nothing() -> None:
    cut_s, alone_s = 1.0, 59.0
    spec = make_spec(
        3, max_window=16, max_new_tokens=3000, placement="mirror", on_peer_loss="continue", peer_loss_margin_s=0.1,
        eos_token_ids=(),
    )  # fmt: skip
    case = Case(spec, Link(delay_s=RTT_S / 2, cut_s=(cut_s, cut_s + alone_s)))
    made = case.make(lambda party, rng: 0.04, kind=Measured, first_end=NEVER)
    before: list[int] = []
    made.at(cut_s + 1.0, lambda: before.append(made.outcome.num_frames))
    made.at(cut_s + alone_s - 0.1, lambda: before.append(made.outcome.num_frames))
    tokens = made.run(cut_s + alone_s + 5.0).of(TokenEvent)
    alone = [token for token in tokens if token.is_alone]
    assert len(alone) > 1000
    assert not tokens[-1].is_alone
    device, cloud = (made.parties[party].queue.sessions[spec.session] for party in PARTIES)
    shorter = min(len(device.prefix), len(cloud.prefix))  # in the middle of the answer either may be ahead
    assert cloud.prefix.tokens[:shorter] == device.prefix.tokens[:shorter]
    assert made.most_kept <= 2 * 16
    assert before[1] - before[0] <= 2 * 4.1 * alone_s + 10 * 16, (
        "heartbeats both ways, and what the cloud repeats"
    )
