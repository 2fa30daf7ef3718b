"""The weights of rows: what the retriever and the question say of its documents, then how well it predicts.

Every row of a party (a document, some joined in one, or none) is an expert that predicts the next token. Its log weight
at step t is its prior and its evidence from the answer so far, and older evidence counts less and less:

    log w_d(t) = scale * score_d + evidence * e_d(t)
    e_d(0) = question * log p_d(question),  e_d(t+1) = memory * e_d(t) + log p_d(x_t)

p_d is the row's own distribution at temperature 1, without restrictions. With memory 1 this is the posterior of
RAG-Sequence (Lewis et al. 2020); below 1 it is dynamic model averaging with a forgetting factor (Raftery, Karny and
Ettler 2010), by which an answer can move from one document to another. Scoring documents by the likelihood of the
question is unsupervised passage re-ranking (Sachan et al. 2022).

Weights need no normaliser: the same amount added to every row's log weight changes nothing. So a party's weights are a
function of its own rows and of the committed tokens, it can draft as far ahead as it likes, and what crosses with a
vote is one number, the logarithm of the sum of its rows' weights.

NOT in the paper (DRAGON 4.1), which embeds question and answer again every few tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tandem.errors import GenerationError

MIN_PROBABILITY = 1e-6
"""Evidence is cut off here: no single token rules a document out."""

MAX_QUESTION = 32
"""Tokens of a question that count in full. A longer one says as much as so many of its tokens do on average: they
are not independent, and the sum over a page of text would leave one document only."""

Weights = tuple[float, ...]
"""The log weight of each row; none for a party without documents."""
Evidence = tuple[float, ...]
"""e_d of each row after some tokens of the answer."""


def log_evidence(probabilities: Sequence[float]) -> Evidence:
    """The log evidence of one token for each row. probabilities: p_d(token) of each, at temperature 1."""
    return tuple(math.log(max(probability, MIN_PROBABILITY)) for probability in probabilities)


def question_likelihood(total: float, num_tokens: int) -> float:
    """The weight of a question for a row. total: its log likelihood there. num_tokens: how many tokens that sums up."""
    return total * min(1.0, MAX_QUESTION / max(1, num_tokens))


@dataclass(frozen=True, slots=True)
class DocumentWeights:
    """The weights of one party's rows in one session."""

    prior: Weights  # by the scores of the documents
    evidence: float = 0.0  # how much the answer's evidence counts; 0: weights stay what they are
    memory: float = 1.0  # what is kept of it at each step, 0 to 1
    question: Evidence = ()  # what the question said of each row; empty: nothing
    shows_last_only: bool = False  # others hear the weight of the last row alone, which has no document

    @property
    def moves(self) -> bool:
        """Whether question and answer change anything."""
        return self.evidence > 0 and len(self.prior) > 0

    @property
    def start(self) -> Evidence:
        """Before the first token."""
        return (self.question or (0.0,) * len(self.prior)) if self.moves else ()

    def weigh(self, evidence: Evidence) -> Weights:
        """The log weight of each row by the evidence so far."""
        if not self.moves:
            return self.prior
        return tuple(prior + self.evidence * each for prior, each in zip(self.prior, evidence, strict=True))

    def public_log_weight(self, weights: Weights) -> float:
        """The log weight that is sent with a vote, of the rows' log weights. Raises GenerationError as `log_weight`."""
        return log_weight(weights[-1:] if self.shows_last_only else weights)

    def masses(self, weights: Weights, token: Evidence) -> tuple[float, ...]:
        """w_d(t) p_d(x) of each row: how much of the party's probability of a token comes from it. weights: the log
        weights before the token, of any scale. token: of `log_evidence`."""
        top = max(weights)
        total = sum(math.exp(weight - top) for weight in weights)
        return tuple(
            math.exp(weight - top + min(each, 0.0)) / total
            for weight, each in zip(weights, token, strict=True)
        )

    def learn(self, evidence: Evidence, token: Evidence) -> Evidence:
        """The evidence after one more token. token: of `log_evidence`."""
        if not self.moves:
            return evidence
        return tuple(self.memory * old + new for old, new in zip(evidence, token, strict=True))


def log_weight(weights: Sequence[float]) -> float:
    """log h of a party = log-sum-exp of its rows' log weights; no document: -inf. DRAGON Appendix A.1.

    Raises GenerationError as `check_weights` does.
    """
    check_weights(weights)
    largest = max(weights, default=-math.inf)
    if largest == -math.inf:  # -inf - -inf has no value
        return -math.inf
    return largest + math.log(sum(math.exp(weight - largest) for weight in weights))


def check_weights(weights: Sequence[float]) -> None:
    """Raise GenerationError unless every log weight is a number below infinity; -inf is a row without weight."""
    if not all(weight < math.inf for weight in weights):  # nan is not below either
        raise GenerationError(
            f"The log weight of a document is a number below infinity, but they are {list(weights)}; "
            "check the scoring model."
        )
