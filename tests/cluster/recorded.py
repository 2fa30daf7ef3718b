"""What a running cluster answers, beside what was recorded."""

from __future__ import annotations

from collections.abc import Iterable
from unittest.mock import patch

from benchmarks.golden_answers import PATHS, read_answers
from tandem import Tandem, TokenEvent
from tandem.config.files import PRESETS

COUPLED = [f"coupled/{placement}" for placement in ("mirror", "device", "greedy")]
CASES = [("auto", case) for case in COUPLED] + [("top_p", case) for case in (*COUPLED, "algorithm1/device")]
"""Codec, and draft rule with placement, of the answers that do not depend on timing."""
TEMPERATURES = (0, 1)
NUCLEI = {"nuclei": {"codec": PRESETS["dragon"]["codec"]}}
"""A preset of DRAGON's codec alone, by which coupled drafts vote with nuclei and not with race lists."""


def check_answers(rag: Tandem, codec: str, case: str, temperature: int, pairs: Iterable[int]) -> None:
    """Ask pairs again. codec: "top_p" or "auto". case: "draft rule/placement". pairs: numbers of bundled questions."""
    draft_rule, placement = case.split("/")
    preset = "nuclei" if (codec, draft_rule) == ("top_p", "coupled") else None
    recorded = read_answers(PATHS[codec])
    for pair in pairs:
        row = recorded[2 * pair]  # every other one asks the bundled corpora
        with patch.dict(PRESETS, NUCLEI):
            stream = rag.stream(
                row["question"],
                preset=preset,
                seed=row["seed"],
                temperature=float(temperature),
                placement=placement,
                draft_rule=draft_rule,
            )
            tokens = [event for event in stream if isinstance(event, TokenEvent)]
        flags = [2 * bool(event.device_accepted) + bool(event.cloud_accepted) for event in tokens]
        assert [[event.token for event in tokens], flags] == row["answers"][f"{case}/{temperature}"]
