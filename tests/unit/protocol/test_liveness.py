"""Silence and debts of a peer: who is alive but sends nothing that the answer needs is given up, and how it returns."""

from __future__ import annotations

import pytest

from tandem.protocol.liveness import LONGEST_TICK_S, MAX_STALLS, START_FACTOR, Liveness, Stopwatch


def awake(peer: Liveness, debt: object, since_s: float, until_s: float) -> None:
    """Ticks of a side that is awake meanwhile."""
    for number in range(round((until_s - since_s) / LONGEST_TICK_S) + 1):
        peer.tick(debt, since_s + number * LONGEST_TICK_S)


def test_a_stall_of_one_s_own_is_no_silence_of_the_peer() -> None:
    """Whoever was suspended wakes to its timers first; what arrived meanwhile is read after them."""
    watch = Stopwatch(0.0)
    watch.tick(0.05)
    watch.tick(3600.0)
    assert watch.length_s(3600.0) == pytest.approx(0.05 + LONGEST_TICK_S)
    watch.restart(3600.0)
    watch.tick(7200.0)
    assert watch.length_s(7200.0) == pytest.approx(LONGEST_TICK_S)


def test_silence_of_a_party_whose_ticks_are_always_late_still_grows() -> None:
    watch = Stopwatch(0.0)
    for count in range(1, 41):
        watch.tick(0.5 * count)
    assert watch.length_s(20.0) == pytest.approx(40 * LONGEST_TICK_S)


def test_what_is_heard_before_the_first_tick_after_a_stall_ends_the_silence() -> None:
    watch = Stopwatch(0.0)
    watch.restart(5.0)
    watch.tick(5.0)
    assert watch.length_s(5.0) == 0.0


def test_only_the_same_debt_adds_up_and_only_while_this_side_is_awake() -> None:
    peer = Liveness(0.0)
    awake(peer, "first", 0.0, 5.0)
    assert peer.waited_s(5.0) == pytest.approx(5.0)
    peer.tick("first", 3600.0)
    assert peer.waited_s(3600.0) == pytest.approx(5.0 + LONGEST_TICK_S), "suspended in between"
    peer.tick("second", 3600.1)
    assert peer.waited_s(3600.1) == 0.0
    peer.tick(None, 3600.2)
    assert peer.waited_s(3700.0) == 0.0, "it owes nothing"


def test_frames_of_any_kind_end_silence_and_no_debt() -> None:
    peer = Liveness(0.0)
    for number in range(100):
        peer.tick("vote", number / 10)
        peer.hear(number / 10)
    assert peer.silence_s(10.0) == pytest.approx(0.1)
    assert peer.waited_s(10.0) == pytest.approx(10.0)


def test_the_limit_of_a_stall_follows_the_peer_s_own_pace_within_limits() -> None:
    """Four times the least before the first vote, then the least, then twice the longest wait up to four times it."""
    peer, now_s = Liveness(0.0), 0.0
    assert peer.stall_limit_s(15.0) == START_FACTOR * 15.0
    peer.has_given = True
    assert peer.stall_limit_s(15.0) == 15.0
    for slowest_s, stall_limit_s in ((5.0, 15.0), (10.0, 20.0), (100.0, 60.0), (1.0, 60.0)):
        awake(peer, "vote", now_s, now_s + slowest_s)
        now_s += slowest_s + LONGEST_TICK_S
        peer.tick(None, now_s)
        assert peer.stall_limit_s(15.0) == pytest.approx(stall_limit_s, abs=0.5)
    assert peer.stall_limit_s(1.0) == START_FACTOR


def test_what_was_never_given_is_no_pace() -> None:
    """Else each stall would make the next one longer."""
    peer = Liveness(0.0)
    peer.has_given = True
    awake(peer, "vote", 0.0, 15.0)
    peer.lose(is_stall=True)
    peer.take_back()
    awake(peer, "vote", 15.1, 20.0)
    assert peer.stall_limit_s(15.0) == 15.0


def test_a_silent_peer_returns_by_any_frame_and_a_stalled_one_by_progress_for_a_while() -> None:
    peer = Liveness(0.0)
    peer.lose(is_stall=False)
    assert peer.may_return(makes_progress=False)
    for number in range(1, MAX_STALLS + 1):
        peer.take_back()
        peer.lose(is_stall=True)
        assert not peer.may_return(makes_progress=False)
        assert peer.may_return(makes_progress=True) is (number < MAX_STALLS)
    peer.take_back()
    assert not peer.is_lost
