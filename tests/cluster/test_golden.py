"""The running cluster gives the answers that version 0.1 gave in one process, token for token and flag for flag."""

from __future__ import annotations

import pytest

from benchmarks.golden_answers import PATH, read_answers
from tandem import Tandem, TokenEvent

NUM_PAIRS = 8
CASES = [f"coupled/{placement}" for placement in ("mirror", "device", "greedy")] + ["algorithm1/device"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("temperature", [0, 1])
def test_live_answers_are_those_recorded(rag: Tandem, case: str, temperature: int) -> None:
    draft_rule, placement = case.split("/")
    recorded = read_answers(PATH)
    for number in range(0, 2 * NUM_PAIRS, 2):  # every other pair asks the bundled corpora
        row = recorded[number]
        stream = rag.stream(
            row["question"],
            seed=row["seed"],
            temperature=float(temperature),
            placement=placement,
            draft_rule=draft_rule,
        )
        tokens = [event for event in stream if isinstance(event, TokenEvent)]
        flags = [2 * bool(event.device_accepted) + bool(event.cloud_accepted) for event in tokens]
        assert [[event.token for event in tokens], flags] == row["answers"][f"{case}/{temperature}"]
