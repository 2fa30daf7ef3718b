"""One actor as `tandem status` shows it, with what it reports of itself, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from tandem.actors.base import ActorStatistics
from tandem.topology import as_party

State = Literal["alive", "starting", "dead", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorState:
    """One actor of a party, alive or not."""

    name: str  # "party/kind"
    state: State  # absent: nobody has ever heard of it
    process: str = ""  # name of its process, which several actors may share
    actor_id: str = ""  # Ray's, in hexadecimal
    pid: int | None = None
    started_s: float | None = None  # Unix time
    ended_s: float | None = None  # Unix time
    reason: str = ""  # why it has died, where Ray knows

    @property
    def party(self) -> str:
        """The party of the actor."""
        return as_party(self.name.partition("/")[0])

    @property
    def role(self) -> str:
        """Its role within the party."""
        return self.name.partition("/")[2]

    @property
    def is_alive(self) -> bool:
        """Whether it can be called."""
        return self.state == "alive"

    def describe_end(self) -> str:
        """Name, process and reason of a dead actor and those that died with it, for a sentence."""
        details = [f"process {self.pid}" if self.pid else "", self.reason]
        name = self.process or self.name
        return f"{name} ({': '.join(filter(None, details))})" if any(details) else name


def to_dict(actor: ActorState, report: ActorStatistics | None) -> dict[str, Any]:
    """What is known of an actor, and what it reports itself."""
    known = {"party": str(actor.party)} | asdict(actor)
    if report is not None:
        return known | asdict(report)
    return known | ({"state": "silent"} if actor.is_alive else {})
