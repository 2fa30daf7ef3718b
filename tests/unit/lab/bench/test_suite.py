"""Rows: medians over runs, sums per token, tokens that are wrong, whose drafts count."""

from __future__ import annotations

import pytest

from tandem.topology import Party
from tandem_lab.bench import dual, federated
from tandem_lab.bench.suite import num_wrong
from tests.unit.lab.bench.cells import TOKENS, cell, record, voting_cell

rows_of = dual.LATENCY.rows_of


def test_a_row_holds_medians_over_runs_and_sums_a_token() -> None:
    row = rows_of(cell())["Tandem/mirror"]
    assert row.token_s == pytest.approx(0.08), "not the mean of 0.07, 0.08, 0.10"
    assert (row.token_s_p25, row.token_s_p75) == pytest.approx((0.075, 0.09))
    assert (row.first_s, row.num_runs, row.num_tokens) == (0.5, 3, 30)
    assert row.accepted == {Party.DEVICE: 0.6, Party.CLOUD: 0.8}
    assert row.forwards == {Party.DEVICE: 2.0, Party.CLOUD: 1.0}
    assert row.lost_s == pytest.approx({Party.DEVICE: 0.06, Party.CLOUD: 0.0})
    assert row.waited_s == pytest.approx(0.02)
    assert row.cpu_s == pytest.approx({Party.DEVICE: 0.05, Party.CLOUD: 0.02})
    assert row.frame_bytes == {Party.DEVICE: 100, Party.CLOUD: 200}
    assert row.bytes_per_frame == {Party.DEVICE: 100, Party.CLOUD: 100}
    assert row.wire_bytes[Party.CLOUD] == {"data": 400, "ray": 60, "other": 1.4}
    assert row.frame_share == pytest.approx(1500 / (1700 + 2300)), "pings are not in it"
    voted = federated.SUITE.rows_of(voting_cell())["pipelined"]
    assert voted.waited_for == {"worker-1": 0.2, "worker-2": 0.8}
    assert voted.accepted == {"server": 0.6}
    assert voted.forwards == {"server": 1.6, "worker-1": 0.4, "worker-2": 0.6}


@pytest.mark.parametrize(
    ("tokens", "count"),
    [(TOKENS, 0), ((5, 6, 0, 8, 9), 1), (TOKENS[:-1], 1), ((*TOKENS, 1), 1), ((6, 7, 8, 9), 5), ((), 5)],
)
def test_wrong_tokens_are_counted_by_position(tokens: tuple[int, ...], count: int) -> None:
    assert num_wrong([record("Tandem/mirror", 0.1, token_ids=tokens)], [TOKENS]) == count
