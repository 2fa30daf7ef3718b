"""Specs of sessions for simulated runs: a few values, the defaults for the rest."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

from tandem.client.request import spec_of
from tandem.config.parties import RowLayout
from tandem.config.schema import Config, DecodingConfig, SamplingParams
from tandem.modes import SessionSpec
from tandem.topology import PARTIES
from tandem_lab.baselines.random_placement import RANDOM
from tandem_lab.simulation.world import number


def make_spec(**changes: Any) -> SessionSpec:
    """The query "q" as session 1 with seed 0; the device decides, and an answer has at most 64 tokens.

    Votes are whole distributions unless a race_depth or the rule `lottery` is given.
    """
    basis = replace(spec_of(Config()), session=1, query="q", race_depth=0)
    defaults = {"placement": "device", "max_new_tokens": 64, "draft_rule": "coupled"}
    return change_spec(basis, **{**defaults, **changes})


def change_spec(spec: SessionSpec, **changes: Any) -> SessionSpec:
    """The spec with other values; those of `SamplingParams` and `DecodingConfig` go there, `device_documents` and so on
    to `documents`. The placement "random" is the laboratory's."""
    if changes.get("placement") == "random":
        changes["placement"] = RANDOM
    counts = {
        party: changes.pop(f"{party}_documents") for party in PARTIES if f"{party}_documents" in changes
    }
    sampling, decoding = (
        {field.name: changes.pop(field.name) for field in fields(group) if field.name in changes}
        for group in (SamplingParams, DecodingConfig)
    )
    documents = changes.pop("documents", spec.documents) | counts
    return replace(
        spec,
        sampling=replace(spec.sampling, **sampling),
        decoding=replace(spec.decoding, **decoding),
        documents=documents,
        **changes,
    )


def vary_layouts(spec: SessionSpec, seed: int) -> SessionSpec:
    """How the documents of each party stand in rows, mostly each in its own. Drawn apart, so that recorded seeds keep
    the rest of their query."""
    rng = random.Random(number("layouts", seed))
    layouts: list[RowLayout] = ["rows", "rows", "rows", "joined", "both"]
    drawn = {party: rng.choice(layouts) for party in spec.documents}
    return replace(spec, layouts={party: layout for party, layout in drawn.items() if layout != "rows"})
