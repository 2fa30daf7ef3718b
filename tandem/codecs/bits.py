"""Exact sizes of coded distributions in bits: ceilings of logarithms of whole numbers, no floats.

Edge-cloud speculative decoding counts these (SQS Eq. 1, 2, 5; QS Eq. 6).
vocab: V tokens. kept: K tokens of the support. resolution: the lattice's l, the sum of the counts.
"""

from __future__ import annotations

from functools import cache
from math import comb


def id_bits(vocab: int) -> int:
    """ceil(log2 V): one token id."""
    return (vocab - 1).bit_length()


@cache
def support_bits(vocab: int, kept: int) -> int:
    """ceil(log2 C(V, K)): which tokens are kept (SQS Eq. 5)."""
    return (comb(vocab, kept) - 1).bit_length()


@cache
def counts_bits(kept: int, resolution: int) -> int:
    """ceil(log2 C(l + K - 1, K - 1)): counts >= 0 of sum l on K tokens (SQS Eq. 2; QS Eq. 6 with K = V)."""
    return (comb(resolution + kept - 1, resolution) - 1).bit_length()


def k_sqs_bits(vocab: int, kept: int, resolution: int) -> int:
    """Support and counts of K-SQS, each rounded up (SQS Eq. 1)."""
    return support_bits(vocab, kept) + counts_bits(kept, resolution)


def joint_bits(vocab: int, kept: int, resolution: int) -> int:
    """Support and counts as one index, at most one bit less."""
    return (comb(vocab, kept) * comb(resolution + kept - 1, resolution) - 1).bit_length()


def c_sqs_bits(vocab: int, kept: int, resolution: int) -> int:
    """Support, counts, and how many tokens are kept (SQS Eq. 5)."""
    return k_sqs_bits(vocab, kept, resolution) + id_bits(vocab)


def lattice_bits(vocab: int, resolution: int) -> int:
    """ceil(log2 C(l + V - 1, V - 1)): counts on the whole vocabulary (QS Eq. 6)."""
    return counts_bits(vocab, resolution)


def non_zero_bits(vocab: int, num_tokens: int, resolution: int) -> int:
    """ceil(log2 (l C(V, n) C(l - 1, n - 1))): n, the n tokens with a count above zero, and these counts."""
    positive = comb(resolution - 1, num_tokens - 1)
    return (resolution * comb(vocab, num_tokens) * positive - 1).bit_length()


def top_k_bits(vocab: int, kept: int) -> int:
    """K (ceil(log2 V) + 16): ids and 16-bit values, as SpecFed counts them."""
    return kept * (id_bits(vocab) + 16)
