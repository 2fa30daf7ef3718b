"""Race lists: a certain winner is that of the full mixture, and each condition is needed. Bytes: both ways, bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.aggregation.coupling import best_scores, lazy_race, noise, race
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.race_lists import RaceList, RaceResult, certify
from tandem.codecs.votes import decode_race_list, encode_race_list, read_vote
from tandem.errors import ProtocolError
from tests.unit.aggregation.race_cases import Case, random_case

NUM_CASES = 1_000


@cache
def cases(count: int, seed: int = 1) -> list[Case]:
    rng = np.random.default_rng(seed)
    return [random_case(rng, step) for step in range(count)]


def planted_tie() -> Case:
    """Token 7, which nobody lists, scores as much as token 8, the best listed one, and has the lower id."""
    first, second = np.zeros(10), np.zeros(10)
    first[[8, 5, 7]] = 0.5, 0.25, 0.25
    second[[3, 6, 7, 9]] = 0.25
    return Case([first, second], [0.5, 0.5], [2, 2], 0, 0, 0.0)


@dataclass(frozen=True)
class Plain:
    """The outcome with dictionaries, each of its conditions removable."""

    partly_known: bool = True  # tokens that some list lacks are compared, which bounds the unlisted ones too
    last: bool = True  # hi has the last score of each list that lacks a token
    weights: bool = True
    strict: bool = True
    later: int = 0  # steps between the noise of the lists and that of the outcome

    def certify(self, case: Case) -> RaceResult:
        clocks = replace(case, step=case.step + self.later).clocks
        known: dict[int, float] = {}
        lasts, tables = [], []
        for found, share in zip(case.lists, case.shares, strict=True):
            weight = share if self.weights else 1.0
            table = dict(zip(found.ids.tolist(), (weight * found.values.astype(float)).tolist(), strict=True))
            tables.append(table)
            for token, value in table.items():
                known[token] = known.get(token, 0.0) + value
            lasts.append(0.0 if found.is_complete else min(v / clocks[t] for t, v in table.items()))
        scores = {token: value / clocks[token] for token, value in sorted(known.items())}
        best = max(scores, key=lambda token: (scores[token], -token))
        rivals = []
        for token, score in scores.items():
            missing = sum(last for last, table in zip(lasts, tables, strict=True) if token not in table)
            if token != best and missing and self.partly_known:
                rivals.append(score + (missing if self.last else 0.0))
        top = max(rivals, default=0.0)
        is_certain = scores[best] > top * (1 + 1e-12) if self.strict else scores[best] >= top
        return RaceResult(best, bool(is_certain))


def certified(case: Case) -> RaceResult:
    return certify(case.lists, case.shares, seed=case.seed, step=case.step, temperature=case.temperature)


def num_wrong(certify_case: Callable[[Case], RaceResult], made: list[Case]) -> int:
    """Certain winners that do not win the race of the full mixture."""
    found = [(certify_case(case), case.winner) for case in made]
    return sum(outcome.is_certain and outcome.winner != winner for outcome, winner in found)


def test_a_certain_winner_wins_the_race_of_the_full_mixture() -> None:
    """1,000,000 cases were tried once (docs/log.md)."""
    made = [planted_tie(), *cases(NUM_CASES)]
    outcomes = [certified(case) for case in made]
    assert {len(case.votes) for case in made} == set(range(1, 9))
    assert sum(min(case.shares) == 0.0 for case in made) > 130
    share = np.mean([each.is_certain for each in outcomes])
    assert 0.4 < share < 0.99, "both outcomes occur"
    for case in made[:200]:
        for one, other in zip(case.lists, case.plain_lists(), strict=True):
            assert (one.ids.tolist(), one.values.tobytes()) == (other.ids.tolist(), other.values.tobytes())
    for case, outcome in zip(made, outcomes, strict=True):
        assert not outcome.is_certain or outcome.winner == case.winner
        assert outcome == Plain().certify(case)


MUTANTS = {
    "tokens that some list lacks left out": Plain(partly_known=False),
    "no last score in the upper bound": Plain(last=False),
    "scores without weights": Plain(weights=False),
    "not strict": Plain(strict=False),
    "noise of another step": Plain(later=1),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_certify_a_wrong_winner(name: str) -> None:
    assert num_wrong(MUTANTS[name].certify, [planted_tie(), *cases(NUM_CASES)]) > 0


def test_longer_lists_settle_the_open_cases() -> None:
    """Each round adds what the last list lacks; a list of all tokens leaves nothing open, ties included."""
    num_open = 0
    for case in cases(300, 2):
        lists = case.lists
        while True:
            outcome = certify(
                lists, case.shares, seed=case.seed, step=case.step, temperature=case.temperature
            )
            if outcome.is_certain:
                break
            num_open += 1
            longer = replace(case, depths=[each.next_depth for each in lists]).lists
            joined = [short.joined(long.beyond(short)) for short, long in zip(lists, longer, strict=True)]
            for one, other in zip(joined, longer, strict=True):
                assert (one.ids.tolist(), one.depth) == (other.ids.tolist(), other.depth)
                assert one.values.tobytes() == other.values.tobytes()
            lists = longer
        assert outcome.winner == case.winner
    assert num_open > 30


def zipf(rng: np.random.Generator, exponent: float, vocab: int) -> np.ndarray:
    scores = -exponent * np.log(np.arange(1, vocab + 1)) + rng.normal(size=vocab)
    dense = np.exp(scores - scores.max())
    return np.asarray(dense / dense.sum())


# ---- the lists themselves ------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [3, 1000, 70_000])
def test_the_lazy_race_has_the_winner_of_the_race(vocab: int) -> None:
    """Scores and winners to the bit."""
    rng = np.random.default_rng(vocab)
    for step in range(12):
        dense = zipf(rng, [0.0, 1.0, 3.0][step % 3], vocab)
        clocks = noise(5, step, np.arange(vocab))
        assert lazy_race(dense, seed=5, step=step) == race(Distribution(np.arange(vocab), dense), clocks)
        ids, scores = best_scores(dense, 9, seed=5, step=step)
        best = np.sort(np.argsort(-dense / clocks, kind="stable")[:9])
        assert ids.tolist() == best.tolist()
        assert scores.tobytes() == (dense / clocks)[best].tobytes()


@pytest.mark.parametrize(
    ("kind", "scale"),
    [(np.float64, scale) for scale in (1.0, 1e-300, 1e300, 5e-324)]
    + [(np.float32, scale) for scale in (1.0, 1e-30, 1e30, 1e-45)],
)
def test_the_lazy_race_has_the_scores_of_the_race_at_any_scale(
    kind: type[np.floating[Any]], scale: float
) -> None:
    """Flat, peaked, mostly zero, with ties, and so small or large that the inverse of a score is none."""
    rng, vocab = np.random.default_rng(3), 20_000
    peaked = np.exp(-5.0 * rng.exponential(size=vocab))
    laws = [np.ones(vocab), peaked, np.where(rng.random(vocab) < 1e-4, 0.25, 0.0), np.eye(1, vocab, 7)[0]]
    for step, law in enumerate(laws):
        dense = (scale * np.ceil(law) if scale < 1e-40 else scale * law).astype(kind)
        scores = dense / noise(9, step, np.arange(vocab))
        order = np.argsort(-scores, kind="stable")[:70]
        best = np.sort(order[scores[order] > 0.0])
        ids, found = best_scores(dense, 70, seed=9, step=step)
        assert ids.tolist() == best.tolist()
        assert found.tobytes() == scores[best].tobytes()


@pytest.mark.parametrize(
    ("ids", "values", "problem"),
    [
        ([1, 1], [0.5, 0.25], "strictly ascending"),
        ([-1], [0.5], "non-negative"),
        ([1], [0.0], r"float32 numbers in \(0, 1\]"),
        ([1], [1.5], r"float32 numbers in \(0, 1\]"),
        ([1, 2, 3], [0.2, 0.2, 0.2], "up to 2 ids"),
    ],
)
def test_what_is_no_list_is_refused(ids: list[int], values: list[float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        RaceList(np.array(ids), np.array(values, dtype=np.float32), 2)


# ---- bytes ---------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.integers(0, 99), st.floats(2.0**-126, 1.0, width=32), min_size=1, max_size=80),
    st.booleans(),
)
def test_lists_come_back_to_the_bit(values: dict[int, float], is_complete: bool) -> None:
    ids, depth = sorted(values), len(values) + is_complete
    array = np.array([values[token] for token in ids], dtype=np.float32)
    found = RaceList(np.array(ids, dtype=np.int64), array, depth)
    payload = encode_race_list(found, 100)
    decoded = decode_race_list(payload, 100)
    assert (decoded.ids.tolist(), decoded.depth) == (ids, depth)
    assert decoded.values.tobytes() == array.tobytes()


def test_random_bytes_give_a_list_or_a_protocol_error() -> None:
    rng, num_lists = np.random.default_rng(4), 0
    for length in rng.integers(0, 24, 3_000).tolist():
        payload = rng.bytes(length)
        try:
            found = read_vote(payload, int(rng.choice([3, 100, 50_257])))
        except ProtocolError:
            continue
        num_lists += isinstance(found, RaceList)
    assert num_lists > 10


@pytest.mark.parametrize(
    ("payload", "vocab", "sentence"),
    [
        (b"", 100, "must hold a number of at most 3 bytes, got ''"),
        (b"\x08", 3, "must keep at most the 3 tokens of the vocabulary, got 4"),
        (b"\x01\x00", 3, "must list 1 to 1024 tokens, got 0"),
        (b"\x02", 100, "must have 1 to 7 bytes, got 0"),
        (b"\x02" + b"\xff" * 6, 100, "must hold nothing behind its last number, got 12 bits too many"),
        (b"\x00" + bytes(3), 100, "must have 4 bytes for each of 100 tokens, got 3"),
        (b"\x00" + bytes(12), 2, "must have 4 bytes for each of 2 tokens, got 12"),
        (b"\x00" + bytes(8), 2, "must have probabilities from 0 to 1, got 0.0 to 0.0"),
        (b"\x00" + b"\xff" * 8, 2, "must have probabilities from 0 to 1, got nan to nan"),
    ],
)
def test_malformed_bytes_are_refused_in_one_sentence(payload: bytes, vocab: int, sentence: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        read_vote(payload, vocab)
    assert (
        str(caught.value) == f"An encoded distribution {sentence}; drop the frame and ask the sender again."
    )
