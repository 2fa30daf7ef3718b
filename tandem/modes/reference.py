"""Every mode without drafts, on one page: what an answer is. Read this first.

In every mode each voter says how probable it finds each next token after the tokens committed so far; the
probabilities are mixed by the voters' weights; one token is chosen from the mixture and committed. That is all.
Everything else in Tandem (drafts, proposals, links, resends, rollbacks) only makes it fast, and commits the same
tokens: the tests compare each run with this page. No messages, no clock, plain lists.

Token i is chosen where p_i / E_i is largest, E_i being exponential noise that is a function of seed, step and i: an
exact draw from p (coupled drafts, arXiv 2408.07978). At temperature 0 it is the most probable token. Ties go to the
lowest id.

By the rule `lottery` (arXiv 2605.00419) no mixture is needed: a uniform number, a function of seed and step, says whose
token it is, each voter as often as its weight, and that voter chooses from its own distribution with the same noise. A
token is as probable as under the mixture.

What a query asks of single tokens changes each voter's own distribution, under either rule, and before anything is
drawn or mixed: `shift` by biases and penalties, then a grammar's tokens alone, then top_k, the `nucleus` of top_p, and
min_p. All of it is a function of the tokens so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np

from tandem.aggregation.coupling import Purpose, noise, uniform
from tandem.aggregation.document_weights import MIN_PROBABILITY
from tandem.aggregation.rules import shares

Probabilities = list[float]
"""Of every token of the vocabulary, of sum 1."""


class Vote(NamedTuple):
    """A voter's distribution of the next token, and its weight."""

    probabilities: Probabilities
    log_weight: float = 0.0  # of the voter's documents; used where weights are not fixed


Voter = Callable[[Sequence[int]], Vote]
"""The vote after these tokens."""


class HasTokens(Protocol):
    """Probabilities, of which single ones are asked for."""

    def __getitem__(self, token: int, /) -> float: ...


Row = Callable[[Sequence[int]], HasTokens]
"""How probable one document's row finds each next token after these, at temperature 1."""
IsComplete = Callable[[Sequence[int]], bool]
"""Whether these tokens are a whole answer."""


def answer(
    voters: Sequence[Voter],
    weights: Sequence[float] | None,
    is_complete: IsComplete,
    seed: int | None,
    most: Sequence[float] | None = None,
    by_lottery: bool = False,
) -> list[int]:
    """The tokens of an answer. weights: one for each voter; None: by the votes' log weights. seed: None is greedy.

    most: what each voter may count by its log weights (`limit`); None: anything. by_lottery: by that rule; with a seed.
    """
    tokens: list[int] = []
    while not is_complete(tokens):
        votes = [voter(tokens) for voter in voters]
        tokens.append(choose(votes, weigh_votes(votes, weights, most), seed, len(tokens), by_lottery))
    return tokens


def dual(
    device: Voter,
    cloud: Voter,
    is_complete: IsComplete,
    seed: int | None,
    max_peer_share: float = 1.0,
    by_lottery: bool = False,
) -> list[int]:
    """Both draft, both vote; how much each counts depends on its documents, and the cloud has a limit."""
    return answer([device, cloud], None, is_complete, seed, [1.0, max_peer_share], by_lottery)


def solo(party: Voter, is_complete: IsComplete, seed: int | None) -> list[int]:
    """One party alone."""
    return answer([party], [1.0], is_complete, seed)


def speculative(cloud: Voter, is_complete: IsComplete, seed: int | None) -> list[int]:
    """The device drafts and has no vote, so whatever it drafts, the answer is the cloud's own."""
    return answer([cloud], [1.0], is_complete, seed)


def federated(
    workers: Sequence[Voter],
    weights: Sequence[float] | None,
    is_complete: IsComplete,
    seed: int | None,
    most: Sequence[float] | None = None,
    by_lottery: bool = False,
) -> list[int]:
    """A server drafts and has no vote; the workers' votes are mixed by fixed weights, or by their documents (None)."""
    return answer(workers, weights, is_complete, seed, most, by_lottery)


def reader(
    rows: Sequence[Callable[[Sequence[int]], Probabilities]],
    prior: Sequence[float],
    question: Sequence[float],
    evidence: float,
    memory: float,
) -> Voter:
    """A voter with documents, each in a row of its own, which count as `weigh` says."""

    def vote(tokens: Sequence[int]) -> Vote:
        weights = weigh(rows, prior, question, tokens, evidence, memory)
        most = max(weights)
        raw = [math.exp(weight - most) for weight in weights]
        votes = [Vote(row(tokens)) for row in rows]
        return Vote(mix(votes, [each / sum(raw) for each in raw]), most + math.log(sum(raw)))

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


def answer_with_losses(
    voters: Sequence[Voter],
    weights: Sequence[float] | None,
    drafter: Voter,
    present: Callable[[int], Sequence[int]],
    is_complete: IsComplete,
    seed: int | None,
    most: Sequence[float] | None = None,
    by_lottery: bool = False,
) -> list[int]:
    """Only some voters are there at each step; the others' weight is shared out, and without any the drafter continues.

    present: the voters that are there at a step, by their number. Who is lost, or late where patience is limited,
    changes what an answer is, so it is decided at a stated step and logged: given that log the answer is a function.
    """
    tokens: list[int] = []
    while not is_complete(tokens):
        here = present(len(tokens))
        votes = [voters[number](tokens) for number in here] or [drafter(tokens)]
        limits = None if most is None else [most[number] for number in here] or [1.0]
        shared = weigh_votes(votes, renormalize(weights, here), limits)
        tokens.append(choose(votes, shared, seed, len(tokens), by_lottery))
    return tokens


def renormalize(weights: Sequence[float] | None, here: Sequence[int]) -> list[float] | None:
    """The weights of those that are there, of sum 1; None: as before by the log weights, now of their votes alone."""
    if weights is None:
        return None
    left = [weights[number] for number in here] or [1.0]
    if len(here) == len(weights):
        return left
    total = sum(left)
    return [weight / total if total else 1 / len(left) for weight in left]


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


def weigh_votes(
    votes: Sequence[Vote], weights: Sequence[float] | None, most: Sequence[float] | None
) -> Sequence[float]:
    """How much each vote counts, of sum 1: as given, or by the log weights, within the limits."""
    if weights is not None:
        return weights
    by_documents = shares(*(vote.log_weight for vote in votes))
    return by_documents if most is None else limit(by_documents, most)


def choose(
    votes: Sequence[Vote], weights: Sequence[float], seed: int | None, step: int, by_lottery: bool
) -> int:
    """The token of one step: of the mixture, or by the lottery of one vote."""
    if by_lottery:
        assert seed is not None
        return draw(votes[owner(weights, seed, step)].probabilities, seed, step)
    target = mix(votes, weights)
    return greedy(target) if seed is None else draw(target, seed, step)


def owner(weights: Sequence[float], seed: int, step: int) -> int:
    """The voter whose token it is: weights are lengths, laid in the voters' order from 0 on, and the step's number lies
    in one of them; one that rounding puts behind the last lies in the last of any length."""
    number, ends = uniform(seed, Purpose.OWNER, step), list(accumulate(weights))
    beyond = [voter for voter, end in enumerate(ends) if number < end]
    return beyond[0] if beyond else [voter for voter, weight in enumerate(weights) if weight][-1]


def mix(votes: Sequence[Vote], weights: Sequence[float] | None) -> Probabilities:
    """The target distribution. Sums run in the voters' order, so that every party computes the same bits."""
    weights = weigh_votes(votes, weights, None)
    target = []
    for token in range(len(votes[0].probabilities)):
        mass = weights[0] * votes[0].probabilities[token]
        for weight, vote in zip(weights[1:], votes[1:], strict=True):
            mass += weight * vote.probabilities[token]
        target.append(mass)
    return target


def shift(
    probabilities: Probabilities,
    tokens: Sequence[int],
    biases: Mapping[int, float],
    presence: float,
    frequency: float,
    temperature: float,
) -> Probabilities:
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


def nucleus(probabilities: Probabilities, share: float) -> list[int]:
    """top_p: the fewest most probable tokens that have at least this share together; ties to the lowest id."""
    ranked = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))
    reached = list(accumulate(probabilities[token] for token in ranked))
    return ranked[
        : next(n for n, mass in enumerate(reached, 1) if mass >= share * reached[-1] or n == len(ranked))
    ]


def draw(target: Probabilities, seed: int, step: int) -> int:
    """The winner of the race that the drafts take part in, too."""
    clocks = noise(seed, step, np.arange(len(target)))
    return max(range(len(target)), key=lambda token: target[token] / float(clocks[token]))


def greedy(target: Probabilities) -> int:
    """The most probable token."""
    return max(range(len(target)), key=target.__getitem__)
