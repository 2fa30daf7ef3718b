"""Federated queries that are asked at a worker: the tokens of the draft-free loop, whatever is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tandem.messages import LinkBody, Verdict
from tandem.protocol.peer import Peer
from tandem.protocol.report import Reporter
from tandem.protocol.routes import Routes, Send
from tandem.protocol.session import Session
from tandem.topology import SERVER
from tandem_lab.simulation import fuzz
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.scenario import Fault, Scenario, make_chain_scenario
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.virtual import InvariantError
from tandem_lab.simulation.watched import WatchedRun
from tests.unit.lab.simulation.test_mutants import put


def asked_at(worker: str, seed: int, num_workers: int, *faults: Fault, **changes: Any) -> Scenario:
    """A scenario of a long answer in which only these faults are planted."""
    scenario = make_chain_scenario(seed, num_workers)
    values: dict[str, Any] = {
        "workers": scenario.spec.roles.voters, "home": worker, "on_peer_loss": "continue",
        "peer_loss_margin_s": 0.3, "max_new_tokens": 40, "max_proposal": 2, "pacing": "pipelined",
        "length_policy": "fixed", **changes,
    }  # fmt: skip
    return replace(
        scenario,
        drafter="good",
        spec=change_spec(scenario.spec, **values),
        faults=faults,
        cancel_s=None,
        is_rounding=False,
        restarts=0.0,
        link=Link(delay_s=0.05, is_in_order=True),
        frames={},
        first_end=1 << 30,
        model_s=dict.fromkeys(scenario.model_s, 0.1),
    )


def cut(party: str, seconds: float = 3.0) -> Fault:
    return Fault(kind="cut", party=party, after_s=0.6, seconds=seconds)


def play(scenario: Scenario, limit_s: float = fuzz.LIMIT_S) -> WatchedRun:
    run = WatchedRun(scenario)
    run.run(limit_s)
    run.check_end()
    return run


def test_about_half_of_the_scenarios_are_asked_at_a_worker() -> None:
    homes = Counter(make_chain_scenario(seed, 2).spec.home for seed in range(100))
    assert set(homes) == {SERVER, "worker-1", "worker-2"}
    assert 30 < homes[SERVER] < 70
    assert all(not make_chain_scenario(seed, 0).spec.decoding.home for seed in range(20))


def test_the_rest_of_a_scenario_does_not_depend_on_who_is_asked() -> None:
    """Recorded seeds keep what they drew before a worker could be asked."""
    scenario = make_chain_scenario(3, 2)
    assert (scenario.drafter, scenario.spec.decoding.max_proposal, len(scenario.faults)) == ("good", 1, 2)


@pytest.mark.parametrize("pacing", ["stop_and_wait", "pipelined"])
def test_who_is_asked_does_not_show_in_the_answer(pacing: str) -> None:
    for seed in range(2):
        answers = {
            tuple(play(asked_at(home, seed, 3, on_peer_loss="wait", pacing=pacing)).committed)
            for home in ("", "worker-1", "worker-3")
        }
        assert len(answers) == 1


def test_the_home_knows_whose_drafts_were_accepted_and_who_was_last() -> None:
    at_server, at_worker = (
        play(asked_at(home, 5, 3, max_proposal=5, pacing="stop_and_wait")) for home in ("", "worker-2")
    )
    assert any(token.device_accepted for token in at_worker.tokens)
    accepted = [[token.device_accepted for token in run.tokens] for run in (at_server, at_worker)]
    assert accepted[0] == accepted[1]
    for run in (at_server, at_worker):
        assert {token.aggregator for token in run.tokens} == {SERVER}
        assert {token.last_voter for token in run.tokens} <= {"worker-1", "worker-2", "worker-3"}


def test_a_home_that_is_cut_off_goes_on_alone_to_the_end() -> None:
    for seed in range(3):
        run = play(asked_at("worker-1", seed, 2, cut("worker-1", 1.5)))
        (lost,) = [event for event in run.peer_events if event.party == SERVER]
        assert lost.is_alone
        assert {token.aggregator for token in run.tokens[lost.step :]} == {"worker-1"}
        assert all(token.is_alone for token in run.tokens[lost.step :])
        assert not any(token.is_alone for token in run.tokens[: lost.step])


# ---- defects -------------------------------------------------------------------------------------------------------


class AuthorityHasTheEvents(Reporter):
    """The client of the server is told, as if it had asked."""

    @property
    def is_home(self) -> bool:
        return self._party == self._spec.roles.topology.authority


class BothHaveTheEvents(Reporter):
    """The client of the server listens."""

    @property
    def is_home(self) -> bool:
        return self._party in (self._spec.home, self._spec.roles.topology.authority)


class HomeIsNotTold(Routes):
    """The home hears what every worker hears."""

    def address(self, verdict: Verdict, *others: Any) -> Any:
        return [(self.verdicts_go_to, verdict)]


class LossesOneStepLate(Reporter):
    """A verdict says who was there for the step before."""

    def note_losses(self, verdict: Verdict, step: int) -> list[Send]:
        sends = super().note_losses(verdict, step)
        for send in sends:
            event = send.message.event
            object.__setattr__(event, "step", event.step + 1)
        return sends


class ServerIsTakenBack(Session):
    """A home that goes on alone listens to a server that is back."""

    def turn_away(self, peer: Peer, body: LinkBody, now_s: float) -> list[Send]:
        peer.liveness.take_back()
        return []


class HomeCountsAll(Session):
    """A home that goes on alone waits for the votes of all."""

    @property
    def present(self) -> tuple[str, ...]:
        lost = self.lost
        return tuple(name for name in self.routes.roles.voters if name not in lost)


Plant = Callable[[pytest.MonkeyPatch], None]


MUTANTS: dict[str, tuple[Plant, str]] = {
    "authority_has_the_events": (put(AuthorityHasTheEvents), "worker-2"),
    "both_have_the_events": (put(BothHaveTheEvents), "worker-2"),
    "home_is_not_told_of_losses": (put(HomeIsNotTold), "worker-2"),
    "losses_one_step_late": (put(LossesOneStepLate), "worker-2"),
    "server_is_taken_back": (put(ServerIsTakenBack), "worker-1"),
    "home_counts_all": (put(HomeCountsAll), "worker-1"),
}
"""By name: the mutant, and who is cut off; worker-1 is home. Without a mutant the tests above play these cuts."""


@pytest.mark.parametrize("name", MUTANTS)
def test_the_comparison_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, party = MUTANTS[name]
    scenarios = [asked_at("worker-1", seed, 2, cut(party, 1.5)) for seed in range(3)]
    plant(monkeypatch)

    def fails(scenario: Scenario) -> bool:
        try:
            play(scenario, 40.0)
        except InvariantError:
            return True
        return False

    assert any(map(fails, scenarios))
