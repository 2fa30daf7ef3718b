"""Log probabilities of whole runs are those of the draft-free loop, whatever fails, and alter nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tandem.errors import ConfigError
from tandem.events import TokenEvent
from tandem.messages import LinkBody, LinkFrame, Tail, Verdict
from tandem.modes import reference_shaping
from tandem.protocol import link, log, peer
from tandem_lab.simulation import specs
from tandem_lab.simulation.fuzz import scenario_of
from tandem_lab.simulation.oracle import dense_of
from tandem_lab.simulation.scenario import Scenario, make_chain_scenario, make_drafter, voter_of
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.watched import WatchedRun
from tandem_lab.simulation.world import VOCAB
from tests.unit.lab.simulation.world import calm, cut, played

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
    return played(scenario, Listening)


def target_of(run: WatchedRun, event: TokenEvent) -> list[float]:
    """The distribution of a committed token, by the draft-free loop."""
    scenario, spec, before = run.scenario, run.spec, run.committed[: event.step]
    names, weights = spec.roles.voters, None if spec.roles.weighs_by_documents else spec.weights or (1.0,)
    if event.is_alone and not scenario.is_dual:
        return dense_of(spec, make_drafter(scenario)(tuple(before)))
    if event.is_alone:
        names, weights = (spec.home,), (1.0,)
    return reference_shaping.mix([voter_of(scenario, name)(before) for name in names], weights)


def check(run: WatchedRun, *, is_exact: bool) -> None:
    """All alternatives are the target. is_exact: to the bit; else as float32 votes give it."""
    assert run.tokens
    for event in run.tokens:
        target = target_of(run, event)
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


# ---- dual ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("race_depth", [0, 2], ids=["whole", "lists"])
@pytest.mark.parametrize("placement", ["mirror", "device"])
def test_in_mode_dual_they_are_the_mixture_or_the_device_s_own(placement: str, race_depth: int) -> None:
    """Parties crash and are cut off, votes come too late."""
    num_alone = 0
    for seed in range(12):
        scenario = replace(scenario_of(seed, "dual"), slips={}, is_rounding=False)
        changes = {
            "placement": placement,
            "draft_rule": "coupled",
            "race_depth": race_depth,
            "vocab_size": VOCAB,
        }
        run = play(named(scenario, **changes))
        check(run, is_exact=False)
        num_alone += sum(event.is_alone for event in run.tokens)
        without = play(named(scenario, **changes, num_logprobs=None))
        assert not any(event.logprob or event.top_logprobs for event in without.tokens)
    assert num_alone > 0


def test_one_party_alone_names_its_own_distribution() -> None:
    check(play(named(scenario_of(2, "solo"))), is_exact=False)


@pytest.mark.parametrize(
    ("changes", "cause", "remedy"),
    [
        ({"placement": "cloud"}, 'placement "cloud"', 'set placement to "mirror" or "device"'),
        ({"placement": "greedy"}, 'placement "greedy"', 'set placement to "mirror" or "device"'),
        (
            {"mode": "federated", "workers": ("alice", "bob"), "race_depth": 8, "vocab_size": 1 << 17},
            "2 workers",
            "lower max_proposal",
        ),
    ],
)
def test_where_the_home_knows_no_target_they_are_refused(
    changes: dict[str, Any], cause: str, remedy: str
) -> None:
    with pytest.raises(ConfigError, match="num_logprobs") as raised:
        specs.make_spec(num_logprobs=VOCAB, **changes).rules.check_logprobs()
    assert cause in str(raised.value)
    assert remedy in str(raised.value)
    specs.make_spec(**changes).rules.check_logprobs()


# ---- speculative ---------------------------------------------------------------------------------------------------


def test_they_are_the_cloud_s_distribution_whatever_fails_and_alter_nothing() -> None:
    """Frames are lost and doubled, parties crash, stall and are cut off, decoders restart."""
    num_alone = num_resent = 0
    for seed in range(12):
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
    return named(calm(3, 0, **basis, temperature=1.0, max_new_tokens=60, pass_s=0.002), **changes)


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


def test_without_the_cloud_they_are_the_device_s_own() -> None:
    scenario = full_link(on_peer_loss="continue", peer_loss_margin_s=0.1)
    run = play(replace(scenario, faults=cut("cloud", 0.0, NEVER_S)))
    assert all(event.is_alone for event in run.tokens)
    check(run, is_exact=True)


# ---- federated -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("race_depth", [0, 2], ids=["whole", "lists"])
def test_in_a_federation_they_are_the_mixture_of_all_workers(race_depth: int) -> None:
    """Where votes are lists, the workers send them in full to the server that names probabilities."""
    for seed in range(4):
        changes = {"on_peer_loss": "wait", "max_proposal": 2, "race_depth": race_depth, "vocab_size": VOCAB}
        run = play(named(calm(seed, 2, **changes)))
        check(run, is_exact=False)
