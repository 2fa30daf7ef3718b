"""What both parties' real models answer together without drafts, links or compression: the draft-free loop.

With race lists as votes the running system commits exactly these tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tandem.codecs import RaceLists
from tandem.engine.drafter import Drafter
from tandem.engine.engine import Engine
from tandem.engine.tokenizer import Detokenizer, StopRule
from tandem.modes import reference
from tandem.modes.spec import SessionSpec
from tandem.retrieval.retriever import Retriever
from tandem.topology import PARTIES, Party
from tandem_lab.quality.local import LocalParty, LocalVoter


def answer_uncompressed(
    spec: SessionSpec, engines: Mapping[Party, Engine], retrievers: Mapping[Party, Retriever]
) -> list[int]:
    """The tokens of a query in dual mode with coupled drafts, or at temperature 0; in mode speculative the cloud's."""
    spec = replace(spec, session=1, eos_token_ids=tuple(engines[Party.DEVICE].eos_token_ids))
    detokenizer = Detokenizer(engines[Party.DEVICE].tokenizer_json)
    rule = StopRule.of(spec.eos_token_ids, spec.sampling, detokenizer)
    models = {
        party: LocalParty(
            engines[party],
            retrievers[party],
            Drafter(RaceLists(), spec.sampling, spec.decoding.draft_rule, spec.vocab_size),
            f"uncompressed/{party}",
        )
        for party in PARTIES
    }

    def is_complete(tokens: Sequence[int]) -> bool:
        return bool(tokens) and rule.find_reason(tokens) is not None

    try:
        seed = spec.seed if spec.sampling.temperature > 0 else None
        if spec.decoding.mode == "speculative":
            return reference.speculative(
                LocalVoter(spec, Party.CLOUD, models[Party.CLOUD]), is_complete, seed
            )
        device, cloud = (LocalVoter(spec, party, models[party]) for party in PARTIES)
        return reference.dual(device, cloud, is_complete, seed)
    finally:
        for model in models.values():
            model.close()
