"""The sampling options: one list of fields, and a sentence for each mistake."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tandem
from tandem.config.checks import settings_of
from tandem.config.schema import SamplingOptions, SamplingParams
from tandem.errors import ConfigError


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


WRONG: list[tuple[str, Any, str]] = [
    ("temperature", -1, "must be greater than or equal to 0 (got -1); the default is 0.0."),
    ("temperature", "1", "must be a valid number (got '1'); the default is 0.0."),
    ("temperature", True, "must be a valid number (got True); the default is 0.0."),
    ("temperature", math.inf, "must be a finite number (got inf); the default is 0.0."),
    ("temperature", math.nan, "must be a finite number (got nan); the default is 0.0."),
    ("top_k", 1.0, "must be a valid integer (got 1.0); the default is 0."),
    ("min_p", 2, "must be less than or equal to 1 (got 2); the default is 0.0."),
    ("max_new_tokens", 0, "must be greater than or equal to 1 (got 0); the default is 512."),
    ("stop", "", "must have at least 1 character (got ''); the default is []."),
    ("stop", ("a", ""), "must have at least 1 character (got ''); the default is []."),
    ("stop", [1], "must be a valid string (got 1); the default is []."),
    ("temprature", 1, "does not exist; the nearest is 'temperature'."),
]


@pytest.mark.parametrize(("name", "value", "problem"), WRONG)
def test_a_wrong_value_is_one_sentence(name: str, value: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{name} {problem}')}$"):
        SamplingParams(**{name: value})


ROOT = Path(tandem.__file__).parents[1]
NEW_OPTION = r'''
import importlib.util, sys
from pathlib import Path

import tandem

def load(name, path, *edits):
    """Import a module from its source with some lines added."""
    text = Path(path).read_text("utf-8")
    for before, line in edits:
        assert before in text, before
        text = text.replace(before, line + before, 1)
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    exec(compile(text, path, "exec"), module.__dict__)
    return module

load(
    "tandem.config.schema",
    "tandem/config/schema.py",
    ("    stop: Texts", "    banned: int = Field(default=-1, ge=-1, description='this token is never drawn')\n"),
    ("    stop: str | list", "    banned: int | None\n"),
)
restriction = load(
    "tandem.aggregation.distributions",
    "tandem/aggregation/distributions.py",
    ("    if sampling.min_p:", "    if sampling.banned >= 0:\n        kept[sampling.banned] = False\n"),
)
generate = load("generate", "docs/generate.py")

import numpy as np
from tandem.config.schema import Config
from tandem.errors import ConfigError
from tandem.modes import SessionSpec
from tandem.client.request import build_spec
from tandem.topology import PARTIES

config = Config.load(None, ["sampling.banned=1"])
assert "banned = 1  # this token is never drawn" in config.to_toml()
assert Config.from_json(config.to_json()).sampling.banned == 1
assert "| `sampling.banned` | whole number, >= -1 | `-1` | this token is never drawn |" in generate.settings_tables()
described = {party: {"decode_line": [], "eos_token_ids": []} for party in PARTIES}
spec = SessionSpec.from_json(build_spec(config, described, "Why?", banned=2).to_json())
assert spec.sampling.banned == 2
assert restriction.restrict(np.array([0.5, 0.2, 0.3]), spec.sampling).tolist() == [0.5 / 0.7, 0.2 / 0.7, 0.0]
try:
    build_spec(config, described, "Why?", banned=-2)
except ConfigError as error:
    print(error)
'''


def test_a_new_option_is_added_where_options_are_and_where_it_is_applied() -> None:
    command = [sys.executable, "-c", NEW_OPTION]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "banned must be greater than or equal to -1 (got -2); the default is -1."
