"""The sampling options: one list of fields, and a sentence for each mistake."""

from __future__ import annotations

import math
import re
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from tandem.errors import ConfigError
from tandem.sampling import SamplingOptions, SamplingParams
from tandem.validation import settings_of


def test_defaults_change_no_distribution() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.min_p) == (0.0, 0, 0.0)
    with pytest.raises(FrozenInstanceError):
        params.top_k = 3  # type: ignore[misc]


def test_query_options_are_the_fields() -> None:
    assert list(SamplingOptions.__annotations__) == [setting.name for setting in settings_of(SamplingParams)]


def test_every_field_has_a_meaning_and_a_valid_default() -> None:
    for setting in settings_of(SamplingParams):
        assert len(setting.meaning) > 3, setting.name
        assert getattr(SamplingParams(**{setting.name: setting.default}), setting.name) == setting.default


def test_an_integer_is_a_number_and_a_list_of_texts_is_taken() -> None:
    params = SamplingParams(temperature=1, stop=["."])  # type: ignore[arg-type]
    assert params == SamplingParams(temperature=1.0, stop=(".",))
    assert isinstance(params.temperature, float)


NUMBER = "must be a number of at least 0, but it is {}; the default is 0.0."
TEXTS = "must be a list of texts that are not empty, but it is {}; the default is []."
WRONG: list[tuple[str, Any, str]] = [
    ("temperature", -1, NUMBER.format(-1)),
    ("temperature", "1", NUMBER.format("'1'")),
    ("temperature", True, NUMBER.format(True)),
    ("temperature", math.inf, NUMBER.format("inf")),
    ("temperature", math.nan, NUMBER.format("nan")),
    ("top_k", 1.0, "must be a whole number of at least 0, but it is 1.0; the default is 0."),
    ("min_p", 2, "must be a number of at least 0 and of at most 1, but it is 2; the default is 0.0."),
    ("max_new_tokens", 0, "must be a whole number of at least 1, but it is 0; the default is 48."),
    ("stop", "x", TEXTS.format("'x'")),
    ("stop", ("a", ""), TEXTS.format("('a', '')")),
    ("stop", [1], TEXTS.format([1])),
    ("temprature", 1, "does not exist; the nearest is 'temperature'."),
]


@pytest.mark.parametrize(("name", "value", "problem"), WRONG)
def test_a_wrong_value_is_one_sentence(name: str, value: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(f'The setting {name} {problem}')}$"):
        SamplingParams(**{name: value})
