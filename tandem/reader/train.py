"""Train the bundled model from nothing: `python -m tandem.reader.train --out DIR`.

Seeded: tokenizer, samples and initial weights follow from `--seed`. About 35 minutes on 2 CPU cores. Writes the
tokenizer, the weights in half precision, a log (one JSON object a line: step, loss, held-out measurements, wall and
CPU seconds) and the weights' checksum. Documents grow from one sentence to several while training (`_max_filler`).
Knows nothing of retrieval, sides or Ray.
"""

import argparse
import copy
import hashlib
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from tandem.reader.batches import IGNORED, Batch, draw_batches
from tandem.reader.measure import measure
from tandem.reader.tokenizer import BOS, EOS, MAX_LENGTH, PAD, save_tokenizer, train_tokenizer


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is: its size, length and speed of learning."""

    seed: int = 2024
    num_steps: int = 6000
    rows_per_batch: int = 48
    peak_rate: float = 1.5e-3  # AdamW's learning rate after warm-up; cosine to a twentieth of it
    num_warmup_steps: int = 100
    hidden: int = 256
    num_layers: int = 4
    num_heads: int = 8
    inner: int = 640  # width of the feed-forward layers
    num_threads: int = 2
    steps_per_measurement: int = 200


def make_model(tokenizer: Tokenizer, plan: Plan) -> LlamaForCausalLM:
    """A Llama with random weights drawn from torch's generator, in fp32."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=plan.hidden,
            intermediate_size=plan.inner,
            num_hidden_layers=plan.num_layers,
            num_attention_heads=plan.num_heads,
            num_key_value_heads=plan.num_heads,
            max_position_embeddings=MAX_LENGTH,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.token_to_id(BOS),
            eos_token_id=tokenizer.token_to_id(EOS),
            pad_token_id=tokenizer.token_to_id(PAD),
            attn_implementation="eager",  # for rows this short, several times faster to train than the fused kernel
        )
    )


def answer_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy of the tokens that count; the vocabulary's layer runs at those positions only."""
    labels = torch.from_numpy(batch.labels)
    hidden = model.model(input_ids=torch.from_numpy(batch.ids), use_cache=False).last_hidden_state
    counted = labels != IGNORED  # [rows, length]
    return F.cross_entropy(model.lm_head(hidden[counted]), labels[counted])


def train(plan: Plan, out: Path) -> None:
    """Run the plan and leave everything that loads, and that shows how it was trained, in `out`."""
    rng = Random(plan.seed)
    torch.manual_seed(plan.seed)
    torch.set_num_threads(plan.num_threads)
    tokenizer = train_tokenizer(rng)
    save_tokenizer(tokenizer, out)
    model = make_model(tokenizer, plan)
    optimizer = _make_optimizer(model, plan)
    log = _Log(out / "training.jsonl", plan, sum(p.numel() for p in model.parameters()))
    batches: list[Batch] = []
    for step in range(plan.num_steps):
        if not batches:
            batches = draw_batches(rng, tokenizer, plan.rows_per_batch, _max_filler(step, plan))
        for group in optimizer.param_groups:
            group["lr"] = _rate(step, plan)
        with torch.autocast("cpu", torch.bfloat16):  # matrix products only; weights and their updates stay fp32
            loss = answer_loss(model, batches.pop())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        log.add(loss.item())
        if (step + 1) % plan.steps_per_measurement == 0:
            log.write(step + 1, asdict(measure(model, tokenizer)))
            _save(model, out)


def _make_optimizer(model: LlamaForCausalLM, plan: Plan) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=plan.peak_rate, betas=(0.9, 0.98), fused=True)


def _rate(step: int, plan: Plan) -> float:
    if step < plan.num_warmup_steps:
        return plan.peak_rate * (step + 1) / plan.num_warmup_steps
    done = (step - plan.num_warmup_steps) / max(1, plan.num_steps - plan.num_warmup_steps)
    return plan.peak_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def _max_filler(step: int, plan: Plan) -> int:
    """Sentences of filler, from at most one to at most three: copying is found sooner where there is little to read."""
    done = step / plan.num_steps
    return 1 if done < 0.25 else 2 if done < 0.4 else 3


def _save(model: LlamaForCausalLM, out: Path) -> None:
    copy.deepcopy(model).half().save_pretrained(out)
    digest = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    (out / "checksum.json").write_text(json.dumps({"model.safetensors": digest}, indent=2) + "\n")


class _Log:
    """The training log; clocks are read here only."""

    def __init__(self, path: Path, plan: Plan, num_parameters: int) -> None:
        self._path, self._losses = path, list[float]()
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()
        path.write_text(json.dumps({"plan": asdict(plan), "num_parameters": num_parameters}) + "\n")

    def add(self, loss: float) -> None:
        self._losses.append(loss)

    def write(self, step: int, measured: dict[str, float]) -> None:
        line = {
            "step": step,
            "loss": round(sum(self._losses) / len(self._losses), 4),
            **{key: round(value, 4) for key, value in measured.items()},
            "wall_s": round(time.perf_counter() - self._wall_s, 1),
            "cpu_s": round(time.process_time() - self._cpu_s, 1),
        }
        self._losses.clear()
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for tokenizer, weights, log and checksum")
    for name, value in asdict(Plan()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    arguments = vars(parser.parse_args())
    out: Path = arguments.pop("out")
    out.mkdir(parents=True, exist_ok=True)
    train(Plan(**arguments), out)


if __name__ == "__main__":
    _main()
