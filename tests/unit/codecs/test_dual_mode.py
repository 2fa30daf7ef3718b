"""Every codec in whole answers of both parties: over a bad link as in the run without drafts ahead."""

from __future__ import annotations

from functools import partial

import pytest

from tandem.codecs import Codec, RaceLists
from tandem.plugins.papers.lattice import Lattice
from tandem.plugins.papers.sqs import CSqs, KSqs
from tandem.plugins.papers.top_k import TopK
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.recoded import simulate_codec

BAD_LINK = Link(delay_s=0.1, jitter_s=0.1, drop=0.05)
CODECS: list[tuple[Codec, int]] = [
    (Lattice(24), 0),
    (Lattice(24, "paper"), 0),
    (KSqs(4, 24), 0),
    (KSqs(4, 24, "paper"), 0),
    (CSqs(0.05, 0.3, 0.1, 0.4, resolution=24), 0),
    (CSqs(0.05, 0.3, 0.1, 0.4, resolution=24, index="paper"), 0),
    (TopK(3), 0),
    (TopK(3, "residual"), 0),
    (RaceLists(), 1),
    (RaceLists(), 3),
]


@pytest.mark.parametrize(
    ("codec", "race_depth"), CODECS, ids=[f"{codec.fingerprint()} {depth}" for codec, depth in CODECS]
)
@pytest.mark.parametrize("placement", ["device", "mirror"])
def test_an_answer_depends_on_no_timing(codec: Codec, race_depth: int, placement: str) -> None:
    for seed in range(2):
        run = partial(simulate_codec, codec, seed, race_depth=race_depth)
        wanted = run(Link(), max_window=1, placement="device").tokens
        assert run(BAD_LINK, max_window=16, placement=placement).tokens == wanted
