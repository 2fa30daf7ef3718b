"""A head that teaches itself: a drafter learns from the answers that its target committed, and is sent nothing.

NOT in FlexSpec, whose drafters stay as they are. After each committed answer the head (the last block, the final norm
and the projection) takes a few steps towards its tokens, and towards those of some answers that it remembers. Which
tokens are committed does not depend on the drafter, so only their number per round changes.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tandem.distillation import training
from tandem.distillation.training import Example, Schedule, collate
from tandem.distillation.trunk import freeze_trunk, head_parameters
from tandem.errors import GenerationError

if TYPE_CHECKING:
    import torch

MEMORY = 64
"""Committed answers that are remembered, while the process runs: they are not stored."""
STEPS_PER_ANSWER = 2
ROWS = 12
"""Answers of one step, at most."""
PEAK_RATE = 1e-3


class SelfTaughtHead:
    """A drafter of which the head learns and the trunk stays."""

    def __init__(self, drafter: Any, rng: Random) -> None:
        """drafter: a model in float32 of its own, which is changed. rng: chooses what is remembered of."""
        freeze_trunk(drafter)
        self.drafter = drafter
        self._rng = rng
        self._optimizer = training.make_optimizer(
            drafter, Schedule(num_steps=1, peak_rate=PEAK_RATE, weight_decay=0.0)
        )
        self._memory: deque[Example] = deque(maxlen=MEMORY)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The head's, by name."""
        return {name: value.detach() for name, value in head_parameters(self.drafter).items()}

    def learn(self, example: Example) -> None:
        """Take in a committed answer, with what stood before it."""
        self._memory.append(example)
        for _ in range(STEPS_PER_ANSWER):
            others = self._rng.sample(list(self._memory), min(len(self._memory), ROWS - 1))
            training.learn_tokens(self.drafter, [collate([example, *others])], self._optimizer)

    def save(self, path: Path) -> None:
        """Write the head, readable by its owner alone: an answer may be guessed from what was learned of it."""
        from safetensors.torch import save_file

        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.with_suffix(".part")
        part.touch(mode=0o600)
        save_file({name: value.contiguous() for name, value in self.weights.items()}, part)
        part.replace(path)

    def load(self, path: Path) -> None:
        """Go on from a head that was written. GenerationError if it is damaged, or of another drafter."""
        import torch
        from safetensors.torch import load_file

        own = self.weights
        try:
            found = load_file(path)
            if {name: value.shape for name, value in found.items()} != {
                name: value.shape for name, value in own.items()
            }:
                raise ValueError("it has other weights")
        except Exception as error:  # anything may come out of a damaged file
            raise GenerationError(
                f"What the drafter had learned cannot be used ({(str(error).splitlines() or [''])[0]:.200}); "
                f"delete {path} to begin again."
            ) from None
        with torch.no_grad():
            for name, value in found.items():
                own[name].copy_(value)
