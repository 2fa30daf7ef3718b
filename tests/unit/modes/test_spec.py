"""What a spec is called where it crosses a link: a party of the same version reads it, whatever fields come between."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import get_type_hints

from tandem.config.schema import DecodingConfig
from tandem.conversation import Message
from tandem.modes import SessionSpec
from tandem.modes.query import QuerySpec
from tandem_lab.simulation.specs import make_spec

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
