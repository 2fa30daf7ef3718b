"""Sets and counts inside one whole number: a bijection, at the size of the combinatorial bound."""

from __future__ import annotations

import itertools
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.codecs import sets
from tandem.errors import ProtocolError

VOCAB, KEPT, RESOLUTION = 12, 4, 6
TABLE = {  # SQS and QS, exact: specs of both papers count these
    50_257: ({1: 16, 2: 38, 4: 76, 8: 145, 16: 268, 32: 483, 64: 857, 128: 1504, 256: 2615}, {100: 1038}),
    151_936: ({1: 18, 2: 41, 4: 83, 8: 158, 16: 294, 32: 534, 64: 959, 128: 1709, 256: 3024}, {100: 1197}),
    262_144: ({1: 18, 2: 42, 4: 86, 8: 164, 16: 306, 32: 559, 64: 1009, 128: 1809, 256: 3225}, {100: 1276}),
}


def compositions(total: int, cells: int) -> list[list[int]]:
    """All counts >= 0 of that total."""
    bars = itertools.combinations(range(total + cells - 1), cells - 1)
    ends = ((-1, *each, total + cells - 1) for each in bars)
    return [[b - a - 1 for a, b in itertools.pairwise(each)] for each in ends]


def test_every_set_with_every_count_comes_back_and_no_two_share_a_number() -> None:
    numbers = set()
    for ids in itertools.combinations(range(VOCAB), KEPT):
        for counts in compositions(RESOLUTION, KEPT):
            number = sets.push_set(sets.push_counts(0, counts, RESOLUTION), ids, VOCAB)
            members, rest = sets.pop_set(number, KEPT, VOCAB)
            assert (members, sets.pop_counts(rest, KEPT, RESOLUTION)) == (list(ids), (counts, 0))
            assert number not in numbers
            numbers.add(number)
    assert len(numbers) == comb(12, 4) * comb(9, 3)


@given(st.integers(0, 1 << 200), st.integers(1, 60), st.integers(0, 60))
def test_every_number_is_a_set_and_a_rest(number: int, universe: int, size: int) -> None:
    """So no bytes can name a token twice: each number decodes to distinct ids, and these give it back."""
    size = min(size, universe)
    members, rest = sets.pop_set(number, size, universe)
    assert members == sorted(set(members))
    assert len(members) == size
    assert all(0 <= member < universe for member in members)
    assert sets.push_set(rest, members, universe) == number


@pytest.mark.parametrize("vocab", TABLE)
def test_bits_are_those_of_the_tables(vocab: int) -> None:
    by_kept, dense = TABLE[vocab]
    assert {k: sets.support_bits(vocab, k) + sets.counts_bits(k, 100) for k in by_kept} == by_kept
    assert {resolution: sets.counts_bits(vocab, resolution) for resolution in dense} == dense


def random_point(rng: np.random.Generator, vocab: int, kept: int) -> tuple[list[int], list[int]]:
    ids = np.sort(rng.choice(vocab, kept, replace=False)).tolist()
    return ids, rng.multinomial(100, rng.dirichlet(np.ones(kept))).tolist()


@pytest.mark.parametrize("vocab", [50_257, 262_144])
@pytest.mark.parametrize("kept", [1, 2, 16, 64, 256])
def test_the_size_is_that_of_the_joint_index(vocab: int, kept: int) -> None:
    """At most two bytes more for one distribution, one for a block of eight; on average 0 to 2 bits."""
    rng = np.random.default_rng(kept)
    joint = (comb(vocab, kept) * comb(100 + kept - 1, 100) - 1).bit_length()
    for _ in range(20):
        block = 0
        for _ in range(8):
            ids, counts = random_point(rng, vocab, kept)
            number = sets.push_set(sets.push_counts(0, counts, 100), ids, vocab)
            assert len(sets.to_bytes(number)) <= (joint + 7) // 8 + 1
            block = sets.push_set(sets.push_counts(block, counts, 100), ids, vocab)
        assert 8 * len(sets.to_bytes(block)) <= 8 * joint + 8 + 7


def test_a_block_comes_back_last_distribution_first() -> None:
    rng, number = np.random.default_rng(1), 0
    points = [random_point(rng, 500, 9) for _ in range(8)]
    for ids, counts in points:
        number = sets.push_set(sets.push_counts(number, counts, 100), ids, 500)
    for ids, counts in reversed(points):
        members, number = sets.pop_set(number, 9, 500)
        found, number = sets.pop_counts(number, 9, 100)
        assert (members, found) == (ids, counts)
    assert number == 0


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (b"", "must have 1 to 4 bytes, got 0"),
        (b"12345", "must have 1 to 4 bytes, got 5"),
        (b"\x05\x00", "must not end with a zero byte, got 2 bytes"),
    ],
)
def test_only_the_shortest_bytes_of_a_number_are_taken(payload: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        sets.from_bytes(payload, 4)
    assert (
        str(caught.value) == f"An encoded distribution {sentence}; drop the frame and ask the sender again."
    )
