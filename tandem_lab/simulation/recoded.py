"""One seeded answer in the simulator, with a codec of your own."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from tandem.aggregation.document_weights import Weights
from tandem.codecs import Codec, CodecStates
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.scenario import make_scenario
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.virtual import Outcome, SiteModel, VirtualRun
from tandem_lab.simulation.world import CODEC, VOCAB, World, stop_rule


class RecodedWorld(World):
    """A party's scripted model whose distributions go through another codec."""

    def __init__(self, seed: int, party: Party, codec: Codec) -> None:
        super().__init__(seed, party, first_end=12)
        self.states = CodecStates(codec)

    def payload(self, tokens: Sequence[int], weights: Weights, lineage: Sequence[bytes] = ()) -> bytes:
        """The encoded distribution of one step."""
        return self.states.encode(CODEC.decode(super().payload(tokens, weights)).dense(VOCAB), lineage)


def simulate_codec(codec: Codec, seed: int, link: Link | None = None, **settings: Any) -> Outcome:
    """One answer of scripted models, coupled drafts, every frame encoded and decoded by the protocol.

    settings: fields of the session's spec, such as placement="mirror" or max_window=1; with RaceLists a race_depth.
    """
    spec = change_spec(
        make_scenario(seed).spec,
        draft_rule="coupled",
        on_peer_loss="wait",
        vocab_size=VOCAB,
        **{"race_depth": 0, "patience_s": inf, **settings},
    )
    models: dict[Party, SiteModel] = {party: RecodedWorld(seed, party, codec) for party in PARTIES}
    return VirtualRun(spec, models, codec, finished=stop_rule(16, 12), link=link or Link(), seed=seed).run()
