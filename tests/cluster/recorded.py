"""What a running cluster answers, beside what was recorded."""

from __future__ import annotations

from benchmarks.golden_answers import PATH, read_answers
from tandem import Tandem, TokenEvent


def check_answers(rag: Tandem, case: str, temperature: int, num_pairs: int) -> None:
    """Ask the first pairs of the bundled corpora again. case: "draft rule/placement"."""
    draft_rule, placement = case.split("/")
    recorded = read_answers(PATH)
    for number in range(0, 2 * num_pairs, 2):  # every other pair asks the bundled corpora
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
