"""Every codec in whole answers of both parties: over a bad link as in the run without drafts ahead."""

from __future__ import annotations

import pytest

from tandem.codecs import Codec, CSqs, KSqs, Lattice, RaceLists, TopK
from tandem.lab.simulation.link import Link
from tandem.lab.simulation.recoded import simulate_codec

BAD_LINK = Link(delay_s=0.1, jitter_s=0.1, drop=0.05)
CODECS: list[Codec] = [
    Lattice(24),
    Lattice(24, "paper"),
    KSqs(4, 24),
    KSqs(4, 24, "paper"),
    CSqs(0.05, 0.3, 0.1, 0.4, resolution=24),
    CSqs(0.05, 0.3, 0.1, 0.4, resolution=24, index="paper"),
    TopK(3),
    TopK(3, "residual"),
    RaceLists(1),
    RaceLists(3),
]


@pytest.mark.parametrize("codec", CODECS, ids=[codec.fingerprint() for codec in CODECS])
@pytest.mark.parametrize("placement", ["device", "mirror"])
def test_an_answer_depends_on_no_timing(codec: Codec, placement: str) -> None:
    for seed in range(2):
        wanted = simulate_codec(codec, seed, Link(), synchronous=True, placement="device").tokens
        found = simulate_codec(codec, seed, BAD_LINK, synchronous=False, placement=placement).tokens
        assert found == wanted
