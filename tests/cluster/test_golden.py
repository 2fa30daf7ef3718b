"""The running cluster gives the answers that version 0.1 gave in one process, token for token and flag for flag."""

from __future__ import annotations

import pytest

from tandem import Tandem
from tests.cluster.recorded import check_answers

NUM_PAIRS = 8
CASES = [f"coupled/{placement}" for placement in ("mirror", "device", "greedy")] + ["algorithm1/device"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("temperature", [0, 1])
def test_live_answers_are_those_recorded(rag: Tandem, case: str, temperature: int) -> None:
    check_answers(rag, case, temperature, NUM_PAIRS)
