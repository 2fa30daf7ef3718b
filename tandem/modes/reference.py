"""Every mode without drafts, on one page: what an answer is. Read this first.

In every mode each voter says how probable it finds each next token after the tokens committed so far; the
probabilities are mixed by the voters' weights; one token is chosen from the mixture and committed. That is all.
Everything else in Tandem (drafts, proposals, links, resends, rollbacks) only makes it fast, and commits the same
tokens: the tests compare each run with this page. No messages, no clock, plain lists.

Token i is chosen where p_i / E_i is largest, E_i being exponential noise that is a function of seed, step and i: an
exact draw from p (coupled drafts, arXiv 2408.07978). At temperature 0 it is the most probable token; ties go to the
lowest id. By the rule `lottery` (arXiv 2605.00419) a uniform number says whose token it is, each voter as often as its
weight, and that voter chooses so from its own distribution. How voters and documents are weighed is on a second page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from tandem.aggregation.coupling import Purpose, noise, uniform
from tandem.modes.reference_shaping import Forecast, Limits, Voter, Weights, mix, renormalize, weigh_votes

IsComplete = Callable[[Sequence[int]], bool]
"""Whether these tokens are a whole answer."""


def answer(
    voters: Sequence[Voter],
    weights: Weights,
    is_complete: IsComplete,
    seed: int | None,
    most: Limits = None,
    by_lottery: bool = False,
) -> list[int]:
    """The tokens of an answer. seed: None is greedy. by_lottery: by that rule; with a seed."""
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
    weights: Weights,
    is_complete: IsComplete,
    seed: int | None,
    most: Limits = None,
    by_lottery: bool = False,
) -> list[int]:
    """A server drafts and has no vote; the workers' votes are mixed by fixed weights, or by their documents (None)."""
    return answer(workers, weights, is_complete, seed, most, by_lottery)


def in_steps(plan: Callable[[Sequence[list[int]]], Callable[[], list[int]] | None]) -> list[list[int]]:
    """An answer in steps: what each query says, the last one the answer. plan: the query that follows what was said, to
    be answered as above; None after the last."""
    said: list[list[int]] = []
    while (ask := plan(said)) is not None:
        said.append(ask())
    return said


def answer_with_losses(
    voters: Sequence[Voter],
    weights: Weights,
    drafter: Voter,
    present: Callable[[int], Sequence[int]],
    is_complete: IsComplete,
    seed: int | None,
    most: Limits = None,
    by_lottery: bool = False,
) -> list[int]:
    """Only some voters are there at each step; the others' weight is shared out, and without any the drafter continues.

    present: the voters that are there at a step, by number. Who is lost or late is decided at a stated step and logged:
    given that log the answer is a function.
    """
    tokens: list[int] = []
    while not is_complete(tokens):
        here = present(len(tokens))
        votes = [voters[number](tokens) for number in here] or [drafter(tokens)]
        limits = None if most is None else [most[number] for number in here] or [1.0]
        shared = weigh_votes(votes, renormalize(weights, here), limits)
        tokens.append(choose(votes, shared, seed, len(tokens), by_lottery))
    return tokens


def choose(
    votes: Sequence[Forecast], weights: Sequence[float], seed: int | None, step: int, by_lottery: bool
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


def draw(target: list[float], seed: int, step: int) -> int:
    """The winner of the race that the drafts take part in, too."""
    clocks = noise(seed, step, np.arange(len(target)))
    return max(range(len(target)), key=lambda token: target[token] / float(clocks[token]))


def greedy(target: list[float]) -> int:
    """The most probable token."""
    return max(range(len(target)), key=target.__getitem__)
