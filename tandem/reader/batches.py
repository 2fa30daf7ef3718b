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

from tandem.reader import DOCUMENT_TEMPLATE, QUERY_TEMPLATE
from tandem.reader.samples import Lesson, Sample, draw_sample
from tandem.reader.tokenizer import BOS, EOS, PAD

IGNORED = -100  # a label that does not count; torch's cross_entropy knows it by this number

_POOL_BATCHES = 16  # batches drawn together and sorted by length, so that little padding is computed


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded on the right, all [rows, length]; labels[:, i] is what must follow ids[:, i]."""

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]  # how much each label counts


@dataclass(frozen=True, slots=True)
class Row:
    """One sample as token ids. `kind` and `title`: slices of `ids` where the answer states them."""

    ids: list[int]
    num_prompt_tokens: int
    kind: slice
    title: slice


def encode_row(tokenizer: Tokenizer, sample: Sample) -> Row:
    """Token ids of one sample: prompt, answer, eos."""
    asked = sample.question
    prompt = prompt_ids(tokenizer, sample.document, asked.text)
    answer = tokenizer.encode(f" {asked.answer}", add_special_tokens=False)
    return Row(
        [*prompt, *answer.ids, tokenizer.token_to_id(EOS)],
        len(prompt),
        _token_slice(answer.offsets, f" {asked.answer}", asked.kind, len(prompt)),
        _token_slice(answer.offsets, f" {asked.answer}", asked.title, len(prompt)),
    )


def prompt_ids(tokenizer: Tokenizer, document: str | None, query: str) -> list[int]:
    """[bos] + tokens(document part) + tokens(query part), the parts tokenised separately."""
    ids = [tokenizer.token_to_id(BOS)]
    if document is not None:
        ids += tokenizer.encode(DOCUMENT_TEMPLATE.format(document=document), add_special_tokens=False).ids
    return ids + tokenizer.encode(QUERY_TEMPLATE.format(query=query), add_special_tokens=False).ids


def draw_batches(
    rng: Random, tokenizer: Tokenizer, lesson: Lesson, rows_per_batch: int, max_filler: int, kind_weight: float
) -> list[Batch]:
    """A pool of `_POOL_BATCHES` training batches, rows of like length together, in random order."""
    count = rows_per_batch * _POOL_BATCHES
    samples = [draw_sample(rng, "train", max_filler, lesson=lesson) for _ in range(count)]
    pairs = sorted(((encode_row(tokenizer, sample), sample) for sample in samples), key=lambda p: len(p[0].ids))
    groups = [pairs[i : i + rows_per_batch] for i in range(0, len(pairs), rows_per_batch)]
    rng.shuffle(groups)
    pad = tokenizer.token_to_id(PAD)
    return [collate(group, pad, kind_weight) for group in groups]


def collate(pairs: Sequence[tuple[Row, Sample]], pad: int, kind_weight: float = 1.0) -> Batch:
    """Pad rows to one length; only answer tokens count, the kind's `kind_weight` times, or not where it is masked."""
    length = max(len(row.ids) for row, _ in pairs)
    ids = np.full((len(pairs), length), pad, np.int64)
    labels = np.full((len(pairs), length), IGNORED, np.int64)
    weights = np.ones((len(pairs), length), np.float32)
    for r, (row, sample) in enumerate(pairs):
        ids[r, : len(row.ids)] = row.ids
        labels[r, row.num_prompt_tokens - 1 : len(row.ids) - 1] = row.ids[row.num_prompt_tokens :]
        kind = slice(row.kind.start - 1, row.kind.stop - 1)
        weights[r, kind] = kind_weight
        if sample.is_kind_masked:
            labels[r, kind] = IGNORED
    return Batch(ids, labels, weights)


def _token_slice(offsets: Sequence[tuple[int, int]], text: str, part: str, shift: int) -> slice:
    """Where `part` stands among the tokens of `text`, whose character offsets are given; moved by `shift`."""
    begin = text.index(part)
    inside = [i for i, (a, b) in enumerate(offsets) if b > begin and a < begin + len(part)]
    return slice(inside[0] + shift, inside[-1] + 1 + shift)
