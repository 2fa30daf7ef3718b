"""Draft rules: how drafts are drawn, and how a pair of distributions becomes the target.

One rule object serves drafting and verifying; all it holds is its name. Every result is a function of (distributions,
shares, seed, step), never of order or time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from tandem.aggregation.acceptance import coupled_acceptance, speculative_acceptance
from tandem.aggregation.coupling import coupled_draw, noise, race
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.mixture import target_distribution
from tandem.aggregation.randomness import Purpose, uniform
from tandem.aggregation.rejection import draw, target_given_drafts
from tandem.errors import ConfigError, did_you_mean
from tandem.topology import Party


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The outcome of one step: the target, both drafts and their expected acceptance."""

    target: int  # the token to commit
    device_token: int  # the device's draft
    cloud_token: int  # the cloud's draft
    acceptance_device: float  # expected, by the rule's formula; 0/1 outcome at temperature 0
    acceptance_cloud: float

    @property
    def device_accepted(self) -> bool:
        """Whether the device's draft is the target."""
        return self.device_token == self.target

    @property
    def cloud_accepted(self) -> bool:
        """Whether the cloud's draft is the target."""
        return self.cloud_token == self.target


class DraftRule(Protocol):
    """How a party drafts and how an aggregator verifies. Distributions are those decoded from the bytes sent."""

    @property
    def name(self) -> str:
        """The rule's name in configuration and handshake."""

    def draft(self, distribution: Distribution, *, seed: int, step: int, party: Party) -> int:
        """A party's draft: a token drawn from its own distribution."""

    def verify(
        self, device: Distribution, cloud: Distribution, *, eta_device: float, seed: int, step: int
    ) -> Verification:
        """The target and both drafts. eta_device: share of the device in [0, 1]."""


class Coupled:
    """Coupled drafts, the default: both drafts and the target share one race; see `coupling`. NOT in the paper."""

    name = "coupled"

    def draft(self, distribution: Distribution, *, seed: int, step: int, party: Party) -> int:
        """The winner of the party's race; the noise is the same for both parties."""
        return coupled_draw(distribution, seed=seed, step=step)

    def verify(
        self, device: Distribution, cloud: Distribution, *, eta_device: float, seed: int, step: int
    ) -> Verification:
        """The target wins the race of the mixture (Eq. 4) with the noise of the drafts."""
        device, cloud = device.spread(), cloud.spread()
        target = target_distribution(device, cloud, eta_device)
        clocks = noise(seed, step, target.ids)
        return Verification(
            target=race(target, clocks),
            device_token=race(device, clocks[target.ids.searchsorted(device.ids)]),
            cloud_token=race(cloud, clocks[target.ids.searchsorted(cloud.ids)]),
            acceptance_device=coupled_acceptance(device, target),
            acceptance_cloud=coupled_acceptance(cloud, target),
        )


class Algorithm1:
    """Independent drafts and Algorithm 1.

    A draft is the quantile of the party's distribution at the uniform number of (seed, party, step), so a verifier
    derives it from the distribution and no token travels. A step's numbers influence no earlier target, so a draft
    that is redrawn with the same number after a rollback still follows its distribution exactly.
    """

    name = "algorithm1"

    def draft(self, distribution: Distribution, *, seed: int, step: int, party: Party) -> int:
        """The quantile of the distribution at the party's own uniform number."""
        return draw(distribution, uniform(seed, Purpose.draft(party), step))

    def verify(
        self, device: Distribution, cloud: Distribution, *, eta_device: float, seed: int, step: int
    ) -> Verification:
        """The target by Algorithm 1: one draw from its distribution given both drafts."""
        device_token = self.draft(device, seed=seed, step=step, party=Party.DEVICE)
        cloud_token = self.draft(cloud, seed=seed, step=step, party=Party.CLOUD)
        distribution = target_given_drafts(device_token, cloud_token, device, cloud, eta_device)
        return Verification(
            target=draw(distribution, uniform(seed, Purpose.DECISION, step)),
            device_token=device_token,
            cloud_token=cloud_token,
            acceptance_device=speculative_acceptance(device, cloud, eta_device),
            acceptance_cloud=speculative_acceptance(cloud, device, 1.0 - eta_device),
        )


class Greedy:
    """Temperature 0: drafts and target are the most probable tokens, whichever rule was requested."""

    def __init__(self, name: str) -> None:
        """name: the rule that was requested."""
        self.name = name

    def draft(self, distribution: Distribution, *, seed: int, step: int, party: Party) -> int:
        """The most probable token; ties go to the lowest id."""
        return distribution.argmax()

    def verify(
        self, device: Distribution, cloud: Distribution, *, eta_device: float, seed: int, step: int
    ) -> Verification:
        """The most probable token of the mixture (Eq. 4)."""
        target = target_distribution(device, cloud, eta_device).argmax()
        device_token, cloud_token = device.argmax(), cloud.argmax()
        return Verification(
            target=target,
            device_token=device_token,
            cloud_token=cloud_token,
            acceptance_device=float(device_token == target),
            acceptance_cloud=float(cloud_token == target),
        )


DRAFT_RULES = (Coupled.name, Algorithm1.name)
"""Names of the draft rules; the first is the default."""


def draft_rule(name: str, temperature: float) -> DraftRule:
    """The rule of that name; at temperature 0 its greedy form. ConfigError on a bad name or number."""
    if name not in DRAFT_RULES:
        raise ConfigError(f"The draft rule {name!r} is unknown; {did_you_mean(name, DRAFT_RULES)}")
    if not (temperature >= 0.0 and math.isfinite(temperature)):
        raise ConfigError(f"The temperature must be finite and >= 0, got {temperature}; set 0 to be greedy.")
    if temperature == 0.0:
        return Greedy(name)
    return Coupled() if name == Coupled.name else Algorithm1()
