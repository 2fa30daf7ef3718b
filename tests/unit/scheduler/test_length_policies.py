"""Length policies by name, and those of one's own: loaded by settings, never by a query."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.errors import ConfigError
from tandem.scheduler.lengths import (
    BestLength,
    FixedLength,
    RoundCosts,
    load_length_policy,
    make_length_policy,
)

MODULE = """
class Half:
    def __init__(self, max_length, share=0.5):
        self.length = int(share * max_length)

    def choose(self, rates, costs, error=0.0):
        return self.length

    def observe(self, length, num_accepted, confidences=()):
        pass


def nothing(max_length):
    return object()
"""
COSTS = RoundCosts(fixed_s=0.1, token_s=0.02, alone_s=0.1)


@pytest.fixture(autouse=True)
def _own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_lengths.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("fixed", FixedLength),
        ("best", BestLength),
    ],
)
def test_policies_by_name(name: str, policy: type) -> None:
    made = make_length_policy(name, 3)
    assert type(made) is policy
    assert 0 <= made.choose((0.9,) * 3, COSTS) <= 3


def test_a_loaded_policy_is_made_by_its_address() -> None:
    load_length_policy("own_lengths:Half", {"share": 0.25}, "The device's scheduler")
    assert make_length_policy("own_lengths:Half", 12).choose((0.5,) * 12, COSTS) == 3


def test_a_query_loads_nothing() -> None:
    with pytest.raises(ConfigError) as caught:
        make_length_policy("own_lengths:Not", 4)
    assert str(caught.value) == (
        "The length policy 'own_lengths:Not' is not loaded here; name it as decoding.length_policy in the settings of "
        "the device and start it again."
    )


def test_a_built_in_policy_takes_no_table() -> None:
    load_length_policy("best", {}, "This process")
    with pytest.raises(ConfigError) as caught:
        load_length_policy("best", {"share": 0.5}, "This process")
    assert str(caught.value) == (
        "scheduler.length_parameters is for a length policy of your own, but decoding.length_policy is 'best' and the "
        "table holds share; remove it."
    )


def test_what_is_no_policy_is_one_sentence() -> None:
    with pytest.raises(ConfigError) as caught:
        load_length_policy("own_lengths:nothing", {}, "The device's scheduler")
    assert str(caught.value) == (
        "own_lengths:nothing (decoding.length_policy) must return a length policy, but its object has no choose, "
        "observe."
    )
