"""The sampling options: what values they take, and a sentence for each mistake."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from tandem.config.schema import SamplingParams
from tandem.errors import ConfigError


def test_an_integer_is_a_number_and_a_list_of_texts_is_taken() -> None:
    params = SamplingParams(temperature=1, stop=["."])  # type: ignore[arg-type]
    assert params == SamplingParams(temperature=1.0, stop=(".",))
    assert isinstance(params.temperature, float)


WRONG: list[tuple[str, Any, str]] = [
    ("temperature", True, "must be a valid number (got True); the default is 0.0."),
    ("temperature", math.inf, "must be a finite number (got inf); the default is 0.0."),
    ("top_k", 1.0, "must be a valid integer (got 1.0); the default is 0."),
    ("stop", "", "must have at least 1 character (got ''); the default is []."),
    ("stop", ("a", ""), "must have at least 1 character (got ''); the default is []."),
    ("stop", [1], "must be a valid string (got 1); the default is []."),
    ("temprature", 1, "does not exist; the nearest is 'temperature'."),
]


@pytest.mark.parametrize(("name", "value", "problem"), WRONG)
def test_a_wrong_value_is_one_sentence(name: str, value: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{name} {problem}')}$"):
        SamplingParams(**{name: value})
