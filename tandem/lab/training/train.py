"""Train the bundled model from nothing: `python -m tandem.lab.training.train --out DIR`.

Seeded: tokenizer, samples and initial weights follow from `--seed`. Two stages, 48 minutes of CPU time in all, over
two threads, on a CPU that multiplies bfloat16. Writes the tokenizer, the weights in half precision, a log (one JSON
object a line: step, loss, held-out measurements, wall and CPU seconds) and the weights' checksum. Documents grow
while training (`max_filler`). Knows nothing of retrieval, sides or Ray.
"""

import argparse
import copy
import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from tandem.distillation.training import Schedule, half_products, learning_rate, make_optimizer
from tandem.lab.training.batches import Batch, draw_batches
from tandem.lab.training.measure import measure
from tandem.lab.training.samples import COPYING, CORPUS, Lesson
from tandem.lab.training.tokenizer import BOS_ID, EOS_ID, MAX_LENGTH, PAD_ID, save_tokenizer, train_tokenizer

_ATTENTION = "eager"  # for rows this short several times faster to train than the fused kernel


@dataclass(frozen=True, slots=True)
class Stage:
    """One run of the optimiser, from the weights that the stage before it left (in half precision)."""

    lesson: Lesson
    num_steps: int
    rows_per_batch: int
    peak_rate: float  # AdamW's learning rate after warm-up; cosine to a twentieth of it
    num_warmup_steps: int
    kind_weight: float  # how many times the kind's tokens count in the loss
    max_filler: tuple[
        tuple[float, int], ...
    ]  # (up to this share of the steps, at most so many filler sentences)


STAGES = (
    Stage(COPYING, 6000, 48, 1.5e-3, 100, 1.0, ((0.25, 1), (0.4, 2), (1.0, 3))),
    Stage(CORPUS, 2500, 48, 5e-4, 100, 2.0, ((1.0, 3),)),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The model's size, the seed, and what the machine is asked for."""

    seed: int = 2024
    hidden: int = 256
    num_layers: int = 4
    num_heads: int = 8
    inner: int = 640  # width of the feed-forward layers
    num_threads: int = 2
    steps_per_measurement: int = 100


def make_model(tokenizer: Tokenizer, plan: Plan) -> LlamaForCausalLM:
    """A Llama with random weights drawn from torch's generator, in fp32."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=plan.hidden,
            intermediate_size=plan.inner,
            num_hidden_layers=plan.num_layers,
            num_attention_heads=plan.num_heads,
            num_key_value_heads=plan.num_heads,
            max_position_embeddings=MAX_LENGTH,
            tie_word_embeddings=True,
            bos_token_id=BOS_ID,
            eos_token_id=EOS_ID,
            pad_token_id=PAD_ID,
        )
    )
    model.set_attn_implementation(_ATTENTION)
    return model


def answer_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Weighted mean cross-entropy of the tokens that count; the vocabulary's layer runs at those positions only."""
    labels, weights = torch.from_numpy(batch.labels), torch.from_numpy(batch.weights)
    hidden = model.model(input_ids=torch.from_numpy(batch.ids), use_cache=False).last_hidden_state
    counted = weights > 0  # [rows, length]
    losses = F.cross_entropy(model.lm_head(hidden[counted]), labels[counted], reduction="none")
    return (losses * weights[counted]).sum() / weights[counted].sum()


def train(plan: Plan, out: Path, first_stage: int = 1) -> None:
    """Run the stages from `first_stage` on; `out` holds what loads, and what shows how it came about.

    From stage 2 on, `out` must hold what the stage before left there.
    """
    torch.set_num_threads(plan.num_threads)
    for number in range(first_stage, len(STAGES) + 1):
        rng, tokenizer, model = _start(plan, out) if number == 1 else _resume(plan, number, out)
        run_stage(plan, number, out, rng, tokenizer, model)


def run_stage(
    plan: Plan, number: int, out: Path, rng: Random, tokenizer: Tokenizer, model: LlamaForCausalLM
) -> None:
    """Train `model`, measure now and then, and leave its weights in `out`."""
    stage = STAGES[number - 1]
    schedule = schedule_of(stage)
    optimizer = make_optimizer(model, schedule)
    log = TrainingLog(out / "training.jsonl", number, stage)
    batches: list[Batch] = []
    for step in range(stage.num_steps):
        if not batches:
            filler = max_filler(step, stage)
            batches = draw_batches(
                rng, tokenizer, stage.lesson, stage.rows_per_batch, filler, stage.kind_weight
            )
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, schedule)
        with half_products(model):  # weights and their updates stay float32
            loss = answer_loss(model, batches.pop())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        log.add(loss.item())
        if (step + 1) % plan.steps_per_measurement == 0:
            log.write(step + 1, asdict(measure(model, tokenizer)))
            save_weights(model, out)
    save_weights(model, out)


def _start(plan: Plan, out: Path) -> tuple[Random, Tokenizer, LlamaForCausalLM]:
    """Tokenizer and random weights, from the seed alone."""
    rng = Random(plan.seed)
    torch.manual_seed(plan.seed)
    tokenizer = train_tokenizer(rng)
    save_tokenizer(tokenizer, out)
    model = make_model(tokenizer, plan)
    head = {"plan": asdict(plan), "num_parameters": sum(p.numel() for p in model.parameters())}
    (out / "training.jsonl").write_text(json.dumps(head) + "\n")
    return rng, tokenizer, model


def _resume(plan: Plan, number: int, out: Path) -> tuple[Random, Tokenizer, LlamaForCausalLM]:
    """What the stage before left in `out`, weights in half precision; randomness of this stage's own."""
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation=_ATTENTION)
    return Random(f"{plan.seed} stage {number}"), tokenizer, model


def schedule_of(stage: Stage) -> Schedule:
    """How the optimiser runs in a stage."""
    return Schedule(
        num_steps=stage.num_steps, peak_rate=stage.peak_rate, num_warmup_steps=stage.num_warmup_steps
    )


def max_filler(step: int, stage: Stage) -> int:
    """Sentences of filler at most: copying is found sooner where there is little to read."""
    done = step / stage.num_steps
    return next(most for until, most in stage.max_filler if done < until)


def save_weights(model: LlamaForCausalLM, out: Path) -> None:
    """Write configuration, weights in half precision and their checksum."""
    copy.deepcopy(model).half().save_pretrained(out)
    digest = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    (out / "checksum.json").write_text(json.dumps({"model.safetensors": digest}, indent=2) + "\n")


class TrainingLog:
    """The training log; clocks are read here only."""

    def __init__(self, path: Path, number: int, stage: Stage) -> None:
        self._path, self._number, self._losses = path, number, list[float]()
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()
        self._append({"stage": number, **asdict(stage)})

    def add(self, loss: float) -> None:
        """Note the loss of one step."""
        self._losses.append(loss)

    def write(self, step: int, measured: dict[str, float]) -> None:
        """Append a line: the mean loss since the last one, what was measured, seconds."""
        line = {
            "stage": self._number,
            "step": step,
            "loss": round(sum(self._losses) / len(self._losses), 4),
            **{key: round(value, 4) for key, value in measured.items()},
            "wall_s": round(time.perf_counter() - self._wall_s, 1),
            "cpu_s": round(time.process_time() - self._cpu_s, 1),
        }
        self._losses.clear()
        self._append(line)
        print(json.dumps(line), flush=True)

    def _append(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for tokenizer, weights, log and checksum"
    )
    for name, value in asdict(Plan()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    parser.add_argument("--first-stage", type=int, default=1, help="2: go on from the weights in the folder")
    arguments = vars(parser.parse_args())
    out: Path = arguments.pop("out")
    first_stage: int = arguments.pop("first_stage")
    out.mkdir(parents=True, exist_ok=True)
    train(Plan(**arguments), out, first_stage)


if __name__ == "__main__":
    _main()
