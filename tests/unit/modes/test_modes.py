"""Who drafts, votes and decides in each mode, parties that no mode allows, and what of a query travels."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import draft_rule, draw_owner, shares
from tandem.config.schema import DecodingConfig
from tandem.conversation import Message
from tandem.errors import ConfigError
from tandem.modes import MODES, SessionSpec, reference, reference_shaping
from tandem.modes.query import QuerySpec, Role, Roles
from tandem.modes.reference_shaping import Forecast, Voter
from tandem_lab.simulation.specs import make_spec
from tests.structure import PACKAGE


def roles(**changes: Any) -> Roles:
    return make_spec(**changes).roles


def federated(workers: tuple[str, ...], weights: tuple[float, ...] = ()) -> Roles:
    return roles(mode="federated", workers=workers, weights=weights)


def test_who_does_what() -> None:
    dual = roles(placement="device")
    assert dual.drafters == dual.voters == ("device", "cloud")
    assert (dual.deciders, dual.weighs_by_documents) == (("device",), True)
    assert roles(placement="mirror").deciders == roles(placement="greedy").deciders == ("device", "cloud")
    assert roles(placement="mirror", patience_s=0.2).deciders == ("device",)
    solo = roles(only="cloud")
    assert (solo.voters, solo.topology.home, solo.weighs_by_documents) == (("cloud",), "cloud", False)
    speculative = roles(mode="speculative")
    assert (speculative.drafters, speculative.voters, speculative.deciders) == (
        ("device",),
        ("cloud",),
        ("cloud",),
    )
    weighed = federated(("ada", "ben", "cy"), (0.5, 0.25, 0.25))
    assert (weighed.drafters, weighed.deciders) == (("server",), ("server",))
    assert (weighed.voters, weighed.weights) == (("ada", "ben", "cy"), (0.5, 0.25, 0.25))
    assert weighed.role("server") == Role(drafts=True, decides=True)
    assert not weighed.weighs_by_documents
    by_documents = federated(("ada", "ben"))
    assert (by_documents.weights, by_documents.weighs_by_documents) == ((None, None), True)


def test_one_voter_alone_is_a_mode_of_its_own_whatever_the_query_names() -> None:
    for mode in MODES:
        rules = make_spec(mode=mode, only="device").rules
        assert (rules.name, rules.first_decider, rules.roles.topology.peers("device")) == (
            "solo",
            "device",
            (),
        )
        assert rules.votes_are_tokens is MODES[mode].votes_are_tokens
        lists = make_spec(mode=mode, only="device", race_depth=8, draft_rule="coupled").rules
        assert (lists.votes_are_tokens, lists.has_race_lists) == (True, False), (
            "nothing is encoded for nobody"
        )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"workers": ("ada",), "weights": (1.0,)},
         "Mode federated has 2 or more voters (got ada); name more workers."),
        ({},
         "Mode federated has 2 or more voters (got none); name more workers."),
        ({"workers": ("ada", "ben", "cy"), "weights": (0.5, 0.5)},
         "Each of 3 workers needs a weight (got 2); give that many, or none."),
        ({"workers": ("ada", "ben"), "weights": (1.5, -0.5)},
         "In mode federated each voter has a weight of at least 0 (got 1.5, -0.5); give it."),
        ({"workers": ("ada", "ben"), "weights": (float("nan"), 0.5)},
         "In mode federated each voter has a weight of at least 0 (got nan, 0.5); give it."),
        ({"workers": ("ada", "ben"), "weights": (0.5, 0.4)},
         "The weights of the voters have sum 1 (got 0.5, 0.4); scale them."),
    ],
)  # fmt: skip
def test_parties_that_no_mode_allows_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _ = make_spec(mode="federated", **changes).roles
    assert str(refused.value) == sentence


def named_modes(source: str) -> list[int]:
    """Lines of a module that name a mode, or compare one."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Constant) and node.value in MODES)
        or (
            isinstance(node, ast.Compare)
            and any(
                isinstance(each, ast.Attribute)
                and each.attr in ("mode", "name")
                and "rules" in ast.dump(each)
                for each in ast.walk(node)
            )
        )
    ]


def test_the_protocol_names_no_mode() -> None:
    """What differs between modes is in the mode's file."""
    found = {path.name: named_modes(path.read_text()) for path in sorted((PACKAGE / "protocol").glob("*.py"))}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert named_modes('if spec.decoding.mode == "dual": pass') == [1]
    assert named_modes("if spec.rules.name == other: pass") == [1]


WIRE = {
    "session": "a", "query": "b", "seed": "c", "sampling": "d", "decoding": "e", "documents": "f",
    "relevance_scale": "g", "question_weight": "h", "evidence_weight": "i", "evidence_memory": "j",
    "on_peer_loss": "k", "peer_loss_margin_s": "l", "weights_fingerprints": "m", "eos_token_ids": "n",
    "vocab_size": "o", "device_decode_line": "p", "cloud_decode_line": "q", "only": "r", "device_filter": "s",
    "cloud_filter": "t", "history": "u", "show_drafts": "w", "workers": "x", "weights": "y",
    "race_depth": "z", "num_logprobs": "aa", "layouts": "dd",
    "has_several_models": "ee", "day": "ff", "peer_stall_s": "gg", "max_peer_share": "hh",
    "system_prompt": "ii", "logit_bias": "jj", "grammar": "kk", "search": "ll", "pieces": "mm", "wants_marks": "_marks",
}  # fmt: skip
"""A change here is a change of `PROTOCOL_VERSION`."""


def test_names_on_the_wire_are_pinned_and_differ() -> None:
    hints = get_type_hints(QuerySpec, include_extras=True)
    assert {name: hint.__metadata__[-1].alias for name, hint in hints.items()} == WIRE
    assert len(set(WIRE.values())) == len(WIRE) == len(fields(SessionSpec))


def test_only_what_differs_from_the_defaults_travels() -> None:
    spec = make_spec(mode="speculative", history=(Message("user", "Why?"),))
    written = json.loads(spec.to_json())
    assert written["e"] == {"mode": "speculative", "placement": "device", "draft_rule": "coupled"}
    assert written.keys() < set(WIRE.values())
    assert SessionSpec.from_json(spec.to_json()) == spec


def test_every_decoding_option_travels() -> None:
    """Whatever is added to the group."""
    values = {
        "mode": "speculative", "draft_rule": "rejection", "placement": "cloud", "max_window": 3,
        "max_proposal": 5, "length_policy": "own:Half", "uplink_budget_bits": 900, "pacing": "pipelined", "home": "ada",
    }  # fmt: skip
    of_dual = {"draft_rule": "coupled", "placement": "device", "patience_s": 0.25}
    of_home = {"steps"}  # which asks one query after the other, each without it
    assert {field.name for field in fields(DecodingConfig)} == {*values, *of_dual, *of_home}
    for options in (values, of_dual):
        spec = make_spec(**options)
        assert json.loads(spec.to_json())["e"] == options
        assert SessionSpec.from_json(spec.to_json()) == spec


VOCAB = 12


def voter(seed: int, log_weight: float = 0.0) -> Voter:
    def vote(tokens: Sequence[int]) -> Forecast:
        rng = np.random.default_rng([seed, *tokens])
        p = rng.dirichlet(np.full(VOCAB, 0.5))
        return Forecast([float(mass) for mass in p / p.sum()], log_weight)

    return vote


def has(length: int) -> reference.IsComplete:
    return lambda tokens: len(tokens) >= length


def sparse(vote: Forecast) -> Distribution:
    return Distribution(np.arange(VOCAB), np.array(vote.probabilities))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_dual_agrees_with_the_draft_rule_to_the_token(temperature: float) -> None:
    device, cloud = voter(1, 0.3), voter(2, -0.2)
    rule = draft_rule("coupled", temperature)
    for seed in range(30):
        tokens = reference.dual(device, cloud, has(12), seed if temperature else None)
        for step, token in enumerate(tokens):
            decision = rule.verify(
                sparse(device(tokens[:step])),
                sparse(cloud(tokens[:step])),
                eta_device=shares(0.3, -0.2)[0],
                seed=seed,
                step=step,
            )
            assert decision.target == token


def test_the_lottery_agrees_with_the_rule_to_the_owner() -> None:
    """Also where shares have no sum of 1, and where only the first or the last has any."""
    rng = np.random.default_rng(3)
    for seed in range(300):
        size = int(rng.integers(1, 6))
        weights = rng.dirichlet(np.full(size, 0.4)) * rng.choice([1.0, 1.0, 1e-3])
        for given in (weights.tolist(), [1.0, *[0.0] * size], [*[0.0] * size, 1.0]):
            assert reference.owner(given, seed, seed % 7) == draw_owner(given, seed=seed, step=seed % 7)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_federated_by_documents_is_the_mixture_by_their_shares(temperature: float) -> None:
    log_weights = [0.3, -0.2, 1.0]
    workers = [voter(number, weight) for number, weight in enumerate(log_weights)]
    for seed in range(10):
        drawn = seed if temperature else None
        by_documents = reference.federated(workers, None, has(10), drawn)
        assert by_documents == reference.federated(workers, shares(*log_weights), has(10), drawn)
    two = workers[:2]
    assert reference.federated(two, None, has(10), 1) == reference.dual(*two, has(10), 1)


@pytest.mark.parametrize("by_lottery", [False, True])
def test_a_token_is_drawn_from_the_mixture(by_lottery: bool) -> None:
    """Frequencies of 4,000 draws lie within 5 standard deviations of each probability: a false alarm in 10^5."""
    workers, weights, n = [voter(1), voter(2), voter(3)], [0.5, 0.3, 0.2], 4000
    target = reference_shaping.mix([worker([]) for worker in workers], weights)
    counts = np.bincount(
        [reference.federated(workers, weights, has(1), seed, None, by_lottery)[0] for seed in range(n)],
        minlength=VOCAB,
    )
    for token, p in enumerate(target):
        assert abs(counts[token] / n - p) <= 5 * (p * (1 - p) / n) ** 0.5 + 1e-12


def test_ties_go_to_the_lowest_id() -> None:
    assert reference.greedy([0.2, 0.4, 0.4]) == 1


def test_it_is_one_page() -> None:
    assert len(Path(reference.__file__).read_text("utf-8").splitlines()) <= 140
