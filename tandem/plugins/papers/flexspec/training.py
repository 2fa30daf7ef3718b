"""What a drafter learns from, texts as they are and answers that the target itself writes, and how.

Distillation: a drafter learns a target's distribution at the tokens that count. Two losses: KL divergence of the
drafter's distribution from the target's (FlexSpec Eq. 6, at temperature 1), and the total variation distance, which is
one minus the acceptance of the rejection rule (NOT in the paper). How often its drafts stand is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch.nn import functional as F

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import coupled_acceptance
from tandem.errors import GenerationError

if TYPE_CHECKING:
    from tandem.engine.engine import Engine

Loss = Literal["kl", "tv"]
MAX_MEASURED = 400
"""Tokens at which acceptance is computed, at most; the exact formula sorts the vocabulary at each."""


class Example(NamedTuple):
    """One row: token ids, of which those from `start` on are what a drafter is to foretell."""

    ids: tuple[int, ...]
    start: int  # >= 1


class Side(NamedTuple):
    """Rows padded on the right, as one model sees them; both arrays [rows, length]."""

    ids: NDArray[np.int64]
    is_counted: NDArray[np.bool_]  # whether the distribution *after* a position counts


class Pair(NamedTuple):
    """Answers as both drafter and target see them; the tokens that count are the same, in the same order."""

    drafter: Side
    target: Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The schedule of the optimiser: AdamW, warm-up, then a cosine down to a twentieth of the peak rate."""

    num_steps: int
    peak_rate: float = 2e-3
    num_warmup_steps: int = 20
    weight_decay: float = 0.05  # of matrices
    loss: Loss = "kl"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How often a drafter's tokens stand, each a mean over tokens, in [0, 1]."""

    coupled: float  # coupled drafts at temperature 1, by the exact formula
    rejection: float  # the rejection rule at temperature 1: sum of min(p, q)
    greedy: float  # temperature 0: the same most probable token
    num_tokens: int


def collate(examples: Sequence[Example]) -> Side:
    """Examples as one batch."""
    length = max(len(example.ids) for example in examples)
    ids = np.zeros((len(examples), length), np.int64)
    is_counted = np.zeros((len(examples), length), bool)
    for row, example in enumerate(examples):
        ids[row, : len(example.ids)] = example.ids
        is_counted[row, example.start - 1 : len(example.ids) - 1] = True
    return Side(ids, is_counted)


def draw_pairs(rng: Random, rows: Sequence[tuple[Example, Example]], rows_per_batch: int) -> Iterator[Pair]:
    """Batches without end of (drafter's, target's) examples, rows of like length together, shuffled each round."""
    ordered = sorted(rows, key=lambda row: len(row[1].ids))
    groups = [ordered[at : at + rows_per_batch] for at in range(0, len(ordered), rows_per_batch)]
    while True:
        rng.shuffle(groups)
        for group in groups:
            yield pair_of(group)


def pair_of(rows: Sequence[tuple[Example, Example]]) -> Pair:
    """(drafter's, target's) examples as one batch."""
    return Pair(collate([own for own, _ in rows]), collate([other for _, other in rows]))


def logits_of(model: Any, side: Side) -> torch.Tensor:
    """[tokens that count, vocab], row after row; only the columns in which a token counts are projected."""
    counted = torch.from_numpy(side.is_counted)
    columns = counted.any(0).nonzero().flatten()
    ids = torch.from_numpy(side.ids)
    logits: torch.Tensor = model(
        input_ids=ids.to(model.device), use_cache=False, logits_to_keep=columns.to(model.device)
    ).logits
    return logits[counted[:, columns].to(logits.device)]


def distillation_loss(student: torch.Tensor, teacher: torch.Tensor, loss: Loss = "kl") -> torch.Tensor:
    """Mean over tokens: KL(p || q) in nats, or TV(p, q) in [0, 1]. student, teacher: logits [tokens, vocab]."""
    if loss == "tv":
        return 0.5 * (student.float().softmax(-1) - teacher.float().softmax(-1)).abs().sum(-1).mean()
    log_q, log_p = student.float().log_softmax(-1), teacher.float().log_softmax(-1)
    return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def distil(
    student: Any,
    teacher: Any,
    pairs: Iterable[Pair],
    schedule: Schedule,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Train what of the student is not frozen. report: receives each step, 1-based, and its loss."""
    optimizer = make_optimizer(student, schedule)
    trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
    for step, pair in zip(range(schedule.num_steps), pairs, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, schedule)
        with half_products(student):
            with torch.no_grad():
                teaching = logits_of(teacher, pair.target)
            loss = distillation_loss(logits_of(student, pair.drafter), teaching, schedule.loss)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        report(step + 1, loss.item())


def half_products(model: Any) -> torch.autocast:
    """Matrix products in bfloat16 where the model's processor multiplies it; emulated, they take 50 times as long as in
    float32.
    """
    kind = model.device.type
    is_native = kind != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return torch.autocast(kind, torch.bfloat16, enabled=is_native)


def make_optimizer(model: Any, schedule: Schedule) -> torch.optim.Optimizer:
    """AdamW over what is not frozen; matrices alone decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim >= 2]
    vectors = [parameter for parameter in trained if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": schedule.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=schedule.peak_rate, betas=(0.9, 0.98), fused=True)


def learning_rate(step: int, schedule: Schedule) -> float:
    """The learning rate of a step."""
    if step < schedule.num_warmup_steps:
        return schedule.peak_rate * (step + 1) / schedule.num_warmup_steps
    done = (step - schedule.num_warmup_steps) / max(1, schedule.num_steps - schedule.num_warmup_steps)
    return schedule.peak_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


@torch.inference_mode()
def measure(student: Any, teacher: Any, pairs: Iterable[Pair], max_tokens: int = MAX_MEASURED) -> Acceptance:
    """Acceptance at the tokens that count, of at most `max_tokens`, evenly spread."""
    kept = list(pairs)
    q = torch.cat([logits_of(student, pair.drafter) for pair in kept]).double().softmax(-1)
    p = torch.cat([logits_of(teacher, pair.target) for pair in kept]).double().softmax(-1)
    return acceptance_of(q.cpu().numpy(), p.cpu().numpy(), max_tokens)


def acceptance_of(
    q: NDArray[np.float64], p: NDArray[np.float64], max_tokens: int = MAX_MEASURED
) -> Acceptance:
    """The acceptance rate of distributions [tokens, vocab] of drafter and target."""
    stride = max(1, math.ceil(len(q) / max_tokens))
    coupled = [coupled_acceptance(whole(q[at]), whole(p[at])) for at in range(0, len(q), stride)]
    return Acceptance(
        coupled=float(np.mean(coupled)),
        rejection=float(np.minimum(q, p).sum(-1).mean()),
        greedy=float((q.argmax(-1) == p.argmax(-1)).mean()),
        num_tokens=len(q),
    )


def whole(dense: NDArray[np.float64]) -> Distribution:
    """A distribution over every token, [vocab], its sum made exactly one."""
    return Distribution(np.arange(dense.size), dense / dense.sum())


Row = tuple[Example, Example]
"""The same tokens as drafter and target see them."""
AT_ONCE = 16
"""Answers that are written in one batch."""
SHOWN_SHARE = 0.5
"""Of the answers to a document: how often the drafter sees it, too. Elsewhere it is the other party's."""


def text_rows(engine: Engine, texts: Sequence[str], max_tokens: int) -> list[Row]:
    """Every text, cut into rows of so many tokens, behind what a row begins with; all tokens count."""
    head = engine.build_prompt((0,), (), 1).document_tokens[0][:1]
    room = min(max_tokens, (engine.context_length or max_tokens) - len(head))
    tokenizer = Tokenizer.from_str(engine.tokenizer_json)
    rows = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        for at in range(0, len(ids), room):
            window = (*head, *ids[at : at + room])
            if len(window) > 1:
                rows.append((Example(window, 1),) * 2)
    return rows


def answer_rows(
    engine: Engine,
    questions: Sequence[str],
    documents: Sequence[str],
    *,
    num_answers: int,
    max_new_tokens: int,
    rng: Random,
    report: Callable[[int, int], object] = lambda done, total: None,
) -> list[Row]:
    """So many answers that the target draws at temperature 1, to the questions in turn, each with a document of its
    own, or none where there are none. Half of the documents are hidden from the drafter. Raises GenerationError.

    report: receives (answers done, all).
    """
    rows: list[Row] = []
    for start in range(0, num_answers, AT_ONCE):
        chosen = [
            (questions[number % len(questions)], (rng.choice(documents),) if documents else ())
            for number in range(start, min(start + AT_ONCE, num_answers))
        ]
        answers = draw_answers(engine, chosen, max_new_tokens, rng)
        for (question, shown), answer in zip(chosen, answers, strict=True):
            own = shown if rng.random() < SHOWN_SHARE else ()
            rows.append(
                (
                    answer_example(engine, question, own, answer),
                    answer_example(engine, question, shown, answer),
                )
            )
        report(len(rows), num_answers)
    return rows


def draw_answers(
    engine: Engine, prompts: Sequence[tuple[str, Sequence[str]]], max_new_tokens: int, rng: Random
) -> list[list[int]]:
    """An answer to each (question, documents), drawn at temperature 1 from the row of the first document, in one batch;
    an end-of-sequence token is its last. Raises GenerationError.
    """
    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    return write_answers(
        engine,
        prompts,
        max_new_tokens,
        lambda law, answer, step: int(torch.multinomial(law, 1, generator=generator)),
    )


def write_answers(
    engine: Engine,
    prompts: Sequence[tuple[str, Sequence[str]]],
    max_new_tokens: int,
    choose: Callable[[torch.Tensor, int, int], int],
) -> list[list[int]]:
    """As `draw_answers`. choose: the token, from the distribution [vocab] at temperature 1, the answer's number and the
    step.
    """
    names = [f"distillation {number}" for number in range(len(prompts))]
    answers: dict[str, list[int]] = {name: [] for name in names}
    try:
        for name, (question, documents) in zip(names, prompts, strict=True):
            engine.open(name, question, documents, max_new_tokens, num_stored=0)
        going = list(names)
        while going:
            computed = engine.forward({name: answers[name] for name in going})
            for name, logits in zip(going, computed, strict=True):
                law = logits[0, -1].double().softmax(-1).cpu()
                answers[name].append(choose(law, names.index(name), len(answers[name])))
            going = [
                name
                for name in going
                if answers[name][-1] not in engine.eos_token_ids and len(answers[name]) < max_new_tokens
            ]
    finally:
        for name in names:
            engine.close(name)
    return [answers[name] for name in names]


def answer_example(engine: Engine, question: str, documents: Sequence[str], answer: Sequence[int]) -> Example:
    """An answer behind the row that the engine builds for it. Raises GenerationError."""
    prompt = engine.build_prompt(question, documents, len(answer))
    head = (*prompt.document_tokens[0], *prompt.query_tokens)
    return Example((*head, *answer), len(head))


def check_rows(rows: Sequence[Row], num_held_out: int) -> None:
    """GenerationError if there is too little to learn from."""
    if len(rows) < 2 * num_held_out:
        raise GenerationError(
            f"There are {len(rows)} rows to learn from, of which {num_held_out} would be held out; "
            "name more text, or more questions."
        )
