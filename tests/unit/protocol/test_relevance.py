"""What is estimated, and what weighs: a function of the prefix alone, and no estimation that nothing can use."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tandem.aggregation.document_weights import blend, checkpoints, text_to_score
from tandem.lab.simulation.specs import make_spec
from tandem.protocol.messages import RescoreRequest, RescoreResult
from tandem.protocol.prefix import Prefix
from tandem.protocol.relevance import RelevanceWeights, Weights

EOS = 3
IDS = ("a", "b")


def text(tokens: Any) -> str:
    return " ".join(map(str, tokens))


def score(words: str) -> Weights:
    """Any function of the text."""
    return tuple(Random(f"{name} {words}").random() for name in IDS)


def weights(**changes: Any) -> RelevanceWeights:
    values = {"session": 1, "query": "Why?", "seed": 0, "eos_token_ids": (EOS,), "weight_interval": 3}
    spec = make_spec(**{**values, "relevance_scale": 1.0, **changes})
    made = RelevanceWeights(spec, text)
    made.weights[Prefix(1).digest] = made.scale(score("Why?"))
    return made


def ask(made: RelevanceWeights, prefix: Prefix, ids: tuple[str, ...] = IDS) -> RescoreRequest | None:
    (request,) = [send.message for send in made.request_next(prefix, ids)] or [None]
    assert request is None or isinstance(request, RescoreRequest)
    return request


def answer(made: RelevanceWeights, request: RescoreRequest, prefix: Prefix) -> None:
    made.receive(RescoreResult(session=1, digest=request.digest, scores=score(request.text)), prefix)


def asked(made: RelevanceWeights, prefix: Prefix) -> list[str]:
    """The texts that are scored until nothing is left to ask."""
    texts = []
    while (request := ask(made, prefix)) is not None:
        texts.append(request.text)
        answer(made, request, prefix)
    return texts


def expected(tokens: list[int], interval: int, lag: int, momentum: float) -> Weights:
    """The definition, walked from the beginning."""
    found: Weights | None = None
    for length in checkpoints(len(tokens), interval, lag):
        found = blend(found, score(text_to_score("Why?", text(tokens[:length]))), momentum)
    assert found is not None
    return found


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize(("interval", "lag"), [(1, 0), (2, 1), (3, 1), (3, 4)])
def test_weights_are_a_function_of_the_prefix_whatever_came_before(
    interval: int, lag: int, momentum: float
) -> None:
    """Drafts, rollbacks and late answers at random: at each prefix the weights are those of the definition."""
    rng, num_checked = Random(7), 0
    for _ in range(20):
        made = weights(weight_interval=interval, weight_lag=lag, weight_momentum=momentum, max_new_tokens=200)
        prefix, late = Prefix(1), list[RescoreRequest]()
        for _ in range(60):
            if rng.random() < 0.2:
                prefix.truncate(max(0, len(prefix) - rng.randrange(6)))
            prefix.append(rng.randrange(4, 50))
            if (request := ask(made, prefix)) is not None:
                late.append(request)
            if late and rng.random() < 0.6:
                answer(made, late.pop(), prefix)
            if (got := made.weights_for(prefix, IDS)) is not None:
                num_checked += 1
                assert got == pytest.approx(expected(prefix.tokens, interval, lag, momentum), rel=1e-12)
        while late:
            answer(made, late.pop(), prefix)
        asked(made, prefix)
        assert made.weights_for(prefix, IDS) is not None, "nothing is missing that the next step needs"
    assert num_checked > 100


def test_nothing_is_estimated_that_comes_into_use_after_the_last_token() -> None:
    """Interval 3, lag 1: what is estimated on 6 tokens weighs steps 7 to 9."""
    prefix = Prefix(1, range(4, 10))
    assert asked(weights(max_new_tokens=7), prefix) == ["Why? 4 5 6"]
    assert asked(weights(max_new_tokens=8), prefix) == ["Why? 4 5 6", "Why? 4 5 6 7 8 9"]


def test_nothing_is_estimated_after_a_drafted_end_until_the_end_is_rolled_back() -> None:
    made, prefix = weights(), Prefix(1, (4, 5, EOS))
    assert asked(made, prefix) == []
    prefix.truncate(2)
    prefix.append(6)
    assert asked(made, prefix) == ["Why? 4 5 6"]


def test_a_decoder_that_joins_in_the_middle_estimates_once_without_momentum() -> None:
    prefix = Prefix(1, range(4, 24))
    assert asked(weights(), prefix) == [f"Why? {text(range(4, 22))}"]
    assert len(asked(weights(weight_momentum=0.5), prefix)) == 6


def test_earlier_weights_are_estimated_when_a_rollback_needs_them() -> None:
    made, prefix = weights(), Prefix(1, range(4, 24))
    asked(made, prefix)
    prefix.truncate(8)
    assert made.weights_for(prefix, IDS) is None
    assert asked(made, prefix) == ["Why? 4 5 6 7 8 9"]
    assert made.weights_for(prefix, IDS) == score("Why? 4 5 6 7 8 9")


@pytest.mark.parametrize(
    ("device", "cloud", "num_ids", "is_asked"),
    [(4, 0, 1, False), (0, 1, 1, False), (4, 0, 2, True), (4, 16, 1, True), (4, 16, 0, False)],
)
def test_the_only_document_of_both_parties_keeps_its_first_weight(
    device: int, cloud: int, num_ids: int, is_asked: bool
) -> None:
    """Its share is 1, and its party's is 1, whatever its score."""
    made = weights(device_documents=device, cloud_documents=cloud)
    prefix = Prefix(1, range(4, 10))
    assert (ask(made, prefix, IDS[:num_ids]) is not None) == is_asked
    assert (made.weights_for(prefix, IDS[:num_ids]) is None) == is_asked


def test_the_only_document_of_a_worker_matters_where_it_weighs_against_others() -> None:
    """Where weights are fixed, or nobody else has documents, the only one has all the weight."""
    many = {"mode": "federated", "workers": ("ada", "ben"), "documents": {"ada": 1, "ben": 1}}
    assert weights(**many).can_matter(("a",))
    assert not weights(**many, weights=(0.5, 0.5)).can_matter(("a",))
    assert not weights(**{**many, "documents": {"ada": 1, "ben": 0}}).can_matter(("a",))
    assert weights(**many, weights=(0.5, 0.5)).can_matter(("a", "b"))
    assert not weights(**many).can_matter(())
