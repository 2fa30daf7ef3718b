"""Train the bundled model from nothing: `python -m tandem_lab.training.train --out DIR`.

Seeded: tokenizer, samples and initial weights follow from `--seed`. Writes the tokenizer, the weights in half
precision, a log (one JSON object a line: step, loss, held-out measurements, wall and CPU seconds) and the weights'
checksum. Knows nothing of retrieval, sides or Ray.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from tandem.plugins.papers.flexspec.training import Schedule, half_products, learning_rate, make_optimizer
from tandem_lab.training.batches import NOT_COUNTED, Batch, Row, draw_batches, encode_row, even_targets
from tandem_lab.training.samples import CORPUS, Case, Lesson, draw_sample
from tandem_lab.training.tokenizer import BOS_ID, EOS_ID, MAX_LENGTH, PAD_ID, save_tokenizer, train_tokenizer

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


_ATTENTION = "eager"  # for rows this short several times faster to train than the fused kernel


@dataclass(frozen=True, slots=True)
class Stage:
    """One run of the optimiser."""

    lesson: Lesson
    num_steps: int
    rows_per_batch: int
    peak_rate: float  # AdamW's learning rate after warm-up; cosine to a twentieth of it
    num_warmup_steps: int
    max_filler: int  # sentences of filler in a document, at most


STAGE = Stage(CORPUS, 8000, 16, 2e-3, 50, 3)


@dataclass(frozen=True, slots=True)
class Plan:
    """The model's size, the seed, and what the machine is asked for."""

    seed: int = 2024
    hidden: int = 128
    num_layers: int = 4
    num_heads: int = 4
    inner: int = 320  # width of the feed-forward layers
    num_threads: int = 1
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
            attention_bias=True,  # without it no head can look at a distance, whatever stands there
            bos_token_id=BOS_ID,
            eos_token_id=EOS_ID,
            pad_token_id=PAD_ID,
            # Queries and keys that differ from the first step on: with the default of 0.02 names are found much later.
            initializer_range=plan.hidden**-0.5,
        )
    )
    look_up_names(model)
    model.set_attn_implementation(_ATTENTION)
    return model


def answer_loss(model: LlamaForCausalLM, batch: Batch, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats over labels that count; targets: those of labels beyond the vocabulary, [n, vocab].

    The vocabulary's layer runs at those positions only.
    """
    labels = torch.from_numpy(batch.labels)
    hidden = model.model(input_ids=torch.from_numpy(batch.ids), use_cache=False).last_hidden_state
    counted = labels != NOT_COUNTED  # [rows, length]
    log_probabilities = model.lm_head(hidden[counted]).log_softmax(-1)
    either = torch.cat([log_probabilities, log_probabilities @ targets.T], dim=1)
    return F.nll_loss(either, labels[counted])


def train(plan: Plan, out: Path, stage: Stage = STAGE) -> None:
    """Train a model from nothing; `out` holds what loads, and what shows how it came about."""
    torch.set_num_threads(plan.num_threads)
    torch.manual_seed(plan.seed)
    rng = Random(plan.seed)
    tokenizer = train_tokenizer(rng)
    save_tokenizer(tokenizer, out)
    model = make_model(tokenizer, plan)
    log = TrainingLog(out / "training.jsonl", plan, model, stage)
    schedule = schedule_of(stage)
    optimizer = make_optimizer(model, schedule)
    targets = torch.from_numpy(even_targets(tokenizer))
    batches: list[Batch] = []
    for step in range(stage.num_steps):
        if not batches:
            batches = draw_batches(rng, tokenizer, stage.lesson, stage.rows_per_batch, stage.max_filler)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, schedule)
        with half_products(model):  # weights and their updates stay float32
            loss = answer_loss(model, batches.pop(), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        log.add(loss.item())
        if (step + 1) % plan.steps_per_measurement == 0:
            log.write(step + 1, asdict(measure(model, tokenizer)))
            save_weights(model, out)
    save_weights(model, out)


def schedule_of(stage: Stage) -> Schedule:
    """How the optimiser runs in a stage."""
    return Schedule(
        num_steps=stage.num_steps, peak_rate=stage.peak_rate, num_warmup_steps=stage.num_warmup_steps
    )


def save_weights(model: LlamaForCausalLM, out: Path) -> None:
    """Write configuration, weights in half precision and their checksum."""
    copy.deepcopy(model).half().save_pretrained(out)
    digest = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    (out / "checksum.json").write_text(json.dumps({"model.safetensors": digest}, indent=2) + "\n")


class TrainingLog:
    """The training log; clocks are read here only."""

    def __init__(self, path: Path, plan: Plan, model: LlamaForCausalLM, stage: Stage) -> None:
        self._path, self._losses = path, list[float]()
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()
        path.unlink(missing_ok=True)
        self._append(
            {
                "plan": asdict(plan),
                "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
            }
        )
        self._append(asdict(stage))

    def add(self, loss: float) -> None:
        """Note the loss of one step."""
        self._losses.append(loss)

    def write(self, step: int, measured: dict[str, float]) -> None:
        """Append a line: the mean loss since the last one, what was measured, seconds."""
        line = {
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


# ---- Where training begins ------------------------------------------------------------------------------------------


OFFSETS = (0, 1, 2, 3)
"""How far before its own token each head of the first layer looks; "Mira likes" ends two syllables and a verb."""
POSITION_FREQUENCIES = 4
"""So many of the fastest rotations tell neighbours apart; slower ones hardly turn from one token to the next."""
POSITION_SCALE, VALUE_SCALE, MATCH_SCALE, SAY_SCALE = 10.0, 3.0, 2.0, 12.0
"""Of the biases that name a distance, what is copied, queries and keys that are compared, and what is said."""


def look_up_names(model: LlamaForCausalLM) -> None:
    """Have the second layer find where a name stood before, and say what followed. Draws from torch's generator.

    A reader must find, behind "Mira likes", what a document says behind Mira's name. From random weights that took more
    steps than there is time for. So heads of the first layer begin as copies of what stands no, one, two and three
    tokens before, by position alone, and heads of the second layer begin by comparing these copies and saying the token
    that is found: induction heads (Olsson et al., In-context Learning and Induction Heads, 2022). Everything is trained
    from there. The model needs biases of attention and four heads.
    """
    config = model.config
    heads = _Heads(config.hidden_size, config.num_attention_heads)
    first, second = (model.model.layers[index].self_attn for index in (0, 1))
    rotations = _rotations(config, heads.size)
    kept = torch.linalg.qr(torch.randn(heads.hidden, heads.size))[0].T  # of a token, in each copy
    # Where copies go; one head's do not overlap another's.
    places = torch.linalg.qr(torch.randn(heads.hidden, heads.hidden))[0]
    with torch.no_grad():
        for head, offset in enumerate(OFFSETS):
            rows = heads.rows(head)
            _attend_before(first, rows, offset, rotations)
            first.v_proj.weight[rows] = VALUE_SCALE * kept
            first.o_proj.weight[:, rows] = places[:, rows]
        # The last token asked about, one before, two before: each where the document had it one token earlier.
        for head, (asked, told) in enumerate(pairwise(range(len(OFFSETS)))):
            rows = heads.rows(head)
            _compare(second.q_proj, rows, places[:, heads.rows(asked)])
            _compare(second.k_proj, rows, places[:, heads.rows(told)])
            second.v_proj.weight[rows] = places[:, heads.rows(0)].T
            second.o_proj.weight[:, rows] = SAY_SCALE * kept.T


class _Heads:
    def __init__(self, hidden: int, num_heads: int) -> None:
        self.hidden, self.size = hidden, hidden // num_heads

    def rows(self, head: int) -> slice:
        return slice(head * self.size, (head + 1) * self.size)


def _rotations(config: Any, head_size: int) -> torch.Tensor:
    """Radians from one token to the next of each pair of dimensions, the fastest first (Su et al., RoPE)."""
    base = float(config.rope_parameters["rope_theta"])
    return torch.tensor(base) ** (-torch.arange(0, head_size, 2) / head_size)


def _attend_before(attention: Any, rows: slice, offset: int, rotations: torch.Tensor) -> None:
    """A head whose score is highest `offset` tokens before, whatever stands there: a key turned as far ahead."""
    half = len(rotations)
    fastest = torch.arange(POSITION_FREQUENCIES)
    angles = offset * rotations[:POSITION_FREQUENCIES]
    attention.q_proj.bias[rows][fastest] = POSITION_SCALE
    attention.k_proj.bias[rows][fastest] = POSITION_SCALE * torch.cos(angles)
    attention.k_proj.bias[rows][half + fastest] = POSITION_SCALE * torch.sin(angles)


def _compare(projection: Any, rows: slice, place: torch.Tensor) -> None:
    """Read a copy into the dimensions that turn slowly, so that distance matters little."""
    size = place.shape[1]
    slow = torch.tensor([i for i in range(size) if i % (size // 2) >= size // 4])
    projection.weight[rows] = 0.0
    projection.weight[rows][slow] = MATCH_SCALE * place.T[: len(slow)]


# ---- What it has learned --------------------------------------------------------------------------------------------


Laws = npt.NDArray[np.float32]  # [length, vocab]: the law that follows each position of a row


@dataclass(frozen=True, slots=True)
class Reading:
    """Held-out measurements, each a mean over samples in [0, 1]."""

    kind_copied: float  # note on the person, half of them on a second one too: the kind is the argmax
    title_copied: float  # page of the answer's kind: every token of the title is the argmax
    title_probability: float  # the same page: probability of the title's first token
    kind_peak_other_person: float  # note on somebody else: largest probability at the kind (flat: 0.125)
    kind_peak_page: float  # page of any kind of the domain: the same
    title_peak_wrong_page: (
        float  # page of another kind: largest probability at the title's first token (flat: 0.01)
    )
    title_peak_note: float  # own note: the same
    num_samples: int


def measure(model: LlamaForCausalLM, tokenizer: Tokenizer, num_samples: int = 96, seed: int = 7) -> Reading:
    """All measurements, over `num_samples` held-out samples a case with up to three sentences of filler."""
    rng = Random(seed)
    own = _laws(model, tokenizer, rng, "own_note", num_samples)
    right = _laws(model, tokenizer, rng, "right_page", num_samples)
    wrong = _laws(model, tokenizer, rng, "wrong_page", num_samples)
    return Reading(
        kind_copied=_mean([_is_copied(distributions, row, row.kind) for row, distributions in own]),
        title_copied=_mean([_is_copied(distributions, row, row.title) for row, distributions in right]),
        title_probability=_mean(
            [distributions[row.title.start - 1, row.ids[row.title.start]] for row, distributions in right]
        ),
        kind_peak_other_person=_mean(
            [
                distributions[row.kind.start - 1].max()
                for row, distributions in _laws(model, tokenizer, rng, "other_person", num_samples)
            ]
        ),
        kind_peak_page=_mean([distributions[row.kind.start - 1].max() for row, distributions in wrong]),
        title_peak_wrong_page=_mean(
            [distributions[row.title.start - 1].max() for row, distributions in wrong]
        ),
        title_peak_note=_mean([distributions[row.title.start - 1].max() for row, distributions in own]),
        num_samples=num_samples,
    )


@torch.inference_mode()
def _laws(
    model: LlamaForCausalLM, tokenizer: Tokenizer, rng: Random, case: Case, num_samples: int
) -> list[tuple[Row, Laws]]:
    """Rows with their laws [length, vocab], teacher-forced, for `num_samples` held-out samples of one case."""
    rows = [encode_row(tokenizer, draw_sample(rng, "heldout", 3, case=case)) for _ in range(num_samples)]
    ids = torch.zeros(len(rows), max(len(row.ids) for row in rows), dtype=torch.long)
    for r, row in enumerate(rows):
        ids[r, : len(row.ids)] = torch.tensor(row.ids)
    distributions = model(input_ids=ids, use_cache=False).logits.softmax(-1).numpy()
    return list(zip(rows, distributions, strict=True))


def _is_copied(distributions: Laws, row: Row, part: slice) -> float:
    return float(all(distributions[i - 1].argmax() == row.ids[i] for i in range(part.start, part.stop)))


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


# ---- The command ----------------------------------------------------------------------------------------------------


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for tokenizer, weights, log and checksum"
    )
    for name, value in asdict(Plan()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    arguments = vars(parser.parse_args())
    out: Path = arguments.pop("out")
    out.mkdir(parents=True, exist_ok=True)
    train(Plan(**arguments), out)


if __name__ == "__main__":
    _main()
