"""Train QS's policy of proposal lengths in the simulator: `python -m tandem_lab.training.lengths --out FILE`.

A double deep Q-network (QS IV-C): many answers at once in the model of `tandem_lab.simulation.rounds`, whose
acceptance jumps between two rates and whose link between two states with probability 1/2, as in the paper. The reward
of a round is its expected tokens per second (QS Eq. 13), the last one's those of the whole answer; discount 0.1 and the
copies of the network are those of the authors' code. NOT in the paper: rates and links are drawn again for each answer,
so that one network serves all; a reward is relative to a round of one token, so that every link counts alike.

Seeded. 4 minutes on one core. Writes the weights in half precision; every line that it prints is a JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.papers.qs import LAYERS, NUM_CONFIDENCES, SHAPES, WEIGHTS, pack, values
from tandem.scheduler.lengths import MAX_LENGTH
from tandem_lab.simulation.rounds import SPREAD

Floats = NDArray[np.float32]
RATES, RATIOS = (0.2, 0.98), (0.2, 80.0)
"""Acceptance rates of an answer's two kinds of text, and a round's fixed time in those of a proposed token; drawn
evenly, the second by its logarithm."""
CHANGE, LINK_CHANGE = 0.05, 0.5
"""Probability that the next round's text, or link, is the other one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and steps."""

    seed: int = 2026
    num_steps: int = 80_000
    num_answers: int = 64  # at once
    num_tokens: int = 200  # of an answer
    batch: int = 512
    memory: int = 50_000  # rounds to learn from
    rate: float = 1e-3  # Adam's
    discount: float = 0.1
    steps_per_copy: int = 30  # of the network that values the next state


class Answers:
    """Answers being written at once, as QS sees them: states, rounds and rewards."""

    def __init__(self, plan: Plan, rng: np.random.Generator) -> None:
        self._plan, self._rng = plan, rng
        num = plan.num_answers
        self._confidences = np.zeros((num, NUM_CONFIDENCES), np.float32)
        self._rates, self._ratios = np.zeros((num, 2)), np.zeros((num, 2))
        self._text, self._link = np.zeros(num, int), np.zeros(num, int)
        self._tokens, self._lasted = np.zeros(num), np.zeros(num)
        self._begin(np.arange(num))

    def _begin(self, which: NDArray[np.int64]) -> None:
        """New answers in the place of those."""
        self._confidences[which] = 0.0
        self._rates[which] = self._rng.uniform(*RATES, (len(which), 2))
        low, high = map(log, RATIOS)
        self._ratios[which] = np.exp(self._rng.uniform(low, high, (len(which), 2)))
        self._text[which] = self._link[which] = 0
        self._tokens[which] = self._lasted[which] = 0.0

    @property
    def states(self) -> Floats:
        """[num_answers, LAYERS[0]], as `double_dqn.make_state` makes one."""
        counts = (self._confidences > 0).sum(1)
        means = self._confidences.sum(1) / np.maximum(counts, 1)
        link = np.log(self._of(self._ratios, self._link))
        columns = (self._confidences, means[:, None], self._confidences[:, -1:], link[:, None])
        return np.concatenate(columns, axis=1).astype(np.float32)

    def play(self, lengths: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
        """One round of each: rewards, and which answers are complete (new ones have begun). lengths: from 1."""
        rate = self._of(self._rates, self._text)
        accepted = self._rng.random((len(rate), MAX_LENGTH)) < rate[:, None]
        within = np.arange(MAX_LENGTH) < lengths[:, None]
        num_accepted = (np.cumprod(accepted, axis=1) * within).sum(1).astype(int)
        lasted = self._of(self._ratios, self._link) + lengths
        expected = (1 - rate ** (lengths + 1)) / (1 - rate)
        self._tokens += num_accepted + 1
        self._lasted += lasted
        done = self._tokens >= self._plan.num_tokens
        pace = np.where(done, self._tokens / self._lasted, expected / lasted)
        rewards = (0.5 * pace * (1 + self._ratios.mean(1))).astype(np.float32)
        self._append(rate, num_accepted)
        self._text ^= self._rng.random(len(rate)) < CHANGE
        self._link ^= self._rng.random(len(rate)) < LINK_CHANGE
        self._begin(np.flatnonzero(done))
        return rewards, done

    def _append(self, rate: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        """The accepted tokens' confidences go to the end of each row."""
        drawn = self._rng.normal(rate[:, None], SPREAD, (len(rate), MAX_LENGTH)).clip(0.01, 0.99)
        longer = np.concatenate([self._confidences, drawn.astype(np.float32)], axis=1)
        columns = np.arange(NUM_CONFIDENCES) + counts[:, None]
        self._confidences = np.take_along_axis(longer, columns, axis=1)

    @staticmethod
    def _of(both: NDArray[np.float64], which: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(both[np.arange(len(which)), which])


class Memory:
    """The latest rounds, to draw from."""

    def __init__(self, size: int) -> None:
        self._size, self._num = size, 0
        self._states, self._later = (np.zeros((size, LAYERS[0]), np.float32) for _ in range(2))
        self._lengths, self._rewards = np.zeros(size, np.int64), np.zeros(size, np.float32)
        self._done = np.zeros(size, np.float32)

    def add(self, states: Floats, lengths: Any, rewards: Floats, done: Any, later: Floats) -> None:
        """One round of each answer."""
        places = (self._num + np.arange(len(states))) % self._size
        self._states[places], self._lengths[places], self._rewards[places] = states, lengths, rewards
        self._done[places], self._later[places] = done, later
        self._num += len(states)

    def draw(self, count: int, rng: np.random.Generator) -> list[torch.Tensor]:
        """States, lengths, rewards, whether the answer was complete, and the states after."""
        at = rng.integers(0, min(self._num, self._size), count)
        columns = (self._states, self._lengths, self._rewards, self._done, self._later)
        return [torch.from_numpy(column[at]) for column in columns]


def make_weights(seed: int) -> list[torch.Tensor]:
    """As PyTorch's linear layers begin."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [shape[0] for shape in SHAPES[::2] for _ in range(2)]  # of the layer's input
    bounds = [size**-0.5 for size in sizes]
    return [
        ((torch.rand(shape, generator=generator) * 2 - 1) * bound).requires_grad_()
        for shape, bound in zip(SHAPES, bounds, strict=True)
    ]


def train(plan: Plan) -> list[NDArray[np.float32]]:
    """Weights, by SHAPES."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(plan.seed)
    weights = make_weights(plan.seed)
    copies = [each.detach().clone() for each in weights]
    optimiser = torch.optim.Adam(weights, lr=plan.rate)
    answers, memory, rewards_seen = Answers(plan, rng), Memory(plan.memory), list[float]()
    for step in range(plan.num_steps):
        states = answers.states
        lengths = _explore(weights, states, step / plan.num_steps, rng)
        rewards, done = answers.play(lengths)
        memory.add(states, lengths, rewards, done, answers.states)
        loss = double_dqn_loss(weights, copies, memory.draw(plan.batch, rng), plan.discount)
        for group in optimiser.param_groups:
            group["lr"] = plan.rate * (1.0 - step / plan.num_steps)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimiser.step()
        if step % plan.steps_per_copy == 0:
            copies = [each.detach().clone() for each in weights]
        rewards_seen.append(float(rewards.mean()))
        if (step + 1) % 1000 == 0:
            print(json.dumps({"step": step + 1, "reward": round(float(np.mean(rewards_seen[-1000:])), 4)}))
    return [each.detach().numpy() for each in weights]


def _explore(
    weights: Sequence[torch.Tensor], states: Floats, done: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Lengths: the best so far, or with a probability that falls to 0.01 over the first half, any."""
    with torch.no_grad():
        best = values(weights, torch.from_numpy(states)).argmax(1).numpy()
    share = max(0.01, 1.0 - 2.0 * done)
    any_length = rng.integers(0, MAX_LENGTH, len(best))
    return np.asarray(1 + np.where(rng.random(len(best)) < share, any_length, best))


def double_dqn_loss(
    weights: Sequence[torch.Tensor],
    copies: Sequence[torch.Tensor],
    rounds: Sequence[torch.Tensor],
    discount: float,
) -> torch.Tensor:
    """Mean square of value - (reward + discount * the copy's value of the network's own choice). rounds: `draw`."""
    states, lengths, rewards, done, later = rounds
    with torch.no_grad():
        choices = values(weights, later).argmax(1, keepdim=True)
        target = rewards + discount * (1.0 - done) * values(copies, later).gather(1, choices)[:, 0]
    found = values(weights, states).gather(1, lengths[:, None] - 1)[:, 0]
    return torch.nn.functional.mse_loss(found, target)


def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="file of the weights (.npy)")
    for name, value in asdict(Plan()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    arguments = vars(parser.parse_args())
    out: Path = arguments.pop("out")
    np.save(out, pack(train(Plan(**arguments))))


if __name__ == "__main__":
    _main()
