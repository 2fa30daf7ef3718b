"""What a simulated query must answer: the draft-free loop of its mode, over the same small worlds.

Nothing of the protocol is used, only the definition of a weight and of a distribution at each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from tandem.aggregation.coupling import noise
from tandem.aggregation.document_weights import log_weight
from tandem.aggregation.race_lists import RaceList
from tandem.codecs.votes import read_vote
from tandem.errors import ProtocolError
from tandem.messages import RetrieveRequest
from tandem.messages.wire import to_float32
from tandem.modes import SessionSpec, reference_shaping
from tandem.protocol.decoding import DocumentRow, arrange_rows
from tandem_lab.simulation.world import CODEC, VOCAB, World, codec_for, distribution


class Documents:
    """What one party has retrieved, and how much it weighs after any tokens, by the reference page."""

    def __init__(
        self,
        spec: SessionSpec,
        party: str,
        rows: Sequence[DocumentRow],
        likelihoods: Sequence[float],
        readers: Sequence[reference_shaping.Row],
    ) -> None:
        """rows: those that have room. likelihoods: of the question in each. readers: what each says of a token."""
        self.spec, self.party = spec, party
        self._readers = readers
        matters = can_matter(spec, party, len(rows))
        self._evidence = spec.evidence_weight if matters else 0.0
        self._prior = tuple(spec.relevance_scale * row.score for row in rows)
        self._question = tuple(spec.question_weight * likelihood for likelihood in likelihoods)
        self._weights: dict[tuple[int, ...], tuple[float, ...]] = {}

    def weights(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """The log weight of each row at the step after `tokens`."""
        key = tuple(tokens)
        if key not in self._weights:
            strength, memory = self._evidence, self.spec.evidence_memory
            told = self._question if strength else (0.0,) * len(self._prior)
            self._weights[key] = tuple(
                reference_shaping.weigh(
                    self._readers, self._prior, told, key if strength else (), strength, memory
                )
            )
        return self._weights[key]

    def log_weight(self, tokens: Sequence[int]) -> float:
        """How much the documents weigh, as it is sent."""
        return to_float32(log_weight(self.weights(tokens)))


def can_matter(spec: SessionSpec, party: str, num_rows: int) -> bool:
    """Whether weights can change the target: not that of the only row that counts."""
    others = [voter for voter in spec.roles.voters if voter != party and spec.num_documents(voter) > 0]
    return num_rows > 1 or (num_rows == 1 and spec.roles.weighs_by_documents and len(others) > 0)


class WorldVoter(Documents):
    """One party's vote after any tokens, in a small world."""

    def __init__(self, spec: SessionSpec, party: str, first_end: int) -> None:
        world = World(spec.seed, party)
        request = RetrieveRequest(
            session=spec.session, query=spec.search_text, num_documents=spec.num_documents(party)
        )
        rows = arrange_rows(world.retrieve(request), spec.row_layout(party))
        readers = [partial(_WorldRow, world, row) for row in range(len(rows))]
        super().__init__(spec, party, rows, world.question(len(rows)), readers)
        self._first_end = first_end

    def __call__(self, tokens: Sequence[int]) -> reference_shaping.Forecast:
        """The party's distribution, and how much its documents weigh."""
        return reference_shaping.Forecast(dense_of(self.spec, self.payload(tokens)), self.log_weight(tokens))

    def payload(self, tokens: Sequence[int]) -> bytes:
        """The encoded distribution."""
        return distribution(
            self.spec.seed,
            self.party,
            tuple(tokens),
            self.weights(tokens),
            self._first_end,
            codec=codec_for(self.spec),
        )


class _WorldRow:
    """How probable one row of a world finds each token after some tokens."""

    def __init__(self, world: World, row: int, tokens: Sequence[int]) -> None:
        self._world, self._row, self._tokens = world, row, tuple(tokens)

    def __getitem__(self, token: int) -> float:
        return self._world.probability(self._tokens, token, self._row)


def dense_of(spec: SessionSpec, payload: bytes) -> list[float]:
    """The probabilities of an encoded vote in full."""
    if codec_for(spec) is CODEC:
        return [float(mass) for mass in CODEC.decode(payload).dense(VOCAB)]
    vote = read_vote(payload, VOCAB)  # nothing was compressed: the model's own float32 numbers
    assert not isinstance(vote, RaceList)
    return [float(mass) for mass in vote]


def is_list_of(payload: bytes, vote: bytes, spec: SessionSpec, step: int) -> bool:
    """Whether `payload` lists the tokens of a vote in full that score best at `step`, each with its probability.

    The slow and obvious way.
    """
    try:
        found, values = read_vote(payload, spec.vocab_size), read_vote(vote, spec.vocab_size)
    except ProtocolError:
        return False
    if not isinstance(found, RaceList) or isinstance(values, RaceList):
        return False
    clocks = noise(spec.seed, step, np.arange(values.size)) if spec.sampling.temperature else 1.0
    scores = values.astype(np.float64) / clocks
    best = sorted(np.flatnonzero(values), key=lambda token: (-scores[token], token))
    is_complete = found.ids.size == len(best)
    return (
        sorted(best[: found.ids.size]) == found.ids.tolist()
        and values[found.ids].tobytes() == found.values.tobytes()
        and found.is_complete in (False, is_complete)
    )


def has_oracle(spec: SessionSpec) -> bool:
    """Whether the draft-free loop defines the answer: not for Algorithm 1, whose target depends on the drafts."""
    return spec.rules.draft_rule != "algorithm1" or spec.sampling.temperature == 0
