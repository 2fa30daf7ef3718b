"""What an experiment changes: for a whole cluster, and for the next queries on one side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tandem.modes import SessionSpec
from tandem_lab.simulation.specs import change_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiments:
    """Conditions that hold for a whole cluster. The defaults change nothing."""

    min_decode_time_s: Mapping[str, float] = field(default_factory=dict)  # shortest pass of each party
    extra_delay_s: float = 0.0  # every frame to the peer waits this long
    extra_jitter_s: float = 0.0  # and up to this much longer, at random


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """How one side's actors treat the queries that start from now on. The defaults change nothing."""

    concat_documents: bool = False  # a side's documents in one row, best first, instead of one row each
    extra_documents: tuple[str, ...] = ()  # texts to add after the documents found
    keeps_distributions: bool = False  # the decoder keeps every step, for `Baselines.fetch_sequence`
    random_placement: bool = False  # each step's aggregator is drawn; ask with placement="greedy"

    @property
    def is_static(self) -> bool:
        """Whether weights stay as they begin, as these systems have it."""
        return self.concat_documents or bool(self.extra_documents)

    def apply_to(self, spec: SessionSpec) -> SessionSpec:
        """The session's spec with what the treatment changes."""
        if self.is_static:
            spec = replace(spec, question_weight=0.0, evidence_weight=0.0)
        if self.keeps_distributions:  # as the codec encodes them
            spec = replace(spec, race_depth=0)
        return change_spec(spec, placement="random") if self.random_placement else spec
