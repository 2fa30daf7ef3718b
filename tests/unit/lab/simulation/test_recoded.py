"""Whole sessions through a codec with a state: rollback over a bad link leaves no trace in it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tandem.codecs import CodecSession, CodecStates
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.recoded import simulate_codec
from tandem_lab.simulation.world import VOCAB
from tests.unit.codecs.stateful import Threshold

CODEC = Threshold(VOCAB)
BAD_LINK = Link(delay_s=0.1, jitter_s=0.1, drop=0.05)
SEEDS = range(12)


def agrees(seed: int, placement: str) -> bool:
    """Whether speculation over a bad link gives the tokens of the synchronous run."""
    wanted = simulate_codec(CODEC, seed, Link(), max_window=1, placement="device").tokens
    found = simulate_codec(CODEC, seed, BAD_LINK, max_window=16, placement=placement).tokens
    return found == wanted


@pytest.mark.parametrize("placement", ["device", "cloud", "mirror"])
def test_speculation_gives_the_tokens_of_the_synchronous_run(placement: str) -> None:
    assert all(agrees(seed, placement) for seed in SEEDS)


def test_a_codec_that_does_not_roll_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant goes on from whatever was encoded last, rejected drafts included."""

    def last(self: CodecStates, lineage: Sequence[bytes]) -> CodecSession:
        before: CodecSession = vars(self).get("last", CODEC.open())
        return before

    def encode(self: CodecStates, dense: object, lineage: Sequence[bytes]) -> bytes:
        payload, after = last(self, lineage).encode(dense)  # type: ignore[arg-type]
        vars(self)["last"] = after
        return payload

    monkeypatch.setattr(CodecStates, "encode", encode)
    assert not all(agrees(seed, "mirror") for seed in SEEDS)
