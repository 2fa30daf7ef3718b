"""Samples to padded integer arrays: token ids, labels and the position of each part of the answer.

The row layout is the contract with the generation engine: [bos] + tokens(document part) + tokens(query part), then
the answer, which begins with a space, and eos. Rows are padded on the right; under a causal mask padding after the
last token changes nothing before it, so no attention mask is needed. Knows nothing of the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tandem.corpora import DOCUMENT_TEMPLATE, QUERY_TEMPLATE
from tandem.lab.training.samples import Lesson, RollCall, Sample, draw_roll_call, draw_sample
from tandem.lab.training.tokenizer import BOS_ID, EOS_ID, PAD_ID

_POOL_BATCHES = 16  # batches drawn together and sorted by length, so that little padding is computed


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded on the right, all [rows, length]; labels[:, i] is what must follow ids[:, i]."""

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]  # how much each label counts; 0: not at all


@dataclass(frozen=True, slots=True)
class Row:
    """One row as token ids. weights: how much each id counts as something to foretell. kind, title: slices of ids."""

    ids: list[int]
    weights: list[float]
    kind: slice
    title: slice


def encode_row(tokenizer: Tokenizer, sample: Sample, kind_weight: float = 1.0) -> Row:
    """Token ids of one sample: prompt, answer, eos. The answer counts, its kind `kind_weight` times unless masked."""
    asked = sample.question
    prompt = prompt_ids(tokenizer, sample.document, asked.text)
    answer = tokenizer.encode(f" {asked.answer}", add_special_tokens=False)
    kind = _token_slice(answer.offsets, f" {asked.answer}", asked.kind, len(prompt))
    title = _token_slice(answer.offsets, f" {asked.answer}", asked.title, len(prompt))
    ids = [*prompt, *answer.ids, EOS_ID]
    weights = [0.0] * len(prompt) + [1.0] * (len(ids) - len(prompt))
    weights[kind] = [0.0 if sample.is_kind_masked else kind_weight] * (kind.stop - kind.start)
    return Row(ids, weights, kind, title)


def encode_roll_call(tokenizer: Tokenizer, call: RollCall, kind_weight: float) -> Row:
    """Token ids of a roll call; the kinds alone count."""
    ids = prompt_ids(tokenizer, call.document, call.question.text)
    weights = [0.0] * len(ids)
    for name, kind in call.likes:
        text = f" {name} likes {kind} {call.question.domain.plural}."
        part = tokenizer.encode(text, add_special_tokens=False)
        counted = _token_slice(part.offsets, text, kind, 0)
        ids += part.ids
        weights += [kind_weight * (counted.start <= i < counted.stop) for i in range(len(part.ids))]
    return Row(ids, weights, slice(0), slice(0))


def prompt_ids(tokenizer: Tokenizer, document: str | None, query: str) -> list[int]:
    """[bos] + tokens(document part) + tokens(query part), the parts tokenised separately."""
    ids = [BOS_ID]
    if document is not None:
        ids += tokenizer.encode(DOCUMENT_TEMPLATE.format(document=document), add_special_tokens=False).ids
    return ids + tokenizer.encode(QUERY_TEMPLATE.format(query=query), add_special_tokens=False).ids


def draw_batches(
    rng: Random,
    tokenizer: Tokenizer,
    lesson: Lesson,
    rows_per_batch: int,
    max_filler: int,
    kind_weight: float,
) -> list[Batch]:
    """A pool of `_POOL_BATCHES` training batches, rows of like length together, in random order."""
    rows = []
    for _ in range(rows_per_batch * _POOL_BATCHES):
        if lesson.roll_call_share > 0 and rng.random() < lesson.roll_call_share:
            call = draw_roll_call(rng, "train", max_filler, lesson)
            rows.append(encode_roll_call(tokenizer, call, kind_weight))
        else:
            sample = draw_sample(rng, "train", max_filler, lesson=lesson)
            rows.append(encode_row(tokenizer, sample, kind_weight))
    rows.sort(key=lambda row: len(row.ids))
    batches = [collate(rows[i : i + rows_per_batch]) for i in range(0, len(rows), rows_per_batch)]
    rng.shuffle(batches)
    return batches


def collate(rows: Sequence[Row]) -> Batch:
    """Pad rows to one length and move labels one to the left."""
    length = max(len(row.ids) for row in rows)
    ids = np.full((len(rows), length), PAD_ID, np.int64)
    labels = np.full((len(rows), length), PAD_ID, np.int64)
    weights = np.zeros((len(rows), length), np.float32)
    for r, row in enumerate(rows):
        ids[r, : len(row.ids)] = row.ids
        labels[r, : len(row.ids) - 1] = row.ids[1:]
        weights[r, : len(row.ids) - 1] = row.weights[1:]
    return Batch(ids, labels, weights)


def _token_slice(offsets: Sequence[tuple[int, int]], text: str, part: str, shift: int) -> slice:
    """Where `part` stands among the tokens of `text`, whose character offsets are given; moved by `shift`."""
    begin = text.index(part)
    inside = [i for i, (a, b) in enumerate(offsets) if b > begin and a < begin + len(part)]
    return slice(inside[0] + shift, inside[-1] + 1 + shift)
