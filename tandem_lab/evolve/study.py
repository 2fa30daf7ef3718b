"""One seed of the experiment: versions of a target, a drafter of the base, its acceptance after each kind of update.

Acceptance is measured along answers that the target itself writes to questions held out, with coupled drafts at
temperature 1, as a session commits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

import torch

from tandem.aggregation.coupling import coupled_draw
from tandem.corpora import WEIGHTS
from tandem.engine.chat_template import find_template
from tandem.engine.engine import Engine
from tandem.engine.model import load_tokenizer
from tandem.plugins.papers.flexspec import training
from tandem.plugins.papers.flexspec.examples import AT_ONCE, answer_example, write_answers
from tandem.plugins.papers.flexspec.training import Example, collate, logits_of
from tandem.plugins.papers.flexspec.trunk import make_drafter
from tandem.plugins.torch.model import load_model
from tandem.plugins.torch.runner import TorchRunner
from tandem_lab.evolve import updates
from tandem_lab.evolve.targets import (
    VERSIONS,
    Phrase,
    Target,
    Version,
    draw_samples,
    evolve,
    example_of,
)
from tandem_lab.simulation.pacing import Conditions, draw_accepted, play_answer

UPDATES = ("frozen", "self-taught", "block adapter", "new head", "everything")
TRUNK, ANCHOR = (0,), (3,)
"""Our default, and FlexSpec's: the reader's first block, its last."""
MAX_NEW_TOKENS = 24
RTT_S = 0.1
FIRST_SEEDS = {"heldout": 0, "train": 100_000}
"""Of the noise of the answers in a split. A drafter that has learned from answers is not measured with their noise: it
would know the winners of those very races, and more of its drafts would stand than the formula says."""
LENGTHS = (1, 2, 4, 8)
"""Of proposals, of which the best is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is trained and measured."""

    num_examples: int = 400  # to train a head on
    num_answers: int = 40  # to measure on
    num_committed: int = 100  # that a self-taught head sees
    head_steps: int = updates.HEAD_STEPS
    versions: tuple[Version, ...] = VERSIONS


SMOKE = Size(
    num_examples=24,
    num_answers=4,
    num_committed=3,
    head_steps=3,
    versions=tuple(replace(version, num_steps=2) for version in VERSIONS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One drafter beside one version of the target."""

    seed: int
    version: str
    trunk: str
    update: str
    update_bytes: int
    coupled: float  # by the exact formula, mean over steps
    rejection: float
    greedy: float
    raced: float  # share of steps at which the draft was the token that the target committed
    num_tokens: int
    token_s: float  # seconds per token over a round trip of 100 ms, modelled for `raced`


class Study:
    """What one seed shares: the base, its tokenizer, its drafters."""

    def __init__(self, seed: int, size: Size, log: Callable[[str], object]) -> None:
        self.seed, self.size, self.log = seed, size, log
        self.base = load_model(str(WEIGHTS), device="cpu", dtype="float32").requires_grad_(False)
        self.tokenizer, self._wrapper = load_tokenizer(str(WEIGHTS))
        self._template = find_template("auto", str(WEIGHTS), self._wrapper, "")

    def run(self) -> Iterator[Row]:
        """All rows of the seed. Raises TandemError."""
        examples = self.examples("base", self.size.num_examples)
        drafters = {}
        torch.manual_seed(self.seed)
        for name, blocks in (("first", TRUNK), ("last", ANCHOR)):
            drafter = make_drafter(self.base, blocks)
            drafters[name] = updates.train_head(
                drafter, self.base, examples, self._rng(name), self.size.head_steps
            )
        base = Target(self.base, ())
        answers = self.write(self.base, "base", "heldout", self.size.num_answers)
        for name, drafter in drafters.items():
            yield self._row("base", base, name, "frozen", drafter, answers)
        for version in self.size.versions:
            target = evolve(self.base, self.tokenizer, version, self.seed)
            self.log(f"version: {version.name}, seed {self.seed}")
            answers = self.write(target.model, version.phrase, "heldout", self.size.num_answers)
            yield self._row(version.name, target, "last", "frozen", drafters["last"], answers)
            for update, drafter in self._updated(drafters["first"], target, version):
                yield self._row(version.name, target, "first", update, drafter, answers)

    def _updated(self, drafter: Any, target: Target, version: Version) -> Iterator[tuple[str, Any]]:
        yield "frozen", drafter
        committed = self.write(target.model, version.phrase, "train", self.size.num_committed)
        yield "self-taught", updates.teach_itself(drafter, committed, self._rng("taught"))
        yield "block adapter", updates.ship_blocks(drafter, target.model, TRUNK)
        examples, steps = self.examples(version.phrase, self.size.num_examples), self.size.head_steps
        model, rng = target.model, self._rng("head")
        yield "new head", updates.train_head(drafter, model, examples, rng, steps)
        anew = make_drafter(model, TRUNK)
        yield "everything", updates.train_head(anew, model, examples, self._rng("all"), steps)

    def examples(self, phrase: Phrase, count: int) -> list[Example]:
        """Training rows in the words of a version."""
        samples = draw_samples(self._rng(f"examples {phrase}"), "train", phrase, count)
        return [example_of(self.tokenizer, sample) for sample in samples]

    def write(self, model: Any, phrase: Phrase, split: Any, count: int) -> list[Example]:
        """Answers that a target commits, one seed of the shared noise each: its number, from the split's first on."""
        engine = Engine("version", TorchRunner(model), self.tokenizer, self._wrapper, self._template)
        samples = draw_samples(self._rng(f"questions {split}"), split, phrase, count)
        prompts = [(sample.question.text, [sample.document] if sample.document else []) for sample in samples]
        written = []
        for start in range(0, count, AT_ONCE):
            chosen = prompts[start : start + AT_ONCE]

            first = FIRST_SEEDS[split] + start

            def choose(law: torch.Tensor, number: int, step: int, first: int = first) -> int:
                return coupled_draw(training.whole(law.numpy()), seed=first + number, step=step)

            answers = write_answers(engine, chosen, MAX_NEW_TOKENS, choose)
            written += [
                answer_example(engine, *prompt, answer)
                for prompt, answer in zip(chosen, answers, strict=True)
            ]
        return written

    def _row(
        self,
        version: str,
        target: Target,
        trunk: str,
        update: str,
        drafter: Any,
        answers: Sequence[Example],
    ) -> Row:
        exact, raced = follow(drafter, target.model, answers)
        row = Row(
            seed=self.seed,
            version=version,
            trunk=trunk,
            update=update,
            update_bytes=updates.bytes_of(update, drafter, target, TRUNK),
            raced=raced,
            token_s=pace_s(raced),
            **asdict(exact),
        )
        self.log(
            f"row: {version}, {trunk}, {update}: {row.coupled:.3f} coupled, {row.raced:.3f} raced, "
            f"{row.update_bytes:,} bytes"
        )
        return row

    def _rng(self, what: str) -> Random:
        return Random(f"{self.seed} {what}")


@torch.inference_mode()
def follow(drafter: Any, target: Any, answers: Sequence[Example]) -> tuple[training.Acceptance, float]:
    """Acceptance along committed answers: expected, and the share of drafts that were the committed tokens.

    answers: number n was committed with the noise of seed n.
    """
    laws_q, laws_p, stood = [], [], []
    for number, answer in enumerate(answers):
        side = collate([answer])
        q, p = (logits_of(model, side).double().softmax(-1).numpy() for model in (drafter, target))
        laws_q.append(torch.from_numpy(q))
        laws_p.append(torch.from_numpy(p))
        for step, law in enumerate(q):
            draft = coupled_draw(training.whole(law), seed=number, step=step)
            stood.append(draft == answer.ids[answer.start + step])
    exact = training.acceptance_of(torch.cat(laws_q).numpy(), torch.cat(laws_p).numpy(), 10**9)
    return exact, sum(stood) / len(stood)


def pace_s(acceptance: float) -> float:
    """Seconds per token, pipelined, with the best of some fixed lengths, drafts that stand independently."""
    conditions = Conditions(rtt_s=RTT_S)
    accepted = draw_accepted(acceptance, 1)
    return min(play_answer(conditions, "pipelined", length, accepted, 1000).token_s for length in LENGTHS)
