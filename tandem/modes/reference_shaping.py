"""The second page of the reference: how much rows and voters count, and what a query asks of single tokens.

What is asked of tokens changes each voter's own distribution, before anything is drawn or mixed: `shift` by biases and
penalties, then a grammar's tokens alone, then top_k, the `nucleus` of top_p, and min_p. Like the weights it is a
function of the tokens so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from tandem.aggregation.document_weights import MIN_PROBABILITY
from tandem.aggregation.rules import shares


class Forecast(NamedTuple):
    """A voter's distribution of the next token, and its weight."""

    probabilities: list[float]  # of every token of the vocabulary, of sum 1
    log_weight: float = 0.0  # of the voter's documents; used where weights are not fixed


Voter = Callable[[Sequence[int]], Forecast]
"""The forecast after these tokens."""
Weights = Sequence[float] | None
"""The share of each voter, of sum 1; None: by the log weights that come with their forecasts."""
Limits = Sequence[float] | None
"""The most that each voter may count by its log weights; None: anything."""


class HasTokens(Protocol):
    """Probabilities, of which single ones are asked for."""

    def __getitem__(self, token: int, /) -> float: ...


Row = Callable[[Sequence[int]], HasTokens]
"""How probable one document's row finds each next token after these, at temperature 1."""


# ---- voters --------------------------------------------------------------------------------------------------------


def weigh_votes(votes: Sequence[Forecast], weights: Weights, most: Limits) -> Sequence[float]:
    """How much each vote counts, of sum 1: as given, or by the log weights, within the limits."""
    if weights is not None:
        return weights
    by_documents = shares(*(vote.log_weight for vote in votes))
    return by_documents if most is None else limit(by_documents, most)


def limit(weights: Sequence[float], most: Sequence[float]) -> list[float]:
    """Weights of sum 1, none above its limit: those above have it, the others share the rest as they shared before.

    Whoever is above then has its limit, too. If nobody is left, all count the same.
    """
    limited: list[int] = []
    shared = list(weights)
    while over := [n for n in range(len(weights)) if n not in limited and shared[n] > most[n]]:
        limited = sorted(limited + over)
        free = [n for n in range(len(weights)) if n not in limited]
        if not free:
            return [1 / len(weights)] * len(weights)
        left = 1.0 - sum(most[n] for n in limited)
        total = sum(weights[n] for n in free)
        for n in limited:
            shared[n] = most[n] if len(weights) > 2 else 1.0 - left  # a pair has sum 1 exactly
        for n in free:
            shared[n] = left * (weights[n] / total if total else 1 / len(free))
    return shared


def renormalize(weights: Weights, here: Sequence[int]) -> list[float] | None:
    """The weights of those that are there, of sum 1; None: as before by the log weights, now of their votes alone."""
    if weights is None:
        return None
    left = [weights[number] for number in here] or [1.0]
    if len(here) == len(weights):
        return left
    total = sum(left)
    return [weight / total if total else 1 / len(left) for weight in left]


def mix(votes: Sequence[Forecast], weights: Weights) -> list[float]:
    """The target distribution. Sums run in the voters' order, so that every party computes the same bits."""
    weights = weigh_votes(votes, weights, None)
    target = []
    for token in range(len(votes[0].probabilities)):
        mass = weights[0] * votes[0].probabilities[token]
        for weight, vote in zip(weights[1:], votes[1:], strict=True):
            mass += weight * vote.probabilities[token]
        target.append(mass)
    return target


# ---- rows of one voter ---------------------------------------------------------------------------------------------


def reader(
    rows: Sequence[Callable[[Sequence[int]], list[float]]],
    prior: Sequence[float],
    question: Sequence[float],
    evidence: float,
    memory: float,
) -> Voter:
    """A voter with documents, each in a row of its own, which count as `weigh` says."""

    def vote(tokens: Sequence[int]) -> Forecast:
        weights = weigh(rows, prior, question, tokens, evidence, memory)
        most = max(weights)
        raw = [math.exp(weight - most) for weight in weights]
        votes = [Forecast(row(tokens)) for row in rows]
        return Forecast(mix(votes, [each / sum(raw) for each in raw]), most + math.log(sum(raw)))

    return vote


def weigh(
    rows: Sequence[Row],
    prior: Sequence[float],
    question: Sequence[float],
    tokens: Sequence[int],
    evidence: float,
    memory: float,
) -> list[float]:
    """The log weight of each row after these tokens: a row that predicted question and answer well counts more, and the
    older a token the less it tells. prior: by the scores of the documents. question: what it says of each row.
    evidence: how much all this counts. memory: what is kept of it at each step.
    """
    learned = list(question)
    for position, token in enumerate(tokens):
        before = tokens[:position]
        learned = [
            memory * old + math.log(max(row(before)[token], MIN_PROBABILITY))
            for row, old in zip(rows, learned, strict=True)
        ]
    return [first + evidence * each for first, each in zip(prior, learned, strict=True)]


# ---- vocabularies that differ ----------------------------------------------------------------------------------------


def over_pieces(
    row: Callable[[Sequence[int]], Sequence[float]],
    spell: Sequence[bytes | None],
    pieces: Sequence[bytes],
    read: Callable[[bytes], Sequence[int]],
) -> Callable[[Sequence[int]], list[float]]:
    """A row that predicts pieces of text, from one that predicts tokens of its model.

    spell: the bytes of each token; empty: it ends an answer; None: it spells nothing. pieces: all that parties can say;
    the first one, which is empty, is the end. read: the model's own tokenization of what was said, a function of its
    bytes alone. It is what a party's evidence is about, too: that of a piece is by how much `likelihood` grows.
    """

    def predict(said: Sequence[int]) -> list[float]:
        shares = row(read(b"".join(pieces[piece] for piece in said)))
        mass = dict.fromkeys(pieces, 0.0)
        for share, text in zip(shares, spell, strict=True):
            if text is not None:
                mass[text] += share
        return [mass[text] / sum(mass.values()) for text in pieces]

    return predict


def likelihood(row: Row, tokens: Sequence[int]) -> float:
    """The log likelihood of some tokens."""
    return sum(math.log(row(tokens[:number])[token]) for number, token in enumerate(tokens))


# ---- single tokens -------------------------------------------------------------------------------------------------


def shift(
    probabilities: list[float],
    tokens: Sequence[int],
    biases: Mapping[int, float],
    presence: float,
    frequency: float,
    temperature: float,
) -> list[float]:
    """softmax(logits / T) of a voter as if to the logit of each token its bias were added, and from that of one which
    the answer has n > 0 times `presence` taken, and n times `frequency`."""
    counts = [tokens.count(token) for token in range(len(probabilities))]
    change = [
        biases.get(token, 0.0) - (presence if count else 0.0) - frequency * count
        for token, count in enumerate(counts)
    ]
    logs = [
        math.log(p) + each / temperature if p else -math.inf
        for p, each in zip(probabilities, change, strict=True)
    ]
    top = max(logs)
    raw = [math.exp(log - top) for log in logs]
    return [each / sum(raw) for each in raw]


def nucleus(probabilities: list[float], share: float) -> list[int]:
    """top_p: the fewest most probable tokens that have at least this share together; ties to the lowest id."""
    ranked = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))
    reached = list(accumulate(probabilities[token] for token in ranked))
    return ranked[
        : next(n for n, mass in enumerate(reached, 1) if mass >= share * reached[-1] or n == len(ranked))
    ]
