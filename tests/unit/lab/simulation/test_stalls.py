"""A peer that is alive, acknowledges and sends heartbeats, but stops sending what the answer needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tandem.events import DoneEvent, PeerEvent, TokenEvent
from tandem.messages import LinkFrame, ListRequest, Local
from tandem.protocol.link import MAX_STALLS
from tandem.protocol.routes import Send
from tandem.protocol.session import PROGRESS
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.virtual import VirtualRun
from tandem_lab.simulation.watched import WatchedRun
from tandem_lab.simulation.world import VOCAB
from tests.unit.lab.simulation.world import NEVER, PLACEMENTS, Case, agree, calm, make_spec, synchronous

STALL_S = 2.0
"""Of these queries; 15 s by default."""
STARTS = (0, 3)
"""Tokens after which the peer falls mute."""


def case_of(seed: int, **changes: Any) -> Case:
    changes = {"peer_stall_s": STALL_S, "max_new_tokens": 16, "eos_token_ids": (), **changes}
    return Case(make_spec(seed, **changes), Link(delay_s=0.02))


def expected(case: Case) -> tuple[int, ...]:
    return synchronous(change_spec(case.spec, placement="device", on_peer_loss="wait"))


def long_run(seed: int, num_tokens: int, **changes: Any) -> VirtualRun:
    """Of so many tokens, 30 ms each."""
    case = case_of(seed, on_peer_loss="continue", max_new_tokens=num_tokens, **changes)
    return case.make(lambda party, rng: 0.03, first_end=NEVER)


def mute(run: VirtualRun, is_mute: Callable[[], bool]) -> None:
    """What the cloud's decoder says gets no farther while `is_mute`; its coordinator asks it again and again."""

    def is_lost(party: str, send: Send) -> bool:
        return party is Party.CLOUD and isinstance(send.message, Local) and is_mute()

    run.is_lost = is_lost  # type: ignore[method-assign]


def mute_from(run: VirtualRun, num_tokens: int) -> None:
    def is_mute() -> bool:
        session = run.session(Party.DEVICE)
        return session is None or len(session.prefix) >= num_tokens

    mute(run, is_mute)


def ended(run: VirtualRun) -> tuple[DoneEvent, list[PeerEvent]]:
    """How it ended, and whom the device lost and took back."""
    outcome = run.run(300.0)
    assert outcome.done is not None, "it waits for ever"
    return outcome.done, outcome.of(PeerEvent)


@pytest.mark.parametrize("num_tokens", STARTS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_device_goes_on_without_a_cloud_that_votes_no_more(placement: str, num_tokens: int) -> None:
    for seed in range(3):
        case = case_of(seed, placement=placement, on_peer_loss="continue")
        run = case.make()
        mute_from(run, num_tokens)
        done, changes = ended(run)
        assert done.reason in ("eos", "stop", "length")
        tokens = run.outcome.of(TokenEvent)
        (lost,) = changes or [None]
        if lost is None:  # it ended before
            assert len(tokens) <= num_tokens + 1
            continue
        assert lost.reason is not None
        assert lost.reason.startswith("The cloud is there, but has sent nothing that the answer needs for ")
        waited_s = max(event.committed_s for event in tokens)
        assert waited_s > (4 * STALL_S if num_tokens == 0 else STALL_S)
        together = [event.token for event in tokens if not event.is_alone]
        assert tuple(together) == expected(case)[: len(together)]
        assert done.statistics.degraded_from == len(together)


def test_a_cloud_that_votes_once_after_each_return_is_waited_for_a_few_times_only() -> None:
    run = long_run(2, 400, placement="mirror")
    num_views: list[int] = []

    def is_mute() -> bool:
        session = run.parties[Party.CLOUD].queue.sessions.get(run.spec.session)
        view = -1 if session is None else session.log.view
        num_views.append(view)
        return num_views.count(view) > 1

    mute(run, is_mute)
    done, changes = ended(run)
    assert [event.is_alone for event in changes].count(True) <= MAX_STALLS
    assert done.statistics.num_tokens == 400


def test_a_cloud_that_sends_no_longer_list_is_given_up() -> None:
    lists = {"race_depth": 1, "vocab_size": VOCAB, "draft_rule": "coupled", "temperature": 1.0}
    num_lost = 0
    for seed in range(6):
        run = long_run(seed, 30, placement="mirror", **lists)
        cross = run.cross

        def drop(party: str, peer: str, frame: LinkFrame, cross: Any = cross) -> None:
            if not isinstance(frame.body, ListRequest):
                cross(party, peer, frame)

        run.cross = drop  # type: ignore[method-assign]
        num_lost += len(ended(run)[1]) > 0
    assert num_lost > 0


def test_a_cloud_that_has_always_been_slow_may_be_slow_again() -> None:
    case = case_of(5, placement="mirror", on_peer_loss="continue")
    run = case.make(lambda party, rng: rng.uniform(1.8, 3.4) if party is Party.CLOUD else 0.01)
    assert not ended(run)[1]
    assert agree(run.outcome) == expected(case)


@pytest.mark.parametrize("suspended", [(Party.DEVICE,), PARTIES])
@pytest.mark.parametrize("on_peer_loss", ["continue", "fail"])
def test_a_device_that_was_suspended_does_not_lose_its_cloud(
    suspended: tuple[Party, ...], on_peer_loss: str
) -> None:
    """Its own stall is neither silence nor a stall of the cloud. With both in one process both stand still."""
    for seed, seconds in enumerate((3.0, 50.0, 3.0, 50.0, 3.0)):
        case = case_of(seed, placement="mirror", on_peer_loss=on_peer_loss)
        run = case.make()
        for party in suspended:
            run.at(0.05 + 0.1 * seed, partial(run.stall, party, seconds))
        assert not ended(run)[1]
        assert agree(run.outcome) == expected(case)


def test_a_cut_of_a_slow_link_is_silence_and_no_stall() -> None:
    """Round trips of 2 s allow 11 s of silence. The wait for a vote ends first, and any frame brings the cloud back."""
    num_back = 0
    for seed, placement in enumerate(PLACEMENTS):
        changes = {"on_peer_loss": "continue", "max_new_tokens": 60, "peer_loss_margin_s": 3.0}
        case = case_of(seed, placement=placement, **changes)
        run = case.over(delay_s=1.0).make(lambda party, rng: 0.3, first_end=NEVER)
        run.at(12.0, partial(run.cut, Party.CLOUD, 10.0))
        lost, *back = ended(run)[1]
        assert (lost.is_alone, lost.reason) == (True, None)
        num_back += [event.is_alone for event in back] == [False]
    assert num_back > 2


# ---- modes whose drafter has no vote ---------------------------------------------------------------------------


class MuteRun(WatchedRun):
    """What one party says to the answer is heard no more from some time on; it goes on to acknowledge."""

    mute_party = "cloud"
    mute_s = 0.0
    heard_s = 1e9

    def cross(self, party: str, peer: str, frame: LinkFrame) -> None:
        is_mute = party == self.mute_party and self.mute_s <= self.now_s < self.heard_s
        if not (is_mute and isinstance(frame.body, PROGRESS)):
            super().cross(party, peer, frame)


def mute_run(seed: int, num_workers: int, mute_s: float, **changes: Any) -> MuteRun:
    changes = {"peer_stall_s": STALL_S, "on_peer_loss": "continue", "pacing": "pipelined", **changes}
    if num_workers:
        changes["workers"] = tuple(f"worker-{number}" for number in range(1, num_workers + 1))
    run = MuteRun(calm(seed, num_workers, delay_s=0.02, pass_s=0.03, **changes))
    run.mute_party, run.mute_s = run.spec.roles.voters[-1], mute_s
    return run


@pytest.mark.parametrize(("num_workers", "home"), [(0, ""), (2, ""), (3, ""), (3, "worker-1")])
def test_the_others_go_on_without_a_voter_that_votes_no_more(num_workers: int, home: str) -> None:
    """To the token as the draft-free loop with that loss. A home behind the server does not lose the server for it."""
    num_lost = 0
    for mute_s in (0.0, 0.4):
        for seed in range(2):
            run = mute_run(seed, num_workers, mute_s, home=home, max_new_tokens=40)
            run.run()
            run.check_end()
            lost = [event for event in run.peer_events if event.is_alone]
            assert {event.party for event in lost} <= {run.mute_party}
            num_lost += len(lost)
    assert num_lost > 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_voter_that_votes_again_counts_again(num_workers: int) -> None:
    num_back = 0
    for seed in range(4):
        run = mute_run(seed, num_workers, 0.2, max_new_tokens=200)
        run.heard_s = 4.0
        run.run()
        run.check_end()
        num_back += any(not event.is_alone for event in run.peer_events)
    assert num_back > 0
