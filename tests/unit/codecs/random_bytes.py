"""Random bytes and damaged payloads for any codec: nothing but the protocol's error may come of them."""

from __future__ import annotations

import numpy as np

from tandem.codecs import Codec, TopP
from tandem.errors import ProtocolError
from tandem.plugins.papers.lattice import Lattice
from tandem.plugins.papers.sqs import CSqs, KSqs
from tandem.plugins.papers.top_k import TopK

VOCAB = 12
CODECS: tuple[Codec, ...] = (
    TopP(0.8),
    TopK(4),
    TopK(4, "residual"),
    Lattice(6),
    Lattice(6, "paper"),
    KSqs(4, 6),
    KSqs(4, 6, "paper"),
    CSqs(resolution=6),
    CSqs(resolution=6, index="paper"),
)


def decodes(codec: Codec, payload: bytes, vocab_size: int) -> bool:
    """Whether bytes are a distribution, of this vocabulary; False for the protocol's error, and any other is raised."""
    try:
        distribution = codec.decode(payload, vocab_size)
    except ProtocolError:
        return False
    assert int(distribution.ids[-1]) < vocab_size
    return True


def count_decoded(codec: Codec, count: int, seed: int) -> int:
    """How many of `count` random strings are distributions; up to 14 bytes, for three sizes of vocabulary."""
    rng = np.random.default_rng(seed)
    lengths, sizes = rng.integers(0, 15, count), rng.choice([2, VOCAB, 50_257], count)
    return sum(
        decodes(codec, rng.bytes(length), size)
        for length, size in zip(lengths.tolist(), sizes.tolist(), strict=True)
    )
