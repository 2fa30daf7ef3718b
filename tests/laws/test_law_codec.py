"""What the codec does to a distribution: known defects, each as a mutant.

Nothing is drawn, so nothing has a false alarm.
"""

from __future__ import annotations

from collections.abc import Callable

import lz4.block
import numpy as np
import pytest

from tandem.codecs import sets
from tandem.codecs import top_p as module
from tandem.codecs.base import Codec
from tandem.codecs.top_p import TopP, nucleus


def check_the_crossing_token_stays(codec: Codec) -> None:
    dense = np.array([0.5, 0.31, 0.1, 0.09])
    distribution = codec.decode(codec.encode(dense)).dense(4)
    np.testing.assert_allclose(distribution, [0.5 / 0.81, 0.31 / 0.81, 0.0, 0.0], atol=2**-16)
    crossing = np.array([0.5, 0.2, 0.2, 0.1])  # 0.7 is not yet 0.8
    distribution = codec.decode(codec.encode(crossing)).dense(4)
    np.testing.assert_allclose(distribution, [5 / 9, 2 / 9, 2 / 9, 0.0], atol=2**-16)


def check_ids_arrive(codec: Codec) -> None:
    """Qwen has 151,936 tokens; the codec promises 2**18."""
    for token in (0, 32_768, 65_535, 65_536, 100_000, 151_935, 262_143):
        dense = np.zeros(262_144)
        dense[[token, 7]] = 0.6, 0.4
        assert codec.decode(codec.encode(dense)).argmax() == token


def check_lz4_never_lengthens(codec: Codec) -> None:
    rng = np.random.default_rng(7)
    for num_tokens in (1, 5, 23, 200):
        dense = np.zeros(50_272)
        dense[rng.choice(dense.size, num_tokens, replace=False)] = rng.dirichlet(np.ones(num_tokens))
        payload = codec.encode(dense)
        distribution = codec.decode(payload)
        plain_bytes = (
            1
            + len(sets.encode_number(len(distribution)) + sets.encode_ids(distribution.ids))
            + 2 * len(distribution)
        )
        assert len(payload) <= plain_bytes


def check_bytes_are_the_distribution(codec: Codec) -> None:
    """Quantise, then sample: whatever decoding yields is the distribution, so encoding it again loses nothing more."""
    rng = np.random.default_rng(8)
    for _ in range(20):
        distribution = codec.decode(codec.encode(rng.dirichlet(np.full(300, 0.1))))
        again = TopP(1.0)
        assert again.decode(again.encode(distribution.dense(300))) == distribution


CHECKS = [
    check_the_crossing_token_stays,
    check_ids_arrive,
    check_lz4_never_lengthens,
    check_bytes_are_the_distribution,
]


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_top_p(check: Callable[[Codec], None]) -> None:
    check(TopP(0.8))


def drop_the_crossing_token(dense: np.ndarray, top_p: float) -> np.ndarray:
    ids = nucleus(dense, top_p)
    most_probable_first = ids[np.argsort(-dense[ids], kind="stable")]
    return np.sort(most_probable_first[: max(1, ids.size - 1)])


def test_mutant_top_p_drops_the_crossing_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 12: [.5, .31, .1, .09] arrives as [1, 0, 0, 0]."""
    monkeypatch.setattr(module, "nucleus", drop_the_crossing_token)
    codec = TopP(0.8)
    np.testing.assert_array_equal(
        codec.decode(codec.encode(np.array([0.5, 0.31, 0.1, 0.09]))).dense(4), [1, 0, 0, 0]
    )
    with pytest.raises(AssertionError):
        check_the_crossing_token_stays(codec)


def test_mutant_ids_in_16_bits_with_an_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 12: 100,000 arrives as 34,464."""
    real = sets.encode_ids

    def sixteen_bits(ids: np.ndarray) -> bytes:
        wrapped = (ids - 32_768).astype(np.int16).astype(np.int64) + 32_768
        return real(np.sort(wrapped))

    monkeypatch.setattr(sets, "encode_ids", sixteen_bits)
    codec = TopP(0.8)
    dense = np.zeros(151_936)
    dense[100_000] = 1.0
    assert codec.decode(codec.encode(dense)).argmax() == 34_464
    with pytest.raises(AssertionError):
        check_ids_arrive(codec)


def test_mutant_lz4_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 12: LZ4 enlarges the payload (92 B to 115 B)."""
    monkeypatch.setattr(
        module,
        "shortest",
        lambda form, body: (
            b"\x11" + sets.encode_number(len(body)) + lz4.block.compress(body, store_size=False)
        ),
    )
    with pytest.raises(AssertionError):
        check_lz4_never_lengthens(TopP(0.8))


def test_mutant_decoder_normalises_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that keeps its own unquantised distribution does not use the one that it sent."""
    rng = np.random.default_rng(9)
    dense = rng.dirichlet(np.full(300, 0.1))
    codec = TopP(0.8)
    sent = codec.decode(codec.encode(dense))
    own = dense[sent.ids] / dense[sent.ids].sum()
    assert not np.array_equal(own, sent.probabilities)
    np.testing.assert_allclose(own, sent.probabilities, atol=1e-4)
