"""Defects that are planted in a run, one at a time, and whether the fuzz property finds them.

A run is one seed's query, links and faults (`tandem_lab.simulation.fuzz`); "found" is any broken invariant, a wrong
answer, a hang or an exception.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tandem_lab.simulation.fuzz import FuzzFailure, expected, play

Mutate = Callable[[pytest.MonkeyPatch], None]


def put(part: type[Any]) -> Mutate:
    """The mutant in which `part` stands in for the class it is derived from, wherever the protocol makes one."""
    base = part.__mro__[1]

    def plant(patch: pytest.MonkeyPatch) -> None:
        for name, module in list(sys.modules.items()):
            if name.startswith("tandem.protocol.") and vars(module).get(base.__name__) is base:
                patch.setattr(module, base.__name__, part)

    return plant


def nothing(patch: pytest.MonkeyPatch) -> None:
    """No mutant."""


@dataclass(frozen=True)
class Planted:
    """A defect, and where it is found.

    seeds: among which it is, for another version of numpy may round other distributions; witness: one that finds it.
    around: what else is changed, without a defect too.
    """

    mutate: Mutate
    seeds: Sequence[int]
    witness: int
    roles: str = "dual"
    around: Mutate = nothing

    def failure(self, seed: int, mutate: Mutate) -> FuzzFailure | None:
        """How a run fails with this mutant. What it must answer is computed without it."""
        if self.roles.startswith("dual"):
            expected(seed, self.roles)
        with pytest.MonkeyPatch.context() as patch:
            self.around(patch)
            mutate(patch)
            try:
                play(seed, roles=self.roles)
            except FuzzFailure as failure:
                return failure
        return None

    def check_witness(self) -> None:
        """It finds the defect, and nothing where there is none."""
        assert self.failure(self.witness, nothing) is None
        failure = self.failure(self.witness, self.mutate)
        assert failure is not None
        assert "AttributeError" not in failure.what, "the mutant itself is broken"

    def check_seeds(self) -> None:
        """The witness is among the seeds that find it; if it stops being one, they are others."""
        assert self.witness in {seed for seed in self.seeds if self.failure(seed, self.mutate)}


def both_tests_of(mutants: Mapping[str, Planted]) -> tuple[Callable[[str], None], Callable[[str], None]]:
    """That each witness finds its mutant; and at night, that it is among the seeds that do."""

    @pytest.mark.parametrize("name", mutants)
    def test_witness(name: str) -> None:
        mutants[name].check_witness()

    @pytest.mark.nightly("every seed of every mutant; `make test` plays the witnesses")
    @pytest.mark.parametrize("name", mutants)
    def test_seeds(name: str) -> None:
        mutants[name].check_seeds()

    return test_witness, test_seeds
