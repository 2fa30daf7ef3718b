"""Who drafts, votes and decides in each mode, parties that no mode allows, and what of a query travels."""

from __future__ import annotations

import ast
import json
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from tandem.config.schema import DecodingConfig
from tandem.conversation import Message
from tandem.errors import ConfigError
from tandem.modes import MODES, SessionSpec
from tandem.modes.query import QuerySpec, Role, Roles
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
    "system_prompt": "ii", "logit_bias": "jj", "grammar": "kk",
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
    assert {field.name for field in fields(DecodingConfig)} == {*values, *of_dual}
    for options in (values, of_dual):
        spec = make_spec(**options)
        assert json.loads(spec.to_json())["e"] == options
        assert SessionSpec.from_json(spec.to_json()) == spec
