"""One session as an aggregator sees it: a pair of drafts in, a decision out.

It keeps nothing between steps but the placement that the scheduler last asked for, so a restarted aggregator
decides the same. Knows nothing of the link, Ray or clocks.
"""

from __future__ import annotations

from math import nan

from tandem.aggregation.codec import Codec
from tandem.aggregation.mixture import shares
from tandem.aggregation.rules import draft_rule
from tandem.messages import Decision, Draft, Lone, Pair
from tandem.protocol.spec import SessionSpec
from tandem.side import Side


class AggregatorSession:
    """Decides the steps of one query."""

    def __init__(self, spec: SessionSpec, side: Side, codec: Codec) -> None:
        self.spec = spec
        self.placement = spec.first_aggregator  # who shall aggregate next; the scheduler may change it
        self._side = side
        self._codec = codec
        self._rule = draft_rule(spec.draft_rule, spec.temperature)

    def decide(self, pair: Pair) -> Decision:
        """Algorithm 1 or the coupled race on the two decoded laws (Eq. 4)."""
        eta_device, _ = shares(pair.device.log_weight, pair.cloud.log_weight)
        found = self._rule.verify(
            self._codec.decode(pair.device.law),
            self._codec.decode(pair.cloud.law),
            eta_device=eta_device,
            seed=self.spec.seed,
            step=pair.device.step,
        )
        return Decision(
            session=pair.session,
            generation=pair.generation,
            digest=pair.device.digest,
            step=pair.device.step,
            target=found.target,
            device_accepted=found.device_accepted,
            cloud_accepted=found.cloud_accepted,
            device_acceptance=found.acceptance_device,
            cloud_acceptance=found.acceptance_cloud,
            next_aggregator=self.placement,
        )

    def decide_alone(self, lone: Lone) -> Decision:
        """The peer is lost: the own draft is the target."""
        draft: Draft = lone.draft
        law = self._codec.decode(draft.law)
        target = self._rule.draft(law, seed=self.spec.seed, step=draft.step, side=draft.side)
        return Decision(
            session=lone.session,
            generation=lone.generation,
            digest=draft.digest,
            step=draft.step,
            target=target,
            device_accepted=draft.side is Side.DEVICE,
            cloud_accepted=draft.side is Side.CLOUD,
            device_acceptance=nan,
            cloud_acceptance=nan,
            next_aggregator=self._side,
        )
