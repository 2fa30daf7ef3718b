"""The running cluster gives the answers recorded in one process, token for token and flag for flag.

With top_p these are the answers of version 0.1. One cluster gives both: parties with race lists have loaded top_p too.
"""

from __future__ import annotations

import pytest

from tandem import Tandem
from tests.cluster.recorded import CASES, TEMPERATURES, check_answers

NUM_PAIRS = (4, pytest.param(8, marks=pytest.mark.nightly("twice as many pairs")))


@pytest.mark.parametrize("num_pairs", NUM_PAIRS)
@pytest.mark.parametrize(("codec", "case"), CASES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_live_answers_are_those_recorded(
    rag: Tandem, codec: str, case: str, temperature: int, num_pairs: int
) -> None:
    check_answers(rag, codec, case, temperature, num_pairs)
