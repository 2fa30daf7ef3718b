"""Faults of a run, planned from a random generator: what happens to frames, hosts, actors and rounding, and when.

Knows the names of actors and the number of a frame; nothing of what a frame says.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tandem.protocol.outbox import ActorKind
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link, Wire

FrameFault = Literal["drop", "duplicate", "hold"]

FIRST_FRAMES = 14
"""Frames of a direction among which faults are planted one by one: any run sends more."""
HELD_S = 0.4
"""How long a frame is held back, and how far two copies of it lie apart, at most."""
STATELESS: tuple[ActorKind, ...] = ("aggregator", "profiler", "scheduler")
"""Actors whose crash should cost next to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A host stands still, or an actor loses all that it knew."""

    at_step: int  # when the device has committed so many tokens
    after_s: float  # and so much later
    seconds: float  # how long it lasts
    party: Party
    role: ActorKind | None = None  # the actor that crashes; None: the side stalls


class FaultyWire(Wire):
    """One direction of a link that meddles with chosen frames too, and counts what became of all."""

    def __init__(self, link: Link, planted: Mapping[int, FrameFault]) -> None:
        """planted: by the number of the frame in this direction, from 0."""
        super().__init__(link)
        self.counts: Counter[str] = Counter()
        self._planted = planted
        self._num_frames = 0
        self._latest_s = 0.0

    def arrivals(self, now_s: float, num_bytes: int, rng: random.Random) -> list[float]:
        """When copies of a frame sent now arrive; none if it is lost."""
        found = super().arrivals(now_s, num_bytes, rng)
        match self._planted.get(self._num_frames):
            case "drop":
                found = []
            case "duplicate":
                found += [arrival_s + HELD_S * rng.random() for arrival_s in found]
            case "hold":
                self.counts["held"] += len(found)
                found = [arrival_s + HELD_S * rng.random() for arrival_s in found]
            case None:
                pass
        self._num_frames += 1
        self._count(found)
        return found

    def _count(self, found: list[float]) -> None:
        self.counts["dropped"] += not found
        self.counts["duplicated"] += max(0, len(found) - 1)
        for arrival_s in found:
            self.counts["reordered"] += arrival_s < self._latest_s
            self._latest_s = max(self._latest_s, arrival_s)


def plan_frames(rng: random.Random, most: int) -> dict[int, FrameFault]:
    """One to `most` of the first frames of one direction."""
    kinds: tuple[FrameFault, ...] = ("drop", "duplicate", "hold")
    return {rng.randrange(FIRST_FRAMES): rng.choice(kinds) for _ in range(rng.randint(1, most))}


def plan_faults(rng: random.Random, last_step: int, most: int) -> tuple[Fault, ...]:
    """Up to `most` stalls and crashes at any step of an answer, its end included."""
    return tuple(_plan_fault(rng, last_step) for _ in range(rng.randint(0, most)))


def _plan_fault(rng: random.Random, last_step: int) -> Fault:
    at_step, after_s = rng.randint(0, last_step), rng.choice([0.0, 0.1, 0.3]) * rng.random()
    seconds = rng.choice([0.0, 0.0, 0.02, 0.3, 3.0]) * rng.random()
    if rng.random() < 0.25:
        return Fault(at_step=at_step, after_s=after_s, seconds=seconds, party=rng.choice(PARTIES))
    # The device's draft queue holds the user's answer: with it the query is gone.
    party = rng.choice(PARTIES)
    role: ActorKind = rng.choice(("draft_queue", "decoder", rng.choice(STATELESS)))
    if role == "draft_queue":
        party = Party.CLOUD
    return Fault(at_step=at_step, after_s=after_s, seconds=seconds, party=party, role=role)


def plan_link(rng: random.Random) -> Link:
    """A link that delays, and mostly does more than that."""
    start_s = 1.5 * rng.random()
    cut_s = (start_s, start_s + rng.choice([0.3, 2.0, 5.0]) * rng.random()) if rng.random() < 0.15 else None
    return Link(
        delay_s=rng.choice([0.0, 0.0, 0.01, 0.05, 0.15]),
        jitter_s=rng.choice([0.0, 0.02, 0.1, 0.3]),
        drop=rng.choice([0.0, 0.0, 0.05, 0.2]),
        duplicate=rng.choice([0.0, 0.0, 0.1, 0.3]),
        cut_s=cut_s,
        is_in_order=rng.random() < 0.2,
    )
