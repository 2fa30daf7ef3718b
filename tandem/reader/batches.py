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
from tandem.reader.samples import Sample, draw_sample
from tandem.reader.tokenizer import BOS, EOS, PAD

IGNORED = -100  # a label that does not count; torch's cross_entropy knows it by this number

_POOL_BATCHES = 16  # batches drawn together and sorted by length, so that little padding is computed


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded on the right. ids, labels: int64 [rows, length]; labels[:, i] is what must follow ids[:, i]."""

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


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
    rng: Random, tokenizer: Tokenizer, rows_per_batch: int, max_filler: int
) -> list[Batch]:
    """A pool of `_POOL_BATCHES` training batches, rows of like length together, in random order."""
    samples = [draw_sample(rng, "train", max_filler) for _ in range(rows_per_batch * _POOL_BATCHES)]
    pairs = sorted(((encode_row(tokenizer, sample), sample) for sample in samples), key=lambda p: len(p[0].ids))
    groups = [pairs[i : i + rows_per_batch] for i in range(0, len(pairs), rows_per_batch)]
    rng.shuffle(groups)
    pad = tokenizer.token_to_id(PAD)
    return [collate([row for row, _ in g], [sample.is_kind_masked for _, sample in g], pad) for g in groups]


def draw_drill(rng: Random, tokenizer: Tokenizer, num_rows: int) -> Batch:
    """Rows that say a run of random tokens twice, of which the second time counts.

    Nothing but copying can foretell them, at every position; a few hundred such batches form the attention heads
    that samples of the family, with four copied tokens in a row of fifty, form only after thousands.
    """
    length, first_id = rng.randint(8, 24), tokenizer.token_to_id(PAD) + 1
    bos, vocab_size = tokenizer.token_to_id(BOS), tokenizer.get_vocab_size()
    ids = np.empty((num_rows, 2 * length + 1), np.int64)
    for r in range(num_rows):
        run = [rng.randrange(first_id, vocab_size) for _ in range(length)]
        ids[r] = [bos, *run, *run]
    labels = np.full_like(ids, IGNORED)
    labels[:, length + 1 : -1] = ids[:, length + 2 :]
    return Batch(ids, labels)


def collate(rows: Sequence[Row], is_kind_masked: Sequence[bool], pad: int) -> Batch:
    """Pad rows to one length; only answer tokens count, without the kind's where it is masked."""
    length = max(len(row.ids) for row in rows)
    ids = np.full((len(rows), length), pad, np.int64)
    labels = np.full((len(rows), length), IGNORED, np.int64)
    for r, (row, masked) in enumerate(zip(rows, is_kind_masked, strict=True)):
        ids[r, : len(row.ids)] = row.ids
        labels[r, row.num_prompt_tokens - 1 : len(row.ids) - 1] = row.ids[row.num_prompt_tokens :]
        if masked:
            labels[r, row.kind.start - 1 : row.kind.stop - 1] = IGNORED
    return Batch(ids, labels)


def _token_slice(offsets: Sequence[tuple[int, int]], text: str, part: str, shift: int) -> slice:
    """Where `part` stands among the tokens of `text`, whose character offsets are given; moved by `shift`."""
    begin = text.index(part)
    inside = [i for i, (a, b) in enumerate(offsets) if b > begin and a < begin + len(part)]
    return slice(inside[0] + shift, inside[-1] + 1 + shift)
