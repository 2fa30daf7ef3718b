"""Building drafters, from the name of a target to a folder: `tandem model draft`, and the function behind it.

A drafter has a trunk, blocks of the target that are copied and frozen, and a head, one block more that learns. FlexSpec
(Section 3) freezes the target's last block and feeds it with embeddings. NOT in the paper: other blocks may be the
trunk, and the head is a decoder block, the final norm and the projection to the vocabulary, so that a drafter is an
ordinary model of the target's family with fewer layers.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch

from tandem.corpora import model_path
from tandem.engine.engine import Engine
from tandem.engine.places import (
    CARD,
    base_of,
    decoder_layers,
    expand,
    file_of,
    is_adapter,
    load_config,
    load_wrapper,
)
from tandem.engine.port import DTYPES
from tandem.engine.session import Runner
from tandem.errors import GenerationError
from tandem.plugins.papers.flexspec import training
from tandem.plugins.papers.flexspec.training import Loss, Row
from tandem.system.processes import hide_progress_bars

TEMPLATE = "template.json"
LOG = "training.jsonl"
HELD_OUT = 10
"""One row in so many is held out, to measure acceptance on."""
Report = Callable[[int, int], object]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The recipe of a drafter: its blocks, and how it learns."""

    trunk: str = "first"
    loss: Loss = "kl"
    num_steps: int = 300
    rows_per_batch: int = 16
    max_tokens: int = 128  # of a row of text, and of an answer
    num_answers: int = 400  # that the target writes, where there are questions
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterCard:
    """The card of a drafter: how it was made."""

    target: str  # the target's folder or hub id
    fingerprints: Mapping[
        str, str
    ]  # precision -> the target's weights in it, as `Runner.weights_fingerprint`
    trunk: str
    blocks: tuple[int, ...]  # of the target, copied and frozen
    loss: str
    acceptance: Mapping[str, float]  # on rows held out, when it was made


def train_drafter(
    model: str,
    out: Path,
    *,
    texts: Sequence[str] = (),
    questions: Sequence[str] = (),
    recipe: Recipe | None = None,
    progress: Callable[[str], object] = lambda line: None,
    report: Report = lambda done, total: None,
) -> DrafterCard:
    """Make a drafter for a target and write it as a model's folder; seeded.

    model: the target's folder, hub id or bundled name. questions: the target answers them, and the texts are documents
    that it reads; without questions the texts themselves are learned. progress: receives stages; report: (steps done,
    all). Raises GenerationError.
    """
    recipe = recipe or Recipe()
    path = expand(model_path(model))
    check_out(out, path)
    engine = Engine.load(path)
    target = _model_of(engine.runner)
    blocks = trunk_blocks(recipe.trunk, len(decoder_layers(target)))
    progress(f"target: {model}, blocks {', '.join(str(block + 1) for block in blocks)} kept")
    rng = Random(recipe.seed)
    rows = _make_rows(engine, texts, questions, recipe, rng, progress)
    held_out, kept = rows[::HELD_OUT], [row for at, row in enumerate(rows) if at % HELD_OUT]
    torch.manual_seed(recipe.seed)
    drafter = make_drafter(target, blocks)
    schedule = training.Schedule(num_steps=recipe.num_steps, loss=recipe.loss)
    losses: list[float] = []

    def note(step: int, loss: float) -> None:
        losses.append(loss)
        report(step, recipe.num_steps)

    pairs = training.draw_pairs(rng, kept, recipe.rows_per_batch)
    training.distil(drafter, target, pairs, schedule, note)
    num_batches = -(-len(held_out) // recipe.rows_per_batch)
    checks = list(islice(training.draw_pairs(rng, held_out, recipe.rows_per_batch), num_batches))
    measured = training.measure(drafter, target, checks)
    card = DrafterCard(
        target=model,
        fingerprints=fingerprints(path),
        trunk=recipe.trunk,
        blocks=blocks,
        loss=recipe.loss,
        acceptance={key: round(value, 4) for key, value in asdict(measured).items()},
    )
    is_file = file_of(base_of(path)) is not None
    save(drafter, target.name_or_path if is_file else path, Path(base_of(path)) / TEMPLATE, out, card)
    (out / LOG).write_text(
        json.dumps({"recipe": asdict(recipe), "losses": [round(x, 4) for x in losses]}) + "\n"
    )
    return card


def _model_of(runner: Runner) -> Any:
    """The model of transformers behind a runner; not to be changed. GenerationError if it is another engine's."""
    model = getattr(runner, "model", None)
    if not hasattr(model, "get_output_embeddings"):
        raise GenerationError(
            "This needs a model of Hugging Face on PyTorch; set device.model to its folder or name."
        )
    return model


def fingerprints(path: str) -> dict[str, str]:
    """The target's weights in each precision that a party may load it in."""
    return {dtype: Engine.load(path, dtype=dtype).runner.weights_fingerprint for dtype in DTYPES}


def save(drafter: Any, target: str, template: Path, out: Path, card: DrafterCard) -> None:
    """Weights in the precision of the target's files, its tokenizer and template, the card.

    target: a folder or hub id; of a GGUF file the folder that it was converted to. template: beside the target, if any.
    """
    dtype = getattr(load_config(target), "dtype", None)
    with hide_progress_bars():
        (drafter if dtype is None else drafter.to(dtype)).save_pretrained(out)
        load_wrapper(target).save_pretrained(out)
    if template.is_file():
        shutil.copyfile(template, out / TEMPLATE)
    (out / CARD).write_text(json.dumps(asdict(card), indent=2) + "\n", "utf-8")


def check_out(out: Path, target: str) -> None:
    """Create the folder. GenerationError if it cannot be, is the target's, or holds a model that is no drafter."""
    if out.resolve() == Path(target).resolve():
        raise GenerationError(
            f"The drafter is to be written into {str(out)!r}, which is its target's folder; choose another folder."
        )
    if is_adapter(str(out)) or ((out / "config.json").exists() and not (out / CARD).exists()):
        raise GenerationError(
            f"The drafter is to be written into {str(out)!r}, which holds a model that is no drafter; "
            "choose another folder."
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GenerationError(
            f"The drafter's folder {str(out)!r} cannot be created ({error.strerror}); choose another."
        ) from None


def _make_rows(
    engine: Engine,
    texts: Sequence[str],
    questions: Sequence[str],
    recipe: Recipe,
    rng: Random,
    progress: Callable[[str], object],
) -> list[Row]:
    if questions:
        rows = training.answer_rows(
            engine,
            questions,
            texts,
            num_answers=recipe.num_answers,
            max_new_tokens=recipe.max_tokens,
            rng=rng,
        )
        kind = "answers of the target"
    else:
        rows = training.text_rows(engine, texts, recipe.max_tokens)
        kind = "rows of text"
    rng.shuffle(rows)
    training.check_rows(rows, num_held_out=max(1, len(rows) // HELD_OUT))
    progress(f"rows: {len(rows)} {kind}, one in {HELD_OUT} held out")
    return rows


TRUNKS = ("first", "last", "first+last")
"""Trunks with a name; a number n stands for the n first blocks."""
_FINAL_NORM = re.compile(r"(^|[._])(ln_f|[a-z_]*norm)$")


def trunk_blocks(trunk: str, num_layers: int) -> tuple[int, ...]:
    """Indices of the target's blocks that a trunk copies, ascending. Raises GenerationError."""
    if trunk in TRUNKS:
        first, last = 0, num_layers - 1
        named = {"first": (first,), "last": (last,), "first+last": tuple(sorted({first, last}))}
        return named[trunk]
    if not (trunk.isascii() and trunk.isdigit() and 1 <= int(trunk) <= num_layers):
        raise GenerationError(
            f"A trunk is one of {', '.join(TRUNKS)}, or a number of blocks from 1 to the target's {num_layers} "
            f"(got {trunk!r}); choose one of these."
        )
    return tuple(range(int(trunk)))


def make_drafter(target: Any, blocks: Sequence[int]) -> Any:
    """A model of the target's family in float32: these blocks of it and one more, which begins as its last block.

    Embeddings and blocks are frozen; the last block, the final norm and the projection to the vocabulary learn. The
    projection is a matrix of its own, even where the target's is its embedding. GenerationError if the family does
    not let itself be cut.
    """
    from transformers import AutoModelForCausalLM

    copied = (*blocks, len(decoder_layers(target)) - 1)
    auto: Any = AutoModelForCausalLM
    try:
        drafter = auto.from_config(_cut_config(target.config, copied), dtype=torch.float32)
        drafter.load_state_dict(_cut_weights(target, copied))
    except Exception as error:  # anything may come out of a family whose blocks are not alike
        raise GenerationError(
            f"A {type(target).__name__} cannot be cut to {len(copied)} blocks "
            f"({(str(error).splitlines() or [''])[0]:.200}); train a drafter of another family."
        ) from None
    drafter.generation_config = copy.deepcopy(target.generation_config)
    freeze_trunk(drafter)
    return drafter.eval()


def freeze_trunk(drafter: Any) -> None:
    """Let the head learn, and nothing else."""
    for parameter in drafter.parameters():
        parameter.requires_grad_(False)
    for module in head_modules(drafter):
        for parameter in module.parameters():
            parameter.requires_grad_(True)


def head_modules(drafter: Any) -> list[torch.nn.Module]:
    """The last block, the norm before the projection, the projection."""
    layers = decoder_layers(drafter)
    inside = {id(module) for layer in layers for module in layer.modules()}
    norms = [
        module
        for name, module in drafter.named_modules()
        if id(module) not in inside and _FINAL_NORM.search(name) and not list(module.children())
    ]
    return [layers[-1], *norms, drafter.get_output_embeddings()]


def _cut_config(config: Any, copied: Sequence[int]) -> Any:
    """The target's configuration for these blocks of it, in this order."""
    cut = copy.deepcopy(config)
    text = cut.get_text_config(decoder=True)
    kinds = getattr(text, "layer_types", None)
    if kinds:
        text.layer_types = [kinds[block] for block in copied]
    text.num_hidden_layers = len(copied)
    cut.tie_word_embeddings = text.tie_word_embeddings = False
    return cut


def _cut_weights(target: Any, copied: Sequence[int]) -> dict[str, torch.Tensor]:
    prefix = _layers_name(target)
    weights: dict[str, torch.Tensor] = {}
    for name, value in target.state_dict().items():
        number, rest = _split(name, prefix)
        if number is None:
            weights[name] = value.float()
        for place, block in enumerate(copied):
            if number == block:
                weights[f"{prefix}.{place}.{rest}"] = value.float()
    return weights


def _layers_name(model: Any) -> str:
    first = decoder_layers(model)[0]
    names: list[str] = [name for name, module in model.named_modules() if module is first]
    return names[0].removesuffix(".0")


def _split(name: str, prefix: str) -> tuple[int | None, str]:
    """The number of the block that a parameter belongs to, and its name there; None: it belongs to none."""
    if not name.startswith(f"{prefix}."):
        return None, name
    number, _, rest = name.removeprefix(f"{prefix}.").partition(".")
    return int(number), rest
