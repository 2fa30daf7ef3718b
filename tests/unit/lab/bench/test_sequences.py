"""Sequence-wise synchronisation: the likelier answer, by weight and laws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tandem.codecs import TopP
from tandem.topology import Party
from tandem_lab.baselines.sequences import SequenceResult
from tandem_lab.bench.asker import log_probability, pick_likelier

CODEC = TopP(1.0)
LAW = np.array([0.5, 0.25, 0.125, 0.125])


def sequence(tokens: tuple[int, ...], log_weight: float = 0.0, *, dense: bool = False) -> SequenceResult:
    distribution = LAW.astype("<f2").tobytes() if dense else CODEC.encode(LAW)
    return SequenceResult(tokens=tokens, distributions=(distribution,) * len(tokens), log_weight=log_weight)


@pytest.mark.parametrize("dense", [False, True])
def test_log_probability_is_the_sum_over_steps(dense: bool) -> None:
    found = log_probability(sequence((0, 1, 2), dense=dense), None if dense else CODEC)
    assert found == pytest.approx(math.log(0.5 * 0.25 * 0.125), abs=1e-3)


def test_a_token_outside_the_law_has_no_chance() -> None:
    assert log_probability(sequence((9,)), CODEC) == -math.inf


def test_the_likelier_answer_wins() -> None:
    assert (
        pick_likelier({Party.DEVICE: sequence((0, 1)), Party.CLOUD: sequence((0, 0))}, CODEC) is Party.CLOUD
    )
    assert (
        pick_likelier({Party.DEVICE: sequence((0, 0)), Party.CLOUD: sequence((0, 0))}, CODEC) is Party.DEVICE
    )


def test_the_weight_of_a_party_counts() -> None:
    # eta of the device is 1 / (1 + e^-1) = 0.73 against 0.27; its answer is half as likely: 0.365 > 0.27
    parties = {Party.DEVICE: sequence((0, 1), 1.0), Party.CLOUD: sequence((0, 0), 0.0)}
    assert pick_likelier(parties, CODEC) is Party.DEVICE
    parties[Party.DEVICE] = sequence((0, 1), 0.5)  # 0.31 against 0.38
    assert pick_likelier(parties, CODEC) is Party.CLOUD


def test_a_party_without_documents_loses() -> None:
    parties = {Party.DEVICE: sequence((0,), -math.inf), Party.CLOUD: sequence((3,), -5.0)}
    assert pick_likelier(parties, CODEC) is Party.CLOUD


def test_what_crosses_is_counted() -> None:
    assert sequence((0, 1), dense=True).num_bytes == 2 * (8 + 4) + 8
