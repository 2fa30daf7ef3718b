"""Building drafters, from the name of a target to a folder: `tandem model draft`, and the function behind it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tandem.corpora import model_path
from tandem.errors import GenerationError

if TYPE_CHECKING:
    from tandem.engine.engine import Engine
    from tandem.engine.port import Runner
    from tandem.plugins.papers.flexspec.examples import Row
    from tandem.plugins.papers.flexspec.training import Loss

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
    ]  # precision -> the target's weights in it, as `Engine.weights_fingerprint`
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
    import torch

    from tandem.engine.engine import Engine
    from tandem.engine.places import base_of, decoder_layers, expand, file_of
    from tandem.plugins.papers.flexspec import training
    from tandem.plugins.papers.flexspec.trunk import make_drafter, trunk_blocks

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
    checks = list(
        islice(training.draw_pairs(rng, held_out, recipe.rows_per_batch), _batches(held_out, recipe))
    )
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
    from tandem.engine.engine import Engine
    from tandem.engine.port import DTYPES

    return {dtype: Engine.load(path, dtype=dtype).weights_fingerprint for dtype in DTYPES}


def save(drafter: Any, target: str, template: Path, out: Path, card: DrafterCard) -> None:
    """Weights in the precision of the target's files, its tokenizer and template, the card.

    target: a folder or hub id; of a GGUF file the folder that it was converted to. template: beside the target, if any.
    """
    from tandem.engine.places import CARD, load_config, load_wrapper
    from tandem.system.processes import hide_progress_bars

    dtype = getattr(load_config(target), "dtype", None)
    with hide_progress_bars():
        (drafter if dtype is None else drafter.to(dtype)).save_pretrained(out)
        load_wrapper(target).save_pretrained(out)
    if template.is_file():
        shutil.copyfile(template, out / TEMPLATE)
    (out / CARD).write_text(json.dumps(asdict(card), indent=2) + "\n", "utf-8")


def check_out(out: Path, target: str) -> None:
    """Create the folder. GenerationError if it cannot be, is the target's, or holds a model that is no drafter."""
    from tandem.engine.places import CARD, is_adapter

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
    from tandem.plugins.papers.flexspec import examples

    if questions:
        rows = examples.answer_rows(
            engine,
            questions,
            texts,
            num_answers=recipe.num_answers,
            max_new_tokens=recipe.max_tokens,
            rng=rng,
        )
        kind = "answers of the target"
    else:
        rows = examples.text_rows(engine, texts, recipe.max_tokens)
        kind = "rows of text"
    rng.shuffle(rows)
    examples.check_rows(rows, num_held_out=max(1, len(rows) // HELD_OUT))
    progress(f"rows: {len(rows)} {kind}, one in {HELD_OUT} held out")
    return rows


def _batches(rows: Sequence[Row], recipe: Recipe) -> int:
    return -(-len(rows) // recipe.rows_per_batch)
