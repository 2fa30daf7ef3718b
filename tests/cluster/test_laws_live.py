"""The first token of the running system follows the target law: a chi-square test with a negative control.

The law is computed in this process from the same documents, model and codec (Eq. 4): of whole distributions for coupled
drafts, whose votes are race lists, and for the lottery, of nuclei for Algorithm 1. The tokens come from the cluster,
one fresh seed each. False-alarm probability 1e-9 for each draft rule. Power: the same counts must reject another law.
For the first two that is the mixture of nuclei, which would be sampled if votes were cut on the way: 0.84^240 of all
samples stay within.
For Algorithm 1 it is the law of the device alone, which would be sampled if the cloud's were lost: 0.90^240 stay within
its nucleus. The question names nobody, else the first token were that name, whatever the documents say.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chi2

from tandem import Tandem
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.document_weights import DocumentWeights, log_weight
from tandem.aggregation.rules import shares, target_distribution
from tandem.codecs import RaceLists, StatelessCodec, TopP
from tandem.config.sampling import SamplingParams
from tandem.config.schema import Config
from tandem.corpora import WEIGHTS
from tandem.engine.drafter import Drafter
from tandem.engine.engine import Engine
from tandem.messages import RetrieveRequest
from tandem.messages.wire import to_float32
from tandem.protocol.decoding import Prefill
from tandem.retrieval.embedding import Embedder
from tandem.retrieval.factory import open_index
from tandem.retrieval.retriever import Retriever
from tandem.topology import PARTIES, Party
from tandem_lab.quality.local import LocalParty

from .conftest import ask_all

QUESTION = "Who likes puzzle games?"
TEMPERATURE = 1.5  # flat enough for many different first tokens
NUM_DRAWS = 240
FALSE_ALARM = 1e-9
CODECS: dict[str, StatelessCodec] = {"coupled": RaceLists(), "lottery": RaceLists(), "algorithm1": TopP()}


def first_laws(config: Config, codec: StatelessCodec) -> tuple[Distribution, Distribution]:
    """The target law of the first token, and the device's own."""
    engine = Engine.load(str(WEIGHTS), num_threads=1)
    embedder = Embedder.load("offline", num_threads=1)
    drafter = Drafter(codec, SamplingParams(temperature=TEMPERATURE), "coupled")
    distributions, log_weights = {}, {}
    for party in PARTIES:
        retriever = Retriever(open_index(party, config, embedder), embedder)
        reader = LocalParty(engine, retriever, drafter, f"law/{party}")
        found = reader.retrieve(
            RetrieveRequest(session=1, query=QUESTION, num_documents=config.party(party).num_documents)
        )
        _, question = reader.prefill(
            Prefill(1, QUESTION, found.texts, 8, scores_question=True, has_baseline=True)
        )
        settings = config.weights
        rule = DocumentWeights(
            tuple(settings.scale * score for score in found.scores),
            settings.evidence,
            settings.memory,
            tuple(settings.question * likelihood for likelihood in question),
        )
        weights = rule.weigh(rule.start)
        distributions[party] = codec.decode(reader.payload((), weights))
        log_weights[party] = to_float32(log_weight(weights))
        reader.close()
    eta_device, _ = shares(log_weights[Party.DEVICE], log_weights[Party.CLOUD])
    return target_distribution(
        distributions[Party.DEVICE], distributions[Party.CLOUD], eta_device
    ), distributions[Party.DEVICE]


def p_value(counts: Counter[int], distribution: Distribution, num_bins: int = 8) -> float:
    """Chi-square of `counts` against `distribution`, whose tokens are put into bins of like probability."""
    order = np.argsort(-distribution.probabilities, kind="stable")
    mass = np.cumsum(distribution.probabilities[order])
    bins = np.minimum((mass * num_bins).astype(int), num_bins - 1)
    bin_of = dict(zip(distribution.ids[order].tolist(), bins.tolist(), strict=True))
    expected = np.bincount(bins, distribution.probabilities[order], num_bins)
    observed = np.zeros(num_bins)
    for token, count in counts.items():
        if token not in bin_of:
            return 0.0  # outside the support
        observed[bin_of[token]] += count
    kept = expected > 0
    expected = expected[kept] / expected[kept].sum() * observed.sum()
    return float(chi2.sf(((observed[kept] - expected) ** 2 / expected).sum(), kept.sum() - 1))


@pytest.mark.nightly("240 answers for each draft rule; live answers equal recorded ones at every change")
@pytest.mark.parametrize("draft_rule", CODECS)
def test_first_token_follows_the_target_law(rag: Tandem, draft_rule: str) -> None:
    config = Config().with_names()
    target, device = first_laws(config, CODECS[draft_rule])
    control = device if draft_rule == "algorithm1" else first_laws(config, TopP())[0]
    assert len(target.ids) > 20, "the test needs a law with many tokens"
    options = {
        "temperature": TEMPERATURE,
        "draft_rule": draft_rule,
        "max_new_tokens": 1,
        "placement": "device",
    }
    answers = ask_all(rag, [(QUESTION, options | {"seed": seed}) for seed in range(NUM_DRAWS)])
    counts = Counter(answer.token_ids[0] for answer in answers)
    assert p_value(counts, target) > FALSE_ALARM
    assert p_value(counts, control) < FALSE_ALARM, "the control must be rejected, or the test shows nothing"
