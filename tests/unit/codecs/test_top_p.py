"""Codec top_p: the nucleus, round trip, sizes, malformed bytes, errors; known defects of such codecs are mutants."""

from __future__ import annotations

from collections.abc import Callable

import lz4.block
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.aggregation.distributions import Distribution
from tandem.codecs import sets
from tandem.codecs import top_p as module
from tandem.codecs.top_p import COMPRESSED, MAX_VOCAB, MOST_TOKENS, PLAIN, SORT_LIMIT, TopP, nucleus
from tandem.errors import GenerationError, ProtocolError
from tandem.modes import reference_shaping

CODEC = TopP(0.8)

# ---- the nucleus against the reference page, which sorts everything, and that the real one does not ----------


@given(
    st.lists(st.integers(0, 1 << 20), min_size=1, max_size=40).filter(any),
    st.sampled_from([0.1, 0.5, 0.8, 1.0]),
)
def test_the_nucleus_is_that_of_the_reference_page(weights: list[int], share: float) -> None:
    dense = np.array(weights) * 2.0**-20  # sums are exact: no doubt about the crossing token
    assert nucleus(dense, share).tolist() == sorted(reference_shaping.nucleus(dense.tolist(), share))


def test_ties_at_the_crossing_go_to_the_lowest_ids_beyond_the_sort_limit() -> None:
    dense = np.ones(20_000)
    dense[10_000:] = 2.0
    dense[15_000:] = 4.0
    ids = nucleus(dense, 24_000 / 40_000)
    assert ids.tolist() == [*range(10_000, 12_000), *range(15_000, 20_000)]


@settings(max_examples=30)
@given(st.integers(0, 1000), st.floats(0.01, 0.99))
def test_a_large_nucleus_is_the_smallest_that_reaches_p(seed: int, p: float) -> None:
    dense = np.exp(np.random.default_rng(seed).normal(size=6_000))
    ids = nucleus(dense, p)
    mass = dense[ids].sum()
    assert mass >= p * dense.sum() * (1 - 1e-12)
    assert mass - dense[ids].min() < p * dense.sum() * (1 + 1e-12)
    assert dense[ids].min() >= np.delete(dense, ids).max()


@pytest.mark.parametrize("scale", [8.0, 3.0, 1.0, 1e-7])
def test_no_more_than_the_limit_is_ever_sorted(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 12: packing sorts the whole vocabulary on the decoding thread."""
    real, sizes = np.argsort, []

    def spy(array: np.ndarray, **options: str) -> np.ndarray:
        sizes.append(array.size)
        return real(array, **options)

    monkeypatch.setattr(module.np, "argsort", spy)
    nucleus(np.exp(np.random.default_rng(5).normal(size=152_000) * scale), 0.8)
    assert max(sizes, default=0) <= SORT_LIMIT


# ---- the codec -----------------------------------------------------------------------------------------------


def expected_distribution(dense: np.ndarray, p: float) -> Distribution:
    """The quantised nucleus, the slow and obvious way."""
    ids = nucleus(dense, p)
    largest = max(float(x) for x in dense)
    weights = [max(1, round(float(dense[i]) / largest * 65535)) for i in ids] if len(ids) > 1 else [1]
    return Distribution(ids, np.array([w / sum(weights) for w in weights]))


sparse = st.dictionaries(st.integers(0, MAX_VOCAB - 1), st.integers(1, 1 << 30), min_size=1, max_size=60)


@settings(max_examples=60)
@given(sparse, st.sampled_from([0.3, 0.8, 0.95, 1.0]))
def test_round_trip_gives_the_quantised_nucleus(weights: dict[int, int], p: float) -> None:
    dense = np.zeros(MAX_VOCAB)
    dense[list(weights)] = np.array(list(weights.values())) * 2.0**-31
    codec = TopP(p)
    payload = codec.encode(dense)
    assert codec.decode(payload) == expected_distribution(dense, p)


def test_the_layout_is_pinned() -> None:
    dense = np.zeros(1000)
    dense[[3, 200, 999]] = 0.5, 0.25, 0.25
    assert TopP(1.0).encode(dense).hex() == "10" + "03" + "03" + "c401" + "9e06" + "ffff" + "0080" + "0080"


def test_lz4_is_used_only_where_it_shortens() -> None:
    """Section 12: LZ4 enlarges the payload (92 B to 115 B)."""
    rng = np.random.default_rng(0)
    codec, seen = TopP(0.8, MOST_TOKENS), set()
    for spread in (0.0, 0.5, 1.0, 2.0):
        for vocab in (40, 500, 20_000):
            dense = np.exp(rng.normal(size=vocab) * spread)
            payload = codec.encode(dense)
            distribution = codec.decode(payload)
            gaps = np.diff(distribution.ids, prepend=-1) - 1
            plain_bytes = 1 + len(sets.encode_number(len(distribution)))
            plain_bytes += sum(1 + (g > 127) + (g > 16_383) for g in gaps.tolist()) + 2 * len(distribution)
            assert len(payload) <= plain_bytes
            assert (payload[0] == PLAIN) == (len(payload) == plain_bytes)
            seen.add(payload[0])
    assert seen == {PLAIN, PLAIN | COMPRESSED}


def long_tail(vocab: int, head: float, exponent: float, seed: int) -> np.ndarray:
    """One token of mass `head`, the others by a power law, at random ids; [vocab]."""
    tail = np.arange(1.0, vocab) ** -exponent
    dense = np.append(head, (1 - head) * tail / tail.sum())
    return dense[np.random.default_rng(seed).permutation(vocab)]


def error(codec: TopP, dense: np.ndarray) -> float:
    """Total variation between the decoded distribution and the exact nucleus."""
    ids = nucleus(dense, codec.p)
    exact = np.zeros(dense.size)
    exact[ids] = dense[ids] / dense[ids].sum()
    return float(np.abs(codec.decode(codec.encode(dense)).dense(dense.size) - exact).sum() / 2)


@pytest.mark.parametrize("p", [0.8, 1.0])
@pytest.mark.parametrize("vocab", [50_257, MOST_TOKENS])
@pytest.mark.parametrize(("head", "exponent"), [(0.9, 1.3), (0.6, 1.0), (0.5, 0.2), (0.01, 1.0)])
def test_a_long_tail_keeps_its_mass(vocab: int, head: float, exponent: float, p: float) -> None:
    """Weights of 16 bits lifted to 1 distort this by up to 0.77."""
    assert error(TopP(p, MOST_TOKENS), long_tail(vocab, head, exponent, vocab)) <= 1e-3


def test_a_flat_distribution_is_cut_to_its_most_probable_tokens() -> None:
    """Without a cap, one distribution over 152 k tokens takes 192 kB and more."""
    logits = np.random.default_rng(0).normal(size=151_936)
    dense = np.exp(logits) / np.exp(logits).sum()
    payload = CODEC.encode(dense)
    assert len(payload) <= CODEC.max_bytes <= 25_000
    decoded = CODEC.decode(payload)
    expected = np.sort(np.argsort(-dense, kind="stable")[: CODEC.max_tokens])
    np.testing.assert_array_equal(decoded.ids, expected)
    np.testing.assert_allclose(decoded.probabilities, dense[expected] / dense[expected].sum(), rtol=1e-3)
    assert decoded.argmax() == int(np.argmax(dense))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60).filter(any), st.integers(1, 70))
def test_the_cut_keeps_the_most_probable_and_of_equals_the_lowest(weights: list[int], limit: int) -> None:
    codec = TopP(1.0, max_tokens=limit)
    decoded = codec.decode(codec.encode(np.array(weights) / sum(weights)))
    positive = [i for i, weight in enumerate(weights) if weight]
    assert decoded.ids.tolist() == sorted(sorted(positive, key=lambda i: (-weights[i], i))[:limit])
    assert codec.decode(codec.encode(decoded.dense(len(weights)))) == decoded, "the cut is a fixed point"


@pytest.mark.parametrize("max_tokens", [1, 300, MOST_TOKENS])
@pytest.mark.parametrize("p", [0.8, 1.0])
def test_no_payload_exceeds_its_bound(max_tokens: int, p: float) -> None:
    codec, rng = TopP(p, max_tokens), np.random.default_rng(3)
    for dense in (np.ones(MAX_VOCAB), rng.random(MAX_VOCAB), long_tail(MAX_VOCAB, 0.6, 1.0, 3)):
        payload = codec.encode(dense)
        assert len(payload) <= codec.max_bytes
        assert len(codec.decode(payload)) <= max_tokens


def test_more_tokens_than_the_cap_are_refused() -> None:
    payload = TopP(1.0, 3).encode(np.ones(3))
    with pytest.raises(ProtocolError, match=r"^An encoded distribution must hold 1 to 2 tokens, got 3; "):
        TopP(1.0, 2).decode(payload)


MALFORMED = {
    "empty": b"",
    "unknown version": b"\x20\x01\x00",
    "no body": b"\x10",
    "no tokens": b"\x10\x00",
    "count cut off": b"\x10\x80",
    "ids missing": b"\x10\x02\x01",
    "id cut off": b"\x10\x01\x80",
    "id of four bytes": b"\x10\x01\x80\x80\x80\x01",
    "id beyond 2**19": b"\x10\x01" + sets.encode_number(MAX_VOCAB),
    "count beyond 2**19": b"\x10" + sets.encode_number(MAX_VOCAB + 1) + b"\x00" * 600_000,
    "weights missing": b"\x10\x02\x01\x01\x01\x00",
    "trailing bytes": b"\x10\x01\x05\x00",
    "zero weight": b"\x10\x02\x01\x01\x00\x00\xff\xff",
    "no LZ4 block": b"\x11\x05",
    "not LZ4": b"\x11\x05\xff\xff\xff\xff",
    "wrong LZ4 size": b"\x11\x7f\x30\x02\x01\x01",
    "unknown form": b"\x14\x01\x00",
    "wide weights missing": b"\x12\x02\x01\x01\x01\x00\x01\x00",
    "zero wide weight": b"\x12\x02\x01\x01" + b"\x00" * 4 + b"\xff" * 4,
    "bomb": b"\x11\xff\xff\x7f" + b"\x1f\x00\x01\x00" + b"\xff" * 8_000,
    "too long": b"\x10" + b"\x00" * 1_400_000,
}


@pytest.mark.parametrize("payload", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_bytes_are_refused_in_one_sentence(payload: bytes) -> None:
    with pytest.raises(
        ProtocolError, match=r"^An encoded distribution must .*; drop the frame and ask the sender again\.$"
    ):
        CODEC.decode(payload)


@settings(max_examples=400)
@given(
    st.binary(max_size=80)
    | st.builds(lambda head, tail: head + tail, st.sampled_from([b"\x10", b"\x11"]), st.binary(max_size=60))
)
def test_any_bytes_give_a_distribution_or_a_protocol_error(payload: bytes) -> None:
    try:
        distribution = CODEC.decode(payload)
    except ProtocolError:
        return
    assert distribution.ids[-1] < MAX_VOCAB


@settings(max_examples=300)
@given(st.integers(0, 10_000), st.integers(0, 255), st.booleans())
def test_a_damaged_payload_gives_a_distribution_or_a_protocol_error(
    position: int, byte: int, is_flat: bool
) -> None:
    rng = np.random.default_rng(1)
    payload = bytearray(CODEC.encode(np.ones(300) if is_flat else rng.dirichlet(np.ones(300))))
    payload[position % len(payload)] = byte
    try:
        distribution = CODEC.decode(bytes(payload))
    except ProtocolError:
        return
    assert distribution.ids[-1] < MAX_VOCAB


@pytest.mark.parametrize(
    "dense",
    [
        np.zeros(5),
        np.array([0.5, np.nan]),
        np.array([1.5, -0.5]),
        np.array([np.inf, 0.0]),
        np.zeros(0),
        np.ones((2, 2)),
    ],
)
def test_what_is_no_distribution_is_refused(dense: np.ndarray) -> None:
    with pytest.raises(GenerationError, match=r"^A distribution must .*, got .*; "):
        CODEC.encode(dense)


def test_a_vocabulary_beyond_the_limit_is_refused() -> None:
    with pytest.raises(GenerationError, match=r"got shape \(524289,\)"):
        CODEC.encode(np.ones(MAX_VOCAB + 1))


# ---- known defects of other codecs ---------------------------------------------------------------------------


def check_ids_arrive() -> None:
    """The token that crosses p, and those beyond 16 bits: Qwen has 151,936."""
    crossing, wide = np.array([0.5, 0.31, 0.1, 0.09]), np.zeros(151_936)
    wide[[7, 100_000]] = 0.4, 0.6
    assert CODEC.decode(CODEC.encode(crossing)).ids.tolist() == [0, 1]
    assert CODEC.decode(CODEC.encode(wide)).ids.tolist() == [7, 100_000]


def test_the_crossing_token_and_wide_ids_arrive() -> None:
    check_ids_arrive()


def drop_the_crossing_token(dense: np.ndarray, top_p: float) -> np.ndarray:
    ids = nucleus(dense, top_p)
    return np.sort(ids[np.argsort(-dense[ids], kind="stable")][: max(1, ids.size - 1)])


def ids_of_sixteen_bits(ids: np.ndarray, encode: Callable[..., bytes] = sets.encode_ids) -> bytes:
    return encode(np.sort((ids - 32_768).astype(np.int16).astype(np.int64) + 32_768))


def always_compressed(form: int, body: bytes) -> bytes:
    return b"\x11" + sets.encode_number(len(body)) + lz4.block.compress(body, store_size=False)


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "check"),
    [
        (module, "nucleus", drop_the_crossing_token, check_ids_arrive),
        (sets, "encode_ids", ids_of_sixteen_bits, check_ids_arrive),
        (module, "shortest", always_compressed, test_lz4_is_used_only_where_it_shortens),
    ],
)
def test_mutants(
    owner: object, name: str, mutant: object, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    with pytest.raises(AssertionError):
        check()
