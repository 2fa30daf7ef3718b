"""Placement policies of one's own: loaded by settings, never by a query."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.errors import ConfigError
from tandem.scheduler.policies import load_policy, make_policy
from tandem.topology import Party

MODULE = """
class Stay:
    def __init__(self, first, patience=3):
        self.first, self.patience = first, patience

    def advise(self, situation, aggregator):
        return None

    def choose_next(self, step, aggregator, *, remote_accepted, advice):
        return aggregator


def half(first):
    return object()
"""


@pytest.fixture(autouse=True)
def _own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_policies.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_loaded_policy_is_made_by_its_address() -> None:
    shared = load_policy("own_policies:Stay", {"patience": 5}, "The cloud's aggregator")
    assert shared == "own_policies:Stay(patience=5)"
    policy = make_policy("own_policies:Stay", first=Party.CLOUD)
    assert (policy.first, policy.patience) == (Party.CLOUD, 5)  # type: ignore[attr-defined]


def test_a_query_loads_nothing() -> None:
    """A placement may come from another machine: only what the own settings name is ever imported."""
    with pytest.raises(ConfigError) as caught:
        make_policy("own_policies:Not", first=Party.CLOUD)
    assert str(caught.value) == (
        "The placement policy 'own_policies:Not' is not loaded here; name it as decoding.placement in the settings of "
        "both parties and start them again."
    )


def test_a_built_in_policy_takes_no_table() -> None:
    assert load_policy("greedy", {}, "This process") == ""
    with pytest.raises(ConfigError) as caught:
        load_policy("greedy", {"patience": 5}, "This process")
    assert str(caught.value) == (
        "scheduler.parameters is for a placement policy of your own, but decoding.placement is 'greedy' and the table "
        "holds patience; remove it."
    )


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        (
            "own_policy:Stay",
            "The cloud's scheduler cannot import own_policy of decoding.placement = 'own_policy:Stay' "
            "(ModuleNotFoundError: No module named 'own_policy'); install it there in the environment of tandem-rag, "
            "start in the folder that holds it, or add that folder to PYTHONPATH.",
        ),
        (
            "own_policies:half",
            "own_policies:half (decoding.placement) must return a placement policy, but its object has no advise, "
            "choose_next.",
        ),
    ],
)
def test_what_is_no_policy_is_one_sentence(address: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_policy(address, {}, "The cloud's scheduler")
    assert str(caught.value) == sentence
