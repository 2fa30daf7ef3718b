"""What a device may receive when its target changes, and what each costs: nothing, a block, a head, everything.

And what it may do by itself: a self-taught head learns from the answers that the cloud committed, for 0 bytes.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from tandem.plugins.papers.flexspec import training
from tandem.plugins.papers.flexspec.training import Example, Schedule, collate
from tandem.plugins.papers.flexspec.trunk import freeze_trunk, head_parameters, trunk_parameters
from tandem_lab.evolve.targets import ROWS, Target, learn_tokens

BYTES = 2
"""Of a parameter, in half precision."""
HEAD_STEPS = 100
REMEMBERED = 64
"""Committed answers that a head which teaches itself remembers."""
STEPS_PER_ANSWER = 2
ROWS_PER_STEP = 12
"""Answers of one of these steps, at most."""
PEAK_RATE = 1e-3


def train_head(
    drafter: Any, target: Any, examples: Sequence[Example], rng: Random, num_steps: int = HEAD_STEPS
) -> Any:
    """A copy whose head learned the target's distributions at these tokens; its trunk stays."""
    made = copy.deepcopy(drafter)
    freeze_trunk(made)
    pairs = training.draw_pairs(rng, [(example, example) for example in examples], ROWS)
    training.distil(made, target, pairs, Schedule(num_steps=num_steps))
    return made.eval()


def ship_blocks(drafter: Any, target: Any, blocks: Sequence[int]) -> Any:
    """A copy whose trunk is the target's own again; its head stays."""
    made = copy.deepcopy(drafter)
    own, names = dict(target.named_parameters()), trunk_parameters(made, blocks)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name in names:
                parameter.copy_(own[names[name][1]])
    return made


def teach_itself(drafter: Any, committed: Sequence[Example], rng: Random) -> Any:
    """A copy whose head took a few steps after each committed answer, on that and some that it remembers.

    NOT in FlexSpec, whose drafters stay as they are. Which tokens are committed does not depend on the drafter, so only
    their number per round changes.
    """
    made, memory = copy.deepcopy(drafter), deque[Example](maxlen=REMEMBERED)
    freeze_trunk(made)
    optimizer = training.make_optimizer(made, Schedule(num_steps=1, peak_rate=PEAK_RATE, weight_decay=0.0))
    for example in committed:
        memory.append(example)
        for _ in range(STEPS_PER_ANSWER):
            others = rng.sample(list(memory), min(len(memory), ROWS_PER_STEP - 1))
            learn_tokens(made, [collate([example, *others])], optimizer)
    return made.eval()


def bytes_of(update: str, drafter: Any, target: Target, blocks: Sequence[int]) -> int:
    """What an update sends to the device."""
    match update:
        case "block adapter":
            return BYTES * sum(target.block_parameters[block] for block in blocks)
        case "new head":
            return BYTES * int(sum(value.numel() for value in head_parameters(drafter).values()))
        case "everything":
            return BYTES * int(sum(value.numel() for value in drafter.parameters()))
        case _:
            return 0
