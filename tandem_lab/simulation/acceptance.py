"""Acceptance sequences for replay: drawn from given rates, in phases, or recorded from a real model.

Knows nothing of time or of the link.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

from tandem.errors import TandemError
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.scripted import Accepted

Joint: TypeAlias = Literal["independent", "exclusive"]
"""How the outcomes of the two sides of one step hang together.

independent: P(neither) = (1 - alpha_device)(1 - alpha_cloud). exclusive: at most one side is rejected wherever the
rates allow it, as for real models at temperature 0, whose target is nearly always one of the two drafts.
"""
LETTERS: dict[str, Accepted] = {
    "B": (True, True),
    "D": (True, False),
    "C": (False, True),
    "N": (False, False),
}
"""Of a recorded sequence: both accepted, only the device's draft, only the cloud's, neither."""


def draw_acceptance(
    num_tokens: int, alpha_device: float, alpha_cloud: float, rng: Random, joint: Joint = "independent"
) -> list[Accepted]:
    """Steps that do not depend on each other, with acceptance rates in [0, 1]."""
    steps = []
    for _ in range(num_tokens):
        first = rng.random()
        second = rng.random() if joint == "independent" else 1.0 - first
        steps.append((first < alpha_device, second < alpha_cloud))
    return steps


def phases(num_tokens: int, high: float, low: float, length: int, rng: Random) -> list[Accepted]:
    """`length` tokens of which the device gets many accepted, then as many for the cloud, and so on; independent."""
    begins = rng.randrange(2)
    rates = cycle([(high, low), (low, high)])
    steps: list[Accepted] = []
    for alpha_device, alpha_cloud in islice(rates, begins, None):
        steps += draw_acceptance(min(length, num_tokens - len(steps)), alpha_device, alpha_cloud, rng)
        if len(steps) >= num_tokens:
            break
    return steps


def rates(steps: Sequence[Accepted]) -> dict[Party, float]:
    """The shares that were accepted."""
    return {party: sum(step[index] for step in steps) / len(steps) for index, party in enumerate(PARTIES)}


def parse_steps(letters: str) -> list[Accepted]:
    """Steps of a recorded sequence; TandemError for another letter."""
    if unknown := set(letters) - LETTERS.keys():
        raise TandemError(
            f"An acceptance sequence consists of {', '.join(LETTERS)}, but {min(unknown)!r} is in it; record it again."
        )
    return [LETTERS[letter] for letter in letters]


def read_acceptance(path: Path) -> dict[str, list[list[Accepted]]]:
    """Recorded sequences by temperature ("0", "1")."""
    found = json.loads(path.read_text("utf-8"))["sequences"]
    return {temperature: [parse_steps(letters) for letters in lines] for temperature, lines in found.items()}


def read_decode_times(path: Path) -> dict[Party, list[float]]:
    """Recorded decode times in seconds."""
    found = json.loads(path.read_text("utf-8"))["decode_ms"]
    return {party: [value / 1e3 for value in found[str(party)]] for party in PARTIES}
