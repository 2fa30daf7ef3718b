"""The running cluster gives the answers recorded in one process, token for token and flag for flag.

With top_p these are the answers of version 0.1. One cluster gives both: parties with race lists have loaded top_p too.
"""

from __future__ import annotations

import pytest

from tandem import Tandem
from tests.cluster.recorded import CASES, TEMPERATURES, check_answers

PAIRS = (range(2, 4), pytest.param(range(8), marks=pytest.mark.nightly("four times as many pairs")))
"""The first two are asked in one process, by `tests/unit/sites`."""


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize(("codec", "case"), CASES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_live_answers_are_those_recorded(
    rag: Tandem, codec: str, case: str, temperature: int, pairs: range
) -> None:
    check_answers(rag, codec, case, temperature, pairs)
