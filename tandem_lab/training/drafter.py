"""Train the bundled drafter from the bundled reader: `python -m tandem_lab.training.drafter --out DIR`.

Distillation: the drafter learns the reader's whole distribution at every token of an answer, not the answer alone, so
that coupled drafts agree where the reader is undecided, too. The drafter is a party's small model, so it never sees the
other's documents: where the reader reads a public page, the drafter has the bare question; where the reader reads a
private note, both have it. What only a page says (the title) it cannot know, and learns how the reader spreads there.

Seeded. About 10 minutes of CPU time on one thread. Writes weights in half precision, their checksum, the card that
names the reader's weights, a log as that of the reader, and links to the reader's tokenizer and template.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from tandem.corpora import DRAFTER, WEIGHTS
from tandem.engine.places import DrafterCard
from tandem.plugins.papers.flexspec import training as distillation
from tandem.plugins.papers.flexspec.build import fingerprints
from tandem_lab.training.batches import NOT_COUNTED, Batch, Row, collate, encode_row
from tandem_lab.training.samples import Case, Lesson, Sample, draw_sample
from tandem_lab.training.synthetic import Split
from tandem_lab.training.train import (
    Plan,
    Stage,
    TrainingLog,
    make_model,
    save_weights,
    schedule_of,
)

SHARED = ("tokenizer.json", "tokenizer_config.json", "template.json")
"""Files of the reader that the drafter uses too."""
NOTES: tuple[Case, ...] = ("own_note", "other_person", "other_domain_note")
"""Cases whose document the drafter sees; all others are the other party's."""
_POOL_BATCHES = 16  # as in `batches`

LESSON = Lesson(
    {
        "own_note": 0.2,
        "other_person": 0.12,
        "other_domain_note": 0.08,
        "any_page": 0.5,
        "unrelated_page": 0.05,
        "distractor": 0.05,
    },
    near_name_share=0.2,
    headline_share=0.85,
    max_others=1,
    roll_call_share=0.0,
    max_pages=0,
    num_people=(0, 0),
    num_answers=0,
)
STAGE = Stage(LESSON, 1600, 48, 2e-3, 100, 3)
PLAN = Plan(num_layers=2, inner=384)


@dataclass(frozen=True, slots=True)
class Pair:
    """The same answers as drafter and reader see them; the tokens that count are the same, in the same order."""

    drafter: Batch
    reader: Batch


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well a drafter foretells the reader on held-out answers, teacher-forced; means over tokens, in [0, 1]."""

    bare_same_argmax: (
        float  # the reader reads a page of the domain, the drafter nothing: acceptance at temperature 0
    )
    bare_overlap: float  # the same: sum of min(p, q), acceptance by rejection at temperature 1
    note_same_argmax: float  # both read the note on the person who is asked after
    note_overlap: float
    num_samples: int


def draw_pairs(
    rng: Random, tokenizer: Tokenizer, most_filler: int, rows_per_batch: int, num_batches: int = _POOL_BATCHES
) -> list[Pair]:
    """A pool of training batches, rows of like length together, in random order."""
    samples = [
        draw_sample(rng, "train", most_filler, lesson=LESSON) for _ in range(rows_per_batch * num_batches)
    ]
    rows = sorted((_rows(tokenizer, sample) for sample in samples), key=lambda pair: len(pair[0].ids))
    pairs = [_collate(rows[at : at + rows_per_batch]) for at in range(0, len(rows), rows_per_batch)]
    rng.shuffle(pairs)
    return pairs


def stream_pairs(rng: Random, tokenizer: Tokenizer, stage: Stage = STAGE) -> Iterator[distillation.Pair]:
    """A batch for each step of a stage, drawn in pools."""
    pool: list[Pair] = []
    for _ in range(stage.num_steps):
        pool = pool or draw_pairs(rng, tokenizer, stage.max_filler, stage.rows_per_batch)
        yield sides(pool.pop())


def sides(pair: Pair) -> distillation.Pair:
    """A pair as the trainer takes it: a token counts after the position before it."""
    own, read = (
        distillation.Side(batch.ids, batch.labels != NOT_COUNTED) for batch in (pair.drafter, pair.reader)
    )
    return distillation.Pair(own, read)


def measure_agreement(
    student: LlamaForCausalLM,
    teacher: LlamaForCausalLM,
    tokenizer: Tokenizer,
    num_samples: int = 96,
    seed: int = 7,
) -> Agreement:
    """Both cases, over `num_samples` held-out samples each."""
    rng = Random(seed)
    bare = _compare(student, teacher, _draw_heldout(rng, tokenizer, "any_page", num_samples))
    note = _compare(student, teacher, _draw_heldout(rng, tokenizer, "own_note", num_samples))
    return Agreement(*bare, *note, num_samples)


def train_drafter(out: Path, stage: Stage = STAGE, plan: Plan = PLAN) -> None:
    """Train, measure now and then, and leave in `out` what loads, and what shows how it came about."""
    torch.set_num_threads(plan.num_threads)
    torch.manual_seed(plan.seed)
    rng = Random(f"{plan.seed} drafter")
    share_tokenizer(out)
    tokenizer = Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))
    teacher = LlamaForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32).eval()
    student = make_model(tokenizer, plan)
    log = TrainingLog(out / "training.jsonl", plan, student, stage)

    schedule = schedule_of(stage)

    def report(step: int, loss: float) -> None:
        log.add(loss)
        if step % plan.steps_per_measurement == 0 or step == stage.num_steps:
            save_weights(student, out)
            agreement = measure_agreement(student, teacher, tokenizer)
            log.write(step, asdict(agreement))
            make_card(agreement, schedule.loss).write(out)

    distillation.distil(student, teacher, stream_pairs(rng, tokenizer, stage), schedule, report)


def make_card(agreement: Agreement, loss: str) -> DrafterCard:
    """Which weights the drafter was made for, so that it can say so beside others; no block of them is its own."""
    acceptance = {"bare": agreement.bare_overlap, "note": agreement.note_overlap}
    return DrafterCard(
        target="bundled",
        fingerprints=fingerprints(str(WEIGHTS)),
        trunk="none",
        blocks=(),
        loss=loss,
        acceptance=acceptance,
    )


def share_tokenizer(out: Path) -> None:
    """Link the reader's tokenizer and template into `out`."""
    for name in SHARED:
        (out / name).unlink(missing_ok=True)
        (out / name).symlink_to(os.path.relpath(WEIGHTS / name, out.resolve()))


def _rows(tokenizer: Tokenizer, sample: Sample) -> tuple[Row, Row]:
    """The drafter's and the reader's row of a sample."""
    own = sample if sample.case in NOTES else replace(sample, document=None)
    return encode_row(tokenizer, own), encode_row(tokenizer, sample)


def _collate(rows: Sequence[tuple[Row, Row]]) -> Pair:
    return Pair(collate([own for own, _ in rows]), collate([read for _, read in rows]))


def _draw_heldout(rng: Random, tokenizer: Tokenizer, case: Case, count: int) -> Pair:
    split: Split = "heldout"
    return _collate([_rows(tokenizer, draw_sample(rng, split, 3, case=case)) for _ in range(count)])


@torch.inference_mode()
def _compare(student: LlamaForCausalLM, teacher: LlamaForCausalLM, pair: Pair) -> tuple[float, float]:
    """Shares of tokens with the same argmax, and mean overlap."""
    both = sides(pair)
    q, p = (
        distillation.logits_of(model, side).softmax(-1)
        for model, side in ((student, both.drafter), (teacher, both.target))
    )
    same = (q.argmax(-1) == p.argmax(-1)).float().mean()
    return float(same), float(torch.minimum(p, q).sum(-1).mean())


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DRAFTER, help="folder for weights, log and checksum")
    parser.add_argument("--steps", type=int, default=STAGE.num_steps)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    train_drafter(arguments.out, replace(STAGE, num_steps=arguments.steps))


if __name__ == "__main__":
    _main()
