"""Federated queries that are asked at a worker: what the home is told, and that defects of it are found.

`test_chain` plays them with faults; `protocol/transcripts/asked_at_a_worker` tells what crosses.
"""

from __future__ import annotations

from typing import Any

import pytest

from tandem.messages import LinkBody, Verdict
from tandem.protocol.peer import Peer
from tandem.protocol.report import Reporter
from tandem.protocol.routes import Routes, Send
from tandem.protocol.session import Session
from tandem.topology import SERVER
from tests.unit.lab.simulation.planted import EVERY_SEED, put
from tests.unit.lab.simulation.test_chain import planted
from tests.unit.lab.simulation.world import calm, played

WORKERS = ("worker-1", "worker-2", "worker-3")


def test_the_home_knows_whose_drafts_were_accepted_and_who_was_last() -> None:
    at_server, at_worker = (
        played(
            calm(
                5, 3, home=home, workers=WORKERS, drafter="good", max_proposal=5, pacing="stop_and_wait",
                length_policy="fixed", on_peer_loss="continue", delay_s=0.05, pass_s=0.1,
            )
        )
        for home in ("", "worker-2")
    )  # fmt: skip
    assert any(token.device_accepted for token in at_worker.tokens)
    accepted = [[token.device_accepted for token in run.tokens] for run in (at_server, at_worker)]
    assert accepted[0] == accepted[1]
    for run in (at_server, at_worker):
        assert {token.aggregator for token in run.tokens} == {SERVER}
        assert {token.last_voter for token in run.tokens} <= set(WORKERS)


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


MUTANTS = {
    "authority_has_the_events": planted(put(AuthorityHasTheEvents), 2, range(8), 2),
    "both_have_the_events": planted(put(BothHaveTheEvents), 2, range(8), 2),
    "home_is_not_told_of_losses": planted(put(HomeIsNotTold), 2, range(8), 3),
    "losses_one_step_late": planted(put(LossesOneStepLate), 2, range(8), 3),
    "server_is_taken_back": planted(put(ServerIsTakenBack), 2, range(8), 2),
    "home_counts_all": planted(put(HomeCountsAll), 2, range(8), 2),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_comparison_finds(name: str) -> None:
    MUTANTS[name].check_witness()


@pytest.mark.nightly(EVERY_SEED)
@pytest.mark.parametrize("name", MUTANTS)
def test_the_witness_is_among_the_seeds_that_find(name: str) -> None:
    MUTANTS[name].check_seeds()
