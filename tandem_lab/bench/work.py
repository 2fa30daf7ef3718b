"""What the actors of a cluster have done, read from their statistics before and after. Knows a running cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tandem.client.tandem import Tandem


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the actors have done so far."""

    num_forwards: dict[str, int]
    num_abandoned: dict[str, int]
    decode_s: dict[str, float]
    cpu_s: dict[str, float]  # by process: "party/role", or "party/role+role" where actors share one
    num_messages: dict[str, int]  # between the draft queues, by sender

    @classmethod
    def of(cls, tandem: Tandem) -> Work:
        """Takes a round trip."""
        actors = {actor["name"]: actor for actor in tandem.status()["actors"]}
        parties = tandem.config.parties
        decoders = {str(party): actors[f"{party}/decoder"]["extra"] for party in parties}
        links = {str(party): actors[f"{party}/draft_queue"]["links"] for party in parties}
        return cls(
            num_forwards={party: round(extra["num_forwards"]) for party, extra in decoders.items()},
            num_abandoned={party: round(extra["num_abandoned"]) for party, extra in decoders.items()},
            decode_s={party: extra["decode_s"] for party, extra in decoders.items()},
            cpu_s=_by_process(actors.values()),
            num_messages={
                party: sum(
                    link[f"{peer}/draft_queue"]["writes"]
                    for peer in parties
                    if peer != party and f"{peer}/draft_queue" in link
                )
                for party, link in links.items()
            },
        )

    def since(self, before: Work) -> Work:
        """What came on top."""
        return Work(
            num_forwards=_minus(self.num_forwards, before.num_forwards),
            num_abandoned=_minus(self.num_abandoned, before.num_abandoned),
            decode_s=_minus(self.decode_s, before.decode_s),
            cpu_s=_minus(self.cpu_s, before.cpu_s),
            num_messages=_minus(self.num_messages, before.num_messages),
        )


def _by_process(actors: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """CPU time; each actor reports that of its whole process."""
    found: dict[tuple[str, int], tuple[str, float]] = {}
    for actor in actors:
        party, _, role = actor["name"].partition("/")
        before = found.get((party, actor["pid"]))
        found[party, actor["pid"]] = (f"{before[0]}+{role}" if before else actor["name"], actor["cpu_s"])
    return dict(found.values())


def _minus(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {key: value - other.get(key, 0) for key, value in one.items()}
