"""Log probabilities where the drafter has no vote: those of the draft-free loop, to the bit, whatever fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tandem.events import TokenEvent
from tandem.messages import LinkBody, LinkFrame, Tail, Verdict
from tandem.modes import reference_shaping
from tandem.protocol import link, log, peer
from tandem_lab.simulation.oracle import dense_of
from tandem_lab.simulation.scenario import Fault, Scenario, make_chain_scenario, make_drafter, voter_of
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.watched import WatchedRun
from tandem_lab.simulation.world import NEVER, VOCAB

NEVER_S = 1e9


class Listening(WatchedRun):
    """Keeps what crosses the links."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.crossed: list[tuple[str, LinkBody]] = []

    def cross(self, party: str, peer: str, frame: LinkFrame) -> None:
        self.crossed.append((party, frame.body))
        super().cross(party, peer, frame)


def named(scenario: Scenario, **changes: Any) -> Scenario:
    spec = change_spec(scenario.spec, **{"num_logprobs": VOCAB, **changes})
    spec.rules.check_logprobs()
    return replace(scenario, spec=spec, cancel_s=None)


def play(scenario: Scenario) -> Listening:
    run = Listening(scenario)
    run.run()
    run.check_end()
    return run


def targets_of(run: WatchedRun, lost: Callable[[TokenEvent], bool]) -> list[list[float]]:
    """The target of each committed token, by the draft-free loop. lost: whether no voter was there."""
    scenario, tokens = run.scenario, run.committed
    spec, draft = scenario.spec, make_drafter(run.scenario)
    voters = [voter_of(scenario, name) for name in spec.roles.voters]
    weights = None if spec.roles.weighs_by_documents else spec.weights or (1.0,)
    targets = []
    for event in run.tokens:
        before = tokens[: event.step]
        if lost(event):
            targets.append(dense_of(spec, draft(tuple(before))))
        else:
            targets.append(reference_shaping.mix([voter(before) for voter in voters], weights))
    return targets


def check(run: WatchedRun, *, is_exact: bool) -> None:
    """All alternatives are the target. is_exact: to the bit; else as float32 votes give it."""
    targets = targets_of(run, lambda event: event.is_alone)
    assert run.tokens
    for event, target in zip(run.tokens, targets, strict=True):
        assert event.logprob is not None
        shown = {top.token: top.logprob for top in event.top_logprobs}
        total = math.fsum(target)
        wanted = {
            token: math.log(mass / (1.0 if is_exact else total)) for token, mass in enumerate(target) if mass
        }
        assert shown == (wanted if is_exact else pytest.approx(wanted, abs=1e-6))
        assert (event.logprob.token, event.logprob.logprob) == (event.token, shown[event.token])
        assert math.fsum(map(math.exp, shown.values())) <= 1.0 + 1e-9
        order = [top.logprob for top in event.top_logprobs]
        assert order == sorted(order, reverse=True)


def verdicts(run: Listening) -> list[Verdict]:
    return [body for _, body in run.crossed if isinstance(body, Verdict)]


# ---- speculative ---------------------------------------------------------------------------------------------------


def test_they_are_the_cloud_s_distribution_whatever_fails_and_alter_nothing() -> None:
    """Frames are lost and doubled, parties crash, stall and are cut off, decoders restart."""
    num_alone = num_resent = 0
    for seed in range(16):
        scenario = named(make_chain_scenario(seed, 0))
        run = play(scenario)
        check(run, is_exact=True)
        assert all(verdict.logprobs for verdict in verdicts(run))
        assert not any(party == "device" for party, body in run.crossed if isinstance(body, Verdict))
        num_alone += sum(event.is_alone for event in run.tokens)
        num_resent += len(verdicts(run)) > len({verdict.step for verdict in verdicts(run)})
        without = play(named(scenario, num_logprobs=None))
        assert not any(event.logprob or event.top_logprobs for event in without.tokens)
        assert not any(verdict.tail for verdict in verdicts(without))
        if not run.peer_events and not without.peer_events:
            assert without.committed == run.committed
    assert num_alone > 0, "no run lost the cloud"
    assert num_resent > 0, "no verdict was sent again"


def full_link(**changes: Any) -> Scenario:
    """Verdicts of a cloud that goes on wait for the link, and are joined."""
    basis = {"pacing": "cloud_goes_on", "max_proposal": 2, "max_window": 32, "on_peer_loss": "wait"}
    scenario = make_chain_scenario(3, 0)
    spec = change_spec(scenario.spec, **{**basis, "temperature": 1.0, "max_new_tokens": 60})
    calm = replace(scenario, spec=spec, faults=(), is_rounding=False, restarts=0.0, first_end=NEVER)
    return named(replace(calm, model_s=dict.fromkeys(scenario.model_s, 0.002)), **changes)


def test_joined_verdicts_hold_those_of_all_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "FIRST_FRAMES", 1)
    run = play(full_link())
    check(run, is_exact=True)
    assert max(len(verdict.tokens) for verdict in verdicts(run)) > 3


def forgetful_join(several: Sequence[Verdict]) -> Verdict:
    """Mutant: of verdicts that are joined, the last one's log probabilities for all."""
    joined, last = log.join_verdicts(several), several[-1]
    return replace(joined, tail=(Tail(logprobs=last.logprobs[-1:] * len(joined.tokens)),))


def test_a_join_that_confuses_tokens_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "FIRST_FRAMES", 1)
    monkeypatch.setattr(peer, "join_verdicts", forgetful_join)
    with pytest.raises(AssertionError):
        check(play(full_link()), is_exact=True)


def test_a_target_of_another_step_is_found() -> None:
    run = play(full_link())
    events, of_tokens = run.outcome.events, run.tokens
    events[events.index(of_tokens[5])] = replace(of_tokens[5], top_logprobs=of_tokens[6].top_logprobs)
    with pytest.raises((AssertionError, KeyError)):
        check(run, is_exact=True)


def test_without_the_cloud_they_are_the_device_s_own() -> None:
    cut = Fault(kind="cut", party="cloud", after_s=0.0, seconds=NEVER_S)
    scenario = replace(full_link(on_peer_loss="continue", peer_loss_margin_s=0.1), faults=(cut,))
    run = play(scenario)
    assert all(event.is_alone for event in run.tokens)
    check(run, is_exact=True)


# ---- federated -----------------------------------------------------------------------------------------------------


def calm_federation(seed: int = 1, **changes: Any) -> Scenario:
    scenario = make_chain_scenario(seed, 2)
    return replace(
        scenario,
        spec=change_spec(scenario.spec, **{"on_peer_loss": "wait", "max_proposal": 2, **changes}),
        faults=(),
        is_rounding=False,
        restarts=0.0,
    )


@pytest.mark.parametrize("race_depth", [0, 2], ids=["whole", "lists"])
def test_in_a_federation_they_are_the_mixture_of_all_workers(race_depth: int) -> None:
    """Where votes are lists, the workers send them in full to the server that names probabilities."""
    for seed in range(4):
        run = play(named(calm_federation(seed, race_depth=race_depth, vocab_size=VOCAB)))
        check(run, is_exact=False)
