"""Round trips from echoed stamps, acknowledgement, resend and its back-off, heartbeat, silence."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import isnan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.messages import Heartbeat, LinkFrame, Probe, Verdict, Vote
from tandem.protocol.link import FIRST_FRAMES, FIRST_TIMEOUT_S, MAX_TIMEOUT_S, MIN_TIMEOUT_S, NUM_STAMPS
from tandem.protocol.log import MAX_VERDICT_TOKENS, Prefix
from tandem.protocol.peer import HEARTBEAT_RTTS, HEARTBEAT_S, RECEIPT_S, Peer
from tandem.protocol.routes import Send

UNHURRIED = settings(deadline=None, derandomize=True)
PREFIX = Prefix(1, [4, 5])


def frame(link: Peer, now_s: float, body: object = None) -> LinkFrame:
    sent: LinkFrame = link.send(body or Heartbeat(), PREFIX, now_s).message  # type: ignore[arg-type]
    return sent


def draft(step: int) -> Vote:
    return Vote(
        step=step, digest=step.to_bytes(8, "little"), tokens=(1,), payloads=(b"x",), log_weights=(0.0,)
    )


def verdict(step: int) -> Verdict:
    return Verdict(step=step, tokens=(1,), accepted=(1, 1), acceptance=(127, 127), next_decider=0)


def exchange(start_s: float, offset_s: float, there_s: float, held_s: float, back_s: float) -> float:
    """What the asker measures when the other's clock is ahead by `offset_s`."""
    own, peer = Peer(1, start_s), Peer(1, start_s + offset_s)
    peer.receive(frame(own, start_s), start_s + there_s + offset_s)
    answered_s = start_s + there_s + held_s
    return own.receive(frame(peer, answered_s + offset_s), answered_s + back_s)


@UNHURRIED
@given(st.floats(0, 1e6), st.floats(0, 1e9), st.floats(0, 2), st.floats(0, 600), st.floats(0, 2))
def test_round_trips_do_not_depend_on_the_clocks(
    start_s: float, offset_s: float, there_s: float, held_s: float, back_s: float
) -> None:
    """Offsets of years change nothing."""
    measured_s = exchange(start_s, offset_s, there_s, held_s, back_s)
    if there_s + back_s < 1e-5:
        assert isnan(measured_s) or measured_s < 2e-5
    else:
        assert measured_s == pytest.approx(there_s + back_s, abs=5e-6)


def test_stamps_are_used_again() -> None:
    """Each frame measures its own round trip, however many there were before it."""
    own, peer = Peer(1, 0.0), Peer(1, 0.0)
    for number in range(3 * NUM_STAMPS):
        sent_s = 0.1 * number
        sent = frame(own, sent_s)
        assert 1 <= sent.stamp <= NUM_STAMPS
        peer.receive(sent, sent_s + 0.02)
        assert own.receive(frame(peer, sent_s + 0.03), sent_s + 0.05) == pytest.approx(0.04, abs=5e-6)


def test_an_echo_of_what_was_never_sent_measures_nothing() -> None:
    own = Peer(1, 0.0)
    for echo in (1, NUM_STAMPS + 1, 2**40):
        assert isnan(own.receive(replace(frame(Peer(1, 0.0), 0.0), echo=echo), 1.0))


def test_a_peer_whose_clock_jumped_back_measures_nothing() -> None:
    own = Peer(1, 0.0)
    answer = LinkFrame(
        session=1, view=0, committed=0, committed_digest=PREFIX.digests[0],
        stamp=1, echo=frame(own, 1.0).stamp, held_us=9_000_000, body=Heartbeat(),
    )  # fmt: skip
    assert isnan(own.receive(answer, 2.0))
    assert own.liveness.silence_s(2.0) == 0.0


# ---- resend ----------------------------------------------------------------------------------------------------


def times_of_resends(link: Peer, until_s: float, start_s: float = 0.0) -> list[float]:
    times, now_s = [], start_s
    while now_s < until_s:
        sends = link.due(PREFIX, now_s, [])
        if any(not isinstance(send.message.body, Heartbeat) for send in sends):
            times.append(now_s)
        now_s = round(now_s + 0.05, 6)
    return times


def test_resends_back_off() -> None:
    link = Peer(1, 0.0)
    link.post(draft(2), PREFIX, 0.0)
    times = times_of_resends(link, 30.0)
    assert times[0] == pytest.approx(FIRST_TIMEOUT_S, abs=0.051)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[:3] == pytest.approx([2.0, 4.0, 4.0], abs=0.051)
    assert max(gaps) <= MAX_TIMEOUT_S + 0.051
    assert link.deliveries.num_resent == len(times)


def deliver(sends: list[Send], peer: Peer, now_s: float) -> None:
    """What a coordinator does with frames of the present view: it holds the bodies."""
    for send in sends:
        peer.receive(send.message, now_s)
        peer.acknowledge(send.message, 0, now_s)
        peer.deliveries.receive(send.message.number, now_s)


def test_only_what_was_lost_is_resent_and_its_repetition_is_acknowledged_again() -> None:
    own, peer = Peer(1, 0.0), Peer(1, 0.0)
    own.post(draft(2), PREFIX, 0.0)  # lost
    deliver([own.post(draft(3), PREFIX, 0.0)], peer, 0.01)
    deliver([peer.send(Heartbeat(), PREFIX, 0.01)], own, 0.02)
    (again,) = own.due(PREFIX, FIRST_TIMEOUT_S, [])
    assert (again.message.body, again.message.number) == (draft(2), 1)
    deliver([again, again], peer, 0.6)
    assert peer.deliveries.received == [1, 1]
    deliver([peer.send(Heartbeat(), PREFIX, 0.6)], own, 0.7)
    assert times_of_resends(own, 60.0) == []


# ---- verdicts that wait for a full link ------------------------------------------------------------------------


def stream(link: Peer, num_verdicts: int, start_s: float = 0.0) -> list[Verdict]:
    """Verdicts of one token each, 10 ms apart; those that went out."""
    sent: list[Verdict] = []
    for step in range(num_verdicts):
        for send in link.post_verdict(verdict(step), PREFIX, start_s + 0.01 * step, may_wait=True):
            sent.append(send.message.body)
    return sent


def test_a_frame_holds_no_more_tokens_than_a_verdict_may_have() -> None:
    own = Peer(1, 0.0)
    assert max(len(body.tokens) for body in stream(own, 90)) <= MAX_VERDICT_TOKENS


def proposals(answer: Prefix, *steps: int) -> list[Vote]:
    """Of one token each, as they continue an answer."""
    return [
        replace(draft(step), digest=answer.digests[step], tokens=(answer.tokens[step],)) for step in steps
    ]


def test_proposals_that_nothing_can_accept_any_more_do_not_go_out() -> None:
    """What they propose is committed, or something else is, or another proposal has taken their place."""
    link, peer = Peer(1, 0.0), Peer(1, 0.0)
    for _ in range(FIRST_FRAMES - 1):
        link.send(Heartbeat(), PREFIX, 0.0)
    last = frame(link, 0.0)
    answer, other = Prefix(1, [4, 5, 6, 7, 8]), Prefix(1, [4, 5, 6, 9, 9, 9])
    for proposal in (*proposals(answer, 2, 3, 4), *proposals(other, 3, 4, 5)):
        assert not link.post_vote(proposal, PREFIX, 0.0, may_wait=True)
    peer.receive(last, 0.1)
    link.receive(frame(peer, 0.1), 0.1)
    committed = Prefix(1, [4, 5, 6, 9])
    assert [send.message.body for send in link.release(committed, 0.1)] == proposals(other, 4, 5)


# ---- heartbeat and loss ----------------------------------------------------------------------------------------


def test_an_idle_party_sends_heartbeats_and_a_busy_one_none() -> None:
    link = Peer(1, 0.0)
    beats, now_s = 0, 0.0
    while now_s < 10.0:
        beats += len(link.due(PREFIX, now_s, []))
        now_s += 0.05
    assert beats == pytest.approx(10.0 / (HEARTBEAT_S + 0.05), abs=8)
    for step in range(100):
        now_s += 0.1
        frame(link, now_s, draft(step))
        assert link.due(PREFIX, now_s + 0.05, []) == []


def test_over_a_slow_link_heartbeats_and_receipts_wait_for_its_round_trips() -> None:
    """At 10 kbit/s a heartbeat with its headers takes a tenth of a second: four a second would be half of the link."""
    link = Peer(1, 0.0)
    link.round_trips.rtt_s = 0.8
    beats = [now_s for now_s in (0.05 * tick for tick in range(200)) if link.due(PREFIX, now_s, [])]
    gaps = [after - before for before, after in pairwise(beats)]
    assert min(gaps) >= HEARTBEAT_RTTS * 0.8 - 1e-9
    assert max(gaps) < link.silence_limit_s(0.0) / 2, "one that is lost must not look like a lost peer"
    link.deliveries.receive(1, 20.0)
    frame(link, 20.0)
    link.deliveries.receive(2, 20.0)
    assert link.due(PREFIX, 20.0 + 2 * RECEIPT_S, []) == []
    assert [send.message.received for send in link.due(PREFIX, 20.45, [])] == [(2,)]


def test_resends_wait_for_round_trips_as_they_vary() -> None:
    """Frames that queue behind each other come later and later; nothing of it is lost."""
    own, now_s = Peer(1, 0.0), 0.0
    assert own.round_trips.timeout_s == FIRST_TIMEOUT_S
    for rtt_s in (0.1, 0.3, 0.5, 0.7, 0.9):
        peer, now_s = Peer(1, now_s), now_s + 1.0
        peer.receive(frame(own, now_s), now_s)
        own.receive(frame(peer, now_s), now_s + rtt_s)
    assert 2 * 0.9 <= own.round_trips.timeout_s < MAX_TIMEOUT_S
    own.round_trips.receive(frame(peer, now_s), now_s + 0.01)
    assert own.round_trips.timeout_s > MIN_TIMEOUT_S, "one quick frame does not make the link quick"


@pytest.mark.parametrize(("rtt_s", "limit_s"), [(float("nan"), 1.5), (0.01, 1.5), (0.125, 1.5), (0.3, 2.2)])
def test_the_loss_limit(rtt_s: float, limit_s: float) -> None:
    """max(4 RTT, 0.5 s) + margin."""
    link = Peer(1, 0.0)
    link.round_trips.rtt_s = rtt_s
    assert link.silence_limit_s(1.0) == pytest.approx(limit_s)


@pytest.mark.parametrize(("heard_s", "is_there"), [(0.1, False), (7.4, False), (7.6, True), (15.0, True)])
def test_a_peer_that_owes_is_there_only_if_it_was_heard_of_late(heard_s: float, is_there: bool) -> None:
    """A round trip of 8 s allows 33 s of silence, more than the 15 s of a stall."""
    own, peer = Peer(1, 0.0, "cloud"), Peer(1, 0.0)
    own.round_trips.rtt_s = 8.0
    own.liveness.has_given = True
    for tick in range(152):
        if tick == round(10 * heard_s):
            own.receive(frame(peer, heard_s), heard_s)
        assert own.liveness.find_problem(own.silence_limit_s(1.0), 15.0, tick / 10) is None or tick > 150
        own.liveness.tick("vote", tick / 10)
    problem = own.liveness.find_problem(own.silence_limit_s(1.0), 15.0, 15.1)
    assert problem is not None
    silent = f"The cloud has been silent for {15.1 - heard_s:.1f} s; check the link."
    stalled = "The cloud is there, but has sent nothing that the answer needs for 15.1 s; see its log."
    assert problem == ((stalled, True) if is_there else (silent, False))


# ---- probes ----------------------------------------------------------------------------------------------------


def probed(bytes_per_s: float, delay_s: float = 0.05) -> Peer:
    """A link over which both probes went out and were answered."""
    own, peer = Peer(1, 0.0), Peer(1, 0.0)
    for number, send in enumerate(own.probe(PREFIX, 1.0)):
        there_s = 1.0 + number * 2e-6 + delay_s + len(send.message.body.padding) / bytes_per_s
        peer.receive(send.message, there_s)
        reply = peer.send(Probe(is_reply=True, padding=b""), PREFIX, there_s).message
        own.receive(reply, there_s + delay_s)
    return own


@pytest.mark.parametrize("bytes_per_s", [1e4, 125e3, 1e6])
def test_two_probes_show_the_bandwidth_and_the_longer_one_is_no_round_trip(bytes_per_s: float) -> None:
    link = probed(bytes_per_s)
    assert link.round_trips.rtt_s == pytest.approx(0.1, abs=5e-6)
    assert link.round_trips.take_bytes_per_s() == pytest.approx(bytes_per_s, rel=0.01)
    assert isnan(link.round_trips.take_bytes_per_s()), "each pair of probes tells once"


def test_a_link_that_is_too_fast_to_measure_is_infinite() -> None:
    assert probed(1e12).round_trips.take_bytes_per_s() > 1e8


def test_the_time_that_a_frame_waited_for_its_query_is_no_part_of_the_round_trip() -> None:
    own, peer = Peer(1, 0.0), Peer(1, 0.0)
    peer.receive(frame(own, 0.0), 9.0, waited_s=8.9)
    assert own.receive(frame(peer, 9.1), 9.2) == pytest.approx(0.2, abs=5e-6)
