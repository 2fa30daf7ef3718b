"""Random bytes and damaged payloads for any codec: nothing but the protocol's error may come of them."""

from __future__ import annotations

from tandem.codecs import Codec, TopP
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
