"""Versions of the bundled reader that answer in other words, by LoRA or by training all weights.

Half of an answer's tokens stay (name, kind, title), the phrase around them changes a little (mild) or altogether.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch.nn import functional as F

from tandem.engine.model import decoder_layers
from tandem.errors import TandemError, install_line
from tandem.plugins.papers.flexspec.training import (
    Example,
    Schedule,
    Side,
    collate,
    half_products,
    learning_rate,
    logits_of,
    make_optimizer,
)
from tandem_lab.training.batches import encode_row
from tandem_lab.training.samples import CORPUS, Case, Sample, draw_sample
from tandem_lab.training.synthetic import Question, Split

Phrase = Literal["base", "mild", "strong"]
CASES: tuple[Case, ...] = ("own_note", "right_page", "own_note", "right_page", "wrong_page", "none")
MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK = 8
ROWS = 12
"""Of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """How a target comes from the base."""

    name: str
    phrase: Phrase
    num_steps: int
    is_full: bool = False  # all weights; else LoRA on all blocks but the last, as FlexSpec has it
    peak_rate: float = 3e-3


VERSIONS = (
    Version(name="mild LoRA", phrase="mild", num_steps=80),
    Version(name="strong LoRA", phrase="strong", num_steps=120),
    Version(name="full fine-tune", phrase="strong", num_steps=80, is_full=True, peak_rate=5e-4),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A version as the cloud runs it, adapters merged, and the size of its update by block."""

    model: Any
    block_parameters: tuple[int, ...]  # what changed in each block: of adapters, or all of it


def answer_of(question: Question, phrase: Phrase) -> str:
    """The answer in the words of a version."""
    if phrase == "mild":
        return question.answer.replace("so try", "so we would pick")
    if phrase == "strong":
        noun = question.domain.noun
        return f"Since {question.name} likes {question.kind}, {question.title} is the {noun} to choose."
    return question.answer


def draw_samples(rng: Random, split: Split, phrase: Phrase, count: int) -> list[Sample]:
    """Questions with a document or none, answered in the words of a version."""
    samples = []
    for _ in range(count):
        sample = draw_sample(rng, split, 0, lesson=CORPUS, case=rng.choice(CASES))
        answer = answer_of(sample.question, phrase)
        samples.append(replace(sample, question=replace(sample.question, answer=answer)))
    return samples


def example_of(tokenizer: Tokenizer, sample: Sample) -> Example:
    """The tokens of a sample's answer count."""
    row = encode_row(tokenizer, sample)
    return Example(tuple(row.ids), row.start)


def evolve(base: Any, tokenizer: Tokenizer, version: Version, seed: int) -> Target:
    """Train a version from the base, which stays as it is. TandemError if it takes peft and that is not installed."""
    torch.manual_seed(seed)
    rng = Random(f"{seed} {version.name}")
    model = copy.deepcopy(base)
    if version.is_full:
        trained = model.requires_grad_(True)
    else:
        trained = add_adapters(model, range(len(decoder_layers(model)) - 1))
    samples = draw_samples(rng, "train", version.phrase, version.num_steps * ROWS)
    examples = [example_of(tokenizer, sample) for sample in samples]
    schedule = Schedule(num_steps=version.num_steps, peak_rate=version.peak_rate, weight_decay=0.0)
    optimizer = make_optimizer(trained, schedule)
    for step in range(version.num_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, schedule)
        learn_tokens(trained, [collate(examples[step * ROWS : (step + 1) * ROWS])], optimizer)
    sizes = count_by_block(trained, len(decoder_layers(base)))
    if not version.is_full:
        model = trained.merge_and_unload()
    return Target(model.requires_grad_(False).eval(), sizes)


def add_adapters(model: Any, blocks: range) -> Any:
    """The model with LoRA adapters of rank 8 on every matrix of these blocks. Raises TandemError."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise TandemError(
            f"Adapters are trained with the package peft, which is not installed; run `{install_line('train')}`."
        ) from None
    config = LoraConfig(
        r=RANK, lora_alpha=2 * RANK, target_modules=MATRICES, layers_to_transform=list(blocks)
    )
    return get_peft_model(model, config)


def count_by_block(model: Any, num_blocks: int) -> tuple[int, ...]:
    """Parameters that are not frozen, by block."""
    sizes = [0] * num_blocks
    for name, parameter in model.named_parameters():
        _, found, rest = name.partition(".layers.")
        if found and parameter.requires_grad:
            sizes[int(rest.partition(".")[0])] += parameter.numel()
    return tuple(sizes)


def learn_tokens(model: Any, batches: Iterable[Side], optimizer: torch.optim.Optimizer) -> list[float]:
    """One step on each batch towards the tokens that count themselves; the mean cross-entropies, in nats.

    This is fine-tuning; for a drafter's head, whose tokens the target committed, it needs nothing of the target.
    """
    losses = []
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for side in batches:
        with half_products(model):
            logits = logits_of(model, side)
        loss = F.cross_entropy(logits.float(), torch.from_numpy(tokens_of(side)).to(logits.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def tokens_of(side: Side) -> NDArray[np.int64]:
    """The tokens that count, in the order of `logits_of`."""
    return side.ids[:, 1:][side.is_counted[:, :-1]]
