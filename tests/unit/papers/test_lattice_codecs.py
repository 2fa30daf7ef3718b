"""Codecs lattice, k_sqs, c_sqs and top_k: round trips, sizes, malformed bytes, errors. Their parts: test_sets."""

from __future__ import annotations

import itertools
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.aggregation.distributions import Distribution
from tandem.codecs import Codec, codec_of, sets
from tandem.codecs.base import MAX_VOCAB
from tandem.codecs.sets import quantise
from tandem.config.extensions import CodecConfig
from tandem.errors import ProtocolError
from tandem.plugins.papers.codecs import CSqs, KSqs, Lattice, TopK
from tests.unit.codecs.test_sets import compositions

VOCAB = 12
CODECS: tuple[Codec, ...] = (
    TopK(4),
    TopK(4, "residual"),
    Lattice(6),
    Lattice(6, "paper"),
    KSqs(4, 6),
    KSqs(4, 6, "paper"),
    CSqs(resolution=6),
    CSqs(resolution=6, index="paper"),
)
by_codec = pytest.mark.parametrize("codec", CODECS, ids=[codec.fingerprint() for codec in CODECS])


def encode(codec: Codec, dense: np.ndarray) -> bytes:
    return codec.open().encode(dense)[0]


def quantised(dense: np.ndarray, kept: int, resolution: int) -> Distribution:
    """The slow and obvious way: sort, cut, quantise, which normalises."""
    ids = np.sort(np.argsort(-dense, kind="stable")[:kept])
    counts = quantise(dense[ids], resolution)
    return Distribution(ids[counts > 0], counts[counts > 0] / resolution)


weights = st.lists(st.integers(0, 40), min_size=VOCAB, max_size=VOCAB).filter(any)


@given(weights)
def test_round_trips_give_the_quantised_distribution(values: list[int]) -> None:
    dense = np.array(values) / 64.0
    for index in ("paper", "non_zero"):
        for codec, kept, resolution in ((Lattice(6, index), VOCAB, 6), (KSqs(4, 9, index), 4, 9)):
            assert codec.decode(codec.encode(dense), VOCAB) == quantised(dense, kept, resolution)


@pytest.mark.parametrize("vocab", [1, 2, 3, 100, 50_257, MAX_VOCAB])
@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0])
def test_payloads_stay_below_their_bound_and_come_back(vocab: int, scale: float) -> None:
    logits = np.random.default_rng(vocab).normal(size=vocab) * scale
    dense = np.exp(logits - logits.max())
    k = min(16, vocab)
    found = {}
    for index in ("paper", "non_zero"):
        for codec in (Lattice(100, index), Lattice(300, index), KSqs(k, 100, index), CSqs(index=index)):
            payload = encode(codec, dense)
            distribution = codec.decode(payload, vocab)
            assert len(payload) <= codec.max_bytes
            found.setdefault((codec.name, codec.resolution), []).append(distribution)
    for both in found.values():
        assert both[0] == both[1], "the index changes the bytes, not the distribution"
    for codec in (TopK(k), TopK(k, "residual")):
        payload = codec.encode(dense)
        assert len(payload) <= codec.max_bytes
        top = codec.decode(payload, vocab)
        assert top.ids.tolist() == np.sort(np.argsort(-dense, kind="stable")[:k]).tolist()


def _bits(count: int) -> int:
    """ceil(log2 count)."""
    return (count - 1).bit_length()


def _non_zero_bits(vocab: int, num_tokens: int, resolution: int) -> int:
    """How many tokens have a count above zero, which, and these counts."""
    return _bits(resolution * comb(vocab, num_tokens) * comb(resolution - 1, num_tokens - 1))


@pytest.mark.parametrize("vocab", [50_257, MAX_VOCAB])
def test_bytes_are_those_of_the_formulas(vocab: int) -> None:
    """Within two bytes; a flat distribution gives every kept token a count."""
    dense = np.random.default_rng(1).random(vocab) + 10.0
    for k in (1, 2, 16, 64):
        limit = (_bits(comb(vocab, k) * comb(100 + k - 1, 100)) + 7) // 8
        assert limit <= len(KSqs(k, 100, "paper").encode(dense)) <= limit + 1
        assert len(KSqs(k, 100).encode(dense)) <= (_non_zero_bits(vocab, k, 100) + 7) // 8 + 1
    for resolution in (4, 24, 100, 720):
        limit = (sets.counts_bits(vocab, resolution) + 7) // 8
        assert abs(len(Lattice(resolution, "paper").encode(dense)) - limit) <= 1
        limit = (_non_zero_bits(vocab, resolution, resolution) + 7) // 8
        assert abs(len(Lattice(resolution).encode(dense)) - limit) <= 1
    for k in (1, 8, 64, 320):
        for rest in ("renormalise", "residual"):
            assert len(TopK(k, rest).encode(dense)) <= k * (_bits(vocab) + 16) // 8 + 3  # type: ignore[arg-type]


def test_the_payloads_of_all_points_decode_and_no_other_bytes() -> None:
    """K-SQS with V = 12, K = 4, l = 6; every 17th string of two bytes. `test_sets` takes the points there and back."""
    codec, num_decoded = KSqs(4, 6, "paper"), 0
    payloads = {
        sets.to_bytes(sets.push_set(sets.push_counts(0, counts, 6), ids, VOCAB))
        for ids in itertools.combinations(range(VOCAB), 4)
        for counts in compositions(6, 4)
    }
    for string in [bytes(each) for each in itertools.product(range(256), repeat=2)][::17]:
        try:
            codec.decode(string, VOCAB)
        except ProtocolError:
            assert string not in payloads
        else:
            num_decoded += 1
            assert string in payloads
    assert num_decoded > 100


@by_codec
@settings(max_examples=60)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_damaged_payload_gives_a_distribution_or_a_protocol_error(
    codec: Codec, position: int, byte: int
) -> None:
    payload = bytearray(encode(codec, np.random.default_rng(1).dirichlet(np.ones(300))))
    payload[position % len(payload)] = byte
    try:
        distribution = codec.decode(bytes(payload), 300)
    except ProtocolError:
        return
    assert distribution.ids[-1] < 300


TOO_LARGE = sets.to_bytes(sets.push_set(sets.push_counts(0, [9, 0, 0, 0], 9), [0, 1, 2, 3], VOCAB) * 10**9)
MALFORMED = {
    "empty": (Lattice(6), b"", VOCAB, "must have 1 to 16 bytes, got 0"),
    "too long": (KSqs(4, 6), b"\x01" * 100, VOCAB, "must have 1 to 13 bytes, got 100"),
    "zero byte at the end": (TopK(4), b"\x07\x00", VOCAB, "must not end with a zero byte, got 2 bytes"),
    "number beyond the last point": (
        KSqs(4, 9, "paper"),
        TOO_LARGE,
        VOCAB,
        "must hold nothing behind its last number, got 32 bits too many",
    ),
    "trailing bits": (
        Lattice(6),
        Lattice(6).encode(np.ones(VOCAB)) + b"\x01",
        VOCAB,
        "must hold nothing behind its last number, got 2 bits too many",
    ),
    "K > V": (KSqs(4, 6, "paper"), b"\x01", 3, "must keep at most the 3 tokens of the vocabulary, got 4"),
    "K > V without zeros": (
        KSqs(4, 6),
        b"\x01",
        3,
        "must keep at most the 3 tokens of the vocabulary, got 4",
    ),
    "K > V of top_k": (TopK(4), b"\x01", 3, "must keep at most the 3 tokens of the vocabulary, got 4"),
    "K of c_sqs beyond the cap": (
        CSqs(index="paper"),
        sets.to_bytes(5000 - 1),
        50_257,
        "must keep at most 4096 tokens or all 50257, got 5000",
    ),
}


@pytest.mark.parametrize(("codec", "payload", "vocab", "sentence"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_bytes_are_refused_in_one_sentence(
    codec: Codec, payload: bytes, vocab: int, sentence: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.decode(payload, vocab)
    assert (
        str(caught.value) == f"An encoded distribution {sentence}; drop the frame and ask the sender again."
    )


FINGERPRINTS = {
    "lattice": "lattice/1(resolution=100, index=non_zero)",
    "k_sqs": "k_sqs/1(k=16, resolution=100, index=non_zero)",
    "top_k": "top_k/1(k=16, rest=renormalise)",
    "c_sqs": "c_sqs/1(alpha=0.0005, eta=0.001, beta_1=0.01, beta_max=0.05, resolution=100, index=non_zero)",
}


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_settings_name_a_codec_with_the_defaults_of_its_class(name: str) -> None:
    codec = codec_of(CodecConfig(name=name))
    assert codec.fingerprint() == FINGERPRINTS[name]
