"""What a simulated query must answer: the draft-free loop of its mode, over the same small worlds.

Nothing of the protocol is used, only the definition of a weight and of a distribution at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.aggregation.document_weights import blend, checkpoints, log_weight, text_to_score
from tandem.aggregation.race_lists import RaceList
from tandem.codecs import StatelessCodec
from tandem.codecs.race_lists import read_vote
from tandem.lab.simulation.virtual import SideModel
from tandem.lab.simulation.world import CODEC, VOCAB, World, codec_for, distribution
from tandem.modes import reference
from tandem.protocol.lifecycle import StopCheck
from tandem.protocol.messages import RescoreRequest, RescoreResult, RetrieveRequest, RetrieveResult
from tandem.protocol.spec import SessionSpec
from tandem.protocol.wire import to_float32
from tandem.topology import Party

Text = Callable[[Sequence[int]], str]


class Documents:
    """What one party has retrieved, and how much it weighs after any tokens."""

    def __init__(self, spec: SessionSpec, party: str, model: SideModel, text: Text) -> None:
        self.spec, self.party, self.text = spec, party, text
        self._model = model
        num_documents = spec.num_documents(party)
        request = RetrieveRequest(session=spec.session, query=spec.search_text, num_documents=num_documents)
        nothing = RetrieveResult(session=spec.session, ids=(), texts=(), scores=(), retrieve_us=0)
        found = model.retrieve(request) if num_documents else nothing
        assert isinstance(found, RetrieveResult)
        self.found = found
        self._weights: dict[tuple[int, ...], tuple[float, ...]] = {}

    def weights(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """The weight of each document at the step after `tokens`: estimate upon estimate, with momentum."""
        key = tuple(tokens)
        if key not in self._weights:
            self._weights[key] = self._weigh(key)
        return self._weights[key]

    def _weigh(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        spec, found = self.spec, self.found
        weights = self._scale(found.scores)
        if not found.ids:
            return weights
        for position in checkpoints(len(tokens), spec.weight_interval, spec.weight_lag)[1:]:
            text = text_to_score(spec.search_text, self.text(tokens[:position]))
            scored = self._model.retrieve(
                RescoreRequest(session=spec.session, digest=b"", ids=found.ids, text=text)
            )
            assert isinstance(scored, RescoreResult)
            weights = blend(weights, self._scale(scored.scores), spec.weight_momentum)
        return weights

    def _scale(self, scores: Sequence[float]) -> tuple[float, ...]:
        return tuple(self.spec.relevance_scale * score for score in scores)


class WorldVoter(Documents):
    """One party's vote after any tokens."""

    def __init__(self, spec: SessionSpec, party: str, first_end: int, text: Text) -> None:
        super().__init__(spec, party, World(spec.seed, party), text)
        self._first_end = first_end

    def __call__(self, tokens: Sequence[int]) -> reference.Vote:
        """The party's distribution, and how much its documents weigh."""
        payload, own_weight = self.payload(tokens), self.log_weight(tokens)
        if self.spec.has_race_lists:  # nothing was compressed: the model's own float32 numbers
            vote = read_vote(payload, VOCAB)
            assert not isinstance(vote, RaceList)
            return reference.Vote([float(mass) for mass in vote], own_weight)
        return reference.Vote([float(mass) for mass in CODEC.decode(payload).dense(VOCAB)], own_weight)

    def log_weight(self, tokens: Sequence[int]) -> float:
        """How much the documents weigh, as it is sent."""
        return to_float32(log_weight(self.weights(tokens)))

    def payload(self, tokens: Sequence[int], redone: int = 0, codec: StatelessCodec | None = None) -> bytes:
        """The encoded distribution, by the codec of votes unless another is given. redone: as in `distribution`."""
        weights, codec = self.weights(tokens), codec or codec_for(self.spec)
        return distribution(
            self.spec.seed, self.party, tuple(tokens), weights, self._first_end, redone, codec
        )


def answer(
    spec: SessionSpec,
    check_stop: StopCheck,
    *,
    first_end: int = 0,
    text: Text = lambda tokens: " ".join(map(str, tokens)),
) -> tuple[int, ...]:
    """The tokens of a query with coupled drafts, or at temperature 0. text: turns tokens into text."""
    voters = [WorldVoter(spec, Party(party), first_end, text) for party in spec.parties]
    seed = spec.seed if spec.sampling.temperature > 0 else None

    def is_complete(tokens: Sequence[int]) -> bool:
        return bool(tokens) and check_stop(tokens) is not None

    if len(voters) == 1:
        return tuple(reference.solo(voters[0], is_complete, seed))
    device, cloud = voters
    return tuple(reference.dual(device, cloud, is_complete, seed))


def has_oracle(spec: SessionSpec) -> bool:
    """Whether the draft-free loop defines the answer: not for Algorithm 1, whose target depends on the drafts."""
    return spec.draft_rule == "coupled" or spec.sampling.temperature == 0
