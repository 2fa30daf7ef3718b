"""Mode federated: a server drafts with a small model and decides; workers vote, each with its own documents.

server --Vote: ids--> workers --Vote: distributions, race lists of them, or ids--> server --Verdict--> workers

Votes are mixed by fixed weights, or by the log weights of the workers' documents; that owners of private data vote with
shared randomness is in Hot PATE (Cohen et al., arXiv 2312.02132), too. A lost worker's weight is shared out;
without any the server continues with its drafts. The home may be a worker: then the server relays to it what it alone
knows, the others' sources and losses.
"""

from __future__ import annotations

from math import isfinite

from tandem.errors import ConfigError
from tandem.modes.mode import Proposing
from tandem.modes.query import QuerySpec, Role, Roles
from tandem.modes.tally import Tally
from tandem.topology import SERVER, star


class Federated(Proposing):
    """The server has no vote."""

    name = "federated"
    has_lottery = True

    def assign_roles(self, spec: QuerySpec) -> Roles:
        """Workers have the spec's weights, or weigh by their documents."""
        workers = spec.workers or tuple(f"worker-{number}" for number in range(1, len(spec.weights) + 1))
        weights = spec.weights or (None,) * len(workers)
        _check_workers(workers, spec.weights)
        return Roles(
            topology=star(SERVER, workers, spec.decoding.home),
            roles=(
                Role(drafts=True, decides=True),
                *(Role(votes=True, weight=weight) for weight in weights),
            ),
        )

    @property
    def pacing(self) -> str:
        """Stop-and-wait or pipelined: no voter of many can continue alone, so proposals must ask for votes."""
        pacing = self.spec.decoding.pacing
        return "pipelined" if pacing == "cloud_goes_on" else pacing

    def choose(self, tally: Tally, position: int) -> int | None:
        """The choice with race lists: the winner of the race of the full mixture (Eq. 4), if they make it certain."""
        if not self.has_race_lists:
            return super().choose(tally, position)
        outcome = tally.decide_race(tally.read_votes(position), position)
        return outcome.winner if outcome.is_certain else None


def _check_workers(workers: tuple[str, ...], weights: tuple[float, ...]) -> None:
    """Raises ConfigError, one sentence, if there are too few, or their weights are no shares."""
    shown = ", ".join(f"{weight:g}" for weight in weights)
    if len(workers) < 2:
        raise ConfigError(
            f"Mode federated has 2 or more voters (got {', '.join(workers) or 'none'}); name more workers."
        )
    if weights and len(weights) != len(workers):
        raise ConfigError(
            f"Each of {len(workers)} workers needs a weight (got {len(weights)}); give that many, or none."
        )
    if not all(isfinite(weight) and weight >= 0.0 for weight in weights):
        raise ConfigError(f"In mode federated each voter has a weight of at least 0 (got {shown}); give it.")
    if weights and abs(sum(weights) - 1.0) > 1e-9:
        raise ConfigError(f"The weights of the voters have sum 1 (got {shown}); scale them.")
